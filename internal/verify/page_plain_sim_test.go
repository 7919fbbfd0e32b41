package verify

import (
	"context"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// TestPlainScorersOnSimulator builds and scores by the scorers that keep no basis, over shapes that differ in each parameter.
func TestPlainScorersOnSimulator(t *testing.T) {
	corners := []string{"no pages", "half-full last page", "mixed lengths", "holes", "around a tile", nanRecord, notFinite, oddStrides, hugeKeys, tinyKeys}
	for _, tc := range []struct {
		reason           string
		dim, page, group int
		dtype            string
		softcap          float64
		scorers          []string
	}{
		{"the shape of the speed bars", 128, 16, 4, "bf16", 0, []string{specs.ExactLSE}},
		{"pages of 4: four to a step of 16 tokens; two n tiles", 128, 4, 16, "fp16", 0, []string{specs.ExactLSE, specs.Quest}},
		{"pages of 8 and a softcap; a head dim that is no multiple of 32", 80, 8, 3, "fp16", 30, []string{specs.ExactLSE, specs.Quest, specs.MeanKey}},
		{"large pages, eight steps each", 64, 128, 1, "bf16", 0, []string{specs.ExactLSE, specs.MeanKey}},
		{"two units of a kv head", 64, 32, 12, "bf16", 0, []string{specs.Quest, specs.MeanKey}},
	} {
		for _, scorer := range tc.scorers {
			t.Run(scorer+": "+tc.reason, func(t *testing.T) {
				s := scoreSpec(tc.dim, tc.page, 1, 4, tc.group, tc.dtype, tc.softcap)
				s.Locks.Scorer, s.Locks.Combine, s.Locks.BudgetTokens = scorer, "share_average", 4*tc.page
				dev, err := sim.New(sim.Config{})
				if err != nil {
					t.Fatal(err)
				}
				l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
				e := NewEnv(dev, l.Compile)
				for _, family := range []plan.Family{plan.PageSummary, plan.PageScore} {
					c := plan.ForFamily(family, s, plan.Targets["sm_90a"]).Candidates[0]
					for _, name := range corners {
						results, err := Check(context.Background(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
						if err != nil {
							t.Fatal(err)
						}
						for _, r := range results {
							if !r.OK() {
								t.Errorf("%s, %s: %s", c.ID(), r.Case, r.Failure)
							}
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
}
