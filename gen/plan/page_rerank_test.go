package plan

import (
	"testing"

	"github.com/kvloom/kvloom/specs"
)

// TestRerankLaunches: what can rerank a layer, and with which default, by lists and rows.
func TestRerankLaunches(t *testing.T) {
	for _, tc := range []struct {
		reason                 string
		kvHeads, context, many int
		warps, cluster         int // of page_rerank_attend
		all                    bool
	}{
		{"clusters of 8 run at once, those of 16 do not", 8, 131072, 1, 8, 8, true},
		{"few lists: more SMs each; rows too long for one launch of all", 4, 1 << 20, 1, 8, 16, false},
		{"clusters take turns: small blocks, several an SM", 8, 131072, 8, 4, 8, true},
	} {
		s := listSpec(32, tc.kvHeads, tc.context, "share_average")
		s.Locks.Rank, s.Locks.Rerank, s.Locks.BudgetTokens = 1, 2, 2048
		s.Workloads = []specs.Workload{{Context: tc.context, Batch: tc.many}}
		of := func(f Family, target string) []Candidate { return ForFamily(f, s, Targets[target]).Candidates }
		c := of(PageRerankAttend, "sm_90a")[0]
		if c.Param("warps") != tc.warps || c.Param("cluster") != tc.cluster {
			t.Errorf("%s: the default is %s", tc.reason, c.ID())
		}
		if (len(of(PageSelectRerankAttend, "sm_90a")) > 0) != tc.all {
			t.Errorf("%s: one launch of all: %t", tc.reason, !tc.all)
		}
		if len(of(PageRerankAttend, "sm_80")) > 0 {
			t.Error("sm_80 has no clusters")
		}
	}
}
