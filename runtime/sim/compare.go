package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"setp": lowerSetp, "set": lowerSet, "selp": lowerSelp, "slct": lowerSlct})

var comparisons = []string{"eq", "ne", "lt", "le", "gt", "ge", "lo", "ls", "hi", "hs", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"}

// order is the result of comparing two numbers.
type order uint8

const (
	less order = 1 << iota
	equal
	greater
	unordered
)

// accepts is the set of orders for which a comparison holds.
var accepts = map[string]order{
	"eq": equal, "ne": less | greater, "lt": less, "le": less | equal, "gt": greater, "ge": greater | equal,
	"lo": less, "ls": less | equal, "hi": greater, "hs": greater | equal,
	"equ": equal | unordered, "neu": less | greater | unordered, "ltu": less | unordered, "leu": less | equal | unordered,
	"gtu": greater | unordered, "geu": greater | equal | unordered, "num": less | equal | greater, "nan": unordered,
}

func orderOf[T int32 | uint32 | int64 | uint64 | float32 | float64](a, b T) order {
	switch {
	case a < b:
		return less
	case a > b:
		return greater
	case a == b:
		return equal
	}
	return unordered
}

// comparer returns the comparison of two lanes as a mask.
func (c *lowering) comparer(cmp string, t ptx.Type, ftz bool, a, b operand) func(w *warp) uint32 {
	set := accepts[cmp]
	switch t {
	case "s32", "u32", "b32", "f32":
		if f := hotCompare(set, t, ftz, a.slot, b.slot); f != nil {
			return f
		}
	case "s64", "u64", "b64":
		return hotCompare64(set, t == "s64", a.slot, b.slot)
	}
	var ord func(x, y uint64) order
	switch t {
	case "s16":
		ord = func(x, y uint64) order { return orderOf(int32(int16(x)), int32(int16(y))) }
	case "u16", "b16":
		ord = func(x, y uint64) order { return orderOf(x&0xffff, y&0xffff) }
	case "f64":
		ord = func(x, y uint64) order { return orderOf(f64of(x), f64of(y)) }
	case "f16", "bf16":
		h := c.half(string(t))
		ord = func(x, y uint64) order { return orderOf(h.load(uint32(x), ftz), h.load(uint32(y), ftz)) }
	default:
		c.failf("no comparison of .%s is known", t)
	}
	return func(w *warp) uint32 {
		r := uint32(0)
		for i := range 32 {
			if ord(w.lane(a, i), w.lane(b, i))&set != 0 {
				r |= 1 << i
			}
		}
		return r
	}
}

func hotCompare(set order, t ptx.Type, ftz bool, a, b slot) func(w *warp) uint32 {
	switch t {
	case "f32":
		return func(w *warp) uint32 {
			x, y := w.in32(a), w.in32(b)
			if ftz {
				var u, v vec32
				for i := range u {
					u[i], v[i] = flush(x[i]), flush(y[i])
				}
				return hotFloatCompare(set, &u, &v)
			}
			return hotFloatCompare(set, x, y)
		}
	case "s32":
		return func(w *warp) uint32 { return signedMask(set, w.in32(a), w.in32(b)) }
	}
	return func(w *warp) uint32 { return unsignedMask(set, w.in32(a), w.in32(b)) }
}

// signedMask and unsignedMask compute "less" and "equal" as bits, without branches.
func signedMask(set order, x, y *vec32) uint32 {
	var lt, eq uint32
	for i := range x {
		a, b := int64(int32(x[i])), int64(int32(y[i]))
		lt |= uint32(uint64(a-b)>>63) << i
		eq |= uint32((uint64(x[i]^y[i])-1)>>63) << i
	}
	return orderMask(set, lt, eq)
}

func unsignedMask(set order, x, y *vec32) uint32 {
	var lt, eq uint32
	for i := range x {
		a, b := int64(x[i]), int64(y[i])
		lt |= uint32(uint64(a-b)>>63) << i
		eq |= uint32((uint64(x[i]^y[i])-1)>>63) << i
	}
	return orderMask(set, lt, eq)
}

func orderMask(set order, lt, eq uint32) uint32 {
	r := uint32(0)
	if set&less != 0 {
		r |= lt
	}
	if set&equal != 0 {
		r |= eq
	}
	if set&greater != 0 {
		r |= ^(lt | eq)
	}
	return r
}

func hotCompare64(set order, signed bool, a, b slot) func(w *warp) uint32 {
	return func(w *warp) uint32 {
		x, y := w.in64(a), w.in64(b)
		var lt, eq uint32
		for i := range x {
			if x[i] == y[i] {
				eq |= 1 << i
			} else if signed && int64(x[i]) < int64(y[i]) || !signed && x[i] < y[i] {
				lt |= 1 << i
			}
		}
		return orderMask(set, lt, eq)
	}
}

func lowerSetp(c *lowering) step {
	cmp := c.oneOf(comparisons...)
	boolean := c.oneOf("and", "or", "xor")
	ftz := c.has("ftz")
	t := c.typ()
	if accepts[cmp] == 0 {
		c.failf("a comparison is wanted")
	}
	if t == "f16x2" || t == "bf16x2" {
		return c.setpPair(cmp, boolean, ftz, string(t))
	}
	p, q := c.predPair()
	f := c.comparer(cmp, t, ftz, c.src(1, t), c.src(2, t))
	if boolean == "" {
		c.args(3, 3)
		return func(w *warp, m uint32) {
			v := f(w)
			w.setPred(p, m, v)
			w.setPred(q, m, ^v)
		}
	}
	c.args(4, 4)
	r := c.predSrc(3)
	return func(w *warp, m uint32) {
		v, x := f(w), w.pred(r)
		w.setPred(p, m, combine(boolean, v, x))
		w.setPred(q, m, combine(boolean, ^v, x))
	}
}

// predPair lowers the result p or p|q.
func (c *lowering) predPair() (p, q operand) {
	q = operand{class: cPred, sink: true}
	if o := c.arg(0); o.Kind == ptx.Pair {
		return c.dest(o.Elems[0], "pred"), c.dest(o.Elems[1], "pred")
	}
	return c.dst(0, "pred"), q
}

func combine(op string, a, b uint32) uint32 {
	switch op {
	case "and":
		return a & b
	case "or":
		return a | b
	case "xor":
		return a ^ b
	}
	return a
}

// setpPair compares packed halves: p for the low ones, q for the high ones.
func (c *lowering) setpPair(cmp, boolean string, ftz bool, t string) step {
	p, q := c.predPair()
	h, set := c.half(t), accepts[cmp]
	a, b := c.srcT(1, t), c.srcT(2, t)
	r := operand{class: cPred, slot: predFalse}
	if boolean != "" {
		r = c.predSrc(3)
	}
	return func(w *warp, m uint32) {
		x, y := w.in32(a), w.in32(b)
		var lo, hi uint32
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			if orderOf(h.load(x[i]&0xffff, ftz), h.load(y[i]&0xffff, ftz))&set != 0 {
				lo |= 1 << i
			}
			if orderOf(h.load(x[i]>>16, ftz), h.load(y[i]>>16, ftz))&set != 0 {
				hi |= 1 << i
			}
		}
		v := w.pred(r)
		w.setPred(p, m, combine(boolean, lo, v))
		w.setPred(q, m, combine(boolean, hi, v))
	}
}

