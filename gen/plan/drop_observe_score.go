package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// dropFusedShape is one choice of the tuner: tiles in each of the two rings, whether logits are kept, the tiles at a block's end that
// are left in L2, and the tiles whose values' squares are kept beside those whose logits are.
type dropFusedShape struct {
	stages  int
	keep    bool
	warm    int
	squares int
}

// dropFusedShapes are for windows of so many tiles of 8 rows, best guesses first. Wide windows read K of most tiles again, so fewer tiles
// fill L2, and have no time for squares of values in pass two.
func dropFusedShapes(rowTiles int) []dropFusedShape {
	list := []dropFusedShape{
		{2, true, 16, 0}, {2, true, 12, 0}, {2, true, 8, 0}, {3, true, 16, 0}, {2, true, 24, 0},
		{4, true, 16, 0}, {2, true, 0, 0}, {4, false, 16, 0}, {2, false, 16, 0},
	}
	if rowTiles > 4 {
		wide := dropFusedShape{2, true, 8, 0}
		list = append([]dropFusedShape{wide}, slices.DeleteFunc(list, func(x dropFusedShape) bool { return x == wide })...)
		// Where no logits are kept there is room for squares: 347 us for 362 to 367 at 64 rows, 8 heads of 128K tokens.
		first := slices.IndexFunc(list, func(x dropFusedShape) bool { return !x.keep })
		list = slices.Insert(list, first, dropFusedShape{2, false, 8, dropFusedSquares})
	}
	return list
}

// dropFusedSquares is the most tiles of a block whose values' squares are kept: those of 128K tokens on 33 blocks a head.
const dropFusedSquares = 64

// dropFusedSplits is the 16-bit parts of an output, which pass one makes in f32.
const dropFusedSplits = 2

// dropFuses reports whether observing and scoring can be one launch: it adds sums in no fixed order and keeps logits in 16 bits, so exact
// precision never takes it.
func dropFuses(s *specs.Spec, t Target) bool {
	return t.Arch == "sm_90a" && s.DropKV.Rule == "dropkv" && s.DropKV.Precision == "fast" && s.Cache.DType != specs.FP8 && dropRows(s) <= dropWgmmaProduct &&
		(s.Attention.HeadDim == 64 || s.Attention.HeadDim == 128) && s.Attention.KVHeads <= t.SMs
}

// dropFusedSizes mirrors drop::FusedShape of drop_observe_score.cuh.
type dropFusedSizes struct {
	rowTiles, keep, squares int
	bytes                   int // of shared memory
	words                   int // of a head's workspace
}

func newDropFusedSizes(s *specs.Spec, t Target, shape dropFusedShape) dropFusedSizes {
	d := s.Attention.HeadDim
	rowTiles, _ := dropWgmmaRowTiles(dropRows(s))
	n := 8 * rowTiles
	z := dropFusedSizes{rowTiles: rowTiles, words: 128 + 2*n*(d+1)}
	outputs := max(dropFusedSplits*2*d*n, 4*2*ringTokens*n)
	z.bytes = 2*shape.stages*dropTileBytes(d) + 2*d*n + outputs + n*(rowStatsBytes+24) + 2*ringStateBytes(shape.stages) + 32
	squareBytes := ringTokens * 4
	z.squares = shape.squares
	z.bytes += z.squares * squareBytes
	if shape.keep {
		each := ringTokens * 2 * n
		if z.squares == 0 {
			each += squareBytes
		}
		z.keep = min(max((t.SharedPerBlock-1024-z.bytes)/each, 0), dropFusedSquares)
		z.bytes += z.keep * each
		z.squares = max(z.squares, z.keep)
	}
	return z
}

func planDropObserveScore(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: DropObserveScore, Cost: dropObserveScoreCost(s)}
	rowTiles, _ := dropWgmmaRowTiles(dropRows(s))
	for _, shape := range dropFusedShapes(rowTiles) {
		c := dropFusedCandidate(s, t, shape)
		if rows := dropRows(s); shape.keep && rows > 56 {
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("%d rows of the window leave no registers to keep logits: they would spill", rows)})
			continue
		}
		if c.Geometry.DynamicShared > t.SharedPerBlock-1024 {
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("two rings of %d tiles need %d B of shared memory, %s has %d B", shape.stages, c.Geometry.DynamicShared, t.Arch, t.SharedPerBlock)})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

func dropFusedCandidate(s *specs.Spec, t Target, shape dropFusedShape) Candidate {
	z := newDropFusedSizes(s, t, shape)
	return Candidate{
		Family: DropObserveScore, Form: Hopper, Arch: t.Arch,
		Key:    dropKey(s),
		Params: []Param{{"stages", shape.stages}, {"keep", z.keep}, {"warm", shape.warm}, {"squares", z.squares}},
		Entry:  string(DropObserveScore),
		Header: "kernels/drop_observe_score.cuh", Kernel: "kvloom::drop_observe_score",
		MinBlocks: 1,
		Constants: dropConstants(s, "", []Constant{
			{"kStages", fmt.Sprint(shape.stages)},
			{"kRowTiles", fmt.Sprint(z.rowTiles)},
			{"kSplits", fmt.Sprint(dropFusedSplits)},
			{"kKeep", fmt.Sprint(z.keep)},
			{"kSquares", fmt.Sprint(z.squares)},
			{"kWarm", fmt.Sprint(shape.warm)},
			{"kDependent", "true"},
		}),
		Geometry: launch.Geometry{
			// One block an SM: those of a head wait for each other.
			Grid:  [3]launch.Extent{launch.Const(int64(max(t.SMs/s.Attention.KVHeads, 1))), launch.Each(launch.KVHeads), launch.Each(launch.Batch)},
			Block: 384, Cluster: 1, Dependent: true, DynamicShared: z.bytes,
			Workspace: []launch.Extent{launch.Const(256), {Of: []launch.Quantity{launch.Batch, launch.KVHeads}, Times: int64(4 * z.words), Per: 1}},
		},
	}
}

// dropObserveScoreCost: K and V twice.
func dropObserveScoreCost(s *specs.Spec) Cost {
	return dropObserveCost(s).and(dropScoreCost(s))
}
