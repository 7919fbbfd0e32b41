package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// The families that make a query-weighted basis's weights of a prompt's own queries, once a prompt.
const (
	QueryMoment Family = "query_moment"
	QueryFactor Family = "query_factor"
)

// queryFamilies are those that a spec needs.
func queryFamilies(s *specs.Spec) []Family {
	if s.Locks.Basis == QueryWeighted {
		return []Family{QueryMoment, QueryFactor}
	}
	return nil
}

// MomentSplits is how many partial sums a prompt's moments are best made in: enough blocks for an H200, few enough to add quickly.
const MomentSplits = 16

func queryCandidate(f Family, s *specs.Spec, t Target, form Form) Candidate {
	c := Candidate{Family: f, Form: form, Arch: t.Arch, Header: "kernels/" + string(f) + ".cuh", Kernel: "kvloom::" + string(f), Entry: string(f), MinBlocks: 1}
	if form == Portable {
		c.Arch = PortableArch
	}
	c.Geometry.Cluster = 1
	return c
}

func planQueryMoment(s *specs.Spec, t Target) FamilyPlan {
	d := s.Attention.HeadDim
	parts, pitch := int64(1), 2*d
	switch { // MomentTile::kParts
	case d > 192:
		parts = 4
	case d > 128:
		parts = 2
	}
	if d%64 != 0 {
		pitch += 16
	}
	p := FamilyPlan{Family: QueryMoment, Cost: func(w specs.Workload) Work {
		queries := int64(w.Batch) * int64(w.Context) * int64(s.Attention.QueryHeads)
		return Work{Bytes: queries*int64(d)*2 + int64(s.Attention.KVHeads*d*d)*4*MomentSplits*2, Flops: 2 * queries * int64(d) * int64(d)}
	}}
	for _, form := range formsOf(t) {
		c := queryCandidate(QueryMoment, s, t, form)
		c.Key = fmt.Sprintf("d%d %s", d, s.Cache.DType)
		c.Params = []Param{{"queries", 64}}
		c.Geometry.Block, c.Geometry.DynamicShared = 2*d, 2*64*pitch
		c.Geometry.Grid = [3]launch.Extent{launch.Const(MomentSplits), launch.Each(launch.KVHeads), launch.Const(parts)}
		c.Constants = []Constant{{"HEAD_DIM", fmt.Sprint(d)}, {"T", "kvloom::" + s.Cache.DType}, {"kSharedBytes", fmt.Sprint(c.Geometry.DynamicShared)}}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

func planQueryFactor(s *specs.Spec, t Target) FamilyPlan {
	d, heads := int64(s.Attention.HeadDim), int64(s.Attention.KVHeads)
	p := FamilyPlan{Family: QueryFactor, Cost: func(specs.Workload) Work {
		return Work{Bytes: heads * (d*d*4*MomentSplits + int64(factorBytes(int(d)))), Flops: heads * d * d * d / 3}
	}}
	const threads = 256
	for _, form := range formsOf(t) {
		c := queryCandidate(QueryFactor, s, t, form)
		c.Key = fmt.Sprintf("d%d", d)
		c.Params = []Param{{"threads", threads}}
		c.Geometry.Block, c.Geometry.DynamicShared = threads, int(d*(d+1)/2*4)
		c.Geometry.Grid = [3]launch.Extent{launch.Each(launch.KVHeads), launch.Const(1), launch.Const(1)}
		c.Constants = []Constant{{"HEAD_DIM", fmt.Sprint(d)}, {"kThreads", fmt.Sprint(threads)}, {"kSharedBytes", fmt.Sprint(c.Geometry.DynamicShared)}}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

// formsOf are the forms that a target has.
func formsOf(t Target) []Form {
	if t.Arch == "sm_90a" || t.Arch == "sm_90" {
		return []Form{Hopper, Portable}
	}
	return []Form{Portable}
}
