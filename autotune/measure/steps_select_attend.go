package measure

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// selectAttendStep chooses pages by the scores of a set and attends to them.
func (r *Rig) selectAttendStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	for _, need := range []func() error{func() error { return r.needPool(false) }, r.needScores, r.needLists, r.needOwn} {
		if err := need(); err != nil {
			return nil, err
		}
	}
	p, keep, d := r.Problem, r.Spec.Locks.AlwaysKeep, int64(r.Spec.Attention.HeadDim)
	args := make([]kernel.PageSelectAttendArgs, 1)
	chained := new(bool)
	return &Step{Sets: max(r.scores.n, r.pages.n), chained: chained, launch: func(i int) error {
		cache, pages, counts := r.shifted(i, r.pages.n), r.own.at(i), r.ownCounts.at(i)
		if *chained {
			cache, pages, counts = r.cache(i), r.pages.at(i), r.counts.at(i)
		}
		args[0].Select = kernel.PageSelectArgs{Scores: r.scores.at(i), Masses: r.massesAt(i), SeqLens: r.lens, Pages: pages, Counts: counts, Workspace: ws,
			ScoreBatchStride: p.QHeads * p.MaxPages, ScoreHeadStride: p.MaxPages, PagesBatchStride: p.Lists * p.Slots, PagesListStride: p.Slots,
			Batch: int32(p.Batch), KVHeads: int32(p.KVHeads), MaxPages: int32(p.MaxPages), Slots: int32(p.Slots),
			SinkPages: int32(keep.SinkPages), RecentPages: int32(keep.RecentPages)}
		args[0].Attend = kernel.PageAttendArgs{Cache: cache, Q: r.q, Pages: pages, Counts: counts, Out: r.out, LSE: r.lse,
			QBatchStride: p.QHeads * d, QHeadStride: d, OutBatchStride: p.QHeads * d, OutHeadStride: d, PagesBatchStride: p.Lists * p.Slots,
			PagesListStride: p.Slots, SoftmaxScale: r.scale(), LogitSoftcap: r.softcap(), Slots: int32(p.Slots)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}
