package measure

import (
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// told remembers the arguments of its last launch.
type told[T any] struct {
	plain
	args T
}

func (f *told[T]) Launch(_ device.Stream, _ *device.Launch, args unsafe.Pointer, _ uintptr) error {
	f.args = *(*T)(args)
	return nil
}

// What chooses pages is timed on one buffer of scores, so that all its launches choose alike: its lists must not become those that attention
// is timed with, nor may it read the same keys and values each time; both would leave them in the L2. In a chain it writes what attention
// reads.
func TestChosenPagesStayCold(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	r, err := NewRig(dev, spec, specs.Workload{Context: 2048, Batch: 1})
	if err != nil {
		t.Fatal(err)
	}
	choose, both, attend := &told[kernel.PageSelectArgs]{}, &told[kernel.PageSelectAttendArgs]{}, &told[kernel.PageAttendArgs]{}
	first, err := r.selectStep(choose, &device.Launch{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	second, err := r.attendStep("page_attend", attend, &device.Launch{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	fused, err := r.selectAttendStep(both, &device.Launch{}, 0)
	if err != nil {
		t.Fatal(err)
	}
	read, keys := map[device.Ptr]bool{}, map[device.Ptr]bool{}
	for i := range second.Sets {
		for _, s := range []*Step{first, second, fused} {
			if err := s.link(i, false); err != nil {
				t.Fatal(err)
			}
			if s != second {
				continue
			}
			read[attend.args.Pages] = true
		}
		if choose.args.Pages != attend.args.Pages || both.args.Attend.Pages != attend.args.Pages || both.args.Attend.Cache.K != attend.args.Cache.K {
			t.Fatalf("set %d of a chain: chosen into %#x and %#x, read from %#x", i, choose.args.Pages, both.args.Attend.Pages, attend.args.Pages)
		}
	}
	if len(read) != second.Sets || second.Sets < 2 {
		t.Fatalf("attention goes round %d lists in %d sets", len(read), second.Sets)
	}
	for i := range fused.Sets {
		for _, s := range []*Step{first, fused} {
			if err := s.launch(i); err != nil {
				t.Fatal(err)
			}
		}
		if read[choose.args.Pages] || read[both.args.Select.Pages] {
			t.Fatalf("set %d: lists that attention reads are written over", i)
		}
		if both.args.Select.Pages != both.args.Attend.Pages {
			t.Fatalf("set %d: chosen into %#x, read from %#x", i, both.args.Select.Pages, both.args.Attend.Pages)
		}
		keys[both.args.Attend.Cache.K] = true
	}
	if len(keys) != fused.Sets {
		t.Errorf("%d places of keys in %d sets", len(keys), fused.Sets)
	}
	last := both.args.Attend.Cache.V + device.Ptr(r.poolV) // the device refuses what is not allocated
	if err := dev.Write(last-device.Ptr(r.blockBytes()), make([]byte, r.blockBytes())); err != nil {
		t.Errorf("values of the last set end beyond the pool: %v", err)
	}
}
