package autotune

import (
	"fmt"
	"path/filepath"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/gen/plan"
)

// C3: one more candidate in a plan, wherever in the list, is measured alone; what was tuned before stays known.
func TestOneMoreCandidate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	var why []string
	for _, more := range []bool{false, true} {
		tuner := testTuner(t, path, "steady")
		if more {
			fp := &tuner.Plan.Families[0]
			c := fp.Candidates[0]
			c.Params, c.Geometry = []plan.Param{{Name: "warps", Value: 6}}, oneBlock(6)
			fp.Candidates = slices.Insert(fp.Candidates, 1, c)
		}
		out, err := tuner.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		why = append(why, fmt.Sprintf("%d measured, %d known", out.Measured, out.Known))
		tuner.Host.Close()
	}
	if diff := cmp.Diff([]string{"16 measured, 0 known", "2 measured, 16 known"}, why); diff != "" {
		t.Errorf("one candidate more, two workloads (-want +got):\n%s", diff)
	}
}
