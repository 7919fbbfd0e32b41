package plan

import (
	"fmt"
	"testing"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

func scoreSpec(dim, page, rank, bits, group int) *specs.Spec {
	s := &specs.Spec{Name: "test"}
	s.Attention = specs.Attention{QueryHeads: 2 * group, KVHeads: 2, HeadDim: dim, SoftmaxScale: 0.1}
	s.Cache = specs.Cache{DType: "bf16", PageSize: page, Layout: "strides"}
	s.Locks.Rank, s.Locks.BasisBits = rank, bits
	return s
}

// TestPageScoreEveryShape plans every legal shape: no shape may be left without a kernel, on any target, in any form that the
// target has.
func TestPageScoreEveryShape(t *testing.T) {
	for _, target := range []string{"sm_90a", "sm_90", "sm_80"} {
		for _, dim := range []int{64, 80, 96, 112, 128, 192, 256} {
			for _, page := range []int{4, 8, 16, 32, 64, 128} {
				for _, bits := range []int{2, 4, 8, 16} {
					for rank := 1; rank <= 16 && rank < page; rank++ {
						for _, group := range []int{1, 2, 3, 4, 5, 8, 9, 12, 16, 24, 64} {
							s := scoreSpec(dim, page, rank, bits, group)
							fp := planPageScore(s, Targets[target])
							checkScorePlan(t, fmt.Sprintf("%s d%d p%d r%d b%d g%d", target, dim, page, rank, bits, group), fp, Targets[target])
						}
					}
				}
			}
		}
	}
}

func checkScorePlan(t *testing.T, name string, fp FamilyPlan, target Target) {
	t.Helper()
	if _, ok := fp.DefaultOf(Portable); !ok {
		t.Fatalf("%s: no portable candidate", name)
	}
	if _, ok := fp.DefaultOf(Hopper); ok != (target.Arch == "sm_90a") {
		t.Fatalf("%s: a Hopper candidate: %t", name, ok)
	}
	for _, r := range fp.Rejected {
		if r.Reason == "" {
			t.Fatalf("%s: %s is rejected without a reason", name, r.Candidate.ID())
		}
	}
	seen := map[string]bool{}
	for _, c := range fp.Candidates {
		if seen[c.ID()] {
			t.Fatalf("%s: %s twice", name, c.ID())
		}
		seen[c.ID()] = true
		if c.Geometry.DynamicShared > target.SharedPerBlock {
			t.Fatalf("%s: %s needs %d B of shared memory", name, c.ID(), c.Geometry.DynamicShared)
		}
		if c.Form == Portable && c.Param("bulk") != 0 {
			t.Fatalf("%s: %s: bulk copies are not portable", name, c.ID())
		}
	}
}

// TestPageScorePlan pins what the first speed bar runs, and that the grid does not depend on lengths.
func TestPageScorePlan(t *testing.T) {
	s := scoreSpec(128, 16, 4, 4, 4)
	fp := planPageScore(s, Targets["sm_90a"])
	c := fp.Candidates[0]
	if want := "d128 p16 r4 b4 g4 bf16 softcap=false record"; c.Key != want {
		t.Errorf("key %q, want %q", c.Key, want)
	}
	for _, pages := range []int64{1, 8192, 1 << 20} {
		grid := c.Geometry.Grid[0].Value(launch.Problem{Batch: 3, KVHeads: 8, QHeads: 32, MaxPages: pages, SMs: 132})
		if want := int64(132 * c.MinBlocks); grid != want {
			t.Errorf("%d pages: grid %d, want %d: captured graphs are replayed at other lengths", pages, grid, want)
		}
	}
	// 8 KV heads, 8192 pages: the payload of the records, q, the scores, the table and the length.
	s.Attention.KVHeads, s.Attention.QueryHeads = 8, 32
	work := planPageScore(s, Targets["sm_90a"]).Cost(specs.Workload{Context: 131072, Batch: 1})
	if want := int64(8*8192*490 + 32*128*2 + 32*8192*4 + 8192*4 + 4); work.Bytes != want {
		t.Errorf("bytes %d, want %d", work.Bytes, want)
	}
	if want := int64(32 * 8192 * 16); work.Exponential != want {
		t.Errorf("exponentials %d, want %d", work.Exponential, want)
	}
}
