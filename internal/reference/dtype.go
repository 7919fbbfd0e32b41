package reference

import (
	"fmt"
	"math"
	"sync"
)

// DType is the float format of a cache's elements. Bit patterns are held in 16 bits whatever their width.
type DType string

// The formats.
const (
	BF16 DType = "bf16"
	FP16 DType = "fp16"
	FP8  DType = "fp8_e4m3" // a sign, 4 bits of exponent with bias 7, 3 of mantissa; no infinity; times the cache's scales
)

// ParseDType names a format as specs do: that of the rows of a cache's keys and values.
func ParseDType(name string) (DType, error) {
	switch d := DType(name); d {
	case BF16, FP16, FP8:
		return d, nil
	case "kivi4", "kivi2":
		return BF16, nil // of the rows that are not quantised
	}
	return "", fmt.Errorf("cache dtype %q has no reference; use bf16, fp16, fp8_e4m3, kivi4 or kivi2", name)
}

// Size is the bytes of an element.
func (d DType) Size() int {
	if d == FP8 {
		return 1
	}
	return 2
}

// Compute is the type of queries and outputs beside a cache of d.
func (d DType) Compute() DType {
	if d == FP8 {
		return BF16
	}
	return d
}

// Bits rounds x to the format, to nearest, ties to even; what is too large becomes infinite, and 448, the largest, in FP8.
func (d DType) Bits(x float64) uint16 {
	switch d {
	case FP16:
		return encode16(x, 5, 10)
	case FP8:
		return encodeE4M3(x)
	}
	return encode16(x, 8, 7)
}

// Value is the number that a bit pattern means, exactly.
func (d DType) Value(bits uint16) float64 {
	switch d {
	case FP16:
		return halfTable()[bits]
	case FP8:
		return e4m3Table()[bits&0xff]
	}
	return FromBF16(bits)
}

// Values decodes src into dst, which has its length or more.
func (d DType) Values(dst []float64, src []uint16) {
	switch d {
	case FP16:
		table := halfTable()
		for i, b := range src {
			dst[i] = table[b]
		}
		return
	case FP8:
		table := e4m3Table()
		for i, b := range src {
			dst[i] = table[b&0xff]
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
	switch d {
	case FP16:
		return 0x1p-10
	case FP8:
		return 0x1p-3
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

// encodeE4M3 rounds to e4m3 and saturates, as engines write their caches; NaN stays NaN.
func encodeE4M3(x float64) uint16 {
	sign := uint16(math.Float64bits(x) >> 56 & 0x80)
	switch a := math.Abs(x); {
	case math.IsNaN(x):
		return 0x7f
	case a >= 448:
		return sign | 0x7e
	case a < 0x1p-6:
		return sign | uint16(math.RoundToEven(math.Ldexp(a, 9))) // subnormal; 8 is the smallest normal code
	}
	_, e := math.Frexp(x)
	units := uint16(math.RoundToEven(math.Ldexp(math.Abs(x), 4-e))) // 8 to 16
	return sign | min(uint16(e+6)<<3+units-8, 0x7e)
}

// e4m3Table holds the value of every code.
var e4m3Table = sync.OnceValue(func() *[1 << 8]float64 {
	var t [1 << 8]float64
	for i := range t {
		exponent, mantissa := i>>3&15, float64(i&7)
		x := math.Ldexp(mantissa, -9)
		switch {
		case i&0x7f == 0x7f:
			x = math.NaN()
		case exponent > 0:
			x = math.Ldexp(8+mantissa, exponent-10)
		}
		if i>>7 == 1 {
			x = -x
		}
		t[i] = x
	}
	return &t
})

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
