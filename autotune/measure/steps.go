package measure

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

func (r *Rig) scale() float32   { return float32(r.Spec.Attention.SoftmaxScale) }
func (r *Rig) softcap() float32 { return float32(r.Spec.Attention.LogitSoftcap) }

// summaryStep builds all pages of the prompt. built_lens goes back to zero before each replay, outside the timed part; every launch of
// a replay has its own.
func (r *Rig) summaryStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if r.Build == BuildFilled || r.Build == BuildIdle {
		return r.filledStep(fn, l, ws)
	}
	if err := r.needPool(true); err != nil {
		return nil, err
	}
	if err := r.needSummaries(); err != nil {
		return nil, err
	}
	if r.built.n == 0 {
		var err error
		if r.built, err = r.newRing(r.Problem.Batch*4, maxLaunches); err != nil {
			return nil, err
		}
	}
	weights, err := r.weights()
	if err != nil {
		return nil, err
	}
	centre, err := r.centre()
	if err != nil {
		return nil, err
	}
	heads, bytes := r.Problem.KVHeads, int64(r.record.Bytes)
	args := make([]kernel.PageSummaryArgs, 1)
	return &Step{Sets: r.pool.n, launch: func(i int) error {
		args[0] = kernel.PageSummaryArgs{Cache: r.cache(i), Summaries: r.summaries.at(i), BuiltLens: r.built.at(i), Workspace: ws,
			Weights: weights, Centre: centre, SummaryBlockStride: heads * bytes, SummaryHeadStride: bytes}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}, reset: func() error { return r.Stream.FillAsync(r.built.base, 0, r.built.each*int64(r.built.n)) }}, nil
}

func (r *Rig) scoreStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	exact := r.Spec.Locks.Scorer == specs.ExactLSE
	if err := r.needPool(exact); err != nil { // the page that is still filling reads keys
		return nil, err
	}
	if err := r.needSummaries(); err != nil {
		return nil, err
	}
	if err := r.needScores(); err != nil {
		return nil, err
	}
	p, d, bytes := r.Problem, int64(r.Spec.Attention.HeadDim), int64(r.record.Bytes)
	args := make([]kernel.PageScoreArgs, 1)
	sets := r.summaries.n
	if exact {
		sets = r.pool.n
	}
	centre, err := r.centre()
	if err != nil {
		return nil, err
	}
	if r.alone.n == 0 {
		if r.alone, err = r.newRing(r.scores.each, 1); err != nil {
			return nil, err
		}
	}
	chained := new(bool)
	return &Step{Sets: sets, chained: chained, launch: func(i int) error {
		args[0] = kernel.PageScoreArgs{Cache: r.cache(i), Q: r.q, Summaries: r.summaries.at(i), Scores: r.alone.at(i), Workspace: ws, Centre: centre,
			QBatchStride: p.QHeads * d, QHeadStride: d, SummaryBlockStride: p.KVHeads * bytes, SummaryHeadStride: bytes,
			ScoreBatchStride: p.QHeads * r.groups(), ScoreHeadStride: r.groups(), SoftmaxScale: r.scale(), LogitSoftcap: r.softcap()}
		if *chained {
			args[0].Scores, args[0].Masses = r.scores.at(i), r.massesAt(i)
		}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) selectStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needScores(); err != nil {
		return nil, err
	}
	if err := r.needLists(); err != nil {
		return nil, err
	}
	p, keep := r.Problem, r.Spec.Locks.AlwaysKeep
	args := make([]kernel.PageSelectArgs, 1)
	pages, counts := &r.pages, &r.counts
	if r.reranks() {
		if err := r.needCandidates(); err != nil {
			return nil, err
		}
		p.Slots = int64(r.Spec.Proposals())
		keep = specs.Keep{SinkPages: r.Spec.SinkGroups(), RecentPages: r.Spec.RecentGroups()}
		pages, counts = &r.wide, &r.wideCounts
	}
	if err := r.needOwn(); err != nil {
		return nil, err
	}
	chained := new(bool)
	return &Step{Sets: r.scores.n, chained: chained, launch: func(i int) error {
		into, counted := r.own.at(i), r.ownCounts.at(i)
		if *chained {
			into, counted = pages.at(i), counts.at(i)
		}
		args[0] = kernel.PageSelectArgs{Scores: r.scores.at(i), Masses: r.massesAt(i), SeqLens: r.lens, Pages: into, Counts: counted, Workspace: ws,
			ScoreBatchStride: p.QHeads * r.groups(), ScoreHeadStride: r.groups(),
			PagesBatchStride: p.Lists * p.Slots, PagesListStride: p.Slots,
			Batch: int32(p.Batch), KVHeads: int32(p.KVHeads), MaxPages: int32(r.groups()), Slots: int32(p.Slots),
			SinkPages: int32(keep.SinkPages), RecentPages: int32(keep.RecentPages)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) attendStep(work Work, fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needPool(work == Dense && !r.kivi()); err != nil {
		return nil, err
	}
	if err := r.needStore(work == Dense); err != nil {
		return nil, err
	}
	sets := max(r.pool.n, r.stored.n)
	if work != Dense {
		if err := r.needLists(); err != nil {
			return nil, err
		}
		sets = r.pages.n
	}
	p, d := r.Problem, int64(r.Spec.Attention.HeadDim)
	args := make([]kernel.PageAttendArgs, 1)
	return &Step{Sets: sets, launch: func(i int) error {
		args[0] = kernel.PageAttendArgs{Cache: r.cache(i), Q: r.q, Out: r.out, LSE: r.lse, Workspace: ws,
			QBatchStride: p.QHeads * d, QHeadStride: d, OutBatchStride: p.QHeads * d, OutHeadStride: d,
			SoftmaxScale: r.scale(), LogitSoftcap: r.softcap(), Slots: int32(p.Slots)}
		if work != Dense {
			args[0].Pages, args[0].Counts = r.pages.at(i), r.counts.at(i)
			args[0].PagesBatchStride, args[0].PagesListStride = p.Lists*p.Slots, p.Slots
		}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

// Chain is several works of one layer, one after the other: of decoding, score, select and attend, where the page lists that select
// wrote are those that attend reads. The first is launched with an ordinary edge behind the layer before; the others may start early
// (programmatic dependent launch), as runtime/kernel launches them.
func Chain(steps ...*Step) *Step {
	c := &Step{Work: "chain", launch: func(i int) error {
		for at, s := range steps {
			if err := s.link(i, at > 0); err != nil {
				return err
			}
		}
		return nil
	}}
	for _, s := range steps {
		c.Sets = max(c.Sets, s.Sets)
	}
	return c
}

// Ordinary is the step as a link that never starts early.
func (s *Step) Ordinary() *Step {
	c := *s
	c.dependent = nil
	return &c
}

// link launches a step as part of a chain, inside it or as its first.
func (s *Step) link(i int, inside bool) error {
	if s.chained != nil {
		*s.chained = true
		defer func() { *s.chained = false }()
	}
	if s.dependent != nil {
		s.dependent.Dependent = inside
		defer func() { s.dependent.Dependent = s.early }()
	}
	return s.launch(i)
}

// bytesOf views numbers as bytes; every supported machine is little-endian, like the GPU.
func bytesOf[T int32 | uint16 | float32](s []T) []byte {
	if len(s) == 0 {
		return nil
	}
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
