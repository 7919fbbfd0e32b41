package reference

import (
	"math"

	"github.com/kvloom/kvloom/specs"
)

// Shape is the shape of one page summary.
type Shape struct {
	HeadDim, PageSize, Rank, BasisBits int
	Form                               specs.RecordForm
	Scorer                             string // other than page_local, of which the rest of this package's summaries are
}

// Summary is the unquantised summary of one page: k_t ~ Mu + sum over c of C[t][c] V[c].
type Summary struct {
	Shape
	Mu    []float64 // [dim]
	D     []float64 // [page, dim] keys less Mu
	V     []float64 // [rank, dim] row c is the c-th right singular vector of D; zero where D has no such direction
	C     []float64 // [page, rank] D V
	Sigma []float64 // [rank] singular values
	// NonFinite marks a page with a NaN or infinite key. All else is zero then, and its scores are NaN.
	NonFinite bool
}

// Summarise computes the centroid, the top right singular vectors and the coefficients of a page of keys [page, dim].
func Summarise(keys []float64, shape Shape) Summary {
	s := newSummary(keys, shape)
	if s.NonFinite {
		return s
	}
	s.V, s.Sigma = topSingular(s.D, shape.PageSize, shape.HeadDim, shape.Rank)
	s.C = Coefficients(s.D, s.V, shape)
	return s
}

// newSummary has the centroid and the centred keys; all else is zero.
func newSummary(keys []float64, shape Shape) Summary {
	page, d := shape.PageSize, shape.HeadDim
	s := Summary{Shape: shape,
		Mu: make([]float64, d), D: make([]float64, page*d), V: make([]float64, shape.Rank*d),
		C: make([]float64, page*shape.Rank), Sigma: make([]float64, shape.Rank)}
	for _, x := range keys[:page*d] {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			s.NonFinite = true
			return s
		}
	}
	for t := range page {
		axpy(s.Mu, 1/float64(page), keys[t*d:(t+1)*d])
	}
	for t := range page {
		for i := range d {
			s.D[t*d+i] = keys[t*d+i] - s.Mu[i]
		}
	}
	return s
}

// Coefficients is C = D V^T for V as rows: [page, rank].
func Coefficients(d, v []float64, shape Shape) []float64 {
	c := make([]float64, shape.PageSize*shape.Rank)
	for t := range shape.PageSize {
		row := d[t*shape.HeadDim : (t+1)*shape.HeadDim]
		for r := range shape.Rank {
			c[t*shape.Rank+r] = dot(row, v[r*shape.HeadDim:(r+1)*shape.HeadDim])
		}
	}
	return c
}

// Centred subtracts the centroid of keys [page, dim] from them: the D that every built summary is judged on.
func Centred(keys []float64, shape Shape) []float64 {
	d := shape.HeadDim
	mu := make([]float64, d)
	for t := range shape.PageSize {
		axpy(mu, 1/float64(shape.PageSize), keys[t*d:(t+1)*d])
	}
	centred := make([]float64, shape.PageSize*d)
	for t := range shape.PageSize {
		for i := range d {
			centred[t*d+i] = keys[t*d+i] - mu[i]
		}
	}
	return centred
}

// Energy is the squared norm of d [page, dim] that the reconstruction c v keeps: |D|^2 - |D - C V|^2, for v [rank, dim] and c [page, rank].
// With an exact basis it is the sum of the squared singular values; a poor quantisation can make it negative.
func Energy(d, v, c []float64, shape Shape) float64 {
	var kept float64
	rest := make([]float64, shape.HeadDim)
	for t := range shape.PageSize {
		row := d[t*shape.HeadDim : (t+1)*shape.HeadDim]
		copy(rest, row)
		for r := range shape.Rank {
			axpy(rest, -c[t*shape.Rank+r], v[r*shape.HeadDim:(r+1)*shape.HeadDim])
		}
		kept += dot(row, row) - dot(rest, rest)
	}
	return kept
}

// SpanEnergy is the squared norm of the projection of d [page, dim] onto the span of the rows of v [rank, dim], whatever their
// lengths and angles: what the best coefficients could keep.
func SpanEnergy(d, v []float64, shape Shape) float64 {
	n := shape.HeadDim
	basis := make([]float64, 0, shape.Rank*n)
	for r := range shape.Rank {
		row := append([]float64(nil), v[r*n:(r+1)*n]...)
		before := dot(row, row)
		for range 2 { // the second pass removes what rounding left of the first
			for b := 0; b < len(basis); b += n {
				axpy(row, -dot(row, basis[b:b+n]), basis[b:b+n])
			}
		}
		after := dot(row, row)
		if after <= 1e-20*before || after == 0 {
			continue
		}
		for i := range row {
			row[i] /= math.Sqrt(after)
		}
		basis = append(basis, row...)
	}
	var kept float64
	for t := range shape.PageSize {
		for b := 0; b < len(basis); b += n {
			x := dot(d[t*n:(t+1)*n], basis[b:b+n])
			kept += x * x
		}
	}
	return kept
}
