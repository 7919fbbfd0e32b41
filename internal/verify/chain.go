package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// Chain names results of all four families together: build, score, select and attend captured as one graph, as a decode step runs
// them, each working on what the one before wrote.
const Chain plan.Family = "chain"

const chainMetric = "share left out end to end, nats"

// chainFamilies are the links, in launch order.
var chainFamilies = []plan.Family{plan.PageSummary, plan.PageScore, plan.PageSelect, plan.PageAttend}

// ChainCandidates picks the links of a form: the default candidate of each family that has the form, or any form for "".
func ChainCandidates(p *plan.Plan, form plan.Form) ([]plan.Candidate, bool) {
	var out []plan.Candidate
	for _, f := range chainFamilies {
		fp := p.Of(f)
		i := slices.IndexFunc(fp.Candidates, func(c plan.Candidate) bool { return form == "" || c.Form == form })
		if i < 0 {
			return nil, false
		}
		out = append(out, fp.Candidates[i])
	}
	return out, true
}

// CheckChain verifies the four candidates as one graph; page_select_attend may stand for the last two. The selection is compared with float64's own from the summaries that the
// device built: where log shares differ by more than four times the score bound (8e-3 nats up to |logit| 64) it must agree. The
// attention is compared over the pages that the device chose.
func CheckChain(ctx context.Context, e *Env, s *specs.Spec, name string, candidates []plan.Candidate, o Options) []Result {
	var kernels [4]*Kernel
	var results []Result
	for i, c := range candidates {
		k, err := e.Kernel(c)
		if err != nil {
			return []Result{{Family: Chain, Candidate: name, Case: "load", Metric: chainMetric, Failure: err.Error()}}
		}
		kernels[i] = k
	}
	for _, c := range Cases(s, o) {
		if ctx.Err() != nil {
			break
		}
		// Head lengths are of compacted caches, which have no page summaries; degenerate pages tie by the hundred.
		if c.HeadLens || c.Data == Degenerate || c.Data == Extreme {
			continue
		}
		if c.Shared > 0 && s.Locks.Summaries == specs.PreSummaries {
			continue // two requests would write a shared page's keys back at once
		}
		for _, way := range e.rerankWays(s, candidates) {
			results = append(results, chainCase(e, s, kernels, way, c, o.Seed)...)
		}
	}
	for i := range results {
		results[i].Family, results[i].Candidate, results[i].Key = Chain, name, candidates[1].Key
	}
	return results
}

// chainCase is one case; reranks is the family that reranks, where the spec does: it may attend and select too, in place of the kernels that do.
func chainCase(e *Env, s *specs.Spec, kernels [4]*Kernel, reranks plan.Family, c Case, seed uint64) []Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, chainMetric, err)}
	}
	p.squeeze()
	a := e.NewArena()
	if reranks != "" && reranks != plan.PageRerank {
		c.Name += ", " + string(reranks)
	}
	r := &chainRun{env: e, kernels: kernels, reranks: reranks, chosen: NewTally(c.Name, chainMetric, EndToEndBound), out: NewTally(c.Name, attendMetric, AttendBound)}
	err = r.prepare(p, a)
	if err == nil {
		err = r.all()
	}
	r.chosen.Err(errors.Join(err, a.Free()))
	if err != nil {
		return []Result{r.chosen.Result()}
	}
	return []Result{r.chosen.Result(), r.out.Result()}
}

// EndToEndBound is how far, in nats, a page's log share may lie above a chosen one's and be left out, up to |logit| 64: each of two
// shares has the error of its score and of its normaliser.
const EndToEndBound = 8e-3

// chainRun is one case on the device.
type chainRun struct {
	*DeviceProblem
	env         *Env
	kernels     [4]*Kernel
	reranks     plan.Family // "": none
	chosen, out *Tally

	launch                                     launch.Problem
	records                                    *SummaryBuffer
	scoreRows, listRows, outRows               Rows
	built, scores, pages, counts, output, lses *Buffer
	masses                                     *Buffer
	weights                                    device.Ptr // of a query-weighted basis, or 0
	workspaces                                 [4]*Buffer
	rerank                                     *chainRerank // nil: none
	kivi                                       *chainKivi   // nil: the cache is not quantised
}

