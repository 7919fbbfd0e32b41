package kernel

import (
	"errors"
	"fmt"
	"math"
	"sync"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// geometries keeps launch descriptions off the per-launch heap: a description handed through an interface would be allocated anew.
var geometries = sync.Pool{New: func() any { return new(device.Launch) }}

// PageSummary summarises every page that became complete since built_lens and advances built_lens. newPages is how many pages a
// request gains, as the grid is sized for it; any number stays right. w picks the tuned kernel.
//
// All launch functions enqueue on the caller's stream and thread; they allocate nothing, never wait, and may be captured. The arguments
// are copied before they return. Each launch waits for what lies before it in the stream; DecodeLayer lets the kernels of a layer overlap.
func (s *Set) PageSummary(st device.Stream, a *PageSummaryArgs, w Workload, newPages int) error {
	if err := s.CheckPageSummary(a); err != nil {
		return err
	}
	p := s.problem(&a.Cache)
	p.NewPages = int64(newPages)
	return s.launch(st, summaryWork, w, p, a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// PageScore writes the score of every page for every query head: equation 2 for complete pages, the exact log-sum-exp for the page
// that is still filling.
func (s *Set) PageScore(st device.Stream, a *PageScoreArgs, w Workload) error {
	if err := s.CheckPageScore(a); err != nil {
		return err
	}
	return s.launch(st, scoreWork, w, s.problem(&a.Cache), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// PageSelect picks min(slots, pages) pages a list.
func (s *Set) PageSelect(st device.Stream, a *PageSelectArgs, w Workload) error {
	if err := s.CheckPageSelect(a); err != nil {
		return err
	}
	return s.launch(st, selectWork, w, s.selectProblem(a), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// PageAttend attends to the listed pages; without lists (Pages 0) to all of them, with the kernel that was tuned for that.
func (s *Set) PageAttend(st device.Stream, a *PageAttendArgs, w Workload) error {
	if err := s.CheckPageAttend(a); err != nil {
		return err
	}
	id := attendWork
	if a.Pages == 0 && s.works[denseWork] != nil {
		id = denseWork
	}
	return s.launch(st, id, w, s.attendProblem(a), a.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// problem fills in what follows from a cache.
func (s *Set) problem(c *KVCache) Problem {
	m := &s.bundle.Model
	kv := int(c.KVHeads)
	return Problem{Batch: int64(c.Batch), KVHeads: int64(kv), QHeads: int64(kv * m.Group()), Lists: int64(m.Lists(kv)),
		MaxPages: int64(c.MaxPages), NewPages: 1, Slots: int64(m.Slots), SMs: int64(s.info.SMs)}
}

// run launches behind another kernel of the library, which the kernel may overlap with where it waits for it.
func (s *Set) run(st device.Stream, id workID, w Workload, p Problem, workspace device.Ptr, args unsafe.Pointer, size uintptr) error {
	return s.launch(st, id, w, p, workspace, args, size, true)
}

// launch evaluates the geometry and launches. early: it may start before the launch before it has ended, if it waits for that.
func (s *Set) launch(st device.Stream, id workID, w Workload, p Problem, workspace device.Ptr, args unsafe.Pointer, size uintptr, early bool) error {
	lw := s.works[id]
	if lw == nil {
		return fmt.Errorf("bundle of %s: no work %q", s.bundle.Spec, workNames[id])
	}
	return s.launchKernel(st, lw, s.pick(lw, w), p, workspace, args, size, early)
}

// launchKernel is launch of a kernel that was picked.
func (s *Set) launchKernel(st device.Stream, lw *loadedWork, index int, p Problem, workspace device.Ptr, args unsafe.Pointer, size uintptr, early bool) error {
	g := &s.bundle.Kernels[index].Geometry
	if workspace == 0 && len(g.Workspace) > 0 {
		return fmt.Errorf("%s: workspace is null; allocate WorkspaceBytes and zero it once", lw.Name)
	}
	l := geometries.Get().(*device.Launch)
	defer geometries.Put(l)
	var err error
	if *l, err = g.Launch(p); err != nil {
		return fmt.Errorf("%s: %w", lw.Name, err)
	}
	l.Dependent = early && l.Dependent
	return s.fns[index].Launch(st, l, args, size)
}

// WorkspaceBytes is what a launch of the work needs at most for the problem, whatever kernel the lookup picks; of PageSelect, also what
// DecodeLayer needs where it selects and does more in one launch. Zero it once.
//
// A workspace belongs to one stream of launches of one work, kernel and problem: counters lie where the problem puts them. Zero it
// again, or keep another, when batch, heads, pages, slots or the workload of the lookup change.
func (s *Set) WorkspaceBytes(work string, p Problem) (int64, error) {
	p.SMs = int64(s.info.SMs)
	if m := &s.bundle.Model; m.Reranks() && (work == PageSelect || work == PageRerank || work == PageRerankAttend || work == PageSelectRerankAttend) {
		p.Slots = int64(m.Candidates)
	}
	for id, name := range workNames {
		lw := s.works[id]
		if name != work || lw == nil {
			continue
		}
		if lw.portable {
			return s.bundle.Kernels[lw.Portable].Geometry.WorkspaceBytes(p), nil
		}
		n := s.bundle.workspaceBytes(lw.Work, p)
		if work == PageSelect {
			n = max(n, s.togetherBytes(p))
		}
		return n, nil
	}
	return 0, fmt.Errorf("bundle of %s: no work %q", s.bundle.Spec, work)
}

// ProblemOf is the problem of a batch, for WorkspaceBytes: kvHeads KV heads here (fewer than the model's under tensor parallelism),
// maxPages columns of the block table, newPages pages gained a request by one build launch.
func (s *Set) ProblemOf(batch, kvHeads, maxPages, newPages int) Problem {
	p := s.problem(&KVCache{Batch: int32(batch), KVHeads: int32(kvHeads), MaxPages: int32(maxPages)})
	p.NewPages = int64(newPages)
	return p
}

// SummaryBytes is the memory of the summaries of a cache of blocks physical blocks.
func (m Model) SummaryBytes(blocks, kvHeads int) int64 {
	return int64(blocks) * int64(kvHeads) * int64(m.RecordBytes)
}

// SeqLen turns a count of pages and the tokens of the last one, as FlashInfer's callers have them, into a sequence length.
func (m Model) SeqLen(pages, lastPageLen int) (int32, error) {
	switch {
	case pages < 0 || lastPageLen < 0:
		return 0, fmt.Errorf("sequence of %d pages, last page of %d tokens: negative", pages, lastPageLen)
	case pages == 0 && lastPageLen != 0:
		return 0, fmt.Errorf("last_page_len is %d without a page", lastPageLen)
	case pages == 0:
		return 0, nil
	case lastPageLen < 1 || lastPageLen > m.PageSize:
		return 0, fmt.Errorf("last_page_len is %d, a page has 1 to %d tokens", lastPageLen, m.PageSize)
	}
	n := int64(pages-1)*int64(m.PageSize) + int64(lastPageLen)
	if n > math.MaxInt32 {
		return 0, errors.New("a sequence of more than 2^31-1 tokens")
	}
	return int32(n), nil
}
