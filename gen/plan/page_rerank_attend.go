package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// PageRerankAttend is page_rerank and page_attend in one launch, where candidates and heads fit: an alternative to the two.
const PageRerankAttend Family = "page_rerank_attend"

// rerankAttendShape is one choice of page_rerank_attend. ahead: values of all candidates are asked for beside their keys.
type rerankAttendShape struct {
	warps, cluster, blocks int
	ahead                  bool
}

// rerankAttendShapes, the default of few lists first.
var rerankAttendShapes = []rerankAttendShape{
	{8, 16, 2, true}, {8, 16, 2, false}, {8, 8, 1, true}, {8, 8, 1, false}, {16, 8, 1, true}, {16, 8, 1, false}, {4, 16, 2, false}, {4, 16, 2, true},
	{16, 16, 1, true}, {8, 16, 1, true}, {8, 16, 1, false},
}

func planPageRerankAttend(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageRerankAttend, Cost: rerankAttendCost(s)}
	if t.Arch != "sm_90a" {
		return p
	}
	for _, shape := range rerankAttendShapes {
		c := rerankAttendCandidate(s, t, shape)
		if reason := rerankAttendRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

// rerankAttendSizes mirrors constants of page_rerank_attend.cuh.
type rerankAttendSizes struct {
	heads, tiles, each, held, ringBytes int
}

func newRerankAttendSizes(s *specs.Spec, shape rerankAttendShape) rerankAttendSizes {
	z := rerankAttendSizes{heads: headsPerList(s), tiles: 1}
	if (z.heads+7)/8%2 == 0 && s.Attention.HeadDim <= 128 {
		z.tiles = 2
	}
	workers := shape.warps * shape.cluster
	z.each = (rerankMost(s) + workers - 1) / workers
	z.held = z.each * workers
	tensor := 16 * 16 * (s.Attention.HeadDim/8 | 1)
	z.ringBytes = max((z.each*s.Cache.PageSize/16+1)/2*2*tensor, 4*z.heads*(s.Attention.HeadDim+4))
	return z
}

// memoryBytes is the size of rerank::Both::Memory, or a little more.
func (z rerankAttendSizes) memoryBytes(s *specs.Spec, shape rerankAttendShape) int {
	parts := max(shape.warps/z.heads, 1)
	quads := (z.heads*s.Attention.HeadDim/4 + shape.cluster - 1) / shape.cluster
	gathered := z.heads*z.held*4 + 8*shape.cluster*z.heads*parts + 8*z.held + 8*z.heads + 4*shape.warps
	return (gathered + shape.cluster*(16*quads+8*z.heads) + 8*shape.warps*z.heads + 4*z.heads*(shape.cluster*parts+parts+2) + rerankWindow/8 + 4*shape.warps*shape.cluster + 96 + 15) / 16 * 16
}

func rerankAttendRefusal(s *specs.Spec, t Target, shape rerankAttendShape, dynamic int) string {
	z, dim := newRerankAttendSizes(s, shape), s.Attention.HeadDim
	steps := z.each * s.Cache.PageSize / 16
	switch {
	case s.Cache.PageSize < 16:
		return fmt.Sprintf("a step of 16 tokens is of one page where values follow keys in one launch, pages have %d", s.Cache.PageSize)
	case z.heads > 8*z.tiles:
		return fmt.Sprintf("a warp keeps the logits of %d heads at once, a list has %d", 8*z.tiles, z.heads)
	case dim/4 < shape.cluster:
		return fmt.Sprintf("a head of %d dims has no quad for each of %d blocks", dim, shape.cluster)
	case steps > 8:
		return fmt.Sprintf("logits of %d candidates of %d tokens a warp do not stay in registers", z.each, s.Cache.PageSize)
	}
	static := z.memoryBytes(s, shape)
	if static > staticShared {
		return fmt.Sprintf("exact scores of %d candidates and parts of %d blocks need %d B of static shared memory, the limit is %d B", z.held, shape.cluster, static, staticShared)
	}
	if all := static + dynamic; all > t.SharedPerBlock || (all+1024)*shape.blocks > t.SharedPerBlock+1024 {
		return fmt.Sprintf("%d blocks of %d B of shared memory, an SM has %d B", shape.blocks, all, t.SharedPerBlock)
	}
	// Keys of two steps and the query, then values' sums; logits all the while.
	need := 40 + dim/8*max(4+z.tiles, 2*z.tiles) + steps*z.tiles*4
	if have := min(t.RegistersPerSM/(32*shape.warps*shape.blocks)/8*8, 255); need > have {
		return fmt.Sprintf("about %d registers a thread are live and %d threads leave %d", need, 32*shape.warps*shape.blocks, have)
	}
	return ""
}

func rerankAttendCandidate(s *specs.Spec, t Target, shape rerankAttendShape) Candidate {
	c := rerankClusterCandidate(s, t, rerankClusterShape{shape.warps, shape.cluster, shape.blocks})
	c.Family, c.Entry = PageRerankAttend, string(PageRerankAttend)
	c.Header, c.Kernel = "kernels/page_rerank_attend.cuh", "kvloom::page_rerank_attend"
	c.Params = append(c.Params, Param{"ahead", boolParam(shape.ahead)})
	c.Constants = append(c.Constants, Constant{"kAhead", fmt.Sprint(shape.ahead)})
	c.Geometry.DynamicShared = shape.warps * newRerankAttendSizes(s, shape).ringBytes
	c.Geometry.Workspace = nil
	return c
}

// rerankAttendCost is that of page_rerank and of the values of what it keeps.
func rerankAttendCost(s *specs.Spec) Cost {
	a, rerank := s.Attention, rerankCost(s)
	return func(w specs.Workload) Work {
		work := rerank(w)
		pages := (w.Context + s.Cache.PageSize - 1) / s.Cache.PageSize
		lists, heads := int64(w.Batch*a.KVHeads), int64(headsPerList(s))
		if heads == 1 {
			lists *= int64(a.Group())
		}
		tokens := lists * int64(min(s.Slots(), pages)*s.Cache.PageSize)
		work.Bytes += tokens*int64(a.HeadDim)*2 + int64(w.Batch*a.QueryHeads)*int64(a.HeadDim)*2
		work.Flops += tokens * heads * 2 * int64(a.HeadDim)
		work.Exponential += tokens * heads
		return work
	}
}
