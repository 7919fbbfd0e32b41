package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// selectClusterShape is one choice of page_select_cluster: a cluster holds rows of up to threads * cluster * pages pages, and reads what
// is longer twice.
type selectClusterShape struct {
	threads, cluster, pages int
}

// selectClusterShapes, by the row that they hold. More pages a thread cost time on short rows too (instructions, not bytes), so the
// default is the first that holds the spec's longest row. Clusters of two are for batches: all lists at once, where eight blocks a list
// take turns.
var selectClusterShapes = []selectClusterShape{
	{512, 8, 2}, {512, 8, 4}, {1024, 8, 4}, {512, 16, 4}, {512, 8, 8}, {512, 16, 8}, {1024, 8, 1}, {256, 8, 4}, {512, 4, 4}, {512, 16, 2},
	{1024, 2, 4}, {512, 2, 8}, {512, 2, 4}, {512, 4, 2}, {512, 8, 1},
}

// clustersOf16 is how many clusters of 16 blocks run at once on 132 SMs with a block an SM; an eighth waits for the first.
const clustersOf16 = 7

// longestRow is the scores of the spec's longest workload: of pages, or of groups that share a summary.
func longestRow(s *specs.Spec) int {
	longest := 0
	for _, w := range s.Workloads {
		longest = max(longest, s.Groups(w.Context))
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
		ahead := selectAhead(s, shape, selectStage(headsPerList(s)))
		c.Constants = append(c.Constants, Constant{"kPages", fmt.Sprint(shape.pages)}, Constant{"kAhead", fmt.Sprint(ahead)})
		c.Header, c.Kernel = "kernels/page_select_cluster.cuh", "kvloom::page_select_cluster"
		c.Geometry.DynamicShared = max(c.Geometry.DynamicShared, selectClusterShared(headsPerList(s), shape))
		if shape.threads <= 512 { // others do not select by masses
			c.Geometry.DynamicShared = max(c.Geometry.DynamicShared, 4*selectBufferWords+ahead*selectTurn(headsPerList(s), shape.threads))
		}
		if reason := selectClusterRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	row := longestRow(s)
	holds := func(c Candidate) bool {
		waits := c.Param("cluster") == 16 && s.Attention.KVHeads > clustersOf16
		return c.Param("threads")*c.Param("cluster")*c.Param("pages") >= row && !waits
	}
	candidates = lead(candidates, holds)
	if single(s) && LeavesMasses(s) && headsPerList(s)*row > selectQuadsLead {
		candidates = lead(candidates, func(c Candidate) bool {
			quads := selectQuads(headsPerList(s), c.Param("threads"), c.Param("pages")) > 0
			tight := c.Param("threads")*c.Param("cluster")*c.Param("pages") < 2*row // no thread is idle
			return quads && tight && c.Param("cluster") >= 8 && holds(c)
		})
	}
	if 4*mostLists(s) > t.SMs { // 64 lists of 8192 pages: 7.9 us, where clusters of 8 take 19.8
		candidates = lead(candidates, func(c Candidate) bool { return c.Param("cluster") == 2 && holds(c) })
	}
	return candidates, rejected
}

// selectMostHeads is the largest group whose masses a thread keeps in registers.
const selectMostHeads = 16

// selectKept is how many of a thread's pages lie in registers; the others lie in shared memory.
func selectKept(heads, pages int) int {
	if pages*heads <= 48 {
		return pages
	}
	return 48 / heads
}

// selectQuadsLead is the number of scores a list above which candidates with quads are the default: 8 lists of 16384 pages of 4 heads 4.6 us in
// place of 5.8, of 8192 pages of 5 heads 4.2 in place of 4.4, of 4 heads 4.28 in place of 4.31.
const selectQuadsLead = 1 << 15

// selectQuads is quads_of: turns of four adjacent pages whose scores a thread reads into registers, where masses stand beside them.
func selectQuads(heads, threads, pages int) int {
	if threads > 512 || threads < 256 || pages%4 != 0 || pages*heads > 32 {
		return 0
	}
	return pages / 4
}

// padded is the smallest power of two that is not below n.
func padded(n int) int {
	p := 1
	for p < n {
		p *= 2
	}
	return p
}

// selectTurn is the size of a turn's scores in shared memory: a page of every thread, for all heads.
func selectTurn(heads, threads int) int { return 4 * heads * threads }

// selectStage is how many bytes of scores are on their way at once: what covers the latency of memory at wide groups, less where several
// blocks may share an SM.
func selectStage(heads int) int {
	if heads > 8 {
		return 128 << 10
	}
	return 64 << 10
}

// selectAhead is how many turns are on their way at once: those of the spec's longest row, or as many as a stage of so many bytes holds.
func selectAhead(s *specs.Spec, shape selectClusterShape, stage int) int {
	row := (longestRow(s) + shape.cluster*shape.threads - 1) / (shape.cluster * shape.threads)
	return max(min(row, stage/selectTurn(headsPerList(s), shape.threads)), 1)
}

// selectMasses is what select::ClusterShared has less where no masses and histograms are exchanged.
func selectMasses(heads int, shape selectClusterShape) int {
	return 2*256*(shape.cluster-1) + 4*padded(heads)*(shape.threads/32+shape.cluster-2)
}

// selectExchange is the size of select::ClusterShared.
func selectExchange(heads int, shape selectClusterShape) int {
	width, warps := padded(heads), shape.threads/32
	exchange := 4*256 + 2*2*256*shape.cluster + 4*width*(warps+shape.cluster) + 8*512 + 4*(256+4) + 4*8 + 2*(4*warps*shape.pages+8192/8) + 20 + 4*shape.cluster
	return (exchange + 15) / 16 * 16
}

// selectClusterShared is the dynamic shared memory of a block: select::ClusterShared and the pages that registers do not hold.
func selectClusterShared(heads int, shape selectClusterShape) int {
	return selectExchange(heads, shape) + 4*heads*shape.threads*(shape.pages-selectKept(heads, shape.pages))
}

func selectClusterRefusal(s *specs.Spec, t Target, shape selectClusterShape, dynamic int) string {
	heads := headsPerList(s)
	if s.Locks.Combine != "share_average" {
		return fmt.Sprintf("%s: the cluster form ranks averages of shares alone", s.Locks.Combine)
	}
	if heads > selectMostHeads {
		return fmt.Sprintf("%d heads a list: the cluster form keeps the masses of at most %d in registers", heads, selectMostHeads)
	}
	// Beside the scores: shifts, masses and units of the heads, and addresses.
	need := shape.pages + selectKept(heads, shape.pages)*heads + 2*padded(heads) + 28
	if have := t.RegistersPerSM / shape.threads; need > have {
		return fmt.Sprintf("%d pages of %d heads a thread need about %d registers, %d threads leave %d", shape.pages, heads, need, shape.threads, have)
	}
	return selectRefusal(s, t, selectShape{Hopper, shape.threads, shape.cluster}, dynamic)
}
