package verify

import (
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// SelectPages runs the default kernels of a spec on given data, for measurements rather than for a verdict: page_summary over all
// tokens of the cache's longest request, then page_score for every request, then page_select, and page_rerank where it reranks, once for each of
// choices, which are the spec with other combine rules, budgets and rerank factors. All requests of the cache share the blocks of the longest. Weights
// are of query-weighted bases, one a KV head. With given, the reference's summaries take the place of the kernel's before they are scored. It returns the scores and, for each of choices, the
// lists.
func (e *Env) SelectPages(s *specs.Spec, choices []*specs.Spec, c *reference.Cache, q reference.Queries, given bool, weights []reference.Weights) (reference.Scores, []reference.Lists, error) {
	a := e.NewArena()
	scores, lists, err := e.selectPages(a, s, choices, c, q, given, weights)
	return scores, lists, errors.Join(err, a.Free())
}

func (e *Env) selectPages(a *Arena, s *specs.Spec, choices []*specs.Spec, c *reference.Cache, q reference.Queries, given bool, weights []reference.Weights) (out reference.Scores, lists []reference.Lists, err error) {
	longest := 0
	for b, n := range c.SeqLens {
		if n > c.SeqLens[longest] {
			longest = b
		}
	}
	whole := *c
	whole.SeqLens, whole.Table = c.SeqLens[longest:longest+1], c.Table[longest*c.TableStride:(longest+1)*c.TableStride]
	records, err := e.buildPages(a, s, &whole, q, weights)
	if err != nil {
		return out, nil, err
	}
	if given {
		if err := records.Put(whole.Build(problemOf(s, c, q).Shape).Records); err != nil {
			return out, nil, err
		}
	}
	r := &pageRun{Env: e, arena: a, records: records}
	if r.DeviceProblem, err = problemOf(s, c, q).Upload(a); err != nil {
		return out, nil, err
	}
	if err := r.score(s); err != nil {
		return out, nil, err
	}
	for _, choice := range choices {
		chosen, err := r.choose(choice)
		if err != nil {
			return out, nil, err
		}
		lists = append(lists, chosen)
	}
	out, err = r.readScores()
	return out, lists, err
}

// problemOf is a problem of given data.
func problemOf(s *specs.Spec, c *reference.Cache, q reference.Queries) *Problem {
	return &Problem{Spec: s, Cache: c, Q: q, Rule: reference.Combine(s.Locks.Combine), Group: s.Attention.Group(), Slots: s.Slots(),
		Logits: reference.Logits{Scale: s.Attention.SoftmaxScale, Softcap: s.Attention.LogitSoftcap},
		Shape: reference.Shape{HeadDim: s.Attention.HeadDim, PageSize: s.SummaryTokens(), Rank: s.Locks.Rank, BasisBits: s.Locks.BasisBits,
			Form: s.Record().Form, Scorer: s.Record().Scorer},
		Budget: reference.Budget{Slots: s.Slots(), SinkPages: s.Locks.AlwaysKeep.SinkPages, RecentPages: s.Locks.AlwaysKeep.RecentPages}}
}

// first is the default kernel of a family on this device.
func (e *Env) first(s *specs.Spec, f plan.Family) (*Kernel, error) {
	target, err := TargetOf(e.Dev.Info())
	if err != nil {
		return nil, err
	}
	candidates := runnable(plan.ForFamily(f, s, target), e.Dev.Info())
	if len(candidates) == 0 {
		return nil, fmt.Errorf("no %s kernel of %s runs on %s", f, s.Name, e.Dev.Info().Name)
	}
	return e.Kernel(candidates[0])
}

// buildPages summarises all pages of a cache of one request.
func (e *Env) buildPages(a *Arena, s *specs.Spec, whole *reference.Cache, q reference.Queries, weights []reference.Weights) (*SummaryBuffer, error) {
	one := q
	one.Bits = q.Bits[:q.Heads*q.HeadDim]
	p := problemOf(s, whole, one)
	d, err := p.Upload(a)
	if err != nil {
		return nil, err
	}
	records, err := d.NewSummaryBuffer()
	if err != nil {
		return nil, err
	}
	built, err := a.Alloc("built_lens", 4)
	if err != nil {
		return nil, err
	}
	k, err := e.first(s, plan.PageSummary)
	if err != nil {
		return nil, err
	}
	problem := e.LaunchProblem(p)
	workspace, err := k.Workspace(problem)
	if err != nil {
		return nil, err
	}
	args := kernel.PageSummaryArgs{Cache: d.Args(), Summaries: records.Ptr(), BuiltLens: built.Ptr(), Workspace: workspace.Ptr(), Centre: d.Centre,
		SummaryBlockStride: records.BlockStride, SummaryHeadStride: records.HeadStride}
	if len(weights) > 0 {
		factors, err := a.Input("weights", packWeights(weights))
		if err != nil {
			return nil, err
		}
		args.Weights = factors.Ptr()
	}
	return records, errors.Join(built.Fill(0), RunOnce(k, problem, &args))
}

// pageRun is score and selection of one cache.
type pageRun struct {
	*Env
	*DeviceProblem
	arena   *Arena
	records *SummaryBuffer
	rows    Rows
	scores  *Buffer
}

func (r *pageRun) score(s *specs.Spec) (err error) {
	r.rows = r.Rows(r.Problem.Q.Heads, r.maxGroups(), 4)
	if r.scores, err = r.arena.Alloc("scores", 4*r.rows.Elements()); err != nil {
		return err
	}
	k, err := r.first(s, plan.PageScore)
	if err != nil {
		return err
	}
	problem := r.LaunchProblem(r.Problem)
	workspace, err := k.Workspace(problem)
	if err != nil {
		return err
	}
	return RunOnce(k, problem, &kernel.PageScoreArgs{
		Cache: r.Args(), Q: r.DeviceProblem.Q.Ptr(), Summaries: r.records.Ptr(), Scores: r.scores.Ptr(), Workspace: workspace.Ptr(), Centre: r.Centre,
		QBatchStride: r.QRows.BatchStride, QHeadStride: r.QRows.RowStride,
		SummaryBlockStride: r.records.BlockStride, SummaryHeadStride: r.records.HeadStride,
		ScoreBatchStride: r.rows.BatchStride, ScoreHeadStride: r.rows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap)})
}

