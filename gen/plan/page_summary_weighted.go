package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// QueryWeighted is the basis that is fitted to the keys as the queries see them.
const QueryWeighted = "query_weighted"

// planWeightedSummary plans page_summary with query-weighted bases: the direct form, which has pages of 16 tokens and ranks up to 8, and for
// more tokens the block's.
func planWeightedSummary(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageSummary, Cost: weightedCost(s)}
	for _, form := range []Form{Hopper, Portable} {
		if form == Hopper && t.Arch != "sm_90a" && t.Arch != "sm_90" {
			continue
		}
		if s.SummaryTokens() > 16 {
			p.addWeighted32(s, t, form)
			for _, choice := range summaryBlockChoices[s.SummaryTokens()] {
				c := weightedBlockCandidate(s, t, form, choice)
				if reason := summaryRefusal(t, choice, c.Geometry.DynamicShared); reason != "" {
					p.Rejected = append(p.Rejected, Rejected{c, reason})
					continue
				}
				p.Candidates = append(p.Candidates, c)
			}
			continue
		}
		if s.SummaryTokens() != 16 || s.Locks.Rank > tridiagonalMaxRank {
			c := summaryCandidate(s, t, form, summaryParams{1, 1})
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("locks.basis query_weighted is built for pages of 16 tokens and ranks up to %d, not pages of %d at rank %d",
				tridiagonalMaxRank, s.SummaryTokens(), s.Locks.Rank)})
			continue
		}
		for _, choice := range weightedChoices(s, t, form) {
			for _, residual := range []int{0, 1} {
				if residual == 0 && s.Locks.BasisBits > 4 {
					continue
				}
				c := weightedCandidate(s, t, form, choice, residual)
				if reason := summaryRefusal(t, choice, c.Geometry.DynamicShared); reason != "" {
					p.Rejected = append(p.Rejected, Rejected{c, reason})
					continue
				}
				p.Candidates = append(p.Candidates, c)
			}
		}
	}
	if s.SummaryTokens() == 32 {
		// Of a block a page the one with more registers a thread and fewer blocks is the fastest of four; a warp a page takes a third of its time.
		p.Candidates = lead(p.Candidates, func(c Candidate) bool {
			return c.Kernel == "kvloom::page_summary_block" && c.Param("warps") == 2 && c.Param("blocks") == 4
		})
		p.Candidates = lead(p.Candidates, func(c Candidate) bool { return c.Kernel == "kvloom::page_summary_weighted32" })
	}
	return p
}

// weightedChoices: the default has the most warps an SM, of those the largest blocks, for each block holds a factor of its own.
func weightedChoices(s *specs.Spec, t Target, form Form) []summaryParams {
	const most = 8 // 168 registers a thread are too few: C is made while V is in the accumulators
	var all []summaryParams
	for _, warps := range []int{8, 6, 4, 3, 2, 1} {
		each := weightedBlockBytes(s, warps)
		blocks := min((t.SharedPerBlock+1<<10)/(each+summaryStatic+1<<10), most/warps)
		if blocks < 1 || form == Portable && warps > 1 && each > smallSM && blocks > 1 {
			continue
		}
		all = append(all, summaryParams{warps, blocks})
	}
	if len(all) == 0 {
		all = append(all, summaryParams{1, 1}) // to be rejected with its reason
	}
	slices.SortStableFunc(all, func(a, b summaryParams) int { return b.warps*b.blocks - a.warps*a.blocks })
	return all
}

func weightedCandidate(s *specs.Spec, t Target, form Form, choice summaryParams, residual int) Candidate {
	c := tridiagonalCandidate(s, t, form, choice, tridiagonalVariant{residual, 0})
	c.Key += " weighted"
	c.Params = []Param{{"warps", choice.warps}, {"blocks", choice.blocks}, {"weighted", 1}, {"residual", residual}}
	c.Header, c.Kernel = "kernels/page_summary_weighted.cuh", "kvloom::page_summary_weighted"
	c.Geometry.DynamicShared = weightedBlockBytes(s, choice.warps)
	c.Constants = slices.DeleteFunc(c.Constants, func(k Constant) bool {
		return k.Name == "kStagger" || k.Name == "kNumBlocks" || k.Name == "kSharedBytes" || k.Name == "FORM"
	})
	c.Constants = append(append(c.Constants, Constant{"kSharedBytes", fmt.Sprint(c.Geometry.DynamicShared)}), formConstants(s)...)
	// Blocks of each KV head: as many as have four pages for each warp, and one for a few pages.
	c.Geometry.Grid[0] = launch.Extent{Of: []launch.Quantity{launch.NewPages, launch.KVHeads}, Times: 1, Per: int64(4 * choice.warps),
		AtMost: int64(t.SMs * choice.blocks)}
	return c
}

// weightedBlockCandidate is the block's candidate with the keys times the factor beside the keys.
func weightedBlockCandidate(s *specs.Spec, t Target, form Form, choice summaryParams) Candidate {
	c := summaryCandidate(s, t, form, choice)
	c.Key += " weighted"
	c.Params = append(c.Params, Param{"weighted", 1})
	c.Geometry.DynamicShared = weightedRowsBytes(s, choice.warps)
	c.Constants = slices.DeleteFunc(c.Constants, func(k Constant) bool { return k.Name == "kSharedBytes" || k.Name == "FORM" })
	record := formConstants(s)
	if len(record) == 0 {
		record = []Constant{{"FORM", "kvloom::PlainForm"}}
	}
	c.Constants = append(append(c.Constants, Constant{"kSharedBytes", fmt.Sprint(c.Geometry.DynamicShared)}), append(record, Constant{"WEIGHTED", "true"})...)
	return c
}

// weightedRowsBytes is BlockBuild::kBytes of page_summary_block.cuh where bases are weighted.
func weightedRowsBytes(s *specs.Spec, warps int) int {
	tokens, rank, rows := s.SummaryTokens(), s.Locks.Rank, s.SummaryTokens()*(2*s.Attention.HeadDim+16)
	n := summaryBlockBytes(s, warps)
	if rank <= 2 && tokens <= 64 { // by powers, which take the rows' place
		n = summaryBlockBytesWith(s, warps, rank*(tokens+1)+16+tokens+32*warps)
		rows = max(rows, tokens*(tokens+4)*4)
	}
	return roundUp(n+rows+4*rank, 16)
}

// factorBytes is WeightFactor::kBytes of page_summary_weights.cuh: one KV head's factor.
func factorBytes(headDim int) int {
	n := headDim / 16
	return n * (n + 1) / 2 * 512
}

// weightedBlockBytes is the direct form's shared memory and a factor.
func weightedBlockBytes(s *specs.Spec, warps int) int {
	return factorBytes(s.Attention.HeadDim) + tridiagonalBlockBytes(s, warps)
}

// weightedCost adds the product of the keys and the factor.
func weightedCost(s *specs.Spec) Cost {
	plain := summaryCost(s)
	d, page := int64(s.Attention.HeadDim), int64(s.SummaryTokens())
	return func(w specs.Workload) Work {
		work := plain(w)
		pages := int64(w.Batch) * int64(w.Context/s.SummaryTokens()) * int64(s.Attention.KVHeads)
		work.Bytes += int64(s.Attention.KVHeads) * int64(factorBytes(int(d)))
		work.Flops += pages * page * d * (d + 16)
		return work
	}
}
