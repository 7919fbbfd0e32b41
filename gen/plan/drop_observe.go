package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// dropObserveShape is one choice of the tuner.
type dropObserveShape struct {
	form                         Form
	warps, slice, stages, blocks int
	cluster                      int // splits that merge through distributed shared memory
}

// Clusters of two always find a place for every pair of SMs; of four, an H200 holds too few for one block an SM, and the rest wait.
var dropObserveShapes = []dropObserveShape{
	{Hopper, 8, 16, 3, 1, 2}, {Hopper, 8, 16, 3, 1, 1}, {Hopper, 8, 16, 2, 1, 2}, {Hopper, 8, 16, 4, 1, 1}, {Hopper, 4, 16, 3, 2, 2}, {Hopper, 4, 16, 3, 2, 4}, {Hopper, 4, 32, 2, 2, 4},
	{Hopper, 8, 32, 2, 1, 4}, {Hopper, 4, 16, 3, 2, 1}, {Hopper, 4, 16, 4, 1, 2}, {Hopper, 4, 16, 2, 1, 2}, {Hopper, 4, 16, 1, 1, 2},
	dropObserveWide,
	{Portable, 8, 16, 2, 1, 1}, {Portable, 4, 16, 2, 1, 1}, {Portable, 4, 32, 1, 1, 1}, {Portable, 8, 16, 1, 1, 1}, {Portable, 4, 16, 1, 1, 1}, {Portable, 4, 16, 2, 2, 1},
}

// dropObserveWide merges eight splits before they go to memory: windows of more rows than wgmma takes leave parts of up to 130 KB each.
var dropObserveWide = dropObserveShape{Hopper, 8, 16, 3, 1, 8}

// dropObserveSizes mirrors drop::ObserveShape of drop_observe.cuh.
type dropObserveSizes struct {
	rowWarps, groups, rowBlocks int
	bytes                       int // of shared memory
	partFloats                  int // of a split
}

func newDropObserveSizes(s *specs.Spec, shape dropObserveShape) dropObserveSizes {
	d, rows := s.Attention.HeadDim, dropRows(s)
	z := dropObserveSizes{rowWarps: min((rows+15)/16, shape.warps)}
	z.groups = shape.warps / z.rowWarps
	blockRows := 16 * z.rowWarps
	z.rowBlocks = (rows + blockRows - 1) / blockRows
	stage := z.groups * shape.slice * ((2*d+63)/128*128 + 64 + 2*d + 16)
	z.bytes = shape.stages * stage
	if z.groups > 1 || shape.cluster > 1 {
		z.bytes = max(z.bytes, z.rowWarps*(d/2+4)*32*4)
	}
	z.partFloats = blockRows * (d + 2)
	return z
}

func planDropObserve(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: DropObserve, Cost: dropObserveCost(s)}
	dropObserveWgmma(s, t, &p)
	seen := map[string]bool{}
	shapes := dropObserveShapes
	if dropRows(s) > dropWgmmaProduct {
		shapes = slices.Concat([]dropObserveShape{dropObserveWide}, shapes)
	}
	for _, shape := range shapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		c := dropObserveCandidate(s, t, shape)
		if seen[c.ID()] {
			continue // keydiff has neither tiles nor clusters
		}
		seen[c.ID()] = true
		if reason := dropObserveRefusal(s, t, shape, c); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

func dropObserveRefusal(s *specs.Spec, t Target, shape dropObserveShape, c Candidate) string {
	limit, who := dropShared(shape.form, t)
	d := s.Attention.HeadDim
	// O takes d/2 registers of a lane, the queries d/4, a slice of logits and what else is live about 62.
	need, have := d/2+d/4+54+shape.slice/2, min(t.RegistersPerSM/(c.Geometry.Block*shape.blocks), 255)
	switch {
	case s.DropKV.Rule == "streaming":
		return "rule streaming looks at no query"
	case s.DropKV.Rule == "keydiff":
		return ""
	case c.Geometry.DynamicShared > limit/shape.blocks-1024:
		return fmt.Sprintf("%d stages of K and V need %d B of shared memory a block, %s has %d B for %d", shape.stages, c.Geometry.DynamicShared, who, limit, shape.blocks)
	case need > have:
		return fmt.Sprintf("a lane needs about %d registers, %d blocks of %d threads leave %d: they would spill", need, shape.blocks, c.Geometry.Block, have)
	}
	return ""
}

