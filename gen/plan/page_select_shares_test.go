package plan

import (
	"slices"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

func TestSharesAreMadeAheadForLongRows(t *testing.T) {
	for _, tt := range []struct {
		name    string
		q, kv   int
		context int
		combine string
		change  func(*specs.Spec)
		reason  string // of the refusal, or empty
	}{
		{"512K of 8 heads", 32, 8, 524288, "share_average", nil, ""},
		{"1M of 2 heads", 32, 2, 1 << 20, "share_average", nil, ""},
		{"128K of 8 heads", 32, 8, 131072, "share_average", nil, "takes longer than to read them"},
		{"another rule", 32, 2, 1 << 20, "group_max", nil, "shares alone"},
		{"batches alone", 32, 2, 1 << 20, "share_average", func(s *specs.Spec) {
			for i := range s.Workloads {
				s.Workloads[i].Batch = 4
			}
		}, "one request alone"},
		{"no masses", 32, 2, 1 << 20, "share_average", func(s *specs.Spec) { s.Locks.BasisBits = 16 }, "no masses"},
		{"more slots than are counted", 32, 2, 1 << 20, "share_average", func(s *specs.Spec) { s.Locks.BudgetTokens = 16 * 600 }, "are counted ahead"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := listSpec(tt.q, tt.kv, tt.context, tt.combine)
			if tt.change != nil {
				tt.change(s)
			}
			p := planPageSelect(s, Targets["sm_90a"])
			ahead := func(c Candidate) bool { return c.First != nil }
			if has := slices.ContainsFunc(p.Candidates, ahead); has != (tt.reason == "") {
				t.Errorf("candidates of two launches: %t", has)
			}
			i := slices.IndexFunc(p.Rejected, func(r Rejected) bool { return ahead(r.Candidate) })
			if tt.reason != "" && (i < 0 || !strings.Contains(p.Rejected[i].Reason, tt.reason)) {
				t.Errorf("rejected %d, want one that says %q", i, tt.reason)
			}
		})
	}
}

// TestSharesFillTheGPU: the first launch is about as many blocks as there are SMs, all at once.
func TestSharesFillTheGPU(t *testing.T) {
	for _, kv := range []int{1, 2, 4, 8} {
		s := listSpec(32, kv, 1<<20, "share_average")
		if kv == 1 {
			s.Attention.QueryHeads = 16
		}
		for _, f := range []Family{PageSelect, PageSelectAttend} {
			n := 0
			for _, c := range ForFamily(f, s, Targets["sm_90a"]).Candidates {
				if c.First == nil {
					continue
				}
				n++
				l, err := c.Geometry.Launch(launch.Problem{Batch: 1, KVHeads: int64(kv), QHeads: 32, Lists: int64(kv), MaxPages: 65536, Slots: 128, SMs: 132})
				if err != nil {
					t.Fatal(err)
				}
				if blocks := l.Before.Grid[0]; blocks < 100 || blocks > 132 {
					t.Errorf("%d lists: %s launches %d blocks first", kv, c.ID(), blocks)
				}
			}
			if n == 0 {
				t.Errorf("%d lists: no candidate of %s of two launches", kv, f)
			}
		}
	}
}
