package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{
	"and": logic("and", func(a, b uint32) uint32 { return a & b }, func(a, b uint64) uint64 { return a & b }),
	"or":  logic("or", func(a, b uint32) uint32 { return a | b }, func(a, b uint64) uint64 { return a | b }),
	"xor": logic("xor", func(a, b uint32) uint32 { return a ^ b }, func(a, b uint64) uint64 { return a ^ b }),
	"not": lowerNot, "cnot": lowerCnot, "lop3": lowerLop3, "shl": lowerShl, "shr": lowerShr, "shf": lowerShf, "bfe": lowerBfe, "bfi": lowerBfi,
	"brev": lowerBrev, "popc": lowerPopc, "clz": lowerClz, "bfind": lowerBfind, "prmt": lowerPrmt, "bmsk": lowerBmsk, "szext": lowerSzext,
	"fns": lowerFns,
})

func mask16(t string) uint32 {
	if ptx.Type(t).Bits() == 16 {
		return 0xffff
	}
	return allLanes
}

func logic(op string, f func(a, b uint32) uint32, g func(a, b uint64) uint64) func(c *lowering) step {
	return func(c *lowering) step {
		t := string(c.typ())
		if t == "b32" {
			c.args(3, 3)
			return hotLogic(op, c.dstT(0, t), c.srcT(1, t), c.srcT(2, t))
		}
		if t != "pred" {
			return c.bin(t, f, g)
		}
		c.args(3, 3)
		d, a, b := c.dst(0, "pred"), c.predSrc(1), c.predSrc(2)
		return func(w *warp, m uint32) { w.setPred(d, m, f(w.pred(a), w.pred(b))) }
	}
}

func lowerNot(c *lowering) step {
	t := string(c.typ())
	if t == "pred" {
		d, a := c.dst(0, "pred"), c.predSrc(1)
		return func(w *warp, m uint32) { w.setPred(d, m, ^w.pred(a)) }
	}
	k := mask16(t)
	return c.un(t, func(a uint32) uint32 { return ^a & k }, func(a uint64) uint64 { return ^a })
}

func lowerCnot(c *lowering) step {
	t := string(c.typ())
	return c.un(t, func(a uint32) uint32 {
		if a == 0 {
			return 1
		}
		return 0
	}, func(a uint64) uint64 {
		if a == 0 {
			return 1
		}
		return 0
	})
}

// lop3 evaluates the truth table: bit (4a + 2b + c) of lut.
func lop3(lut uint32) func(a, b, c uint32) uint32 {
	switch lut {
	case 0x80:
		return func(a, b, c uint32) uint32 { return a & b & c }
	case 0x96:
		return func(a, b, c uint32) uint32 { return a ^ b ^ c }
	case 0xfe:
		return func(a, b, c uint32) uint32 { return a | b | c }
	case 0xea:
		return func(a, b, c uint32) uint32 { return a&b | c }
	case 0xf8:
		return func(a, b, c uint32) uint32 { return a | b&c }
	case 0xe8:
		return func(a, b, c uint32) uint32 { return a&b | a&c | b&c }
	}
	var k [8]uint32
	for i := range k {
		k[i] = -(lut >> i & 1)
	}
	return func(a, b, c uint32) uint32 {
		return ^a&(^b&(^c&k[0]|c&k[1])|b&(^c&k[2]|c&k[3])) | a&(^b&(^c&k[4]|c&k[5])|b&(^c&k[6]|c&k[7]))
	}
}

func lowerLop3(c *lowering) step {
	boolean := c.oneOf("and", "or")
	c.typ()
	if boolean != "" {
		return c.lop3Pred(boolean)
	}
	c.args(5, 5)
	return tri32(c.dstT(0, "b32"), c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "b32"), lop3(uint32(c.imm(4))))
}

// lop3Pred is lop3.BoolOp d|p, a, b, c, lut, q: p = (d != 0) BoolOp q.
func (c *lowering) lop3Pred(boolean string) step {
	c.args(6, 6)
	pair := c.arg(0)
	if pair.Kind != ptx.Pair {
		c.failf("lop3.%s needs a result pair d|p", boolean)
	}
	d, p, q := c.dest(pair.Elems[0], "b32"), c.dest(pair.Elems[1], "pred"), c.predSrc(5)
	run := tri32(d.slot, c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "b32"), lop3(uint32(c.imm(4))))
	return func(w *warp, m uint32) {
		run(w, m)
		v := uint32(0)
		for i, x := range w.r[d.slot] {
			if x != 0 {
				v |= 1 << i
			}
		}
		if boolean == "and" {
			v &= w.pred(q)
		} else {
			v |= w.pred(q)
		}
		w.setPred(p, m, v)
	}
}

