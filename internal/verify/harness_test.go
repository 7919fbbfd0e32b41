package verify

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// checkDouble is a checker in the form of the families' own: poison, launch, guard bands, compare; then a captured graph at other
// lengths.
func checkDouble(_ context.Context, e *Env, _ *specs.Spec, c plan.Candidate, _ Options) []Result {
	t := NewTally("lengths", "value", 0)
	t.Err(func() error {
		k, err := e.Kernel(c)
		if err != nil {
			return err
		}
		a := e.NewArena()
		defer func() { t.Err(a.Free()) }()
		in, err := a.Input("in", BytesOfInt32([]int32{1, 2, 3, 4, 5, 6, 7, 8}))
		if err != nil {
			return err
		}
		out, err := a.Alloc("out", 32)
		if err != nil {
			return err
		}
		length, err := a.Alloc("length", 4)
		if err != nil {
			return err
		}
		workspace, err := k.Workspace(launch.Problem{})
		if err != nil {
			return err
		}
		args := &doubleArgs{in.Ptr(), out.Ptr(), length.Ptr(), workspace.Ptr()}
		if err := length.Write(BytesOfInt32([]int32{8})); err != nil {
			return err
		}
		graph, err := e.Capture(func(s device.Stream) error { return Enqueue(k, s, launch.Problem{}, args) })
		if err != nil {
			return err
		}
		defer func() { t.Err(graph.Close()) }()
		for _, n := range []int32{8, 3, 0, 5} {
			if err := errors.Join(out.Poison(), length.Write(BytesOfInt32([]int32{n})), length.Freeze(), graph.Run(), a.Check(), workspace.CheckZero(64)); err != nil {
				return err
			}
			data, err := out.Read()
			if err != nil {
				return err
			}
			for i, x := range Int32s(data)[:n] {
				t.Add(float64(x-2*int32(i+1)), 0, func() string { return fmt.Sprintf("length %d, element %d", n, i) })
			}
			rows := Rows{Batch: 1, Rows: 1, Width: 8, RowStride: 8, BatchStride: 8}
			t.Err(rows.Untouched(data, 4, func(_, _, i int) bool { return i < int(n) }))
		}
		return nil
	}())
	return []Result{t.Result()}
}

func TestHarnessReportsEveryFault(t *testing.T) {
	checkers["double"] = checkDouble
	defer delete(checkers, "double")
	poke := func(p func(*doubleArgs) device.Ptr, offset int) func(*fakeDevice, *doubleArgs) error {
		return func(d *fakeDevice, a *doubleArgs) error {
			err := doubled(d, a)
			d.at(p(a)+device.Ptr(offset), 1)[0] ^= 0x40
			return err
		}
	}
	out := func(a *doubleArgs) device.Ptr { return a.Out }
	calls := 0
	tests := []struct {
		name, reason string
		run          func(*fakeDevice, *doubleArgs) error
		want         string // in the failure; "" passes
	}{
		{"right", "the harness must not cry wolf", doubled, ""},
		{"writes nothing", "poison must not look like a result (C2)", func(*fakeDevice, *doubleArgs) error { return nil }, "error"},
		{"one wrong element", "C2", poke(out, 4), "element 1"},
		{"past the end", "guard band behind", poke(out, 32), `behind buffer "out"`},
		{"far past the end", "the whole band is looked at", poke(out, 32+4095), `behind buffer "out"`},
		{"before the start", "guard band before", poke(out, -1), `before buffer "out"`},
		{"past the live length", "a tail that nothing owns was written (S6)", func(d *fakeDevice, a *doubleArgs) error {
			copy(d.at(a.Out+20, 4), []byte{1, 2, 3, 4})
			return doubled(d, a)
		}, "holds nothing live"},
		{"changes its input", "inputs are shared with other kernels", poke(func(a *doubleArgs) device.Ptr { return a.In }, 29), `input "in"`},
		{"changes the lengths", "lengths are an input too", poke(func(a *doubleArgs) device.Ptr { return a.Length }, 2), `input "length"`},
		{"leaves the workspace dirty", "the next launch starts from it (T6)", poke(func(a *doubleArgs) device.Ptr { return a.Workspace }, 9), "not zero after the launch"},
		{"length baked in at capture", "G2", func() func(*fakeDevice, *doubleArgs) error {
			var first []byte
			return func(d *fakeDevice, a *doubleArgs) error {
				if first == nil {
					first = append(first, d.at(a.Length, 4)...)
				}
				now := append([]byte(nil), d.at(a.Length, 4)...)
				copy(d.at(a.Length, 4), first)
				err := doubled(d, a)
				copy(d.at(a.Length, 4), now)
				return err
			}
		}(), "holds nothing live"},
		{"wrong at the second launch only", "a stale counter", func(d *fakeDevice, a *doubleArgs) error {
			if calls++; calls == 2 {
				return nil
			}
			return doubled(d, a)
		}, "error"},
		{"faults", "an illegal address is a result, not the end of the run (C1)", func(*fakeDevice, *doubleArgs) error { return errors.New("illegal address") }, "illegal address"},
	}
	for _, tt := range tests {
		dev := newFake()
		e := NewEnv(dev, func(plan.Candidate) (device.Function, error) { return &fakeKernel{dev, tt.run}, nil })
		results, err := Check(context.Background(), e, nil, fakeCandidate(), Options{})
		if err != nil || len(results) != 1 {
			t.Fatalf("%s: %v, %v", tt.name, results, err)
		}
		got := results[0].Failure
		if tt.want == "" && got != "" || tt.want != "" && !strings.Contains(got, tt.want) {
			t.Errorf("%s (%s): failure %q, want %q", tt.name, tt.reason, got, tt.want)
		}
		if results[0].Candidate == "" || results[0].Family != "double" {
			t.Errorf("%s: the result does not name its candidate: %+v", tt.name, results[0])
		}
		if err := e.Close(); err != nil {
			t.Error(err)
		}
	}
}

func TestCompileErrorIsAFailure(t *testing.T) {
	checkers["double"] = checkDouble
	defer delete(checkers, "double")
	e := NewEnv(newFake(), func(plan.Candidate) (device.Function, error) { return nil, errors.New("no such header") })
	results, err := Check(context.Background(), e, nil, fakeCandidate(), Options{})
	if err != nil || results[0].OK() {
		t.Errorf("%v, %v", results, err)
	}
	if _, err := Check(context.Background(), e, nil, plan.Candidate{Family: "nobody"}, Options{}); err == nil {
		t.Error("a family without a checker passed")
	}
}

func TestTallyOfNothingFails(t *testing.T) {
	if r := NewTally("c", "m", 1).Result(); r.OK() {
		t.Error("a tally that compared nothing passed")
	}
	tally := NewTally("c", "m", 1)
	tally.Add(0.5, 1, nil)
	tally.Add(1.5, 2, nil)
	if r := tally.Result(); !r.OK() || r.MaxError != 1.5 || r.Bound != 2 || r.Count != 2 {
		t.Errorf("%+v: want the value nearest to its own bound", r)
	}
	nan := float64(nan32)
	tally.Add(nan, 2, func() string { return "here" })
	if r := tally.Result(); r.OK() || !strings.HasPrefix(r.Failure, "here") {
		t.Errorf("%+v: a NaN error passed", r)
	}
}
