package sim

import (
	"math"
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

func (c *lowering) dstT(n int, t string) slot { return c.dst(n, ptx.Type(t)).slot }
func (c *lowering) srcT(n int, t string) slot { return c.src(n, ptx.Type(t)).slot }

var _ = register(map[string]func(c *lowering) step{
	"add": lowerAdd, "sub": lowerSub, "addc": lowerAddc, "subc": lowerSubc, "mul": lowerMul, "mad": lowerMad, "madc": lowerMadc, "mul24": lowerMul24,
	"mad24": lowerMad24, "div": lowerDiv, "rem": lowerRem, "sad": lowerSad, "dp4a": lowerDp4a, "dp2a": lowerDp2a,
})

// ext16 widens a 16-bit value of a type.
func ext16(t string, v uint32) int32 {
	if t[0] == 's' {
		return int32(int16(v))
	}
	return int32(v & 0xffff)
}

func isFloat(t string) bool {
	switch t {
	case "f16", "f16x2", "bf16", "bf16x2", "f32", "f64", "f32x2":
		return true
	}
	return false
}

func pair16(f func(a, b uint32) uint32) func(a, b uint32) uint32 {
	return func(a, b uint32) uint32 {
		return f(a&0xffff, b&0xffff)&0xffff | f(a>>16, b>>16)<<16
	}
}

func lowerAdd(c *lowering) step {
	t := string(c.typ())
	if isFloat(t) {
		return c.floatBin("add", t)
	}
	if c.has("cc") {
		return c.carry(t, false, true, addCarry)
	}
	if c.has("sat") {
		return c.bin(t, func(a, b uint32) uint32 { return clamp32(int64(int32(a)) + int64(int32(b))) }, nil)
	}
	switch t {
	case "u16", "s16":
		return c.bin(t, func(a, b uint32) uint32 { return (a + b) & 0xffff }, nil)
	case "u16x2", "s16x2":
		return c.bin(t, pair16(func(a, b uint32) uint32 { return a + b }), nil)
	case "u32", "s32":
		c.args(3, 3)
		return hotAdd(c.dstT(0, t), c.srcT(1, t), c.srcT(2, t))
	}
	if t != "u64" && t != "s64" {
		c.failf("no .%s form is known", t)
	}
	c.args(3, 3)
	return hotAdd64(c.dstT(0, t), c.srcT(1, t), c.srcT(2, t))
}

func lowerSub(c *lowering) step {
	t := string(c.typ())
	if isFloat(t) {
		return c.floatBin("sub", t)
	}
	if c.has("cc") {
		return c.carry(t, false, true, subCarry)
	}
	if c.has("sat") {
		return c.bin(t, func(a, b uint32) uint32 { return clamp32(int64(int32(a)) - int64(int32(b))) }, nil)
	}
	switch t {
	case "u16", "s16":
		return c.bin(t, func(a, b uint32) uint32 { return (a - b) & 0xffff }, nil)
	case "u16x2", "s16x2":
		return c.bin(t, pair16(func(a, b uint32) uint32 { return a - b }), nil)
	}
	return c.bin(t, func(a, b uint32) uint32 { return a - b }, func(a, b uint64) uint64 { return a - b })
}

func clamp32(v int64) uint32 { return uint32(int32(min(max(v, math.MinInt32), math.MaxInt32))) }

func addCarry(a, b, cin uint64, w bool) (uint64, uint64) {
	if w {
		return bits.Add64(a, b, cin)
	}
	s, co := bits.Add32(uint32(a), uint32(b), uint32(cin))
	return uint64(s), uint64(co)
}

// subCarry keeps the borrow in the carry flag.
func subCarry(a, b, cin uint64, w bool) (uint64, uint64) {
	if w {
		return bits.Sub64(a, b, cin)
	}
	s, co := bits.Sub32(uint32(a), uint32(b), uint32(cin))
	return uint64(s), uint64(co)
}

// carry lowers an instruction of extended precision; the condition code is a mask of lanes.
func (c *lowering) carry(t string, in, out bool, f func(a, b, cin uint64, w bool) (uint64, uint64)) step {
	c.args(3, 3)
	d, a, b := c.dst(0, ptx.Type(t)), c.src(1, ptx.Type(t)), c.src(2, ptx.Type(t))
	long := wide(t)
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			cin := uint64(0)
			if in {
				cin = uint64(w.carry >> i & 1)
			}
			v, co := f(w.lane(a, i), w.lane(b, i), cin, long)
			w.set(d, i, v)
			if out {
				w.carry = w.carry&^(1<<i) | uint32(co)<<i
			}
		}
	}
}

