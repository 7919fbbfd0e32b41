package plan

import (
	"fmt"
	"math/bits"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// dropPoolKinds maps the spec's pools to the C++ enumerators.
var dropPoolKinds = map[string]string{"max": "kMax", "avg": "kAverage", "none": "kNone"}

// dropPoolShapes are threads, and groups of four tokens of a thread.
var dropPoolShapes = []struct {
	form          Form
	threads, each int
}{{Hopper, 256, 2}, {Hopper, 256, 1}, {Hopper, 128, 1}, {Portable, 256, 1}, {Portable, 256, 2}}

func planDropPool(s *specs.Spec, t Target) FamilyPlan {
	k := s.DropKV
	p := FamilyPlan{Family: DropPool, Cost: func(w specs.Workload) Work {
		tokens := int64(w.Batch) * int64(s.Attention.KVHeads) * int64(w.Context)
		return Work{Bytes: 8 * tokens, Flops: tokens * int64(k.Pool.Width)}
	}}
	for _, shape := range dropPoolShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		dependent := shape.form == Hopper
		p.Candidates = append(p.Candidates, Candidate{
			Family: DropPool, Form: shape.form, Arch: dropArch(shape.form, t),
			Key:    fmt.Sprintf("w%d %s %d", k.Window, k.Pool.Kind, k.Pool.Width),
			Params: []Param{{"threads", shape.threads}, {"each", shape.each}},
			Constants: []Constant{
				{"WINDOW", fmt.Sprint(k.Window)},
				{"KIND", "kvloom::drop::Pool::" + dropPoolKinds[k.Pool.Kind]},
				{"WIDTH", fmt.Sprint(k.Pool.Width)},
				{"kThreads", fmt.Sprint(shape.threads)},
				{"kEach", fmt.Sprint(shape.each)},
				{"kDependent", fmt.Sprint(dependent)},
			},
			Header: "kernels/drop_pool.cuh", Kernel: "kvloom::drop_pool", Entry: string(DropPool),
			Geometry: launch.Geometry{
				Grid: [3]launch.Extent{
					{Of: []launch.Quantity{launch.MaxPages}, Times: int64(s.Cache.PageSize), Per: int64(4 * shape.threads * shape.each), AtMost: 4096},
					launch.Each(launch.KVHeads), launch.Each(launch.Batch),
				},
				Block: shape.threads, Cluster: 1, Dependent: dependent,
			},
			MinBlocks: 1,
		})
	}
	return p
}

// dropSelectShape is one choice of the tuner: bins is how many parts a round of selection cuts the keys that compete into.
type dropSelectShape struct {
	form                   Form
	threads, cluster, bins int
}

// dropSelectShapes, the default of each form first. Eight blocks hold a head of 128K tokens in shared memory.
var dropSelectShapes = []dropSelectShape{
	{Hopper, 1024, 8, 512}, {Hopper, 512, 8, 512}, {Hopper, 512, 8, 256}, {Hopper, 512, 4, 512}, {Hopper, 512, 1, 512}, {Hopper, 256, 1, 256},
	{Portable, 512, 1, 512}, {Portable, 1024, 1, 512},
}

// dropSelectWords are the keys that a block keeps, 4 bytes each. A portable block that pools has fewer, for it also keeps the values of a chunk:
// 99 KB are what a block of an older GPU may have.
func dropSelectWords(shape dropSelectShape, pool specs.Pool) int {
	if shape.form == Portable && pool.Width > 1 {
		return 8192
	}
	return 16384
}

// dropSelectShared is the dynamic shared memory of a block: its keys, then drop::SelectShared: bins of every round, of the block and in a
// cluster of all blocks, and some hundred words beside them; then, where it pools, a chunk's values with their neighbours.
func dropSelectShared(shape dropSelectShape, pool specs.Pool) int {
	bits := bits.Len(uint(shape.bins - 1))
	rounds, histograms := 1+(32+bits-1)/bits, 1
	if shape.cluster > 1 {
		histograms += shape.cluster
	}
	warps, staged := shape.threads/32, 0
	if pool.Width > 1 {
		staged = 4 * (16*shape.threads + 2*roundUp(pool.Width/2, 4))
	}
	beside := 8*(rounds+1) + 16*rounds + 8*shape.cluster + 8*warps + 8*shape.bins/32 + 20 + 4*(4*warps+1)
	return 4*dropSelectWords(shape, pool) + (4*rounds*histograms*shape.bins+beside+63)/16*16 + staged
}

