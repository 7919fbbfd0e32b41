package measure

import (
	"math/rand/v2"
	"testing"
)

func TestSummarise(t *testing.T) {
	tests := []struct {
		name, reason string
		samples      []float64
		want         Summary
	}{
		{"one", "a single sample is its own interval", []float64{3}, Summary{3, 3, 3, 1}},
		{"even", "the median of an even count lies between the middle two", []float64{4, 1, 3, 2}, Summary{2.5, 1, 4, 4}},
		{"unsorted", "input order does not matter and is kept", []float64{9, 1, 5}, Summary{5, 1, 9, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := Summarise(tt.samples); got != tt.want {
				t.Errorf("got %+v, want %+v: %s", got, tt.want, tt.reason)
			}
		})
	}
}

// The interval must hold the true median at least 95 % of the time, also for a skewed distribution.
func TestSummariseCoverage(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	const trials, trueMedian = 4000, 0.6931471805599453
	for _, n := range []int{8, 25, 60} {
		held := 0
		for range trials {
			s := make([]float64, n)
			for i := range s {
				s[i] = r.ExpFloat64()
			}
			if sum := Summarise(s); sum.Lo <= trueMedian && trueMedian <= sum.Hi {
				held++
			}
		}
		if share := float64(held) / trials; share < 0.95 {
			t.Errorf("n %d: the interval held the median in %.3f of the trials, want at least 0.95", n, share)
		}
	}
}
