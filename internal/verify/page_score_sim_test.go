package verify

import (
	"context"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// scoreVariants are the first candidate of each way to load records: straight to registers, by rings that lanes fill, by rings that
// bulk copies fill, and the portable default.
func scoreVariants(s *specs.Spec) []plan.Candidate {
	seen := map[string]bool{}
	var list []plan.Candidate
	for _, c := range plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"]).Candidates {
		way := c.Kernel + string(c.Form)
		if !seen[way] {
			seen[way] = true
			list = append(list, c)
		}
	}
	return list
}

// TestPageScoreOnSimulator runs the PTX of every way to load records, over shapes that differ in each parameter.
func TestPageScoreOnSimulator(t *testing.T) {
	t.Parallel()
	corners := []string{"no pages", "half-full last page", "mixed lengths", "holes", "around a tile", "wide logits", "extreme keys", nanRecord}
	for _, tc := range []struct {
		name, reason                 string
		dim, page, rank, bits, group int
		dtype                        string
		softcap                      float64
		cases                        []string // nil: all
	}{
		{"llama", "the first speed bar's shape, every case", 128, 16, 4, 4, 4, "bf16", 0, nil},
		{"group 3", "a column of the n tile without a head", 64, 16, 4, 4, 3, "bf16", 0, corners},
		{"group 1", "lanes of a quad share one head's tokens; odd rank", 96, 8, 3, 8, 1, "fp16", 0, corners},
		{"group 7, capped", "softcap on each logit; quarters of 28 dims", 112, 16, 5, 4, 7, "bf16", 30, corners},
		{"group 12, two bits", "two n tiles, the second half empty; quarters of 20 dims in groups of 16", 80, 32, 2, 2, 12, "bf16", 0, corners},
		{"group 24, sixteen bits", "three units of one kv head; no column scales", 64, 4, 1, 16, 24, "fp16", 0, corners},
		{"page 128, rank 16", "chunks of tokens with a running maximum", 256, 128, 16, 4, 2, "bf16", 0, corners[:4]},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := scoreSpec(tc.dim, tc.page, tc.rank, tc.bits, tc.group, tc.dtype, tc.softcap)
			s.Locks.Combine, s.Locks.BudgetTokens = "share_average", 64
			dev, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			names := tc.cases
			if names == nil {
				names = []string{""}
			}
			for _, c := range scoreVariants(s) {
				for _, name := range names {
					results, err := Check(context.Background(), e, s, c, Options{Only: name, Seed: 1, Workloads: "small"})
					if err != nil {
						t.Fatal(err)
					}
					for _, r := range results {
						if !r.OK() {
							t.Errorf("%s (%s), %s: %s", c.ID(), tc.reason, r.Case, r.Failure)
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
