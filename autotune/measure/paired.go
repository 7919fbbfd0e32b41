package measure

import (
	"math"
	"slices"
)

// Compared is the outcome of comparing two candidates that were measured in turn, round by round.
type Compared struct {
	Ratio float64 `json:"ratio"` // of b's time to a's, by Hodges and Lehmann: the median of the means of all pairs of rounds
	P     float64 `json:"p"`     // two-sided, that the ratios lie around 1
	N     int     `json:"n"`     // rounds
}

// TieShare is the difference below which two candidates count as equal however sure it is: nothing that a caller could notice, and a
// choice that hangs on less changes from day to day.
const TieShare = 0.005

// Level is the error rate of a comparison: so often, at most, it tells two equal candidates apart.
const Level = 0.05

// Differ says that b is not as fast as a.
func (c Compared) Differ() bool { return c.P < Level && math.Abs(c.Ratio-1) > TieShare }

// Pairs compares two series of which equal indices were measured one after the other, by Wilcoxon's signed-rank test on the logs of their
// ratios. The probability is exact up to 20 rounds, normal beyond. Equal pairs count as half a difference in each direction.
func Pairs(a, b []float64) Compared {
	n := min(len(a), len(b))
	d := make([]float64, n)
	for i := range n {
		d[i] = math.Log(b[i] / a[i])
	}
	if n == 0 {
		return Compared{Ratio: math.NaN(), P: 1}
	}
	return Compared{Ratio: math.Exp(middle(d)), P: signedRank(d), N: n}
}

// middle is the median of the means of all pairs, each number with itself among them: nearly as precise as the mean, and as deaf to a
// disturbed round as the test that it belongs to.
func middle(d []float64) float64 {
	var means []float64
	for i, x := range d {
		for _, y := range d[i:] {
			means = append(means, (x+y)/2)
		}
	}
	return Summarise(means).Median
}

// signedRank is the two-sided probability of rank sums as uneven as those of d under symmetry.
func signedRank(d []float64) float64 {
	n := len(d)
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	slices.SortFunc(order, func(i, j int) int {
		switch x, y := math.Abs(d[i]), math.Abs(d[j]); {
		case x < y:
			return -1
		case x > y:
			return 1
		}
		return i - j
	})
	ranks := make([]float64, n) // middle ranks of ties
	for at := 0; at < n; {
		end := at
		for end < n && math.Abs(d[order[end]]) == math.Abs(d[order[at]]) {
			end++
		}
		for _, i := range order[at:end] {
			ranks[i] = float64(at+end+1) / 2
		}
		at = end
	}
	sum, total := 0.0, 0.0 // signed
	for i, r := range ranks {
		switch {
		case d[i] > 0:
			sum += r
		case d[i] < 0:
			sum -= r
		}
		total += r * r
	}
	if n > 20 {
		return math.Erfc(math.Abs(sum) / math.Sqrt(2*total))
	}
	beyond := 0
	for signs := range 1 << n {
		s := 0.0
		for i, r := range ranks {
			if signs>>i&1 == 1 {
				s += r
			} else {
				s -= r
			}
		}
		if math.Abs(s) >= math.Abs(sum)-1e-9 {
			beyond++
		}
	}
	return float64(beyond) / float64(int(1)<<n)
}
