package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// TestLocksSanitized runs both forms of the Locks families, and the chain of them, under the simulator's sanitizer, warps in random order,
// on the cases in which blocks could meet.
func TestLocksSanitized(t *testing.T) {
	s, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	dev, err := sim.New(sim.Config{Sanitize: true, Schedule: "random:11"})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	paged := []plan.Family{plan.PageSummary, plan.PageScore, plan.PageAttend}
	for _, tc := range []struct {
		name, reason string
		families     []plan.Family
	}{
		{"shared prefix", "two requests build the summary of one page: equal stores to one address", paged},
		{"fewer live requests", "a graph captured at batch 8 and replayed with 3 (G1)", append(paged, plan.PageSelect)},
		{"replayed at other lengths", "counters in the workspace are left as they were found (G2)", append(paged, plan.PageSelect)},
	} {
		t.Run(tc.name, func(t *testing.T) {
			for _, f := range tc.families {
				for _, c := range onePerForm(t, f, s) {
					results, err := Check(t.Context(), e, s, c, Options{Only: tc.name, Seed: 1, Workloads: "small"})
					if err != nil {
						t.Fatal(err)
					}
					if len(results) == 0 {
						t.Errorf("%s has no case %s", f, tc.name)
					}
					for _, r := range results {
						if !r.OK() {
							t.Errorf("%s: %s, %s: %s", tc.reason, c.ID(), r.Case, r.Failure)
						}
					}
				}
			}
		})
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
	if err := dev.Close(); err != nil {
		t.Error(err)
	}
}
