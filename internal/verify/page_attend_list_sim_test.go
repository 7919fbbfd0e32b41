package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
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
	t.Parallel()
	for i, shape := range [][3]int{{16, 1, 8}, {8, 2, 16}, {4, 2, 16}, {8, 1, 8}} {
		for _, tc := range attendShapes[i : i+3] { // other shapes with other sizes
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, tc.rule, tc.softcap)
			candidates := chosenBy(plan.PageAttend, s, listForms(shape[0], shape[1], shape[2]))
			if len(candidates) == 0 {
				t.Fatalf("%s, %v: no candidate", tc.name, shape)
			}
			onSimulator(t, s, tc.reason, candidates, []string{"holes", "around the splits", "fewer live requests"})
		}
	}
}

// TestPageAttendGroups streams over lengths whose splits are added in groups of eight, and over none, few and one of them: the workspace of
// each is clean for the next.
func TestPageAttendGroups(t *testing.T) {
	s := attendSpec(64, 16, 16, "bf16", "share_average", 0)
	streams := func(form plan.Form, warps int) func(plan.Candidate) bool {
		return func(c plan.Candidate) bool {
			return c.Form == form && c.Kernel == "kvloom::page_attend" && c.Param("warps") == warps
		}
	}
	candidates := append(chosenBy(plan.PageAttend, s, streams(plan.Hopper, 8))[:1], chosenBy(plan.PageAttend, s, streams(plan.Portable, 4))[0],
		chosenBy(plan.PageAttend, s, streams(plan.Hopper, 2))[0])
	long := Case{Name: "groups of splits", KVHeads: 1, Lens: []int{4999, 2300, 130, 0}, Layout: HeadMajor, Data: Random,
		Replays: [][]int{{2048, 4999, 17, 3000}}}
	attendOnce(t, s, candidates, long)
}

// TestPageAttendListBatches gives each warp more tiles than the 32 units of its list that it looks up at once.
func TestPageAttendListBatches(t *testing.T) {
	s := attendSpec(64, 4, 1, "bf16", "share_average", 0)
	s.Locks.BudgetTokens = 8800
	long := Case{Name: "nine tiles a warp", KVHeads: 1, Lens: []int{9001, 700}, Layout: TokenMajor, Data: Random}
	attendOnce(t, s, chosenBy(plan.PageAttend, s, listForms(8, 2, 8)), long)
}

// attendOnce runs candidates on a case of its own.
func attendOnce(t *testing.T, s *specs.Spec, candidates []plan.Candidate, c Case) {
	t.Helper()
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	e := NewEnv(dev, l.Compile)
	for _, candidate := range candidates {
		k, err := e.Kernel(candidate)
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range attendCase(e, s, k, c, 1) {
			if !r.OK() {
				t.Errorf("%s, %s: %s", candidate.ID(), r.Metric, r.Failure)
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

// TestPageAttendBulk runs the streaming kernel by bulk copies: rows that follow each other and rows that do not, pages of several tiles and
// tiles of several pages, values that are no numbers behind the last token.
func TestPageAttendBulk(t *testing.T) {
	for _, tc := range []struct {
		name, reason     string
		dim, page, group int
		dtype            string
		softcap          float64
		cases            []string
	}{
		{"d128", "every case", 128, 16, 4, "bf16", 0, nil},
		{"p4 g16", "four pages a tile, two n tiles", 128, 4, 16, "fp16", 0, []string{"holes", "one kv head", "mixed lengths", "around the splits"}},
		{"d256 p64 capped", "two rows of pieces, four tiles a page", 256, 64, 3, "bf16", 20, []string{"holes", "one kv head", "wide logits", "around the splits"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			s := attendSpec(tc.dim, tc.page, tc.group, tc.dtype, "share_average", tc.softcap)
			bulk := chosenBy(plan.PageAttend, s, func(c plan.Candidate) bool { return c.Kernel == "kvloom::page_attend_bulk" })
			if len(bulk) == 0 {
				t.Fatal("no candidate")
			}
			if tc.cases != nil {
				bulk = bulk[:1]
			}
			onSimulator(t, s, tc.reason, bulk, tc.cases)
		})
	}
	s := attendSpec(128, 16, 4, "bf16", "share_average", 0)
	long := Case{Name: "batches of units", KVHeads: 1, Lens: []int{9001, 700}, Layout: HeadMajor, Data: Random}
	attendOnce(t, s, chosenBy(plan.PageAttend, s, func(c plan.Candidate) bool { return c.Kernel == "kvloom::page_attend_bulk" })[:1], long)
}
