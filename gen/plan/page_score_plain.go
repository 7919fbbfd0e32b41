package plan

import (
	"fmt"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// The scorers that keep no basis: quest, mean_key and exact_lse.

// plainKernels are their kernels: header, page_score's template, page_summary's template argument.
var plainKernels = map[string][3]string{
	specs.Quest:    {"kernels/page_score_plain.cuh", "kvloom::page_score_quest", "kvloom::PlainScorer::kQuest"},
	specs.MeanKey:  {"kernels/page_score_plain.cuh", "kvloom::page_score_mean", "kvloom::PlainScorer::kMeanKey"},
	specs.ExactLSE: {"kernels/page_score_exact.cuh", "kvloom::page_score_exact", "kvloom::PlainScorer::kExactLse"},
}

// plainChoice is one choice of the tuner: warps a block, blocks an SM.
type plainChoice struct{ warps, blocks int }

// exactChoice is one choice of exact_lse: steps of keys a warp keeps in registers.
type exactChoice struct {
	plainChoice
	steps int
}

// exactChoices are the plain ones with two steps, and with four where registers hold them, the latter first.
func exactChoices() (list []exactChoice) {
	for _, steps := range []int{4, 2} {
		for _, choice := range plainScoreChoices {
			list = append(list, exactChoice{choice, steps})
		}
	}
	return list
}

var plainScoreChoices = []plainChoice{{4, 4}, {4, 3}, {8, 2}, {4, 2}, {8, 1}, {4, 5}, {4, 6}, {8, 3}, {2, 8}, {4, 1}, {2, 2}}

func planPlainScore(s *specs.Spec, t Target) FamilyPlan {
	p := FamilyPlan{Family: PageScore, Cost: plainScoreCost(s)}
	if s.Locks.Scorer == specs.ExactLSE {
		p.Candidates, p.Rejected = planExactBulk(s, t)
	}
	var tight []Candidate
	for _, form := range []Form{Hopper, Portable} {
		if form == Hopper && t.Arch != "sm_90a" {
			continue
		}
		for _, choice := range exactChoices() {
			if s.Locks.Scorer != specs.ExactLSE && choice.steps != 2 {
				continue
			}
			c := plainScoreCandidate(s, t, form, choice)
			have, need := scoreRegistersLeft(scoreParams{warps: choice.warps, blocks: choice.blocks}), plainRegisters(s, choice.steps)
			if choice.steps == 2 {
				need = min(need, 255) // the least there is to have on their way: what does not fit is spilled
			}
			switch {
			case need > 255:
				p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("about %d registers a thread are live and a thread has at most 255", need)})
			case have < need-24:
				p.Rejected = append(p.Rejected, Rejected{c, fmt.Sprintf("about %d registers a thread are live and %d warps x %d blocks an SM leave %d",
					need, choice.warps, choice.blocks, have)})
			case have < need:
				tight = append(tight, c)
			default:
				p.Candidates = append(p.Candidates, c)
			}
		}
	}
	p.Candidates = append(p.Candidates, tight...)
	return p
}

// plainRegisters estimates what a lane holds: the query's fragments, the rows in flight, their addresses, and the rest.
func plainRegisters(s *specs.Spec, steps int) int {
	words := s.Attention.HeadDim / 8 // of a lane's part of a row
	switch s.Locks.Scorer {
	case specs.ExactLSE:
		tiles := 1
		if heads := (s.Attention.Group() + 7) / 8; heads%2 == 0 && s.Attention.HeadDim <= 128 {
			tiles = 2
		}
		return 20 + (5+2*steps)*words + tiles*(words+12)
	case specs.Quest:
		return 60 + 6*words
	}
	return 80 + 4*words
}

func plainScoreCandidate(s *specs.Spec, t Target, form Form, choice exactChoice) Candidate {
	a, k := s.Attention, plainKernels[s.Locks.Scorer]
	c := Candidate{
		Family: PageScore, Form: form, Arch: t.Arch,
		Key:    fmt.Sprintf("d%d p%d g%d %s softcap=%t %s", a.HeadDim, s.Cache.PageSize, a.Group(), s.Cache.DType, a.LogitSoftcap > 0, s.Locks.Scorer),
		Params: []Param{{"warps", choice.warps}, {"blocks", choice.blocks}},
		Constants: []Constant{
			{"T", "kvloom::" + s.Cache.DType},
			{"HEAD_DIM", fmt.Sprint(a.HeadDim)},
			{"PAGE", fmt.Sprint(s.Cache.PageSize)},
			{"GROUP", fmt.Sprint(a.Group())},
			{"SOFTCAP", fmt.Sprint(a.LogitSoftcap > 0)},
			{"WARPS", fmt.Sprint(choice.warps)},
		},
		Header: k[0], Kernel: k[1], Entry: string(PageScore),
		// Warps take tasks from a list that is sized by the lengths in device memory; any grid is right.
		Geometry: launch.Geometry{
			Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.SMs}, Times: int64(choice.blocks), Per: 1}, launch.Const(1), launch.Const(1)},
			Block: 32 * choice.warps, Cluster: 1,
		},
		MinBlocks: choice.blocks,
	}
	if s.Locks.Scorer == specs.ExactLSE {
		c.Params, c.Constants = append(c.Params, Param{"steps", choice.steps}), append(c.Constants, Constant{"STEPS", fmt.Sprint(choice.steps)})
	}
	if form == Portable {
		c.Arch = PortableArch
	}
	return c
}

