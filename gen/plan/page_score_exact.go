package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// exactRing is one choice of page_score_exact_bulk: a warp's ring holds so many steps of 16 tokens.
type exactRing struct{ warps, blocks, stages int }

// exactRings, the default first: what an SM has on its way is warps * blocks * stages steps of 4 KiB at head dim 128.
var exactRings = []exactRing{{12, 1, 4}, {8, 1, 6}, {8, 1, 4}, {4, 3, 4}, {12, 1, 3}, {4, 1, 12}, {4, 1, 6}, {8, 1, 3}, {4, 2, 6}, {12, 1, 2}}

// planExactBulk is the candidates of page_score_exact_bulk.
func planExactBulk(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	for _, ring := range exactRings {
		c := exactBulkCandidate(s, t, ring)
		need, have := plainRegisters(s, 1)+4, scoreRegistersLeft(scoreParams{warps: ring.warps, blocks: ring.blocks})
		dynamic, static := c.Geometry.DynamicShared, 8*ring.warps*ring.stages
		switch {
		case need > have:
			rejected = append(rejected, Rejected{c, fmt.Sprintf("about %d registers a thread are live and %d warps x %d blocks an SM leave %d", need, ring.warps, ring.blocks, have)})
		case dynamic+static > t.SharedPerBlock || (dynamic+static+1024)*ring.blocks > t.SharedPerBlock+1024:
			rejected = append(rejected, Rejected{c, fmt.Sprintf("%d blocks of %d B of shared memory, an SM has %d B", ring.blocks, dynamic+static, t.SharedPerBlock)})
		default:
			candidates = append(candidates, c)
		}
	}
	return candidates, rejected
}

func exactBulkCandidate(s *specs.Spec, t Target, ring exactRing) Candidate {
	c := plainScoreCandidate(s, t, Hopper, exactChoice{plainChoice{ring.warps, ring.blocks}, 1})
	c.Header, c.Kernel = "kernels/page_score_exact_bulk.cuh", "kvloom::page_score_exact_bulk"
	last := len(c.Params) - 1
	c.Params[last], c.Constants[len(c.Constants)-1] = Param{"stages", ring.stages}, Constant{"STAGES", fmt.Sprint(ring.stages)}
	c.Geometry.DynamicShared = ring.warps * ring.stages * 32 * s.Attention.HeadDim
	return c
}
