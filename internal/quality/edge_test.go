package quality

import (
	"math"
	"math/rand/v2"
	"path/filepath"
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
)

// dump writes a file of 2 query heads on one KV head of dim 64.
func dump(t *testing.T, tokens, last int, key func(token, dim int) float64, query func(i, dim int) float64) string {
	t.Helper()
	bits := func(n int, at func(row, dim int) float64) []uint16 {
		out := make([]uint16, 0, n*64)
		for row := range n {
			for d := range 64 {
				out = append(out, reference.BF16.Bits(at(row, d)))
			}
		}
		return out
	}
	k := bits(tokens, key)
	f := tensorfile.File{Tensors: []tensorfile.Tensor{
		tensorfile.FromBits16("k", "BF16", []int{1, tokens, 64}, k), tensorfile.FromBits16("v", "BF16", []int{1, tokens, 64}, k),
		tensorfile.FromBits16("q_last", "BF16", []int{2, last, 64}, bits(2*last, query)),
	}}
	path := filepath.Join(t.TempDir(), "edge.safetensors")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	return path
}

// TestEdgeInputs: strange keys and queries give numbers for every score, form, scan and rerank: masses and recalls in range, no NaN.
func TestEdgeInputs(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 12))
	normal := func(int, int) float64 { return rng.NormFloat64() }
	for _, tt := range []struct {
		name         string
		tokens, last int
		key, query   func(int, int) float64
	}{
		{"constant keys", 256, 4, func(_, d int) float64 { return float64(d%7) - 3 }, normal},
		{"zero keys", 256, 4, func(int, int) float64 { return 0 }, normal},
		{"repeated keys", 256, 4, func(t, d int) float64 { return float64((t%2*13+d)%5) - 2 }, normal},
		{"an outlier 1e4 times larger", 256, 4, func(t, _ int) float64 {
			if t == 77 {
				return 1e4 * rng.NormFloat64()
			}
			return rng.NormFloat64()
		}, normal},
		{"logits of up to 3e4", 256, 4, func(int, int) float64 { return 60 * rng.NormFloat64() }, func(int, int) float64 { return 60 * rng.NormFloat64() }},
		{"S of rank 1", 256, 4, normal, func(_, d int) float64 { return float64(d % 2) }},
		{"S of zero", 256, 4, normal, func(int, int) float64 { return 0 }},
		{"a prompt of one token", 17, 16, normal, normal},
	} {
		o := options()
		o.Ranks, o.Bits, o.Budgets, o.Queries = []int{1, 4}, []int{4, 0}, []int{64}, tt.last/2
		for _, text := range []string{"r1w", "r2c4s16w", "r1c4m4w", "r1c4m4", "r1c4m4wp2"} {
			o.Forms = append(o.Forms, form(t, text))
		}
		o.Rerank, o.Scans = []float64{1, 2}, Scans
		for _, r := range run(t, o, dump(t, tt.tokens, tt.last, tt.key, tt.query))[0].Rows {
			for name, x := range map[string]float64{"mass": r.Mass, "worst": r.Worst, "recall": r.Recall} {
				if !(x >= 0 && x <= 1+1e-9) {
					t.Errorf("%s, %s: %s %g", tt.name, r.Name(), name, x)
				}
			}
			if math.IsNaN(r.Error) || math.IsInf(r.Error, 0) || r.RMS != nil && (math.IsNaN(*r.RMS) || math.IsInf(*r.RMS, 0)) {
				t.Errorf("%s, %s: output error %g, RMS %v", tt.name, r.Name(), r.Error, r.RMS)
			}
			if r.Scorer == ExactLSE && r.Recall != 1 {
				t.Errorf("%s: the oracle recalls %g of itself", tt.name, r.Recall)
			}
		}
	}
}
