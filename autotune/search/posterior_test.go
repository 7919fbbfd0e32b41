package search

import (
	"math"
	"math/rand/v2"
	"testing"
)

// However the rows came about, a prediction is that of the textbook: k' (K + noise)^-1 y, and what is left of the variance.
func TestPosterior(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	features := make([][]float64, 40)
	for i := range features {
		features[i] = []float64{r.Float64(), r.Float64(), r.Float64()}
	}
	process := gp{lengths: []float64{0.5, 1, 2}, noise: 1e-3}
	p := posterior{process: &process, features: features}
	p.reset()
	value := func(i int) float64 { return math.Sin(5*features[i][0]) + features[i][1] - 0.7 }
	mean, sd := make([]float64, len(features)), make([]float64, len(features))
	tests := []struct {
		name             string
		results, pending []int
		lengths          []float64
	}{
		{"first", []int{3, 7, 11}, nil, nil},
		{"two are out", []int{3, 7, 11}, []int{20, 30}, nil},
		{"told in another order", []int{3, 7, 11, 30, 20}, nil, nil},
		{"more", []int{3, 7, 11, 30, 20, 1, 2, 4, 5, 6, 8}, []int{9}, nil},
		{"other lengths", []int{3, 7, 11, 30, 20, 1, 2, 4, 5, 6, 8}, []int{9, 10}, []float64{2, 0.25, 1}},
	}
	for _, tt := range tests {
		if tt.lengths != nil {
			process.lengths = tt.lengths
			p.reset()
		}
		var y []float64
		for _, i := range tt.results {
			y = append(y, value(i))
		}
		p.observe(append(append([]int{}, tt.results...), tt.pending...))
		p.predict(y, mean, sd)
		all, n := append(append([]int{}, tt.results...), tt.pending...), len(tt.results)
		whole, known := kernelMatrix(&process, features, all), kernelMatrix(&process, features, tt.results)
		quad := 0.0
		for i, a := range solve(known, y) {
			quad += a * y[i]
		}
		for at, f := range features {
			k := make([]float64, len(all))
			for j, i := range all {
				k[j] = process.kernel(f, features[i])
			}
			wantMean, wantLeft := 0.0, 1+process.noise
			for j, a := range solve(known, y) {
				wantMean += k[j] * a
			}
			for j, a := range solve(whole, k) {
				wantLeft -= k[j] * a
			}
			wantSD := math.Sqrt(wantLeft * quad / float64(n))
			if math.Abs(mean[at]-wantMean) > 1e-8 || math.Abs(sd[at]-wantSD) > 1e-8 {
				t.Fatalf("%s: point %d is %.9f +- %.9f, want %.9f +- %.9f", tt.name, at, mean[at], sd[at], wantMean, wantSD)
			}
		}
	}
}

func kernelMatrix(g *gp, features [][]float64, at []int) [][]float64 {
	k := make([][]float64, len(at))
	for i := range at {
		for j := range at {
			k[i] = append(k[i], g.kernel(features[at[i]], features[at[j]]))
		}
		k[i][i] += g.noise
	}
	return k
}

// solve is Gaussian elimination with pivots.
func solve(matrix [][]float64, b []float64) []float64 {
	n := len(b)
	a := make([][]float64, n)
	for i := range a {
		a[i] = append(append([]float64{}, matrix[i][:n]...), b[i])
	}
	for c := range n {
		for r := c + 1; r < n; r++ {
			if math.Abs(a[r][c]) > math.Abs(a[c][c]) {
				a[r], a[c] = a[c], a[r]
			}
		}
		for r := range n {
			if r != c {
				f := a[r][c] / a[c][c]
				for k := c; k <= n; k++ {
					a[r][k] -= f * a[c][k]
				}
			}
		}
	}
	x := make([]float64, n)
	for i := range x {
		x[i] = a[i][n] / a[i][i]
	}
	return x
}
