package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// rerankThreads is kThreads of page_rerank.cuh.
const rerankThreads = 256

// rerankChoices: candidates a block, blocks an SM that registers are kept low for. Slots of a rerank's problem are what is proposed to it.
var rerankChoices = []struct{ per, blocks int }{{16, 1}, {32, 1}, {8, 1}, {64, 1}, {32, 2}, {16, 2}}

func planPageRerank(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageRerank, Cost: rerankCost(s)}
	p.Candidates, p.Rejected = rerankClusterCandidates(s, t)
	for _, form := range []Form{Hopper, Portable} {
		if form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		for _, choice := range rerankChoices {
			c := rerankCandidate(s, t, form, choice.per, choice.blocks)
			if have := scoreRegistersLeft(scoreParams{warps: rerankThreads / 32, blocks: choice.blocks}); have < 160 && s.Attention.HeadDim > 64 {
				p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("keys of head dim %d in flight need about 160 registers a thread, %d blocks an SM leave %d",
					s.Attention.HeadDim, choice.blocks, have)})
				continue
			}
			p.Candidates = append(p.Candidates, c)
		}
	}
	return p
}

func rerankCandidate(s *specs.Spec, t Target, form Form, per, blocks int) Candidate {
	a, heads, pages := s.Attention, headsPerList(s), int64(s.SummaryPages())
	c := Candidate{
		Family: PageRerank, Form: form, Arch: t.Arch,
		Key: fmt.Sprintf("d%d p%d g%d h%d %s softcap=%t %s", a.HeadDim, s.Cache.PageSize, a.Group(), heads, s.Cache.DType, a.LogitSoftcap > 0,
			s.Locks.Combine) + groupKey(s),
		Params: []Param{{"per", per}, {"blocks", blocks}},
		Constants: []Constant{
			{"T", "kvloom::" + s.Cache.DType},
			{"HEAD_DIM", fmt.Sprint(a.HeadDim)},
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"GROUP", fmt.Sprint(a.Group())},
			{"HEADS", fmt.Sprint(heads)},
			{"COMBINE", "kvloom::reduce::Combine::" + combineNames[s.Locks.Combine]},
			{"SOFTCAP", fmt.Sprint(a.LogitSoftcap > 0)},
			{"kPer", fmt.Sprint(per)},
		},
		Header: "kernels/page_rerank.cuh", Kernel: "kvloom::page_rerank", Entry: string(PageRerank), MinBlocks: blocks,
		Geometry: launch.Geometry{
			Grid: [3]launch.Extent{
				{Of: []launch.Quantity{launch.Slots}, Times: pages, Per: int64(per)}, launch.Each(launch.Lists), launch.Each(launch.Batch)},
			Block: rerankThreads, Cluster: 1,
			Workspace: []launch.Extent{
				{Of: []launch.Quantity{launch.Batch, launch.Lists}, Times: 4 + 8*int64(heads), Per: 1},                              // counters, and the last block's masses
				{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.Slots}, Times: 8 * pages * int64(heads), Per: int64(per)}, // masses of the others
				{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.Slots}, Times: 4 * pages * int64(heads+1), Per: 1},        // exact scores and keys
			},
		},
	}
	if form == Portable {
		c.Arch = PortableArch
	}
	c.Constants = append(c.Constants, groupConstants(s)...)
	return c
}

// groupConstants is the last argument of a rerank's template, the pages that share a summary; none where each has its own, the default.
func groupConstants(s *specs.Spec) []Constant {
	if s.SummaryPages() == 1 {
		return nil
	}
	return []Constant{{"SUMMARY_PAGES", fmt.Sprint(s.SummaryPages())}}
}

func rerankCost(s *specs.Spec) Cost {
	a := s.Attention
	return func(w specs.Workload) Work {
		pages := (w.Context + s.Cache.PageSize - 1) / s.Cache.PageSize
		candidates := min(s.Candidates(), pages)
		lists, heads := int64(w.Batch*a.KVHeads), int64(headsPerList(s))
		if heads == 1 {
			lists *= int64(a.Group())
		}
		keys := lists * int64(candidates) * int64(s.Cache.PageSize)
		work := Work{
			Bytes: keys*int64(a.HeadDim)*2 + int64(w.Batch*a.QueryHeads)*int64(a.HeadDim)*2 + lists*4*int64(candidates+s.Slots()+2),
			Flops: keys * heads * 2 * int64(a.HeadDim), Exponential: keys * heads,
		}
		if s.Locks.Combine == "share_average" || s.Locks.Combine == "peak_normalised" {
			work.Bytes += int64(w.Batch*a.QueryHeads) * int64(s.Groups(w.Context)) * 4
			work.Exponential += int64(w.Batch*a.QueryHeads) * int64(s.Groups(w.Context))
		}
		return work
	}
}
