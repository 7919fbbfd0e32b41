package reference

import (
	"fmt"
	"math"
	"sync"
)

// DType is a 16-bit float format of a cache.
type DType string

// The formats.
const (
	BF16 DType = "bf16"
	FP16 DType = "fp16"
)

// ParseDType names a format as specs do.
func ParseDType(name string) (DType, error) {
	switch d := DType(name); d {
	case BF16, FP16:
		return d, nil
	}
	return "", fmt.Errorf("cache dtype %q has no 16-bit reference; use bf16 or fp16", name)
}

// Bits rounds x to the format, to nearest, ties to even; what is too large becomes infinite.
func (d DType) Bits(x float64) uint16 {
	if d == FP16 {
		return encode16(x, 5, 10)
	}
	return encode16(x, 8, 7)
}

// Value is the number that a bit pattern means, exactly.
func (d DType) Value(bits uint16) float64 {
	if d == FP16 {
		return halfTable()[bits]
	}
	return FromBF16(bits)
}

// Values decodes src into dst, which has its length or more.
func (d DType) Values(dst []float64, src []uint16) {
	if d == FP16 {
		table := halfTable()
		for i, b := range src {
			dst[i] = table[b]
		}
		return
	}
	for i, b := range src {
		dst[i] = float64(math.Float32frombits(uint32(b) << 16))
	}
}

// Round is x as the format holds it.
func (d DType) Round(x float64) float64 { return d.Value(d.Bits(x)) }

// Epsilon is the distance from 1 to the next larger number of the format.
func (d DType) Epsilon() float64 {
	if d == FP16 {
		return 0x1p-10
	}
	return 0x1p-7
}

// ToBF16 rounds to bfloat16, to nearest, ties to even, in one rounding.
func ToBF16(x float64) uint16 { return encode16(x, 8, 7) }

// FromBF16 is the value of a bfloat16.
func FromBF16(bits uint16) float64 { return float64(math.Float32frombits(uint32(bits) << 16)) }

// ToFP16 rounds to IEEE half precision, to nearest, ties to even, in one rounding.
func ToFP16(x float64) uint16 { return encode16(x, 5, 10) }

// FromFP16 is the value of an IEEE half.
func FromFP16(bits uint16) float64 { return halfTable()[bits] }

// encode16 rounds once from float64; a detour through float32 would round twice.
func encode16(x float64, expBits, mantBits int) uint16 {
	sign := uint16(math.Float64bits(x) >> 48 & 0x8000)
	infinity := uint16(1<<expBits-1) << mantBits
	switch {
	case math.IsNaN(x):
		return infinity | 1<<(mantBits-1)
	case math.IsInf(x, 0):
		return sign | infinity
	case x == 0:
		return sign
	}
	bias := 1<<(expBits-1) - 1
	_, e := math.Frexp(x)
	exponent := max(e-1, 1-bias)
	units := uint32(math.RoundToEven(math.Ldexp(math.Abs(x), mantBits-exponent)))
	// Adding the units to the exponent field lets a carry out of the mantissa land where it belongs.
	bits := units
	if e-1 >= 1-bias {
		if exponent > bias {
			return sign | infinity
		}
		bits = uint32(exponent+bias)<<mantBits + units - 1<<mantBits
	}
	return sign | uint16(min(bits, uint32(infinity)))
}

// halfTable holds the value of every half: decoding a cache of millions of them is then one load each.
var halfTable = sync.OnceValue(func() *[1 << 16]float64 {
	var t [1 << 16]float64
	for i := range t {
		exponent, mantissa := i>>10&31, float64(i&1023)
		x := math.Ldexp(mantissa, -24)
		switch {
		case exponent == 31 && mantissa == 0:
			x = math.Inf(1)
		case exponent == 31:
			x = math.NaN()
		case exponent > 0:
			x = math.Ldexp(1024+mantissa, exponent-25)
		}
		if i>>15 == 1 {
			x = -x
		}
		t[i] = x
	}
	return &t
})
