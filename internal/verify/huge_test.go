package verify

import (
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/runtime/device"
)

// hoard is a device that only allocates, up to a limit, and tells what it was asked for in units of hugeUnit.
type hoard struct {
	device.Device
	limit, used int64
	next        device.Ptr
	sizes       map[device.Ptr]int64
	asked       []int64
}

func (d *hoard) Alloc(bytes int64) (device.Ptr, error) {
	d.asked = append(d.asked, bytes/hugeUnit)
	if d.used+bytes > d.limit {
		return 0, errors.New("out of memory")
	}
	d.used += bytes
	d.next++
	d.sizes[d.next] = bytes
	return d.next, nil
}

func (d *hoard) Free(p device.Ptr) error {
	d.used -= d.sizes[p]
	delete(d.sizes, p)
	return nil
}

func TestHuge(t *testing.T) {
	const unit = hugeUnit
	for _, tc := range []struct {
		name, reason string
		cases        [][]int64 // sizes that each case takes, before it gives all of them back
		asked        []int64
		fail         bool
	}{
		{"the same again", "the driver is asked once", [][]int64{{8 * unit, unit}, {8 * unit, unit}}, []int64{8, 1}, false},
		{"a little less", "sizes of neighbouring specs differ", [][]int64{{8 * unit}, {8*unit - 5}, {7*unit + 1}}, []int64{8}, false},
		{"two of a size in one case", "a lent block is not lent again", [][]int64{{unit, unit}}, []int64{1, 1}, false},
		{"the smallest that fits", "the large one is wanted next", [][]int64{{8 * unit, unit}, {unit, 8 * unit}}, []int64{8, 1}, false},
		{"larger than what is kept", "what is kept makes room", [][]int64{{8 * unit}, {9 * unit}}, []int64{8, 9, 9}, false},
		{"larger than the device", "the device's own error", [][]int64{{17 * unit}}, []int64{17, 17}, true},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dev := &hoard{limit: 16 * unit, sizes: map[device.Ptr]int64{}}
			h := NewHuge(dev)
			failed := false
			for _, sizes := range tc.cases {
				var taken []device.Ptr
				for _, n := range sizes {
					p, err := h.take(n)
					if failed = failed || err != nil; err == nil {
						taken = append(taken, p)
					}
				}
				for _, p := range taken {
					h.give(p)
				}
			}
			if err := h.Close(); err != nil || dev.used != 0 {
				t.Errorf("closed with %v and %d bytes left", err, dev.used)
			}
			if diff := cmp.Diff(tc.asked, dev.asked); diff != "" || failed != tc.fail {
				t.Errorf("%s: failed %v, want %v; units asked for (-want +got):\n%s", tc.reason, failed, tc.fail, diff)
			}
		})
	}
}
