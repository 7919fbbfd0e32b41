package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// immaTile is kImmaTile of page_score_imma.cuh: pages of a tile.
const immaTile = 8

// immaChoice is one choice of the tuner for page_score_imma: about how many warps compute, warps that
// share a tile of a kv head, and KiB of rings in a block.
type immaChoice struct{ warps, parts, ring int }

// immaChoices, in the order of merit.
var immaChoices = []immaChoice{
	{16, 2, 96}, {8, 1, 96}, {16, 2, 128}, {8, 1, 128}, {16, 1, 128}, {16, 1, 192}, {12, 1, 96}, {12, 1, 128}, {8, 1, 64}, {16, 2, 64},
}

// immaHeads is how many kv heads are copied together: the most that divide them evenly among at most 8 warps. A kernel is right for
// any number of kv heads.
func immaHeads(s *specs.Spec) int {
	for n := min(8, s.Attention.KVHeads); n > 1; n-- {
		if s.Attention.KVHeads%n == 0 {
			return n
		}
	}
	return 1
}

// immaRefusal says why a spec has no integer form; empty where it has one.
func immaRefusal(s *specs.Spec) string {
	a, l := s.Attention, s.Locks
	switch {
	case s.Cache.PageSize != 16:
		return fmt.Sprintf("integer tensor cores: tiles are laid out for pages of 16 tokens, not %d", s.Cache.PageSize)
	case l.BasisBits != 4:
		return fmt.Sprintf("integer tensor cores: nibbles are unpacked, not %d bits", l.BasisBits)
	case l.Rank != 4 && l.Rank != 8:
		return fmt.Sprintf("integer tensor cores: a k step holds pages of rank 4 or 8, not %d", l.Rank)
	case a.HeadDim%64 != 0:
		return fmt.Sprintf("integer tensor cores: a quarter of a row must be whole k steps, head_dim a multiple of 64, not %d", a.HeadDim)
	case a.Group() > 16:
		return fmt.Sprintf("integer tensor cores: a warp holds at most 16 query heads, not %d", a.Group())
	case a.LogitSoftcap > 0:
		return "integer tensor cores: a cap bends each logit before the centroid's part can be taken out of the sum"
	}
	return ""
}

// planPageScoreImma is the candidates of page_score_imma, best guess first. A spec that has no integer form yields one rejection.
func planPageScoreImma(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	heads := immaHeads(s)
	reason := immaRefusal(s)
	seen := map[immaParams]bool{}
	for _, choice := range immaChoices {
		p := immaFit(s, choice, heads)
		if seen[p] {
			continue
		}
		seen[p] = true
		c := immaCandidate(s, t, p)
		if reason != "" {
			return nil, []Rejected{{c, reason}}
		}
		if why := immaTooMuch(s, t, c, p); why != "" {
			rejected = append(rejected, Rejected{c, why})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

// immaParams are the template arguments of a choice: groups of heads x parts warps, each with a ring of `stages` tiles.
type immaParams struct{ heads, parts, warps, stages int }

func (p immaParams) groups() int { return p.warps / (p.heads * p.parts) }

// immaFit turns a choice into arguments for tiles of so many kv heads: as many whole groups of warps, and at least 2 tiles for each.
// The query as rows takes whole tiles.
func immaFit(s *specs.Spec, choice immaChoice, heads int) immaParams {
	p := immaParams{heads: heads, parts: choice.parts}
	if s.Attention.Group() > 4 {
		p.parts = 1
	}
	groups := max(choice.warps/(heads*p.parts), 1)
	p.warps, p.stages = groups*heads*p.parts, max(choice.ring<<10/immaTileBytes(s, heads)/groups, 2)
	return p
}

// immaTooMuch says what of an SM a candidate exceeds; empty where it fits.
func immaTooMuch(s *specs.Spec, t Target, c Candidate, p immaParams) string {
	const tile, barriers, row = 16, 16, 40 * 4 // an entry, two barriers, a query head's scores of a run
	shared := c.Geometry.DynamicShared + p.groups()*p.stages*(tile+barriers) + p.warps*s.Attention.Group()*row
	if shared > t.SharedPerBlock {
		return fmt.Sprintf("rings of %d tiles for %d groups of warps and their scores need %d B of shared memory, %s has %d B a block",
			p.stages, p.groups(), shared, t.Arch, t.SharedPerBlock)
	}
	// Each of the 4 partitions of an SM holds whole warps.
	if have := min(65536/((c.Geometry.Block+127)/128*128)/8*8, 255); have < immaRegisters(s) {
		return fmt.Sprintf("about %d registers a thread are live and %d threads leave %d", immaRegisters(s), c.Geometry.Block, have)
	}
	return ""
}

// immaTileBytes is ImmaShape::kStageBytes.
func immaTileBytes(s *specs.Spec, heads int) int {
	r := specs.NewRecord(s.Attention.HeadDim, s.Cache.PageSize, s.Locks.Rank, s.Locks.BasisBits)
	return immaTile * ((heads*r.Bytes+31)/64*64 + 32)
}

// immaRegisters is what a consumer was seen to do with without spilling.
func immaRegisters(s *specs.Spec) int {
	words := s.Attention.HeadDim / 32
	switch group := s.Attention.Group(); {
	case group <= 4:
		return 80 + 4*words
	case group <= 8:
		return 64 + 8*words
	default:
		return 80 + 12*words
	}
}

func immaCandidate(s *specs.Spec, t Target, p immaParams) Candidate {
	c := scoreCandidate(s, t, scoreParams{form: Hopper, warps: p.warps, blocks: 1})
	c.Params = []Param{{"imma", 1}, {"heads", p.heads}, {"parts", p.parts}, {"warps", p.warps}, {"stages", p.stages}}
	c.Header, c.Kernel = "kernels/page_score_imma.cuh", "kvloom::page_score_imma"
	c.Constants = append(c.Constants[:len(c.Constants)-1], // all but WARPS
		Constant{"HEADS", fmt.Sprint(p.heads)}, Constant{"PARTS", fmt.Sprint(p.parts)}, Constant{"CONSUMERS", fmt.Sprint(p.warps)}, Constant{"STAGES", fmt.Sprint(p.stages)})
	c.Geometry = launch.Geometry{
		Grid:  [3]launch.Extent{launch.Each(launch.SMs), launch.Const(1), launch.Const(1)},
		Block: 32 * (p.warps + 2), Cluster: 1,
		DynamicShared: p.groups() * p.stages * immaTileBytes(s, p.heads),
	}
	return c
}
