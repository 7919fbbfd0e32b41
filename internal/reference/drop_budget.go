package reference

import (
	"fmt"
	"math"
	"sort"
)

// DropBudget says how many tokens each KV head of a layer keeps. The kinds divide a layer's budget over its heads.
type DropBudget struct {
	Kind          string // "uniform", "adaptive", "pyramid" or "explicit"
	Ratio         float64
	Tokens        int // where Ratio is 0
	Window, Sinks int
	Floor         float64 // adaptive: the share of a head's free tokens that its own best are sure of
	Layer, Layers int     // pyramid
	List          []int   // explicit: tokens of each head
}

// Validate reports budgets that mean nothing.
func (b DropBudget) Validate(kvHeads int) error {
	switch {
	case b.Window < 1 || b.Window > 64:
		return fmt.Errorf("window of %d queries; allowed: 1 to 64", b.Window)
	case b.Sinks < 0:
		return fmt.Errorf("%d sink tokens", b.Sinks)
	case b.Kind == "explicit" && len(b.List) != kvHeads:
		return fmt.Errorf("%d explicit head budgets for %d KV heads", len(b.List), kvHeads)
	case b.Kind == "explicit":
		return nil
	case b.Ratio == 0 && b.Tokens < 1, b.Ratio < 0, b.Ratio > 1, math.IsNaN(b.Ratio):
		return fmt.Errorf("budget ratio %g, tokens %d; give a ratio above 0 and up to 1, or at least one token", b.Ratio, b.Tokens)
	case b.Kind == "adaptive" && !(b.Floor >= 0 && b.Floor <= 1):
		return fmt.Errorf("head budget floor %g; allowed: 0 to 1", b.Floor)
	case b.Kind == "pyramid" && (b.Layers < 1 || b.Layer < 0 || b.Layer >= b.Layers):
		return fmt.Errorf("layer %d of %d", b.Layer, b.Layers)
	case b.Kind == "uniform", b.Kind == "adaptive", b.Kind == "pyramid":
		return nil
	}
	return fmt.Errorf("head budgets of kind %q; use uniform, adaptive, pyramid or explicit", b.Kind)
}

// Keep is how many tokens of n a head keeps, of a layer's mean for adaptive: max(ceil(ratio n), window, 1), at most n. The factor
// keeps .07 x 100, which is above 7 in binary, from becoming 8.
func (b DropBudget) Keep(n, head int) int {
	keep := b.Tokens
	if b.Ratio > 0 {
		keep = int(math.Ceil(b.Ratio * float64(n) * (1 - 1e-12)))
	}
	switch b.Kind {
	case "explicit":
		keep = b.List[head]
	case "pyramid":
		keep = Pyramid(max(keep, b.Window), b.Window, n, b.Layer, b.Layers)
	}
	return min(n, max(keep, b.Window, 1))
}

// pyramidBeta is PyramidKV's: the smallest layer gets a twentieth of the mean beside the window.
const pyramidBeta = 20

// Pyramid is how many tokens a layer keeps of n when the mean over layers is keep: Cai et al. 2024, "PyramidKV: Dynamic KV Cache
// Compression based on Pyramidal Information Funneling". Beside the window, budgets fall in equal whole steps from twice the mean
// less the smallest, in the first layer; where that is more than the prompt has, the range is narrowed about the mean.
func Pyramid(keep, window, n, layer, layers int) int {
	free := max(keep-window, 0)
	low := free / pyramidBeta
	high := 2*free - low
	if all := max(n-window, 0); high >= all {
		high = all
		low = 2*free - high
	}
	if layers < 2 {
		return window + free
	}
	return window + max(high-layer*((high-low)/(layers-1)), 0)
}

// pinned is what of n tokens is kept whatever its score, when keep are: the window, then sinks while there is room.
func (b DropBudget) pinned(n, keep int) (sinks, end int) {
	end = max(n-b.Window, 0)
	return max(min(b.Sinks, end, keep-(n-end)), 0), end
}

// Select chooses the tokens of each head from its pooled values [head][n]: pinned ones, then the best; ties to the lower index, NaN
// below -inf; ascending.
//
// adaptive is the allocation of Feng et al. 2024, "Ada-KV: Optimizing KV Cache Eviction by Adaptive Budget Allocation for Efficient
// LLM Inference", in its form with a safeguard: each head's own best floor(Floor x free) tokens are sure, free being what one head
// may choose under a uniform budget; what is left of the layer's tokens goes to the best of all heads, ties to the lower head, then
// to the lower token. So a layer keeps exactly as many as under a uniform budget.
func (b DropBudget) Select(values [][]float64) [][]int32 {
	heads, n := len(values), 0
	if heads > 0 {
		n = len(values[0])
	}
	chosen := make([]map[int]bool, heads)
	var rest []dropCandidate
	left := 0
	for h, row := range values {
		keep := b.Keep(n, h)
		sinks, end := b.pinned(n, keep)
		chosen[h] = map[int]bool{}
		for j := range n {
			if j < sinks || j >= end {
				chosen[h][j] = true
			}
		}
		order := rank(row, h, sinks, end)
		free := min(keep-len(chosen[h]), len(order))
		sure := free
		if b.Kind == "adaptive" {
			sure = int(math.Floor(b.Floor * float64(free) * (1 + 1e-12)))
			left += free - sure
			rest = append(rest, order[sure:]...)
		}
		for _, c := range order[:sure] {
			chosen[h][c.token] = true
		}
	}
	sort.SliceStable(rest, func(i, j int) bool { return above(rest[i].value, rest[j].value) })
	for _, c := range rest[:min(left, len(rest))] {
		chosen[c.head][c.token] = true
	}
	return ascending(chosen)
}

type dropCandidate struct {
	value       float64
	head, token int
}

// rank orders a head's open tokens [first, end), best first, ties to the lower index.
func rank(row []float64, head, first, end int) []dropCandidate {
	order := make([]dropCandidate, 0, max(end-first, 0))
	for j := first; j < end; j++ {
		order = append(order, dropCandidate{row[j], head, j})
	}
	sort.SliceStable(order, func(x, y int) bool { return above(order[x].value, order[y].value) })
	return order
}

func ascending(sets []map[int]bool) [][]int32 {
	lists := make([][]int32, len(sets))
	for h, set := range sets {
		lists[h] = make([]int32, 0, len(set))
		for j := range set {
			lists[h] = append(lists[h], int32(j))
		}
		sort.Slice(lists[h], func(x, y int) bool { return lists[h][x] < lists[h][y] })
	}
	return lists
}
