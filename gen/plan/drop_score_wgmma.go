package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// dropWgmmaShape is one choice of the tuner: warpgroups of a block, blocks an SM holds, and tiles of 64 tokens in each group's ring.
type dropWgmmaShape struct {
	groups, blocks, stages int
}

var dropWgmmaShapes = []dropWgmmaShape{
	{1, 2, 3}, {1, 3, 2}, {3, 1, 3}, {2, 1, 5}, {1, 2, 4}, {2, 1, 4}, {2, 1, 3}, {2, 1, 2}, {1, 2, 2}, {1, 1, 5},
}

// dropWgmmaProduct is the most rows of the window in one product.
const dropWgmmaProduct = 64

// ringTokens, dropTileBytes and ringStateBytes mirror ring.cuh.
const ringTokens = 64

func dropTileBytes(headDim int) int { return ringTokens * 2 * headDim }

func ringStateBytes(stages int) int { return 24 * stages }

func dropWgmmaThreads(groups int) int {
	if groups > 2 {
		return 128*groups + 128
	}
	return 160 * groups
}

// dropWgmmaRowTiles is the tiles of 8 rows in one product, and how many products hold the window.
func dropWgmmaRowTiles(rows int) (rowTiles, chunks int) {
	tiles := (rows + 7) / 8
	chunks = (rows + dropWgmmaProduct - 1) / dropWgmmaProduct
	return (tiles + chunks - 1) / chunks, chunks
}

// dropScoreSplits is the 16-bit parts of an attention output.
func dropScoreSplits(s *specs.Spec) int {
	if s.DropKV.Precision == "exact" {
		return map[string]int{"bf16": 3, "fp16": 2}[s.Cache.Compute()]
	}
	return 1
}

// noWideRows is why kernels with bulk copies leave 8-bit caches to others.
const noWideRows = "a bulk copy brings rows as they are, and 8-bit elements are widened on their way to shared memory"

// dropScoreHeld is the tiles of a group whose scores wait in what is left of shared memory: at most 64, as many as a block of an H200 has
// of a prompt of 128K tokens and 8 KV heads.
func dropScoreHeld(t Target, shape dropWgmmaShape, used int) int {
	left := t.SharedPerBlock/shape.blocks - 1024 - used
	return max(0, min(64, left/(shape.groups*4*ringTokens)/8*8))
}

// dropScoreWgmma adds the candidates with wgmma, best guesses first.
func dropScoreWgmma(s *specs.Spec, t Target, p *FamilyPlan) {
	if t.Arch != "sm_90a" || s.DropKV.Rule == "keydiff" || s.DropKV.Rule == "streaming" {
		return
	}
	shapes := slices.Clone(dropWgmmaShapes)
	if s.DropKV.Precision == "fast" { // three groups have fewer parts of outputs to hold
		shapes = slices.Concat(shapes[2:3], shapes[:2], shapes[3:])
	}
	for _, shape := range shapes {
		c := dropScoreWgmmaCandidate(s, t, shape)
		if reason := dropScoreWgmmaRefusal(s, t, shape, c); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
}

func dropScoreWgmmaRefusal(s *specs.Spec, t Target, shape dropWgmmaShape, c Candidate) string {
	if s.Cache.DType == specs.FP8 {
		return noWideRows
	}
	d, rows := s.Attention.HeadDim, dropRows(s)
	rowTiles, _ := dropWgmmaRowTiles(rows)
	// Fragments of K or V take d/4 registers, three accumulators 4 a tile each, the rest about 40. A scheduler has a quarter of an SM's
	// registers for a quarter of its warps, rounded up.
	warps := (5*shape.groups*shape.blocks + 3) / 4 * 4
	need, have := d/4+12*rowTiles+40, min(t.RegistersPerSM/(32*warps)/8*8, 255)
	if shape.groups > 2 {
		have = 160
	}
	switch {
	case d > 128:
		return fmt.Sprintf("fragments of K and V take %d registers a lane at head dim %d: wgmma leaves room for 64", d/2, d)
	case rows > 128:
		return fmt.Sprintf("%d rows of the window, two products of wgmma take 128", rows)
	case c.Geometry.DynamicShared > t.SharedPerBlock/shape.blocks-1024:
		return fmt.Sprintf("%d rings of %d tiles need %d B of shared memory a block, %s has %d B for %d", shape.groups, shape.stages, c.Geometry.DynamicShared, t.Arch, t.SharedPerBlock, shape.blocks)
	case need > have:
		return fmt.Sprintf("a lane needs about %d registers, %d blocks of %d threads leave %d: they would spill", need, shape.blocks, c.Geometry.Block, have)
	}
	return ""
}

func dropScoreWgmmaCandidate(s *specs.Spec, t Target, shape dropWgmmaShape) Candidate {
	rowTiles, chunks := dropWgmmaRowTiles(dropRows(s))
	d, parts := s.Attention.HeadDim, 1
	if s.DropKV.Rule == "dropkv" {
		parts += dropScoreSplits(s)
	}
	rows := chunks * 8 * rowTiles
	shared := shape.groups*shape.stages*dropTileBytes(d) + rows*(2*d*parts+rowStatsBytes) + shape.groups*ringStateBytes(shape.stages)
	own := []Constant{
		{"kGroups", fmt.Sprint(shape.groups)},
		{"kStages", fmt.Sprint(shape.stages)},
		{"kRowTiles", fmt.Sprint(rowTiles)},
		{"kSplits", fmt.Sprint(dropScoreSplits(s))},
		{"kDependent", "true"},
	}
	if s.DropKV.Precision == "fast" {
		if s.DropKV.Rule == "dropkv" && chunks == 1 {
			shared += 8 * rows
		}
		held := dropScoreHeld(t, shape, shared)
		shared += shape.groups * held * 4 * ringTokens
		own = append(own, Constant{"kHeld", fmt.Sprint(held)})
	}
	return Candidate{
		Family: DropScore, Form: Hopper, Arch: t.Arch,
		Key:       dropKey(s),
		Params:    []Param{{"groups", shape.groups}, {"blocks", shape.blocks}, {"stages", shape.stages}},
		Entry:     string(DropScore),
		MinBlocks: shape.blocks,
		Header:    "kernels/drop_score_wgmma.cuh", Kernel: "kvloom::drop_score_wgmma",
		Constants: dropRuleConstants(s, "A", own),
		Geometry: launch.Geometry{
			Grid: [3]launch.Extent{
				launch.Const(int64(max(t.SMs*shape.blocks/s.Attention.KVHeads, 1))),
				launch.Each(launch.KVHeads), launch.Each(launch.Batch),
			},
			Block: dropWgmmaThreads(shape.groups), Cluster: 1, Dependent: true,
			DynamicShared: shared,
		},
	}
}
