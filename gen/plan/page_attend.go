package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// attendShape is one choice of the tuner. waves scales the number of splits: with 1, one block an SM serves a batch of one. A
// cluster is as many splits, whatever the number of heads.
type attendShape struct {
	form          Form
	warps, stages int
	waves         int
	cluster       int
	columns       int // n tiles of a warp; 0: as many as registers allow
}

// attendShapes, the default of each form first: eight warps and one wave give every warp one tile of the usual 128 pages by 8 heads,
// and dense attention nearly every SM. A cluster merges its blocks without a trip through memory, but at 8 heads it leaves half the
// SMs idle. More waves and stages are for dense attention over long contexts, which wants bytes in flight.
var attendShapes = []attendShape{
	{Hopper, 8, 2, 1, 1, 0}, {Hopper, 8, 1, 1, 1, 0}, {Hopper, 8, 2, 0, 8, 0}, {Hopper, 16, 1, 0, 8, 0}, {Hopper, 8, 1, 0, 8, 0}, {Hopper, 8, 1, 0, 16, 0},
	{Hopper, 8, 2, 0, 16, 0}, {Hopper, 4, 2, 1, 1, 0}, {Hopper, 4, 2, 2, 1, 0}, {Hopper, 8, 3, 1, 1, 0}, {Hopper, 4, 3, 2, 1, 0},
	{Hopper, 4, 4, 2, 1, 0}, {Hopper, 8, 2, 2, 1, 0}, {Hopper, 4, 3, 4, 1, 0}, {Hopper, 4, 4, 4, 1, 0}, {Hopper, 2, 4, 4, 1, 0},
	{Portable, 4, 2, 1, 1, 0}, {Portable, 8, 2, 1, 1, 0}, {Portable, 8, 1, 1, 1, 0}, {Portable, 4, 1, 2, 1, 0}, {Portable, 4, 3, 2, 1, 0}, {Portable, 4, 2, 4, 1, 0},
}

// attendStream is the streaming kernel: dense attention, and lists where there are no clusters.
const attendStream = "kvloom::page_attend"

// portableShared is what a block may have on every GPU since compute capability 8.0 (8.6, 8.9 and 12.0 have 99 KB).
const portableShared = 99 << 10

// attendSizes mirrors attend::Shape of page_attend.cuh.
type attendSizes struct {
	columns    int // n tiles of 8 query heads that a warp carries
	tileHeads  int // query heads of a block
	headTiles  int // blocks that a list's heads need
	ringBytes  int // of one warp
	partBytes  int // of one split
	queryBytes int
}

// newAttendSizes takes the n tiles of a warp, 0 for as many as registers allow.
func newAttendSizes(s *specs.Spec, stages, columns int) attendSizes {
	heads, d := headsPerList(s), s.Attention.HeadDim
	z := attendSizes{columns: 1}
	// Two n tiles hold d/2 accumulators and d/4 query registers a lane; at 192 dims they spill.
	if heads > 8 && d <= 128 && columns != 1 {
		z.columns = 2
	}
	z.tileHeads = min(heads, 8*z.columns)
	z.headTiles = (heads + 8*z.columns - 1) / (8 * z.columns)
	z.ringBytes = max(stages*2*16*16*(cacheBytes(s)*d/16|1), 4*z.tileHeads*(d+4))
	z.partBytes = 4 * z.tileHeads * (d + 2)
	z.queryBytes = 8 * z.columns * (2*d + 16)
	return z
}

func planPageAttend(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageAttend, Cost: attendCost(s)}
	seen := map[string]bool{}
	p.Candidates, p.Rejected = attendListCandidates(s, t)
	for _, shape := range attendShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		c := attendCandidate(s, t, shape)
		if seen[c.ID()] {
			continue // with many heads, several numbers of waves come to one number of splits
		}
		seen[c.ID()] = true
		if reason := attendRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

// attendLists is how many page lists a request has.
func attendLists(s *specs.Spec) int { return s.Attention.QueryHeads / headsPerList(s) }

