package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const rerankMetric = "share left out, nats"

func init() { register(plan.PageRerank, checkPageRerank) }

// checkPageRerank compares page_rerank with float64: candidates are those that the reference's estimates propose, estimates are given
// as f32, keys are the case's. The lists must be a right choice among the candidates by exact scores within four times the score bound,
// the same on every launch, and the counters of the workspace left zeroed.
func checkPageRerank(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, rerankMetric, Cases(s, o), func(k *Kernel, cs Case) []Result {
		if cs.HeadLens { // of compacted caches, which have no page summaries
			return nil
		}
		return []Result{rerankCase(e, s, k, cs, o.Seed)}
	})
}

func rerankCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64) Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return Failed(c.Name, rerankMetric, err)
	}
	p.squeeze()
	a := e.NewArena()
	t := NewTally(c.Name, rerankMetric, EndToEndBound)
	run, err := newRerankRun(e, k, p, a)
	if err == nil {
		err = run.all(t)
	}
	if err == nil && p.Cache.Batch() == 1 {
		err = run.allMassed(t, a)
	}
	t.Err(errors.Join(err, a.Free()))
	return t.Result()
}

// squeeze makes the budget leave pages out of short contexts too.
func (p *Problem) squeeze() {
	longest := 1
	for _, n := range p.Case.longest() {
		longest = max(longest, p.Cache.Pages(n))
	}
	p.Budget.Slots = max(min(p.Slots, longest/4), p.Budget.SinkPages+p.Budget.RecentPages, 1)
	p.Slots = p.Budget.Slots
}

// rerankRun is one case on the device.
type rerankRun struct {
	*DeviceProblem
	env                                    *Env
	kernel                                 *Kernel
	summaries                              reference.Summaries
	launch                                 launch.Problem
	scoreRows, wideRows, listRows          Rows
	scores, wide, wideCounts, pages, count *Buffer
	workspace                              *Buffer
	budget                                 reference.Budget // of what is proposed
	proposals                              reference.Lists  // of this launch
	args                                   kernel.PageRerankArgs
	attended                               *rerankOutputs // of page_rerank_attend
	selected                               *Tally         // of page_select_rerank_attend, which proposes too; nil: candidates are given
	masses                                 *Buffer        // beside the scores; nil: none
	mislead                                float64        // nats that every third complete page's estimate is too high
}

func newRerankRun(e *Env, k *Kernel, p *Problem, a *Arena) (*rerankRun, error) {
	d, err := p.Upload(a)
	if err != nil {
		return nil, err
	}
	r := &rerankRun{DeviceProblem: d, env: e, kernel: k, launch: e.LaunchProblem(p), summaries: p.buildAll(), budget: p.proposals()}
	candidates := r.budget.Slots
	r.launch.Slots = int64(candidates)
	r.scoreRows = p.Rows(p.Q.Heads, p.maxGroups(), 4)
	r.wideRows, r.listRows = p.Rows(p.Lists(), candidates, 4), p.Rows(p.Lists(), p.Slots, 4)
	counts := 4 * int64(p.Cache.Batch()*p.Lists())
	for _, b := range []struct {
		into **Buffer
		name string
		size int64
	}{
		{&r.scores, "scores", 4 * r.scoreRows.Elements()}, {&r.wide, "candidates", 4 * r.wideRows.Elements()}, {&r.wideCounts, "candidate counts", counts},
		{&r.pages, "pages", 4 * r.listRows.Elements()}, {&r.count, "counts", counts},
	} {
		if *b.into, err = a.Alloc(b.name, b.size); err != nil {
			return nil, err
		}
	}
	// Its counters lie where the problem puts them: where another problem's left its sums.
	if r.workspace, err = k.Workspace(r.launch); err == nil {
		err = r.workspace.Fill(0)
	}
	if err != nil {
		return nil, err
	}
	r.args = kernel.PageRerankArgs{
		Cache: d.Args(), Q: d.Q.Ptr(), Scores: r.scores.Ptr(), Candidates: r.wide.Ptr(), CandidateCounts: r.wideCounts.Ptr(), Pages: r.pages.Ptr(),
		Counts: r.count.Ptr(), Workspace: r.workspace.Ptr(), QBatchStride: d.QRows.BatchStride, QHeadStride: d.QRows.RowStride,
		ScoreBatchStride: r.scoreRows.BatchStride, ScoreHeadStride: r.scoreRows.RowStride,
		CandidatesBatchStride: r.wideRows.BatchStride, CandidatesListStride: r.wideRows.RowStride,
		PagesBatchStride: r.listRows.BatchStride, PagesListStride: r.listRows.RowStride,
		SoftmaxScale: float32(p.Logits.Scale), LogitSoftcap: float32(p.Logits.Softcap), CandidateSlots: int32(candidates), Slots: int32(p.Slots),
		SinkPages: int32(p.Budget.SinkPages), RecentPages: int32(p.Budget.RecentPages),
	}
	return r, nil
}

// all captures the launch once and replays it, twice at every length of the case.
func (r *rerankRun) all(t *Tally) error {
	return r.env.EachLaunch(r.Case, r.enqueue, func(graph *Replay, at int) error {
		r.SetLaunch(at)
		return r.once(t, graph, at)
	})
}

