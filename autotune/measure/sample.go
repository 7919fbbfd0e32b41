// Package measure times kernels as they are deployed: by graph replay, over rotating buffers that keep the L2 cold, in a process
// of its own, so that a fault, a hang or a crash of a candidate costs one child and never the run.
package measure

import (
	"math"
	"slices"
)

// Summary is what a set of samples says: the median and the 95 % interval of the median, from order statistics.
type Summary struct {
	Median, Lo, Hi float64
	N              int
}

// Summarise sorts a copy of the samples. The interval is distribution-free: the ranks around n/2 between which the true median
// lies with at least 95 % (binomial, normal approximation widened to whole ranks). Fewer than 6 samples give the whole range.
func Summarise(samples []float64) Summary {
	n := len(samples)
	if n == 0 {
		return Summary{Median: math.NaN(), Lo: math.NaN(), Hi: math.NaN()}
	}
	s := slices.Clone(samples)
	slices.Sort(s)
	median := s[n/2]
	if n%2 == 0 {
		median = (s[n/2-1] + s[n/2]) / 2
	}
	if n < 6 {
		return Summary{Median: median, Lo: s[0], Hi: s[n-1], N: n}
	}
	half := 1.96 * math.Sqrt(float64(n)) / 2
	lo := int(math.Floor(float64(n)/2 - half))
	hi := int(math.Ceil(float64(n)/2 + half))
	return Summary{Median: median, Lo: s[max(lo-1, 0)], Hi: s[min(hi, n-1)], N: n}
}

// Tight tells whether the interval is within a relative width of the median on both sides.
func (s Summary) Tight(width float64) bool {
	return s.N >= 6 && s.Median-s.Lo <= width*s.Median && s.Hi-s.Median <= width*s.Median
}
