package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// The form of query-weighted bases for 32 tokens that has a warp a page (templates/kernels/page_summary_weighted32.cuh).

// weighted32Choices: the default first. More than 12 warps an SM have too few registers each.
var weighted32Choices = []summaryParams{{6, 2}, {12, 1}, {4, 2}}

// addWeighted32 plans it where it fits the spec, ahead of the block's form.
func (p *FamilyPlan) addWeighted32(s *specs.Spec, t Target, form Form) {
	l, dim := s.Locks, s.Attention.HeadDim
	if s.SummaryTokens() != 32 || l.Rank > 2 || l.BasisBits != 4 && l.BasisBits != 8 || dim%32 != 0 || dim > 128 || s.Cache.DType != "bf16" && s.Cache.DType != "fp16" {
		return
	}
	for _, choice := range weighted32Choices {
		c := weighted32Candidate(s, t, form, choice)
		if form == Portable && c.Geometry.DynamicShared+summaryStatic > smallSM {
			continue
		}
		if reason := summaryRefusal(t, choice, c.Geometry.DynamicShared); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
}

func weighted32Candidate(s *specs.Spec, t Target, form Form, choice summaryParams) Candidate {
	c := weightedBlockCandidate(s, t, form, choice)
	c.Params = []Param{{"warps", choice.warps}, {"blocks", choice.blocks}, {"weighted", 1}, {"registers", 1}}
	c.Header, c.Kernel = "kernels/page_summary_weighted32.cuh", "kvloom::page_summary_weighted32"
	c.Geometry.DynamicShared = weighted32Bytes(s, choice)
	of := map[string]string{"kSharedBytes": fmt.Sprint(c.Geometry.DynamicShared)}
	for _, k := range c.Constants {
		if _, ok := of[k.Name]; !ok {
			of[k.Name] = k.Value
		}
	}
	c.Constants = []Constant{{"HEAD_DIM", of["HEAD_DIM"]}, {"RANK", of["RANK"]}, {"BITS", of["BITS"]}, {"Key", of["Key"]}, {"kNumWarps", of["kNumWarps"]},
		{"kSharedBytes", of["kSharedBytes"]}, {"FORM", of["FORM"]}}
	// Blocks that stay. Of few pages each has a block, for one of several heads would load a factor for each, one after the other.
	c.Geometry.Grid[0] = launch.Extent{Of: []launch.Quantity{launch.NewPages, launch.KVHeads}, Times: 1, Per: 1, AtMost: int64(t.SMs * choice.blocks)}
	return c
}

// weighted32Bytes is a factor and Weighted32::kWarpBytes of page_summary_weighted32.cuh for each warp.
func weighted32Bytes(s *specs.Spec, choice summaryParams) int {
	d, rank := s.Attention.HeadDim, s.Locks.Rank
	pitch := 2 * d
	if d%64 != 0 {
		pitch += 16
	}
	return factorBytes(d) + choice.warps*(32*pitch+rank*128+(rank+1)*(d+8)*4)
}
