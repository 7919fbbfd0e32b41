package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// rerankClusterMost is the most candidates that page_rerank_cluster ranks: it compares each with all others.
const rerankClusterMost = 512

// rerankWindow is kWindow of page_rerank.cuh.
const rerankWindow = 4096

// rerankClusterShape is one choice of page_rerank_cluster.
type rerankClusterShape struct{ warps, cluster, blocks int } // blocks an SM that registers are kept low for

// rerankClusterShapes, the default first.
var rerankClusterShapes = []rerankClusterShape{{8, 8, 1}, {16, 8, 1}, {8, 16, 2}, {16, 16, 1}, {8, 8, 2}, {4, 16, 2}, {4, 16, 4}}

// rerankClusterCandidates are the candidates of page_rerank_cluster, and those that cannot be, with the reason.
func rerankClusterCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	for _, shape := range rerankClusterShapes {
		c := rerankClusterCandidate(s, t, shape)
		if reason := rerankClusterRefusal(s, t, shape, false, false, 0); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

// rerankMost is kMost of page_rerank_cluster: the spec's candidates, rounded up so that a block's threads share them evenly.
func rerankMost(s *specs.Spec) int { return max(padded(s.Candidates()), 32) }

// rerankClusterRefusal says why a shape cannot be; attends: the cluster attends to what it chooses too; ring: keys go through
// shared memory, of which there are `dynamic` bytes.
func rerankClusterRefusal(s *specs.Spec, t Target, shape rerankClusterShape, attends, ring bool, dynamic int) string {
	z := newRerankSizes(s, shape)
	steps := z.each * s.Cache.PageSize / 16
	switch {
	case s.Cache.PageSize < 16:
		return fmt.Sprintf("a step of 16 tokens is of one page in the cluster form, pages have %d", s.Cache.PageSize)
	case z.heads > 8*z.tiles:
		return fmt.Sprintf("a warp keeps the logits of %d heads at once, a list has %d", 8*z.tiles, z.heads)
	case rerankMost(s) > rerankClusterMost:
		return fmt.Sprintf("%d candidates a list: the cluster form compares each of at most %d with all others", s.Candidates(), rerankClusterMost)
	case steps > 8:
		return fmt.Sprintf("logits of %d candidates of %d tokens a warp do not stay in registers", z.each, s.Cache.PageSize)
	}
	static := z.memoryBytes(s, shape, attends) + 64
	if static > staticShared {
		return fmt.Sprintf("exact scores of %d candidates and what %d blocks send need %d B of static shared memory, the limit is %d B", z.held, shape.cluster, static, staticShared)
	}
	if all := static + dynamic; all > t.SharedPerBlock || (all+1024)*shape.blocks > t.SharedPerBlock+1024 {
		return fmt.Sprintf("%d blocks of %d B of shared memory, an SM has %d B", shape.blocks, all, t.SharedPerBlock)
	}
	// Keys of two steps, where they do not go through a ring, and the query, then values' sums; logits all the while.
	need := 32 + s.Attention.HeadDim/8*max(4+z.tiles, 2*z.tiles) + steps*z.tiles*4
	if ring {
		need = 48 + s.Attention.HeadDim/8*2*z.tiles + steps*z.tiles*4
	}
	if have := min(65536/(32*shape.warps*shape.blocks)/8*8, 255); need > have {
		return fmt.Sprintf("about %d registers a thread are live and %d threads leave %d", need, 32*shape.warps*shape.blocks, have)
	}
	return ""
}

// rerankSizes mirrors constants of page_rerank_list.cuh.
type rerankSizes struct {
	heads, tiles, each, held int
}

func newRerankSizes(s *specs.Spec, shape rerankClusterShape) rerankSizes {
	z := rerankSizes{heads: headsPerList(s), tiles: 1}
	if (z.heads+7)/8%2 == 0 && s.Attention.HeadDim <= 128 {
		z.tiles = 2
	}
	workers := shape.warps * shape.cluster
	z.each = (rerankMost(s) + workers - 1) / workers
	z.held = z.each * workers
	return z
}

// holds is attend::Shape's kRingBytes of a warp that holds so many pages of keys or values, 0: of all of its candidates; then its result.
func (z rerankSizes) holds(s *specs.Spec, ring int) int {
	if ring == 0 {
		ring = z.each
	}
	return max((ring*s.Cache.PageSize/16+1)/2*2*16*16*(s.Attention.HeadDim/8|1), 4*z.heads*(s.Attention.HeadDim+4))
}

// memoryBytes is the size of rerank::ListRerank::Memory, or a little more.
func (z rerankSizes) memoryBytes(s *specs.Spec, shape rerankClusterShape, attends bool) int {
	parts := max(shape.warps/z.heads, 1)
	bytes := z.heads*z.held*4 + 8*shape.cluster*z.heads*parts + 8*z.held + 8*z.heads + 4*shape.warps // Gathered
	bytes += 4*z.heads*(shape.cluster*parts+parts+2) + rerankWindow/8 + 4*shape.warps*shape.cluster + 96
	if attends {
		quads := (z.heads*s.Attention.HeadDim/4 + shape.cluster - 1) / shape.cluster
		bytes += shape.cluster*(16*quads+8*z.heads) + 8*shape.warps*z.heads
	}
	return (bytes + 15) / 16 * 16
}

func rerankClusterCandidate(s *specs.Spec, t Target, shape rerankClusterShape) Candidate {
	c := rerankCandidate(s, t, Hopper, 16, shape.blocks)
	c.Key += fmt.Sprintf(" most=%d", rerankMost(s))
	c.Params = []Param{{"warps", shape.warps}, {"cluster", shape.cluster}, {"blocks", shape.blocks}}
	c.Constants = append(c.Constants[:len(c.Constants)-1-len(groupConstants(s))], // all but kPer
		Constant{"kNumWarps", fmt.Sprint(shape.warps)}, Constant{"kCluster", fmt.Sprint(shape.cluster)}, Constant{"kMost", fmt.Sprint(rerankMost(s))})
	c.Constants = append(c.Constants, groupConstants(s)...)
	c.Header, c.Kernel = "kernels/page_rerank_cluster.cuh", "kvloom::page_rerank_cluster"
	c.Geometry.Grid[0] = launch.Const(int64(shape.cluster))
	c.Geometry.Block, c.Geometry.Cluster, c.Geometry.Workspace = 32*shape.warps, shape.cluster, nil
	c.Geometry.Dependent = true
	return c
}
