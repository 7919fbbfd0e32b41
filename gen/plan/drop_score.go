package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// dropScoreShape is one choice of the tuner: blocks are those an SM holds, which bounds registers.
type dropScoreShape struct {
	form          Form
	warps, blocks int
}

var dropScoreShapes = []dropScoreShape{
	{Hopper, 8, 2}, {Hopper, 8, 1}, {Hopper, 4, 3}, {Hopper, 4, 4}, {Hopper, 12, 1}, {Hopper, 16, 1},
	{Portable, 8, 1}, {Portable, 8, 2}, {Portable, 4, 2}, {Portable, 4, 3},
}

// dropScoreSizes mirrors drop::ScoreShape of drop_score.cuh.
type dropScoreSizes struct {
	tiles, rowTiles int // of 8 rows: all, and in shared memory at once
	splits          int
	bytes           int
}

const rowStatsBytes, segmentTiles = 16, 8

func newDropScoreSizes(s *specs.Spec, warps, limit int) dropScoreSizes {
	z := dropScoreSizes{tiles: (dropRows(s) + 7) / 8, splits: dropScoreSplits(s)}
	parts := 1
	if s.DropKV.Rule == "dropkv" {
		parts += z.splits
	}
	perTile := 8 * (parts*((2*s.Attention.HeadDim+63)/128*128+64) + rowStatsBytes)
	sums := warps * segmentTiles * 16 * 4
	z.rowTiles = z.tiles
	if z.tiles*perTile > limit {
		fit := max((limit-sums)/perTile, 1)
		passes := (z.tiles + fit - 1) / fit
		z.rowTiles = (z.tiles + passes - 1) / passes
	} else {
		sums = 0
	}
	z.bytes = z.rowTiles*perTile + sums
	return z
}

func planDropScore(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: DropScore, Cost: dropScoreCost(s)}
	dropScoreWgmma(s, t, &p)
	for _, shape := range dropScoreShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		limit, who := dropShared(shape.form, t)
		c := dropScoreCandidate(s, t, shape, limit/shape.blocks-1024)
		switch {
		case s.DropKV.Rule == "streaming":
			p.Rejected = append(p.Rejected, Rejected{c, "rule streaming needs no scores: drop_select takes the most recent tokens"})
		case c.Geometry.DynamicShared > limit:
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("8 rows of the window need %d B of shared memory a block, %s has %d B", c.Geometry.DynamicShared, who, limit)})
		case s.Attention.HeadDim/2+62 > registersOf(t, shape):
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("fragments of K and V take %d registers a lane, %d warps x %d blocks leave %d: they would spill",
				s.Attention.HeadDim/2, shape.warps, shape.blocks, registersOf(t, shape))})
		default:
			p.Candidates = append(p.Candidates, c)
		}
	}
	return p
}

// registersOf is what a lane may use.
func registersOf(t Target, shape dropScoreShape) int {
	return min(t.RegistersPerSM/(32*shape.warps*shape.blocks), 255)
}

func dropScoreCandidate(s *specs.Spec, t Target, shape dropScoreShape, limit int) Candidate {
	dependent := shape.form == Hopper
	c := Candidate{
		Family: DropScore, Form: shape.form, Arch: dropArch(shape.form, t),
		Key:       dropKey(s),
		Params:    []Param{{"warps", shape.warps}, {"blocks", shape.blocks}},
		Entry:     string(DropScore),
		MinBlocks: shape.blocks,
		Geometry: launch.Geometry{
			Grid: [3]launch.Extent{
				launch.Const(int64(max(t.SMs*shape.blocks/s.Attention.KVHeads, 1))),
				launch.Each(launch.KVHeads), launch.Each(launch.Batch),
			},
			Block: 32 * shape.warps, Cluster: 1, Dependent: dependent,
		},
	}
	if s.DropKV.Rule == "keydiff" {
		c.Header, c.Kernel = "kernels/drop_keydiff.cuh", "kvloom::drop_keydiff_score"
		c.Constants = []Constant{
			{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"T", "kvloom::" + s.Cache.DType},
			{"kWarps", fmt.Sprint(shape.warps)},
			{"kDependent", fmt.Sprint(dependent)},
		}
		return c
	}
	z := newDropScoreSizes(s, shape.warps, limit)
	c.Header, c.Kernel = "kernels/drop_score.cuh", "kvloom::drop_score"
	c.Constants = dropRuleConstants(s, "A", []Constant{
		{"kWarps", fmt.Sprint(shape.warps)},
		{"kRowTiles", fmt.Sprint(z.rowTiles)},
		{"kSplits", fmt.Sprint(z.splits)},
		{"kDependent", fmt.Sprint(dependent)},
	})
	c.Geometry.DynamicShared = z.bytes
	return c
}

// dropScoreCost: K and V once where the window's rows are at most 128, else as often as 128 rows are needed.
func dropScoreCost(s *specs.Spec) Cost {
	return func(w specs.Workload) Work {
		a, rows := s.Attention, int64(dropRows(s))
		tokens := int64(w.Batch) * int64(a.KVHeads) * int64(w.Context)
		d, e := int64(a.HeadDim), int64(cacheBytes(s))
		tensors := int64(2)
		if s.DropKV.Rule == "snapkv" || s.DropKV.Rule == "keydiff" {
			tensors = 1
		}
		var work Work
		if s.DropKV.Rule == "keydiff" {
			work.Bytes, work.Flops = tokens*(e*d+4), 4*tokens*d
			return work
		}
		work.Bytes = tokens*(tensors*e*d*((rows+127)/128)+4) + int64(w.Batch)*int64(a.KVHeads)*rows*(6*d+4)
		work.Flops = 2 * tokens * rows * d * tensors
		work.Exponential = tokens * rows
		return work
	}
}
