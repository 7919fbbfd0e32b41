package autotune

import (
	"context"
	"slices"
	"sync"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// compiled compiles each source once, ahead of the measuring where workers are free.
type compiled struct {
	*nvrtc.Once
	workers sync.WaitGroup
	slots   chan struct{} // one a worker
}

func newCompiled(c Compile, workers int) *compiled {
	return &compiled{Once: nvrtc.NewOnce(c), slots: make(chan struct{}, workers)}
}

// ready tells whether a job can be measured without waiting for a compiler.
func (c *compiled) ready(j job) bool { return j.src != nil && c.Ready(*j.src) }

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
				_, _ = c.Get(ctx, src) // whoever needs it meets the error again
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
