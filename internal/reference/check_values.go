package reference

import "fmt"

// CheckValues judges one list of chosen indices against float64's combined values, as Check does against scores: the right number,
// ascending, in range, the forced ones among them, and none chosen whose value is below one left out by more than log nats. Values that
// are logarithms or shares as the rule has them. Shares so small that f32 may count them as none or not are equal.
func (b Budget) CheckValues(rule Combine, values []float64, chosen []int32, log float64) (excess float64, err error) {
	n := len(values)
	if len(chosen) != min(b.Slots, n) {
		return 0, fmt.Errorf("%d chosen, want min(%d slots, %d)", len(chosen), b.Slots, n)
	}
	in := make([]bool, n)
	for i, j := range chosen {
		if j < 0 || int(j) >= n || i > 0 && j <= chosen[i-1] {
			return 0, fmt.Errorf("slot %d holds %d: out of range or not ascending", i, j)
		}
		in[j] = true
	}
	worst, best := -1, -1
	for j := range n {
		switch {
		case b.forced(j, n):
			if !in[j] && b.SinkPages+b.RecentPages <= b.Slots {
				return 0, fmt.Errorf("%d of %d is left out, but %d first and %d last ones are always kept", j, n, b.SinkPages, b.RecentPages)
			}
		case in[j]:
			if worst < 0 || above(values[worst], values[j]) {
				worst = j
			}
		case best < 0 || above(values[j], values[best]):
			best = j
		}
	}
	if worst < 0 || best < 0 {
		return 0, nil
	}
	excess = rule.logRatio(values[best], values[worst])
	if !rule.Logarithmic() && values[worst] < 2*SmallestShare && values[best] < 4*SmallestShare {
		excess = 0
	}
	if excess > log {
		return excess, fmt.Errorf("%d (value %.9g) is chosen and %d (value %.9g) is left out", worst, values[worst], best, values[best])
	}
	return excess, nil
}
