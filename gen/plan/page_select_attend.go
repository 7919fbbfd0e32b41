package plan

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// PageSelectAttend selects and attends in one launch, where a layer has few enough lists that all of their clusters run at once.
const PageSelectAttend Family = "page_select_attend"

// selectAttendShape is one choice of the tuner: a cluster of blocks selects a list and attends to it.
type selectAttendShape struct {
	warps, stages, cluster int
	shares                 bool // a launch of its own makes the shares
}

// selectAttendShapes, the default of many lists first.
var selectAttendShapes = []selectAttendShape{
	{16, 1, 8, false}, {8, 2, 8, false}, {8, 1, 8, false}, {16, 1, 16, false}, {8, 2, 16, false}, {8, 1, 16, false},
	{16, 1, 16, true}, {8, 2, 16, true}, {16, 1, 8, true}, {8, 2, 8, true},
}

// listSlots is select::kListSlots: slots of a list that a block keeps.
const listSlots = 512

func planPageSelectAttend(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageSelectAttend, Cost: selectCost(s).and(attendCost(s))}
	if t.Arch != "sm_90a" {
		return p
	}
	for _, shape := range selectAttendShapes {
		if shape.shares && selectSharesRefusal(s, shape.selection()) != "" {
			continue // page_select names the reason
		}
		c := selectAttendCandidate(s, t, shape)
		if reason := selectAttendRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	candidates, rejected := directCandidates(s, t)
	p.Candidates, p.Rejected = append(candidates, p.Candidates...), append(p.Rejected, rejected...)
	if attendLists(s) <= clustersOf16 { // more SMs for few lists
		p.Candidates = lead(p.Candidates, func(c Candidate) bool { return c.Param("cluster") == 16 })
	}
	p.Candidates = leadWithShares(s, p.Candidates)
	return p
}

// sizes are attend::Shape's: with 16 warps, which leave 128 registers a thread, a warp has 8 heads at most, and wide groups two halves of
// the warps.
func (x selectAttendShape) sizes(s *specs.Spec) attendSizes {
	columns := 0
	if x.warps > 8 {
		columns = 1
	}
	return newAttendSizes(s, x.stages, columns)
}

// mostKnown is how many of its pages' blocks a thread reads ahead at most: what keeps the shared memory of a block within its limit.
const mostKnown = 16

// selection is the select part of a shape: pages a thread that selection without masses keeps in registers.
func (x selectAttendShape) selection() selectClusterShape {
	return selectClusterShape{32 * x.warps, x.cluster, 2}
}

// selectAttendRows are the pages of a thread in the spec's longest row.
func selectAttendRows(s *specs.Spec, shape selectAttendShape) int {
	of := shape.selection()
	return max((longestRow(s)+shape.cluster*of.threads-1)/(shape.cluster*of.threads), of.pages)
}

// selectAttendWords is selection's part of the dynamic shared memory: what the blocks exchange, and values of the spec's longest row.
func selectAttendWords(s *specs.Spec, shape selectAttendShape) int {
	heads, of := headsPerList(s), shape.selection()
	if shape.shares { // counts and values lie where keys and values of attention will
		return (selectExchange(heads, of) - selectMasses(heads, of) + 127) / 128 * 32
	}
	words := (selectExchange(heads, of)/4 + selectAttendRows(s, shape)*of.threads + 31) / 32 * 32
	return max(words, (selectClusterShared(heads, of)/4+31)/32*32)
}

func selectAttendCandidate(s *specs.Spec, t Target, shape selectAttendShape) Candidate {
	heads, of := headsPerList(s), shape.selection()
	z := shape.sizes(s)
	threads := of.threads
	words := selectAttendWords(s, shape)
	known := min(selectAttendRows(s, shape), mostKnown)
	c := Candidate{
		Family: PageSelectAttend, Form: Hopper, Arch: t.Arch,
		Key:    fmt.Sprintf("%s %s", attendKey(s), s.Locks.Combine),
		Params: []Param{{"warps", shape.warps}, {"stages", shape.stages}, {"cluster", shape.cluster}},
		Constants: []Constant{
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"HEADS", fmt.Sprint(heads)},
			{"COMBINE", "kvloom::reduce::Combine::" + combineNames[s.Locks.Combine]},
			{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
			{"T", "kvloom::" + s.Cache.DType},
			{"SOFTCAP", fmt.Sprint(s.Attention.LogitSoftcap > 0)},
			{"kWarps", fmt.Sprint(shape.warps)},
			{"kStages", fmt.Sprint(shape.stages)},
			{"kColumns", fmt.Sprint(z.columns)},
			{"kCluster", fmt.Sprint(shape.cluster)},
			{"kBufferWords", fmt.Sprint(words)},
			{"kPages", fmt.Sprint(of.pages)},
			{"kAhead", fmt.Sprint(selectAhead(s, of, shape.warps*z.ringBytes))},
			{"kKnown", fmt.Sprint(known)},
			{"kDependent", "true"},
		},
		Header: "kernels/page_select_attend.cuh", Kernel: "kvloom::page_select_attend", Entry: string(PageSelectAttend),
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: int64(shape.cluster), Per: 1}, launch.Each(launch.Batch), launch.Const(1)},
			Block: threads, Cluster: shape.cluster, DynamicShared: 4*words + shape.warps*(z.ringBytes+8*32) + 8*(listSlots+(listSlots+shape.cluster-1)/shape.cluster) + 4*known*threads, Dependent: true,
			Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.MaxPages}, Times: 4, Per: 1}},
		},
		MinBlocks: 1,
	}
	if shape.shares {
		capacity := shareCapacity(of, shape.warps*z.ringBytes/4-256/2*shape.cluster)
		c.Constants = append(c.Constants, Constant{"kShareCapacity", fmt.Sprint(capacity)})
		c = withShares(s, c, of, capacity, selectSlices(s, shape.cluster))
	}
	return c
}

func selectAttendRefusal(s *specs.Spec, t Target, shape selectAttendShape, dynamic int) string {
	heads, z := headsPerList(s), shape.sizes(s)
	switch {
	case strings.HasPrefix(s.Cache.DType, "kivi"):
		return "pages of a quantised store are page_attend's"
	case s.Locks.Rerank > 1:
		return "what is selected is reranked before it is attended to"
	case s.Slots() > listSlots:
		return fmt.Sprintf("a list of %d pages: a block keeps %d", s.Slots(), listSlots)
	case z.headTiles > 2 || z.headTiles == 2 && shape.warps <= 8:
		return fmt.Sprintf("%d heads of %d dims do not fit a block", heads, s.Attention.HeadDim)
	}
	if reason := selectClusterRefusal(s, t, shape.selection(), 0); reason != "" {
		return reason
	}
	quads := (heads*s.Attention.HeadDim/4 + shape.cluster - 1) / shape.cluster
	static := selectStatic(heads, selectShape{Hopper, 32 * shape.warps, shape.cluster}) +
		shape.cluster*(16*quads+8*heads) + 8*shape.warps*z.tileHeads + z.headTiles*z.queryBytes + 64
	if static > staticShared {
		return fmt.Sprintf("selection and the parts of %d blocks need %d B of static shared memory, the limit is %d B", shape.cluster, static, staticShared)
	}
	return attendLimits(s, t, z, shape.warps, shape.stages, dynamic+static, t.SharedPerBlock, t.Arch)
}
