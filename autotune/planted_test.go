package autotune

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// planted is a page_select kernel with a fault in it (C1, C2): text before and after the call of the right kernel.
type planted struct {
	name, reason  string
	before, after string
	shared        int // dynamic shared memory, where it is the fault
	// Class and message on a GPU, and what the message says on the simulator, where a fault of the kernel is a failure of the check. Outputs
	// are poisoned with 0xa5: a count of -1515870811 was not written.
	class   store.Class
	orOK    bool // where the GPU has that much
	message string
	onSim   string // empty: not on the simulator
}

var plantedFaults = []planted{
	{name: "right", reason: "the control: it is checked, and fails on the simulator for want of times alone", class: store.OK, onSim: "measures no times"},
	{name: "illegal address", reason: "a sticky error: the context is lost, not the run", before: "*(volatile int*)16 = 1;", class: store.Fault, onSim: "out of bounds"},
	{name: "infinite loop", reason: "the child is killed", before: "while (*(volatile int*)&args.counts[0] != 123456789) {}", class: store.Hang, message: "no answer within", onSim: "no warp can go on"},
	{name: "exit", reason: "threads that end at once write nothing", before: `asm volatile("exit;");`, class: store.Wrong, onSim: "count -1515870811"},
	{name: "abort", reason: "a trap is a sticky error", before: `asm volatile("trap;");`, class: store.Fault, onSim: "trap"},
	{name: "out of shared memory", reason: "the driver refuses the launch; the context lives", shared: 1 << 20, class: store.LaunchError, onSim: "shared"},
	{name: "20 GB of local memory", reason: "a stack for every thread of the GPU", before: "volatile char stack[500 << 10]; for (int i = 0; i < (500 << 10); i += 4096) stack[(i + args.slots) % (500 << 10)] = i;",
		class: store.LaunchError, orOK: true},
	{name: "writes nothing", reason: "the fastest of all", before: "return;", class: store.Wrong, onSim: "count -1515870811"},
	{name: "one wrong element", reason: "of thousands", after: "__syncthreads(); if (threadIdx.x == 0) args.pages[0] = 1;", class: store.Wrong, onSim: "page 0 of 300"},
	{name: "right after its predecessor", reason: "it writes only where a right result lies already", before: "if (args.counts[0] < 0 || args.counts[0] > args.slots) return;", class: store.Wrong, onSim: "count -1515870811"},
	{name: "wrong at one edge shape", reason: "one page in the first request, at a replay", before: "if (args.seq_lens[0] > 0 && args.seq_lens[0] <= 16) return;", class: store.Wrong, onSim: "replayed at other lengths"},
}

// plant makes the image of a fault.
func plant(t *testing.T, p planted, c plan.Candidate) ([]byte, plan.Candidate) {
	t.Helper()
	src, err := render.Candidate(c)
	if err != nil {
		t.Fatal(err)
	}
	if p.shared > 0 {
		c.Geometry.DynamicShared = p.shared
	}
	return imageOf(c, nvrtctest.Compile(t, p.into(t, src))), c
}

// into plants a fault in a source.
func (p planted) into(t *testing.T, src render.Source) render.Source {
	t.Helper()
	head, body, ok := strings.Cut(src.Text, " args) {\n")
	end := strings.LastIndex(body, "}")
	if !ok || end < 0 {
		t.Fatalf("no kernel in %s", src.Text)
	}
	src.Text = head + " args) {\n" + p.before + "\n" + body[:end] + p.after + "\n}\n"
	src.Hash = hashOf([]byte(src.Text))
	return src
}

