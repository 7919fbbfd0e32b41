package num

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// exact32 rounds a big number to a single by the definition: the neighbours of the value, and the rule of the mode. It shares no code
// with the package.
func exact32(x *big.Float, mode Mode, zero float32) float32 {
	if x.Sign() == 0 {
		return zero
	}
	lo := float32(math.Inf(-1))
	hi := float32(math.Inf(1))
	// Bisect over the ordered bit patterns.
	key := func(f float32) int64 {
		b := int64(int32(math.Float32bits(f)))
		if b < 0 {
			b = math.MinInt32 - b
		}
		return b
	}
	val := func(k int64) float32 {
		if k < 0 {
			k = math.MinInt32 - k
		}
		return math.Float32frombits(uint32(k))
	}
	a, b := key(-math.MaxFloat32), key(math.MaxFloat32)
	if new(big.Float).SetFloat64(math.MaxFloat32).Cmp(x) <= 0 {
		lo = math.MaxFloat32
	} else if new(big.Float).SetFloat64(-math.MaxFloat32).Cmp(x) >= 0 {
		hi = -math.MaxFloat32
	} else {
		for b-a > 1 {
			m := (a + b) / 2
			if new(big.Float).SetFloat64(float64(val(m))).Cmp(x) <= 0 {
				a = m
			} else {
				b = m
			}
		}
		lo, hi = val(a), val(b)
	}
	if !math.IsInf(float64(lo), 0) && new(big.Float).SetFloat64(float64(lo)).Cmp(x) == 0 {
		return lo
	}
	if !math.IsInf(float64(hi), 0) && new(big.Float).SetFloat64(float64(hi)).Cmp(x) == 0 {
		return hi
	}
	return choose(x, lo, hi, mode)
}

func choose(x *big.Float, lo, hi float32, mode Mode) float32 {
	switch mode {
	case RM:
		return lo
	case RP:
		if hi == 0 {
			return float32(math.Copysign(0, -1))
		}
		return hi
	case RZ:
		if x.Sign() > 0 {
			return lo
		}
		if hi == 0 {
			return float32(math.Copysign(0, -1))
		}
		return hi
	}
	// To nearest: the limit of the largest finite number counts as 2^128.
	wide := func(f float32) *big.Float {
		if math.IsInf(float64(f), 0) {
			return new(big.Float).SetFloat64(math.Copysign(0x1p128, float64(f)))
		}
		return new(big.Float).SetFloat64(float64(f))
	}
	exact := func() *big.Float { return new(big.Float).SetPrec(2000) }
	below, above := exact().Sub(x, wide(lo)), exact().Sub(wide(hi), x)
	pick := hi
	switch c := below.Cmp(above); {
	case c < 0, c == 0 && math.Float32bits(lo)&1 == 0 && !math.IsInf(float64(lo), 0):
		pick = lo
	}
	if pick == 0 && x.Sign() < 0 {
		return float32(math.Copysign(0, -1))
	}
	return pick
}

func bigOf(f float32) *big.Float { return new(big.Float).SetPrec(2000).SetFloat64(float64(f)) }

// random32 draws finite singles of all magnitudes, with many that make ties and near ties.
func random32(r *rand.Rand) float32 {
	for {
		b := r.Uint32()
		switch r.IntN(5) {
		case 0:
			b &= 0x807fffff // subnormal
		case 1:
			b &^= 0xfff // short mantissas meet in midpoints
		case 2:
			b = b&0x807fffff | uint32(120+r.IntN(16))<<23
		case 3:
			b = b&0x80000000 | uint32(100+r.IntN(60))<<23 | uint32(r.IntN(4))
		}
		if f := math.Float32frombits(b); f == f && !math.IsInf(float64(f), 0) {
			return f
		}
	}
}

var modes = []Mode{RN, RZ, RM, RP}

func same32(a, b float32) bool { return math.Float32bits(a) == math.Float32bits(b) }

