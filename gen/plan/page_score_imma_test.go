package plan

import (
	"testing"

	"github.com/kvloom/kvloom/specs"
)

// A ring whose stages change hands between groups of warps hung on an H200 (16 warps, 3 stages, 8 requests of 128K): copies land in any
// order, and a fast group passed its barrier on the parity of the phase before.
func TestImmaStagesBelongToOneGroup(t *testing.T) {
	seen := 0
	for _, name := range specs.Names() {
		s, err := specs.Model(name)
		if err != nil {
			t.Fatal(err)
		}
		for _, rank := range []int{4, 8} {
			s.Locks.Rank = rank
			for _, c := range ForFamily(PageScore, s, Targets["sm_90a"]).Candidates {
				if c.Kernel != "kvloom::page_score_imma" {
					continue
				}
				seen++
				groups, stages := c.Param("warps")/(c.Param("heads")*c.Param("split")), c.Param("stages")
				if stages%groups != 0 || stages < 2*groups {
					t.Errorf("%s, rank %d: %s: %d stages for %d groups of warps", name, rank, c.ID(), stages, groups)
				}
			}
		}
	}
	if seen == 0 {
		t.Error("no model has an integer candidate")
	}
}
