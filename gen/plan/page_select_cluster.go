package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/specs"
)

// selectClusterShape is one choice of page_select_cluster: a cluster holds rows of up to threads * cluster * pages pages in registers
// and takes the radix kernel for longer ones.
type selectClusterShape struct {
	threads, cluster, pages int
}

// selectClusterShapes, by the row that they hold. More pages a thread cost time on short rows too (instructions, not bytes), so the
// default is the first that holds the spec's longest row.
var selectClusterShapes = []selectClusterShape{
	{512, 8, 2}, {512, 8, 4}, {1024, 8, 4}, {512, 8, 8}, {512, 16, 4}, {512, 16, 8}, {1024, 8, 1}, {256, 8, 4}, {512, 4, 4}, {512, 16, 2},
}

// longestRow is the pages of the spec's longest workload.
func longestRow(s *specs.Spec) int {
	longest := 0
	for _, w := range s.Workloads {
		longest = max(longest, (w.Context+s.Cache.PageSize-1)/s.Cache.PageSize)
	}
	return longest
}

// selectClusterCandidates are the candidates of page_select_cluster, and those that cannot be, with the reason.
func selectClusterCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	for _, shape := range selectClusterShapes {
		c := selectCandidate(s, t, selectShape{Hopper, shape.threads, shape.cluster})
		c.Params = append(c.Params, Param{"pages", shape.pages})
		c.Constants = append(c.Constants, Constant{"kPages", fmt.Sprint(shape.pages)})
		c.Header, c.Kernel = "kernels/page_select_cluster.cuh", "kvloom::page_select_cluster"
		if reason := selectClusterRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	row := longestRow(s)
	holds := func(c Candidate) bool { return c.Param("threads")*c.Param("cluster")*c.Param("pages") >= row }
	if i := slices.IndexFunc(candidates, holds); i > 0 {
		first := candidates[i]
		candidates = slices.Insert(slices.Delete(candidates, i, i+1), 0, first)
	}
	return candidates, rejected
}

// selectMostHeads is the largest group whose masses a thread keeps in registers.
const selectMostHeads = 16

func selectClusterRefusal(s *specs.Spec, t Target, shape selectClusterShape, dynamic int) string {
	heads := headsPerList(s)
	if s.Locks.Combine != "share_average" {
		return fmt.Sprintf("%s: the cluster form ranks averages of shares alone", s.Locks.Combine)
	}
	if heads > selectMostHeads {
		return fmt.Sprintf("%d heads a list: the cluster form keeps the masses of at most %d in registers", heads, selectMostHeads)
	}
	width := 1
	for width < heads {
		width *= 2
	}
	kept := shape.pages * heads
	if kept > 64 {
		kept = heads // read twice
	}
	const others = 28 // addresses, counters and what the radix kernel needs
	if need, have := kept+shape.pages+2*width+others, t.RegistersPerSM/shape.threads; need > have {
		return fmt.Sprintf("%d pages of %d heads a thread need about %d registers, %d threads leave %d", shape.pages, heads, need, shape.threads, have)
	}
	return selectRefusal(s, t, selectShape{Hopper, shape.threads, shape.cluster}, dynamic)
}
