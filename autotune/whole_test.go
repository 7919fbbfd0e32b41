package autotune

import (
	"path/filepath"
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// A whole tuning on the simulator with a clock that means nothing: real candidates, compiled ahead, checked side by side by real children,
// timed, measured again in turn, the winner checked in every case. All take the same time, so the default stays.
func TestWholeTuning(t *testing.T) {
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	spec.Workloads = []specs.Workload{{Context: 512, Batch: 1}, {Context: 200, Batch: 2}}
	all := plan.New(spec, plan.Targets["sm_90a"])
	fp := all.Of(plan.PageSelect)
	portable := fp.Candidates[:0:0]
	for _, c := range fp.Candidates {
		if c.Form == plan.Portable {
			portable = append(portable, c)
		}
	}
	fp.Candidates = portable[:min(3, len(portable))]
	db, err := store.Create(t.Context(), filepath.Join(t.TempDir(), "trials.db"))
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	compiler := nvrtctest.Compiler(t)
	tuner := &Tuner{Spec: spec, Plan: &plan.Plan{Spec: spec, Target: all.Target, Families: []plan.FamilyPlan{fp}}, Compile: CompileWith(compiler),
		NVRTC: compiler.Version(), Generator: "test", Host: realHost(t, "clocked", 5*time.Minute), DB: db,
		Options: Options{Works: []measure.Work{"page_select"}, Workers: 2, Checkers: 2, Rounds: 2, Precision: 0.05}}
	out, err := tuner.Run(t.Context())
	if err != nil || out.Left != 0 || out.Contests != 2 {
		t.Fatalf("%+v, %v", out, err)
	}
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil || len(trials) != 2*len(fp.Candidates) {
		t.Fatalf("%d trials, %v", len(trials), err)
	}
	for _, tr := range trials {
		if tr.Class != store.OK || tr.Bound == 0 || len(tr.Samples) == 0 || len(tr.Windows) != 2 {
			t.Errorf("%s at %d: %s %s, bound %g, %d samples, %d windows", tr.Candidate.ID(), tr.Context, tr.Class, tr.Message, tr.Bound, len(tr.Samples), len(tr.Windows))
		}
	}
	for _, c := range Choose(trials) {
		if c.Best.Candidate.ID() != fp.Candidates[0].ID() || c.Tied != len(fp.Candidates) {
			t.Errorf("%d: %s of %d tied", c.Context, c.Best.Candidate.ID(), c.Tied)
		}
	}
	if spent, err := db.SpentSeconds(t.Context(), spec.Name, out.Environment.ID()); err != nil || spent <= 0 {
		t.Errorf("%g s spent, %v", spent, err)
	}
}
