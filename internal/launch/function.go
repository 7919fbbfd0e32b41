package launch

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Function takes a kernel out of a module, ready to be launched with a geometry of its own: where that has a first kernel, both, which
// one launch enqueues one after the other.
func Function(m device.Module, entry string, g *Geometry) (device.Function, error) {
	f, err := m.Function(entry)
	if err != nil {
		return nil, err
	}
	if err := device.Prepare(f, g.DynamicShared, g.Cluster); err != nil || g.First == nil {
		return f, err
	}
	if err := preferShared(f); err != nil {
		return nil, err
	}
	first, err := m.Function(g.First.Entry)
	if err != nil {
		return nil, err
	}
	if err := device.Prepare(first, g.First.DynamicShared, 1); err != nil {
		return nil, err
	}
	return &pair{f, first}, preferShared(first)
}

// preferShared lets blocks of both kernels lie on one SM.
func preferShared(f device.Function) error {
	if p, ok := f.(device.PreferShared); ok {
		return p.PreferShared()
	}
	return nil
}

// pair is two kernels of one launch; all but the launch is the second's.
type pair struct {
	device.Function
	first device.Function
}

// Launch enqueues both: the first as the launch says, the second so that it may start while the first still runs. The description is
// changed meanwhile, for another one would be allocated anew, and is as it was when Launch returns.
func (p *pair) Launch(s device.Stream, l *device.Launch, params unsafe.Pointer, size uintptr) error {
	both := *l
	defer func() { *l = both }()
	*l = device.Launch{Grid: both.Before.Grid, Block: both.Before.Block, Cluster: [3]uint32{1, 1, 1},
		DynamicShared: both.Before.DynamicShared, Dependent: both.Dependent}
	if err := p.first.Launch(s, l, params, size); err != nil {
		return err
	}
	*l = both
	l.Dependent = true
	return p.Function.Launch(s, l, params, size)
}
