package plan

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// directShape is one choice of page_select_attend's direct form: a cluster of blocks selects a list, and its warps load keys and values of a
// tile straight into registers.
type directShape struct {
	warps, cluster int
	shares         bool // a launch of its own makes the shares
}

// sharedTurns is how many turns of four shares a thread of select_by_shares holds.
const sharedTurns = 2

// heldScores is how many scores a thread holds in registers, where it has 128.
const heldScores = 64

// directShapes, the default of many lists first.
var directShapes = []directShape{{16, 8, false}, {16, 16, false}, {8, 16, false}, {8, 8, false}, {16, 16, true}, {8, 16, true}}

// directSizes mirrors attend::TileSums and what else page_select_attend_direct keeps in dynamic shared memory.
type directSizes struct {
	active     int // warps that attend
	words      int // selection's
	vec, turns int // adjacent pages of a thread whose scores or shares it holds, and how many times
	capacity   int // of rows whose shares are made ahead
	stage      int // bytes of values, or of shares and their counts, and then of sums
	dynamic    int // bytes
}

func newDirectSizes(s *specs.Spec, x directShape) directSizes {
	heads, of := headsPerList(s), x.selection()
	pages := (longestRow(s) + x.cluster*of.threads - 1) / (x.cluster * of.threads) // of a thread
	z := directSizes{vec: 2}
	if pages > 2 || x.shares {
		z.vec = 4
	}
	z.turns = max((pages+z.vec-1)/z.vec, 1)
	z.active = min((min(s.Slots(), listSlots)+x.cluster-1)/x.cluster*max(s.Cache.PageSize/16, 1), x.warps)
	z.words = (max(selectExchange(heads, of)+4*max(pages, of.pages)*of.threads, selectClusterShared(heads, of)) + 127) / 128 * 32
	z.stage = 4 * z.vec * z.turns * of.threads
	if x.shares {
		z.turns = sharedTurns
		z.words = (selectExchange(heads, of) - selectMasses(heads, of) + 127) / 128 * 32
		z.capacity = z.vec * z.turns * of.threads * x.cluster
		z.stage = 2*256*x.cluster + 4*z.capacity/x.cluster
	}
	z.stage = max(z.stage, (z.active*heads*(4*(s.Attention.HeadDim+8)+8)+15)/16*16)
	blockSlots := (listSlots + x.cluster - 1) / x.cluster
	z.dynamic = 4*z.words + z.stage + 8*(blockSlots+listSlots+of.threads) + 4*512 + 4*z.vec*z.turns*of.threads
	return z
}

func (x directShape) selection() selectClusterShape {
	return selectClusterShape{32 * x.warps, x.cluster, 2}
}

// directCandidates are the candidates of the direct form, and those that cannot be, with the reason.
func directCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	for _, shape := range directShapes {
		if shape.shares && selectSharesRefusal(s, shape.selection()) != "" {
			continue // page_select names the reason
		}
		z := newDirectSizes(s, shape)
		c := directCandidate(s, t, shape, z)
		if reason := directRefusal(s, t, shape, z); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

func directCandidate(s *specs.Spec, t Target, x directShape, z directSizes) Candidate {
	of := x.selection()
	c := Candidate{
		Family: PageSelectAttend, Form: Hopper, Arch: t.Arch,
		Key:    fmt.Sprintf("%s %s", attendKey(s), s.Locks.Combine),
		Params: []Param{{"warps", x.warps}, {"stages", 0}, {"cluster", x.cluster}},
		Constants: []Constant{
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"HEADS", fmt.Sprint(headsPerList(s))},
			{"COMBINE", "kvloom::reduce::Combine::" + combineNames[s.Locks.Combine]},
			{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
			{"T", "kvloom::" + s.Cache.DType},
			{"SOFTCAP", fmt.Sprint(s.Attention.LogitSoftcap > 0)},
			{"kWarps", fmt.Sprint(x.warps)},
			{"kCluster", fmt.Sprint(x.cluster)},
			{"kBufferWords", fmt.Sprint(z.words)},
			{"kPages", fmt.Sprint(of.pages)},
			{"kVec", fmt.Sprint(z.vec)},
			{"kTurns", fmt.Sprint(z.turns)},
			{"kActive", fmt.Sprint(z.active)},
			{"kDependent", "true"},
		},
		Header: "kernels/page_select_attend_direct.cuh", Kernel: "kvloom::page_select_attend_direct", Entry: string(PageSelectAttend),
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: int64(x.cluster), Per: 1}, launch.Each(launch.Batch), launch.Const(1)},
			Block: of.threads, Cluster: x.cluster, DynamicShared: z.dynamic, Dependent: true,
			Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.MaxPages}, Times: 4, Per: 1}},
		},
		MinBlocks: 1,
	}
	if x.shares {
		c.Constants = append(c.Constants, Constant{"kShareCapacity", fmt.Sprint(z.capacity)})
		c = withShares(s, c, of, z.capacity, selectSlices(s, x.cluster))
	}
	return c
}

func directRefusal(s *specs.Spec, t Target, x directShape, z directSizes) string {
	heads, d := headsPerList(s), s.Attention.HeadDim
	switch {
	case strings.HasPrefix(s.Cache.DType, "kivi"):
		return "pages of a quantised store are page_attend's"
	case s.Locks.Rerank > 1:
		return "what is selected is reranked before it is attended to"
	case s.Slots() > listSlots:
		return fmt.Sprintf("a list of %d pages: a block keeps %d", s.Slots(), listSlots)
	case cacheBytes(s) != 2:
		return "tiles are loaded straight into registers as fragments of 16-bit values"
	case s.Cache.PageSize%16 != 0:
		return fmt.Sprintf("a page of %d tokens: a tile that is loaded into registers is 16 tokens of one page", s.Cache.PageSize)
	case d != 64 && d != 128:
		return fmt.Sprintf("%d dims: eight lanes load 64 dims of a token, and registers hold 128", d)
	case !x.shares && z.vec*z.turns*heads > heldScores:
		return fmt.Sprintf("rows of %d pages: a thread holds %d scores, not %d", longestRow(s), heldScores, z.vec*z.turns*heads)
	case x.shares && longestRow(s) > z.capacity:
		return fmt.Sprintf("rows of %d pages: the threads of a cluster hold %d shares", longestRow(s), z.capacity)
	case heads > 16:
		return fmt.Sprintf("%d heads: a warp has 16 at most", heads)
	}
	if reason := selectClusterRefusal(s, t, x.selection(), 0); reason != "" {
		return reason
	}
	static := selectStatic(heads, selectShape{Hopper, 32 * x.warps, x.cluster}) + 8*((heads+7)/8)*(2*d+16) + 64
	quads := (heads*d/4 + x.cluster - 1) / x.cluster
	static += x.cluster * (16*quads + 8*heads)
	if static > staticShared {
		return fmt.Sprintf("selection, queries and the parts of blocks need %d B of static shared memory, the limit is %d B", static, staticShared)
	}
	if all := z.dynamic + static; all > t.SharedPerBlock {
		return fmt.Sprintf("selection and the sums of %d warps need %d B of shared memory a block, %s has %d B", z.active, all, t.Arch, t.SharedPerBlock)
	}
	return ""
}
