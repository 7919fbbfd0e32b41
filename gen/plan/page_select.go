package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// selectBufferWords is the dynamic shared memory of a block, in 32-bit words: the row's scores where they fit, and its keys. 64 KB,
// with at most 48 KB of static shared memory, leaves the portable form runnable where a block has 99 KB for the usual groups.
const selectBufferWords = 16384

// staticShared is what a kernel may declare without asking for more.
const staticShared = 48 << 10

// combineNames maps the spec's rules to the C++ enumerators.
var combineNames = map[string]string{
	"share_average":   "kShareAverage",
	"group_max":       "kGroupMax",
	"group_mass":      "kGroupMass",
	"peak_normalised": "kPeakNormalised",
	"per_head":        "kPerHead",
}

// headsPerList is how many query heads share one page list: the group, or 1 for per_head.
func headsPerList(s *specs.Spec) int {
	if s.Locks.Combine == "per_head" {
		return 1
	}
	return s.Attention.Group()
}

// selectShape is one choice of the tuner.
type selectShape struct {
	form             Form
	threads, cluster int
}

// selectShapes, the default of each form first. A cluster of 8 is the largest that every GPU schedules without asking; 16 can leave
// SMs idle (seven clusters of 16 fit on 132 SMs).
var selectShapes = []selectShape{
	{Hopper, 512, 8}, {Hopper, 1024, 8}, {Hopper, 256, 8}, {Hopper, 512, 4}, {Hopper, 1024, 4}, {Hopper, 512, 16},
	{Hopper, 1024, 16}, {Hopper, 1024, 2}, {Hopper, 1024, 1},
	{Portable, 1024, 1}, {Portable, 512, 1},
}

func planPageSelect(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageSelect, Cost: selectCost(s)}
	p.Candidates, p.Rejected = selectClusterCandidates(s, t)
	shares, refused := selectSharesCandidates(s, t)
	p.Candidates, p.Rejected = slices.Insert(p.Candidates, min(1, len(p.Candidates)), shares...), append(p.Rejected, refused...)
	p.Candidates = leadWithShares(s, p.Candidates)
	for _, shape := range selectShapes {
		if shape.form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		c := selectCandidate(s, t, shape)
		if reason := selectRefusal(s, t, shape, c.Geometry.DynamicShared); reason != "" {
			p.Rejected = append(p.Rejected, Rejected{c, reason})
			continue
		}
		p.Candidates = append(p.Candidates, c)
	}
	return p
}

func selectCandidate(s *specs.Spec, t Target, shape selectShape) Candidate {
	heads := headsPerList(s)
	arch := t.Arch
	if shape.form == Portable {
		arch = PortableArch
	}
	dependent := shape.form == Hopper
	return Candidate{
		Family: PageSelect, Form: shape.form, Arch: arch,
		Key:    fmt.Sprintf("p%d h%d %s", s.SummaryTokens(), heads, s.Locks.Combine),
		Params: []Param{{"threads", shape.threads}, {"cluster", shape.cluster}},
		Constants: []Constant{
			{"PAGE", fmt.Sprint(s.SummaryTokens())}, // it ranks what has a summary
			{"HEADS", fmt.Sprint(heads)},
			{"COMBINE", "kvloom::reduce::Combine::" + combineNames[s.Locks.Combine]},
			{"kThreads", fmt.Sprint(shape.threads)},
			{"kCluster", fmt.Sprint(shape.cluster)},
			{"kBufferWords", fmt.Sprint(selectBufferWords)},
			{"kDependent", fmt.Sprint(dependent)},
		},
		Header: "kernels/page_select.cuh", Kernel: "kvloom::page_select", Entry: string(PageSelect),
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: int64(shape.cluster), Per: 1}, launch.Each(launch.Batch), launch.Const(1)},
			Block: shape.threads, Cluster: shape.cluster, DynamicShared: 4 * selectBufferWords, Dependent: dependent,
			// Keys of rows so long that a block's slice outgrows its buffer.
			Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists, launch.MaxPages}, Times: 4, Per: 1}},
		},
		MinBlocks: 1,
	}
}

// selectStatic is the size of the kernel's static shared memory (select::Shared in page_select.cuh, and the barriers of
// page_select_cluster.cuh and page_select_masses.cuh).
func selectStatic(heads int, shape selectShape) int {
	warps := shape.threads / 32
	return 3*2048*4 + 8*heads*(warps+shape.cluster+1) + 8*(shape.cluster+warps) + 3*4*warps + 3*3*4 + 96 + 32 + 24 + 2*8*min(heads, selectMostHeads)
}

// SelectStatic is the static shared memory that the plan reckons with for a page_select candidate, in bytes; tests hold it against
// the compiler's.
func SelectStatic(s *specs.Spec, c Candidate) int {
	return selectStatic(headsPerList(s), selectShape{c.Form, c.Param("threads"), c.Param("cluster")})
}

func selectRefusal(s *specs.Spec, t Target, shape selectShape, dynamic int) string {
	static := selectStatic(headsPerList(s), shape)
	if static > staticShared {
		return fmt.Sprintf("statistics of %d heads in %d warps and %d blocks need %d B of static shared memory, the limit is %d B: fewer threads or blocks",
			headsPerList(s), shape.threads/32, shape.cluster, static, staticShared)
	}
	if static+dynamic > t.SharedPerBlock {
		return fmt.Sprintf("%d B of shared memory a block, %s has %d B", static+dynamic, t.Arch, t.SharedPerBlock)
	}
	return ""
}

func selectCost(s *specs.Spec) Cost {
	return func(w specs.Workload) Work {
		pages := int64(s.Groups(w.Context))
		scores := int64(w.Batch) * int64(s.Attention.QueryHeads) * pages
		lists := int64(w.Batch) * int64(s.Attention.QueryHeads/headsPerList(s))
		work := Work{Bytes: 4*scores + 4*lists*(min(int64(s.Proposals()), pages)+1), Flops: scores}
		switch s.Locks.Combine {
		case "share_average":
			work.Exponential = 2 * scores // the mass of the row, then the shares
		case "group_mass", "peak_normalised":
			work.Exponential = scores
		}
		return work
	}
}
