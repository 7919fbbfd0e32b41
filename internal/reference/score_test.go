package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestLSE(t *testing.T) {
	inf := math.Inf(1)
	tests := []struct {
		name string
		x    []float64
		want float64
	}{
		{"nothing", nil, -inf},
		{"one", []float64{3}, 3},
		{"two equal", []float64{1, 1}, 1 + math.Ln2},
		{"huge does not overflow", []float64{3e4, 3e4}, 3e4 + math.Ln2},
		{"far apart", []float64{0, -1000}, 0},
		{"all -inf", []float64{-inf, -inf}, -inf},
		{"+inf", []float64{0, inf}, inf},
	}
	for _, tt := range tests {
		if got := LSE(tt.x); got != tt.want && math.Abs(got-tt.want) > 1e-14*math.Abs(tt.want) {
			t.Errorf("%s: %v, want %v", tt.name, got, tt.want)
		}
	}
	if got := LSE([]float64{inf, math.NaN()}); !math.IsNaN(got) {
		t.Errorf("a NaN gives %v", got)
	}
}

func TestPageLSEByHand(t *testing.T) {
	// q = (2, 0), keys (1, 9), (3, 9): logits 1 and 3 at scale 1/2.
	got := PageLSE([]float64{2, 0}, []float64{1, 9, 3, 9}, Logits{Scale: 0.5})
	if want := math.Log(math.Exp(1) + math.Exp(3)); math.Abs(got-want) > 1e-14 {
		t.Errorf("got %v, want %v", got, want)
	}
	got = PageLSE([]float64{2, 0}, []float64{1, 9, 3, 9}, Logits{Scale: 0.5, Softcap: 2})
	if want := math.Log(math.Exp(2*math.Tanh(0.5)) + math.Exp(2*math.Tanh(1.5))); math.Abs(got-want) > 1e-14 {
		t.Errorf("capped: got %v, want %v", got, want)
	}
}

// TestFullRankIsExact is Theorem 1(i) at eta = 0: a basis of the page's whole rank reproduces its log-sum-exp.
func TestFullRankIsExact(t *testing.T) {
	r := rand.New(rand.NewPCG(9, 10))
	for range 50 {
		shape := Shape{HeadDim: 64, PageSize: 16, Rank: 15, BasisBits: 16}
		keys := normal(r, 16*64)
		q := normal(r, 64)
		l := Logits{Scale: 0.125}
		s := Summarise(keys, shape)
		exact := PageLSE(q, keys, l)
		got, _ := Dequantised{Shape: shape, Mu: s.Mu, V: s.V, C: s.C}.Score(q, l)
		if math.Abs(got-exact) > 1e-12 {
			t.Fatalf("unquantised: %v, exact %v", got, exact)
		}
		// At 16 bits the basis is rounded to 2^-9 and C, mu to 1/254 of their largest: some 1e-2 nats.
		got, _ = s.Quantise().Dequantise().Score(q, l)
		if math.Abs(got-exact) > 5e-2 {
			t.Fatalf("quantised: %v, exact %v", got, exact)
		}
	}
}

// TestScoreErrorBound is Theorem 1(i): |s^ - s| <= |q_perp| sigma_(r+1) / sqrt(d).
func TestScoreErrorBound(t *testing.T) {
	r := rand.New(rand.NewPCG(11, 12))
	for range 50 {
		keys, q := normal(r, 16*64), normal(r, 64)
		l := Logits{Scale: 0.125}
		wide := Summarise(keys, Shape{HeadDim: 64, PageSize: 16, Rank: 5, BasisBits: 16})
		s := Summarise(keys, Shape{HeadDim: 64, PageSize: 16, Rank: 4, BasisBits: 16})
		got, _ := Dequantised{Shape: s.Shape, Mu: s.Mu, V: s.V, C: s.C}.Score(q, l)
		perp := dot(q, q)
		for c := range 4 {
			x := dot(q, s.V[c*64:(c+1)*64])
			perp -= x * x
		}
		if err, bound := math.Abs(got-PageLSE(q, keys, l)), math.Sqrt(perp)*wide.Sigma[4]/8; err > bound {
			t.Fatalf("error %v above the theorem's %v", err, bound)
		}
	}
}
