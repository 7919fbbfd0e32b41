package measure

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// reranks reports whether page_select proposes to page_rerank.
func (r *Rig) reranks() bool { return r.Spec.Locks.Rerank > 1 }

// needCandidates makes random candidate lists, as needLists makes lists: those that a rerank measured alone reads, and that a chain's
// page_select writes over.
func (r *Rig) needCandidates() error {
	if r.wide.n > 0 {
		return nil
	}
	p, width := r.Problem, r.Spec.Proposals()
	count := min(width, int(r.groups()))
	n := r.sets(p.Batch * p.Lists * int64(count) * int64(r.Spec.SummaryTokens()*r.Spec.Attention.HeadDim) * 2)
	var err error
	if r.wide, err = r.newRing(p.Batch*p.Lists*int64(width)*4, n); err != nil {
		return err
	}
	if r.wideCounts, err = r.newRing(p.Batch*p.Lists*4, n); err != nil {
		return err
	}
	for set := range n {
		var lists, counts []int32
		for range p.Batch * p.Lists {
			lists, counts = append(lists, r.choice(int(r.groups()), count, width)...), append(counts, int32(count))
		}
		if err := r.Dev.Write(r.wide.at(set), bytesOf(lists)); err != nil {
			return err
		}
		if err := r.Dev.Write(r.wideCounts.at(set), bytesOf(counts)); err != nil {
			return err
		}
	}
	return nil
}

// needRerank makes what page_rerank reads and writes.
func (r *Rig) needRerank() error {
	for _, need := range []func() error{func() error { return r.needPool(false) }, r.needScores, r.needLists, r.needCandidates} {
		if err := need(); err != nil {
			return err
		}
	}
	return nil
}

// rerankArgs are those of set i.
func (r *Rig) rerankArgs(i int, ws device.Ptr) kernel.PageRerankArgs {
	p, keep, d, width := r.Problem, r.Spec.Locks.AlwaysKeep, int64(r.Spec.Attention.HeadDim), int64(r.Spec.Proposals())
	return kernel.PageRerankArgs{Cache: r.cache(i), Q: r.q, Scores: r.scores.at(i), Masses: r.massesAt(i), Candidates: r.wide.at(i), CandidateCounts: r.wideCounts.at(i),
		Pages: r.pages.at(i), Counts: r.counts.at(i), Workspace: ws, QBatchStride: p.QHeads * d, QHeadStride: d,
		ScoreBatchStride: p.QHeads * r.groups(), ScoreHeadStride: r.groups(),
		CandidatesBatchStride: p.Lists * width, CandidatesListStride: width, PagesBatchStride: p.Lists * p.Slots, PagesListStride: p.Slots,
		SoftmaxScale: r.scale(), LogitSoftcap: r.softcap(), CandidateSlots: int32(width), Slots: int32(p.Slots),
		SinkPages: int32(keep.SinkPages), RecentPages: int32(keep.RecentPages)}
}

func (r *Rig) rerankStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needRerank(); err != nil {
		return nil, err
	}
	args := make([]kernel.PageRerankArgs, 1)
	return &Step{Sets: r.wide.n, launch: func(i int) error {
		args[0] = r.rerankArgs(i, ws)
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

// rerankAttendArgs are those of set i.
func (r *Rig) rerankAttendArgs(i int) kernel.PageRerankAttendArgs {
	row, d := r.Problem.QHeads*int64(r.Spec.Attention.HeadDim), int64(r.Spec.Attention.HeadDim)
	return kernel.PageRerankAttendArgs{Rerank: r.rerankArgs(i, 0), Out: r.out, LSE: r.lse, OutBatchStride: row, OutHeadStride: d}
}

// selectRerankStep proposes by the scores of a set, reranks and attends.
func (r *Rig) selectRerankStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needRerank(); err != nil {
		return nil, err
	}
	if err := r.needOwn(); err != nil {
		return nil, err
	}
	args := make([]kernel.PageSelectRerankAttendArgs, 1)
	chained := new(bool)
	return &Step{Sets: max(r.scores.n, r.wide.n), chained: chained, launch: func(i int) error {
		b := r.rerankAttendArgs(i)
		a := &b.Rerank
		if !*chained {
			a.Cache, a.Candidates, a.CandidateCounts = r.shifted(i, r.wide.n), r.own.at(i), r.ownCounts.at(i)
		}
		args[0] = kernel.PageSelectRerankAttendArgs{Both: b, Select: kernel.PageSelectArgs{Scores: a.Scores, Masses: a.Masses, SeqLens: r.lens,
			Pages: a.Candidates, Counts: a.CandidateCounts, Workspace: ws, ScoreBatchStride: a.ScoreBatchStride, ScoreHeadStride: a.ScoreHeadStride,
			PagesBatchStride: a.CandidatesBatchStride, PagesListStride: a.CandidatesListStride, Batch: a.Cache.Batch, KVHeads: a.Cache.KVHeads,
			MaxPages: int32(r.groups()), Slots: a.CandidateSlots, SinkPages: int32(r.Spec.SinkGroups()), RecentPages: int32(r.Spec.RecentGroups())}}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) rerankAttendStep(fn device.Function, l *device.Launch) (*Step, error) {
	if err := r.needRerank(); err != nil {
		return nil, err
	}
	args := make([]kernel.PageRerankAttendArgs, 1)
	return &Step{Sets: r.wide.n, launch: func(i int) error {
		args[0] = r.rerankAttendArgs(i)
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}
