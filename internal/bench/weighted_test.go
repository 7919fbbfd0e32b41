package bench

import (
	"testing"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// TestWeightedBuildIsMeasurable runs what a query-weighted basis adds, and each mode of the build.
func TestWeightedBuildIsMeasurable(t *testing.T) {
	b := bencher(t)
	s := specs.New("test", 6, 2, 64)
	s.Locks.Basis = plan.QueryWeighted
	w := specs.Workload{Context: 160, Batch: 2}
	jobs := []Job{
		{Spec: s, Workload: w, Families: []string{summary, string(plan.QueryMoment), string(plan.QueryFactor)}},
		{Spec: s, Workload: w, Families: []string{summary}, Build: measure.BuildFilled},
		{Spec: s, Workload: w, Families: []string{summary}, Build: measure.BuildIdle},
	}
	results, _, err := b.Run(t.Context(), jobs)
	if err != nil {
		t.Fatal(err)
	}
	modes := map[string]bool{}
	for _, r := range results {
		if r.MedianUS <= 0 || r.Bytes <= 0 || r.Shape.Basis != plan.QueryWeighted {
			t.Errorf("%+v", r)
		}
		modes[r.Family+" "+r.Shape.Mode] = true
	}
	if len(results) != 5 || len(modes) != 5 {
		t.Errorf("%d results, %v", len(results), modes)
	}
}
