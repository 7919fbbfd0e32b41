package verify

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// wideCases reach what the contract's cases leave out: several blocks a row, rows that end at a block's edge, candidates that do not fit.
var wideCases = append([]ScoreCase{
	{Name: "a block's edge", KVHeads: 1, Pages: []int{2048}, Replays: [][]int{{2049}, {1024}, {4000}, {2}, {0}}, Slots: 128, Spare: 2000, Fill: normalScores},
	{Name: "two lists, two requests", KVHeads: 2, Pages: []int{3000, 5}, Replays: [][]int{{700, 3000}}, Slots: 32, Fill: normalScores},
	{Name: "three sinks' worth", KVHeads: 1, Pages: []int{2600}, Slots: 512, Fill: normalScores},
}, clusterCases...)

// TestPageSelectWideOnSimulator runs page_select_wide: every contract case, and wideCases; once with blocks that wait for each other, and
// once with blocks that never do, so that the last one does all the work.
func TestPageSelectWideOnSimulator(t *testing.T) {
	for _, tc := range []struct {
		group, pages int
		polls        string
		reason       string
	}{
		{4, 2, "", "the usual group"},
		{16, 2, "", "the shape it is for"},
		{7, 4, "", "a group that is no power of two"},
		{1, 1, "", "one head: a lane a block"},
		{4, 2, "0", "no block waits: the last one takes all parts"},
		{16, 1, "0", "likewise, sixteen heads"},
	} {
		s := selectSpec(tc.group, 1, 16, "share_average")
		s.Workloads = []specs.Workload{{Context: 16 * 16000, Batch: 1}}
		candidates := chosenBy(plan.PageSelect, s, func(c plan.Candidate) bool {
			return c.Kernel == "kvloom::page_select_wide" && c.Param("pages") == tc.pages
		})
		if len(candidates) != 1 {
			t.Fatalf("group %d (%s): %d candidates, want 1", tc.group, tc.reason, len(candidates))
		}
		if tc.polls != "" {
			candidates[0].Constants = slices.Clone(candidates[0].Constants)
			at := slices.IndexFunc(candidates[0].Constants, func(k plan.Constant) bool { return k.Name == "kPolls" })
			candidates[0].Constants[at].Value = tc.polls
		}
		onSimulator(t, s, tc.reason, candidates, []string{"random", "mixed rows", "replayed at other lengths", "one head all NaN", "sink is best", "all equal", "steps", "no pages", "fewer live requests", "underflow"})
		dev, err := sim.New(sim.Config{Sanitize: tc.group == 4})
		if err != nil {
			t.Fatal(err)
		}
		l := NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
		e := NewEnv(dev, l.Compile)
		k, err := e.Kernel(candidates[0])
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range wideCases {
			if r := selectCase(e, s, k, c, 3); !r.OK() {
				t.Errorf("%s (%s), %s: %s", candidates[0].ID(), tc.reason, c.Name, r.Failure)
			}
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
		if err := l.Unload(); err != nil {
			t.Error(err)
		}
	}
}