func TestSingleArithmeticIsExactlyRounded(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	zero := float32(0)
	for range 60000 {
		a, b, c := random32(r), random32(r), random32(r)
		for _, m := range modes {
			if x := bigOf(a); a != 0 || b != 0 {
				if x.Add(x, bigOf(b)); x.Sign() != 0 {
					if w, g := exact32(x, m, zero), Add(a, b, m); !same32(w, g) {
						t.Fatalf("%g + %g mode %d: want %g, got %g", a, b, m, w, g)
					}
				}
			}
			if x := bigOf(a); a != 0 && b != 0 {
				if w, g := exact32(x.Mul(x, bigOf(b)), m, zero), Mul(a, b, m); !same32(w, g) {
					t.Fatalf("%g * %g mode %d: want %g, got %g", a, b, m, w, g)
				}
				x := bigOf(a)
				if w, g := exact32(x.Quo(x, bigOf(b)), m, zero), Div(a, b, m); !same32(w, g) {
					t.Fatalf("%g / %g mode %d: want %g, got %g", a, b, m, w, g)
				}
			}
			x := bigOf(a)
			x.Mul(x, bigOf(b)).Add(x, bigOf(c))
			if x.Sign() != 0 {
				if w, g := exact32(x, m, zero), FMAMode(a, b, c, m); !same32(w, g) {
					t.Fatalf("fma(%g, %g, %g) mode %d: want %g, got %g", a, b, c, m, w, g)
				}
				if w, g := exact32(x, RN, zero), FMA(a, b, c); !same32(w, g) {
					t.Fatalf("fma(%g, %g, %g): want %g, got %g", a, b, c, w, g)
				}
			}
			if a > 0 {
				x := bigOf(a)
				if w, g := exact32(x.Sqrt(x), m, zero), Sqrt(a, m); !same32(w, g) {
					t.Fatalf("sqrt(%g) mode %d: want %g, got %g", a, m, w, g)
				}
			}
		}
	}
}

// TestFMAMidpoints aims at double rounding: products whose sum with c lies a hair off the middle between two singles.
func TestFMAMidpoints(t *testing.T) {
	for _, tc := range []struct {
		name    string
		a, b, c float32
		want    float32
		reason  string
	}{
		{"above", 0x1.000002p0, 0x1.000002p0, 0x1p24, 0x1.000002p24, "2^24 + 1 + a little: the middle, rounded up by the tail"},
		{"below", 0x1.fffffcp-1, 0x1.000002p0, 0x1p24, 0x1p24, "2^24 + 1 - a little: in double it is the middle"},
		{"tie", 1, 1, 0x1p24, 0x1p24, "an exact tie goes to even"},
		{"subnormal", 0x1.fffffep-76, 0x1p-75, 0x1p-149, 0x1p-149, "half an ulp of the smallest, less a tail: stays"},
		{"subnormal tie", 0x1p-75, 0x1p-75, 0x1p-149, 0x1p-148, "one and a half goes to two"},
		{"cancel", 0x1.000002p0, 0x1.000002p0, -0x1.000004p0, 0x1p-46, "only the last bit of the product is left"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if got := FMA(tc.a, tc.b, tc.c); !same32(got, tc.want) {
				t.Errorf("%s: want %g, got %g", tc.reason, tc.want, got)
			}
		})
	}
}

// nearest searches a whole format for the best value: the definition of rounding.
func nearest(x float64, size int, value func(uint32) float64, mode Mode) (lo, hi float64, ok bool) {
	lo, hi = math.Inf(-1), math.Inf(1)
	for b := range uint32(1) << size {
		v := value(b)
		if v != v || math.IsInf(v, 0) {
			continue
		}
		if v <= x && v > lo {
			lo = v
		}
		if v >= x && v < hi {
			hi = v
		}
	}
	return lo, hi, !math.IsInf(lo, 0) && !math.IsInf(hi, 0)
}