func planDropSelect(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: DropSelect, Cost: func(w specs.Workload) Work {
		heads := int64(w.Batch) * int64(s.Attention.KVHeads)
		return Work{Bytes: 4 * heads * (int64(w.Context) + int64(s.DropKV.Keep(w.Context)) + 1), Flops: heads * int64(w.Context)}
	}}
	for _, shape := range dropSelectShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		p.Candidates = append(p.Candidates, dropSelectCandidate(t, shape, specs.Pool{Kind: "none", Width: 1}))
	}
	return p
}

func planDropPoolSelect(s *specs.Spec, t Target) FamilyPlan {
	k := s.DropKV
	p := FamilyPlan{Family: DropPoolSelect, Cost: planDropSelect(s, t).Cost}
	for _, shape := range dropSelectShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		c := dropSelectCandidate(t, shape, k.Pool)
		if limit, who := dropShared(shape.form, t); c.Geometry.DynamicShared > limit-1024 {
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("keys, counts and values to pool need %d B of shared memory a block, %s has %d B", c.Geometry.DynamicShared, who, limit)})
			continue
		}
		c.Family, c.Key, c.Entry = DropPoolSelect, fmt.Sprintf("w%d %s %d", k.Window, k.Pool.Kind, k.Pool.Width), string(DropPoolSelect)
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

// dropSelectCandidate pools values on the way.
func dropSelectCandidate(t Target, shape dropSelectShape, pool specs.Pool) Candidate {
	dependent := shape.form == Hopper
	return Candidate{
		Family: DropSelect, Form: shape.form, Arch: dropArch(shape.form, t),
		Key:    "tokens",
		Params: []Param{{"threads", shape.threads}, {"cluster", shape.cluster}, {"bins", shape.bins}},
		Constants: []Constant{
			{"BINS", fmt.Sprint(shape.bins)},
			{"KIND", "kvloom::drop::Pool::" + dropPoolKinds[pool.Kind]},
			{"WIDTH", fmt.Sprint(pool.Width)},
			{"kThreads", fmt.Sprint(shape.threads)},
			{"kCluster", fmt.Sprint(shape.cluster)},
			{"kBufferWords", fmt.Sprint(dropSelectWords(shape, pool))},
			{"kSharedBytes", fmt.Sprint(dropSelectShared(shape, pool))},
			{"kDependent", fmt.Sprint(dependent)},
		},
		Header: "kernels/drop_select.cuh", Kernel: "kvloom::drop_select", Entry: string(DropSelect),
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.KVHeads}, Times: int64(shape.cluster), Per: 1}, launch.Each(launch.Batch), launch.Const(1)},
			Block: shape.threads, Cluster: shape.cluster, DynamicShared: dropSelectShared(shape, pool), Dependent: dependent,
		},
		MinBlocks: 1,
	}
}

// dropAllotHeads and dropAllotTables are drop::kMaxHeads and drop::kAllotTables of drop_allot.cuh.
const dropAllotHeads, dropAllotTables = 512, 3

// dropAllotShapes, the default of each form first: threads, and into how many parts a round cuts the keys that compete.
var dropAllotShapes = []struct {
	form          Form
	threads, bins int
}{{Hopper, 512, 512}, {Portable, 512, 512}}