// realChild is a measuring child of this test binary with a real device behind it; see TestMain.
func realChild(kind string) {
	var checker Checker
	child := &measure.Child{Check: checker.Quick, Thorough: checker.Whole, Open: func() (device.Device, error) {
		if kind == "cuda" {
			return cuda.Open(0)
		}
		dev, err := sim.New(sim.Config{InstructionLimit: 3_000_000})
		if err == nil && kind == "clocked" {
			return gputest.Clocked{Device: dev}, nil
		}
		return dev, err
	}}
	if err := child.Serve(context.Background(), os.Stdin, os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func realHost(t *testing.T, kind string, timeout time.Duration) *measure.Host {
	h := &measure.Host{Timeout: timeout, Command: func(ctx context.Context) *exec.Cmd {
		cmd := exec.CommandContext(ctx, os.Args[0])
		cmd.Env = append(os.Environ(), "KVLOOM_TEST_CHILD="+kind)
		return cmd
	}}
	t.Cleanup(h.Close)
	return h
}

// request is one trial of a planted kernel of the portable page_select.
func request(t *testing.T, p planted) measure.Request {
	t.Helper()
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	c, ok := plan.New(spec, plan.Targets["sm_90a"]).Of(plan.PageSelect).DefaultOf(plan.Portable)
	if !ok {
		t.Fatal("no portable page_select")
	}
	image, c := plant(t, p, c)
	return measure.Request{Spec: *spec, Work: "page_select", Workload: specs.Workload{Context: 1024, Batch: 1}, Candidate: c, Image: image, CheckSeed: 1}
}

// On the simulator every planted kernel is caught by the check, before anything would be timed.
func TestPlantedOnTheSimulator(t *testing.T) {
	host, ctx := realHost(t, "sim", 5*time.Minute), t.Context()
	for _, p := range plantedFaults {
		t.Run(p.name, func(t *testing.T) {
			r := request(t, p)
			if p.onSim == "" {
				t.Skip("the simulator gives every thread the stack it asks for; this one compiles")
			}
			start := time.Now()
			resp, err := host.Do(ctx, r)
			if err != nil {
				t.Fatal(err)
			}
			t.Logf("%v: %s: %s", time.Since(start).Round(time.Millisecond), resp.Class, resp.Message)
			if store.Class(resp.Class) == store.OK || !strings.Contains(resp.Message, p.onSim) {
				t.Errorf("%s %q; want a failure that says %q: %s", resp.Class, resp.Message, p.onSim, p.reason)
			}
		})
	}
}

// A kernel that is right in the quick cases and wrong at 12 slots alone comes as far as the timing; as a leader it is found out.
func TestPlantedAmongLeaders(t *testing.T) {
	host := realHost(t, "sim", time.Minute)
	r := request(t, planted{before: "if (args.slots == 12) return;"})
	resp, err := host.Do(t.Context(), r)
	if err != nil || !strings.Contains(resp.Message, "measures no times") {
		t.Fatalf("quick check: %+v, %v; want it to pass, or this test proves nothing", resp, err)
	}
	r.Thorough = true
	if resp, err = host.Do(t.Context(), r); err != nil || store.Class(resp.Class) != store.Wrong || !strings.Contains(resp.Message, "sink is") {
		t.Errorf("whole check: %+v, %v; want it wrong where 12 slots are asked for", resp, err)
	}
}

// On a GPU each ends as its class, after a second try in a fresh child where it took the first one down, and the next trial is measured.
func TestPlantedOnTheGPU(t *testing.T) {
	gputest.Require(t)
	host, ctx := realHost(t, "cuda", 5*time.Second), t.Context() // a child lives as long as the context that it was started with
	for _, p := range append(plantedFaults, plantedFaults[0]) {
		t.Run(p.name, func(t *testing.T) {
			before := host.Restarts
			resp, err := host.Do(ctx, request(t, p))
			if err != nil {
				t.Fatal(err)
			}
			if p.orOK && store.Class(resp.Class) == store.OK {
				return
			}
			if store.Class(resp.Class) != p.class || !strings.Contains(resp.Message, p.message) {
				t.Errorf("%s %q; want %s: %s", resp.Class, resp.Message, p.class, p.reason)
			}
			want := 0
			if p.class == store.Fault || p.class == store.Hang {
				want = 2
			}
			if got := host.Restarts - before; got != want {
				t.Errorf("%d fresh children, want %d", got, want)
			}
		})
	}
}

// On a GPU, 30 planted kernels among 300 trials of one run of the tuner: each has its class, all others are measured, and a second run finds
// nothing left to do.
func TestThirtyFaultsOnTheGPU(t *testing.T) {
	gputest.Require(t)
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	spec.Workloads = []specs.Workload{{Context: 1024, Batch: 1}}
	first, ok := plan.New(spec, plan.Targets["sm_90a"]).Of(plan.PageSelect).DefaultOf(plan.Portable)
	if !ok {
		t.Fatal("no portable page_select")
	}
	var faults []planted // local memory that the GPU may have is no fault for sure, and needs no place among the 30
	for _, p := range plantedFaults {
		if !p.orOK {
			faults = append(faults, p)
		}
	}
	fp := plan.FamilyPlan{Family: plan.PageSelect, Cost: plan.New(spec, plan.Targets["sm_90a"]).Of(plan.PageSelect).Cost}
	planted := 0
	for i := range 300 {
		fault := 0
		if i%10 == 7 {
			planted++
			fault = 1 + (planted-1)%(len(faults)-1)
		}
		c := first
		c.Params = []plan.Param{{Name: "copy", Value: i}, {Name: "fault", Value: fault}}
		if faults[fault].shared > 0 {
			c.Geometry.DynamicShared = faults[fault].shared
		}
		fp.Candidates = append(fp.Candidates, c)
	}
	modules := map[string]func() *nvrtc.Module{}
	for i, p := range faults { // what differs between copies is a comment
		src, err := render.Candidate(first)
		if err != nil {
			t.Fatal(err)
		}
		modules[fmt.Sprint(i)] = sync.OnceValue(func() *nvrtc.Module { return nvrtctest.Compile(t, p.into(t, src)) })
	}
	path := filepath.Join(t.TempDir(), "trials.db")
	run := func() Outcome {
		db, err := store.Create(t.Context(), path)
		if err != nil {
			t.Fatal(err)
		}
		defer db.Close()
		host := realHost(t, "cuda", 2*time.Second)
		defer host.Close()
		tuner := &Tuner{Spec: spec, Plan: &plan.Plan{Spec: spec, Families: []plan.FamilyPlan{fp}}, NVRTC: "test", Generator: "test", Host: host, DB: db,
			Compile: func(_ context.Context, src render.Source) (*nvrtc.Module, error) {
				_, after, _ := strings.Cut(src.Text, " fault=")
				fault, _, _ := strings.Cut(after, ":")
				return modules[fault](), nil
			},
			Options: Options{Works: []measure.Work{"page_select"}, Strategy: search.Whole{}, Workers: 4, Precision: 0.05}}
		out, err := tuner.Run(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	if out := run(); out.Measured != 300 || out.Left != 0 {
		t.Fatalf("%d measured, %d left: %s", out.Measured, out.Left, out.Why)
	}
	if out := run(); out.Measured != 0 || out.Known != 300 {
		t.Errorf("again: %d measured, %d known", out.Measured, out.Known)
	}
	db, err := store.Open(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	trials, err := db.Trials(t.Context(), store.Filter{})
	if err != nil || len(trials) != 300 {
		t.Fatalf("%d trials, %v", len(trials), err)
	}
	classes := map[store.Class]int{}
	for _, tr := range trials {
		p := faults[tr.Candidate.Param("fault")]
		classes[tr.Class]++
		if tr.Class != p.class || !strings.Contains(tr.Message, p.message) {
			t.Errorf("%s, %s: %s %q, want %s", tr.Candidate.ID(), p.name, tr.Class, tr.Message, p.class)
		}
	}
	t.Logf("300 trials, %d planted: %v", planted, classes)
}

// misbehave is what a fake child does for a candidate with a fault.
func misbehave(kind int, answer func(measure.Response)) {
	switch kind {
	case 1:
		os.Exit(9)
	case 2:
		answer(measure.Response{Class: string(store.Fault), Message: "CUDA_ERROR_ILLEGAL_ADDRESS"})
	case 3:
		time.Sleep(time.Hour)
	case 4:
		fmt.Println("not an answer")
	case 5:
		answer(measure.Response{Class: string(store.Wrong), Message: "one element of 40"})
	}
}

// 30 faults of five kinds among 300 candidates: each keeps its class, every other candidate is measured, and nothing is lost or repeated.
// With checkers, the child that times never meets a fault that its check meets.
func TestThirtyFaultsInThreeHundredTrials(t *testing.T) {
	for _, checkers := range []int{0, 4} {
		t.Run(fmt.Sprint(checkers, " checkers"), func(t *testing.T) { thirtyFaults(t, checkers) })
	}
}

func thirtyFaults(t *testing.T, checkers int) {
	tuner := testTuner(t, filepath.Join(t.TempDir(), "trials.db"), "steady")
	tuner.Host.Timeout, tuner.Options.Checkers = 200*time.Millisecond, checkers
	tuner.Options.Works, tuner.Options.Strategy = tuner.Options.Works[:1], search.Whole{}
	tuner.Spec.Workloads = tuner.Spec.Workloads[:1]
	fp := &tuner.Plan.Families[0]
	first := fp.Candidates[0]
	fp.Candidates = nil
	for i := range 300 {
		c := first
		fault := 0
		if i%10 == 7 {
			fault = 1 + i/10%5
		}
		c.Params = []plan.Param{{Name: "warps", Value: 10 + i}, {Name: "fault", Value: fault}}
		fp.Candidates = append(fp.Candidates, c)
	}
	out, err := tuner.Run(t.Context())
	if err != nil || out.Measured != 300 || out.Left != 0 {
		t.Fatalf("%+v, %v", out, err)
	}
	trials, err := tuner.DB.Trials(t.Context(), store.Filter{})
	if err != nil || len(trials) != 300 {
		t.Fatalf("%d trials, %v", len(trials), err)
	}
	want := []store.Class{store.OK, store.Crash, store.Fault, store.Hang, store.Crash, store.Wrong}
	for _, tr := range trials {
		if w := want[tr.Candidate.Param("fault")]; tr.Class != w && (w != store.OK || tr.Class != store.Cut) {
			t.Errorf("%s: %s %q, want %s", tr.Candidate.ID(), tr.Class, tr.Message, w)
		}
	}
	restarts := 2 * 24 // 6 of each kind; four kinds take their child down, and are tried once more
	if checkers > 0 {
		restarts = 0
	}
	if tuner.Host.Restarts != restarts {
		t.Errorf("%d fresh children, want %d", tuner.Host.Restarts, restarts)
	}
}
