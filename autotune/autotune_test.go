package autotune

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// TestMain is also the measuring child: it answers with a time made from the parameter, and misbehaves where the test says so.
func TestMain(m *testing.M) {
	if os.Getenv("KVLOOM_TEST_CHILD") == "" {
		os.Exit(m.Run())
	}
	if kind := os.Getenv("KVLOOM_TEST_CHILD"); kind == "sim" || kind == "cuda" || kind == "clocked" {
		realChild(kind)
		return
	}
	out := json.NewEncoder(os.Stdout)
	_ = out.Encode(measure.Hello{Info: device.Info{Name: "fake", UUID: "GPU-0"}})
	in := bufio.NewScanner(os.Stdin)
	in.Buffer(nil, 1<<20)
	drift, noisy := 1.0, newNoisyTimes()
	for in.Scan() {
		if os.Getenv("KVLOOM_TEST_CHILD") == "drift" {
			drift *= 1.04 // a GPU that gets slower and slower
		}
		var r measure.Request
		if err := json.Unmarshal(in.Bytes(), &r); err != nil {
			os.Exit(3)
		}
		if last := r.Candidate.Params[len(r.Candidate.Params)-1]; last.Name == "fault" && last.Value > 0 {
			misbehave(last.Value, func(r measure.Response) { _ = out.Encode(r) })
			continue
		}
		if r.Thorough {
			answer := measure.Response{Class: string(store.OK)}
			if os.Getenv("KVLOOM_TEST_CHILD") == "edge" && r.Candidate.Param("warps") == 2 {
				answer = measure.Response{Class: string(store.Wrong), Message: "one page"}
			}
			_ = out.Encode(answer)
			continue
		}
		if os.Getenv("KVLOOM_TEST_CHILD") == "noisy" {
			_ = out.Encode(measure.Response{Class: string(store.OK), Samples: noisy.samples(r)})
			continue
		}
		us := float64(r.Candidate.Param("warps")) * drift
		if r.Candidate.Param("warps") == 3 {
			os.Exit(9)
		}
		answer := measure.Response{Class: string(store.OK), Samples: []float64{us, us + 0.1, us - 0.1, us, us, us, us}}
		if !r.SkipCheck {
			answer.Message, answer.MaxError, answer.Bound = "checked", 0.5, 1
		}
		_ = out.Encode(answer)
	}
}

func oneBlock(warps int) launch.Geometry {
	return launch.Geometry{Grid: [3]launch.Extent{launch.Const(1), launch.Const(1), launch.Const(1)}, Block: 32 * warps, Cluster: 1}
}

func testTuner(t *testing.T, path string, child string) *Tuner {
	t.Helper()
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	spec.Workloads = spec.Workloads[:2]
	p := &plan.Plan{Spec: spec}
	for _, f := range []plan.Family{plan.PageScore, plan.PageSelect} {
		fp := plan.FamilyPlan{Family: f, Cost: func(w specs.Workload) plan.Work { return plan.Work{Bytes: int64(w.Context)} }}
		for _, warps := range []int{4, 2, 3, 8} {
			fp.Candidates = append(fp.Candidates, plan.Candidate{Family: f, Form: plan.Portable, Key: "k", Entry: string(f),
				Params: []plan.Param{{Name: "warps", Value: warps}}, Header: "kvloom/types.cuh", Geometry: oneBlock(warps)})
		}
		p.Families = append(p.Families, fp)
	}
	db, err := store.Create(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { db.Close() })
	host := &measure.Host{Timeout: 10 * time.Second, Command: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "KVLOOM_TEST_CHILD="+child)
		return cmd
	}}
	t.Cleanup(host.Close)
	return &Tuner{Spec: spec, Plan: p, NVRTC: "test", Generator: "test", Host: host, DB: db,
		Compile: func(_ context.Context, src render.Source) (*nvrtc.Module, error) {
			return &nvrtc.Module{PTX: []byte(src.Text), Cubin: []byte(src.Text)}, nil
		},
		Options: Options{Works: []measure.Work{"page_score", "page_select"}, Workers: 2}}
}

