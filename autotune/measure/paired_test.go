package measure

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestPairs(t *testing.T) {
	ten := func(f func(i int) float64) (s []float64) {
		for i := range 10 {
			s = append(s, f(i))
		}
		return s
	}
	drift := ten(func(i int) float64 { return 10 + float64(i) })
	tests := []struct {
		name, reason string
		a, b         []float64
		p            float64
		differ       bool
	}{
		{"equal", "identical series are equal", drift, drift, 1, false},
		{"drift", "2 % are seen through a drift of 100 % that both have", drift, ten(func(i int) float64 { return 1.02 * drift[i] }), 2.0 / 1024, true},
		{"certain and small", "a sure difference below the tie share is a tie", drift, ten(func(i int) float64 { return 1.003 * drift[i] }), 2.0 / 1024, false},
		{"one round off", "ranks: one odd round of ten stays significant", drift, ten(func(i int) float64 { return drift[i] * map[bool]float64{true: 0.999, false: 1.02}[i == 0] }), 4.0 / 1024, true},
		{"three", "three rounds can say nothing at 5 %", drift[:3], []float64{20, 22, 24}, 0.25, false},
		{"none", "no rounds, no claim", nil, nil, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			c := Pairs(tt.a, tt.b)
			if math.Abs(c.P-tt.p) > 1e-12 || c.Differ() != tt.differ {
				t.Errorf("p %g, differ %v; want %g, %v: %s", c.P, c.Differ(), tt.p, tt.differ, tt.reason)
			}
		})
	}
}

// The stated error rate holds for noise with outliers and drift, and a real difference of 2 % is found.
func TestPairsErrorRate(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	series := func(faster float64) (a, b []float64) {
		level := 10.0
		for range 10 {
			level *= 1 + 0.005*r.NormFloat64()
			noise := func() float64 {
				x := 1 + 0.004*r.NormFloat64()
				if r.IntN(40) == 0 {
					x *= 1.3
				}
				return x
			}
			a, b = append(a, level*noise()), append(b, level*faster*noise())
		}
		return a, b
	}
	for _, tt := range []struct{ faster, atLeast, atMost float64 }{{1, 0, Level}, {1.02, 0.7, 1}} {
		differ := 0
		const trials = 1000
		for range trials {
			if Pairs(series(tt.faster)).Differ() {
				differ++
			}
		}
		if share := float64(differ) / trials; share < tt.atLeast || share > tt.atMost {
			t.Errorf("ratio %g: told apart in %.3f of the trials, want %g to %g", tt.faster, share, tt.atLeast, tt.atMost)
		}
	}
}

// Beyond 20 rounds the probability is the normal one.
func TestSignedRankLarge(t *testing.T) {
	up, even := make([]float64, 24), make([]float64, 24)
	for i := range up {
		up[i] = float64(i + 1)
		even[i] = float64(i+1) * float64(1-2*(i%2))
	}
	if p := signedRank(up); p > 1e-4 {
		t.Errorf("24 differences in one direction: p %g", p)
	}
	if p := signedRank(even); p < 0.5 {
		t.Errorf("24 differences in turn: p %g", p)
	}
}
