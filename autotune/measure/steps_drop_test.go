package measure

import (
	"errors"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// TestDropSteps launches what the tuner would time of eviction on the simulator, which faults on any access outside the rig's buffers.
func TestDropSteps(t *testing.T) {
	compiler := nvrtctest.Compiler(t)
	for _, tc := range []struct {
		name, reason string
		contiguous   bool
		change       func(*specs.Spec)
		lens         []int
	}{
		{"paged", "as engines hold caches", false, func(*specs.Spec) {}, []int{40, 203}},
		{"contiguous", "no block table", true, func(*specs.Spec) {}, nil},
		{"fp8", "one byte an element", true, func(s *specs.Spec) { s.Cache.DType = specs.FP8 }, nil},
		{"fast", "outputs in the cache's type", false, func(s *specs.Spec) { s.DropKV.Precision = "fast" }, nil},
		{"keydiff adaptive", "one row of a, and budgets that are allotted", false, func(s *specs.Spec) {
			s.DropKV.Rule = "keydiff"
			s.DropKV.HeadBudgets = specs.HeadBudgets{Kind: "adaptive", Floor: 0.2}
		}, nil},
	} {
		dev, err := sim.New(sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		s := specs.New("test", 6, 2, 64)
		tc.change(s)
		rig, err := NewRig(dev, s, specs.Workload{Context: 203, Batch: 2})
		if err != nil {
			t.Fatal(err)
		}
		rig.Warm = true
		if tc.contiguous {
			rig.Contiguous()
		}
		if tc.lens != nil {
			if err := rig.Lengths(tc.lens); err != nil {
				t.Fatal(err)
			}
			if rig.Lengths([]int{204, 1}) == nil || rig.Lengths([]int{1}) == nil {
				t.Error("lengths that the rig has no room for are no error")
			}
		}
		var steps []*Step
		for _, fp := range plan.New(s, plan.Targets["sm_90a"]).Families[4:] {
			step, err := rig.Step(Work(fp.Family), fp.Candidates[0], loadCandidate(t, dev, compiler, fp.Candidates[0]))
			if err != nil {
				t.Fatalf("%s: %s: %v", tc.name, fp.Family, err)
			}
			steps = append(steps, step)
		}
		if len(steps) < 5 {
			t.Errorf("%s (%s): %d steps", tc.name, tc.reason, len(steps))
		}
		for i := range 2 {
			if err := errors.Join(Chain(steps...).Launch(i), rig.Stream.Synchronize()); err != nil {
				t.Errorf("%s (%s), set %d: %v", tc.name, tc.reason, i, err)
			}
		}
		if err := errors.Join(rig.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}
}

// loadCandidate compiles a candidate and loads it into the simulator.
func loadCandidate(t *testing.T, dev device.Device, compiler *nvrtc.Compiler, c plan.Candidate) device.Function {
	t.Helper()
	src, err := render.Candidate(c)
	if err != nil {
		t.Fatal(err)
	}
	m, err := compiler.Compile(t.Context(), src, nvrtc.Options{})
	if err != nil {
		t.Fatal(err)
	}
	module, err := dev.Load(m.PTX)
	if err != nil {
		t.Fatal(err)
	}
	fn, err := module.Function(src.Entry)
	if err != nil {
		t.Fatal(err)
	}
	return fn
}
