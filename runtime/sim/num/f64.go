package num

import (
	"math"
	"math/big"
)

// TwoSum64 is a + b rounded, and what rounding left, exactly.
func TwoSum64(a, b float64) (s, e float64) { return twoSum(a, b) }

// Directed rounding of doubles is rare, so that it goes through math/big: no error term is lost where a product or a quotient leaves the
// range of doubles, as it would be in one made of doubles. wide holds any sum of a product of doubles and a double exactly; quotients and
// roots that are no double differ from all doubles well within 200 bits.
const (
	wide   = 4400
	narrow = 200
)

// Add64 is a+b in any rounding mode.
func Add64(a, b float64, mode Mode) float64 { return FMA64(a, 1, b, mode) }

// Mul64 is a*b in any rounding mode.
func Mul64(a, b float64, mode Mode) float64 {
	p := a * b
	if mode == RN || special(a, b, 1) || a == 0 || b == 0 {
		return p
	}
	x := new(big.Float).SetPrec(2 * 53).SetFloat64(a)
	return round64(x.Mul(x, big.NewFloat(b)), mode)
}

// Div64 is a/b in any rounding mode.
func Div64(a, b float64, mode Mode) float64 {
	q := a / b
	if mode == RN || special(a, b, 1) || a == 0 || b == 0 {
		return q
	}
	x := new(big.Float).SetPrec(narrow).SetFloat64(a)
	return round64(x.Quo(x, big.NewFloat(b)), mode)
}

// Sqrt64 is the square root in any rounding mode.
func Sqrt64(a float64, mode Mode) float64 {
	q := math.Sqrt(a)
	if mode == RN || special(a, q, 1) || a == 0 {
		return q
	}
	x := new(big.Float).SetPrec(narrow).SetFloat64(a)
	return round64(x.Sqrt(x), mode)
}

// FMA64 is a*b+c in any rounding mode.
func FMA64(a, b, c float64, mode Mode) float64 {
	f := math.FMA(a, b, c)
	if mode == RN || special(a, b, c) {
		return f
	}
	x := new(big.Float).SetPrec(wide).SetFloat64(a)
	x.Mul(x, big.NewFloat(b))
	x.Add(x, big.NewFloat(c))
	if x.Sign() != 0 {
		return round64(x, mode)
	}
	// A sum that cancels is +0, or -0 when rounding down; two zeros of one sign keep it.
	negative := math.Signbit(a) != math.Signbit(b)
	if c == 0 && negative == math.Signbit(c) {
		return c
	}
	if mode == RM {
		return math.Copysign(0, -1)
	}
	return 0
}

// special reports whether one of the numbers is infinite or NaN.
func special(a, b, c float64) bool {
	s := a - a + (b - b) + (c - c)
	return s != s
}

// round64 rounds an exact number that is not zero.
func round64(x *big.Float, mode Mode) float64 {
	f, off := x.Float64()
	switch {
	case off == big.Below && (mode == RP || mode == RZ && x.Sign() < 0):
		return math.Nextafter(f, math.Inf(1))
	case off == big.Above && (mode == RM || mode == RZ && x.Sign() > 0):
		return math.Nextafter(f, math.Inf(-1))
	}
	return f
}