func (r *rerankRun) once(t *Tally, graph *Replay, at int) error {
	estimates := r.propose()
	if err := errors.Join(r.WriteLens(), r.put(estimates)); err != nil {
		return err
	}
	var first []byte
	for try := range 2 {
		if err := errors.Join(r.pages.Poison(), r.count.Poison(), r.attended.poison(), graph.Run()); err != nil {
			return err
		}
		pages, err := r.pages.Read()
		if err != nil {
			return err
		}
		counts, err := r.count.Read()
		if err != nil {
			return err
		}
		if err := r.Arena.Check(); err != nil {
			return err
		}
		if err := r.readProposals(at, estimates); err != nil {
			return err
		}
		if err := r.attended.once(at, try, Int32s(pages), Int32s(counts)); err != nil {
			return err
		}
		if try == 1 {
			if !bytes.Equal(first, append(pages, counts...)) {
				t.Fail("launch %d: a second launch chose other pages", at)
			}
			continue
		}
		first = append(append([]byte{}, pages...), counts...)
		r.compare(t, at, estimates, Int32s(pages), Int32s(counts))
	}
	if r.kernel.Candidate.Geometry.WorkspaceBytes(r.launch) == 0 {
		return nil
	}
	head, err := r.workspace.ReadAt(0, int64(4*r.Cache.Batch()*r.Lists()))
	if err != nil {
		return err
	}
	for i, b := range head {
		if b != 0 {
			return fmt.Errorf("byte %d of the workspace's counters is left %#02x", i, b)
		}
	}
	return nil
}

// propose scores as page_score does, in float64 rounded to f32, and chooses the candidates. Complete pages get an error on top, a
// different one each page and head, so that the estimates mislead.
func (r *rerankRun) propose() reference.Scores {
	est := r.Cache.Score(r.summaries, r.Problem.Q, r.Logits)
	for b, heads := range est.Score {
		complete := int(r.Cache.SeqLens[b]) / r.Cache.SummaryTokens()
		for h, row := range heads {
			for page := range row {
				if page < complete {
					row[page] += 0.7 * math.Sin(float64(13*page+7*h))
					if page%3 == 0 {
						row[page] += r.mislead
					}
				}
				row[page] = float64(float32(row[page]))
			}
		}
	}
	r.proposals = est.Select(r.Rule, r.Group, r.budget)
	return est
}

func (r *rerankRun) put(est reference.Scores) error {
	scores := make([]float32, r.scoreRows.Elements())
	wide, counts := make([]int32, r.wideRows.Elements()), make([]int32, r.Cache.Batch()*r.Lists())
	for i := range wide {
		wide[i] = -1
	}
	for b, heads := range est.Score {
		for h, row := range heads {
			for page, x := range row {
				scores[r.scoreRows.At(b, h)+int64(page)] = float32(x)
			}
		}
		for list, chosen := range r.proposals[b] {
			counts[b*r.Lists()+list] = int32(len(chosen))
			copy(wide[r.wideRows.At(b, list):], chosen)
		}
	}
	if r.masses != nil {
		if err := errors.Join(r.masses.Write(BytesOfFloat32(massesOf(scores, r.scoreRows, r.Problem.Q.Heads, r.Groups(0)))), r.masses.Freeze()); err != nil {
			return err
		}
	}
	if r.selected != nil {
		return errors.Join(r.scores.Write(BytesOfFloat32(scores)), r.scores.Freeze(), r.wide.Poison(), r.wideCounts.Poison())
	}
	return errors.Join(r.scores.Write(BytesOfFloat32(scores)), r.wide.Write(BytesOfInt32(wide)), r.wideCounts.Write(BytesOfInt32(counts)))
}

// compare judges one launch's lists.
func (r *rerankRun) compare(t *Tally, at int, est reference.Scores, pages, counts []int32) {
	rows := r.Problem.Q.Heads / r.Lists()
	for b, lists := range r.proposals {
		for list, proposed := range lists {
			want := min(r.Slots, len(r.Cache.GroupPages(proposed, r.Pages(b))))
			got := pages[r.listRows.At(b, list):][:r.Slots]
			if n := int(counts[b*r.Lists()+list]); n != want {
				t.Fail("launch %d, request %d, list %d: %d pages, want %d", at, b, list, n, want)
				continue
			}
			for i, page := range got[want:] {
				if page != -1 {
					t.Fail("launch %d, request %d, list %d: slot %d holds %d, not -1", at, b, list, want+i, page)
				}
			}
			if len(proposed) == 0 {
				continue
			}
			r.judge(t, fmt.Sprintf("launch %d, request %d, list %d", at, b, list), b, est.Score[b][list*rows:(list+1)*rows], list*rows, proposed, got[:want])
		}
	}
	t.Passed(1)
}

// judge checks one list against the exact scores inside the shares: on the candidates alone, with the unit of all pages.
func (r *rerankRun) judge(t *Tally, where string, b int, est [][]float64, firstHead int, proposed, got []int32) {
	candidates, of, bound := r.rerankValues(b, firstHead, proposed, est)
	place := map[int32]int{}
	for i, page := range candidates {
		place[page] = i
	}
	var chosen []int32
	for i, page := range got {
		at, ok := place[page]
		if !ok || i > 0 && page <= got[i-1] {
			t.Fail("%s: slot %d holds page %d, no candidate or out of order", where, i, page)
			return
		}
		chosen = append(chosen, int32(at))
	}
	excess, err := r.Budget.CheckValues(r.Rule, of, chosen, bound)
	if err != nil && excess <= bound {
		t.Fail("%s: %v", where, err)
		return
	}
	t.Add(excess, bound, func() string { return fmt.Sprintf("%s: %v", where, err) })
}
