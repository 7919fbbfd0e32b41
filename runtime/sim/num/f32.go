// Package num is the arithmetic of the simulator: every PTX rounding, flush and NaN rule on plain Go numbers.
package num

import "math"

// Mode is a rounding mode.
type Mode uint8

// The rounding modes: to nearest even, towards zero, towards minus and plus infinity, to nearest with ties away.
const (
	RN Mode = iota
	RZ
	RM
	RP
	RNA
)

// NaN32 is the canonical NaN that f32 instructions return.
const NaN32 = 0x7fffffff

// FTZ flushes a subnormal single to zero of its sign.
func FTZ(x float32) float32 {
	b := math.Float32bits(x)
	if b&0x7f800000 == 0 {
		return math.Float32frombits(b & 0x80000000)
	}
	return x
}

// Canon replaces a NaN by the canonical one.
func Canon(x float32) float32 {
	if x != x {
		return math.Float32frombits(NaN32)
	}
	return x
}

// Sat clamps to [0, 1]; NaN becomes 0.
func Sat(x float32) float32 {
	switch {
	case !(x > 0):
		return 0
	case x > 1:
		return 1
	}
	return x
}

// twoSum is s + e == a + b exactly, with s rounded to nearest.
func twoSum(a, b float64) (s, e float64) {
	s = a + b
	bb := s - a
	return s, (a - (s - bb)) + (b - bb)
}

// To32 rounds the exact sum s + e, where s is the double nearest to it, to a single.
func To32(s, e float64, mode Mode) float32 {
	f := float32(s)
	if math.IsInf(s, 0) || s != s || s == 0 {
		return f
	}
	if math.IsInf(float64(f), 0) {
		return overflow32(s, mode)
	}
	// d is where the exact value lies from f. f - s is zero or at least an ulp of s, so that e cannot turn its sign.
	d := s - float64(f)
	if d == 0 {
		d = e
	}
	switch mode {
	case RN:
		return nearest32(s, e, f)
	case RZ:
		if s > 0 && d < 0 || s < 0 && d > 0 {
			return step32(f, -1)
		}
	case RM:
		if d < 0 {
			return math.Nextafter32(f, float32(math.Inf(-1)))
		}
	case RP:
		if d > 0 {
			return math.Nextafter32(f, float32(math.Inf(1)))
		}
	}
	return f
}

// nearest32 settles the double rounding of s + e to nearest even: s alone is wrong only where it is itself a midpoint.
func nearest32(s, e float64, f float32) float32 {
	if e == 0 {
		return f
	}
	// Round to odd: the sticky bit of e goes into the last bit of s.
	b := math.Float64bits(s)
	if b&1 == 0 {
		if (e > 0) == (s > 0) {
			b |= 1
		} else {
			b--
		}
	}
	return float32(math.Float64frombits(b))
}

// step32 moves the magnitude by n units in the last place.
func step32(f float32, n int32) float32 {
	return math.Float32frombits(uint32(int32(math.Float32bits(f)) + n))
}

func overflow32(s float64, mode Mode) float32 {
	inf := mode == RN || mode == RNA || mode == RP && s > 0 || mode == RM && s < 0
	if inf {
		return float32(math.Copysign(math.Inf(1), s))
	}
	if s < 0 {
		return -math.MaxFloat32
	}
	return math.MaxFloat32
}

// FMA is a*b+c with one rounding to nearest even. The product of two singles is exact in double.
func FMA(a, b, c float32) float32 {
	p := float64(float64(a) * float64(b))
	s := p + float64(c)
	bits := math.Float64bits(s)
	exp := bits >> 52 & 0x7ff
	if exp == 0x7ff {
		return Canon(float32(s))
	}
	// Only a midpoint between two singles, or a result near the subnormals, can suffer from rounding twice.
	if bits&0x1fffffff != 0x10000000 && exp > 1023-126 {
		return float32(s)
	}
	s, e := twoSum(p, float64(c))
	return To32(s, e, RN)
}

