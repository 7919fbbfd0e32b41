package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

// TestEightBitCaches runs page_summary and page_score over caches of e4m3 on the simulator, both forms, every case of the first shape.
func TestEightBitCaches(t *testing.T) {
	for i, tc := range []struct {
		name, reason          string
		dim, page, rank, bits int
		group                 int
		softcap               float64
	}{
		{"d128", "a warp's pages, the integer form of page_score", 128, 16, 4, 4, 4, 0},
		{"d64 p8 capped", "eight pages a warp, two-bit codes, a softcap", 64, 8, 2, 2, 3, 30},
		{"d80 p32", "a block a page, five pieces of keys", 80, 32, 3, 8, 2, 0},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group, "fp8_e4m3", tc.softcap)
			s.Locks.BudgetTokens, s.Locks.Combine = 2048, "share_average"
			cases := []string{"mixed lengths", "holes", "wide logits", "degenerate pages"}
			if i == 0 {
				cases = nil
			}
			for _, f := range []plan.Family{plan.PageSummary, plan.PageScore} {
				onSimulator(t, s, tc.reason, onePerForm(t, f, s), cases)
			}
		})
	}
}
