package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// PageSelectRerankAttend proposes, reranks and attends in one launch, where a layer has few enough lists that all of their clusters run at
// once: an alternative to page_select, page_rerank and page_attend.
const PageSelectRerankAttend Family = "page_select_rerank_attend"

// selectRerankShapes, the default of many lists first.
var selectRerankShapes = []rerankAttendShape{{16, 8, 1, 0}, {16, 16, 1, 0}, {8, 16, 2, 0}, {8, 8, 1, 0}}

// selectRerankPages is how many pages of a row a thread keeps in registers where page_score has left no masses.
const selectRerankPages = 2

func planPageSelectRerankAttend(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageSelectRerankAttend, Cost: selectCost(s).and(rerankAttendCost(s))}
	if t.Arch != "sm_90a" {
		return p
	}
	for _, shape := range selectRerankShapes {
		c, words, memory := selectRerankCandidate(s, t, shape)
		if reason := selectRerankRefusal(s, t, shape, words, memory); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	if mostLists(s) <= clustersOf16 { // more SMs for few lists
		p.Candidates = rerankLead(p.Candidates, 16, 16)
	}
	return p
}

// selectRerankCandidate also returns the words of selection's part of the dynamic shared memory, whose place the values take, and the bytes
// behind it.
func selectRerankCandidate(s *specs.Spec, t Target, shape rerankAttendShape) (c Candidate, words, memory int) {
	heads, threads := headsPerList(s), 32*shape.warps
	of, z := selectClusterShape{threads, shape.cluster, selectRerankPages}, newRerankSizes(s, shape.rerank())
	rows := max((longestRow(s)+shape.cluster*threads-1)/(shape.cluster*threads), of.pages)
	words = max(selectExchange(heads, of)/4+rows*threads, selectClusterShared(heads, of)/4, shape.warps*z.holds(s, 0)/4)
	words, memory = (words+31)/32*32, z.memoryBytes(s, shape.rerank(), true)
	c = rerankAttendCandidate(s, t, shape)
	c.Family, c.Entry = PageSelectRerankAttend, string(PageSelectRerankAttend)
	c.Header, c.Kernel = "kernels/page_select_rerank_attend.cuh", "kvloom::page_select_rerank_attend"
	c.Params, c.Constants = c.Params[:len(c.Params)-1], c.Constants[:len(c.Constants)-1-len(groupConstants(s))] // no ring: selection needs as much memory
	c.Constants = append(c.Constants, Constant{"kMemoryBytes", fmt.Sprint(memory)}, Constant{"kBufferWords", fmt.Sprint(words)}, Constant{"kPages", fmt.Sprint(of.pages)})
	c.Constants = append(c.Constants, groupConstants(s)...)
	c.Geometry.Grid = [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: int64(shape.cluster), Per: 1}, launch.Each(launch.Batch), launch.Const(1)}
	c.Geometry.DynamicShared = 4*words + memory
	c.Geometry.Workspace = []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.MaxPages}, Times: 4, Per: 1}} // of page_select's radix kernel
	return c, words, memory
}

func selectRerankRefusal(s *specs.Spec, t Target, shape rerankAttendShape, words, memory int) string {
	if reason := rerankAttendRefusal(s, t, shape, 0); reason != "" {
		return reason
	}
	heads, threads := headsPerList(s), 32*shape.warps
	// 4 lists of 65536 pages took 24.4 us by clusters of 8, where page_select and page_rerank_attend took 11.1 each.
	if row, holds := longestRow(s), threads*shape.cluster*selectRerankPages; row > holds {
		return fmt.Sprintf("rows of %d pages are selected from sooner by a launch of its own, which more SMs share: %d threads keep %d", row, threads*shape.cluster, holds)
	}
	if reason := selectClusterRefusal(s, t, selectClusterShape{threads, shape.cluster, selectRerankPages}, 0); reason != "" {
		return reason
	}
	static := selectStatic(heads, selectShape{Hopper, threads, shape.cluster}) + 4*rerankMost(s) + 64
	if static > staticShared {
		return fmt.Sprintf("selection among %d heads needs %d B of static shared memory, the limit is %d B", heads, static, staticShared)
	}
	if all := static + 4*words + memory; all > t.SharedPerBlock || (all+1024)*shape.blocks > t.SharedPerBlock+1024 {
		return fmt.Sprintf("%d blocks of %d B of shared memory, an SM has %d B", shape.blocks, all, t.SharedPerBlock)
	}
	return ""
}
