package reference

import (
	"fmt"
	"math"
)

// Codes is a quantised summary: integers and bf16 scales, as they are stored.
type Codes struct {
	Shape
	Mu         []int8   // [dim]
	MuScale    uint16   // bf16; NaN marks a page whose scores are NaN
	V          []int32  // [rank, dim]: signed codes; at 2 bits 0..3, at 16 bits the bf16 pattern
	VScale     []uint16 // [rank] bf16; empty at 16 bits
	C          []int8   // [page, rank]
	TokenScale []uint16 // [page] bf16
}

// largest is q, the largest code of a signed symmetric width.
func largest(bits int) float64 { return float64(int(1)<<(bits-1) - 1) }

// Scale is the bf16 scale of one vector: max|x| / q for 4 and 8 bits, max|x| / 1.5 for 2. A zero vector has scale 0.
func Scale(x []float64, bits int) uint16 {
	var top float64
	for _, v := range x {
		top = max(top, math.Abs(v))
	}
	if bits == 2 {
		return ToBF16(top / 1.5)
	}
	return ToBF16(top / largest(bits))
}

// Code quantises x under a scale: clamp(rne(x/scale), -q, q). At 2 bits it is 0..3 for -1.5, -0.5, 0.5, 1.5 times the scale, the
// nearest; a value half-way between two of them (0 is one) goes to the even code. Under scale 0 it is the code of zero.
func Code(x, scale float64, bits int) int32 {
	y := 0.0
	if scale != 0 {
		y = x / scale
	}
	if bits == 2 {
		return int32(min(max(math.RoundToEven(y+1.5), 0), 3))
	}
	q := largest(bits)
	return int32(min(max(math.RoundToEven(y), -q), q))
}

// Decoded is the value of a code.
func Decoded(code int32, scale float64, bits int) float64 {
	if bits == 2 {
		return (float64(code) - 1.5) * scale
	}
	return float64(code) * scale
}

// Quantise applies the contract's quantisation to a summary. C is quantised from the unquantised V's coefficients.
func (s Summary) Quantise() Codes {
	c := Codes{Shape: s.Shape,
		Mu: make([]int8, s.HeadDim), V: make([]int32, s.Rank*s.HeadDim),
		C: make([]int8, s.PageSize*s.Rank), TokenScale: make([]uint16, s.PageSize)}
	if s.BasisBits != 16 {
		c.VScale = make([]uint16, s.Rank)
	}
	if s.NonFinite {
		c.MuScale = ToBF16(math.NaN())
		for i := range c.V {
			if s.BasisBits != 16 {
				c.V[i] = Code(0, 0, s.BasisBits)
			}
		}
		return c
	}
	c.MuScale = quantiseVector(c.Mu, s.Mu)
	for t := range s.PageSize {
		c.TokenScale[t] = quantiseVector(c.C[t*s.Rank:(t+1)*s.Rank], s.C[t*s.Rank:(t+1)*s.Rank])
	}
	for r := range s.Rank {
		row := s.V[r*s.HeadDim : (r+1)*s.HeadDim]
		var scale float64
		if s.BasisBits != 16 {
			c.VScale[r] = Scale(row, s.BasisBits)
			scale = FromBF16(c.VScale[r])
		}
		for i, x := range row {
			if s.BasisBits == 16 {
				c.V[r*s.HeadDim+i] = int32(ToBF16(x))
			} else {
				c.V[r*s.HeadDim+i] = Code(x, scale, s.BasisBits)
			}
		}
	}
	return c
}

func quantiseVector(codes []int8, x []float64) (scale uint16) {
	scale = Scale(x, 8)
	for i, v := range x {
		codes[i] = int8(Code(v, FromBF16(scale), 8))
	}
	return scale
}

// Dequantised is a summary as numbers again: what equation 2 is evaluated on.
type Dequantised struct {
	Shape
	Mu []float64 // [dim]
	V  []float64 // [rank, dim]
	C  []float64 // [page, rank]
}

// Dequantise multiplies every code by its scale. A NaN centroid scale makes every element of Mu NaN.
func (c Codes) Dequantise() Dequantised {
	q := Dequantised{Shape: c.Shape, Mu: make([]float64, c.HeadDim), V: make([]float64, len(c.V)), C: make([]float64, len(c.C))}
	for i, x := range c.Mu {
		q.Mu[i] = float64(x) * FromBF16(c.MuScale)
	}
	for i, x := range c.V {
		if c.BasisBits == 16 {
			q.V[i] = FromBF16(uint16(x))
		} else {
			q.V[i] = Decoded(x, FromBF16(c.VScale[i/c.HeadDim]), c.BasisBits)
		}
	}
	for i, x := range c.C {
		q.C[i] = float64(x) * FromBF16(c.TokenScale[i/c.Rank])
	}
	return q
}

// Check reports codes outside their range: a build that overflowed its width.
func (c Codes) Check() error {
	for i, x := range c.Mu {
		if x == -128 {
			return fmt.Errorf("centroid code %d of dim %d is outside -127..127", x, i)
		}
	}
	for i, x := range c.C {
		if x == -128 {
			return fmt.Errorf("coefficient code %d of token %d, column %d is outside -127..127", x, i/c.Rank, i%c.Rank)
		}
	}
	if c.BasisBits == 4 || c.BasisBits == 8 {
		for i, x := range c.V {
			if q := int32(largest(c.BasisBits)); x < -q || x > q {
				return fmt.Errorf("basis code %d of column %d, dim %d is outside -%d..%d", x, i/c.HeadDim, i%c.HeadDim, q, q)
			}
		}
	}
	return nil
}