func lowerSet(c *lowering) step {
	cmp := c.oneOf(comparisons...)
	boolean := c.oneOf("and", "or", "xor")
	ftz := c.has("ftz")
	dt, t := c.typ(), c.typ()
	if t == "f16x2" || t == "bf16x2" {
		return c.setPairValue(cmp, boolean, ftz, string(dt), string(t))
	}
	d := c.dst(0, dt)
	f := c.comparer(cmp, t, ftz, c.src(1, t), c.src(2, t))
	r := operand{class: cPred, slot: predFalse}
	if boolean != "" {
		r = c.predSrc(3)
	}
	yes := map[ptx.Type]uint64{"f32": 0x3f800000, "f16": 0x3c00, "bf16": 0x3f80, "u16": 0xffff, "s16": 0xffff, "u32": uint64(allLanes), "s32": uint64(allLanes)}[dt]
	if yes == 0 {
		c.failf("no .%s result is known", dt)
	}
	return func(w *warp, m uint32) {
		v := combine(boolean, f(w), w.pred(r))
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			x := uint64(0)
			if v>>i&1 != 0 {
				x = yes
			}
			w.set(d, i, x)
		}
	}
}

// setPairValue compares packed halves into packed results: all ones or 1.0 in each half.
func (c *lowering) setPairValue(cmp, boolean string, ftz bool, dt, t string) step {
	h, set := c.half(t), accepts[cmp]
	one := map[string]uint32{"f16x2": 0x3c00, "bf16x2": 0x3f80, "u32": 0xffff, "s32": 0xffff, "u16x2": 0xffff, "s16x2": 0xffff}[dt]
	if one == 0 {
		c.failf("no .%s result is known", dt)
	}
	d, a, b := c.dstT(0, "b32"), c.srcT(1, t), c.srcT(2, t)
	r := operand{class: cPred, slot: predFalse}
	if boolean != "" {
		r = c.predSrc(3)
	}
	return func(w *warp, m uint32) {
		x, y, z := w.in32(a), w.in32(b), w.pred(r)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			var v uint32
			for s := 0; s < 32; s += 16 {
				hit := uint32(0)
				if orderOf(h.load(x[i]>>s&0xffff, ftz), h.load(y[i]>>s&0xffff, ftz))&set != 0 {
					hit = 1
				}
				if combine(boolean, hit, z>>i&1)&1 != 0 {
					v |= one << s
				}
			}
			w.r[d][i] = v
		}
	}
}

func lowerSelp(c *lowering) step {
	t := c.typ()
	c.args(4, 4)
	p := c.predSrc(3)
	if classOf(t) == c64 {
		d, a, b := c.dst(0, t).slot, c.src(1, t).slot, c.src(2, t).slot
		return func(w *warp, m uint32) {
			x, y, z, v := w.in64(a), w.in64(b), &w.q[d], w.pred(p)
			for ; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m) & 31
				if v>>i&1 != 0 {
					z[i] = x[i]
				} else {
					z[i] = y[i]
				}
			}
		}
	}
	d, a, b := c.dst(0, t).slot, c.src(1, t).slot, c.src(2, t).slot
	return func(w *warp, m uint32) {
		x, y, z, v := w.in32(a), w.in32(b), &w.r[d], w.pred(p)
		if m == allLanes {
			for i := range z {
				k := -(v >> i & 1)
				z[i] = x[i]&k | y[i]&^k
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			k := -(v >> i & 1)
			z[i] = x[i]&k | y[i]&^k
		}
	}
}

// lowerSlct is d = c >= 0 ? a : b.
func lowerSlct(c *lowering) step {
	ftz := c.has("ftz")
	t, ct := c.typ(), c.typ()
	c.args(4, 4)
	d, ops := c.dst(0, t), []operand{c.src(1, t), c.src(2, t), c.src(3, ct)}
	return mixed(d, ops, func(v *[4]uint64) uint64 {
		ok := int32(v[2]) >= 0
		if ct == "f32" {
			x := uint32(v[2])
			if ftz {
				x = flush(x)
			}
			ok = f32of(x) >= 0
		}
		if ok {
			return v[0]
		}
		return v[1]
	})
}