func plainScoreCost(s *specs.Spec) Cost {
	a := s.Attention
	record, page, d := int64(s.Record().PayloadBytes()), int64(s.Cache.PageSize), int64(a.HeadDim)
	return func(w specs.Workload) Work {
		batch, kv, q := int64(w.Batch), int64(a.KVHeads), int64(a.QueryHeads)
		complete, tail := int64(w.Context)/page, int64(w.Context)%page
		pages := complete
		if tail > 0 {
			pages++
		}
		work := Work{Bytes: batch * (kv*(complete*record+tail*d*2) + q*d*2 + q*pages*4 + pages*4 + 4)}
		switch s.Locks.Scorer {
		case specs.ExactLSE:
			work.Bytes += batch * kv * complete * page * d * 2
			work.Flops, work.Exponential = batch*q*2*d*int64(w.Context), batch*q*int64(w.Context)
		case specs.Quest:
			work.Flops, work.Exponential = batch*q*(4*d*complete+2*d*tail), batch*q*tail
		default:
			work.Flops, work.Exponential = batch*q*2*d*(complete+tail), batch*q*tail
		}
		return work
	}
}

var plainSummaryChoices = []plainChoice{{4, 5}, {4, 6}, {4, 4}, {8, 3}, {8, 2}, {2, 12}, {4, 8}}

func planPlainSummary(s *specs.Spec, t Target) FamilyPlan {
	record := int64(s.Record().Bytes)
	p := FamilyPlan{Family: PageSummary, Cost: func(w specs.Workload) Work {
		pages := int64(w.Batch) * int64(w.Context/s.Cache.PageSize)
		each := pages * int64(s.Attention.KVHeads)
		keys := int64(s.Cache.PageSize * s.Attention.HeadDim)
		if s.Locks.Scorer == specs.ExactLSE {
			keys = 0
		}
		return Work{Bytes: each*(2*keys+record) + pages*4 + int64(w.Batch)*12, Flops: each * keys}
	}}
	for _, form := range []Form{Hopper, Portable} {
		if form == Hopper && t.Arch != "sm_90a" && t.Arch != "sm_90" {
			continue
		}
		for _, choice := range plainSummaryChoices {
			c := Candidate{
				Family: PageSummary, Form: form, Arch: t.Arch,
				Key:    fmt.Sprintf("d%d p%d %s %s", s.Attention.HeadDim, s.Cache.PageSize, s.Cache.DType, s.Locks.Scorer),
				Params: []Param{{"warps", choice.warps}, {"blocks", choice.blocks}},
				Constants: []Constant{
					{"HEAD_DIM", fmt.Sprint(s.Attention.HeadDim)},
					{"PAGE", fmt.Sprint(s.Cache.PageSize)},
					{"Key", "kvloom::" + s.Cache.DType},
					{"SCORER", plainKernels[s.Locks.Scorer][2]},
					{"WARPS", fmt.Sprint(choice.warps)},
				},
				Header: "kernels/page_summary_plain.cuh", Kernel: "kvloom::page_summary_plain", Entry: string(PageSummary), MinBlocks: choice.blocks,
				Geometry: launch.Geometry{
					Grid: [3]launch.Extent{
						{Of: []launch.Quantity{launch.NewPages, launch.KVHeads}, Times: 1, Per: int64(choice.warps), AtMost: int64(t.SMs * choice.blocks)},
						launch.Each(launch.Batch), launch.Const(1)},
					Block: 32 * choice.warps, Cluster: 1,
					Workspace: []launch.Extent{launch.Const(4)}, // counts finished blocks
				},
			}
			if form == Portable {
				c.Arch = PortableArch
			}
			p.Candidates = append(p.Candidates, c)
		}
	}
	return p
}
