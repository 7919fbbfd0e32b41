package measure

import (
	"unsafe"

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
	bytes := int64(r.record.Bytes)
	args := make([]kernel.PageSummaryArgs, 1)
	return &Step{Sets: sets, launch: func(i int) error {
		cache := r.cache(0)
		cache.BlockTable, cache.SeqLens = tables.at(i), lens.at(i)
		args[0] = kernel.PageSummaryArgs{Cache: cache, Summaries: r.summaries.at(0), BuiltLens: built.at(i), Workspace: ws,
			SummaryBlockStride: p.KVHeads * bytes, SummaryHeadStride: bytes}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}, reset: func() error { return r.Stream.CopyAsync(built.base, fresh, built.each*int64(built.n)) }}, nil
}
