package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// summaryParams is one choice of the tuner.
type summaryParams struct{ warps, blocks int } // warps a block, blocks an SM that registers and grid are sized for

// summaryBlockChoices are for larger pages: a block builds one page at a time. The default first.
var summaryBlockChoices = map[int][]summaryParams{
	32:  {{2, 8}, {1, 12}, {1, 8}, {2, 4}, {4, 4}, {2, 2}},
	64:  {{4, 4}, {2, 6}, {2, 4}, {8, 2}, {4, 2}, {4, 1}},
	128: {{8, 2}, {4, 2}, {8, 1}, {4, 1}, {16, 1}},
}

func planPageSummary(s *specs.Spec, t Target) FamilyPlan {
	if s.Record().Scorer != "" {
		return planPlainSummary(s, t)
	}
	if s.Locks.Basis == QueryWeighted {
		return planWeightedSummary(s, t)
	}
	p := FamilyPlan{Family: PageSummary, Cost: summaryCost(s)}
	for _, form := range []Form{Hopper, Portable} {
		if form == Hopper && t.Arch != "sm_90a" && t.Arch != "sm_90" {
			continue
		}
		p.addTridiagonal(s, t, form)
		choices := summaryBlockChoices[s.SummaryTokens()]
		switch {
		case !s.Record().Form.Plain():
			choices = nil // the direct form alone makes smaller records
		case s.SummaryTokens() <= 16:
			choices = summaryWarpChoices(s, t, form)
		}
		for _, choice := range choices {
			c := summaryCandidate(s, t, form, choice)
			if reason := summaryRefusal(t, choice, c.Geometry.DynamicShared); reason != "" {
				p.Rejected = append(p.Rejected, Rejected{c, reason})
				continue
			}
			p.Candidates = append(p.Candidates, c)
		}
	}
	return p
}

func summaryCandidate(s *specs.Spec, t Target, form Form, choice summaryParams) Candidate {
	a, page := s.Attention, s.SummaryTokens()
	c := Candidate{
		Family: PageSummary, Form: form, Arch: t.Arch,
		Key:    fmt.Sprintf("d%d p%d r%d b%d %s record", a.HeadDim, page, s.Locks.Rank, s.Locks.BasisBits, s.Cache.DType) + formKey(s),
		Params: []Param{{"warps", choice.warps}, {"blocks", choice.blocks}},
		Constants: []Constant{
			{"HEAD_DIM", fmt.Sprint(a.HeadDim)},
			{"PAGE", fmt.Sprint(page)},
			{"RANK", fmt.Sprint(s.Locks.Rank)},
			{"BITS", fmt.Sprint(s.Locks.BasisBits)},
			{"Key", "kvloom::" + s.Cache.RowType()},
			{"kNumWarps", fmt.Sprint(choice.warps)},
		},
		Entry: string(PageSummary), MinBlocks: choice.blocks,
		Geometry: launch.Geometry{
			Block: 32 * choice.warps, Cluster: 1,
			Workspace: []launch.Extent{launch.Const(4)}, // counts finished blocks
		},
	}
	if form == Portable {
		c.Arch = PortableArch
	}
	var perBlock, waves int64
	if page <= 16 {
		c.Header, c.Kernel = "kernels/page_summary_warp.cuh", "kvloom::page_summary_warp"
		c.Geometry.DynamicShared = choice.warps * summaryWarpBytes(s)
		perBlock, waves = int64(choice.warps*64/page), 1 // blocks stay and prefetch their next batch
	} else {
		c.Header, c.Kernel = "kernels/page_summary_block.cuh", "kvloom::page_summary_block"
		c.Geometry.DynamicShared = summaryBlockBytes(s, choice.warps)
		perBlock, waves = 1, 4 // nothing is prefetched, and more blocks even out the tail
	}
	c.Constants = append(c.Constants, Constant{"kSharedBytes", fmt.Sprint(c.Geometry.DynamicShared)})
	if s.SummaryPages() > 1 {
		c.Constants = append(c.Constants, formConstants(s)...)
	}
	c.Geometry.Grid = [3]launch.Extent{
		{Of: []launch.Quantity{launch.NewPages, launch.KVHeads}, Times: 1, Per: perBlock, AtMost: waves * int64(t.SMs*choice.blocks)},
		launch.Each(launch.Batch),
		launch.Const(1),
	}
	return c
}

