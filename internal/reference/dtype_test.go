package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestRounding(t *testing.T) {
	tests := []struct {
		name, reason string
		dtype        DType
		x            float64
		want         uint16
	}{
		{"one", "the plain case", BF16, 1, 0x3f80},
		{"tie to even, down", "1 + 2^-8 lies between 1 and 1 + 2^-7", BF16, 1 + 0x1p-8, 0x3f80},
		{"tie to even, up", "1 + 3*2^-8 lies between odd and even", BF16, 1 + 3*0x1p-8, 0x3f82},
		{"one rounding, not two", "float32 would round this to the tie first and then down", BF16, 1 + 0x1p-8 + 0x1p-40, 0x3f81},
		{"carry into the exponent", "the largest mantissa rounds up", BF16, 1.999, 0x4000},
		{"overflow", "beyond the largest finite number", BF16, 3.4e38, 0x7f80},
		{"negative zero keeps its sign", "sign is not lost", BF16, math.Copysign(0, -1), 0x8000},
		{"smallest subnormal", "2^-133", BF16, 0x1p-133, 1},
		{"half of the smallest subnormal", "tie to zero", BF16, 0x1p-134, 0},
		{"subnormal to normal", "rounding up crosses into the normal range", BF16, 0x1p-126 - 0x1p-140, 0x0080},
		{"NaN", "stays NaN", BF16, math.NaN(), 0x7fc0},
		{"half one", "the plain case", FP16, 1, 0x3c00},
		{"largest half", "65504", FP16, 65504, 0x7bff},
		{"half overflow at the tie", "65520 is half-way to 65536", FP16, 65520, 0x7c00},
		{"just below it", "rounds down", FP16, 65519.99, 0x7bff},
		{"far overflow", "the exponent field must not wrap", FP16, -1e300, 0xfc00},
		{"smallest half", "2^-24", FP16, 0x1p-24, 1},
		{"e4m3 one", "the plain case", FP8, 1, 0x38},
		{"e4m3 tie to even", "17 lies between 16 and 18", FP8, 17, 0x58},
		{"e4m3 carry", "15.9 rounds into the next exponent", FP8, -15.9, 0xd8},
		{"e4m3 saturates", "no infinity: engines store the largest", FP8, 1e9, 0x7e},
		{"e4m3 smallest", "2^-9", FP8, 0x1p-9, 1},
		{"e4m3 subnormal to normal", "rounding up crosses into the normal range", FP8, 0x1p-6 - 0x1p-12, 0x08},
		{"e4m3 NaN", "0x7f, and 0xff", FP8, math.NaN(), 0x7f},
	}
	for _, tt := range tests {
		if got := tt.dtype.Bits(tt.x); got != tt.want {
			t.Errorf("%s (%s): %s(%g) = %#04x, want %#04x", tt.name, tt.reason, tt.dtype, tt.x, got, tt.want)
		}
	}
}

func TestEveryPatternSurvives(t *testing.T) {
	for _, d := range []DType{BF16, FP16, FP8} {
		for bits := range 1 << (8 * d.Size()) {
			x := d.Value(uint16(bits))
			if got := d.Bits(x); got != uint16(bits) && !math.IsNaN(x) {
				t.Fatalf("%s: %#04x is %g, which rounds to %#04x", d, bits, x, got)
			}
		}
	}
}

func TestRoundIsNearest(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for _, d := range []DType{BF16, FP16} {
		for range 20000 {
			x := r.NormFloat64() * math.Exp(r.Float64()*24-14)
			bits := d.Bits(x)
			err := math.Abs(d.Value(bits) - x)
			for _, other := range []uint16{bits - 1, bits + 1} {
				if math.Abs(d.Value(other)-x) < err {
					t.Fatalf("%s: %g rounds to %g, but %g is nearer", d, x, d.Value(bits), d.Value(other))
				}
			}
		}
	}
}