// C7: stopped twice and resumed, no trial is lost and none is measured again; C1: a candidate that exits is a result.
func TestResume(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	var why []string
	for range 3 {
		tuner := testTuner(t, path, "steady")
		tuner.Options.MaxTrials = 6
		out, err := tuner.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		why = append(why, fmt.Sprintf("%s: %d measured, %d known, %d left", out.Why, out.Measured, out.Known, out.Left))
		tuner.Host.Close()
	}
	want := []string{"trial limit: 6 measured, 0 known, 10 left", "trial limit: 6 measured, 6 known, 4 left", "all candidates measured: 4 measured, 12 known, 0 left"}
	if d := cmp.Diff(want, why); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil || len(trials) != 16 {
		t.Fatalf("%d trials, %v; want 16", len(trials), err)
	}
	classes := map[store.Class]int{}
	for _, tr := range trials {
		classes[tr.Class]++
	}
	if d := cmp.Diff(map[store.Class]int{store.OK: 12, store.Crash: 4}, classes); d != "" {
		t.Errorf("classes (-want +got):\n%s", d)
	}
	for _, c := range Choose(trials) {
		if got := c.Best.Candidate.Param("warps"); got != 2 || c.Default.Candidate.Param("warps") != 4 || c.RunnerUp.Candidate.Param("warps") != 4 {
			t.Errorf("%s %d: best warps %d, default %d, runner-up %d; want 2, 4, 4", c.Family, c.Context, got,
				c.Default.Candidate.Param("warps"), c.RunnerUp.Candidate.Param("warps"))
		}
	}
}

// A kernel is checked before it is timed first; at further workloads, and by a run that resumes, the same code is timed alone, and its trials
// say what the check found.
func TestCheckedOnceAKernel(t *testing.T) {
	path := filepath.Join(t.TempDir(), "trials.db")
	for _, most := range []int{3, 0} {
		tuner := testTuner(t, path, "steady")
		tuner.Options.MaxTrials = most
		if _, err := tuner.Run(t.Context()); err != nil {
			t.Fatal(err)
		}
		tuner.Host.Close()
	}
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil {
		t.Fatal(err)
	}
	checks, right := map[string]int{}, 0
	for _, tr := range trials {
		if tr.Class != store.OK {
			continue
		}
		right++
		if tr.Bound != 1 || tr.MaxError != 0.5 {
			t.Errorf("%s at %d: error %g, bound %g; want what the check found", tr.Candidate.ID(), tr.Context, tr.MaxError, tr.Bound)
		}
		if tr.Message == "checked" {
			checks[tr.Candidate.ID()]++
		}
	}
	if right != 12 || len(checks) != 6 {
		t.Errorf("%d right trials, %d kernels checked; want 12 and 6", right, len(checks))
	}
	for id, n := range checks {
		if n != 1 {
			t.Errorf("%s was checked %d times", id, n)
		}
	}
}

func TestBudgetAndStop(t *testing.T) {
	tuner := testTuner(t, filepath.Join(t.TempDir(), "trials.db"), "steady")
	tuner.Options.Budget = time.Nanosecond
	out, err := tuner.Run(t.Context())
	if err != nil || out.Why != "budget spent" || out.Measured != 1 {
		t.Errorf("got %+v, %v; want the budget spent after the first trial", out, err)
	}
	tuner.Options.Budget = 0
	ctx, cancel := context.WithCancel(t.Context())
	tuner.Observe = func(e Event) {
		if e.Kind == "trial" {
			cancel() // as a Ctrl-C while a trial runs
		}
	}
	out, err = tuner.Run(ctx)
	if err != nil || out.Why != "stopped" || out.Measured != 1 || out.Known != 1 {
		t.Errorf("got %+v, %v; want a stop after the trial in flight", out, err)
	}
}

