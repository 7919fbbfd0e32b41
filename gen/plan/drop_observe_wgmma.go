package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// dropObserveWgmmaShapes are tiles in each of two rings, and splits that merge in a cluster.
var dropObserveWgmmaShapes = []struct{ stages, cluster int }{{4, 2}, {5, 2}, {3, 2}, {4, 1}}

// dropScratch is what all that eviction needs beside its scores should not exceed, in bytes. dropSlots bounds the parts of a head.
const (
	dropScratch = 1_000_000
	dropSlots   = 63
)

// dropPartsRoom is what the parts of splits may take of it; more splits take turns at them. The window's outputs and log-sum-exps are scratch
// too, of which a wide window leaves the parts a quarter.
func dropPartsRoom(s *specs.Spec) int {
	return max(dropScratch-4*s.Attention.QueryHeads*s.DropKV.Window*(s.Attention.HeadDim+1), dropScratch/4)
}

// dropObserveWgmma adds the candidates with wgmma.
func dropObserveWgmma(s *specs.Spec, t Target, p *FamilyPlan) {
	if t.Arch != "sm_90a" || s.DropKV.Rule == "keydiff" || s.DropKV.Rule == "streaming" {
		return
	}
	for _, shape := range dropObserveWgmmaShapes {
		c := dropObserveWgmmaCandidate(s, t, shape.stages, shape.cluster)
		d, rows := s.Attention.HeadDim, dropRows(s)
		switch {
		case s.Cache.DType == specs.FP8:
			p.Rejected = append(p.Rejected, Rejected{c, noWideRows})
		case d != 64 && d != 128:
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("head dim %d is no whole number of products of 64 dims", d)})
		case rows > dropWgmmaProduct:
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("%d rows of the window, a product of wgmma takes %d", rows, dropWgmmaProduct)})
		case c.Geometry.DynamicShared > t.SharedPerBlock-2048:
			p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("two rings of %d tiles need %d B of shared memory, %s has %d B", shape.stages, c.Geometry.DynamicShared, t.Arch, t.SharedPerBlock)})
		default:
			p.Candidates = append(p.Candidates, c)
		}
	}
}

func dropObserveWgmmaCandidate(s *specs.Spec, t Target, stages, cluster int) Candidate {
	d, heads := s.Attention.HeadDim, s.Attention.KVHeads
	rowTiles, _ := dropWgmmaRowTiles(dropRows(s))
	n := 8 * rowTiles
	part := 4 * n * (d + 2)
	clusters := max(t.SMs/heads/cluster, 1)
	slots := min(max(dropPartsRoom(s)/(heads*(part+256)), 1), clusters, dropSlots)
	return Candidate{
		Family: DropObserve, Form: Hopper, Arch: t.Arch,
		Key:       dropKey(s),
		Params:    []Param{{"groups", 2}, {"stages", stages}, {"cluster", cluster}},
		Entry:     string(DropObserve),
		MinBlocks: 1,
		Header:    "kernels/drop_observe_wgmma.cuh", Kernel: "kvloom::drop_observe_wgmma",
		Constants: dropConstants(s, "O", []Constant{
			{"kStages", fmt.Sprint(stages)},
			{"kRowTiles", fmt.Sprint(rowTiles)},
			{"kCluster", fmt.Sprint(cluster)},
			{"kSlots", fmt.Sprint(slots)},
			{"kDependent", "true"},
		}),
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{launch.Const(int64(clusters * cluster)), launch.Each(launch.KVHeads), launch.Each(launch.Batch)},
			Block: 384, Cluster: cluster, Dependent: true,
			DynamicShared: 2*stages*dropTileBytes(d) + 2*d*n + 4*2*ringTokens*n + 2*4*n*4 + 2*ringStateBytes(stages),
			Workspace:     []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.KVHeads}, Times: int64(256 + slots*part), Per: 1}},
		},
	}
}
