package measure

import (
	"encoding/binary"
	"errors"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// TestFilledStep holds every launch of the timed build to what its mode says: one page a request and head written, and no other byte.
func TestFilledStep(t *testing.T) {
	compiler := nvrtctest.Compiler(t)
	for _, tc := range []struct {
		build Build
		basis string
		pages int // a request, each launch
	}{{BuildFilled, "svd", 1}, {BuildIdle, "svd", 0}, {BuildFilled, plan.QueryWeighted, 1}} {
		dev, err := sim.New(sim.Config{})
		if err != nil {
			t.Fatal(err)
		}
		const batch, heads = 3, 2
		s := specs.New("test", 6, heads, 64)
		s.Locks.Basis = tc.basis
		rig, err := NewRig(dev, s, specs.Workload{Context: 100, Batch: batch})
		if err != nil {
			t.Fatal(err)
		}
		rig.Build = tc.build
		c, _ := plan.ForFamily(plan.PageSummary, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
		step, err := rig.Step(Work(plan.PageSummary), c, loadCandidate(t, dev, compiler, c))
		if err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(step.reset(), rig.Stream.Synchronize()); err != nil {
			t.Fatal(err)
		}
		if step.Sets != 7 { // pages of the context: every launch of the ring has its own
			t.Errorf("%s: %d sets", tc.build, step.Sets)
		}
		for i := range 2 * step.Sets { // the ring twice: built_lens must not be what the first round left
			records := make([]byte, rig.recordBytes())
			for j := range records {
				records[j] = 0xff
			}
			if err := errors.Join(dev.Write(rig.summaries.at(0), records), step.Launch(i), rig.Stream.Synchronize(), dev.Read(records, rig.summaries.at(0))); err != nil {
				t.Fatalf("%s, launch %d: %v", tc.build, i, err)
			}
			written := 0
			for at := 0; at < len(records); at += rig.record.Bytes {
				if binary.LittleEndian.Uint32(records[at:]) != 0xffffffff {
					written++
				}
			}
			if written != tc.pages*batch*heads {
				t.Errorf("%s, launch %d: %d records written, want %d", tc.build, i, written, tc.pages*batch*heads)
			}
		}
		if err := errors.Join(rig.Close(), dev.Close()); err != nil {
			t.Error(err)
		}
	}
}