// shift lowers shl and shr, whose amount is always 32 bits.
func (c *lowering) shift(t string, f32 func(a, n uint32) uint32, f64 func(a uint64, n uint32) uint64) step {
	c.args(3, 3)
	if !wide(t) {
		return bin32(c.dstT(0, t), c.srcT(1, t), c.srcT(2, "u32"), f32)
	}
	d, a, b := c.dstT(0, t), c.srcT(1, t), c.srcT(2, "u32")
	return func(w *warp, m uint32) {
		x, z, y := w.in64(a), w.in32(b), &w.q[d]
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f64(x[i], z[i])
		}
	}
}

func lowerShl(c *lowering) step {
	t := string(c.typ())
	if t == "b32" {
		c.args(3, 3)
		return hotShift(t, true, c.dstT(0, t), c.srcT(1, t), c.srcT(2, "u32"))
	}
	k := mask16(t)
	return c.shift(t, func(a, n uint32) uint32 { return a << n & k }, func(a uint64, n uint32) uint64 { return a << n })
}

func lowerShr(c *lowering) step {
	t := string(c.typ())
	switch t {
	case "u32", "b32", "s32":
		c.args(3, 3)
		return hotShift(t, false, c.dstT(0, t), c.srcT(1, t), c.srcT(2, "u32"))
	case "s16":
		return c.shift(t, func(a, n uint32) uint32 { return uint32(int32(int16(a))>>n) & 0xffff }, nil)
	case "s64":
		return c.shift(t, nil, func(a uint64, n uint32) uint64 { return uint64(int64(a) >> n) })
	}
	k := mask16(t)
	return c.shift(t, func(a, n uint32) uint32 { return a & k >> n }, func(a uint64, n uint32) uint64 { return a >> n })
}

func lowerShf(c *lowering) step {
	left := c.oneOf("l", "r") == "l"
	wrap := c.oneOf("wrap", "clamp") == "wrap"
	c.typ()
	c.args(4, 4)
	return tri32(c.dstT(0, "b32"), c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "u32"), func(lo, hi, n uint32) uint32 {
		if wrap {
			n &= 31
		} else {
			n = min(n, 32)
		}
		v := uint64(hi)<<32 | uint64(lo)
		if left {
			return uint32(v << n >> 32)
		}
		return uint32(v >> n)
	})
}

func lowerBfe(c *lowering) step {
	t := string(c.typ())
	c.args(4, 4)
	d, ops := c.dst(0, ptx.Type(t)), []operand{c.src(1, ptx.Type(t)), c.src(2, "u32"), c.src(3, "u32")}
	width := uint64(ptx.Type(t).Bits())
	return mixed(d, ops, func(v *[4]uint64) uint64 {
		pos, n := v[1]&255, v[2]&255
		a := v[0]
		if t[0] == 'u' {
			if n == 0 || pos >= width {
				return 0
			}
			return a >> pos & (1<<n - 1)
		}
		if n == 0 {
			return 0
		}
		// The sign bit is the field's top bit, or a's where the field ends beyond it.
		sign := a >> min(pos+n-1, width-1) & 1
		r := uint64(0)
		if pos < width {
			r = a >> pos
		}
		if have := min(n, max(width, pos)-pos); have < 64 {
			r &= 1<<have - 1
			r |= -sign << have
		}
		return r
	})
}

func lowerBfi(c *lowering) step {
	t := c.typ()
	c.args(5, 5)
	d, ops := c.dst(0, t), []operand{c.src(1, t), c.src(2, t), c.src(3, "u32"), c.src(4, "u32")}
	width := uint64(t.Bits())
	return mixed(d, ops, func(v *[4]uint64) uint64 {
		pos, n := v[2]&255, v[3]&255
		if pos >= width || n == 0 {
			return v[1]
		}
		field := uint64(1<<min(n, width-pos)-1) << pos
		if n >= 64 {
			field = ^uint64(0) << pos
		}
		return v[1]&^field | v[0]<<pos&field
	})
}

func lowerBrev(c *lowering) step {
	return c.un(string(c.typ()), bits.Reverse32, bits.Reverse64)
}

// count lowers an instruction whose result is u32 whatever the operand's width.
func (c *lowering) count(t string, f32 func(uint32) uint32, f64 func(uint64) uint32) step {
	c.args(2, 2)
	d := c.dstT(0, "u32")
	if !wide(t) {
		return un32(d, c.srcT(1, t), f32)
	}
	return mixed(operand{class: c32, slot: d}, []operand{c.src(1, ptx.Type(t))}, func(v *[4]uint64) uint64 { return uint64(f64(v[0])) })
}

