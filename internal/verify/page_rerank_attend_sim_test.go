package verify

import (
	"context"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// TestPageRerankAttendOnSimulator runs page_rerank_attend, and page_select_rerank_attend where it has the rule, over shapes that differ in each parameter: combine rules, pages of several steps,
// two n tiles, a softcap, several candidates a warp, fewer pages of values than that.
func TestPageRerankAttendOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		reason                   string
		dim, page, group, budget int // pages
		dtype, combine           string
		softcap, factor          float64
		candidates               []int
		cases                    []string
	}{
		{"the shape of the speed bars, every case", 128, 16, 4, 8, "bf16", "share_average", 0, 2, []int{0}, []string{""}},
		{"two and four candidates a warp", 128, 16, 8, 128, "bf16", "share_average", 0, 2, []int{0, 1, 2, 3}, []string{"mixed lengths", "holes"}},
		{"two n tiles, heads in turns", 64, 16, 16, 8, "fp16", "peak_normalised", 0, 1.5, []int{0}, []string{"mixed lengths", "holes", "replayed at other lengths"}},
		{"group of 3, a softcap", 80, 16, 3, 8, "fp16", "group_mass", 30, 3, []int{0, 1}, []string{"mixed lengths", "holes", "wide logits"}},
		{"large pages", 64, 64, 2, 8, "bf16", "group_max", 0, 4, []int{0, 1}, []string{"mixed lengths", "half-full last page"}},
		{"a list a query head", 64, 16, 3, 8, "bf16", "per_head", 0, 2, []int{0}, []string{"mixed lengths", "shared prefix", "one kv head"}},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, 1, 4, tc.group, tc.dtype, tc.softcap)
			s.Locks.Combine, s.Locks.BudgetTokens, s.Locks.Rerank = tc.combine, tc.budget*tc.page, tc.factor
			s.Locks.AlwaysKeep.SinkPages, s.Locks.AlwaysKeep.RecentPages = 1, 1
			dev, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			var list []plan.Candidate
			for _, f := range []plan.Family{plan.PageRerankAttend, plan.PageSelectRerankAttend} {
				all := plan.ForFamily(f, s, plan.Targets["sm_90a"]).Candidates
				if tc.combine != "share_average" && f == plan.PageSelectRerankAttend {
					continue
				}
				for _, at := range tc.candidates {
					if at < len(all) {
						list = append(list, all[at])
					}
				}
			}
			for at := range list {
				for _, name := range tc.cases {
					results, err := Check(context.Background(), e, s, list[at], Options{Only: name, Seed: 1, Workloads: "small"})
					if err != nil {
						t.Fatal(err)
					}
					compared := 0
					for _, r := range results {
						if !r.OK() {
							t.Errorf("%s, %s, %s: %s", list[at].ID(), r.Case, r.Metric, r.Failure)
						}
						compared += int(r.Count)
					}
					if compared == 0 && len(results) > 0 {
						t.Errorf("%s, %q compared nothing", list[at].ID(), name)
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
