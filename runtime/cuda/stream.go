package cuda

import (
	"fmt"

	"github.com/kvloom/kvloom/runtime/device"
)

const (
	streamNonBlocking = 1
	// Relaxed capture alone may end on another OS thread than it began on, and a goroutine may have moved.
	captureRelaxed = 2
)

// Stream is an in-order queue. It implements device.Stream.
type Stream struct {
	d       *Device
	handle  uintptr
	foreign bool
}

// NewStream makes a stream that does not wait for the null stream.
func (d *Device) NewStream() (device.Stream, error) {
	s := &Stream{d: d}
	if err := d.do("cuStreamCreate", nothing, func() Result { return d.api.streamCreate(&s.handle, streamNonBlocking) }); err != nil {
		return nil, err
	}
	return s, nil
}

// WrapStream is a caller's own CUstream, 0 for the null stream, of this device's context. Destroy leaves it alone.
func (d *Device) WrapStream(handle uintptr) device.Stream {
	return &Stream{d: d, handle: handle, foreign: true}
}

// Handle is the CUstream.
func (s *Stream) Handle() uintptr { return s.handle }

// Synchronize waits for what was enqueued; a fault of an earlier kernel is reported here.
func (s *Stream) Synchronize() error {
	return s.d.do("cuStreamSynchronize", nothing, func() Result { return s.d.api.streamSynchronize(s.handle) })
}

// Record marks this point of the stream.
func (s *Stream) Record(e device.Event) error {
	ev, err := ours(e)
	if err != nil {
		return err
	}
	return s.d.do("cuEventRecord", nothing, func() Result { return s.d.api.eventRecord(ev.handle, s.handle) })
}

// Wait makes later work of the stream wait for the event.
func (s *Stream) Wait(e device.Event) error {
	ev, err := ours(e)
	if err != nil {
		return err
	}
	return s.d.do("cuStreamWaitEvent", nothing, func() Result { return s.d.api.streamWaitEvent(s.handle, ev.handle, 0) })
}

// FillAsync enqueues a fill.
func (s *Stream) FillAsync(dst device.Ptr, value byte, bytes int64) error {
	what := func() string { return fmt.Sprintf("of %d bytes at %#x", bytes, dst) }
	if bytes < 0 {
		return fmt.Errorf("cuda: fill %s: the size is negative", what())
	}
	return s.d.do("cuMemsetD8Async", what, func() Result { return s.d.api.memsetAsync(uint64(dst), value, uint64(bytes), s.handle) })
}

// CopyAsync enqueues a copy on the device.
func (s *Stream) CopyAsync(dst, src device.Ptr, bytes int64) error {
	what := func() string { return fmt.Sprintf("of %d bytes from %#x to %#x", bytes, src, dst) }
	if bytes < 0 {
		return fmt.Errorf("cuda: copy %s: the size is negative", what())
	}
	return s.d.do("cuMemcpyDtoDAsync_v2", what, func() Result { return s.d.api.memcpyAsync(uint64(dst), uint64(src), uint64(bytes), s.handle) })
}

// BeginCapture records what follows instead of running it.
func (s *Stream) BeginCapture() error {
	return s.d.do("cuStreamBeginCapture_v2", nothing, func() Result { return s.d.api.streamBeginCapture(s.handle, captureRelaxed) })
}

// EndCapture turns what was recorded into a graph that can be launched.
func (s *Stream) EndCapture() (device.Graph, error) {
	g := &Graph{d: s.d}
	if err := s.d.do("cuStreamEndCapture", nothing, func() Result { return s.d.api.streamEndCapture(s.handle, &g.graph) }); err != nil {
		return nil, err
	}
	if err := s.d.do("cuGraphInstantiateWithFlags", nothing, func() Result { return s.d.api.graphInstantiate(&g.exec, g.graph, 0) }); err != nil {
		g.Destroy() //nolint:errcheck // the first error is the one to report
		return nil, err
	}
	return g, nil
}

// Destroy frees the stream once its work is done.
func (s *Stream) Destroy() error {
	if s.foreign {
		return nil
	}
	return s.d.do("cuStreamDestroy_v2", nothing, func() Result { return s.d.api.streamDestroy(s.handle) })
}

// Event is a point in a stream, with its time. It implements device.Event.
type Event struct {
	d      *Device
	handle uintptr
}

// NewEvent makes an event that records time.
func (d *Device) NewEvent() (device.Event, error) {
	e := &Event{d: d}
	if err := d.do("cuEventCreate", nothing, func() Result { return d.api.eventCreate(&e.handle, 0) }); err != nil {
		return nil, err
	}
	return e, nil
}

func ours(e device.Event) (*Event, error) {
	ev, ok := e.(*Event)
	if !ok || ev == nil {
		return nil, fmt.Errorf("cuda: an event of this backend is needed, not %T", e)
	}
	return ev, nil
}

// Since is the time in milliseconds from an earlier event.
func (e *Event) Since(earlier device.Event) (float64, error) {
	from, err := ours(earlier)
	if err != nil {
		return 0, err
	}
	ms := new(float32)
	err = e.d.do("cuEventElapsedTime", nothing, func() Result { return e.d.api.eventElapsed(ms, from.handle, e.handle) })
	return float64(*ms), err
}

// Synchronize waits until the event is reached.
func (e *Event) Synchronize() error {
	return e.d.do("cuEventSynchronize", nothing, func() Result { return e.d.api.eventSynchronize(e.handle) })
}

// Destroy frees the event.
func (e *Event) Destroy() error {
	return e.d.do("cuEventDestroy_v2", nothing, func() Result { return e.d.api.eventDestroy(e.handle) })
}

// Graph is an instantiated CUDA graph. It implements device.Graph.
type Graph struct {
	d           *Device
	graph, exec uintptr
}

// Launch enqueues the graph. Like Function.Launch it allocates nothing and does not wait.
func (g *Graph) Launch(s device.Stream) error {
	st, ok := s.(*Stream)
	if !ok || st == nil {
		return fmt.Errorf("cuda: launch a graph: a stream of this backend is needed, not %T", s)
	}
	if err := g.d.enter(); err != nil {
		return err
	}
	r := g.d.api.graphLaunch(g.exec, st.handle)
	g.d.leave()
	if r != 0 {
		return g.d.api.fail(r, "cuGraphLaunch", "")
	}
	return nil
}

// Nodes counts the graph's nodes.
func (g *Graph) Nodes() (int, error) {
	n := new(uint64)
	err := g.d.do("cuGraphGetNodes", nothing, func() Result { return g.d.api.graphGetNodes(g.graph, nil, n) })
	return int(*n), err
}

// Destroy frees the graph and its executable form.
func (g *Graph) Destroy() error {
	var first error
	if g.exec != 0 {
		first = g.d.do("cuGraphExecDestroy", nothing, func() Result { return g.d.api.graphExecDestroy(g.exec) })
	}
	if g.graph != 0 {
		if err := g.d.do("cuGraphDestroy", nothing, func() Result { return g.d.api.graphDestroy(g.graph) }); first == nil {
			first = err
		}
	}
	g.exec, g.graph = 0, 0
	return first
}
