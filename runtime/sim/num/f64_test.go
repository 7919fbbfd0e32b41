package num

import (
	"math"
	"math/big"
	"math/rand/v2"
	"testing"
)

// TestDirectedDoubles brackets results: rounded down and up they are neighbours around the exact value, or both are it.
func TestDirectedDoubles(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	draw := func() float64 {
		for {
			b := r.Uint64()
			if r.IntN(4) == 0 {
				b = b&(1<<63|1<<52-1) | r.Uint64N(3)<<52 // subnormals and near them
			}
			if f := math.Float64frombits(b); f-f == 0 && f != 0 {
				return f
			}
		}
	}
	exact := func(f float64) *big.Float { return new(big.Float).SetPrec(5000).SetFloat64(f) }
	check := func(name string, x *big.Float, f func(Mode) float64) {
		t.Helper()
		lo, hi := f(RM), f(RP)
		if !math.IsInf(lo, 0) && exact(lo).Cmp(x) > 0 || !math.IsInf(hi, 0) && exact(hi).Cmp(x) < 0 || lo > hi {
			t.Fatalf("%s: %g to %g do not enclose %g", name, lo, hi, x)
		}
		if lo != hi && math.Nextafter(lo, math.Inf(1)) != hi {
			t.Fatalf("%s: %g and %g are no neighbours", name, lo, hi)
		}
		if lo == hi && exact(lo).Cmp(x) != 0 {
			t.Fatalf("%s: %g is not exact", name, lo)
		}
		want := lo
		if x.Sign() < 0 {
			want = hi
		}
		if got := f(RZ); got != want {
			t.Fatalf("%s: towards zero %g, want %g", name, got, want)
		}
	}
	for range 3000 {
		a, b, c := draw(), draw(), draw()
		if r.IntN(3) == 0 {
			c = -a * b * (1 + r.Float64()*0x1p-40)
		}
		check("mul", exact(a).Mul(exact(a), exact(b)), func(m Mode) float64 { return Mul64(a, b, m) })
		check("div", exact(a).Quo(exact(a), exact(b)), func(m Mode) float64 { return Div64(a, b, m) })
		check("sqrt", exact(a).Sqrt(exact(math.Abs(a))), func(m Mode) float64 { return Sqrt64(math.Abs(a), m) })
		if c-c != 0 || c == 0 {
			continue
		}
		if x := exact(a).Add(exact(a), exact(c)); x.Sign() != 0 {
			check("add", x, func(m Mode) float64 { return Add64(a, c, m) })
		}
		x := exact(a)
		if x.Mul(x, exact(b)).Add(x, exact(c)); x.Sign() != 0 {
			check("fma", x, func(m Mode) float64 { return FMA64(a, b, c, m) })
		}
	}
	negative := math.Copysign(0, -1)
	for _, tc := range []struct {
		name      string
		got, want float64
	}{
		{"x - x rounds down to -0", Add64(1, -1, RM), negative},
		{"x - x rounds up to +0", Add64(1, -1, RP), 0},
		{"-0 + -0", Add64(negative, negative, RP), negative},
		{"a product that cancels, down", FMA64(2, 3, -6, RM), negative},
		{"overflow towards zero", Mul64(math.MaxFloat64, -2, RZ), -math.MaxFloat64},
		{"underflow up", Mul64(math.SmallestNonzeroFloat64, 0.5, RP), math.SmallestNonzeroFloat64},
		{"-underflow up is -0", Mul64(math.SmallestNonzeroFloat64, -0.25, RP), negative},
		{"1 / 0", Div64(1, 0, RZ), math.Inf(1)},
	} {
		if math.Float64bits(tc.got) != math.Float64bits(tc.want) {
			t.Errorf("%s: want %g, got %g", tc.name, tc.want, tc.got)
		}
	}
}
