package autotune

import (
	"fmt"
	"path/filepath"
	"testing"

	"github.com/kvloom/kvloom/autotune/measure"
)

// Equal kernels on a steady GPU and on one that drifts are not told apart more often than is claimed; the count and its bound are right.
func TestSelfCheck(t *testing.T) {
	for _, child := range []string{"steady", "drift"} {
		tuner := testTuner(t, filepath.Join(t.TempDir(), "t.db"), child)
		for i := range tuner.Plan.Families {
			tuner.Plan.Families[i].Candidates = tuner.Plan.Families[i].Candidates[:2]
		}
		told := 0
		s, err := AA(t.Context(), tuner.Host, tuner.Compile, tuner.Plan, tuner.Options.Works, 10, func(CheckPair) { told++ })
		if err != nil {
			t.Fatal(err)
		}
		if s.Pairs != 10 || told != 10 || s.Atmost != 1 || !s.Holds() {
			t.Errorf("%s: %+v", child, s)
		}
		points := map[string]int{}
		for _, p := range s.List {
			points[fmt.Sprint(p.Family, p.Context)]++
		}
		if len(points) != 4 {
			t.Errorf("%s: %v; want both works at both workloads", child, points)
		}
	}
	if bad := (SelfCheck{Pairs: 100, Differ: 11, Atmost: 10}); bad.Holds() {
		t.Error("11 of 100 must not hold")
	}
	tuner := testTuner(t, filepath.Join(t.TempDir(), "t.db"), "steady")
	tuner.Plan.Families[0].Candidates[0].Params[0].Value = 3 // crashes
	if _, err := AA(t.Context(), tuner.Host, tuner.Compile, tuner.Plan, []measure.Work{"page_score"}, 2, nil); err == nil {
		t.Error("a kernel that fails is no pair")
	}
}

// What an earlier tuning chose is measured right after the default; what the plan no longer has is left out.
func TestIncumbentsComeSecond(t *testing.T) {
	p, spec := wide(t)
	c := p.Of("page_score").Candidates[50]
	tuner := &Tuner{Spec: spec, Plan: p, Options: Options{Works: []measure.Work{"page_score"}, Incumbents: []Incumbent{
		{Work: "page_score", Workload: spec.Workloads[0], Form: c.Form, Params: c.Params},
		{Work: "page_score", Workload: spec.Workloads[0], Form: "other", Params: c.Params},
		{Work: "page_select", Workload: spec.Workloads[0], Form: c.Form, Params: c.Params},
	}}}
	s, err := newSchedule(tuner, h200, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	if a, b := s.lists[0].space.Start, s.lists[1].space.Start; a[0] != 0 || a[1] != 50 || b[1] == 50 {
		t.Errorf("measured first: %v and %v; want 50 second at the incumbent's workload alone", a, b)
	}
}
