package autotune

import (
	"testing"
	"time"
	"unsafe"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// clocked is the simulator with a clock that always says 3 ms, so that all of a measuring child can be run without a GPU. Its L2 is
// tiny, for cold buffers are many otherwise. No number of it means anything.
type clocked struct{ device.Device }

func (c clocked) Info() device.Info {
	i := c.Device.Info()
	i.L2Bytes = 1
	return i
}

func (c clocked) NewStream() (device.Stream, error) {
	s, err := c.Device.NewStream()
	return clockedStream{s}, err
}

func (c clocked) NewEvent() (device.Event, error) {
	e, err := c.Device.NewEvent()
	return clockedEvent{e}, err
}

func (c clocked) Load(image []byte) (device.Module, error) {
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

// The whole of a trial, a window of a contest and a check of a leader in a real child: class, samples and errors arrive.
func TestChildEndToEnd(t *testing.T) {
	host := realHost(t, "clocked", time.Minute)
	r := request(t, planted{})
	r.Samples = 3
	resp, err := host.Do(t.Context(), r)
	if err != nil || store.Class(resp.Class) != store.OK || len(resp.Samples) != 3 || resp.Bound == 0 {
		t.Fatalf("a trial: %+v, %v", resp, err)
	}
	for _, us := range resp.Samples {
		if us != 3000/2 { // a replay of two launches, one a set
			t.Errorf("%g us a launch, want 1500", us)
		}
	}
	r.SkipCheck, r.Samples, r.Warm = true, 2, true
	if resp, err = host.Do(t.Context(), r); err != nil || store.Class(resp.Class) != store.OK || len(resp.Samples) != 2 || resp.Samples[0] != 3000 {
		t.Errorf("a warm window: %+v, %v; want one set, and so one launch of 3000 us", resp, err)
	}
	r = request(t, planted{})
	r.BestUS = 100 // 3 times this is less than 1500
	if resp, err = host.Do(t.Context(), r); err != nil || store.Class(resp.Class) != store.Cut || len(resp.Samples) != 3 {
		t.Errorf("a slow one: %+v, %v; want it cut after 3 samples", resp, err)
	}
	if host.Restarts != 0 {
		t.Errorf("%d fresh children", host.Restarts)
	}
}

// Every work of a spec can be set up and launched as the tuner does; the simulator would say where a buffer is too small.
func TestEveryWorkIsMeasurable(t *testing.T) {
	host := realHost(t, "clocked", time.Minute)
	spec, err := specs.Model("smollm2-135m")
	if err != nil {
		t.Fatal(err)
	}
	p := plan.New(spec, plan.Targets["sm_90a"])
	for _, work := range measure.Works {
		if !p.Has(work.Family()) {
			continue
		}
		c, ok := p.Of(work.Family()).DefaultOf(plan.Portable)
		if !ok {
			t.Errorf("%s has no portable candidate", work)
			continue
		}
		image, c := plant(t, planted{}, c)
		for _, w := range []specs.Workload{{Context: 520, Batch: 2}, {Context: 16, Batch: 1}} {
			resp, err := host.Do(t.Context(), measure.Request{Spec: *spec, Work: work, Workload: w, Candidate: c, Image: image, SkipCheck: true, Samples: 1})
			if err != nil || store.Class(resp.Class) != store.OK {
				t.Errorf("%s at %dx%d: %s %s, %v", work, w.Context, w.Batch, resp.Class, resp.Message, err)
			}
		}
	}
}
