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

// rerankClusterShapes, the default first. Of clusters of 16 seven run at once where a block has an SM to itself.
var rerankClusterShapes = []rerankClusterShape{{8, 16, 2}, {8, 8, 1}, {16, 8, 1}, {16, 16, 1}, {8, 16, 1}, {8, 8, 2}, {4, 16, 2}, {4, 16, 4}}

// rerankClusterCandidates are the candidates of page_rerank_cluster, and those that cannot be, with the reason.
func rerankClusterCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	for _, shape := range rerankClusterShapes {
		c := rerankClusterCandidate(s, t, shape)
		if reason := rerankClusterRefusal(s, shape); reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

// rerankMost is kMost of page_rerank_cluster: the spec's candidates, rounded up so that a block's threads share them evenly.
func rerankMost(s *specs.Spec) int { return max(padded(s.Candidates()), 32) }

func rerankClusterRefusal(s *specs.Spec, shape rerankClusterShape) string {
	heads, most := headsPerList(s), rerankMost(s)
	if s.Cache.PageSize < 16 {
		return fmt.Sprintf("a step of 16 tokens is of one page in the cluster form, pages have %d", s.Cache.PageSize)
	}
	if most > rerankClusterMost {
		return fmt.Sprintf("%d candidates a list: the cluster form compares each of at most %d with all others", s.Candidates(), rerankClusterMost)
	}
	parts := max(shape.warps/heads, 1)
	if static := heads*most*4 + 8*shape.cluster*heads*parts + 8*most + 8*heads + 4*shape.warps + rerankWindow/8 + 64; static > staticShared {
		return fmt.Sprintf("exact scores of %d candidates and %d heads need %d B of static shared memory, the limit is %d B", most, heads, static, staticShared)
	}
	tiles := 1
	if (heads+7)/8%2 == 0 && s.Attention.HeadDim <= 128 {
		tiles = 2
	}
	// Keys of two steps and the query; what else is live was seen to be some 40.
	need := 40 + s.Attention.HeadDim/8*(4+tiles)
	if have := min(65536/(32*shape.warps*shape.blocks)/8*8, 255); need > have {
		return fmt.Sprintf("about %d registers a thread are live and %d threads leave %d", need, 32*shape.warps*shape.blocks, have)
	}
	return ""
}

func rerankClusterCandidate(s *specs.Spec, t Target, shape rerankClusterShape) Candidate {
	c := rerankCandidate(s, t, Hopper, 16, shape.blocks)
	c.Key += fmt.Sprintf(" most=%d", rerankMost(s))
	c.Params = []Param{{"warps", shape.warps}, {"cluster", shape.cluster}, {"blocks", shape.blocks}}
	c.Constants = append(c.Constants[:len(c.Constants)-1], // all but kPer
		Constant{"kNumWarps", fmt.Sprint(shape.warps)}, Constant{"kCluster", fmt.Sprint(shape.cluster)}, Constant{"kMost", fmt.Sprint(rerankMost(s))})
	c.Header, c.Kernel = "kernels/page_rerank_cluster.cuh", "kvloom::page_rerank_cluster"
	c.Geometry.Grid[0] = launch.Const(int64(shape.cluster))
	c.Geometry.Block, c.Geometry.Cluster, c.Geometry.Workspace = 32*shape.warps, shape.cluster, nil
	c.Geometry.Dependent = true
	return c
}
