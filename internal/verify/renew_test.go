package verify

import (
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim"
)

// A kernel that leaves its workspace dirty costs the next one nothing, and allocations are taken over while they are few.
func TestRenew(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer dev.Close()
	none := func(plan.Candidate) (device.Function, error) { return nil, nil }
	e := NewEnv(dev, none)
	e.Guard, e.keeps = 256, 1<<20 // as on a GPU: allocations are kept
	use := func(size int64) device.Ptr {
		t.Helper()
		b, err := e.Workspace("f", size)
		if err != nil {
			t.Fatal(err)
		}
		if err := b.CheckZero(size); err != nil {
			t.Error(err)
		}
		if err := b.Write([]byte{1, 2, 3}); err != nil {
			t.Fatal(err)
		}
		return b.Ptr()
	}
	first := use(1000)
	if err := e.Renew(none); err != nil {
		t.Fatal(err)
	}
	if again := use(1000); again != first {
		t.Errorf("allocated anew at %#x; it was at %#x", again, first)
	}
	e.workspaces["f"] = nil
	use(2 << 20)
	if err := e.Renew(none); err != nil {
		t.Fatal(err)
	}
	if len(e.free) != 0 {
		t.Errorf("allocations of %d sizes are kept, more than %d bytes", len(e.free), e.keeps)
	}
	if err := e.Close(); err != nil {
		t.Fatal(err)
	}
}
