package kernel

import (
	"fmt"
	"math"
	"sort"
)

// LayerTokens is how many tokens a head of each layer keeps of a prompt of n when layers share what uniform budgets would give them,
// Keep(n) each, by preferences: Qin et al. 2025, CAKE, B_l = P_l / sum(P) x B_total. A layer's launch then takes its number as
// Tokens, with Ratio 0. Layer and Layers, a pyramid's, are not looked at.
//
// Every layer keeps its window, B_total is what uniform budgets keep beside it. What a layer cannot hold, a prompt being that short,
// goes to the others by their preferences; parts of tokens to the largest remainders, ties to the lower layer. So the numbers add up
// to len(preferences) x Keep(n). Preferences that are all 0 count as equal; one that is negative, infinite or NaN is an error.
func (b DropBudget) LayerTokens(preferences []float64, n int) ([]int, error) {
	weights, err := layerWeights(preferences)
	if err != nil {
		return nil, err
	}
	b.Layers = 0
	window := max(min(int(b.Window), n), 0)
	open := max(n-window, 0)
	tokens := make([]int, len(weights))
	left := max(b.Keep(n)-window, 0) * len(weights)
	rest := make([]int, len(weights)) // layers that may hold more
	for l := range rest {
		rest[l] = l
	}
	for full := true; full; {
		share := layerShares(weights, rest, left)
		var below []int
		for i, l := range rest {
			if share[i] >= float64(open) {
				tokens[l] = open
			} else {
				below = append(below, l)
			}
		}
		full = len(below) < len(rest)
		left -= (len(rest) - len(below)) * open
		rest = below
	}
	roundShares(tokens, rest, layerShares(weights, rest, left), left)
	for l := range tokens {
		tokens[l] += window
	}
	return tokens, nil
}

// layerWeights are preferences as parts of the largest, so that sums of them are finite.
func layerWeights(preferences []float64) ([]float64, error) {
	if len(preferences) == 0 {
		return nil, fmt.Errorf("kernel: no layer preferences")
	}
	var largest float64
	for l, p := range preferences {
		if !(p >= 0) || math.IsInf(p, 1) {
			return nil, fmt.Errorf("kernel: preference %g of layer %d; allowed: finite numbers from 0", p, l)
		}
		largest = max(largest, p)
	}
	weights := make([]float64, len(preferences))
	for l, p := range preferences {
		if largest > 0 {
			weights[l] = p / largest
		}
	}
	return weights, nil
}

// layerShares divides tokens over some layers by their weights, equally where those are all 0.
func layerShares(weights []float64, layers []int, tokens int) []float64 {
	var sum float64
	for _, l := range layers {
		sum += weights[l]
	}
	shares := make([]float64, len(layers))
	for i, l := range layers {
		if sum > 0 {
			shares[i] = float64(tokens) * weights[l] / sum
		} else {
			shares[i] = float64(tokens) / float64(len(layers))
		}
	}
	return shares
}

// roundShares gives each layer the whole tokens of its share, and what is then left of all to the largest remainders.
func roundShares(tokens, layers []int, shares []float64, left int) {
	order := make([]int, len(layers))
	for i, l := range layers {
		order[i] = i
		tokens[l] = int(shares[i])
		left -= tokens[l]
	}
	remainder := func(i int) float64 { return shares[i] - math.Floor(shares[i]) }
	sort.SliceStable(order, func(x, y int) bool { return remainder(order[x]) > remainder(order[y]) })
	for _, i := range order[:min(left, len(order))] {
		tokens[layers[i]]++
	}
}
