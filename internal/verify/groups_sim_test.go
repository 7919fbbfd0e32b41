package verify

import (
	"context"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// TestGroupsOnSimulator runs what summaries of several pages go through: their build, scores of groups by each kind of kernel, and reranks of
// the groups' pages; over shapes that differ in pages a group, ranks, combine rules and bases.
func TestGroupsOnSimulator(t *testing.T) {
	t.Parallel()
	for _, tc := range []struct {
		reason                string
		dim, page, pages      int
		rank, bits, group     int
		dtype, basis, combine string
		softcap, factor       float64
		sink, recent          int
		families              []plan.Family
		every                 bool // candidates of page_score, not the first of each form
	}{
		{"the shape of the speed bars", 128, 16, 2, 1, 4, 4, "bf16", "query_weighted", "share_average", 0, 2, 1, 1,
			[]plan.Family{plan.PageSummary, plan.PageScore, plan.PageRerank, plan.PageRerankAttend, plan.PageSelectRerankAttend}, false},
		{"four pages, kept pages that begin inside a group", 64, 16, 4, 2, 4, 8, "fp16", "svd", "share_average", 0, 1.5, 2, 3,
			[]plan.Family{plan.PageSummary, plan.PageScore, plan.PageRerank, plan.PageRerankAttend}, false},
		{"pages smaller than a step of keys", 64, 8, 4, 3, 8, 3, "bf16", "svd", "group_mass", 30, 2, 0, 1,
			[]plan.Family{plan.PageSummary, plan.PageScore, plan.PageRerank}, false},
		{"large pages, a list a query head", 64, 32, 2, 1, 2, 2, "bf16", "query_weighted", "per_head", 0, 3, 1, 0,
			[]plan.Family{plan.PageSummary, plan.PageScore, plan.PageRerank}, false},
		{"integer tensor cores, both arrangements and rings", 64, 16, 2, 4, 4, 8, "bf16", "svd", "share_average", 0, 2, 1, 1,
			[]plan.Family{plan.PageScore}, true},
	} {
		t.Run(tc.reason, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group, tc.dtype, tc.softcap)
			s.Locks.SummaryTokens, s.Locks.Basis, s.Locks.Combine, s.Locks.Rerank = tc.page*tc.pages, tc.basis, tc.combine, tc.factor
			s.Locks.BudgetTokens, s.Locks.AlwaysKeep.SinkPages, s.Locks.AlwaysKeep.RecentPages = 8*tc.page, tc.sink, tc.recent
			dev, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			for _, f := range tc.families {
				fp := plan.ForFamily(f, s, plan.Targets["sm_90a"])
				list := fp.Candidates[:1]
				if c, ok := fp.DefaultOf(plan.Portable); ok {
					list = []plan.Candidate{fp.Candidates[0], c}
				}
				if tc.every {
					kernels := map[string]bool{}
					list = nil
					for _, c := range fp.Candidates {
						if !kernels[c.Kernel] {
							kernels[c.Kernel] = true
							list = append(list, c)
						}
					}
				}
				for _, c := range list {
					for _, name := range []string{"mixed lengths", "holes", "shared prefix", "replayed at other lengths", "half-full last page"} {
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
						if compared == 0 {
							t.Errorf("%s, %q compared nothing", c.ID(), name)
						}
					}
				}
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
