package num

import "math"

// TwoSum64 is a + b rounded, and what rounding left, exactly.
func TwoSum64(a, b float64) (s, e float64) { return twoSum(a, b) }

// Add64 is a+b in any rounding mode.
func Add64(a, b float64, mode Mode) float64 {
	s, e := twoSum(a, b)
	if mode == RN || e != e {
		return s
	}
	if s == 0 && mode == RM && !(a == 0 && b == 0 && !math.Signbit(a) && !math.Signbit(b)) {
		return math.Copysign(0, -1)
	}
	return direct64(s, e, mode)
}

// Mul64 is a*b in any rounding mode.
func Mul64(a, b float64, mode Mode) float64 {
	p := a * b
	if mode == RN {
		return p
	}
	return direct64(p, math.FMA(a, b, -p), mode)
}

// Div64 is a/b in any rounding mode.
func Div64(a, b float64, mode Mode) float64 {
	q := a / b
	if mode == RN {
		return q
	}
	r := math.FMA(-q, b, a)
	if b < 0 {
		r = -r
	}
	return direct64(q, r, mode)
}

// FMA64 is a*b+c in any rounding mode; the directed modes use the exact error of the fused result.
func FMA64(a, b, c float64, mode Mode) float64 {
	f := math.FMA(a, b, c)
	if mode == RN || math.IsInf(f, 0) || f != f {
		return f
	}
	p := a * b
	pe := math.FMA(a, b, -p)
	s, se := twoSum(p, c)
	d := (s - f) + (se + pe)
	return direct64(f, d, mode)
}

// direct64 corrects the rounded x by the sign of its error.
func direct64(x, e float64, mode Mode) float64 {
	if e == 0 || e != e || math.IsInf(x, 0) || x != x {
		return x
	}
	switch {
	case mode == RP && e > 0:
		return math.Nextafter(x, math.Inf(1))
	case mode == RM && e < 0:
		return math.Nextafter(x, math.Inf(-1))
	case mode == RZ && (x > 0 && e < 0 || x < 0 && e > 0):
		return math.Nextafter(x, 0)
	}
	return x
}

// To64From rounds a double to a single in any mode.
func To64From(x float64, mode Mode) float32 {
	if x != x {
		return math.Float32frombits(NaN32)
	}
	return To32(x, 0, mode)
}
