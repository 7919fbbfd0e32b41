package reference

import (
	"fmt"
	"math"

	"github.com/kvloom/kvloom/specs"
)

// Codes is a quantised summary: integers and bf16 scales, as they are stored.
type Codes struct {
	Shape
	Mu         []int8   // [dim]
	MuScale    uint16   // bf16; NaN marks a page whose scores are NaN. Of a 4-bit centroid the first of MuGroups
	MuGroups   []uint16 // [dim/16] bf16 scales of a 4-bit centroid, which is the centroid less the head's mean key; else none
	V          []int32  // [rank, dim]: signed codes; at 2 bits 0..3, at 16 bits the bf16 pattern
	VScale     []uint16 // [rank, groups] bf16; empty at 16 bits
	C          []int8   // [page, rank]
	TokenScale []uint16 // [page] bf16, of 4 significant bits where C has 8
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

// TokenScale is the scale of a token's coefficients: at 8 bits Scale rounded up to 4 significant bits, so that f16 holds its products
// with codes; at 4 bits Scale.
func TokenScale(x []float64, bits int) uint16 {
	scale := Scale(x, bits)
	if bits == 8 {
		scale = (scale + tokenScaleRest) &^ tokenScaleRest
	}
	return scale
}

// tokenScaleRest are the bits of a bf16 below its upper 4 significant ones.
const tokenScaleRest = 1<<4 - 1

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

// Quantise applies the contract's quantisation to a summary, whose shape says in which form. C is quantised from the unquantised V's
// coefficients. Of a 4-bit centroid the head's mean key counts as zero.
func (s Summary) Quantise() Codes { return s.QuantiseAround(nil) }

// QuantiseAround is Quantise around the head's mean key [dim], which a 4-bit centroid is stored less; nil is zero.
func (s Summary) QuantiseAround(centre []float64) Codes {
	l := s.Layout()
	c := Codes{Shape: s.Shape,
		Mu: make([]int8, s.HeadDim), V: make([]int32, s.Rank*s.HeadDim),
		C: make([]int8, s.PageSize*s.Rank), TokenScale: make([]uint16, s.PageSize)}
	if s.BasisBits != 16 {
		c.VScale = make([]uint16, s.Rank*l.ColumnGroups)
	}
	if s.Form.Centroid4 {
		c.MuGroups = make([]uint16, l.MuGroups)
	}
	if s.NonFinite {
		c.MuScale = ToBF16(math.NaN())
		for i := range c.MuGroups {
			c.MuGroups[i] = c.MuScale
		}
		for i := range c.V {
			if s.BasisBits != 16 {
				c.V[i] = Code(0, 0, s.BasisBits)
			}
		}
		return c
	}
	c.centroid(s.Mu, centre)
	for t := range s.PageSize {
		c.TokenScale[t] = quantiseUnder(TokenScale, c.C[t*s.Rank:(t+1)*s.Rank], s.C[t*s.Rank:(t+1)*s.Rank], s.Form.CoefficientBits())
	}
	group := s.HeadDim / l.ColumnGroups
	for at := 0; at < len(s.V); at += group {
		row := s.V[at : at+group]
		var scale float64
		if s.BasisBits != 16 {
			c.VScale[at/group] = Scale(row, s.BasisBits)
			scale = FromBF16(c.VScale[at/group])
		}
		for i, x := range row {
			if s.BasisBits == 16 {
				c.V[at+i] = int32(ToBF16(x))
			} else {
				c.V[at+i] = Code(x, scale, s.BasisBits)
			}
		}
	}
	return c
}

// centroid quantises mu.
func (c *Codes) centroid(mu, centre []float64) {
	if !c.Form.Centroid4 {
		c.MuScale = quantiseVector(c.Mu, mu, 8)
		return
	}
	rest := append([]float64{}, mu...)
	if centre != nil {
		axpy(rest, -1, centre)
	}
	for g := range c.MuGroups {
		at := g * specs.ScaleDims
		c.MuGroups[g] = quantiseVector(c.Mu[at:at+specs.ScaleDims], rest[at:at+specs.ScaleDims], 4)
	}
	c.MuScale = c.MuGroups[0]
}

func quantiseVector(codes []int8, x []float64, bits int) uint16 {
	return quantiseUnder(Scale, codes, x, bits)
}

// quantiseUnder makes codes under the scale that a rule gives.
func quantiseUnder(rule func([]float64, int) uint16, codes []int8, x []float64, bits int) (scale uint16) {
	scale = rule(x, bits)
	for i, v := range x {
		codes[i] = int8(Code(v, FromBF16(scale), bits))
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
func (c Codes) Dequantise() Dequantised { return c.DequantiseAround(nil) }

// DequantiseAround is Dequantise with the head's mean key added to a 4-bit centroid; nil is zero.
func (c Codes) DequantiseAround(centre []float64) Dequantised {
	q := Dequantised{Shape: c.Shape, Mu: make([]float64, c.HeadDim), V: make([]float64, len(c.V)), C: make([]float64, len(c.C))}
	for i, x := range c.Mu {
		scale := c.MuScale
		if c.Form.Centroid4 {
			scale = c.MuGroups[i/specs.ScaleDims]
		}
		q.Mu[i] = float64(x) * FromBF16(scale)
	}
	if c.Form.Centroid4 && centre != nil {
		axpy(q.Mu, 1, centre)
	}
	group := c.HeadDim / c.Layout().ColumnGroups
	for i, x := range c.V {
		if c.BasisBits == 16 {
			q.V[i] = FromBF16(uint16(x))
		} else {
			q.V[i] = Decoded(x, FromBF16(c.VScale[i/group]), c.BasisBits)
		}
	}
	for i, x := range c.C {
		q.C[i] = float64(x) * FromBF16(c.TokenScale[i/c.Rank])
	}
	return q
}

// Check reports codes outside their range: a build that overflowed its width.
func (c Codes) Check() error {
	top := int8(largest(c.Form.CentroidBits()))
	for i, x := range c.Mu {
		if x < -top {
			return fmt.Errorf("centroid code %d of dim %d is outside -%d..%d", x, i, top, top)
		}
	}
	top = int8(largest(c.Form.CoefficientBits()))
	for i, x := range c.C {
		if x < -top {
			return fmt.Errorf("coefficient code %d of token %d, column %d is outside -%d..%d", x, i/c.Rank, i%c.Rank, top, top)
		}
	}
	if c.Form.CoefficientBits() == 8 {
		for t, scale := range c.TokenScale {
			if scale&tokenScaleRest != 0 {
				return fmt.Errorf("the scale %#04x of token %d has more than 4 significant bits", scale, t)
			}
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
