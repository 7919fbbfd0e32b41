package verify

import (
	"errors"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// chainKivi is what a chain has before or behind the build where the cache is quantised.
type chainKivi struct {
	kernel          *Kernel
	lens, workspace *Buffer
	beforeSummaries bool // summaries are of the quantised keys
}

// newChainKivi takes back what Upload wrote into the store: the chain's own records are attended to.
func (r *chainRun) newChainKivi(a *Arena) (*chainKivi, error) {
	k, err := r.env.first(r.Spec, plan.KVQuantize)
	if err != nil {
		return nil, err
	}
	w := &chainKivi{kernel: k, beforeSummaries: r.Spec.Locks.Summaries == specs.PreSummaries}
	if w.lens, err = a.Alloc("quantized_lens", int64(4*r.Cache.Batch())); err != nil {
		return nil, err
	}
	if w.workspace, err = k.Workspace(r.launch); err != nil {
		return nil, err
	}
	if w.beforeSummaries {
		r.K.frozen = false // written back
	}
	if err := w.lens.Fill(0); err != nil {
		return nil, err
	}
	if r.Store.sparse() {
		return w, r.eraseRecords()
	}
	return w, r.Store.Fill(0xff)
}

// enqueueKivi quantises, before the build or behind it as the summaries ask for.
func (r *chainRun) enqueueKivi(s device.Stream, cache kernel.KVCache, before bool) error {
	w := r.kivi
	if w == nil || w.beforeSummaries != before {
		return nil
	}
	return Enqueue(w.kernel, s, r.launch, &kernel.KVQuantizeArgs{Cache: cache, QuantizedLens: w.lens.Ptr(), Workspace: w.workspace.Ptr()})
}

// adoptRecords makes the reference attend to what the device has quantised: where rounding met a tie, its codes may differ.
func (r *chainRun) adoptRecords() error {
	if r.kivi == nil {
		return nil
	}
	var err error
	for b, n := range r.Cache.SeqLens {
		for page := range int(n) / r.Cache.PageSize {
			for head := range r.Cache.KVHeads {
				id := r.Cache.Block(b, page)
				if id < 0 {
					continue
				}
				record, readErr := r.Store.ReadAt(r.Store.At(reference.RecordKey{Block: id, Head: head}), int64(r.Cache.Kivi.Bytes))
				if err = errors.Join(err, readErr); readErr == nil {
					r.Cache.AdoptKiviRecord(id, head, record, r.kivi.beforeSummaries)
				}
			}
		}
	}
	return err
}