func lowerPopc(c *lowering) step {
	return c.count(string(c.typ()), func(a uint32) uint32 { return uint32(bits.OnesCount32(a)) }, func(a uint64) uint32 { return uint32(bits.OnesCount64(a)) })
}

func lowerClz(c *lowering) step {
	return c.count(string(c.typ()), func(a uint32) uint32 { return uint32(bits.LeadingZeros32(a)) }, func(a uint64) uint32 { return uint32(bits.LeadingZeros64(a)) })
}

func lowerBfind(c *lowering) step {
	amount := c.has("shiftamt")
	t := string(c.typ())
	find := func(a uint64, width int) uint32 {
		n := bits.Len64(a) - 1
		if n < 0 {
			return allLanes
		}
		if amount {
			return uint32(width - 1 - n)
		}
		return uint32(n)
	}
	return c.count(t, func(a uint32) uint32 {
		if t == "s32" && int32(a) < 0 {
			a = ^a
		}
		return find(uint64(a), 32)
	}, func(a uint64) uint32 {
		if t == "s64" && int64(a) < 0 {
			a = ^a
		}
		return find(a, 64)
	})
}

// prmt picks bytes of {b, a}; a selector's top bit replicates the sign of its byte.
func prmt(a, b, s uint32) uint32 {
	v := uint64(b)<<32 | uint64(a)
	var r uint32
	for i := range 4 {
		sel := s >> (4 * i) & 15
		x := uint32(v>>(8*(sel&7))) & 255
		if sel&8 != 0 {
			x = -(x >> 7) & 255
		}
		r |= x << (8 * i)
	}
	return r
}

// prmtModes are the selectors of the special modes, by the low two bits of c.
var prmtModes = map[string][4]uint32{
	"f4e": {0x3210, 0x4321, 0x5432, 0x6543}, "b4e": {0x5670, 0x6701, 0x7012, 0x0123}, "rc8": {0x0000, 0x1111, 0x2222, 0x3333},
	"ecl": {0x3210, 0x3211, 0x3222, 0x3333}, "ecr": {0x0000, 0x1110, 0x2210, 0x3210}, "rc16": {0x1010, 0x3232, 0x1010, 0x3232},
}

func lowerPrmt(c *lowering) step {
	c.typ()
	mode := c.oneOf("f4e", "b4e", "rc8", "ecl", "ecr", "rc16")
	c.args(4, 4)
	d, a, b, s := c.dstT(0, "b32"), c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "b32")
	if mode != "" {
		table := prmtModes[mode]
		return tri32(d, a, b, s, func(a, b, s uint32) uint32 { return prmt(a, b, table[s&3]) })
	}
	return tri32(d, a, b, s, prmt)
}

func lowerBmsk(c *lowering) step {
	clampMode := c.oneOf("clamp", "wrap") == "clamp"
	c.typ()
	c.args(3, 3)
	return bin32(c.dstT(0, "b32"), c.srcT(1, "u32"), c.srcT(2, "u32"), func(a, b uint32) uint32 {
		if !clampMode {
			a, b = a&31, b&31
		}
		if a >= 32 {
			return 0
		}
		return uint32(uint64(1)<<min(b, 32)-1) << a
	})
}

func lowerSzext(c *lowering) step {
	clampMode := c.oneOf("clamp", "wrap") == "clamp"
	t := string(c.typ())
	c.args(3, 3)
	return bin32(c.dstT(0, t), c.srcT(1, t), c.srcT(2, "u32"), func(a, n uint32) uint32 {
		if !clampMode {
			n &= 31
		}
		if n >= 32 {
			return a
		}
		if n == 0 {
			return 0
		}
		if t[0] == 's' {
			return uint32(int32(a<<(32-n)) >> (32 - n))
		}
		return a & (1<<n - 1)
	})
}

// fns finds the n-th set bit from a base, upwards for a positive n and downwards for a negative one.
func lowerFns(c *lowering) step {
	c.typ()
	c.args(4, 4)
	return tri32(c.dstT(0, "b32"), c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "s32"), func(mask, base, off uint32) uint32 {
		n := int32(off)
		step := int32(1)
		switch {
		case n == 0:
			if mask>>base&1 != 0 {
				return base
			}
			return allLanes
		case n < 0:
			step, n = -1, -n
		}
		for i := int32(base); i >= 0 && i < 32; i += step {
			if mask>>i&1 != 0 {
				if n--; n == 0 {
					return uint32(i)
				}
			}
		}
		return allLanes
	})
}
