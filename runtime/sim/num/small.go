package num

import "math"

// format is a binary floating-point format of at most 16 bits.
type format struct {
	exp, man int
	bias     int
	max      uint32 // largest finite, magnitude bits
	inf      uint32 // 0: none
	nan      uint32
}

var (
	half     = format{5, 10, 15, 0x7bff, 0x7c00, 0x7fff}
	bfloat   = format{8, 7, 127, 0x7f7f, 0x7f80, 0x7fff}
	e4m3     = format{4, 3, 7, 0x7e, 0, 0x7f}
	e5m2     = format{5, 2, 15, 0x7b, 0x7c, 0x7f}
	satLimit = true
)

// round rounds the exact value x + e, where e is far below x's last bit, into the format; the sign bit is its top bit.
func (f format) round(x, e float64, mode Mode, sat bool) uint32 {
	sign := uint32(0)
	if math.Signbit(x) {
		sign = 1 << (f.exp + f.man)
		x, e = -x, -e
		switch mode {
		case RM:
			mode = RP
		case RP:
			mode = RM
		}
	}
	switch {
	case x != x:
		return f.nan
	case x == 0:
		return sign
	case math.IsInf(x, 0):
		if sat {
			return sign | f.max
		}
		return sign | f.infinite()
	}
	_, ex := math.Frexp(x) // x = frac * 2^ex, frac in [.5, 1)
	ulp := max(ex-1, 1-f.bias) - f.man
	scaled := math.Ldexp(x, -ulp)
	whole := math.Floor(scaled)
	frac := scaled - whole
	if frac == 0 && e < 0 { // exact value just below
		whole--
		frac = 0.75
	} else if frac == 0 && e > 0 {
		frac = 0.25
	}
	up := false
	switch mode {
	case RN:
		up = frac > 0.5 || frac == 0.5 && (e > 0 || e == 0 && math.Mod(whole, 2) == 1)
	case RNA:
		up = frac > 0.5 || frac == 0.5 && e >= 0
	case RP:
		up = frac > 0
	}
	if up {
		whole++
	}
	// whole * 2^ulp, as bits: a carry into the exponent falls out of the sum.
	var bits uint32
	if m := uint32(whole); ulp == 1-f.bias-f.man && m < 1<<f.man {
		bits = m
	} else {
		bits = m + uint32(ulp+f.man+f.bias-1)<<f.man
	}
	if bits > f.max {
		if sat || f.inf == 0 && mode == RZ || mode == RZ || mode == RM {
			bits = f.max
		} else {
			bits = f.infinite()
		}
	}
	return sign | bits
}

func (f format) infinite() uint32 {
	if f.inf == 0 {
		return f.nan
	}
	return f.inf
}

func (f format) value(b uint32) float64 {
	man := b & (1<<f.man - 1)
	exp := b >> f.man & (1<<f.exp - 1)
	neg := b>>(f.exp+f.man)&1 != 0
	mag := b & (1<<(f.exp+f.man) - 1)
	var v float64
	switch {
	case f.inf != 0 && mag == f.inf:
		v = math.Inf(1)
	case f.inf != 0 && mag > f.inf || f.inf == 0 && mag == f.nan:
		return math.NaN()
	case exp == 0:
		v = math.Ldexp(float64(man), 1-f.bias-f.man)
	default:
		v = math.Ldexp(float64(man|1<<f.man), int(exp)-f.bias-f.man)
	}
	if neg {
		return -v
	}
	return v
}

var (
	halfTable [1 << 16]float32
	e4m3Table [256]float32
	e5m2Table [256]float32
)

func init() {
	for i := range halfTable {
		halfTable[i] = Canon(float32(half.value(uint32(i))))
	}
	for i := range e4m3Table {
		e4m3Table[i] = Canon(float32(e4m3.value(uint32(i))))
		e5m2Table[i] = Canon(float32(e5m2.value(uint32(i))))
	}
}

// Half is the value of an f16.
func Half(b uint16) float32 { return halfTable[b] }

// BF16 is the value of a bf16.
func BF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

// E4M3 and E5M2 are the values of 8-bit floats.
func E4M3(b uint8) float32 { return e4m3Table[b] }

// E5M2 is the value of an e5m2.
func E5M2(b uint8) float32 { return e5m2Table[b] }

// ToHalf rounds a double to f16.
func ToHalf(x float64, mode Mode) uint16 { return uint16(half.round(x, 0, mode, false)) }

// ToHalfExact rounds the sum x + e, e below x's last bit.
func ToHalfExact(x, e float64, mode Mode) uint16 { return uint16(half.round(x, e, mode, false)) }

// ToHalfFinite is ToHalf with overflow clamped to the largest finite number.
func ToHalfFinite(x float64, mode Mode) uint16 { return uint16(half.round(x, 0, mode, true)) }

// ToBF16 rounds a double to bf16.
func ToBF16(x float64, mode Mode) uint16 { return uint16(bfloat.round(x, 0, mode, false)) }

// ToBF16Exact rounds the sum x + e.
func ToBF16Exact(x, e float64, mode Mode) uint16 { return uint16(bfloat.round(x, e, mode, false)) }

// ToBF16Finite clamps overflow.
func ToBF16Finite(x float64, mode Mode) uint16 { return uint16(bfloat.round(x, 0, mode, true)) }

// BF16FromSingle rounds a single to bf16, to nearest even: the common case, quickly.
func BF16FromSingle(x float32) uint16 {
	b := math.Float32bits(x)
	if x != x {
		return 0x7fff
	}
	return uint16((b + 0x7fff + b>>16&1) >> 16)
}

// ToE4M3 rounds with saturation to the largest finite number, as cvt.satfinite does; NaN stays NaN.
func ToE4M3(x float64) uint8 { return uint8(e4m3.round(x, 0, RN, satLimit)) }

// ToE5M2 rounds with saturation.
func ToE5M2(x float64) uint8 { return uint8(e5m2.round(x, 0, RN, satLimit)) }

// TF32 rounds a single to tf32 (10 bits of mantissa): RNA for cvt.rna, RN or RZ otherwise. An H200's cvt.rna cuts a NaN as it cuts a
// number, so that one whose payload lies in the low bits becomes infinite; the other modes give the canonical NaN.
func TF32(x float32, mode Mode) uint32 {
	b := math.Float32bits(x)
	if b&0x7f800000 == 0x7f800000 {
		if x != x && mode != RNA {
			return NaN32 &^ 0x1fff
		}
		return b &^ 0x1fff
	}
	switch mode {
	case RNA:
		b += 0x1000
	case RN:
		b += 0xfff + b>>13&1
	}
	return b &^ 0x1fff
}
