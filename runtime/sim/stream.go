package sim

import (
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/runtime/device"
)

// Stream runs what is enqueued at once, on the caller's goroutine, or collects it while a capture is on.
type Stream struct {
	dev     *Device
	id      uintptr
	capture *capture
	origin  bool
}

// capture is a graph in the making; streams that wait on its events join it.
type capture struct {
	nodes   []func() error
	streams []*Stream
}

// NewStream implements device.Device.
func (d *Device) NewStream() (device.Stream, error) { return &Stream{dev: d, id: d.handle()}, nil }

// Handle implements device.Stream.
func (s *Stream) Handle() uintptr { return s.id }

// Synchronize implements device.Stream.
func (s *Stream) Synchronize() error {
	if s.capture != nil {
		return errors.New("sim: Synchronize inside a capture: end the capture first")
	}
	return nil
}

// enqueue runs an operation now, or adds it to the capture.
func (s *Stream) enqueue(op func() error) error {
	if s.capture != nil {
		s.capture.nodes = append(s.capture.nodes, op)
		return nil
	}
	return op()
}

// FillAsync implements device.Stream.
func (s *Stream) FillAsync(dst device.Ptr, value byte, bytes int64) error {
	return s.enqueue(func() error { return s.dev.Fill(dst, value, bytes) })
}

// CopyAsync implements device.Stream.
func (s *Stream) CopyAsync(dst, src device.Ptr, bytes int64) error {
	return s.enqueue(func() error {
		from, err := s.dev.space.slice(uint64(src), bytes, "copy from")
		if err != nil {
			return err
		}
		to, err := s.dev.space.slice(uint64(dst), bytes, "copy to")
		if err != nil {
			return err
		}
		copy(to, from)
		s.dev.breakChain()
		s.dev.noteCopy(uint64(dst), uint64(src), bytes)
		return nil
	})
}

// BeginCapture implements device.Stream.
func (s *Stream) BeginCapture() error {
	if s.capture != nil {
		return errors.New("sim: BeginCapture on a stream that is being captured")
	}
	s.capture = &capture{streams: []*Stream{s}}
	s.origin = true
	return nil
}

// EndCapture implements device.Stream.
func (s *Stream) EndCapture() (device.Graph, error) {
	if s.capture == nil || !s.origin {
		return nil, errors.New("sim: EndCapture without BeginCapture on this stream")
	}
	c := s.capture
	for _, t := range c.streams {
		t.capture, t.origin = nil, false
	}
	return &Graph{nodes: c.nodes}, nil
}

// Record implements device.Stream.
func (s *Stream) Record(e device.Event) error {
	ev, ok := e.(*Event)
	if !ok {
		return fmt.Errorf("sim: Record of an event of another backend (%T)", e)
	}
	ev.recorded, ev.capture = true, s.capture
	return nil
}

// Wait implements device.Stream: streams run in the order of the calls, so there is nothing to wait for; a wait on an event of a
// capture draws the stream into it.
func (s *Stream) Wait(e device.Event) error {
	ev, ok := e.(*Event)
	if !ok {
		return fmt.Errorf("sim: Wait for an event of another backend (%T)", e)
	}
	if c := ev.capture; c != nil && s.capture == nil {
		s.capture = c
		c.streams = append(c.streams, s)
	}
	return nil
}

// Destroy implements device.Stream.
func (s *Stream) Destroy() error { return nil }

// Event is a point in a stream.
type Event struct {
	recorded bool
	capture  *capture
}

// NewEvent implements device.Device.
func (d *Device) NewEvent() (device.Event, error) { return &Event{}, nil }

// Since implements device.Event: the simulator has no times.
func (e *Event) Since(device.Event) (float64, error) { return 0, device.ErrNoTimes }

// Synchronize implements device.Event.
func (e *Event) Synchronize() error { return nil }

// Destroy implements device.Event.
func (e *Event) Destroy() error { return nil }

// Graph is a captured list of operations, in the order they were enqueued.
type Graph struct{ nodes []func() error }

// Launch implements device.Graph.
func (g *Graph) Launch(s device.Stream) error {
	st, ok := s.(*Stream)
	if !ok {
		return fmt.Errorf("sim: graph launched on a stream of another backend (%T)", s)
	}
	return st.enqueue(func() error {
		for _, op := range g.nodes {
			if err := op(); err != nil {
				return err
			}
		}
		return nil
	})
}

// Nodes implements device.Graph.
func (g *Graph) Nodes() (int, error) { return len(g.nodes), nil }

// Destroy implements device.Graph.
func (g *Graph) Destroy() error { return nil }