func dropObserveCandidate(s *specs.Spec, t Target, shape dropObserveShape) Candidate {
	dependent := shape.form == Hopper
	c := Candidate{
		Family: DropObserve, Form: shape.form, Arch: dropArch(shape.form, t),
		Key:       dropKey(s),
		Params:    []Param{{"warps", shape.warps}, {"slice", shape.slice}, {"stages", shape.stages}, {"blocks", shape.blocks}, {"cluster", shape.cluster}},
		Entry:     string(DropObserve),
		MinBlocks: shape.blocks,
	}
	if s.DropKV.Rule == "keydiff" {
		splits := max(t.SMs*shape.blocks/s.Attention.KVHeads, 1)
		c.Params = []Param{{"warps", shape.warps}, {"blocks", shape.blocks}}
		c.Header, c.Kernel = "kernels/drop_keydiff.cuh", "kvloom::drop_keydiff_anchor"
		c.Constants = []Constant{
			{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"T", "kvloom::" + s.Cache.DType},
			{"kWarps", fmt.Sprint(shape.warps)},
			{"kDependent", fmt.Sprint(dependent)},
		}
		part := int64(4 * roundUp(s.Attention.HeadDim+1, 64))
		c.Geometry = launch.Geometry{
			Grid:  [3]launch.Extent{launch.Const(int64(splits)), launch.Each(launch.KVHeads), launch.Each(launch.Batch)},
			Block: 32 * shape.warps, Cluster: 1, Dependent: dependent,
			Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.KVHeads}, Times: 256 + int64(splits)*part, Per: 1}},
		}
		return c
	}
	z := newDropObserveSizes(s, shape)
	// Whole clusters of splits, and no more blocks than an SM each where heads are few enough.
	splits := max(t.SMs*shape.blocks/(s.Attention.KVHeads*z.rowBlocks)/shape.cluster, 1) * shape.cluster
	if shape == dropObserveWide { // no more parts than the scratch is to hold
		most := dropPartsRoom(s) / (s.Attention.KVHeads * z.rowBlocks * (256 + 4*z.partFloats))
		splits = min(splits, max(most, 1)*shape.cluster)
	}
	parts := 2
	if s.DropKV.Precision == "fast" {
		parts = 1
	}
	c.Header, c.Kernel = "kernels/drop_observe.cuh", "kvloom::drop_observe"
	c.Constants = dropConstants(s, "O", []Constant{
		{"kRowWarps", fmt.Sprint(z.rowWarps)},
		{"kGroups", fmt.Sprint(z.groups)},
		{"kSlice", fmt.Sprint(shape.slice)},
		{"kStages", fmt.Sprint(shape.stages)},
		{"kParts", fmt.Sprint(parts)},
		{"kCluster", fmt.Sprint(shape.cluster)},
		{"kDependent", fmt.Sprint(dependent)},
	})
	c.Geometry = launch.Geometry{
		Grid: [3]launch.Extent{
			launch.Const(int64(splits)),
			{Of: []launch.Quantity{launch.KVHeads}, Times: int64(z.rowBlocks), Per: 1},
			launch.Each(launch.Batch),
		},
		Block: 32 * z.rowWarps * z.groups, Cluster: shape.cluster, DynamicShared: z.bytes, Dependent: dependent,
		// One record a KV head and block of rows: a counter, and what each split adds.
		Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.KVHeads}, Times: int64(z.rowBlocks) * (256 + 4*int64(splits/shape.cluster)*int64(z.partFloats)), Per: 1}},
	}
	return c
}

// dropObserveCost: K and V as often as blocks of 128 rows are needed; keydiff K once.
func dropObserveCost(s *specs.Spec) Cost {
	return func(w specs.Workload) Work {
		a, rows := s.Attention, int64(dropRows(s))
		tokens := int64(w.Batch) * int64(a.KVHeads) * int64(w.Context)
		d, e := int64(a.HeadDim), int64(cacheBytes(s))
		if s.DropKV.Rule == "keydiff" {
			return Work{Bytes: tokens * e * d, Flops: 4 * tokens * d}
		}
		return Work{
			Bytes:       tokens*2*e*d*((rows+127)/128) + int64(w.Batch)*int64(a.KVHeads)*rows*(6*d+4),
			Flops:       4 * tokens * rows * d,
			Exponential: tokens * rows,
		}
	}
}
