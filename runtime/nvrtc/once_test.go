package nvrtc

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/kvloom/kvloom/gen/render"
)

// TestOnce: many goroutines ask for two sources, one of which does not compile; each is compiled once, and all get the same answer.
func TestOnce(t *testing.T) {
	good, bad := render.Source{Name: "good", Hash: "1"}, render.Source{Name: "bad", Hash: "2"}
	refused := errors.New("refused")
	var calls atomic.Int32
	o := NewOnce(func(_ context.Context, src render.Source) (*Module, error) {
		calls.Add(1)
		if src.Name == "bad" {
			return nil, refused
		}
		return &Module{Key: src.Name}, nil
	})
	if o.Ready(good) {
		t.Error("ready before anybody asked")
	}
	modules := make([]*Module, 20)
	var all sync.WaitGroup
	for i := range modules {
		all.Go(func() {
			m, err := o.Get(t.Context(), good)
			if _, worse := o.Get(t.Context(), bad); err != nil || !errors.Is(worse, refused) {
				t.Errorf("%v, %v; want none and %v", err, worse, refused)
			}
			modules[i] = m
		})
	}
	all.Wait()
	for _, m := range modules {
		if m == nil || m != modules[0] {
			t.Fatalf("%v and %v are not one module", m, modules[0])
		}
	}
	if n := calls.Load(); n != 2 || !o.Ready(good) || !o.Ready(bad) {
		t.Errorf("%d compilations, want 2; ready: %t, %t", n, o.Ready(good), o.Ready(bad))
	}
}

// TestOnceAll: faults stand where their sources do, each is told of, a source that comes twice is compiled once, and nothing is begun when
// the context has ended.
func TestOnceAll(t *testing.T) {
	sources := []render.Source{{Name: "good", Hash: "1"}, {Name: "bad", Hash: "2"}, {Name: "good", Hash: "1"}, {Name: "other", Hash: "3"}}
	refused := errors.New("refused")
	var calls atomic.Int32
	compile := func(_ context.Context, src render.Source) (*Module, error) {
		calls.Add(1)
		if src.Name == "bad" {
			return nil, refused
		}
		return &Module{}, nil
	}
	for _, workers := range []int{0, 1, 3, 50} {
		calls.Store(0)
		var told []int
		faults := NewOnce(compile).All(t.Context(), sources, workers, func(n int) { told = append(told, n) })
		if len(faults) != 4 || faults[0] != nil || faults[1] != refused || faults[2] != nil || faults[3] != nil {
			t.Errorf("%d workers: %v", workers, faults)
		}
		if calls.Load() != 3 || len(told) != 4 || told[3] != 4 {
			t.Errorf("%d workers: %d compilations, told of %v", workers, calls.Load(), told)
		}
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	calls.Store(0)
	for i, err := range NewOnce(compile).All(ended, sources, 2, nil) {
		if !errors.Is(err, context.Canceled) {
			t.Errorf("%d: %v after the end", i, err)
		}
	}
	if calls.Load() != 0 {
		t.Errorf("%d compilations after the end", calls.Load())
	}
}
