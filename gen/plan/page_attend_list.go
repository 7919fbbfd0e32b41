package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// attendListShape is one choice of page_attend_list: one cluster serves a page list, all splits serve dense attention.
type attendListShape struct {
	warps, stages, splits, cluster int
}

// attendListShapes, the default first: splits 0 are as many whole clusters as give dense attention some 64 blocks, with 8 warps of two
// tiles each enough to read at full speed. More blocks than a list's cluster cost it time only where most SMs have one.
var attendListShapes = []attendListShape{
	{8, 2, 0, 8}, {8, 2, 8, 8}, {8, 1, 8, 8}, {8, 2, 16, 8}, {8, 1, 16, 8}, {8, 1, 16, 16}, {8, 2, 16, 16},
}

// attendListSplits is the number of splits of a shape that leaves it open.
func attendListSplits(s *specs.Spec, shape attendListShape) int {
	const blocks = 64
	lists := attendLists(s) * newAttendSizes(s, shape.stages).headTiles
	return shape.cluster * max(blocks/(lists*shape.cluster), 1)
}

// attendListCandidates are the candidates of page_attend_list, and those that cannot be, with the reason.
func attendListCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	seen := map[attendListShape]bool{}
	for _, shape := range attendListShapes {
		if shape.splits == 0 {
			shape.splits = attendListSplits(s, shape)
		}
		if seen[shape] {
			continue
		}
		seen[shape] = true
		c := attendCandidate(s, t, attendShape{Hopper, shape.warps, shape.stages, 0, shape.cluster})
		z := newAttendSizes(s, shape.stages)
		record := int64(256 + (shape.splits*z.partBytes+255)/256*256)
		c.Params = []Param{{"warps", shape.warps}, {"stages", shape.stages}, {"splits", shape.splits}, {"cluster", shape.cluster}, {"list", 1}}
		c.Header, c.Kernel = "kernels/page_attend_list.cuh", "kvloom::page_attend_list"
		c.Geometry.Grid[0] = launch.Const(int64(shape.splits))
		c.Geometry.Workspace = []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists}, Times: int64(z.headTiles) * record, Per: 1}}
		if reason := attendListRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

func attendListRefusal(s *specs.Spec, t Target, shape attendListShape, dynamic int) string {
	z := newAttendSizes(s, shape.stages)
	// Beside the streaming kernel's: what the blocks of a cluster send, and the warps' peaks and sums.
	quads := (z.tileHeads*s.Attention.HeadDim/4 + shape.cluster - 1) / shape.cluster
	static := shape.cluster*(16*quads+8*z.tileHeads) + 8*shape.warps*z.tileHeads + 64
	if generic := 8*shape.warps*z.tileHeads + 64; static+generic > staticShared {
		return fmt.Sprintf("the parts of %d blocks need %d B of static shared memory, the limit is %d B", shape.cluster, static+generic, staticShared)
	}
	return attendRefusal(s, t, attendShape{Hopper, shape.warps, shape.stages, 0, 1}, dynamic+static)
}
