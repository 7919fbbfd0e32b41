package verify

import (
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// chainRerank is what a chain has between select and attend where the spec reranks.
type chainRerank struct {
	family                   plan.Family
	kernel                   *Kernel
	budget                   reference.Budget // of what is proposed to it
	rows                     Rows
	pages, counts, workspace *Buffer
}

// rerankWays are the families that can rerank a chain of these candidates: [""] where the spec does not.
func (e *Env) rerankWays(s *specs.Spec, candidates []plan.Candidate) []plan.Family {
	if s.Locks.Rerank <= 1 {
		return []plan.Family{""}
	}
	ways := []plan.Family{plan.PageRerank}
	if candidates[1].Form != plan.Hopper {
		return ways
	}
	for _, f := range []plan.Family{plan.PageRerankAttend, plan.PageSelectRerankAttend} {
		if _, err := e.first(s, f); err == nil {
			ways = append(ways, f)
		}
	}
	return ways
}

func newChainRerank(e *Env, family plan.Family, p *Problem, a *Arena) (*chainRerank, error) {
	k, err := e.first(p.Spec, family)
	if err != nil {
		return nil, err
	}
	w := &chainRerank{family: family, kernel: k, budget: p.proposals()}
	w.rows = p.Rows(p.Lists(), w.budget.Slots, 4)
	if w.pages, err = a.Alloc("candidates", 4*w.rows.Elements()); err != nil {
		return nil, err
	}
	if w.counts, err = a.Alloc("candidate counts", 4*int64(p.Cache.Batch()*p.Lists())); err != nil {
		return nil, err
	}
	problem := e.LaunchProblem(p)
	problem.Slots = int64(w.budget.Slots)
	if w.workspace, err = k.Workspace(problem); err != nil {
		return nil, err
	}
	return w, w.workspace.Fill(0)
}

// launchOf is the problem of link i: select proposes more than attend reads.
func (r *chainRun) launchOf(i int) launch.Problem {
	p := r.launch
	if i == 2 && r.rerank != nil {
		p.Slots = int64(r.rerank.budget.Slots)
	}
	return p
}

// enqueueRerank puts what lies behind the scores on a stream.
func (r *chainRun) enqueueRerank(s device.Stream, cache kernel.KVCache, attend *kernel.PageAttendArgs) error {
	w := r.rerank
	args := kernel.PageRerankArgs{Cache: cache, Q: r.DeviceProblem.Q.Ptr(), Scores: r.scores.Ptr(), Masses: r.masses.Ptr(),
		Candidates: w.pages.Ptr(), CandidateCounts: w.counts.Ptr(), Pages: r.pages.Ptr(), Counts: r.counts.Ptr(), Workspace: w.workspace.Ptr(),
		QBatchStride: r.QRows.BatchStride, QHeadStride: r.QRows.RowStride,
		ScoreBatchStride: r.scoreRows.BatchStride, ScoreHeadStride: r.scoreRows.RowStride,
		CandidatesBatchStride: w.rows.BatchStride, CandidatesListStride: w.rows.RowStride,
		PagesBatchStride: r.listRows.BatchStride, PagesListStride: r.listRows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap), CandidateSlots: int32(w.budget.Slots), Slots: int32(r.Slots),
		SinkPages: int32(r.Budget.SinkPages), RecentPages: int32(r.Budget.RecentPages)}
	both := kernel.PageRerankAttendArgs{Rerank: args, Out: attend.Out, LSE: attend.LSE, OutBatchStride: attend.OutBatchStride, OutHeadStride: attend.OutHeadStride}
	p, sel := r.launchOf(2), r.selectArgs()
	switch w.family {
	case plan.PageSelectRerankAttend:
		sel.Workspace = w.workspace.Ptr()
		return Enqueue(w.kernel, s, p, &kernel.PageSelectRerankAttendArgs{Select: *sel, Both: both})
	case plan.PageRerankAttend:
		return errors.Join(Enqueue(r.kernels[2], s, p, sel), Enqueue(w.kernel, s, p, &both))
	}
	return errors.Join(Enqueue(r.kernels[2], s, p, sel), Enqueue(w.kernel, s, p, &args), Enqueue(r.kernels[3], s, r.launch, attend))
}

// judgeReranked checks one list end to end: every chosen page must be a possible candidate by float64's estimates, within the bound of
// the plain chain, and of the pages that are candidates beyond doubt none may be left out that exact scores put above a chosen one.
func (r *chainRun) judgeReranked(at, b, list int, estimates [][]float64, chosen []int32) {
	proposed := r.rerank.budget.Choose(r.Rule.Values(estimates))
	candidates, of, bound := r.rerankValues(b, list*len(estimates), proposed, estimates)
	place := map[int32]int{}
	for i, page := range candidates {
		place[page] = i
	}
	var indices []int32
	for _, page := range chosen {
		i, ok := place[page]
		if !ok { // a candidate of the device and not of float64: near the edge of the candidates
			r.edge(at, b, list, estimates, proposed, page, bound)
			return
		}
		indices = append(indices, int32(i))
	}
	excess, err := r.Budget.CheckValues(r.Rule, of, indices, bound)
	if err != nil && excess <= bound {
		r.chosen.Fail("launch %d, request %d, list %d: %v", at, b, list, err)
		return
	}
	r.chosen.Add(excess, bound, func() string { return fmt.Sprintf("launch %d, request %d, list %d: %v", at, b, list, err) })
}

// edge judges a page that the device proposed and float64 did not: the estimate of its group must be within the bound of the worst proposal's.
func (r *chainRun) edge(at, b, list int, estimates [][]float64, proposed []int32, page int32, bound float64) {
	values, keep := r.Rule.Values(estimates), r.rerank.budget
	worst, group := math.Inf(1), int(page)/r.Spec.SummaryPages()
	for _, c := range proposed {
		if int(c) >= keep.SinkPages && int(c) < len(values)-keep.RecentPages {
			worst = min(worst, values[c])
		}
	}
	below := worst - values[group]
	if !r.Rule.Logarithmic() {
		below = math.Log(worst / values[group])
	}
	r.chosen.Add(max(below, 0), bound, func() string {
		return fmt.Sprintf("launch %d, request %d, list %d: page %d was proposed %g nats below the worst proposal", at, b, list, page, below)
	})
}
