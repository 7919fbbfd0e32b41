package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

// randomMatrix is [rows, cols] of normals, columns scaled apart so that directions matter.
func randomMatrix(rng *rand.Rand, rows, cols int) []float64 {
	x := make([]float64, rows*cols)
	for i := range x {
		x[i] = rng.NormFloat64() * math.Exp(1.5*math.Sin(float64(3*(i%cols))))
	}
	return x
}

// logitError is the mean over queries of the squared logit error that a summary leaves on its page, scale 1.
func logitError(s Summary, queries []float64) float64 {
	d := s.HeadDim
	var sum float64
	for t := range s.PageSize {
		rest := append([]float64{}, s.D[t*d:(t+1)*d]...)
		for r := range s.Rank {
			axpy(rest, -s.C[t*s.Rank+r], s.V[r*d:(r+1)*d])
		}
		for at := 0; at < len(queries); at += d {
			x := dot(queries[at:at+d], rest)
			sum += x * x
		}
	}
	return sum / float64(len(queries)/d)
}

// TestWeightedOptimal: no basis leaves a smaller expected squared logit error under S' than the weighted one, the error is exactly
// the singular values left out, and the plain SVD is worse where queries prefer directions.
func TestWeightedOptimal(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	const d, page, rank = 32, 16, 3
	shape := Shape{HeadDim: d, PageSize: page, Rank: rank, BasisBits: 16}
	queries := randomMatrix(rng, 200, d)
	s := SecondMoment(queries, d)
	w := NewWeights(s, d)
	var trace float64
	for i := range d {
		trace += s[i*d+i]
	}
	for range 20 {
		keys := make([]float64, page*d)
		for i := range keys {
			keys[i] = rng.NormFloat64()
		}
		one, plain := SummariseWeighted(keys, shape, w), Summarise(keys, shape)
		full := SummariseWeighted(keys, Shape{HeadDim: d, PageSize: page, Rank: page - 1, BasisBits: 16}, w)
		var tail float64
		for _, sigma := range full.Sigma[rank:] {
			tail += sigma * sigma
		}
		shrunk := func(s Summary) float64 { // tr(E S' E^T), S' with the mean diagonal scaled out
			d := s.HeadDim
			var rest []float64
			for t := range s.PageSize {
				row := append([]float64{}, s.D[t*d:(t+1)*d]...)
				for r := range s.Rank {
					axpy(row, -s.C[t*s.Rank+r], s.V[r*d:(r+1)*d])
				}
				rest = append(rest, row...)
			}
			rest = times(rest, w.Half, d)
			return dot(rest, rest)
		}
		if got := shrunk(one); math.Abs(got-tail) > 1e-9*tail {
			t.Fatalf("error under S' %g, singular values left out %g", got, tail)
		}
		if shrunk(plain) < tail*(1-1e-9) {
			t.Fatalf("the plain SVD beats the optimum: %g < %g", shrunk(plain), tail)
		}
		if a, b := logitError(one, queries), trace/d*tail; a > b*(1+1e-9) {
			t.Fatalf("mean squared logit error %g above the bound %g", a, b)
		}
		if a, b := logitError(one, queries), logitError(plain, queries); a >= b {
			t.Errorf("weighted %g, plain %g", a, b)
		}
	}
}

// TestWeightsEdges: moments that say nothing give the plain SVD; singular ones and strange pages give numbers.
func TestWeightsEdges(t *testing.T) {
	const d, page = 64, 16
	rng := rand.New(rand.NewPCG(3, 4))
	normal := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = rng.NormFloat64()
		}
		return x
	}
	nan, huge := make([]float64, d*d), make([]float64, d*d)
	nan[5], huge[0] = math.NaN(), math.Inf(1)
	one := SecondMoment(normal(d), d) // rank 1
	big := SecondMoment(times(normal(d), diagonal(d, 1e4), d), d)
	keys := normal(page * d)
	plain := Summarise(keys, Shape{HeadDim: d, PageSize: page, Rank: 4, BasisBits: 4})
	for name, s := range map[string][]float64{"zero": make([]float64, d*d), "NaN": nan, "infinite": huge, "no queries": SecondMoment(nil, d)} {
		got := SummariseWeighted(keys, Shape{HeadDim: d, PageSize: page, Rank: 4, BasisBits: 4}, NewWeights(s, d))
		for i := range got.V {
			if math.Abs(got.V[i]-plain.V[i]) > 1e-12 {
				t.Fatalf("S %s: the basis is not the plain SVD's", name)
			}
		}
	}
	constant, repeated, outlier := make([]float64, page*d), make([]float64, page*d), normal(page*d)
	row, other := normal(d), normal(d)
	for i := range constant {
		constant[i] = row[i%d]
		repeated[i] = row[i%d]
		if i/d%2 == 1 {
			repeated[i] = other[i%d]
		}
	}
	for i := range d {
		outlier[3*d+i] *= 1e4
	}
	for weights, s := range map[string][]float64{"zero": make([]float64, d*d), "rank 1": one, "huge": big} {
		w := NewWeights(s, d)
		for name, page1 := range map[string][]float64{"constant": constant, "zero": make([]float64, page*d), "repeated": repeated, "outlier": outlier} {
			sum := SummariseWeighted(page1, Shape{HeadDim: d, PageSize: page, Rank: 4, BasisBits: 4}, w)
			for _, f := range []Form{PlainForm(4, 4), {Rank: 4, BasisBits: 4, CoefficientBits: 4, CentroidBits: 4, Grouped: true, Weighted: true, Pages: 1}} {
				stored := sum.Stored(f, row)
				q := append([]float64{}, outlier[3*d:4*d]...) // |q.k| up to 1e10
				score, _ := stored.Score(q, Logits{Scale: 0.125})
				if math.IsNaN(score) || math.IsInf(score, 0) {
					t.Errorf("S %s, %s keys: score %g", weights, name, score)
				}
			}
			if name != "outlier" {
				small := append([]float64{}, row...)
				exact := PageLSE(small, page1, Logits{Scale: 0.125})
				got, _ := sum.Stored(Form{Rank: 4, BasisBits: 16, CoefficientBits: 8, CentroidBits: 8, Pages: 1}, nil).Score(small, Logits{Scale: 0.125})
				if math.Abs(got-exact) > 0.1 {
					t.Errorf("S %s, %s keys: score %.4f, exact %.4f: rank 1 at most is kept whole", weights, name, got, exact)
				}
			}
		}
	}
}

func diagonal(d int, x float64) []float64 {
	m := make([]float64, d*d)
	for i := range d {
		m[i*d+i] = x
	}
	return m
}
