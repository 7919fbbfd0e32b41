package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// KVQuantize quantises pages of a KIVI cache as they become complete.
const KVQuantize Family = "kv_quantize"

// kiviFamilies are those that a KIVI cache adds.
func kiviFamilies(s *specs.Spec) []Family {
	if s.Cache.KiviBits() == 0 {
		return nil
	}
	return []Family{KVQuantize}
}

// planKVQuantize has one kernel: a warp a page and KV head.
func planKVQuantize(s *specs.Spec, t Target) FamilyPlan {
	a, page, bits := s.Attention, s.Cache.PageSize, s.Cache.KiviBits()
	r := s.Kivi()
	p := FamilyPlan{Family: KVQuantize, Cost: func(w specs.Workload) Work {
		pages := int64(w.Batch) * int64(w.Context/page) * int64(a.KVHeads)
		elements := pages * int64(2*page*a.HeadDim)
		return Work{Bytes: 2*elements + pages*int64(r.Bytes), Flops: 6 * elements}
	}}
	pre := s.Locks.Summaries == specs.PreSummaries
	for _, form := range formsOf(t) {
		for _, warps := range []int{4, 8, 2} {
			c := queryCandidate(KVQuantize, s, t, form)
			c.Key = fmt.Sprintf("d%d p%d %s", a.HeadDim, page, s.Cache.DType)
			if pre {
				c.Key += " pre"
			}
			c.Params = []Param{{"warps", warps}}
			c.Constants = []Constant{{"HEAD_DIM", fmt.Sprint(a.HeadDim)}, {"PAGE", fmt.Sprint(page)}, {"BITS", fmt.Sprint(bits)},
				{"WRITE_BACK", fmt.Sprint(pre)}, {"kWarps", fmt.Sprint(warps)}}
			c.Geometry.Block = 32 * warps
			c.Geometry.Grid = [3]launch.Extent{
				{Of: []launch.Quantity{launch.NewPages, launch.KVHeads}, Times: 1, Per: int64(warps), AtMost: int64(t.SMs * 64 / warps)},
				launch.Each(launch.Batch),
				launch.Const(1),
			}
			c.Geometry.Workspace = []launch.Extent{launch.Const(4)} // counts finished blocks
			// Bytes of a page's rows in shared memory: quantize::Grids.
			rows := 16
			if page*a.HeadDim <= 4096 {
				rows = 2 * page * (a.HeadDim + 8)
			}
			if shared := warps * (rows + 8*(a.HeadDim+page*r.Groups)); shared > staticShared-64 {
				p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("%d warps need %d B of static shared memory, the limit is %d B", warps, shared, staticShared-64)})
				continue
			}
			p.Candidates = append(p.Candidates, c)
		}
	}
	return p
}

// kiviAttend is the streaming kernel over a KIVI cache.
const kiviAttend = "kvloom::page_attend_kivi"

// kiviShape is one choice of the tuner: blocks an SM, whose registers the compiler keeps to.
type kiviShape struct {
	form                  Form
	warps, stages, blocks int
}

// kiviShapes, the default of each form first. A stage is a third of one in 16 bits, and unpacking codes takes issue slots: 16 warps an SM are
// wanted, and in two blocks of 8 they are on every SM.
var kiviShapes = []kiviShape{
	{Hopper, 16, 2, 1}, {Hopper, 8, 2, 2}, {Hopper, 16, 3, 1}, {Hopper, 12, 3, 1}, {Hopper, 8, 3, 2}, {Hopper, 8, 3, 1}, {Hopper, 4, 4, 1},
	{Portable, 8, 2, 2}, {Portable, 16, 2, 1}, {Portable, 8, 3, 2}, {Portable, 8, 3, 1}, {Portable, 8, 2, 1},
	{Portable, 4, 3, 1}, {Portable, 4, 2, 1}, {Portable, 2, 2, 1},
}

// rowType is the element of a cache's rows, as page_attend is instantiated for it.
func rowType(s *specs.Spec) string {
	if bits := s.Cache.KiviBits(); bits > 0 {
		return fmt.Sprintf("kvloom::KiviRow<%d, %t>", bits, headsPerList(s) <= 4)
	}
	return "kvloom::" + s.Cache.DType
}

func planKiviAttend(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageAttend, Cost: kiviCost(s)}
	p.Candidates, p.Rejected = attendListCandidates(s, t)
	for _, shape := range kiviShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		c := attendCandidate(s, t, attendShape{shape.form, shape.warps, shape.stages, shape.blocks, false})
		c.Params = append(c.Params, Param{"blocks", shape.blocks})
		c.Header, c.Kernel, c.MinBlocks = "kernels/page_attend_kivi.cuh", kiviAttend, shape.blocks
		z := newAttendSizes(s, shape.stages, 0)
		shared := c.Geometry.DynamicShared + 8*shape.warps*z.tileHeads + z.queryBytes + 32
		limit, who := t.SharedPerBlock, t.Arch
		if shape.form == Portable {
			limit, who = portableShared, "a portable kernel"
		}
		reason := attendLimits(s, t, z, shape.warps*shape.blocks, shape.stages, shared, limit, who)
		if sm := t.SharedPerBlock + 1<<10; reason == "" && shape.blocks*(shared+1<<10) > sm {
			reason = fmt.Sprintf("%d blocks of %d B of shared memory do not fit the %d B of an SM together", shape.blocks, shared, sm)
		}
		if reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

// kiviCost counts whole pages as quantised: the one that is still filling is a small part of any context worth a model.
func kiviCost(s *specs.Spec) Cost {
	rows := attendCost(s)
	return func(w specs.Workload) Work {
		work := rows(w)
		pages := min(int64(s.Slots()), int64((w.Context+s.Cache.PageSize-1)/s.Cache.PageSize))
		tokens := min(pages*int64(s.Cache.PageSize), int64(w.Context))
		lists := int64(w.Batch) * int64(attendLists(s))
		work.Bytes += lists * (pages*int64(s.Kivi().Bytes) - tokens*int64(4*s.Attention.HeadDim))
		return work
	}
}
