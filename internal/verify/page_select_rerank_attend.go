package verify

import (
	"fmt"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/kernel"
)

func init() { register(plan.PageSelectRerankAttend, checkRerankAttend) }

func (r *rerankRun) selectingArgs() *kernel.PageSelectRerankAttendArgs {
	b := r.attended.args
	a := &b.Rerank
	return &kernel.PageSelectRerankAttendArgs{Both: b, Select: kernel.PageSelectArgs{Scores: a.Scores, Masses: a.Masses, SeqLens: r.SeqLens.Ptr(),
		Pages: a.Candidates, Counts: a.CandidateCounts, Workspace: r.workspace.Ptr(),
		ScoreBatchStride: a.ScoreBatchStride, ScoreHeadStride: a.ScoreHeadStride,
		PagesBatchStride: a.CandidatesBatchStride, PagesListStride: a.CandidatesListStride,
		Batch: int32(r.Cache.Batch()), KVHeads: int32(r.Cache.KVHeads), MaxPages: int32(r.maxGroups()), Slots: a.CandidateSlots,
		SinkPages: int32(r.budget.SinkPages), RecentPages: int32(r.budget.RecentPages)}}
}

// readProposals judges what the launch proposed by the estimates, and takes it for the rerank's candidates.
func (r *rerankRun) readProposals(at int, est reference.Scores) error {
	if r.selected == nil {
		return nil
	}
	pages, err := r.wide.Read()
	if err != nil {
		return err
	}
	counts, err := r.wideCounts.Read()
	if err != nil {
		return err
	}
	lists, err := KernelLists(r.wideRows, Int32s(pages), Int32s(counts))
	if err != nil {
		return err
	}
	budget, heads := r.budget, r.Problem.Q.Heads/r.Problem.Lists()
	for b := range lists {
		for list, proposed := range lists[b] {
			n := r.Groups(b)
			if want := min(budget.Slots, n); len(proposed) != want {
				return fmt.Errorf("request %d, list %d: %d candidates, the contract wants %d of %d pages", b, list, len(proposed), want, n)
			}
			if n == 0 {
				continue
			}
			excess, err := JudgeSelection(r.Rule, budget, est.Score[b][list*heads:(list+1)*heads], proposed)
			if err != nil {
				return fmt.Errorf("request %d, list %d: %w", b, list, err)
			}
			r.selected.Add(excess, SelectBound, func() string { return fmt.Sprintf("launch %d, request %d, list %d", at, b, list) })
		}
	}
	r.selected.Passed(1)
	r.proposals = lists
	return nil
}
