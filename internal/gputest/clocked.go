package gputest

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Clocked is a device, the simulator as a rule, with a clock that always says 3 ms, so that all that measures can be run without a GPU.
// Its L2 is tiny, for cold buffers are many otherwise. No number of it means anything.
type Clocked struct{ device.Device }

func (c Clocked) Info() device.Info {
	i := c.Device.Info()
	i.L2Bytes = 1
	return i
}

func (c Clocked) NewStream() (device.Stream, error) {
	s, err := c.Device.NewStream()
	return clockedStream{s}, err
}

func (c Clocked) NewEvent() (device.Event, error) {
	e, err := c.Device.NewEvent()
	return clockedEvent{e}, err
}

func (c Clocked) Load(image []byte) (device.Module, error) {
	m, err := c.Device.Load(image)
	return clockedModule{m}, err
}

type clockedStream struct{ device.Stream }

func (s clockedStream) Record(e device.Event) error { return s.Stream.Record(e.(clockedEvent).Event) }
func (s clockedStream) Wait(e device.Event) error   { return s.Stream.Wait(e.(clockedEvent).Event) }
func (s clockedStream) EndCapture() (device.Graph, error) {
	g, err := s.Stream.EndCapture()
	return clockedGraph{g}, err
}

type clockedEvent struct{ device.Event }

func (clockedEvent) Since(device.Event) (float64, error) { return 3, nil }

type clockedGraph struct{ device.Graph }

func (g clockedGraph) Launch(s device.Stream) error {
	return g.Graph.Launch(s.(clockedStream).Stream)
}

type clockedModule struct{ device.Module }

func (m clockedModule) Function(name string) (device.Function, error) {
	f, err := m.Module.Function(name)
	return clockedFunction{f}, err
}

type clockedFunction struct{ device.Function }

func (f clockedFunction) Launch(s device.Stream, l *device.Launch, params unsafe.Pointer, size uintptr) error {
	return f.Function.Launch(s.(clockedStream).Stream, l, params, size)
}
