package verify

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// TestQueryKernelsOnSim runs both kernels that make weights of queries: dims of one and of two parts, rows of whole lines and not.
func TestQueryKernelsOnSim(t *testing.T) {
	dev := gputest.Sim(t)
	env := NewEnv(dev, NewLoader(t.Context(), dev, nvrtctest.Compiler(t)).Compile)
	for _, tt := range []struct {
		dtype string
		dim   int
		only  string
	}{{"bf16", 64, ""}, {"fp16", 112, "ragged prompts"}, {"bf16", 192, "one query"}} {
		s := summarySpec(tt.dtype, tt.dim, 16, 4, 4, 2)
		s.Attention.QueryHeads = 6
		s.Locks.Basis = plan.QueryWeighted
		for _, f := range []plan.Family{plan.QueryMoment, plan.QueryFactor} {
			t.Run(fmt.Sprint(f, " ", tt.dim), func(t *testing.T) {
				c, _ := plan.ForFamily(f, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
				only := tt.only
				if f == plan.QueryFactor && only != "" {
					only = "fewer queries than dims"
				}
				results, err := Check(t.Context(), env, s, c, Options{Seed: 1, Only: only})
				if err != nil {
					t.Fatal(err)
				}
				if len(results) == 0 {
					t.Fatal("nothing was checked")
				}
				for _, r := range results {
					if !r.OK() {
						t.Errorf("%s: %s", r.Case, r.Failure)
					}
					t.Logf("%s: %s: error %.3g, bound %.3g, %d values", r.Case, r.Metric, r.MaxError, r.Bound, r.Count)
				}
			})
		}
	}
	if err := env.Close(); err != nil {
		t.Error(err)
	}
}