// FMAMode is a*b+c in any rounding mode.
func FMAMode(a, b, c float32, mode Mode) float32 {
	p := float64(float64(a) * float64(b))
	return addMode(p, float64(c), mode)
}

// Add is a+b in any rounding mode.
func Add(a, b float32, mode Mode) float32 {
	if mode == RN {
		return Canon(a + b)
	}
	return addMode(float64(a), float64(b), mode)
}

func addMode(a, b float64, mode Mode) float32 {
	s, e := twoSum(a, b)
	if math.IsInf(s, 0) || s != s {
		return Canon(float32(s))
	}
	if s == 0 {
		// A sum that cancels is +0, or -0 when rounding down; two zeros of one sign keep it.
		if a == 0 && b == 0 && math.Signbit(a) == math.Signbit(b) {
			return float32(a)
		}
		if mode == RM {
			return float32(math.Copysign(0, -1))
		}
		return 0
	}
	return To32(s, e, mode)
}

// Mul is a*b in any rounding mode.
func Mul(a, b float32, mode Mode) float32 {
	if mode == RN {
		return Canon(a * b)
	}
	p := float64(a) * float64(b)
	if p != p {
		return math.Float32frombits(NaN32)
	}
	return To32(p, 0, mode)
}

// Div is a/b in any rounding mode.
func Div(a, b float32, mode Mode) float32 {
	f := a / b
	if mode == RN || f != f || f == 0 && a == 0 || b == 0 || math.IsInf(float64(a), 0) || math.IsInf(float64(b), 0) {
		return Canon(f)
	}
	// The quotient in double with the sign of its remainder stands for the exact one.
	q := float64(a) / float64(b)
	r := math.FMA(-q, float64(b), float64(a))
	if b < 0 {
		r = -r
	}
	return To32(q, r*0x1p-200, mode)
}

// Sqrt is the square root in any rounding mode.
func Sqrt(a float32, mode Mode) float32 {
	q := math.Sqrt(float64(a))
	if mode == RN || q != q || math.IsInf(q, 0) || q == 0 {
		return Canon(float32(q))
	}
	r := math.FMA(-q, q, float64(a))
	return To32(q, r*0x1p-200, mode)
}

// DivApprox is div.approx.f32: a divisor above 2^126 in magnitude gives 0, or NaN for an infinite dividend.
func DivApprox(a, b float32) float32 {
	mag := math.Float32bits(b) & 0x7fffffff
	if mag > 0x7e800000 && mag < 0x7f800000 {
		if math.IsInf(float64(a), 0) {
			return math.Float32frombits(NaN32)
		}
		if a == a {
			return math.Float32frombits((math.Float32bits(a) ^ math.Float32bits(b)) & 0x80000000)
		}
	}
	return Canon(a / b)
}

// Min and Max follow IEEE 754-2019 minimumNumber and maximumNumber: a NaN loses, -0 is below +0.
func Min(a, b float32) float32 {
	switch {
	case a != a:
		return Canon(b)
	case b != b:
		return a
	case a == 0 && b == 0:
		return math.Float32frombits(math.Float32bits(a) | math.Float32bits(b))
	case a < b:
		return a
	}
	return b
}

// Max is the larger.
func Max(a, b float32) float32 {
	switch {
	case a != a:
		return Canon(b)
	case b != b:
		return a
	case a == 0 && b == 0:
		return math.Float32frombits(math.Float32bits(a) & math.Float32bits(b))
	case a > b:
		return a
	}
	return b
}

// RoundInt rounds to a whole number in double, exactly.
func RoundInt(x float64, mode Mode) float64 {
	switch mode {
	case RZ:
		return math.Trunc(x)
	case RM:
		return math.Floor(x)
	case RP:
		return math.Ceil(x)
	case RNA:
		return math.Round(x)
	}
	return math.RoundToEven(x)
}
