package sim

import (
	"math"
	"slices"

	"github.com/kvloom/kvloom/runtime/sim/num"
)

// approx lowers a function of one single; its result is the correctly rounded one, within every bound that the ISA states.
func (c *lowering) approx(f func(x float64) float64) step {
	c.has("approx")
	ftz := c.has("ftz")
	t := string(c.typ())
	switch t {
	case "f32":
		return c.un(t, func(a uint32) uint32 {
			if ftz {
				a = flush(a)
			}
			return finish(num.Canon(float32(f(float64(f32of(a))))), ftz, false)
		}, nil)
	case "f16", "f16x2", "bf16", "bf16x2":
		return c.smallUn(t, ftz, f)
	}
	c.failf("no .%s form is known", t)
	return nil
}

func lowerRcp(c *lowering) step {
	// An H200 flushes a reciprocal that is subnormal before it is rounded: the one of 2^126 and a bit is 0 even rounded up.
	ftz := slices.Contains(c.mods, "ftz")
	return c.inverse(func(a float32, mode num.Mode) float32 {
		if mag := bits32(a) &^ 0x80000000; ftz && mag > 0x7e800000 && mag < 0x7f800000 {
			return f32of(bits32(a) & 0x80000000)
		}
		return num.Div(1, a, mode)
	},
		func(a float64, mode num.Mode) float64 { return num.Div64(1, a, mode) })
}

func lowerSqrt(c *lowering) step {
	return c.inverse(num.Sqrt, num.Sqrt64)
}

func (c *lowering) inverse(f func(a float32, mode num.Mode) float32, g func(a float64, mode num.Mode) float64) step {
	approx := c.has("approx")
	mode, ftz := c.rounding(), c.has("ftz")
	t := string(c.typ())
	switch t {
	case "f32":
		return c.un(t, func(a uint32) uint32 {
			if ftz {
				a = flush(a)
			}
			return finish(f(f32of(a), mode), ftz, false)
		}, nil)
	case "f64":
		if approx { // rcp.approx.ftz.f64 keeps the upper word
			return c.un(t, nil, func(a uint64) uint64 { return bits64(g(f64of(a), mode)) &^ 0xffffffff })
		}
		return c.un(t, nil, func(a uint64) uint64 { return bits64(g(f64of(a), mode)) })
	}
	c.failf("no .%s form is known", t)
	return nil
}

func lowerRsqrt(c *lowering) step {
	c.has("approx")
	ftz := c.has("ftz")
	t := string(c.typ())
	if t == "f64" {
		return c.un(t, nil, func(a uint64) uint64 {
			r := bits64(1 / math.Sqrt(f64of(a)))
			if ftz {
				r &^= 0xffffffff
			}
			return r
		})
	}
	return c.un(t, func(a uint32) uint32 {
		if ftz {
			a = flush(a)
		}
		x := float64(f32of(a))
		r := 1 / math.Sqrt(x)
		if x == 0 {
			r = math.Copysign(math.Inf(1), x)
		}
		return finish(num.Canon(float32(r)), ftz, false)
	}, nil)
}

func lowerEx2(c *lowering) step  { return c.approx(math.Exp2) }
func lowerLg2(c *lowering) step  { return c.approx(math.Log2) }
func lowerTanh(c *lowering) step { return c.approx(math.Tanh) }
func lowerSin(c *lowering) step  { return c.approx(math.Sin) }
func lowerCos(c *lowering) step  { return c.approx(math.Cos) }

// lowerTestp tests a float's class.
func lowerTestp(c *lowering) step {
	op := c.oneOf("finite", "infinite", "number", "notanumber", "normal", "subnormal")
	t := c.typ()
	d, a := c.dst(0, "pred"), c.src(1, t)
	test := func(v uint64) bool {
		var x float64
		var small bool
		if t == "f32" {
			x = float64(f32of(uint32(v)))
			small = v&0x7f800000 == 0
		} else {
			x = f64of(v)
			small = v&(0x7ff<<52) == 0
		}
		inf, nan := math.IsInf(x, 0), x != x
		switch op {
		case "finite":
			return !inf && !nan
		case "infinite":
			return inf
		case "number":
			return !nan
		case "notanumber":
			return nan
		case "normal":
			return !inf && !nan && (!small || x == 0) // zeros count as normal numbers
		}
		return small && x != 0
	}
	return func(w *warp, m uint32) {
		v := uint32(0)
		for i := range 32 {
			if m>>i&1 != 0 && test(w.lane(a, i)) {
				v |= 1 << i
			}
		}
		w.setPred(d, m, v)
	}
}