func (r *chainRun) prepare(p *Problem, a *Arena) (err error) {
	if r.DeviceProblem, err = p.Upload(a); err != nil {
		return err
	}
	r.launch = r.env.LaunchProblem(p)
	if r.reranks != "" {
		if r.rerank, err = newChainRerank(r.env, r.reranks, p, a); err != nil {
			return err
		}
	}
	if p.Cache.Kivi != nil {
		if r.kivi, err = r.newChainKivi(a); err != nil {
			return err
		}
	}
	if r.records, err = r.NewSummaryBuffer(); err != nil {
		return err
	}
	if p.Spec.Locks.Basis == plan.QueryWeighted {
		factors, err := a.Input("weights", packWeights(equalWeights(p)))
		if err != nil {
			return err
		}
		r.weights = factors.Ptr()
	}
	r.scoreRows = p.Rows(p.Q.Heads, p.maxGroups(), 4)
	r.listRows = p.Rows(p.Lists(), p.Slots, 4)
	r.outRows = p.Rows(p.Q.Heads, p.Cache.HeadDim, 2)
	batch := int64(p.Cache.Batch())
	for _, b := range []struct {
		into **Buffer
		name string
		size int64
	}{
		{&r.built, "built_lens", 4 * batch},
		{&r.scores, "scores", 4 * r.scoreRows.Elements()},
		{&r.masses, "masses", kernel.MassesBytes(p.Q.Heads)},
		{&r.pages, "pages", 4 * r.listRows.Elements()},
		{&r.counts, "counts", 4 * batch * int64(p.Lists())},
		{&r.output, "out", 2 * r.outRows.Elements()},
		{&r.lses, "lse", 4 * batch * int64(p.Q.Heads)},
	} {
		if *b.into, err = a.Alloc(b.name, b.size); err != nil {
			return err
		}
	}
	for i, k := range r.kernels {
		if k == nil {
			continue // the kernel before does its work
		}
		if r.workspaces[i], err = k.Workspace(r.launchOf(i)); err != nil {
			return err
		}
	}
	return r.built.Fill(0)
}

// enqueue puts one decode step on a stream.
func (r *chainRun) enqueue(s device.Stream) error {
	cache := r.Args()
	attend := kernel.PageAttendArgs{Cache: cache, Q: r.DeviceProblem.Q.Ptr(), Pages: r.pages.Ptr(), Counts: r.counts.Ptr(),
		Out: r.output.Ptr(), LSE: r.lses.Ptr(), QBatchStride: r.QRows.BatchStride, QHeadStride: r.QRows.RowStride,
		OutBatchStride: r.outRows.BatchStride, OutHeadStride: r.outRows.RowStride,
		PagesBatchStride: r.listRows.BatchStride, PagesListStride: r.listRows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap), Slots: int32(r.Slots)}
	err := errors.Join(
		r.enqueueKivi(s, cache, true),
		Enqueue(r.kernels[0], s, r.launch, &kernel.PageSummaryArgs{Cache: cache, Summaries: r.records.Ptr(), BuiltLens: r.built.Ptr(),
			Workspace: r.workspaces[0].Ptr(), Weights: r.weights, Centre: r.Centre, SummaryBlockStride: r.records.BlockStride, SummaryHeadStride: r.records.HeadStride}),
		r.enqueueKivi(s, cache, false),
		Enqueue(r.kernels[1], s, r.launch, &kernel.PageScoreArgs{Cache: cache, Q: r.DeviceProblem.Q.Ptr(), Summaries: r.records.Ptr(),
			Scores: r.scores.Ptr(), Masses: r.masses.Ptr(), Workspace: r.workspaces[1].Ptr(), Centre: r.Centre, QBatchStride: r.QRows.BatchStride, QHeadStride: r.QRows.RowStride,
			SummaryBlockStride: r.records.BlockStride, SummaryHeadStride: r.records.HeadStride,
			ScoreBatchStride: r.scoreRows.BatchStride, ScoreHeadStride: r.scoreRows.RowStride,
			SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap)}))
	if r.kernels[3] == nil {
		return errors.Join(err, Enqueue(r.kernels[2], s, r.launch, &kernel.PageSelectAttendArgs{Select: *r.selectArgs(), Attend: attend}))
	}
	attend.Workspace = r.workspaces[3].Ptr()
	if r.rerank != nil {
		return errors.Join(err, r.enqueueRerank(s, cache, &attend))
	}
	return errors.Join(err, Enqueue(r.kernels[2], s, r.launchOf(2), r.selectArgs()), Enqueue(r.kernels[3], s, r.launch, &attend))
}

// selectArgs choose the lists, or what is proposed to the rerank.
func (r *chainRun) selectArgs() *kernel.PageSelectArgs {
	a := &kernel.PageSelectArgs{Scores: r.scores.Ptr(), Masses: r.masses.Ptr(), SeqLens: r.SeqLens.Ptr(), Pages: r.pages.Ptr(),
		Counts: r.counts.Ptr(), Workspace: r.workspaces[2].Ptr(),
		ScoreBatchStride: r.scoreRows.BatchStride, ScoreHeadStride: r.scoreRows.RowStride,
		PagesBatchStride: r.listRows.BatchStride, PagesListStride: r.listRows.RowStride,
		Batch: int32(r.Cache.Batch()), KVHeads: int32(r.Cache.KVHeads), MaxPages: int32(r.maxGroups()), Slots: int32(r.Slots),
		SinkPages: int32(r.Budget.SinkPages), RecentPages: int32(r.Budget.RecentPages)}
	if w := r.rerank; w != nil {
		a.Pages, a.Counts, a.PagesBatchStride, a.PagesListStride, a.Slots = w.pages.Ptr(), w.counts.Ptr(), w.rows.BatchStride, w.rows.RowStride, int32(w.budget.Slots)
		a.SinkPages, a.RecentPages = int32(w.budget.SinkPages), int32(w.budget.RecentPages)
	}
	return a
}