// choose selects by one rule and budget.
func (r *pageRun) choose(s *specs.Spec) (reference.Lists, error) {
	p := problemOf(s, r.Cache, r.Problem.Q)
	keep := p.proposals()
	p.Slots = keep.Slots
	rows := p.Rows(p.Lists(), p.Slots, 4)
	pages, err := r.arena.Alloc("pages", 4*rows.Elements())
	if err != nil {
		return nil, err
	}
	counts, err := r.arena.Alloc("counts", 4*int64(p.Cache.Batch()*p.Lists()))
	if err != nil {
		return nil, err
	}
	k, err := r.first(s, plan.PageSelect)
	if err != nil {
		return nil, err
	}
	problem := r.LaunchProblem(p)
	workspace, err := k.Workspace(problem)
	if err != nil {
		return nil, err
	}
	err = RunOnce(k, problem, &kernel.PageSelectArgs{Scores: r.scores.Ptr(), SeqLens: r.SeqLens.Ptr(), Pages: pages.Ptr(), Counts: counts.Ptr(),
		Workspace: workspace.Ptr(), ScoreBatchStride: r.rows.BatchStride, ScoreHeadStride: r.rows.RowStride,
		PagesBatchStride: rows.BatchStride, PagesListStride: rows.RowStride,
		Batch: int32(p.Cache.Batch()), KVHeads: int32(p.Cache.KVHeads), MaxPages: int32(p.maxGroups()), Slots: int32(p.Slots),
		SinkPages: int32(keep.SinkPages), RecentPages: int32(keep.RecentPages)})
	if err == nil && s.Locks.Rerank > 1 {
		rows, pages, counts, err = r.keepBest(s, p, rows, pages, counts)
	}
	if err != nil {
		return nil, err
	}
	chosen, err := readInts(pages)
	if err != nil {
		return nil, err
	}
	live, err := readInts(counts)
	if err != nil {
		return nil, err
	}
	out := make(reference.Lists, p.Cache.Batch())
	for b := range out {
		for list := range p.Lists() {
			at := rows.At(b, list)
			out[b] = append(out[b], chosen[at:at+int64(live[b*p.Lists()+list])])
		}
	}
	return out, nil
}

// keepBest reranks what page_select proposed: its lists of candidates become those of the budget.
func (r *pageRun) keepBest(s *specs.Spec, p *Problem, wide Rows, candidates, proposed *Buffer) (Rows, *Buffer, *Buffer, error) {
	rows := p.Rows(p.Lists(), p.Budget.Slots, 4)
	pages, err := r.arena.Alloc("pages", 4*rows.Elements())
	if err != nil {
		return rows, nil, nil, err
	}
	counts, err := r.arena.Alloc("counts", 4*int64(p.Cache.Batch()*p.Lists()))
	if err != nil {
		return rows, nil, nil, err
	}
	k, err := r.first(s, plan.PageRerank)
	if err != nil {
		return rows, nil, nil, err
	}
	problem := r.LaunchProblem(p)
	workspace, err := k.Workspace(problem)
	if err == nil {
		err = workspace.Fill(0) // another problem's counters lay elsewhere
	}
	if err != nil {
		return rows, nil, nil, err
	}
	return rows, pages, counts, RunOnce(k, problem, &kernel.PageRerankArgs{Cache: r.Args(), Q: r.DeviceProblem.Q.Ptr(), Scores: r.scores.Ptr(),
		Candidates: candidates.Ptr(), CandidateCounts: proposed.Ptr(), Pages: pages.Ptr(), Counts: counts.Ptr(), Workspace: workspace.Ptr(),
		QBatchStride: r.QRows.BatchStride, QHeadStride: r.QRows.RowStride, ScoreBatchStride: r.rows.BatchStride, ScoreHeadStride: r.rows.RowStride,
		CandidatesBatchStride: wide.BatchStride, CandidatesListStride: wide.RowStride, PagesBatchStride: rows.BatchStride, PagesListStride: rows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap), CandidateSlots: int32(p.Slots), Slots: int32(p.Budget.Slots),
		SinkPages: int32(p.Budget.SinkPages), RecentPages: int32(p.Budget.RecentPages)})
}

func readInts(b *Buffer) ([]int32, error) {
	data, err := b.Read()
	return Int32s(data), err
}

func (r *pageRun) readScores() (reference.Scores, error) {
	out := reference.Scores{Score: make([][][]float64, r.Cache.Batch())}
	data, err := r.scores.Read()
	if err != nil {
		return out, err
	}
	all := Float32s(data)
	for b := range out.Score {
		for h := range r.Problem.Q.Heads {
			at := r.rows.At(b, h)
			row := make([]float64, r.Groups(b))
			for i := range row {
				row[i] = float64(all[at+int64(i)])
			}
			out.Score[b] = append(out.Score[b], row)
		}
	}
	return out, nil
}