func planDropAllot(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: DropAllot, Cost: func(w specs.Workload) Work {
		tokens := int64(w.Batch) * int64(s.Attention.KVHeads) * int64(w.Context)
		return Work{Bytes: 4 * tokens, Flops: tokens}
	}}
	for _, shape := range dropAllotShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		dependent := shape.form == Hopper
		c := Candidate{
			Family: DropAllot, Form: shape.form, Arch: dropArch(shape.form, t),
			Key:    "layer",
			Params: []Param{{"threads", shape.threads}, {"bins", shape.bins}},
			Constants: []Constant{
				{"BINS", fmt.Sprint(shape.bins)},
				{"kThreads", fmt.Sprint(shape.threads)},
				{"kDependent", fmt.Sprint(dependent)},
			},
			Header: "kernels/drop_allot.cuh", Kernel: "kvloom::drop_allot", Entry: string(DropAllot),
			Geometry: launch.Geometry{
				// A block an SM: those of a request wait for each other. Which have work, the lengths say.
				Grid:  [3]launch.Extent{launch.Each(launch.SMs), launch.Each(launch.Batch), launch.Const(1)},
				Block: shape.threads, Cluster: 1, Dependent: dependent,
				Workspace: []launch.Extent{launch.Const(256), {Of: []launch.Quantity{launch.Batch}, Times: 256, Per: 1},
					{Of: []launch.Quantity{launch.Batch, launch.KVHeads}, Times: int64(4 * dropAllotTables * shape.bins), Per: 1}},
			},
			MinBlocks: 1,
		}
		if s.Attention.KVHeads > dropAllotHeads {
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("%d KV heads a layer, a block keeps the state of %d", s.Attention.KVHeads, dropAllotHeads)})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

// dropCompactShapes are threads, and 16-byte pieces of K and of V that a thread has in flight.
var dropCompactShapes = []struct {
	form          Form
	threads, each int
}{{Hopper, 256, 1}, {Hopper, 128, 1}, {Hopper, 256, 2}, {Hopper, 256, 4}, {Portable, 256, 1}, {Portable, 256, 4}}

func planDropCompact(s *specs.Spec, t Target) FamilyPlan {
	row := int64(s.Attention.HeadDim * cacheBytes(s)) // bytes
	p := FamilyPlan{Family: DropCompact, Cost: func(w specs.Workload) Work {
		kept := int64(w.Batch) * int64(s.Attention.KVHeads) * int64(s.DropKV.Keep(w.Context))
		return Work{Bytes: kept * (4*row + 8)}
	}}
	for _, shape := range dropCompactShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		dependent := shape.form == Hopper
		p.Candidates = append(p.Candidates, Candidate{
			Family: DropCompact, Form: shape.form, Arch: dropArch(shape.form, t),
			Key:    compactKey(s),
			Params: []Param{{"threads", shape.threads}, {"each", shape.each}},
			Constants: []Constant{
				{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
				{"PAGE", fmt.Sprint(s.Cache.PageSize)},
				{"T", "kvloom::" + s.Cache.DType},
				{"kThreads", fmt.Sprint(shape.threads)},
				{"kEach", fmt.Sprint(shape.each)},
				{"kDependent", fmt.Sprint(dependent)},
			},
			Header: "kernels/drop_compact.cuh", Kernel: "kvloom::drop_compact", Entry: string(DropCompact),
			Geometry: launch.Geometry{
				Grid: [3]launch.Extent{
					// Every piece of every slot in flight at once, or four blocks an SM.
					{Of: []launch.Quantity{launch.Slots}, Times: row / 16, Per: int64(shape.threads * shape.each), AtMost: int64(max(4*t.SMs/s.Attention.KVHeads, 1))},
					launch.Each(launch.KVHeads), launch.Each(launch.Batch),
				},
				Block: shape.threads, Cluster: 1, Dependent: dependent,
			},
			MinBlocks: 1,
		})
	}
	return p
}

// compactKey names what drop_compact was specialised for: it moves bytes, whatever they mean.
func compactKey(s *specs.Spec) string {
	key := fmt.Sprintf("d%d p%d", s.Attention.HeadDim, s.Cache.PageSize)
	if s.Cache.DType == specs.FP8 {
		key += " fp8"
	}
	return key
}