func attendCandidate(s *specs.Spec, t Target, shape attendShape) Candidate {
	z := newAttendSizes(s, shape.stages, shape.columns)
	arch := t.Arch
	if shape.form == Portable {
		arch = PortableArch
	}
	splits := shape.cluster
	if shape.cluster == 1 {
		splits = max(shape.waves*t.SMs/(attendLists(s)*z.headTiles), 1)
	}
	dependent := shape.form == Hopper
	record := int64(256 + (splits*z.partBytes+255)/256*256)
	return Candidate{
		Family: PageAttend, Form: shape.form, Arch: arch,
		Key:    attendKey(s),
		Params: []Param{{"warps", shape.warps}, {"stages", shape.stages}, {"splits", splits}, {"cluster", shape.cluster}},
		Constants: []Constant{
			{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"HEADS", fmt.Sprint(headsPerList(s))},
			{"LISTS_PER_KV_HEAD", fmt.Sprint(s.Attention.Group() / headsPerList(s))},
			{"T", "kvloom::" + s.Cache.DType},
			{"SOFTCAP", fmt.Sprint(s.Attention.LogitSoftcap > 0)},
			{"kWarps", fmt.Sprint(shape.warps)},
			{"kStages", fmt.Sprint(shape.stages)},
			{"kColumns", fmt.Sprint(z.columns)},
			{"kCluster", fmt.Sprint(shape.cluster)},
			{"kDependent", fmt.Sprint(dependent)},
		},
		Header: "kernels/page_attend.cuh", Kernel: attendStream, Entry: string(PageAttend),
		Geometry: launch.Geometry{
			Grid: [3]launch.Extent{
				launch.Const(int64(splits)),
				{Of: []launch.Quantity{launch.Lists}, Times: int64(z.headTiles), Per: 1},
				launch.Each(launch.Batch),
			},
			Block: 32 * shape.warps, Cluster: shape.cluster, DynamicShared: shape.warps * z.ringBytes, Dependent: dependent,
			// One record a list and head tile: a counter, and what each split adds.
			Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists}, Times: int64(z.headTiles) * record, Per: 1}},
		},
		MinBlocks: 1,
	}
}

// attendKey names what the kernel computes; splits, warps and stages change only how.
func attendKey(s *specs.Spec) string {
	key := fmt.Sprintf("d%d p%d h%d/%d %s", s.Attention.HeadDim, s.Cache.PageSize, headsPerList(s), s.Attention.Group(), s.Cache.DType)
	if s.Attention.LogitSoftcap > 0 {
		key += " cap"
	}
	return key
}

// attendRegisters estimates a thread's registers: six for each k step and n tile (four accumulators, two of the query), and about 80
// for addresses, masks and the products in flight, by the compiler's report for 64 to 256 dims.
func attendRegisters(s *specs.Spec, z attendSizes) int {
	return s.Attention.HeadDim/16*z.columns*6 + 80
}

func attendRefusal(s *specs.Spec, t Target, shape attendShape, dynamic int) string {
	limit, who := t.SharedPerBlock, t.Arch
	if shape.form == Portable {
		limit, who = portableShared, "a portable kernel"
	}
	z := newAttendSizes(s, shape.stages, shape.columns)
	if need, has := attendRegisters(s, z), t.RegistersPerSM/(32*shape.warps); need > has {
		return fmt.Sprintf("about %d registers a thread, and %d warps leave %d: it would spill", need, shape.warps, has)
	}
	static := 8*shape.warps*z.tileHeads + z.queryBytes + 32
	if shape.cluster > 1 {
		static += z.partBytes
	}
	if dynamic+static > limit {
		return fmt.Sprintf("%d stages of K and V for %d warps need %d B of shared memory a block, %s has %d B", shape.stages, shape.warps,
			dynamic+static, who, limit)
	}
	return ""
}

func attendCost(s *specs.Spec) Cost {
	return func(w specs.Workload) Work {
		a := s.Attention
		pages := min(int64(s.Slots()), int64((w.Context+s.Cache.PageSize-1)/s.Cache.PageSize))
		tokens := min(pages*int64(s.Cache.PageSize), int64(w.Context))
		lists, heads := int64(w.Batch)*int64(attendLists(s)), int64(w.Batch)*int64(a.QueryHeads)
		return Work{
			Bytes:       lists*(tokens*int64(a.HeadDim*2*cacheBytes(s))+4*pages) + heads*(int64(a.HeadDim)*2*2+4),
			Flops:       4 * heads * tokens * int64(a.HeadDim),
			Exponential: heads * tokens,
		}
	}
}

// cacheBytes is what an element of K or V takes.
func cacheBytes(s *specs.Spec) int {
	if s.Cache.DType == "fp8_e4m3" {
		return 1
	}
	return 2
}
