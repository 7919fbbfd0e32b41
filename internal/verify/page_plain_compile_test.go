package verify

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// TestPlainResources compiles the defaults of the scorers that keep no basis: everything stays in registers.
func TestPlainResources(t *testing.T) {
	for _, tc := range []struct {
		dim, page, group int
		dtype            string
		softcap          float64
	}{
		{128, 16, 4, "bf16", 0}, {128, 16, 16, "bf16", 0}, {64, 16, 3, "fp16", 0}, {80, 128, 12, "fp16", 0}, {256, 8, 8, "bf16", 30}, {192, 4, 64, "bf16", 0},
	} {
		for _, scorer := range []string{specs.Quest, specs.MeanKey, specs.ExactLSE} {
			s := scoreSpec(tc.dim, tc.page, 0, 0, tc.group, tc.dtype, tc.softcap)
			s.Locks.Scorer = scorer
			for _, family := range []plan.Family{plan.PageScore, plan.PageSummary} {
				fp := plan.ForFamily(family, s, plan.Targets["sm_90a"])
				for _, form := range []plan.Form{plan.Hopper, plan.Portable} {
					t.Run(fmt.Sprintf("%s %s d%d g%d %s", scorer, family, tc.dim, tc.group, form), func(t *testing.T) {
						c, ok := fp.DefaultOf(form)
						if !ok {
							t.Fatalf("no candidate: %v", fp.Rejected)
						}
						src, err := render.Candidate(c)
						if err != nil {
							t.Fatal(err)
						}
						m := nvrtctest.Compile(t, src)
						if r := m.Resources; r.Known && (r.SpillStores > 0 || r.SpillLoads > 0 || r.StackBytes > 0) {
							t.Errorf("%s: %s", c.ID(), r)
						} else {
							t.Logf("%s: %s", c.ID(), r)
						}
					})
				}
			}
		}
	}
}
