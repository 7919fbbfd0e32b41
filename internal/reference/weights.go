package reference

import "math"

// Shrinkage is how much of its mean diagonal is added to a query second moment before its root is taken: directions that the
// queries at hand did not use must not be free.
const Shrinkage = 0.3

// Weights weigh the directions of one KV head's keys by the queries that will ask about them: the symmetric square root of
// S' = S + Shrinkage mean(diag S) I and its inverse, where S = E[q q^T] over the group's queries (docs/theory.md).
type Weights struct {
	Dim     int
	Half    []float64 // [dim, dim] S'^(1/2)
	Inverse []float64 // [dim, dim] S'^(-1/2)
}

// SecondMoment is the mean of q q^T over queries [n, dim]: [dim, dim], zero without queries.
func SecondMoment(queries []float64, dim int) []float64 {
	s := make([]float64, dim*dim)
	n := len(queries) / dim
	for at := 0; at < n*dim; at += dim {
		q := queries[at : at+dim]
		for i, x := range q {
			axpy(s[i*dim:(i+1)*dim], x/float64(n), q)
		}
	}
	return s
}

// NewWeights takes roots of a second moment s [dim, dim]. A singular s is no trouble, for the shrinkage lifts every eigenvalue; a
// moment that is zero or not finite, or whose trace is, says nothing about directions: its weights are the identity, which is the
// plain SVD.
func NewWeights(s []float64, dim int) Weights {
	w := Weights{Dim: dim, Half: make([]float64, dim*dim), Inverse: make([]float64, dim*dim)}
	var trace, sum float64
	for i := range dim {
		trace += s[i*dim+i]
	}
	for _, x := range s {
		sum += x
	}
	if !(trace > 0) || math.IsInf(trace, 0) || math.IsNaN(sum) || math.IsInf(sum, 0) {
		for i := range dim {
			w.Half[i*dim+i], w.Inverse[i*dim+i] = 1, 1
		}
		return w
	}
	mean := trace / float64(dim)
	a := make([]float64, dim*dim)
	for i, x := range s {
		a[i] = x / mean // scale-free: only directions matter
	}
	values, u := eigen(a, dim)
	for c, lambda := range values {
		root := math.Sqrt(max(lambda, 0) + Shrinkage)
		row := u[c*dim : (c+1)*dim]
		for i, x := range row {
			axpy(w.Half[i*dim:(i+1)*dim], root*x, row)
			axpy(w.Inverse[i*dim:(i+1)*dim], x/root, row)
		}
	}
	return w
}

// times is x m for rows x [rows, dim] and a symmetric m [dim, dim].
func times(x, m []float64, dim int) []float64 {
	out := make([]float64, len(x))
	for at := 0; at < len(x); at += dim {
		for i, v := range x[at : at+dim] {
			axpy(out[at:at+dim], v, m[i*dim:(i+1)*dim])
		}
	}
	return out
}

// SummariseWeighted is Summarise with the basis that minimises the page-score error under the second moment of the queries:
// the truncated SVD of D S'^(1/2), carried back by S'^(-1/2) and normalised. Columns of V have length 1 and are not orthogonal; C is
// not D V but the coefficients that belong to them. Sigma are the singular values of D S'^(1/2), so that the expected squared error
// of a page's logits is at most scale^2 mean(diag S) times the sum of the squares of those left out (docs/theory.md).
func SummariseWeighted(keys []float64, shape Shape, w Weights) Summary {
	d := shape.HeadDim
	s := newSummary(keys, shape)
	if s.NonFinite {
		return s
	}
	weighted := times(s.D, w.Half, d)
	u, sigma := topSingular(weighted, shape.PageSize, d, shape.Rank)
	s.Sigma = sigma
	s.C = Coefficients(weighted, u, shape)
	s.V = times(u, w.Inverse, d)
	for r := range shape.Rank {
		row := s.V[r*d : (r+1)*d]
		norm := math.Sqrt(dot(row, row))
		if norm == 0 {
			continue
		}
		for i := range row {
			row[i] /= norm
		}
		for t := range shape.PageSize {
			s.C[t*shape.Rank+r] *= norm
		}
	}
	return s
}
