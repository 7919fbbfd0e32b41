package kernel

import (
	"encoding/binary"
	"fmt"
	"math"
)

// queryWeighted is the basis whose page_summary reads Weights.
const queryWeighted = "query_weighted"

// shrinkage is how much of its mean diagonal is added to a second moment: directions that no query used must not be free.
const shrinkage = 0.3

// WeightBytes is the size of all KV heads' factors.
func WeightBytes(kvHeads, headDim int) int64 {
	n := int64(headDim / 16)
	return int64(kvHeads) * n * (n + 1) / 2 * 512
}

// PackWeights makes what page_summary reads as Weights from second moments of queries, float32 [kv head, dim, dim] as kvloom calibrate
// writes them: of each head Cholesky's factor of S/mean(diag S) + 0.3 I, bf16, the 16 x 16 blocks on and below the diagonal. A moment
// that is zero or not finite says nothing about directions: its factor is the identity, which is the plain SVD. A table for upload, once
// a model.
func PackWeights(moments []float32, kvHeads, headDim int) ([]byte, error) {
	if headDim%16 != 0 || headDim <= 0 || kvHeads <= 0 {
		return nil, fmt.Errorf("weights: %d KV heads of dim %d; dims are multiples of 16", kvHeads, headDim)
	}
	if want := kvHeads * headDim * headDim; len(moments) != want {
		return nil, fmt.Errorf("weights: %d moments for %d KV heads of dim %d, which have %d", len(moments), kvHeads, headDim, want)
	}
	out := make([]byte, WeightBytes(kvHeads, headDim))
	each := len(out) / kvHeads
	for h := range kvHeads {
		l := factorOf(moments[h*headDim*headDim:(h+1)*headDim*headDim], headDim)
		for i := range headDim {
			for j := range i + 1 {
				binary.LittleEndian.PutUint16(out[h*each+factorPlace(headDim, i, j):], roundBF16(float32(l[i*headDim+j])))
			}
		}
	}
	return out, nil
}

// factorOf is L [dim, dim] of the shrunk moment.
func factorOf(s []float32, dim int) []float64 {
	var trace, sum float64
	for i, x := range s {
		sum += math.Abs(float64(x))
		if i%(dim+1) == 0 {
			trace += float64(x)
		}
	}
	l := make([]float64, dim*dim)
	mean := trace / float64(dim)
	usable := trace > 0 && !math.IsNaN(sum) && !math.IsInf(sum, 0)
	for i := range dim {
		for j := range i + 1 {
			x := 0.0
			if usable {
				x = (float64(s[i*dim+j]) + float64(s[j*dim+i])) / 2 / mean
			}
			if i == j {
				x += shrinkage
			}
			for k := range j {
				x -= l[i*dim+k] * l[j*dim+k]
			}
			if i == j {
				l[i*dim+i] = math.Sqrt(max(x, shrinkage/2)) // a moment that is not quite one, such as a rounded file's
			} else {
				l[i*dim+j] = x / l[j*dim+j]
			}
			if !usable {
				l[i*dim+j] = 0
			}
		}
		if !usable {
			l[i*dim+i] = 1
		}
	}
	return l
}

// factorPlace is the byte of an element: blocks column by column, each in the order of mma's B fragments (page_summary_weights.cuh).
func factorPlace(dim, row, column int) int {
	n, r, c := dim/16, row%16, column%16
	br, bc := row/16, column/16
	block := bc*n - bc*(bc-1)/2 + br - bc
	return block*512 + (c%8*4+r%8/2)*16 + (r/8+c/8*2)*4 + r%2*2
}

// roundBF16 rounds a finite number to the nearest bf16, ties to even.
func roundBF16(x float32) uint16 {
	b := math.Float32bits(x)
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}
