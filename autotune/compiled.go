package autotune

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// compiled compiles each source once, ahead of the measuring where workers are free.
type compiled struct {
	compile Compile
	mu      sync.Mutex
	modules map[string]*future // by source hash
	workers sync.WaitGroup
	slots   chan struct{} // one a worker
}

type future struct {
	once   sync.Once
	done   atomic.Bool
	module *nvrtc.Module
	err    error
}

func newCompiled(c Compile, workers int) *compiled {
	return &compiled{compile: c, modules: map[string]*future{}, slots: make(chan struct{}, workers)}
}

func (c *compiled) of(hash string) *future {
	c.mu.Lock()
	defer c.mu.Unlock()
	f := c.modules[hash]
	if f == nil {
		f = &future{}
		c.modules[hash] = f
	}
	return f
}

// get returns the module of a source, compiling it now if no worker has.
func (c *compiled) get(ctx context.Context, src render.Source) (*nvrtc.Module, error) {
	f := c.of(src.Hash)
	f.once.Do(func() {
		f.module, f.err = c.compile(ctx, src)
		f.done.Store(true)
	})
	return f.module, f.err
}

// ready tells whether a job can be measured without waiting for a compiler.
func (c *compiled) ready(j job) bool { return j.src != nil && c.of(j.src.Hash).done.Load() }

// first is the place of the first job that need not wait, or 0.
func (c *compiled) first(queue []job) int { return max(slices.IndexFunc(queue, c.ready), 0) }

// prefetch renders the sources of jobs, and compiles them as workers get free, until ctx ends.
func (c *compiled) prefetch(ctx context.Context, jobs []job) {
	for i, j := range jobs {
		src, err := j.source()
		if err != nil {
			return // the measuring loop meets the same error and reports it
		}
		jobs[i].src = &src
		c.workers.Go(func() {
			select {
			case c.slots <- struct{}{}:
			case <-ctx.Done():
				return
			}
			defer func() { <-c.slots }()
			if ctx.Err() == nil {
				_, _ = c.get(ctx, src) // errors stay in the future
			}
		})
	}
}

func (c *compiled) wait() { c.workers.Wait() }

func workloadOf(t store.Trial) specs.Workload {
	return specs.Workload{Context: t.Context, Batch: t.Batch}
}

func workOf(t store.Trial) measure.Work { return measure.Work(t.Family) }

// rank orders works as a decode step does.
func rank(family string) int { return slices.Index(measure.Works, measure.Work(family)) }
