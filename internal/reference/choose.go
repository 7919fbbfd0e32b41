package reference

import (
	"math"
	"sort"
)

// Budget is how many pages a list holds and which of them are not open to choice.
type Budget struct {
	Slots, SinkPages, RecentPages int
}

// forced reports whether page j of n is always kept.
func (b Budget) forced(j, n int) bool { return j < b.SinkPages || j >= n-b.RecentPages }

// above orders values as selection does: NaN below everything.
func above(a, b float64) bool {
	if math.IsNaN(a) || math.IsNaN(b) {
		return !math.IsNaN(a) && math.IsNaN(b)
	}
	return a > b
}

// Choose picks min(slots, n) pages: the sink and recent ones, then the largest values, ties to the lower index; ascending. Sink and
// recent pages beyond the slots (specs refuse such budgets) are dropped from the end of that order.
func (b Budget) Choose(values []float64) []int32 {
	n := len(values)
	order := make([]int, n)
	for j := range order {
		order[j] = j
	}
	sort.SliceStable(order, func(x, y int) bool {
		i, j := order[x], order[y]
		if fi, fj := b.forced(i, n), b.forced(j, n); fi != fj {
			return fi
		} else if fi {
			return i < j
		}
		return above(values[i], values[j])
	})
	chosen := make([]int32, min(b.Slots, n))
	for i := range chosen {
		chosen[i] = int32(order[i])
	}
	sort.Slice(chosen, func(i, j int) bool { return chosen[i] < chosen[j] })
	return chosen
}
