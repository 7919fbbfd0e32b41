package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

// listForms keeps page_attend_list's candidates of a shape.
func listForms(warps, stages, cluster int) func(plan.Candidate) bool {
	return func(c plan.Candidate) bool {
		return c.Kernel == "kvloom::page_attend_list" && c.Param("warps") == warps && c.Param("stages") == stages && c.Param("cluster") == cluster
	}
}

// TestPageAttendListOnSimulator runs the PTX of page_attend_list where it is not the default: sixteen blocks, one stage, sixteen warps; of
// wide groups with one and with two n tiles a warp.
func TestPageAttendListOnSimulator(t *testing.T) {
	for _, shape := range [][3]int{{8, 2, 16}, {8, 1, 16}, {8, 1, 8}, {16, 1, 8}} {
		for _, tc := range attendShapes[:6] {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			candidates := chosenBy(plan.PageAttend, s, listForms(shape[0], shape[1], shape[2]))
			if len(candidates) == 0 {
				t.Fatalf("%s, %v: no candidate", tc.name, shape)
			}
			onSimulator(t, s, tc.reason, candidates, []string{"holes", "around the splits", "fewer live requests"})
		}
	}
}

// TestPageAttendListBatches gives each warp more tiles than the 32 units of its list that it looks up at once.
func TestPageAttendListBatches(t *testing.T) {
	s := attendSpec(64, 4, 1, "bf16", "share_average", 0)
	s.Locks.BudgetTokens = 8800
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	for _, c := range chosenBy(plan.PageAttend, s, listForms(8, 2, 8)) {
		k, err := e.Kernel(c)
		if err != nil {
			t.Fatal(err)
		}
		long := Case{Name: "nine tiles a warp", KVHeads: 1, Lens: []int{9001, 700}, Layout: TokenMajor, Data: Random}
		for _, r := range attendCase(e, s, k, long, 1) {
			if !r.OK() {
				t.Errorf("%s, %s: %s", c.ID(), r.Metric, r.Failure)
			}
		}
	}
	if err := e.Close(); err != nil {
		t.Error(err)
	}
	if err := l.Unload(); err != nil {
		t.Error(err)
	}
}
