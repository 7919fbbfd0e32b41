package verify

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// TestPageSummaryOnSim runs the very PTX of the portable form on the simulator.
func TestPageSummaryOnSim(t *testing.T) {
	t.Parallel()
	for _, tt := range []struct {
		dtype                 string
		dim, page, rank, bits int
		reason                string
		only                  []string // cases; none: all
	}{
		{"bf16", 64, 16, 4, 4, "the usual page, every case", nil},
		{"fp16", 80, 8, 7, 2, "two pages a tile, a row of no whole number of words a lane", []string{"half-full last page", notFinite, oddStrides}},
		{"bf16", 112, 4, 3, 8, "four pages a tile", []string{"mixed lengths", notFinite, "degenerate pages"}},
		{"bf16", 64, 32, 16, 16, "block form, highest rank", []string{"pages filled while decoding", notFinite, "degenerate pages", equalSpan, oddStrides}},
		{"fp16", 96, 64, 3, 4, "block form", []string{"one token", decaying}},
	} {
		t.Run(fmt.Sprintf("%s d%d p%d r%d b%d", tt.dtype, tt.dim, tt.page, tt.rank, tt.bits), func(t *testing.T) {
			s := summarySpec(tt.dtype, tt.dim, tt.page, tt.rank, tt.bits, 2)
			c, ok := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
			if !ok {
				t.Fatalf("%s: no portable candidate", tt.reason)
			}
			dev := gputest.Sim(t)
			loader := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			env := NewEnv(dev, loader.Compile)
			only := tt.only
			if only == nil {
				only = []string{""}
			}
			for _, name := range only {
				results, err := Check(t.Context(), env, s, c, Options{Seed: 1, Only: name})
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range results {
					if !r.OK() {
						t.Errorf("%s: %s, %s: %s", tt.reason, r.Case, r.Metric, r.Failure)
					}
					t.Logf("%s: %s: error %.3g, bound %.3g, %d values", r.Case, r.Metric, r.MaxError, r.Bound, r.Count)
				}
			}
			if err := env.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
