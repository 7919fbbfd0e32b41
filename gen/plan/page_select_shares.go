package plan

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/specs"
)

// selectSharesEntry is the first of two launches that select: it makes the shares, on the whole GPU.
const selectSharesEntry = "page_select_shares"

// selectSharesThreads is the block of the first launch.
const selectSharesThreads = 512

// selectSharesLeast is how many scores a list must have, at the spec's longest row, for a launch of its own to be worth trying: below,
// the blocks of a cluster read them in less time than a launch takes.
const selectSharesLeast = 1 << 17

// selectSharesLead is the number of scores a list from which two launches are the default: measured faster at 16 heads of 65536 pages, and
// slower at 4 of 32768.
const selectSharesLead = 1 << 19

// leadWithShares puts the first candidate of two launches first, where lists are that long.
func leadWithShares(s *specs.Spec, list []Candidate) []Candidate {
	if headsPerList(s)*longestRow(s) < selectSharesLead {
		return list
	}
	return lead(list, func(c Candidate) bool { return c.First != nil })
}

// selectRanks is select::kMostRanks: blocks of a list that the counts have room for.
const selectRanks = 16

// selectSlices is how many blocks of the first launch share the pages of a block of the second: about as many blocks as there are SMs.
// Twice as many gained nothing.
func selectSlices(s *specs.Spec, cluster int) int {
	const sms = 132
	return max(sms/(s.Attention.KVHeads*cluster), 1)
}

// shareCapacity is the longest row whose values a cluster holds, `words` of each block.
func shareCapacity(of selectClusterShape, words int) int {
	return min(words/of.threads, of.pages+8192/of.threads) * of.threads * of.cluster
}

// selectSplit is how many parts of a warp share the heads of four pages in the first launch: a thread has 8 heads of them at most in
// registers.
func selectSplit(heads int) int {
	if heads > 8 {
		return 2
	}
	return 1
}

// withShares adds a first launch to a candidate that selects from rows of up to `capacity` pages.
func withShares(s *specs.Spec, c Candidate, of selectClusterShape, capacity, parts int) Candidate {
	heads := headsPerList(s)
	blocks := of.cluster * parts
	c.Params = append(c.Params, Param{"slices", parts})
	c.First = &First{Kernel: "kvloom::page_select_shares", Constants: []Constant{
		{"PAGE", fmt.Sprint(s.SummaryTokens())},
		{"HEADS", fmt.Sprint(heads)},
		{"kThreads", fmt.Sprint(selectSharesThreads)},
		{"kCluster", fmt.Sprint(of.cluster)},
		{"kCapacity", fmt.Sprint(capacity)},
		{"kSlices", fmt.Sprint(parts)},
		{"kSplit", fmt.Sprint(selectSplit(heads))},
	}}
	c.Geometry.First = &launch.First{
		Entry: selectSharesEntry, Block: selectSharesThreads, Counters: 1,
		Grid: [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: int64(blocks), Per: 1}, launch.Const(1), launch.Const(1)},
	}
	c.Geometry.Workspace = append(slices.Clone(c.Geometry.Workspace),
		launch.Extent{Of: []launch.Quantity{launch.Lists}, Times: 2 * selectRanks * 256, Per: 1}, // counts
		launch.Extent{Of: []launch.Quantity{launch.Lists}, Times: 4, Per: 1},                     // whether there are values
		launch.Extent{Of: []launch.Quantity{launch.Lists, launch.MaxPages}, Times: 4, Per: 1},    // values
		launch.Extent{Of: []launch.Quantity{launch.Lists}, Times: 16, Per: 1},                    // up to 16 bytes of each list
	)
	return c
}

// selectSharesCandidates are the candidates of two launches, and those that cannot be, with the reason.
func selectSharesCandidates(s *specs.Spec, t Target) (candidates []Candidate, rejected []Rejected) {
	if t.Arch != "sm_90a" {
		return nil, nil
	}
	for _, cluster := range []int{16, 8} {
		of := selectClusterShape{512, cluster, 2}
		c := selectCandidate(s, t, selectShape{Hopper, of.threads, of.cluster})
		c.Params = append(c.Params, Param{"pages", of.pages})
		capacity := shareCapacity(of, selectBufferWords-selectExchange(headsPerList(s), of)/4)
		c.Constants = append(c.Constants, Constant{"kPages", fmt.Sprint(of.pages)}, Constant{"kCapacity", fmt.Sprint(capacity)})
		c.Header, c.Kernel = "kernels/page_select_shares.cuh", "kvloom::page_select_from_shares"
		c.Geometry.DynamicShared = max(c.Geometry.DynamicShared, selectClusterShared(headsPerList(s), of))
		c = withShares(s, c, of, capacity, selectSlices(s, cluster))
		reason := selectSharesRefusal(s, of)
		if reason == "" {
			reason = selectClusterRefusal(s, t, of, c.Geometry.DynamicShared)
		}
		if reason != "" {
			rejected = append(rejected, Rejected{c, reason})
			continue
		}
		candidates = append(candidates, c)
	}
	return candidates, rejected
}

// single tells whether a workload of the spec has one request, beside whose scores masses may stand.
func single(s *specs.Spec) bool {
	return slices.ContainsFunc(s.Workloads, func(w specs.Workload) bool { return w.Batch == 1 })
}

// selectSharesRefusal says why a first launch is of no use to a spec's selection.
func selectSharesRefusal(s *specs.Spec, of selectClusterShape) string {
	heads := headsPerList(s)
	switch {
	case s.Locks.Combine != "share_average":
		return fmt.Sprintf("%s: shares alone are made ahead", s.Locks.Combine)
	case !LeavesMasses(s):
		return "page_score leaves no masses beside the scores"
	case !single(s):
		return "masses stand beside the scores of one request alone"
	case heads*longestRow(s) < selectSharesLeast:
		return fmt.Sprintf("%d scores a list: a launch of its own for its shares takes longer than to read them", heads*longestRow(s))
	case s.Candidates() > listSlots:
		return fmt.Sprintf("a list of %d pages, %d are counted ahead", s.Candidates(), listSlots)
	case of.cluster == 16 && s.Attention.KVHeads > clustersOf16:
		return fmt.Sprintf("%d clusters of 16 do not run at once", s.Attention.KVHeads)
	}
	return ""
}