func lowerAddc(c *lowering) step {
	out := c.has("cc")
	return c.carry(string(c.typ()), true, out, addCarry)
}

func lowerSubc(c *lowering) step {
	out := c.has("cc")
	return c.carry(string(c.typ()), true, out, subCarry)
}

func lowerMul(c *lowering) step {
	how := c.oneOf("lo", "hi", "wide")
	t := string(c.typ())
	if how == "" {
		if !isFloat(t) {
			c.failf("mul of .%s needs .lo, .hi or .wide", t)
		}
		return c.floatBin("mul", t)
	}
	switch how {
	case "lo":
		if t == "u16" || t == "s16" {
			return c.bin(t, func(a, b uint32) uint32 { return a * b & 0xffff }, nil)
		}
		return c.bin(t, func(a, b uint32) uint32 { return a * b }, func(a, b uint64) uint64 { return a * b })
	case "hi":
		f32, f64 := mulHi(t)
		return c.bin(t, f32, f64)
	}
	return c.mulWide(t)
}

func mulHi(t string) (func(a, b uint32) uint32, func(a, b uint64) uint64) {
	switch t {
	case "u16", "s16":
		return func(a, b uint32) uint32 { return uint32(ext16(t, a)*ext16(t, b)) >> 16 & 0xffff }, nil
	case "u32":
		return func(a, b uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 32) }, nil
	case "s32":
		return func(a, b uint32) uint32 { return uint32(int64(int32(a)) * int64(int32(b)) >> 32) }, nil
	case "u64":
		return nil, func(a, b uint64) uint64 { h, _ := bits.Mul64(a, b); return h }
	case "s64":
		return nil, func(a, b uint64) uint64 {
			h, _ := bits.Mul64(a, b)
			if int64(a) < 0 {
				h -= b
			}
			if int64(b) < 0 {
				h -= a
			}
			return h
		}
	}
	return nil, nil
}

// widened is the type of twice the width.
func widened(t string) ptx.Type {
	if t == "u16" || t == "s16" {
		return ptx.Type(t[:1] + "32")
	}
	return ptx.Type(t[:1] + "64")
}

func (c *lowering) mulWide(t string) step {
	c.args(3, 3)
	d, a, b := c.dst(0, widened(t)).slot, c.srcT(1, t), c.srcT(2, t)
	switch t {
	case "u16", "s16":
		return bin32(d, a, b, func(a, b uint32) uint32 { return uint32(ext16(t, a) * ext16(t, b)) })
	case "u32":
		return func(w *warp, m uint32) {
			x, z, y := w.in32(a), w.in32(b), &w.q[d]
			for ; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m) & 31
				y[i] = uint64(x[i]) * uint64(z[i])
			}
		}
	case "s32":
		return func(w *warp, m uint32) {
			x, z, y := w.in32(a), w.in32(b), &w.q[d]
			for ; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m) & 31
				y[i] = uint64(int64(int32(x[i])) * int64(int32(z[i])))
			}
		}
	}
	c.failf("no .%s form is known", t)
	return nil
}

