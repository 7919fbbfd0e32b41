package bench

import (
	"context"
	"errors"
	"math"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// bencher is a bench on the simulator with a clock that means nothing.
func bencher(t *testing.T) *Bench {
	return &Bench{
		Dev: gputest.Clocked{Device: gputest.Sim(t)}, Code: nvrtc.NewOnce(autotune.CompileWith(nvrtctest.Compiler(t))),
		Choose: func(_ *specs.Spec, p *plan.Plan, _ specs.Workload, work measure.Work) (plan.Candidate, error) {
			fp := p.Of(work.Family())
			c, ok := fp.DefaultOf(plan.Portable)
			if !ok {
				c = fp.Candidates[0]
			}
			return c, nil
		},
		Limits:   &Limits{ReadTBPerS: 4, ExpPerSec: 4e12, FlopsPerSec: 1e15, LaunchUS: 1},
		Progress: func(s string) { t.Log(s) }, Commit: "none", Command: "kvloom bench",
	}
}

func small(t *testing.T) Job {
	t.Helper()
	s, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	return Job{Spec: s, Workload: specs.Workload{Context: 520, Batch: 1}, Families: []string{score, choose, ChainFamily}}
}

// A whole run: every line is in the file after it was measured, and a job that cannot be measured costs no other.
func TestRunKeepsWhatItMeasured(t *testing.T) {
	b := bencher(t)
	path := filepath.Join(t.TempDir(), "results.jsonl")
	if err := Append(path, []Result{{Family: "page_score", Card: "older", Baselines: map[string]float64{}}}); err != nil {
		t.Fatal(err)
	}
	file, err := Extend(path)
	if err != nil {
		t.Fatal(err)
	}
	var counts []int
	b.Keep = func(rs []Result) error { counts = append(counts, len(rs)); return file.Keep(rs) }
	good := small(t)
	bad := small(t)
	bad.Families = []string{string(plan.DropAllot), score} // uniform budgets are not allotted
	bad.Workload.Context = 100
	results, notes, err := b.Run(t.Context(), []Job{bad, good})
	if err == nil || !strings.Contains(err.Error(), "drop_allot: smollm2-135m has no use for it") || len(notes) != 0 {
		t.Errorf("error %v, notes %v; want drop_allot named", err, notes)
	}
	if diff := cmp.Diff([]int{1, 2, 3, 4}, counts); diff != "" {
		t.Errorf("lines kept (-want +got):\n%s", diff)
	}
	back, err := Read(path)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(results, back[1:]); diff != "" || back[0].Card != "older" {
		t.Errorf("the file holds other lines (-measured +file):\n%s", diff)
	}
	var families []string
	for _, r := range results {
		families = append(families, r.Family)
		if r.MedianUS <= 0 || r.LoUS > r.MedianUS || r.HiUS < r.MedianUS || r.Samples < 30 || r.Bytes <= 0 || r.Limits[LaunchCost] != 1 {
			t.Errorf("%s: %+v", r.Family, r)
		}
	}
	if diff := cmp.Diff([]string{score, score, choose, ChainFamily}, families); diff != "" {
		t.Error(diff)
	}
}

// Compiling beforehand needs no device, and names what cannot be compiled or has no kernel.
func TestPrefetch(t *testing.T) {
	b := bencher(t)
	b.Dev = nil
	good := small(t)
	n, err := b.Prefetch(t.Context(), []Job{good, good})
	if err != nil || n != 4+len(roofEntries) { // score, select, attend, the last two in one; each once
		t.Errorf("%d kernels, %v", n, err)
	}
	bad := small(t)
	bad.Families = []string{string(plan.DropAllot)}
	if _, err := b.Prefetch(t.Context(), []Job{bad}); err == nil || !strings.Contains(err.Error(), "drop_allot") {
		t.Errorf("%v; want drop_allot named", err)
	}
	b.Code = nvrtc.NewOnce(func(context.Context, render.Source) (*nvrtc.Module, error) {
		return nil, errors.New("no such register")
	})
	if _, err := b.Prefetch(t.Context(), []Job{good}); err == nil || !strings.Contains(err.Error(), "page_score portable") || !strings.Contains(err.Error(), "no such register") {
		t.Errorf("%v; want the candidate and the compiler's words", err)
	}
}

func TestRunEndsWhenCancelled(t *testing.T) {
	b := bencher(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	results, _, err := b.Run(ctx, []Job{small(t)})
	if err == nil || len(results) != 0 {
		t.Errorf("%d results, %v", len(results), err)
	}
}

// A pick is among the choice and the plan's first candidates, none twice.
func TestCandidatesOfAPick(t *testing.T) {
	b, j := bencher(t), small(t)
	p := plan.New(j.Spec, plan.Targets["sm_90a"])
	b.Pick = 4
	list, err := b.candidates(j, p, measure.Work(score))
	if err != nil || len(list) != 4 || list[0].Form != plan.Portable {
		t.Fatalf("%d candidates, %v; want the choice and three more", len(list), err)
	}
	seen := map[string]bool{}
	for _, c := range list {
		if seen[c.ID()] {
			t.Errorf("%s twice", c.ID())
		}
		seen[c.ID()] = true
	}
}

// The kernels that limits are measured with do what their rates count: all of the words are read, every exponential is taken.
func TestRoofKernels(t *testing.T) {
	b := bencher(t)
	alloc := func(bytes int64) device.Ptr {
		p, err := b.Dev.Alloc(bytes)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	out := alloc(16)
	stream, err := b.Dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	run := func(entry string, args unsafe.Pointer, size uintptr) {
		t.Helper()
		fn, err := b.roofKernel(t.Context(), entry)
		if err != nil {
			t.Fatal(err)
		}
		l := &device.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{64, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
		if err := fn.Launch(stream, l, args, size); err != nil {
			t.Fatalf("%s: %v", entry, err)
		}
	}
	// One word holds the value that the reader tells of: it must be read wherever it lies, and with the right strides it is.
	for _, at := range []int64{0, 63, 64, 511, 512, 900, 999} {
		const words = 1000
		data := alloc(words * 16)
		value := uint32(0x9e3779b9)
		word := make([]byte, 16)
		word[0], word[1], word[2], word[3] = byte(value), byte(value>>8), byte(value>>16), byte(value>>24)
		for _, err := range []error{b.Dev.Fill(data, 0, words*16), b.Dev.Write(data+device.Ptr(at*16), word), b.Dev.Fill(out, 0, 16)} {
			if err != nil {
				t.Fatal(err)
			}
		}
		args := &struct {
			data  device.Ptr
			words int64
			never device.Ptr
		}{data, words, out}
		run("roof", unsafe.Pointer(args), unsafe.Sizeof(*args))
		got := make([]byte, 4)
		if err := b.Dev.Read(got, out); err != nil || cmp.Diff(word[:4], got) != "" {
			t.Errorf("word %d is not read: %v, %v", at, got, err)
		}
	}
	args := &struct {
		never  device.Ptr
		rounds int32
		_      int32
	}{out, 3, 0}
	run("exponentials", unsafe.Pointer(args), 12)
	run("nothing", unsafe.Pointer(args), 8)
}

func TestTightestLimit(t *testing.T) {
	l := Limits{ReadTBPerS: 4, ExpPerSec: 4e12, FlopsPerSec: 8e14, LaunchUS: 1.25}
	for _, c := range []struct {
		reason string
		work   plan.Work
		name   string
		us     float64
	}{
		{"bytes bind", plan.Work{Bytes: 40e6, Exponential: 4e6, Flops: 8e8}, MemoryLimit, 10},
		{"exponentials bind", plan.Work{Bytes: 4e6, Exponential: 40e6, Flops: 8e8}, ExponentialLimit, 10},
		{"products bind", plan.Work{Bytes: 4e6, Exponential: 4e6, Flops: 8e9}, TensorLimit, 10},
	} {
		r := Result{Limits: l.of(c.work)}
		if name, us := r.Tightest(); name != c.name || math.Abs(us-c.us) > 1e-9 {
			t.Errorf("%s: %s at %g us, want %s at %g", c.reason, name, us, c.name, c.us)
		}
		if r.Limits[LaunchCost] != 1.25 {
			t.Errorf("%s: launch %g us", c.reason, r.Limits[LaunchCost])
		}
	}
	old := Result{Bytes: 8e6, RoofTBPerS: 4}
	if name, us := old.Tightest(); name != MemoryLimit || us != 2 {
		t.Errorf("a line without limits: %s at %g us, want memory at 2", name, us)
	}
}
