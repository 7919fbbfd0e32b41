package autotune

import (
	"context"
	"fmt"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

var h200 = device.Info{Name: "NVIDIA H200", SMs: 132, SharedPerSM: 233472, RegistersPerSM: 65536, ThreadsPerSM: 2048, L2Bytes: 60 << 20}

func TestOccupancy(t *testing.T) {
	tests := []struct {
		name                       string
		threads, registers, shared int
		blocks                     int
		limit                      string
	}{
		{"small", 32, 16, 0, 32, "blocks"},
		{"threads", 1024, 32, 0, 2, "threads"},
		{"registers", 128, 164, 0, 3, "registers"},
		{"shared", 128, 32, 100 << 10, 2, "shared memory"},
		{"does not fit", 1024, 128, 0, 0, "registers"},
	}
	for _, tt := range tests {
		o := OccupancyOf(tt.threads, tt.registers, tt.shared, h200)
		if o.Blocks != tt.blocks || o.Limit != tt.limit {
			t.Errorf("%s: %d blocks, limited by %s; want %d, %s", tt.name, o.Blocks, o.Limit, tt.blocks, tt.limit)
		}
	}
}

// wide is a plan with one family of 96 candidates, and so a space that is searched.
func wide(t *testing.T) (*plan.Plan, *specs.Spec) {
	t.Helper()
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	spec.Workloads = spec.Workloads[:2]
	p := &plan.Plan{Spec: spec}
	for _, f := range []plan.Family{plan.PageScore, plan.PageSelect} {
		fp := plan.FamilyPlan{Family: f, Cost: func(w specs.Workload) plan.Work { return plan.Work{Bytes: int64(w.Context) * 1000} }}
		for warps := 1; warps <= 12; warps++ {
			for stages := 1; stages <= 8; stages++ {
				fp.Candidates = append(fp.Candidates, plan.Candidate{Family: f, Form: plan.Portable, Key: "k", Entry: string(f), Header: "kvloom/types.cuh", Geometry: oneBlock(warps),
					Params: []plan.Param{{Name: "warps", Value: warps}, {Name: "stages", Value: stages}}})
			}
		}
		p.Families = append(p.Families, fp)
	}
	return p, spec
}

// The default of everything comes first, then the few that should be best of each; then the time goes to the work that a decode step spends most on, as long as it promises as
// much; evaluations end a search.
func TestScheduleFollowsTheGain(t *testing.T) {
	p, spec := wide(t)
	tuner := &Tuner{Spec: spec, Plan: p, Options: Options{Works: []measure.Work{"page_score", "page_select"}, Evaluations: 60}}
	s, err := newSchedule(tuner, h200, "", nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	counts := map[string]int{}
	var first []string
	var early map[string]int
	for total := 0; ; {
		jobs := s.next()
		if len(jobs) == 0 {
			break
		}
		for _, j := range jobs {
			if total < 4 {
				first = append(first, fmt.Sprint(j.list.point(), " ", j.index))
			}
			total++
			us := 10 * (1 + math.Abs(float64(j.candidate().Param("warps"))-7)/10 + math.Abs(float64(j.candidate().Param("stages"))-3)/10)
			if j.list.work == "page_select" {
				us /= 20
			}
			s.done(j, store.Trial{Class: store.OK, MedianUS: us, Candidate: j.candidate(), Family: string(j.list.work), Context: j.list.workload.Context,
				Batch: j.list.workload.Batch}, 200*time.Millisecond)
			counts[string(j.list.work)]++
		}
		if total >= 60 && early == nil {
			early = maps.Clone(counts)
		}
	}
	want := []string{"page_score 1024 1 0", "page_select 1024 1 0", "page_score 8192 1 0", "page_select 8192 1 0"}
	if fmt.Sprint(first) != fmt.Sprint(want) {
		t.Errorf("first %v, want the default of everything: %v", first, want)
	}
	if 2*early["page_score"] < 3*early["page_select"] { // a dozen of each are the first of their spaces
		t.Errorf("after 60 trials: %v; page_score takes 20 times as long and should have had most of them", early)
	}
	if counts["page_score"] != 120 || counts["page_select"] != 120 {
		t.Errorf("%v, want 60 evaluations of each of two workloads", counts)
	}
	if s.left() != 4*96-240 {
		t.Errorf("%d left", s.left())
	}
}

// Trials of the nearest workload come before the estimate, and what they say decides what is measured first.
func TestSpaceLearnsFromOtherWorkloads(t *testing.T) {
	p, spec := wide(t)
	var trials []store.Trial
	for i, c := range p.Of(plan.PageScore).Candidates[:20] {
		for _, context := range []int{4096, 65536} {
			us := 10 + math.Abs(float64(i-13))
			if context == 65536 {
				us = 100 + math.Abs(float64(i-2))
			}
			trials = append(trials, store.Trial{Class: store.OK, Family: "page_score", Candidate: c, Context: context, Batch: 1, MedianUS: us})
		}
	}
	s := SpaceOf(p, "page_score", spec.Workloads[1], h200, trials, "") // 8192 x 1
	if s.Start[0] != 0 || s.Start[1] != 13 {
		t.Errorf("measured first: %v; want the default, then 13, the best at the nearest workload", s.Start)
	}
	for i := range trials {
		trials[i].Environment = "GH200"
	}
	here := store.Trial{Class: store.OK, Family: "page_score", Candidate: p.Of(plan.PageScore).Candidates[30], Context: 8192, Batch: 1, MedianUS: 5, Environment: "GH200"}
	if s := SpaceOf(p, "page_score", spec.Workloads[1], h200, append(trials, here), "H200"); !slices.Contains(s.Start, 30) || !slices.Contains(s.Start, 13) {
		t.Errorf("measured first: %v; want 30 among them, a relative's best at this very workload", s.Start)
	}
	if cold := SpaceOf(p, "page_score", spec.Workloads[1], h200, nil, ""); cold.Start[0] != 0 || len(cold.Start) < 2 {
		t.Errorf("cold: %v; want the default and the estimate's best", cold.Start)
	}
}

// The target ends the search of a large space, a run resumes with another strategy without measuring anything twice, and a failure keeps
// its class.
func TestSearchedSpaceEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	p, spec := wide(t)
	var measured int
	for range 2 {
		tuner := testTuner(t, path, "steady")
		tuner.Plan, tuner.Spec = p, spec
		tuner.Options.Works = tuner.Options.Works[:1]
		tuner.Options.Target = 0.03
		out, err := tuner.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		tuner.Host.Close()
		if measured > 0 && out.Known != measured {
			t.Errorf("%d known, want the %d of the first run", out.Known, measured)
		}
		measured += out.Measured
		if out.Why != "nothing better is likely" || measured < 2*leastEvaluations || measured > 150 {
			t.Errorf("%d measured of 192, %s", measured, out.Why)
		}
	}
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil || len(trials) != measured {
		t.Fatalf("%d trials, %v; want %d", len(trials), err, measured)
	}
	for _, tr := range trials {
		if want := map[bool]store.Class{true: store.Crash, false: store.OK}[tr.Candidate.Param("warps") == 3]; tr.Class != want {
			t.Errorf("%s: class %s, want %s", tr.Candidate.ID(), tr.Class, want)
		}
	}
	for _, c := range Choose(trials) {
		if c.Best.Candidate.Param("warps") != 1 {
			t.Errorf("best %s, want one warp", c.Best.Candidate.ID())
		}
	}
}

// A database that comes from a relative, or from before an update of the driver, says where to begin; nothing of it counts as tuned here.
func TestRelativesAreStartingPoints(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	first := testTuner(t, path, "steady")
	if _, err := first.Run(t.Context()); err != nil {
		t.Fatal(err)
	}
	first.Host.Close()
	second := testTuner(t, path, "steady")
	second.NVRTC = "newer"
	var notes []string
	second.Observe = func(e Event) {
		if e.Kind == "note" {
			notes = append(notes, e.Message)
		}
	}
	out, err := second.Run(t.Context())
	if err != nil || out.Known != 0 || out.Measured != 16 {
		t.Errorf("%+v, %v; want all 16 measured again", out, err)
	}
	if len(notes) != 1 || notes[0] != "16 trials were measured with test, which is now newer: they say where to begin, and are measured again" {
		t.Errorf("notes %q", notes)
	}
}

// A kernel that takes long to compile keeps nobody waiting who is compiled already.
func TestSlowCompilationIsPassed(t *testing.T) {
	tuner := testTuner(t, filepath.Join(t.TempDir(), "trials.db"), "steady")
	tuner.Options.Works, tuner.Options.Strategy, tuner.Options.Workers = tuner.Options.Works[:1], search.Whole{}, 3
	tuner.Spec.Workloads = tuner.Spec.Workloads[:1]
	tuner.Plan.Families[0].Candidates[2].Params[0].Value = 5 // 3 would crash
	slow := make(chan struct{})
	release := sync.OnceFunc(func() { close(slow) })
	defer time.AfterFunc(20*time.Second, release).Stop()
	compile := tuner.Compile
	tuner.Compile = func(ctx context.Context, src render.Source) (*nvrtc.Module, error) {
		if strings.Contains(src.Text, "warps=2:") {
			<-slow
		}
		return compile(ctx, src)
	}
	var order []int
	tuner.Observe = func(e Event) {
		if e.Kind != "trial" {
			return
		}
		order = append(order, e.Trial.Candidate.Param("warps"))
		if len(order) == 3 {
			release()
		}
	}
	if _, err := tuner.Run(t.Context()); err != nil || len(order) != 4 || order[3] != 2 {
		t.Errorf("measured in the order %v, %v; want 2 last, which compiles until the others are measured", order, err)
	}
}