func TestChooseBreaksTiesByFixedOrder(t *testing.T) {
	mk := func(warps int, lo, median, hi float64, isDefault bool) store.Trial {
		return store.Trial{Family: "page_score", Class: store.OK, LoUS: lo, MedianUS: median, HiUS: hi, Default: isDefault,
			Candidate: plan.Candidate{Form: plan.Portable, Params: []plan.Param{{Name: "warps", Value: warps}}}}
	}
	tests := []struct {
		name, reason string
		trials       []store.Trial
		want, tied   int
	}{
		{"clear", "intervals apart: the fastest", []store.Trial{mk(4, 10, 10, 10.1, true), mk(8, 9, 9, 9.1, false)}, 8, 1},
		{"default ties", "within noise the default stays", []store.Trial{mk(8, 9.0, 9.4, 9.8, false), mk(4, 9.7, 9.9, 10, true)}, 4, 2},
		{"order ties", "then the smaller parameters", []store.Trial{mk(8, 9.0, 9.4, 9.8, false), mk(2, 9.1, 9.5, 9.9, false), mk(4, 20, 20, 20, true)}, 2, 2},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Choose(tt.trials)[0]
			if got := c.Best.Candidate.Param("warps"); got != tt.want || c.Tied != tt.tied {
				t.Errorf("warps %d, %d tied; want %d, %d: %s", got, c.Tied, tt.want, tt.tied, tt.reason)
			}
		})
	}
}

func TestAgainstDefaults(t *testing.T) {
	mk := func(id int, us float64) store.Trial {
		return store.Trial{Class: store.OK, MedianUS: us, LoUS: us - 0.1, HiUS: us + 0.1, Candidate: plan.Candidate{Params: []plan.Param{{Name: "warps", Value: id}}}}
	}
	same, faster, slower := Choice{Best: mk(1, 10), Default: mk(1, 10)}, Choice{Best: mk(2, 8), Default: mk(1, 10)}, Choice{Best: mk(2, 10), Default: mk(1, 8)}
	tests := []struct {
		choices []Choice
		want    string
	}{
		{nil, ""},
		{[]Choice{{Best: mk(1, 10)}}, ""}, // the default was not measured
		{[]Choice{same, same}, "All 2 choices are the defaults."},
		{[]Choice{same, faster}, "1 of 2 choices is the default; the other is 1.25 times as fast as its default, 1.12 in the geometric mean of all. None is slower than its default beyond the intervals."},
		{[]Choice{faster, slower}, "0 of 2 choices are the defaults; the others are 0.80 to 1.25 times as fast as theirs, 1.00 in the geometric mean of all. 1 is slower than the default beyond the intervals."},
	}
	for _, tt := range tests {
		if d := cmp.Diff(tt.want, AgainstDefaults(tt.choices)); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

// C10, and what a person should know of the GPU's state.
func TestWarnings(t *testing.T) {
	best := store.Trial{Class: store.OK, Conditions: store.Conditions{Throttled: true}, Windows: []store.Window{{Conditions: store.Conditions{Others: 2}}}}
	tests := []struct {
		name string
		c    Choice
		want []string
	}{
		{"all tie", Choice{Tied: 5, Counts: map[string]int{"ok": 5}}, []string{"all right candidates tie"}},
		{"measured again", Choice{Best: best, Tied: 1}, []string{"2 other processes"}},
		{"throttled", Choice{Best: store.Trial{Conditions: store.Conditions{Throttled: true}}}, []string{"was throttled"}},
		{"failures", Choice{Counts: map[string]int{"wrong": 2, "hang": 1, "fault": 3}}, []string{"2 candidates gave wrong results", "4 candidates faulted, hung or crashed"}},
		{"well", Choice{Tied: 2, Counts: map[string]int{"ok": 5, "cut": 1}}, nil},
	}
	for _, tt := range tests {
		got := Warnings([]Choice{tt.c})
		if len(got) != len(tt.want) {
			t.Errorf("%s: %q, want %q", tt.name, got, tt.want)
			continue
		}
		for i := range got {
			if !strings.Contains(got[i], tt.want[i]) {
				t.Errorf("%s: %q, want %q", tt.name, got[i], tt.want[i])
			}
		}
	}
}
