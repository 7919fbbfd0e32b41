package verify

import (
	"context"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// TestPageRerankOnSimulator runs page_rerank over shapes that differ in each parameter: every combine rule, pages smaller and larger than
// a step, two n tiles, a softcap, factors that are no whole numbers.
func TestPageRerankOnSimulator(t *testing.T) {
	for _, tc := range []struct {
		reason           string
		dim, page, group int
		dtype, combine   string
		softcap, factor  float64
		cases            []string
	}{
		{"the shape of the speed bars, every case", 128, 16, 4, "bf16", "share_average", 0, 2, []string{""}},
		{"two n tiles, four pages a step", 64, 4, 16, "fp16", "peak_normalised", 0, 1.5, []string{"mixed lengths", "holes", "replayed at other lengths"}},
		{"group of 3, a softcap", 80, 8, 3, "fp16", "group_mass", 30, 3, []string{"mixed lengths", "holes", "wide logits"}},
		{"large pages", 64, 64, 2, "bf16", "group_max", 0, 4, []string{"mixed lengths", "half-full last page"}},
		{"a list a query head", 64, 16, 3, "bf16", "per_head", 0, 2, []string{"mixed lengths", "shared prefix", "one kv head"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, 1, 4, tc.group, tc.dtype, tc.softcap)
			s.Locks.Combine, s.Locks.BudgetTokens, s.Locks.Rerank = tc.combine, 8*tc.page, tc.factor
			s.Locks.AlwaysKeep.SinkPages, s.Locks.AlwaysKeep.RecentPages = 1, 1
			dev, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			fp := plan.ForFamily(plan.PageRerank, s, plan.Targets["sm_90a"])
			portable, _ := fp.DefaultOf(plan.Portable)
			for _, c := range []plan.Candidate{fp.Candidates[0], portable} {
				for _, name := range tc.cases {
					results, err := Check(context.Background(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
					if err != nil {
						t.Fatal(err)
					}
					compared := 0
					for _, r := range results {
						if !r.OK() {
							t.Errorf("%s, %s: %s", c.ID(), r.Case, r.Failure)
						}
						compared += int(r.Count)
					}
					if compared == 0 && len(results) > 0 {
						t.Errorf("%s, %q compared nothing", c.ID(), name)
					}
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
			if err := l.Unload(); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestPageRerankClusterChoices runs every shape of the cluster form under the simulator's sanitizer: several candidates a warp, groups of
// heads larger and smaller than the warps, rules without shares.
func TestPageRerankClusterChoices(t *testing.T) {
	for _, tc := range []struct {
		reason           string
		dim, page, group int
		combine          string
	}{
		{"a warp has a part of a head", 64, 16, 3, "share_average"},
		{"a warp has several heads", 64, 16, 20, "share_average"},
		{"logarithms alone", 64, 32, 4, "group_mass"},
	} {
		s := immaSpec(tc.dim, tc.page, 1, 4, tc.group, 1, "bf16")
		s.Locks.Combine, s.Locks.BudgetTokens, s.Locks.Rerank = tc.combine, 16*tc.page, 4
		s.Locks.AlwaysKeep.SinkPages, s.Locks.AlwaysKeep.RecentPages = 2, 1
		for _, c := range plan.ForFamily(plan.PageRerank, s, plan.Targets["sm_90a"]).Candidates {
			if c.Kernel != "kvloom::page_rerank_cluster" {
				continue
			}
			t.Run(tc.reason+" "+c.ID(), func(t *testing.T) {
				checkImma(t, s, c, 32, "random:1", tc.reason, []string{"crosses 1024 tokens", "mixed lengths", "holes"})
			})
		}
	}
}
