package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// pagesShares are the ways to share a block's work in page_score_pages: kv heads copied together (as parts of the most), warps, and rings
// that hold so many tiles of 32 KiB.
var pagesShares = []struct {
	part, warps int
	stages      []int
	blocks      int
}{
	{1, 16, []int{4, 3, 5, 2}, 1},
	{1, 12, []int{4, 5}, 1},
	{1, 20, []int{4, 5}, 1},
	{1, 8, []int{4, 3, 5}, 1},
	{2, 8, []int{2, 3}, 2},
	{2, 16, []int{3, 4}, 1},
}

// pagesChoices are the choices of the tuner, the default first, those that differ from it in least next.
func pagesChoices(s *specs.Spec) []immaChoice {
	most := immaHeads(s)
	// Tiles are small: one warp does not fill the ring fast enough. Three took 24.2 us where two took 26.5 at rank 1, 65536 pages of 4 heads.
	fill := []int{2, 3, 4, 1}
	if s.Locks.Rank == 1 {
		fill = []int{3, 2, 4, 1}
	}
	var list []immaChoice
	var byDistance [16][]immaChoice
	for _, at := range pagesShares {
		for _, stages := range at.stages {
			for bits := range 32 {
				c := immaChoice{max(most/at.part, 1), at.warps, 1, stages, at.blocks, 1, 1, false, bits&1 == 0, bits&2 == 0, fill[bits/8]}
				if bits&4 != 0 {
					c.run = 4
				}
				if list == nil {
					list = append(list, c)
					continue
				}
				n := c.from(list[0])
				byDistance[n] = append(byDistance[n], c)
			}
		}
	}
	for _, choices := range byDistance {
		list = append(list, choices...)
	}
	return list
}

// pagesRefusal says why a spec has no form with pages as rows; empty where it has one.
func pagesRefusal(s *specs.Spec) string {
	l := s.Locks
	switch {
	case l.BasisBits > 8:
		return fmt.Sprintf("pages as rows: a ring is laid out for codes, not for values of %d bits", l.BasisBits)
	case l.Rank != 1 && l.Rank != 2 && l.Rank != 4:
		return fmt.Sprintf("pages as rows: lanes hold the coefficients of ranks 1, 2 and 4, not %d", l.Rank)
	case s.SummaryTokens() < 16:
		return fmt.Sprintf("pages as rows: lanes share the tokens of pages of 16 and more, not %d", s.SummaryTokens())
	case s.Attention.LogitSoftcap > 0:
		return "pages as rows: a cap bends each logit before the centroid's part can be taken out of the sum"
	}
	return ""
}

// planPageScorePages is the candidates of page_score_pages, best guess first. A spec that has none yields one rejection.
func planPageScorePages(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	if reason := pagesRefusal(s); reason != "" {
		return nil, []Rejected{{pagesCandidate(s, t, immaFit(s, pagesChoices(s)[0])), reason}}
	}
	seen, refused := map[immaChoice]bool{}, map[immaChoice]bool{}
	for _, choice := range pagesChoices(s) {
		choice = immaFit(s, choice)
		if seen[choice] {
			continue
		}
		seen[choice] = true
		c := pagesCandidate(s, t, choice)
		reason := immaMisfit(s, t, choice, c.Geometry, pagesRegisters(s), pagesExchange(s, choice))
		if reason == "" {
			candidates = append(candidates, c)
			continue
		}
		choice.pad, choice.hint, choice.fill = false, false, 0 // what matters little
		if !refused[choice] {
			rejected = append(rejected, Rejected{c, reason})
		}
		refused[choice] = true
	}
	return candidates, rejected
}

// pagesExchange is ImmaPages::tile's exchange: coefficients of each warp's 8 pages, where lanes share them out.
func pagesExchange(s *specs.Spec, choice immaChoice) int {
	if s.Locks.Rank > 2 || s.Locks.Rank*s.SummaryTokens() > 64 || immaPassHeads(s) <= 2 {
		return 0
	}
	return choice.warps * 8 * (s.SummaryTokens()/4*s.Locks.Rank + 1) * 16
}

// pagesRegisters is what a consumer was seen to do with without spilling.
func pagesRegisters(s *specs.Spec) int {
	words := (s.Attention.HeadDim + 63) / 64 * 2
	tiles := (immaPassHeads(s) + 7) / 8
	if pagesBytes(s) && tiles == 1 {
		return 52 + 6*words + 4*s.Locks.Rank
	}
	return 48 + 6*words + (4*words+6*s.Locks.Rank)*tiles
}

// pagesBytes reports whether products are of bytes: of nibbles and bytes under a scale a row, beside queries of which two bytes are enough.
func pagesBytes(s *specs.Spec) bool {
	form := s.Record().Form
	return !form.Centroid4 && !form.Grouped && (s.Locks.BasisBits == 4 || s.Locks.BasisBits == 8) && s.Cache.DType != "fp16"
}

func pagesCandidate(s *specs.Spec, t Target, choice immaChoice) Candidate {
	c := immaCandidate(s, t, choice)
	c.Params = []Param{{"rows", 1}, {"heads", choice.heads}, {"warps", choice.warps}, {"stages", choice.stages}, {"blocks", choice.blocks},
		{"run", choice.run}, {"pad", boolParam(choice.pad)}, {"hint", boolParam(choice.hint)}, {"fill", choice.fill}, {"bytes", boolParam(pagesBytes(s))}}
	c.Header, c.Kernel = "kernels/page_score_pages.cuh", "kvloom::page_score_pages"
	var kept []Constant
	for _, k := range c.Constants {
		if k.Name != "SPLIT" && k.Name != "TOGETHER" && k.Name != "ONES" && k.Name != "FORM" {
			kept = append(kept, k)
		}
	}
	c.Constants = append(append(kept, Constant{"BYTES", fmt.Sprint(pagesBytes(s))}), formConstants(s)...)
	return c
}
