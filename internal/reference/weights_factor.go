package reference

import (
	"encoding/binary"
	"math"
)

// Factor is Cholesky's lower triangular L [dim, dim] of S' = Half^2 = L L^T, what page_summary's kernel takes for the weights: the
// singular vectors of D L belong to the same left vectors as those of D S'^(1/2), and V is D^T u with either.
func (w Weights) Factor() []float64 {
	d := w.Dim
	s := times(w.Half, w.Half, d)
	l := make([]float64, d*d)
	for i := range d {
		for j := range i + 1 {
			x := s[i*d+j] - dot(l[i*d:i*d+j], l[j*d:j*d+j])
			if i == j {
				l[i*d+i] = math.Sqrt(x)
			} else {
				l[i*d+j] = x / l[j*d+j]
			}
		}
	}
	return l
}

// FactorBytes is the size of one KV head's packed factor.
func FactorBytes(dim int) int {
	n := dim / 16
	return n * (n + 1) / 2 * 512
}

// factorPlace is the byte of an element on or below the diagonal's blocks of 16 x 16, WeightFactor::place of page_summary_weights.cuh:
// blocks column by column, each in the order of mma's B fragments.
func factorPlace(dim, row, column int) int {
	n, r, c := dim/16, row%16, column%16
	br, bc := row/16, column/16
	block := bc*n - bc*(bc-1)/2 + br - bc
	return block*512 + (c%8*4+r%8/2)*16 + (r/8+c/8*2)*4 + r%2*2
}

// PackFactor lays a factor out as the kernels keep it: bf16, the blocks above the diagonal left out.
func PackFactor(l []float64, dim int) []byte {
	b := make([]byte, FactorBytes(dim))
	for i := range dim {
		for j := range i + 1 {
			binary.LittleEndian.PutUint16(b[factorPlace(dim, i, j):], ToBF16(l[i*dim+j]))
		}
	}
	return b
}

// UnpackFactor is PackFactor's inverse.
func UnpackFactor(b []byte, dim int) []float64 {
	l := make([]float64, dim*dim)
	for i := range dim {
		for j := range i + 1 {
			l[i*dim+j] = FromBF16(binary.LittleEndian.Uint16(b[factorPlace(dim, i, j):]))
		}
	}
	return l
}

// Apply multiplies rows x [rows, dim] by the symmetric root: the measure under which weighted bases are judged.
func (w Weights) Apply(x []float64) []float64 { return times(x, w.Half, w.Dim) }
