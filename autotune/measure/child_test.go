package measure

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// small is a device with room for so many bytes; its L2 is tiny, so that rings are.
type small struct {
	device.Device
	room int64
	each map[device.Ptr]int64
}

type noRoom struct{}

func (noRoom) Error() string     { return "no room" }
func (noRoom) OutOfMemory() bool { return true }

func (s *small) Info() device.Info {
	i := s.Device.Info()
	i.L2Bytes = 1
	return i
}

func (s *small) Alloc(n int64) (device.Ptr, error) {
	if n > s.room {
		return 0, noRoom{}
	}
	p, err := s.Device.Alloc(n)
	if err == nil {
		s.room -= n
		s.each[p] = n
	}
	return p, err
}

func (s *small) Free(p device.Ptr) error {
	s.room += s.each[p]
	delete(s.each, p)
	return s.Device.Free(p)
}

// plain is a function that is never launched.
type plain struct{ device.Function }

func (plain) SetMaxDynamicShared(int) error { return nil }
func (plain) SetNonPortableCluster() error  { return nil }

// Buffers of several workloads are kept side by side; where a device has no room for those of another, the others give way; a workload
// that does not fit alone is the driver's error.
func TestChildKeepsBuffers(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	c, _ := plan.New(spec, plan.Targets["sm_90a"]).Of(plan.PageSelect).DefaultOf(plan.Portable)
	tests := []struct {
		name     string
		room     int64
		contexts []int
		want     []int // contexts whose buffers are there in the end, the last one used last
	}{
		{"room for all", 1 << 30, []int{1024, 2048, 1024, 4096}, []int{2048, 1024, 4096}},
		{"a fifth workload", 1 << 30, []int{1024, 2048, 3072, 4096, 5120}, []int{2048, 3072, 4096, 5120}},
		{"no room for two", 64 << 10, []int{8192, 8192, 8176}, []int{8176}},
		{"no room for one", 16 << 10, []int{8192}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			limited := &small{dev, tt.room, map[device.Ptr]int64{}}
			child := &Child{dev: limited}
			for _, n := range tt.contexts {
				rig, step, err := child.stepFor(Request{Spec: *spec, Work: "page_select", Workload: specs.Workload{Context: n, Batch: 1}, Candidate: c}, plain{})
				if tt.want == nil {
					if !noMemory(err) {
						t.Errorf("%v; want the device's refusal", err)
					}
					return
				}
				if err != nil {
					t.Fatal(err)
				}
				if err := rig.release(step); err != nil {
					t.Fatal(err)
				}
			}
			var got []int
			for _, r := range child.rigs {
				got = append(got, r.Workload.Context)
			}
			if !slices.Equal(got, tt.want) {
				t.Errorf("buffers of %v, want %v", got, tt.want)
			}
			if err := child.dropRigs(0); err != nil || len(limited.each) != 0 {
				t.Errorf("%v; %d allocations are left", err, len(limited.each))
			}
		})
	}
}
