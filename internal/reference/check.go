package reference

import (
	"fmt"
	"math"
)

// Tolerance says when a choice counts as wrong.
type Tolerance struct {
	// Log is the difference of log shares below which either page may be chosen: 1e-5 against the scores that selection was
	// given, 8e-3 end to end.
	Log float64
	// Ties demands that of pages with the same scores the lower index is chosen. Meaningless end to end, where scores differ.
	Ties bool
}

// Given is the tolerance of a selection against the scores that it was given.
var Given = Tolerance{Log: 1e-5, Ties: true}

// EndToEnd is the tolerance of a selection against float64's own scores.
var EndToEnd = Tolerance{Log: 8e-3}

// Check judges one list of chosen pages against float64's values of the same scores [group][pages]: the right number of pages,
// ascending, in range, the sink and recent ones among them, no page chosen whose value is below one left out by more than the
// tolerance, and ties low. It returns the largest log ratio by which a page left out exceeds a chosen one (0: none does).
func (b Budget) Check(rule Combine, scores [][]float64, chosen []int32, tol Tolerance) (excess float64, err error) {
	n := len(scores[0])
	if len(chosen) != min(b.Slots, n) {
		return 0, fmt.Errorf("%d pages chosen, want min(%d slots, %d pages)", len(chosen), b.Slots, n)
	}
	in := make([]bool, n)
	for i, j := range chosen {
		if j < 0 || int(j) >= n {
			return 0, fmt.Errorf("slot %d holds page %d, outside 0..%d", i, j, n-1)
		}
		if i > 0 && j <= chosen[i-1] {
			return 0, fmt.Errorf("slot %d holds page %d after page %d: not ascending", i, j, chosen[i-1])
		}
		in[j] = true
	}
	if b.SinkPages+b.RecentPages <= b.Slots {
		for j := range n {
			if b.forced(j, n) && !in[j] {
				return 0, fmt.Errorf("page %d of %d is left out, but sink (%d) and recent (%d) pages are always kept", j, n, b.SinkPages, b.RecentPages)
			}
		}
	}
	values := rule.Values(scores)
	worst, best := -1, -1 // the lowest chosen and the highest page left out
	for j := range n {
		switch {
		case b.forced(j, n):
		case in[j]:
			if worst < 0 || above(values[worst], values[j]) {
				worst = j
			}
		case best < 0 || above(values[j], values[best]):
			best = j
		}
	}
	if worst >= 0 && best >= 0 {
		excess = rule.logRatio(values[best], values[worst])
		if !rule.Logarithmic() && values[worst] == 0 && values[best] < 2*SmallestShare && borderline(rule.units(scores), scores, best) {
			excess = 0
		}
		if excess > tol.Log {
			return excess, fmt.Errorf("page %d (value %.9g) is chosen and page %d (value %.9g) is left out", worst, values[worst], best, values[best])
		}
	}
	if tol.Ties {
		err = b.checkTies(rule, scores, values, in)
	}
	return excess, err
}

// logRatio is how far a lies above b, in nats, 0 where it does not.
func (c Combine) logRatio(a, b float64) float64 {
	if !above(a, b) {
		return 0
	}
	if math.IsNaN(b) || math.IsInf(a, 1) || math.IsInf(b, -1) {
		return math.Inf(1)
	}
	if c.Logarithmic() {
		return a - b
	}
	return math.Log(a / b)
}

// checkTies looks for two pages with the same bits in every head's scores, or both with no share at all, of which the higher is
// chosen and the lower left out.
func (b Budget) checkTies(rule Combine, scores [][]float64, values []float64, in []bool) error {
	n := len(values)
	skipped := map[string]int{}
	var units []float64
	if !rule.Logarithmic() {
		units = rule.units(scores)
	}
	key := make([]byte, 0, 8*len(scores))
	for j := range n {
		if b.forced(j, n) {
			continue
		}
		key = key[:0]
		switch {
		case math.IsNaN(values[j]):
			key = append(key, "nan"...)
		case !rule.Logarithmic() && values[j] == 0:
			if borderline(units, scores, j) {
				continue
			}
			key = append(key, "none"...)
		default:
			for _, row := range scores {
				bits := math.Float64bits(row[j])
				if math.IsNaN(row[j]) {
					bits = math.Float64bits(math.NaN())
				}
				for shift := 0; shift < 64; shift += 8 {
					key = append(key, byte(bits>>shift))
				}
			}
		}
		if lower, ok := skipped[string(key)]; ok && in[j] {
			return fmt.Errorf("page %d is chosen and page %d with the same scores is left out: ties go to the lower index", j, lower)
		} else if !ok && !in[j] {
			skipped[string(key)] = j
		}
	}
	return nil
}

// units are what each head's shares are measured against, NaN where the head has no finite share to speak of.
func (c Combine) units(scores [][]float64) []float64 {
	units := make([]float64, len(scores))
	finite := make([]float64, 0, len(scores[0]))
	for h, row := range scores {
		finite = finite[:0]
		top := math.Inf(-1)
		for _, s := range row {
			if !math.IsNaN(s) {
				finite = append(finite, s)
				top = max(top, s)
			}
		}
		units[h] = top
		if c == ShareAverage {
			units[h] = LSE(finite)
		}
		if math.IsInf(units[h], 0) {
			units[h] = math.NaN()
		}
	}
	return units
}

// borderline reports whether some head's share of page j is so near SmallestShare that f32 may decide otherwise whether it counts.
func borderline(units []float64, scores [][]float64, j int) bool {
	for h, row := range scores {
		if math.Abs(row[j]-units[h]-math.Log(SmallestShare)) < 1e-3 {
			return true
		}
	}
	return false
}