func lowerMad(c *lowering) step {
	how := c.oneOf("lo", "hi", "wide")
	t := string(c.typ())
	if how == "" {
		return c.fma(t) // mad.f32 and mad.f64 are fma
	}
	if c.has("cc") {
		return c.madCarry(t, how, false, true)
	}
	sat := c.has("sat")
	c.args(4, 4)
	switch how {
	case "lo":
		if t == "u16" || t == "s16" {
			return c.tri(t, func(a, b, d uint32) uint32 { return (a*b + d) & 0xffff }, nil)
		}
		return c.tri(t, func(a, b, d uint32) uint32 { return a*b + d }, func(a, b, d uint64) uint64 { return a*b + d })
	case "hi":
		f32, f64 := mulHi(t)
		if sat {
			return c.tri(t, func(a, b, d uint32) uint32 { return clamp32(int64(int32(f32(a, b))) + int64(int32(d))) }, nil)
		}
		if wide(t) {
			return c.tri(t, nil, func(a, b, d uint64) uint64 { return f64(a, b) + d })
		}
		mask := uint32(math.MaxUint32)
		if t == "u16" || t == "s16" {
			mask = 0xffff
		}
		return c.tri(t, func(a, b, d uint32) uint32 { return (f32(a, b) + d) & mask }, nil)
	}
	wt := widened(t)
	d, ops := c.dst(0, wt), []operand{c.src(1, ptx.Type(t)), c.src(2, ptx.Type(t)), c.src(3, wt)}
	switch t {
	case "u16", "s16":
		return mixed(d, ops, func(v *[4]uint64) uint64 {
			return uint64(uint32(ext16(t, uint32(v[0]))*ext16(t, uint32(v[1])) + int32(v[2])))
		})
	case "u32":
		return mixed(d, ops, func(v *[4]uint64) uint64 { return v[0]*v[1] + v[2] })
	case "s32":
		return mixed(d, ops, func(v *[4]uint64) uint64 { return uint64(int64(int32(v[0]))*int64(int32(v[1]))) + v[2] })
	}
	c.failf("no .%s form is known", t)
	return nil
}

func lowerMadc(c *lowering) step {
	how := c.oneOf("lo", "hi")
	out := c.has("cc")
	return c.madCarry(string(c.typ()), how, true, out)
}

func (c *lowering) madCarry(t, how string, in, out bool) step {
	c.args(4, 4)
	d, a, b, e := c.dst(0, ptx.Type(t)), c.src(1, ptx.Type(t)), c.src(2, ptx.Type(t)), c.src(3, ptx.Type(t))
	long := wide(t)
	f32, f64 := func(a, b uint32) uint32 { return a * b }, func(a, b uint64) uint64 { return a * b }
	if how == "hi" {
		f32, f64 = mulHi(t)
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			cin := uint64(0)
			if in {
				cin = uint64(w.carry >> i & 1)
			}
			var p uint64
			if long {
				p = f64(w.lane(a, i), w.lane(b, i))
			} else {
				p = uint64(f32(uint32(w.lane(a, i)), uint32(w.lane(b, i))))
			}
			v, co := addCarry(p, w.lane(e, i), cin, long)
			w.set(d, i, v)
			if out {
				w.carry = w.carry&^(1<<i) | uint32(co)<<i
			}
		}
	}
}

func ext24(t string, v uint32) int64 {
	if t[0] == 's' {
		return int64(int32(v<<8) >> 8)
	}
	return int64(v & 0xffffff)
}

func mul24(t string, hi bool) func(a, b uint32) uint32 {
	shift := 0
	if hi {
		shift = 16
	}
	return func(a, b uint32) uint32 { return uint32(ext24(t, a) * ext24(t, b) >> shift) }
}

func lowerMul24(c *lowering) step {
	hi := c.oneOf("lo", "hi") == "hi"
	t := string(c.typ())
	return c.bin(t, mul24(t, hi), nil)
}

func lowerMad24(c *lowering) step {
	hi := c.oneOf("lo", "hi") == "hi"
	t := string(c.typ())
	f := mul24(t, hi)
	return c.tri(t, func(a, b, d uint32) uint32 { return f(a, b) + d }, nil)
}
