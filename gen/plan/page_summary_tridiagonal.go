package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// The direct form of page_summary for pages of 16 tokens (templates/kernels/page_summary_tridiagonal.cuh): three quarters of the
// time of the Jacobi form is the eigenproblem, and more where spectra are awkward.

// tridiagonalMaxRank is a vector a lane of the eight that hold a page's Gram matrix.
const tridiagonalMaxRank = 8

// addTridiagonal plans the direct form, ahead of the general one.
func (p *FamilyPlan) addTridiagonal(s *specs.Spec, t Target, form Form) {
	if s.SummaryTokens() != 16 || s.Locks.Rank > tridiagonalMaxRank {
		return
	}
	for i, choice := range tridiagonalChoices(s, t, form) {
		first := true
		for _, variant := range tridiagonalVariants {
			if !variant.fits(s) || !first && i > 0 {
				continue // variants are tried at the default's sizes
			}
			first = false
			c := tridiagonalCandidate(s, t, form, choice, variant)
			sizeForSteps(&c, s, choice)
			if reason := summaryRefusal(t, choice, c.Geometry.DynamicShared); reason != "" {
				p.Rejected = append(p.Rejected, Rejected{c, reason})
				continue
			}
			p.Candidates = append(p.Candidates, c)
		}
	}
}

// tridiagonalVariant is how a build goes about its work: u for V with its rounding error or without, and how much later each of an
// SM's blocks after the first begins, in ns.
type tridiagonalVariant struct{ residual, stagger int }

// tridiagonalVariants: the default first.
var tridiagonalVariants = []tridiagonalVariant{{0, 500}, {0, 0}, {1, 500}, {1, 0}, {0, 1000}}

// fits: codes of more than 4 bits show what rounding u does to V.
func (v tridiagonalVariant) fits(s *specs.Spec) bool {
	return v.residual == 1 || s.Locks.BasisBits <= 4
}

// tridiagonalCandidate is the general form's candidate with another kernel and its shared memory.
func tridiagonalCandidate(s *specs.Spec, t Target, form Form, choice summaryParams, v tridiagonalVariant) Candidate {
	c := summaryCandidate(s, t, form, choice)
	c.Params = append(c.Params, Param{"tridiagonal", 1}, Param{"residual", v.residual}, Param{"stagger", v.stagger})
	c.Header, c.Kernel = "kernels/page_summary_tridiagonal.cuh", "kvloom::page_summary_tridiagonal"
	c.Geometry.DynamicShared = tridiagonalBlockBytes(s, choice.warps)
	c.Constants = slices.DeleteFunc(slices.Clone(c.Constants), func(k Constant) bool {
		return k.Name == "PAGE" || k.Name == "kNumWarps" || k.Name == "kSharedBytes"
	})
	c.Constants = append(c.Constants, Constant{"kResidual", fmt.Sprint(v.residual == 1)},
		Constant{"kStagger", fmt.Sprint(v.stagger)}, Constant{"kNumWarps", fmt.Sprint(choice.warps)}, Constant{"kNumBlocks", fmt.Sprint(choice.blocks)},
		Constant{"kSharedBytes", fmt.Sprint(c.Geometry.DynamicShared)})
	c.Constants = append(c.Constants, formConstants(s)...)
	return c
}

// sizeForSteps gives launches that are sized for a page a request, as a decode step's are, blocks along z: by them the kernel knows a step
// and builds in another way (templates/kernels/page_summary_few.cuh), two warps a page. Bases of 16 bits have no such way.
func sizeForSteps(c *Candidate, s *specs.Spec, choice summaryParams) {
	if len(formConstants(s)) > 0 || s.Locks.BasisBits == 16 {
		return
	}
	pages := choice.warps // of a block
	if pages%2 == 0 {
		pages /= 2
	}
	pages = max(min(pages, s.Attention.KVHeads/2), 1) // one block along z is a prompt's
	// The blocks of a request are counted in the low bits of built_lens.
	c.Geometry.Grid[2] = launch.Extent{Of: []launch.Quantity{launch.StepHeads}, Times: 1, Per: int64(pages), AtMost: 16}
}

// tridiagonalChoices: the default has the most warps an SM, of those blocks of four. Each number of warps comes with two numbers of
// blocks.
func tridiagonalChoices(s *specs.Spec, t Target, form Form) []summaryParams {
	most := summaryMaxWarps
	if form == Portable || s.Attention.HeadDim == 112 && s.Locks.Rank > 4 {
		most = 8 // 168 registers a thread are a few too few here
	}
	var all []summaryParams
	for _, warps := range []int{4, 2, 1, 3, 6, 8} {
		each := tridiagonalBlockBytes(s, warps)
		if form == Portable && warps > 1 && each > smallSM {
			continue
		}
		blocks := max(min((t.SharedPerBlock+1<<10)/(each+summaryStatic+1<<10), most/warps), 1)
		all = append(all, summaryParams{warps, blocks})
		if blocks > 2 {
			all = append(all, summaryParams{warps, blocks - 1})
		}
	}
	slices.SortStableFunc(all, func(a, b summaryParams) int { return b.warps*b.blocks - a.warps*a.blocks })
	return all
}

// tridiagonalBlockBytes is TridiagonalBuild::kWarpBytes of page_summary_tridiagonal.cuh for each warp, and the block's start vectors.
func tridiagonalBlockBytes(s *specs.Spec, warps int) int {
	r := summaryRecord(s)
	pitch := 2 * r.HeadDim
	if r.HeadDim%64 != 0 {
		pitch += 16
	}
	stepPages, rows := 1, 8
	if r.Rank <= 4 && r.HeadDim <= 128 {
		stepPages, rows = 2, 4
	}
	lead := max(stepPages*r.C-512, 0)
	scratch := max(2*16*20*4, lead+4/stepPages*512+4*rows*4)
	items := 96
	if r.Form.Centroid4 {
		items += 32
	}
	return warps*roundUp(4*16*pitch+scratch+items, 16) + 8*16*4
}
