package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// immaTile is kImmaTile of page_score_imma.cuh: pages of a tile.
const immaTile = 8

// immaChoice is one choice of the tuner for page_score_imma: warps that compute, and tiles in the block's ring.
type immaChoice struct{ warps, stages int }

// immaChoices, in the order of merit for rank 4 and 8 kv heads. Stages count what a tile of 8 kv heads of rank 4 takes (31 KiB); for
// smaller tiles a ring of the same bytes has more.
var immaChoices = []immaChoice{{8, 3}, {16, 4}, {12, 3}, {8, 4}, {8, 2}, {16, 3}, {8, 6}, {16, 6}}

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
	seen := map[immaChoice]bool{}
	for _, choice := range immaChoices {
		choice = immaFit(s, choice, heads)
		if seen[choice] {
			continue
		}
		seen[choice] = true
		c := immaCandidate(s, t, choice, heads)
		if reason != "" {
			return nil, []Rejected{{c, reason}}
		}
		static := (16 + 16) * choice.stages // entries and barriers
		// Each of the 4 partitions of an SM holds whole warps.
		switch have := min(65536/((c.Geometry.Block+127)/128*128)/8*8, 255); {
		case c.Geometry.DynamicShared+static > t.SharedPerBlock:
			rejected = append(rejected, Rejected{c, fmt.Sprintf("a ring of %d tiles needs %d B of shared memory, %s has %d B a block",
				choice.stages, c.Geometry.DynamicShared+static, t.Arch, t.SharedPerBlock)})
		case have < immaRegisters(s):
			rejected = append(rejected, Rejected{c, fmt.Sprintf("about %d registers a thread are live and %d threads leave %d",
				immaRegisters(s), c.Geometry.Block, have)})
		default:
			candidates = append(candidates, c)
		}
	}
	return candidates, rejected
}

// immaFit turns a choice for tiles of 8 kv heads of rank 4 into one for this spec's: the warps a multiple of the heads, and about as
// many bytes in the ring, two stages at least for each group of warps.
func immaFit(s *specs.Spec, choice immaChoice, heads int) immaChoice {
	wanted := choice.stages * 32 << 10
	choice.warps = choice.warps / heads * heads
	groups := choice.warps / heads
	choice.stages = max(wanted/immaTileBytes(s, heads)/groups*groups, 2*groups) // a stage belongs to one group for good
	return choice
}

// immaTileBytes is ImmaShape::kStageBytes.
func immaTileBytes(s *specs.Spec, heads int) int {
	r := specs.NewRecord(s.Attention.HeadDim, s.Cache.PageSize, s.Locks.Rank, s.Locks.BasisBits)
	n := heads * r.Bytes
	if n%128 == 0 {
		return immaTile * n
	}
	return immaTile * ((n+31)/64*64 + 32)
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

func immaCandidate(s *specs.Spec, t Target, choice immaChoice, heads int) Candidate {
	c := scoreCandidate(s, t, scoreParams{form: Hopper, warps: choice.warps, blocks: 1})
	c.Params = []Param{{"imma", 1}, {"heads", heads}, {"warps", choice.warps}, {"stages", choice.stages}}
	c.Header, c.Kernel = "kernels/page_score_imma.cuh", "kvloom::page_score_imma"
	c.Constants = append(c.Constants[:len(c.Constants)-1], // all but WARPS
		Constant{"HEADS", fmt.Sprint(heads)}, Constant{"CONSUMERS", fmt.Sprint(choice.warps)}, Constant{"STAGES", fmt.Sprint(choice.stages)})
	c.Geometry = launch.Geometry{
		Grid:  [3]launch.Extent{launch.Each(launch.SMs), launch.Const(1), launch.Const(1)},
		Block: 32 * (choice.warps + 2), Cluster: 1,
		DynamicShared: choice.stages * immaTileBytes(s, heads),
	}
	return c
}
