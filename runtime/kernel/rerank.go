package kernel

import (
	"sync"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// PageRerank is the work between PageSelect and PageAttend of a spec with an exact rerank: PageSelect then proposes Model.Candidates pages
// a list, of which PageRerank keeps Model.Slots.
const PageRerank = "page_rerank"

// Reranks reports whether the model's selection is reranked.
func (m Model) Reranks() bool { return m.Candidates > 0 }

// PageRerankAttend does what PageRerank and PageAttend do, in one launch: keys of chosen pages are not read again. Only bundles that
// Attends reports have it.
const PageRerankAttend = "page_rerank_attend"

// Attends reports whether PageRerankAttend is there to take the place of PageRerank and PageAttend: DecodeLayer then uses it.
func (s *Set) Attends() bool { return s.works[rerankAttendWork] != nil }

// PageRerankAttend scores the candidates of every list exactly, keeps the best, and attends to them.
func (s *Set) PageRerankAttend(st device.Stream, a *PageRerankAttendArgs, w Workload) error {
	if err := s.CheckPageRerankAttend(a); err != nil {
		return err
	}
	return s.launch(st, rerankAttendWork, w, s.rerankProblem(&a.Rerank), 0, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// PageSelectRerankAttend does what PageSelect and PageRerankAttend do, in one launch: the blocks that propose a list's candidates rerank them
// and attend to what they keep. Bundles have it where there is a kernel for the model on their device.
const PageSelectRerankAttend = "page_select_rerank_attend"

// PageSelectRerankAttend proposes the candidates of every list, keeps the best by exact scores, and attends to them.
func (s *Set) PageSelectRerankAttend(st device.Stream, a *PageSelectRerankAttendArgs, w Workload) error {
	if err := s.CheckPageSelectRerankAttend(a); err != nil {
		return err
	}
	return s.launch(st, selectRerankAttendWork, w, s.selectProblem(&a.Select), a.Select.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// CheckPageSelectRerankAttend is CheckPageSummary for page_select_rerank_attend.
func (s *Set) CheckPageSelectRerankAttend(a *PageSelectRerankAttendArgs) error {
	if a == nil {
		return &ArgumentError{PageSelectRerankAttend, "arguments", "are nil"}
	}
	if err := s.CheckPageSelect(&a.Select); err != nil {
		return err
	}
	if err := s.CheckPageRerankAttend(&a.Both); err != nil {
		return err
	}
	c := checker{work: PageSelectRerankAttend}
	c.proposed(&a.Select, &a.Both.Rerank)
	y := &a.Both.Rerank
	c.selectsGroups(&s.bundle.Model, &a.Select, &y.Cache)
	if a.Select.Scores != y.Scores || a.Select.Masses != y.Masses || a.Select.ScoreBatchStride != y.ScoreBatchStride || a.Select.ScoreHeadStride != y.ScoreHeadStride {
		c.fail("rerank.scores", "masses and their strides must be those that select reads")
	}
	if a.Select.SeqLens != y.Cache.SeqLens || a.Select.Batch != y.Cache.Batch || a.Select.KVHeads != y.Cache.KVHeads {
		c.fail("rerank.cache", "must be of the requests and KV heads that select chooses for")
	}
	return c.result()
}

// threeArgs keeps the arguments of a layer's select, rerank and attend off the per-launch heap.
var threeArgs = sync.Pool{New: func() any { return new(PageSelectRerankAttendArgs) }}

// selectRerankAttend is all of a layer behind its scores, whose arguments are checked.
func (s *Set) selectRerankAttend(st device.Stream, a *LayerArgs, p Problem, index int) error {
	all := threeArgs.Get().(*PageSelectRerankAttendArgs)
	defer threeArgs.Put(all)
	all.Select = a.Select
	all.Both = a.rerankAttend()
	return s.launchKernel(st, s.works[selectRerankAttendWork], index, p, a.Select.Workspace, unsafe.Pointer(all), unsafe.Sizeof(*all), true)
}

// rerankAttend are the arguments of the rerank and the attention in one launch.
func (a *LayerArgs) rerankAttend() PageRerankAttendArgs {
	return PageRerankAttendArgs{Rerank: *a.Rerank, Out: a.Attend.Out, LSE: a.Attend.LSE, OutBatchStride: a.Attend.OutBatchStride, OutHeadStride: a.Attend.OutHeadStride}
}

// bothArgs keeps the arguments of a layer's rerank and attend off the per-launch heap.
var bothArgs = sync.Pool{New: func() any { return new(PageRerankAttendArgs) }}

// rerankAttend is the end of a layer whose arguments are checked.
func (s *Set) rerankAttend(st device.Stream, a *LayerArgs, w Workload) error {
	both := bothArgs.Get().(*PageRerankAttendArgs)
	defer bothArgs.Put(both)
	*both = a.rerankAttend()
	return s.launch(st, rerankAttendWork, w, s.rerankProblem(a.Rerank), 0, unsafe.Pointer(both), unsafe.Sizeof(*both), true)
}

// CheckPageRerankAttend is CheckPageSummary for page_rerank_attend.
func (s *Set) CheckPageRerankAttend(a *PageRerankAttendArgs) error {
	if a == nil {
		return &ArgumentError{PageRerankAttend, "arguments", "are nil"}
	}
	if err := s.CheckPageRerank(&a.Rerank); err != nil {
		return err
	}
	c, m := checker{work: PageRerankAttend}, &s.bundle.Model
	c.heads(m, &a.Rerank.Cache, &outFields, a.Out, a.OutBatchStride, a.OutHeadStride)
	c.optional("lse", a.LSE, 4)
	return c.result()
}

// PageRerank scores the candidates of every list exactly and keeps the best.
func (s *Set) PageRerank(st device.Stream, a *PageRerankArgs, w Workload) error {
	if err := s.CheckPageRerank(a); err != nil {
		return err
	}
	return s.launch(st, rerankWork, w, s.rerankProblem(a), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// rerankProblem has the candidates as its slots.
func (s *Set) rerankProblem(a *PageRerankArgs) Problem {
	p := s.problem(&a.Cache)
	p.Slots = int64(a.CandidateSlots)
	return p
}

// CheckPageRerank is CheckPageSummary for page_rerank.
func (s *Set) CheckPageRerank(a *PageRerankArgs) error {
	if a == nil {
		return &ArgumentError{PageRerank, "arguments", "are nil"}
	}
	c, m := checker{work: PageRerank}, &s.bundle.Model
	c.cache(m, &a.Cache, false)
	c.groups(m, &a.Cache)
	c.heads(m, &a.Cache, &qFields, a.Q, a.QBatchStride, a.QHeadStride)
	c.count("slots", a.Slots)
	c.count("candidate_slots", a.CandidateSlots)
	if a.SinkPages < 0 || a.RecentPages < 0 || int64(a.SinkPages)+int64(a.RecentPages) > int64(a.Slots) {
		c.fail("slots", "is %d, %d sink and %d recent pages are always selected", a.Slots, a.SinkPages, a.RecentPages)
	}
	if m.Candidates > 0 && int(a.CandidateSlots) > m.Candidates {
		c.fail("candidate_slots", "is %d, the bundle's kernels rank at most %d candidates", a.CandidateSlots, m.Candidates)
	}
	if pages := int64(a.CandidateSlots) * int64(m.GroupPages()); pages < int64(a.Slots) {
		c.fail("candidate_slots", "is %d, %d pages and fewer than the %d slots to fill", a.CandidateSlots, pages, a.Slots)
	}
	c.ptr("scores", a.Scores, 4)
	c.optional("masses", a.Masses, massBytes)
	c.ptr("candidates", a.Candidates, 4)
	c.ptr("candidate_counts", a.CandidateCounts, 4)
	c.ptr("pages", a.Pages, 4)
	c.ptr("counts", a.Counts, 4)
	c.optional("workspace", a.Workspace, vectorBytes)
	batch, lists := int(a.Cache.Batch), m.Lists(int(a.Cache.KVHeads))
	c.stride("score_batch_stride", a.ScoreBatchStride, int64(m.Groups(a.Cache.MaxPages)), 1, batch)
	c.stride("score_head_stride", a.ScoreHeadStride, int64(m.Groups(a.Cache.MaxPages)), 1, int(a.Cache.KVHeads)*m.Group())
	c.stride("candidates_batch_stride", a.CandidatesBatchStride, int64(a.CandidateSlots), 1, batch)
	c.stride("candidates_list_stride", a.CandidatesListStride, int64(a.CandidateSlots), 1, lists)
	c.stride("pages_batch_stride", a.PagesBatchStride, int64(a.Slots), 1, batch)
	c.stride("pages_list_stride", a.PagesListStride, int64(a.Slots), 1, lists)
	c.logits(m, a.SoftmaxScale, a.LogitSoftcap)
	return c.result()
}

// checkReranked checks that a layer's rerank reads what its select writes and writes what its attend reads.
func (c *checker) checkReranked(a *LayerArgs) {
	x, y, z := &a.Select, a.Rerank, &a.Attend
	if y.Scores != a.Score.Scores || y.ScoreBatchStride != a.Score.ScoreBatchStride || y.ScoreHeadStride != a.Score.ScoreHeadStride {
		c.fail("rerank.scores", "and their strides must be those that score writes")
	}
	if y.Masses != 0 && y.Masses != a.Score.Masses {
		c.fail("rerank.masses", "must be those that score writes, or 0")
	}
	c.proposed(x, y)

	if z.Pages != y.Pages || z.Counts != y.Counts || z.PagesBatchStride != y.PagesBatchStride || z.PagesListStride != y.PagesListStride || z.Slots != y.Slots {
		c.fail("attend.pages", "counts, slots and their strides must be those that rerank writes")
	}
	if y.Cache.SeqLens != a.Score.Cache.SeqLens || y.Cache.Batch != a.Score.Cache.Batch || y.Cache.KVHeads != a.Score.Cache.KVHeads {
		c.fail("rerank.cache", "must be that of score")
	}
}

// proposed checks that a rerank reads what select writes.
func (c *checker) proposed(x *PageSelectArgs, y *PageRerankArgs) {
	if y.Candidates != x.Pages || y.CandidateCounts != x.Counts || y.CandidatesBatchStride != x.PagesBatchStride || y.CandidatesListStride != x.PagesListStride || y.CandidateSlots != x.Slots {
		c.fail("rerank.candidates", "counts, slots and their strides must be those that select writes")
	}
}
