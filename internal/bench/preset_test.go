package bench

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

// Every line of a preset must have kernels and a shape of its own: two jobs with one shape would supersede each other in the results file.
func TestPresetsAreMeasurable(t *testing.T) {
	for _, name := range Presets() {
		t.Run(name, func(t *testing.T) {
			jobs, err := Preset(name)
			if err != nil {
				t.Fatal(err)
			}
			type line struct {
				family string
				shape  Shape
			}
			seen := map[line]bool{}
			for _, j := range jobs {
				p := plan.New(j.Spec, plan.Targets["sm_90a"])
				for _, family := range j.Families {
					key := line{family, ShapeOf(family, j)}
					if seen[key] {
						t.Errorf("%s of %s at %d x %d is measured twice", family, j.Spec.Name, j.Workload.Context, j.Workload.Batch)
					}
					seen[key] = true
					for _, work := range worksOf(p, []string{family}) {
						if !p.Has(work.Family()) || len(p.Of(work.Family()).Candidates) == 0 {
							t.Errorf("%s of %s has no candidate", work, j.Spec.Name)
						}
					}
					if w := Work(p, family, j.Workload); w.Bytes <= 0 {
						t.Errorf("%s of %s moves %d bytes by the model", family, j.Spec.Name, w.Bytes)
					}
				}
			}
			t.Logf("%d jobs, %d lines", len(jobs), len(seen))
		})
	}
}

func TestPresetUnknown(t *testing.T) {
	if _, err := Preset("everything"); err == nil {
		t.Error("an unknown preset is no error")
	}
}

// A cell that the loader refuses is left out of the table's jobs for that reason alone: every other cell must be there.
func TestBreadthLeavesOutOnlyWhatIsNotBuilt(t *testing.T) {
	jobs, err := Preset("breadth")
	if err != nil {
		t.Fatal(err)
	}
	names := map[string]*Job{}
	for _, j := range jobs {
		names[j.Spec.Name] = &j
	}
	for _, c := range breadthCells() {
		s, err := c.spec()
		if err != nil {
			t.Errorf("%s %s: %v", c.axis, c.value, err)
			continue
		}
		if names[s.Name] == nil || !slices.Contains(names[s.Name].Families, score) {
			t.Errorf("page_score of %s %s is built and not measured", c.axis, c.value)
		}
	}
}
