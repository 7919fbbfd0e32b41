package sim

import (
	"math"

	"github.com/kvloom/kvloom/runtime/sim/num"
)

var _ = register(map[string]func(c *lowering) step{
	"fma": func(c *lowering) step { return c.fma(string(c.typ())) },
	"neg": lowerNeg, "abs": lowerAbs, "min": lowerMinMax(false), "max": lowerMinMax(true), "copysign": lowerCopysign,
	"rcp": lowerRcp, "sqrt": lowerSqrt, "rsqrt": lowerRsqrt, "ex2": lowerEx2, "lg2": lowerLg2, "tanh": lowerTanh, "sin": lowerSin, "cos": lowerCos,
	"testp": lowerTestp,
})

func f32of(b uint32) float32  { return math.Float32frombits(b) }
func bits32(f float32) uint32 { return math.Float32bits(f) }
func f64of(b uint64) float64  { return math.Float64frombits(b) }
func bits64(f float64) uint64 { return math.Float64bits(f) }
func flush(b uint32) uint32 {
	if b&0x7f800000 == 0 {
		return b & 0x80000000
	}
	return b
}

// rounding takes the rounding modifier; to nearest even where there is none.
func (c *lowering) rounding() num.Mode {
	switch c.oneOf("rn", "rz", "rm", "rp", "rna") {
	case "rz":
		return num.RZ
	case "rm":
		return num.RM
	case "rp":
		return num.RP
	case "rna":
		return num.RNA
	}
	return num.RN
}

// polish wraps a single-precision function with flushing and saturation.
func polish2(f func(a, b float32) float32, ftz, sat bool) func(a, b uint32) uint32 {
	return func(a, b uint32) uint32 {
		if ftz {
			a, b = flush(a), flush(b)
		}
		return finish(f(f32of(a), f32of(b)), ftz, sat)
	}
}

func finish(r float32, ftz, sat bool) uint32 {
	if sat {
		r = num.Sat(r)
	}
	v := bits32(r)
	if ftz {
		v = flush(v)
	}
	return v
}

// floatBin lowers add, sub and mul of every floating type.
func (c *lowering) floatBin(op, t string) step {
	mode, ftz, sat := c.rounding(), c.has("ftz"), c.has("sat")
	switch t {
	case "f32":
		c.args(3, 3)
		if mode == num.RN && !sat {
			return hotFloat(op, ftz, c.dstT(0, t), c.srcT(1, t), c.srcT(2, t))
		}
		return c.bin(t, polish2(op32(op, mode), ftz, sat), nil)
	case "f64":
		return c.bin(t, nil, func(a, b uint64) uint64 { return bits64(op64(op, f64of(a), f64of(b), mode)) })
	}
	return c.smallBin(op, t, ftz, sat)
}

func op32(op string, mode num.Mode) func(a, b float32) float32 {
	switch op {
	case "add":
		return func(a, b float32) float32 { return num.Add(a, b, mode) }
	case "sub":
		return func(a, b float32) float32 { return num.Add(a, -b, mode) }
	}
	return func(a, b float32) float32 { return num.Mul(a, b, mode) }
}

func op64(op string, a, b float64, mode num.Mode) float64 {
	switch op {
	case "add":
		return num.Add64(a, b, mode)
	case "sub":
		return num.Add64(a, -b, mode)
	}
	return num.Mul64(a, b, mode)
}

// fma lowers fma and mad of every floating type.
func (c *lowering) fma(t string) step {
	mode, ftz, sat := c.rounding(), c.has("ftz"), c.has("sat")
	switch t {
	case "f32":
		c.args(4, 4)
		if mode == num.RN && !sat {
			return hotFMA(ftz, c.dstT(0, t), c.srcT(1, t), c.srcT(2, t), c.srcT(3, t))
		}
		return c.tri(t, func(a, b, d uint32) uint32 {
			if ftz {
				a, b, d = flush(a), flush(b), flush(d)
			}
			return finish(num.FMAMode(f32of(a), f32of(b), f32of(d), mode), ftz, sat)
		}, nil)
	case "f64":
		return c.tri(t, nil, func(a, b, d uint64) uint64 { return bits64(num.FMA64(f64of(a), f64of(b), f64of(d), mode)) })
	}
	return c.smallFMA(t, ftz, sat, c.has("relu"))
}

func (c *lowering) floatDiv(t string) step {
	how := c.oneOf("approx", "full")
	mode, ftz := c.rounding(), c.has("ftz")
	if t == "f64" {
		return c.bin(t, nil, func(a, b uint64) uint64 { return bits64(num.Div64(f64of(a), f64of(b), mode)) })
	}
	if t != "f32" {
		c.failf("no .%s form is known", t)
	}
	f := func(a, b float32) float32 { return num.Div(a, b, mode) }
	if how == "approx" {
		f = num.DivApprox
	}
	return c.bin(t, polish2(f, ftz, false), nil)
}

