package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// attendListShape is one choice of page_attend_list: a cluster of blocks serves a page list, or a half of its heads where columns is 1
// and the group has more than 8.
type attendListShape struct {
	warps, stages, cluster, columns int
	together                        bool // see attendTogether
}

// attendListShapes, the default of many lists first. columns 0 is as many as registers allow. Wide groups do better with one n tile a warp
// and twice the clusters: half the arithmetic a warp, and keys and values come from L2 the second time. Of small blocks several share an
// SM, which hides the latencies of many lists behind each other.
var attendListShapes = []attendListShape{
	{8, 2, 8, 0, false}, {4, 2, 16, 1, false}, {8, 2, 8, 1, false}, {8, 1, 8, 0, false}, {8, 1, 16, 1, false}, {4, 4, 8, 1, false},
	{4, 4, 8, 0, false}, {8, 1, 16, 0, false}, {8, 2, 16, 0, false}, {16, 1, 8, 1, false}, {16, 1, 16, 1, false}, {16, 2, 8, 1, false},
	{4, 2, 16, 0, false}, {4, 2, 8, 1, false}, {4, 3, 8, 1, false}, {2, 4, 8, 1, false}, {8, 2, 8, 0, true}, {4, 2, 16, 1, true}, {8, 2, 8, 1, true},
	{8, 1, 16, 1, true}, {4, 2, 8, 1, true},
}

// attendTogether is whether a warp weighs its first tiles, one for each stage, together: less to wait for, where they land one soon behind
// the other. That is so of quantised pages; elsewhere the tuner knows.
func attendTogether(s *specs.Spec, shape attendListShape) bool {
	return shape.stages <= 2 && (shape.together || s.Cache.KiviBits() > 0)
}

// wideClusters is how many clusters of 16 blocks an H200 runs at once, a block an SM.
const wideClusters = 7

// attendListCandidates are the candidates of page_attend_list, and those that cannot be, with the reason.
func attendListCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	seen := map[attendListShape]bool{}
	for _, shape := range attendListShapes {
		if shape.columns == 0 {
			shape.columns = newAttendSizes(s, shape.stages, 0).columns
		}
		if seen[shape] || shape.together && s.Cache.KiviBits() > 0 {
			continue
		}
		seen[shape] = true
		c := attendListCandidate(s, t, shape)
		if reason := attendListRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	// With few lists the widest clusters use most SMs, with some more those of one n tile a warp; with many either comes in two waves.
	switch clusters := attendLists(s) * newAttendSizes(s, 1, 1).headTiles; {
	case clusters <= wideClusters:
		leadWith(candidates, attendListShape{4, 2, 16, 1, false})
	case clusters <= 2*wideClusters:
		leadWith(candidates, attendListShape{8, 2, 8, 1, false})
	}
	return candidates, rejected
}

// leadWith moves a shape's candidate, where there is one, before the others.
func leadWith(candidates []Candidate, shape attendListShape) {
	i := slices.IndexFunc(candidates, func(c Candidate) bool {
		return attendListShape{c.Param("warps"), c.Param("stages"), c.Param("cluster"), c.Param("columns"), false} == shape // the first of its size
	})
	if i > 0 {
		c := candidates[i]
		copy(candidates[1:i+1], candidates[:i])
		candidates[0] = c
	}
}

func attendListCandidate(s *specs.Spec, t Target, shape attendListShape) Candidate {
	z := newAttendSizes(s, shape.stages, shape.columns)
	c := attendCandidate(s, t, attendShape{Hopper, shape.warps, shape.stages, 1, false})
	c.Params = []Param{{"warps", shape.warps}, {"stages", shape.stages}, {"cluster", shape.cluster}, {"columns", shape.columns}, {"list", 1}}
	if shape.together {
		c.Params = append(c.Params, Param{"together", 1})
	}
	c.Header, c.Kernel = "kernels/page_attend_list.cuh", "kvloom::page_attend_list"
	if s.Cache.KiviBits() > 0 {
		c.Header = "kernels/page_attend_kivi_list.cuh"
	}
	columns := slices.IndexFunc(c.Constants, func(k Constant) bool { return k.Name == "kColumns" })
	c.Constants[columns].Value = fmt.Sprint(shape.columns)
	c.Constants = slices.Insert(c.Constants, columns+1, Constant{"kCluster", fmt.Sprint(shape.cluster)}, Constant{"kTogether", fmt.Sprint(attendTogether(s, shape))})
	c.Geometry.Grid[0], c.Geometry.Grid[1].Times = launch.Const(int64(shape.cluster)), int64(z.headTiles)
	c.Geometry.Cluster, c.Geometry.DynamicShared, c.Geometry.Workspace = shape.cluster, shape.warps*z.ringBytes, nil
	return c
}

func attendListRefusal(s *specs.Spec, t Target, shape attendListShape, dynamic int) string {
	z := newAttendSizes(s, shape.stages, shape.columns)
	// What the blocks of a cluster send, the warps' peaks and sums, the query.
	quads := (z.tileHeads*s.Attention.HeadDim/4 + shape.cluster - 1) / shape.cluster
	static := shape.cluster*(16*quads+8*z.tileHeads) + 8*shape.warps*z.tileHeads + z.queryBytes + 64
	if static > staticShared {
		return fmt.Sprintf("the parts of %d blocks need %d B of static shared memory, the limit is %d B", shape.cluster, static, staticShared)
	}
	return attendLimits(s, t, z, shape.warps, shape.stages, dynamic+static, t.SharedPerBlock, t.Arch)
}