func TestNarrowFormats(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, f := range []struct {
		name  string
		size  int
		count int
		value func(uint32) float64
		round func(float64, Mode) uint32
		modes []Mode
	}{
		{"f16", 16, 60, func(b uint32) float64 { return half.value(b) }, func(x float64, m Mode) uint32 { return uint32(ToHalf(x, m)) }, modes},
		{"bf16", 16, 60, func(b uint32) float64 { return bfloat.value(b) }, func(x float64, m Mode) uint32 { return uint32(ToBF16(x, m)) }, modes},
		{"e4m3", 8, 3000, func(b uint32) float64 { return e4m3.value(b) }, func(x float64, m Mode) uint32 { return uint32(ToE4M3(x)) }, []Mode{RN}},
		{"e5m2", 8, 3000, func(b uint32) float64 { return e5m2.value(b) }, func(x float64, m Mode) uint32 { return uint32(ToE5M2(x)) }, []Mode{RN}},
	} {
		t.Run(f.name, func(t *testing.T) {
			for range f.count {
				x := math.Ldexp(r.NormFloat64(), r.IntN(30)-18)
				if r.IntN(3) == 0 { // a midpoint
					b := r.Uint32N(1 << (f.size - 1))
					if x = (f.value(b) + f.value(b+1)) / 2; x != x || math.IsInf(x, 0) {
						continue
					}
				}
				lo, hi, ok := nearest(x, f.size, f.value, RN)
				if !ok {
					continue
				}
				for _, m := range f.modes {
					got := f.value(f.round(x, m))
					want := lo
					switch {
					case m == RP, m == RZ && x < 0:
						want = hi
					case m == RN && x-lo > hi-x:
						want = hi
					case m == RN && x-lo == hi-x && lo != hi:
						if got != lo && got != hi || f.round(got, RN)&1 != 0 {
							t.Fatalf("%g is a tie of %g and %g: got %g, which is odd", x, lo, hi, got)
						}
						continue
					}
					if got != want {
						t.Fatalf("%g mode %d: want %g, got %g", x, m, want, got)
					}
				}
			}
		})
	}
}

func TestEdges(t *testing.T) {
	inf := float32(math.Inf(1))
	nan := float32(math.NaN())
	for _, tc := range []struct {
		name      string
		got, want uint32
	}{
		{"inf - inf", math.Float32bits(Add(inf, -inf, RN)), NaN32},
		{"0 * inf", math.Float32bits(Mul(0, inf, RZ)), NaN32},
		{"x - x rounds down to -0", math.Float32bits(Add(1, -1, RM)), 0x80000000},
		{"x - x rounds up to +0", math.Float32bits(Add(1, -1, RP)), 0},
		{"-0 + -0", math.Float32bits(Add(float32(math.Copysign(0, -1)), float32(math.Copysign(0, -1)), RP)), 0x80000000},
		{"overflow to nearest", math.Float32bits(Add(math.MaxFloat32, math.MaxFloat32, RN)), 0x7f800000},
		{"overflow to zero", math.Float32bits(Add(math.MaxFloat32, math.MaxFloat32, RZ)), 0x7f7fffff},
		{"negative overflow up", math.Float32bits(Add(-math.MaxFloat32, -math.MaxFloat32, RP)), 0xff7fffff},
		{"max of NaN and 1", math.Float32bits(Max(nan, 1)), 0x3f800000},
		{"min of zeros", math.Float32bits(Min(0, float32(math.Copysign(0, -1)))), 0x80000000},
		{"max of zeros", math.Float32bits(Max(float32(math.Copysign(0, -1)), 0)), 0},
		{"sat of NaN", math.Float32bits(Sat(nan)), 0},
		{"ftz of -subnormal", math.Float32bits(FTZ(math.Float32frombits(0x80000001))), 0x80000000},
		{"div.approx by huge", math.Float32bits(DivApprox(1, 0x1p127)), 0},
		{"div.approx inf by huge", math.Float32bits(DivApprox(inf, 0x1p127)), NaN32},
		{"f16 of 65520", uint32(ToHalf(65520, RN)), 0x7c00},
		{"f16 of 65519", uint32(ToHalf(65519, RN)), 0x7bff},
		{"f16 of 65520 to zero", uint32(ToHalf(65520, RZ)), 0x7bff},
		{"e4m3 saturates", uint32(ToE4M3(1e9)), 0x7e},
		{"e4m3 of -inf", uint32(ToE4M3(math.Inf(-1))), 0xfe},
		{"e4m3 of NaN", uint32(ToE4M3(math.NaN())), 0x7f},
		{"e5m2 saturates", uint32(ToE5M2(-1e9)), 0xfb},
		{"bf16 of a tie", uint32(BF16FromSingle(math.Float32frombits(0x3f808000))), 0x3f80},
		{"bf16 of an odd tie", uint32(BF16FromSingle(math.Float32frombits(0x3f818000))), 0x3f82},
		{"tf32 ties away", TF32(math.Float32frombits(0x3f801000), RNA), 0x3f802000},
		{"tf32 tie to even", TF32(math.Float32frombits(0x3f801000), RN), 0x3f800000},
	} {
		if tc.got != tc.want {
			t.Errorf("%s: want %#x, got %#x", tc.name, tc.want, tc.got)
		}
	}
}