// summaryMaxWarps an SM leave a thread 168 registers, and more did not fit the shared memory of usual shapes anyway.
const summaryMaxWarps = 12

// smallSM is the shared memory of a block on consumer GPUs from compute capability 8.6: what the portable form keeps to where it can.
const smallSM = 99 << 10

// summaryWarpChoices are for pages of up to 16 tokens, where each warp builds 64/page pages in its own shared memory: the default
// has the most warps an SM, of those the largest blocks. Each number of warps comes with two numbers of blocks.
func summaryWarpChoices(s *specs.Spec, t Target, form Form) []summaryParams {
	each := summaryWarpBytes(s)
	var all []summaryParams
	for _, warps := range []int{4, 2, 1, 3, 6, 8} {
		if form == Portable && warps > 1 && warps*each > smallSM {
			continue
		}
		blocks := min((t.SharedPerBlock+1<<10)/(warps*each+summaryStatic+1<<10), summaryMaxWarps/warps)
		all = append(all, summaryParams{warps, max(blocks, 1)})
		if blocks > 2 {
			all = append(all, summaryParams{warps, blocks - 1})
		}
	}
	slices.SortStableFunc(all, func(a, b summaryParams) int { return b.warps*b.blocks - a.warps*a.blocks })
	return all
}

// summaryStatic is the static shared memory: finish_build's flag, padded to the alignment of the dynamic part.
const summaryStatic = 128

// summaryRefusal says why a choice cannot run.
func summaryRefusal(t Target, choice summaryParams, dynamic int) string {
	if dynamic+summaryStatic > t.SharedPerBlock {
		return fmt.Sprintf("%d warps need %d B of shared memory a block, %s has %d B", choice.warps, dynamic+summaryStatic, t.Arch, t.SharedPerBlock)
	}
	// A block takes 1 KB beside its own; an SM has 1 KB more than a block may ask for.
	if sm := t.SharedPerBlock + 1<<10; choice.blocks*(dynamic+summaryStatic+(1<<10)) > sm {
		return fmt.Sprintf("%d blocks of %d B of shared memory do not fit the %d B of an SM together", choice.blocks, dynamic+summaryStatic, sm)
	}
	return ""
}

func summaryRecord(s *specs.Spec) specs.Record { return s.Record() }

// summaryWarpBytes is WarpBuild::kWarpBytes of page_summary_warp.cuh.
func summaryWarpBytes(s *specs.Spec) int {
	r := summaryRecord(s)
	d, pages := r.HeadDim, 64/r.PageSize
	n := 64*(2*d+16) + 4*16*20*4 + 64*r.RankPad*4 + pages*r.RankPad*4 + pages*8
	n = roundUp(n+r.Rank*8, 16) + r.Rank*d*4 + r.Bytes
	return roundUp(n, 128)
}

// summaryBlockBytes is BlockBuild::kBytes of page_summary_block.cuh.
func summaryBlockBytes(s *specs.Spec, warps int) int {
	r := summaryRecord(s)
	return summaryBlockBytesWith(s, warps, 4*r.PageSize+3*r.Rank*(r.PageSize+1)+16)
}

// summaryBlockBytesWith is the same with so many floats beside the matrix.
func summaryBlockBytesWith(s *specs.Spec, warps, floats int) int {
	r := summaryRecord(s)
	d, page := r.HeadDim, r.PageSize
	matrix := max(page*(page+4)*4, r.Rank*d*4+r.Bytes)
	n := page*(2*d+16) + roundUp(matrix, 16)
	n = roundUp(n+4*floats, 16) + d*4 + (r.Rank+1)*8
	return roundUp(n+warps*4, 16)
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// summaryCost is of a build of the whole prompt.
func summaryCost(s *specs.Spec) Cost {
	r := summaryRecord(s)
	d, page, rank := int64(r.HeadDim), int64(r.PageSize), int64(r.Rank)
	return func(w specs.Workload) Work {
		pages := int64(w.Batch) * int64(w.Context/r.PageSize)
		each := pages * int64(s.Attention.KVHeads)
		return Work{
			Bytes: each*(page*d*2+int64(r.PayloadBytes())) + pages*4 + int64(w.Batch)*12,
			// Centring, half the Gram matrix, its tridiagonal form, V and C.
			Flops: each * (2*page*d + page*page*d + 4*page*page*page/3 + 4*page*d*rank),
		}
	}
}
