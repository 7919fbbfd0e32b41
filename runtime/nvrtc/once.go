package nvrtc

import (
	"context"
	"sync"
	"sync/atomic"

	"github.com/kvloom/kvloom/gen/render"
)

// Once compiles each source once, for all goroutines that ask for it. An error is kept like a module. Modules are told apart by the hash of
// their sources alone, so one Once is for one set of options.
type Once struct {
	compile func(context.Context, render.Source) (*Module, error)

	mu    sync.Mutex
	tasks map[string]*task
}

type task struct {
	once   sync.Once
	done   atomic.Bool
	module *Module
	err    error
}

// NewOnce makes a Once of a function that compiles, such as a Compiler's with its options.
func NewOnce(compile func(context.Context, render.Source) (*Module, error)) *Once {
	return &Once{compile: compile, tasks: map[string]*task{}}
}

func (o *Once) task(hash string) *task {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.tasks[hash]
	if t == nil {
		t = &task{}
		o.tasks[hash] = t
	}
	return t
}

// Get returns the module of a source, after the compilation by this call or by another one.
func (o *Once) Get(ctx context.Context, src render.Source) (*Module, error) {
	t := o.task(src.Hash)
	t.once.Do(func() {
		t.module, t.err = o.compile(ctx, src)
		t.done.Store(true)
	})
	return t.module, t.err
}

// Ready tells whether Get would return at once.
func (o *Once) Ready(src render.Source) bool { return o.task(src.Hash).done.Load() }

// All compiles sources on that many goroutines, each once, until ctx ends. The errors are in the order of the sources, nil for those that
// compile. told, where there is one, hears from one goroutine at a time how many are done.
func (o *Once) All(ctx context.Context, sources []render.Source, workers int, told func(done int)) []error {
	faults := make([]error, len(sources))
	var mu sync.Mutex
	var all sync.WaitGroup
	next, done := 0, 0
	take := func() int {
		mu.Lock()
		defer mu.Unlock()
		next++
		return next - 1
	}
	for range min(max(workers, 1), len(sources)) {
		all.Go(func() {
			for i := take(); i < len(sources); i = take() {
				if faults[i] = ctx.Err(); faults[i] != nil {
					continue
				}
				_, faults[i] = o.Get(ctx, sources[i])
				mu.Lock()
				done++
				if told != nil {
					told(done)
				}
				mu.Unlock()
			}
		})
	}
	all.Wait()
	return faults
}
