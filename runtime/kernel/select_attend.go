package kernel

import (
	"sync"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// PageSelectAttend does what PageSelect and PageAttend do, in one launch: the blocks that choose a list attend to it. Bundles have it where
// there is a kernel for the model on their device.
const PageSelectAttend = "page_select_attend"

// PageSelectAttend picks the pages of every list, writes the lists, and attends to them. Attend's workspace is not used.
func (s *Set) PageSelectAttend(st device.Stream, a *PageSelectAttendArgs, w Workload) error {
	if err := s.CheckPageSelectAttend(a); err != nil {
		return err
	}
	return s.launch(st, selectAttendWork, w, s.selectProblem(&a.Select), a.Select.Workspace, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// CheckPageSelectAttend is CheckPageSummary for page_select_attend: both kernels' arguments, and that the lists are the same.
func (s *Set) CheckPageSelectAttend(a *PageSelectAttendArgs) error {
	if a == nil {
		return &ArgumentError{PageSelectAttend, "arguments", "are nil"}
	}
	if err := s.CheckPageSelect(&a.Select); err != nil {
		return err
	}
	if err := s.CheckPageAttend(&a.Attend); err != nil {
		return err
	}
	c := checker{work: PageSelectAttend}
	c.sameLists(&a.Select, &a.Attend)
	if a.Select.SeqLens != a.Attend.Cache.SeqLens || a.Select.Batch != a.Attend.Cache.Batch || a.Select.KVHeads != a.Attend.Cache.KVHeads {
		c.fail("attend.cache", "must be of the requests and KV heads that select chooses for")
	}
	return c.result()
}

// sameLists checks that attend reads the lists that select writes.
func (c *checker) sameLists(y *PageSelectArgs, z *PageAttendArgs) {
	if z.Pages != y.Pages || z.Counts != y.Counts || z.PagesBatchStride != y.PagesBatchStride || z.PagesListStride != y.PagesListStride || z.Slots != y.Slots {
		c.fail("attend.pages", "counts, slots and their strides must be those that select writes")
	}
}

// atOnce reports whether all clusters of a launch run at once with a block an SM. On 132 SMs seven clusters of 16 do, for not every group
// of neighbouring SMs holds a whole one.
func atOnce(grid [3]uint32, cluster, sms int) bool {
	blocks := int(grid[0]) * int(grid[1]) * int(grid[2])
	if cluster > 8 {
		return 8*blocks <= 7*sms
	}
	return blocks <= sms
}

// together is the kernel that selects and attends for a layer, or -1 where several launches are better: where there is none, or its
// clusters would take turns, each holding an SM for all works.
func (s *Set) together(work workID, p Problem, w Workload) int {
	lw := s.works[work]
	if lw == nil || lw.portable {
		return -1
	}
	index := s.pick(lw, w)
	g := &s.bundle.Kernels[index].Geometry
	if grid, err := g.Blocks(p); err != nil || !atOnce(grid, g.Cluster, s.info.SMs) {
		return -1
	}
	return index
}

// selectAttendArgs keeps the arguments of a layer's select and attend off the per-launch heap.
var selectAttendArgs = sync.Pool{New: func() any { return new(PageSelectAttendArgs) }}

// selectAttend is the end of a layer whose arguments are checked.
func (s *Set) selectAttend(st device.Stream, a *LayerArgs, p Problem, index int) error {
	both := selectAttendArgs.Get().(*PageSelectAttendArgs)
	defer selectAttendArgs.Put(both)
	both.Select, both.Attend = a.Select, a.Attend
	return s.launchKernel(st, s.works[selectAttendWork], index, p, a.Select.Workspace, unsafe.Pointer(both), unsafe.Sizeof(*both), true)
}

// togetherBytes is what the kernels need that select and do more in one launch, of a problem with select's slots.
func (s *Set) togetherBytes(p Problem) (n int64) {
	for _, id := range []workID{selectAttendWork, selectRerankAttendWork} {
		lw := s.works[id]
		if lw == nil || lw.portable {
			continue
		}
		n = max(n, s.bundle.workspaceBytes(lw.Work, p))
	}
	return n
}