func lowerNeg(c *lowering) step {
	ftz := c.has("ftz")
	t := string(c.typ())
	switch t {
	case "f32":
		return c.un(t, func(a uint32) uint32 {
			if ftz {
				a = flush(a)
			}
			return a ^ 0x80000000
		}, nil)
	case "f64":
		return c.un(t, nil, func(a uint64) uint64 { return a ^ 1<<63 })
	case "f16", "bf16":
		return c.un(t, func(a uint32) uint32 { return a ^ 0x8000 }, nil)
	case "f16x2", "bf16x2":
		return c.un(t, func(a uint32) uint32 { return a ^ 0x80008000 }, nil)
	}
	k := mask16(t)
	return c.un(t, func(a uint32) uint32 { return -a & k }, func(a uint64) uint64 { return -a })
}

func lowerAbs(c *lowering) step {
	ftz := c.has("ftz")
	t := string(c.typ())
	switch t {
	case "f32":
		return c.un(t, func(a uint32) uint32 {
			if ftz {
				a = flush(a)
			}
			return a &^ 0x80000000
		}, nil)
	case "f64":
		return c.un(t, nil, func(a uint64) uint64 { return a &^ (1 << 63) })
	case "f16", "bf16":
		return c.un(t, func(a uint32) uint32 { return a & 0x7fff }, nil)
	case "f16x2", "bf16x2":
		return c.un(t, func(a uint32) uint32 { return a & 0x7fff7fff }, nil)
	}
	k := mask16(t)
	return c.un(t, func(a uint32) uint32 {
		if s := signed(t, a); s < 0 {
			return uint32(-s) & k
		}
		return a
	}, func(a uint64) uint64 {
		if int64(a) < 0 {
			return -a
		}
		return a
	})
}

func lowerMinMax(larger bool) func(c *lowering) step {
	return func(c *lowering) step {
		ftz, nan, relu := c.has("ftz"), c.has("NaN"), c.has("relu")
		xorsign := c.has("xorsign")
		if xorsign && !c.has("abs") {
			c.failf("xorsign comes with abs")
		}
		t := string(c.typ())
		switch {
		case t == "f32":
			return c.bin(t, minmax32(larger, ftz, nan, xorsign), nil)
		case t == "f64":
			return c.bin(t, nil, func(a, b uint64) uint64 { return minmax64(larger, a, b) })
		case isFloat(t):
			return c.smallMinMax(t, larger, ftz, nan, xorsign)
		}
		return c.intMinMax(t, larger, relu)
	}
}

func minmax32(larger, ftz, nan, xorsign bool) func(a, b uint32) uint32 {
	f := num.Min
	if larger {
		f = num.Max
	}
	return func(a, b uint32) uint32 {
		if ftz {
			a, b = flush(a), flush(b)
		}
		x, y := f32of(a), f32of(b)
		if nan && (x != x || y != y) {
			return num.NaN32
		}
		if !xorsign {
			return bits32(f(x, y))
		}
		r := bits32(f(f32of(a&^0x80000000), f32of(b&^0x80000000)))
		if r&0x7fffffff > 0x7f800000 {
			return num.NaN32
		}
		return r | (a^b)&0x80000000
	}
}

func minmax64(larger bool, a, b uint64) uint64 {
	x, y := f64of(a), f64of(b)
	switch {
	case x != x:
		return b
	case y != y:
		return a
	case larger:
		return bits64(math.Max(x, y))
	}
	return bits64(math.Min(x, y))
}

func (c *lowering) intMinMax(t string, larger, relu bool) step {
	floor := func(v uint32) uint32 {
		if relu && signed(t, v) < 0 {
			return 0
		}
		return v
	}
	pick := func(a, b uint32) uint32 {
		less := a < b
		if t[0] == 's' {
			less = signed(t, a) < signed(t, b)
		}
		if less != larger {
			return floor(a)
		}
		return floor(b)
	}
	switch t {
	case "u16x2", "s16x2":
		t = t[:3]
		return c.bin("b32", pair16(pick), nil)
	}
	return c.bin(t, pick, func(a, b uint64) uint64 {
		less := a < b
		if t[0] == 's' {
			less = int64(a) < int64(b)
		}
		if less != larger {
			return a
		}
		return b
	})
}

func lowerCopysign(c *lowering) step {
	t := string(c.typ())
	return c.bin(t, func(a, b uint32) uint32 { return b&^0x80000000 | a&0x80000000 }, func(a, b uint64) uint64 { return b&^(1<<63) | a&(1<<63) })
}
