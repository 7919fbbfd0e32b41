package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// attendShape is one choice of the tuner for the streaming kernel. waves scales the number of splits: with 1, one block an SM serves a
// batch of one.
type attendShape struct {
	form          Form
	warps, stages int
	waves         int
	bulk          bool // tiles come by bulk copies: page_attend_bulk.cuh
}

// attendShapes, the default of each form first: eight warps of two tiles on nearly every SM keep dense attention fed; more splits cost
// more to add up than they gain.
var attendShapes = []attendShape{
	{Hopper, 8, 2, 1, false}, {Hopper, 8, 1, 1, false}, {Hopper, 4, 2, 1, false}, {Hopper, 4, 2, 2, false}, {Hopper, 8, 3, 1, false}, {Hopper, 4, 3, 2, false},
	{Hopper, 4, 4, 2, false}, {Hopper, 8, 2, 2, false}, {Hopper, 4, 3, 4, false}, {Hopper, 4, 4, 4, false}, {Hopper, 2, 4, 4, false},
	{Hopper, 8, 2, 1, true}, {Hopper, 8, 3, 1, true}, {Hopper, 4, 4, 1, true}, {Hopper, 4, 3, 1, true},
	{Portable, 4, 2, 1, false}, {Portable, 8, 2, 1, false}, {Portable, 8, 1, 1, false}, {Portable, 4, 1, 2, false}, {Portable, 4, 3, 2, false}, {Portable, 4, 2, 4, false},
}

// attendStream is the streaming kernel: dense attention, and lists where there are no clusters.
const attendStream = "kvloom::page_attend"

// attendBulk is the same fed by bulk copies: what dense attention starts from at head dims of 128 and 256.
const attendBulk = "kvloom::page_attend_bulk"

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
	stage := 2 * 16 * 16 * (cacheBytes(s)*d/16 | 1)
	if s.Cache.KiviBits() > 0 { // attend::KiviShape
		stage = s.Kivi().Head + s.Kivi().Tile
	}
	z.ringBytes = max(stages*stage, 4*z.tileHeads*(d+4))
	z.partBytes = 4 * z.tileHeads * (d + 2)
	z.queryBytes = 8 * z.columns * (2*d + 16)
	return z
}

func planPageAttend(s *specs.Spec, t Target) FamilyPlan {
	if s.Cache.KiviBits() > 0 {
		return planKiviAttend(s, t)
	}
	p := FamilyPlan{Family: PageAttend, Cost: attendCost(s)}
	seen := map[string]bool{}
	p.Candidates, p.Rejected = attendListCandidates(s, t)
	for _, shape := range attendShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" || shape.bulk && (s.Attention.HeadDim%128 != 0 || cacheBytes(s) != 2) {
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
	z := newAttendSizes(s, shape.stages, 0)
	arch := t.Arch
	if shape.form == Portable {
		arch = PortableArch
	}
	params := []Param{{"warps", shape.warps}, {"stages", shape.stages}, {"splits", 0}}
	header, kernel := "kernels/page_attend.cuh", attendStream
	if shape.bulk {
		params = append(params, Param{"bulk", 1})
		header, kernel = "kernels/page_attend_bulk.cuh", attendBulk
	}
	splits := max(shape.waves*t.SMs/(attendLists(s)*z.headTiles), 1)
	params[2].Value = splits
	return Candidate{
		Family: PageAttend, Form: shape.form, Arch: arch,
		Key:    attendKey(s),
		Params: params,
		Constants: []Constant{
			{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"HEADS", fmt.Sprint(headsPerList(s))},
			{"LISTS_PER_KV_HEAD", fmt.Sprint(s.Attention.Group() / headsPerList(s))},
			{"T", rowType(s)},
			{"SOFTCAP", fmt.Sprint(s.Attention.LogitSoftcap > 0)},
			{"kWarps", fmt.Sprint(shape.warps)},
			{"kStages", fmt.Sprint(shape.stages)},
			{"kColumns", fmt.Sprint(z.columns)},
			{"kDependent", fmt.Sprint(shape.form == Hopper)},
		},
		Header: header, Kernel: kernel, Entry: string(PageAttend),
		Geometry: launch.Geometry{
			Grid: [3]launch.Extent{
				launch.Const(int64(splits)),
				{Of: []launch.Quantity{launch.Lists}, Times: int64(z.headTiles), Per: 1},
				launch.Each(launch.Batch),
			},
			Block: 32 * shape.warps, Cluster: 1, DynamicShared: shape.warps * z.ringBytes, Dependent: shape.form == Hopper,
			Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists}, Times: int64(z.headTiles) * attendRecord(splits, z.partBytes), Per: 1}},
		},
		MinBlocks: 1,
	}
}

// attendRecord is the workspace of one list and head tile: counters, what each split adds, and what groups of them come to (attend::Meeting).
func attendRecord(splits, partBytes int) int64 {
	const counters, flat, group = 64, 16, 8
	parts := splits
	if splits > flat {
		size := max(group, (splits+counters-2)/(counters-1))
		parts += (splits + size - 1) / size
	}
	return int64(4*counters + (parts*partBytes+255)/256*256)
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
	n := s.Attention.HeadDim/16*z.columns*6 + 80
	if pieces := s.Attention.HeadDim * cacheBytes(s) / 16; 32%pieces != 0 {
		n += 16 // rows that the lanes of a warp do not fill whole have an address a copy
	}
	return n
}

func attendRefusal(s *specs.Spec, t Target, shape attendShape, dynamic int) string {
	limit, who := t.SharedPerBlock, t.Arch
	if shape.form == Portable {
		limit, who = portableShared, "a portable kernel"
	}
	z := newAttendSizes(s, shape.stages, 0)
	return attendLimits(s, t, z, shape.warps, shape.stages, dynamic+8*shape.warps*z.tileHeads+z.queryBytes+32, limit, who)
}

// attendLimits says why warps of these sizes do not fit a block.
func attendLimits(s *specs.Spec, t Target, z attendSizes, warps, stages, shared, limit int, who string) string {
	if need, has := attendRegisters(s, z), t.RegistersPerSM/(32*warps); need > has {
		return fmt.Sprintf("about %d registers a thread, and %d warps leave %d: it would spill", need, warps, has)
	}
	if shared > limit {
		return fmt.Sprintf("%d stages of K and V for %d warps need %d B of shared memory a block, %s has %d B", stages, warps, shared, who, limit)
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
func cacheBytes(s *specs.Spec) int { return s.Cache.ElementBytes() }