// all captures the step once and replays it at every length of the case. built_lens goes on from launch to launch, as while decoding.
func (r *chainRun) all() error {
	return r.env.EachLaunch(r.Case, r.enqueue, r.once)
}

func (r *chainRun) once(graph *Replay, at int) error {
	r.SetLaunch(at)
	err := errors.Join(r.WriteLens(), r.scores.Poison(), r.masses.Poison(), r.pages.Poison(), r.counts.Poison(), r.output.Poison(), r.lses.Poison())
	if err == nil {
		err = graph.Run()
	}
	if err == nil {
		err = r.Arena.Check()
	}
	if err != nil {
		return err
	}
	if err := r.adoptRecords(); err != nil {
		return err
	}
	summaries, err := r.readSummaries()
	if err != nil {
		return err
	}
	lists, err := r.readLists()
	if err != nil {
		return err
	}
	want := r.Cache.Score(summaries, r.Problem.Q, r.Logits)
	rows := r.Problem.Q.Heads / r.Problem.Lists()
	for b := range lists {
		if r.Pages(b) == 0 {
			continue
		}
		for list, chosen := range lists[b] {
			scores := want.Score[b][list*rows : (list+1)*rows]
			if r.rerank != nil {
				r.judgeReranked(at, b, list, scores, chosen)
				continue
			}
			bound := 4 * ScoreBound(slices.Max(want.Largest[b][list*rows:(list+1)*rows]))
			excess, err := r.Budget.Check(r.Rule, scores, chosen, reference.Tolerance{Log: bound})
			if err != nil && excess <= bound {
				r.chosen.Fail("launch %d, request %d, list %d: %v", at, b, list, err) // not a matter of tolerance
				continue
			}
			r.chosen.Add(excess, bound, func() string { return fmt.Sprintf("launch %d, request %d, list %d: %v", at, b, list, err) })
		}
	}
	r.chosen.Passed(1) // a launch without live requests has nothing to choose
	return r.compareOutputs(at, lists)
}

// readSummaries reads the records that the device has built for the pages that are complete now.
func (r *chainRun) readSummaries() (reference.Summaries, error) {
	s := reference.Summaries{Shape: r.Shape, Records: map[reference.RecordKey][]byte{}}
	size := int64(r.Shape.Layout().Bytes)
	for b, length := range r.Cache.SeqLens {
		for page := range int(length) / r.Cache.SummaryTokens() {
			for head := range r.Cache.KVHeads {
				key := reference.RecordKey{Block: r.Cache.GroupBlock(b, page), Head: head}
				if key.Block < 0 || s.Records[key] != nil {
					continue
				}
				record, err := r.records.ReadAt(r.records.At(key), size)
				if err != nil {
					return s, err
				}
				if r.Shape.Scorer == "" {
					if _, err := reference.Unpack(r.Shape, record); err != nil {
						return s, fmt.Errorf("request %d, page %d, head %d: %w", b, page, head, err)
					}
				}
				s.Records[key] = record
			}
		}
	}
	return s, nil
}

func (r *chainRun) readLists() (reference.Lists, error) {
	pages, err := r.pages.Read()
	if err != nil {
		return nil, err
	}
	counts, err := r.counts.Read()
	if err != nil {
		return nil, err
	}
	return KernelLists(r.listRows, Int32s(pages), Int32s(counts))
}

func (r *chainRun) compareOutputs(at int, lists reference.Lists) error {
	data, err := r.output.Read()
	if err != nil {
		return err
	}
	bits := Uint16s(data)
	got := make([]float64, r.Cache.HeadDim)
	for i, want := range r.Cache.AttendAll(r.Problem.Q, lists, r.Logits) {
		b, h := i/r.Problem.Q.Heads, i%r.Problem.Q.Heads
		from := r.outRows.At(b, h)
		r.Problem.Q.DType.Values(got, bits[from:from+int64(r.Cache.HeadDim)])
		err := RelativeError(got, want.Out)
		if math.IsInf(want.LSE, -1) && err == 0 {
			r.out.Passed(1)
			continue
		}
		r.out.Add(err, AttendBound, func() string { return fmt.Sprintf("launch %d, request %d, head %d", at, b, h) })
	}
	return nil
}
