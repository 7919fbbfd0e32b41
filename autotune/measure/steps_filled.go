package measure

import (
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// Build is what a page_summary launch finds to do.
type Build string

// The modes.
const (
	BuildPrompt Build = "prompt" // all pages of the context, nothing being built yet
	BuildFilled Build = "filled" // the page that each request completed in this decode step, the page before it being built
	BuildIdle   Build = "idle"   // nothing: no request completed a page
)

// weights are factors of random moments where the spec's basis has any, anew for every step.
func (r *Rig) weights() (device.Ptr, error) {
	if r.Spec.Locks.Basis != plan.QueryWeighted {
		return 0, nil
	}
	heads, dim := int(r.Problem.KVHeads), r.Spec.Attention.HeadDim
	moments := make([]float32, heads*dim*dim)
	for h := range heads {
		s := moments[h*dim*dim:]
		for range 2 * dim {
			q := make([]float32, dim)
			for i := range q {
				q[i] = float32(r.rand.NormFloat64()) * float32(1+i%7)
			}
			for i, x := range q {
				for j, y := range q {
					s[i*dim+j] += x * y
				}
			}
		}
	}
	packed, err := kernel.PackWeights(moments, heads, dim)
	if err != nil {
		return 0, err
	}
	return r.upload(packed)
}

// filledStep builds, in each request, one page of those that the context holds: launch i has its own lengths, block table and built_lens,
// and its pages are no other launch's of the ring, so that nothing it reads is in the L2.
func (r *Rig) filledStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needPool(false); err != nil {
		return nil, err
	}
	if r.summaries.n == 0 {
		var err error
		if r.summaries, err = r.newRing(r.recordBytes(), 1); err != nil {
			return nil, err
		}
	}
	p, page := r.Problem, int64(r.Spec.Cache.PageSize)
	touched := p.Batch * p.KVHeads * (page*int64(r.Spec.Attention.HeadDim)*2 + int64(r.record.Bytes))
	sets := min(r.sets(touched), int(p.MaxPages))
	tables, err := r.newRing(p.Batch*p.MaxPages*4, sets)
	if err != nil {
		return nil, err
	}
	lens, err := r.newRing(p.Batch*4, sets)
	if err != nil {
		return nil, err
	}
	// A graph goes round the ring many times, and a launch that finds its page built would build nothing: built_lens is one a launch.
	built, err := r.newRing(p.Batch*4, roundUp(maxLaunches, sets))
	if err != nil {
		return nil, err
	}
	start := make([]int32, built.each/4*int64(built.n))
	for i := range built.n {
		at := i % sets
		now := int32((p.MaxPages - int64(at)) * page)
		before := now
		if r.Build == BuildFilled {
			before -= int32(page)
		}
		row := start[int64(i)*built.each/4:]
		for b := range p.Batch {
			row[b] = before
		}
		if i >= sets {
			continue
		}
		all := make([]int32, p.Batch)
		for b := range all {
			all[b] = now
		}
		if err := r.Dev.Write(lens.at(at), bytesOf(all)); err != nil {
			return nil, err
		}
		if err := r.Stream.CopyAsync(tables.at(at), r.table, p.Batch*p.MaxPages*4); err != nil {
			return nil, err
		}
	}
	if err := r.Stream.Synchronize(); err != nil {
		return nil, err
	}
	fresh, err := r.upload(bytesOf(start))
	if err != nil {
		return nil, err
	}
	weights, err := r.weights()
	if err != nil {
		return nil, err
	}
	centre, err := r.centre()
	if err != nil {
		return nil, err
	}
	bytes := int64(r.record.Bytes)
	args := make([]kernel.PageSummaryArgs, 1)
	return &Step{Sets: sets, launch: func(i int) error {
		cache := r.cache(0)
		cache.BlockTable, cache.SeqLens = tables.at(i), lens.at(i)
		args[0] = kernel.PageSummaryArgs{Cache: cache, Summaries: r.summaries.at(0), BuiltLens: built.at(i), Workspace: ws,
			Weights: weights, Centre: centre, SummaryBlockStride: p.KVHeads * bytes, SummaryHeadStride: bytes}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}, reset: func() error { return r.Stream.CopyAsync(built.base, fresh, built.each*int64(built.n)) }}, nil
}
