package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/specs"
)

// PageRerankAttend is page_rerank and page_attend in one launch, where candidates and heads fit: an alternative to the two.
const PageRerankAttend Family = "page_rerank_attend"

// rerankAttendShape is one choice of page_rerank_attend. ring: pages of keys or values that a warp holds, 0 for as many as it has candidates.
type rerankAttendShape struct {
	warps, cluster, blocks, ring int
}

func (x rerankAttendShape) rerank() rerankClusterShape {
	return rerankClusterShape{x.warps, x.cluster, x.blocks}
}

// rerankAttendShapes, the default first: of lists whose clusters of 8 run at once and those of 16 do not.
var rerankAttendShapes = []rerankAttendShape{
	{8, 8, 1, 0}, {16, 8, 1, 0}, {8, 16, 2, 0}, {4, 8, 3, 2}, {8, 8, 2, 2}, {4, 16, 2, 0},
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
	switch lists := mostLists(s); {
	case 8*lists > t.SMs: // clusters of 8 take turns: small ones, several an SM
		p.Candidates = rerankLead(p.Candidates, 4, 8)
	case lists <= clustersOf16:
		p.Candidates = rerankLead(p.Candidates, 8, 16)
	}
	return p
}

// rerankLead moves the first candidate of so many warps and blocks a cluster before the others.
func rerankLead(list []Candidate, warps, cluster int) []Candidate {
	return lead(list, func(c Candidate) bool { return c.Param("warps") == warps && c.Param("cluster") == cluster })
}

// lead moves the first candidate that is wanted before the others.
func lead(list []Candidate, wanted func(Candidate) bool) []Candidate {
	i := slices.IndexFunc(list, wanted)
	if i <= 0 {
		return list
	}
	first := list[i]
	return slices.Insert(slices.Delete(list, i, i+1), 0, first)
}

// mostLists is the lists of the spec's largest batch.
func mostLists(s *specs.Spec) int {
	batch := 1
	for _, w := range s.Workloads {
		batch = max(batch, w.Batch)
	}
	return batch * attendLists(s)
}

func rerankAttendRefusal(s *specs.Spec, t Target, shape rerankAttendShape, dynamic int) string {
	if s.Attention.HeadDim/4 < shape.cluster {
		return fmt.Sprintf("a head of %d dims has no quad for each of %d blocks", s.Attention.HeadDim, shape.cluster)
	}
	of := shape.rerank()
	if each := newRerankSizes(s, of).each; shape.ring > 0 && shape.ring >= each {
		return fmt.Sprintf("a warp has %d candidates, a ring of %d pages is no less", each, shape.ring)
	}
	return rerankClusterRefusal(s, t, of, true, shape.ring > 0, dynamic)
}

func rerankAttendCandidate(s *specs.Spec, t Target, shape rerankAttendShape) Candidate {
	c := rerankClusterCandidate(s, t, shape.rerank())
	c.Family, c.Entry = PageRerankAttend, string(PageRerankAttend)
	c.Header, c.Kernel = "kernels/page_rerank_attend.cuh", "kvloom::page_rerank_attend"
	c.Params = append(c.Params, Param{"ring", shape.ring})
	c.Constants = append(c.Constants[:len(c.Constants)-len(groupConstants(s))], Constant{"kRing", fmt.Sprint(shape.ring)})
	c.Constants = append(c.Constants, groupConstants(s)...)
	c.Geometry.DynamicShared = shape.warps * newRerankSizes(s, shape.rerank()).holds(s, shape.ring)
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
