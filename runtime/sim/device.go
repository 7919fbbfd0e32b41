package sim

import (
	"sync"
	"sync/atomic"

	"github.com/kvloom/kvloom/runtime/device"
)

// Device is a simulated GPU.
type Device struct {
	set   settings
	space *space

	mu       sync.Mutex
	handles  uintptr
	reports  []*Fault
	counters map[string]*Counters

	chain       []uint32 // launches that the next dependent one may overlap
	chainStream uintptr

	warpSteps, threadSteps atomic.Int64
}

// New returns a simulator. A bad Config is an error that names the field.
func New(c Config) (device.Device, error) {
	s, err := c.check()
	if err != nil {
		return nil, err
	}
	d := &Device{set: s, space: newSpace(), counters: map[string]*Counters{}}
	d.space.shadowed = s.sanitize
	return d, nil
}

// Info implements device.Device.
func (d *Device) Info() device.Info { return d.set.info }

// Synchronize implements device.Device; launches have run when they return.
func (d *Device) Synchronize() error { return nil }

// Close implements device.Device. Memory still allocated is given back.
func (d *Device) Close() error {
	d.space.mu.Lock()
	defer d.space.mu.Unlock()
	var first error
	for _, a := range *d.space.table.Load() {
		if a.freed {
			continue
		}
		if err := a.release(); err != nil && first == nil {
			first = err
		}
	}
	d.space.table.Store(&[]*alloc{})
	return first
}

func (d *Device) handle() uintptr {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.handles++
	return d.handles
}
