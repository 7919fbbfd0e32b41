package verify

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// TestPageSelectAttendOnSimulator runs the launch that selects and attends behind the build and page_score, under the sanitizer, with the
// list in shared memory and, where selection is the radix kernel's or nothing is to be selected, in memory.
func TestPageSelectAttendOnSimulator(t *testing.T) {
	t.Parallel()
	few := []string{"half-full last page", "holes", "replayed at other lengths"}
	all := append([]string{"33 pages", "head lengths", "crosses 1024 tokens"}, few...)
	for _, tc := range []struct {
		name, reason           string
		group, kvs             int
		warps, stages, cluster int
		cases                  []string
	}{
		{"group 4", "a tile a warp, the bar's shape", 4, 8, 16, 1, 8, all},
		{"group 7", "two tiles a warp; a group that is no power of two", 7, 2, 8, 2, 8, all},
		{"group 16", "two n tiles of heads, sixteen blocks", 16, 2, 8, 1, 16, few},
		{"group 12", "half of the warps for eight heads, half for four", 12, 2, 16, 1, 8, few},
		{"group 1", "one head", 1, 2, 16, 1, 16, few},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := immaSpec(128, 16, 4, 4, tc.group, tc.kvs, "bf16")
			first := func(f plan.Family) plan.Candidate { return plan.ForFamily(f, s, plan.Targets["sm_90a"]).Candidates[0] }
			fused := chosenBy(plan.PageSelectAttend, s, func(c plan.Candidate) bool {
				return c.Param("warps") == tc.warps && c.Param("stages") == tc.stages && c.Param("cluster") == tc.cluster &&
					!slices.ContainsFunc(c.Params, func(p plan.Param) bool { return p.Name == "slices" })
			})
			if len(fused) != 1 {
				t.Fatalf("%s: %d candidates, want 1", tc.reason, len(fused))
			}
			dev, err := sim.New(sim.Config{Sanitize: true, Schedule: "random:3"})
			if err != nil {
				t.Fatal(err)
			}
			l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
			e := NewEnv(dev, l.Compile)
			candidates := []plan.Candidate{first(plan.PageSummary), first(plan.PageScore), fused[0]}
			n := 0
			for _, only := range tc.cases {
				o := Options{Only: only, Seed: 1, Workloads: "small"}
				results, err := Check(t.Context(), e, s, fused[0], o)
				if err != nil {
					t.Fatal(err)
				}
				for _, r := range append(results, CheckChain(t.Context(), e, s, tc.name, candidates, o)...) {
					if n++; !r.OK() {
						t.Errorf("%s (%s), %s, %s: %s", fused[0].ID(), tc.reason, r.Case, r.Metric, r.Failure)
					}
				}
			}
			if n < 4*len(tc.cases) {
				t.Errorf("%d results", n)
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
