package sim

import "math/bits"

// The step constructors below run a scalar function over the lanes of a warp. Operations that profiles show hot have loops of
// their own (hot.go); the rest go through these.

func un32(d, a slot, f func(uint32) uint32) step {
	return func(w *warp, m uint32) {
		x, y := w.in32(a), &w.r[d]
		if m == allLanes {
			for i := range y {
				y[i] = f(x[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f(x[i])
		}
	}
}

func bin32(d, a, b slot, f func(a, b uint32) uint32) step {
	return func(w *warp, m uint32) {
		x, z, y := w.in32(a), w.in32(b), &w.r[d]
		if m == allLanes {
			for i := range y {
				y[i] = f(x[i], z[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f(x[i], z[i])
		}
	}
}

func tri32(d, a, b, c slot, f func(a, b, c uint32) uint32) step {
	return func(w *warp, m uint32) {
		x, z, u, y := w.in32(a), w.in32(b), w.in32(c), &w.r[d]
		if m == allLanes {
			for i := range y {
				y[i] = f(x[i], z[i], u[i])
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f(x[i], z[i], u[i])
		}
	}
}

func un64(d, a slot, f func(uint64) uint64) step {
	return func(w *warp, m uint32) {
		x, y := w.in64(a), &w.q[d]
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f(x[i])
		}
	}
}

func bin64(d, a, b slot, f func(a, b uint64) uint64) step {
	return func(w *warp, m uint32) {
		x, z, y := w.in64(a), w.in64(b), &w.q[d]
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f(x[i], z[i])
		}
	}
}

func tri64(d, a, b, c slot, f func(a, b, c uint64) uint64) step {
	return func(w *warp, m uint32) {
		x, z, u, y := w.in64(a), w.in64(b), w.in64(c), &w.q[d]
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = f(x[i], z[i], u[i])
		}
	}
}

// mixed runs a function of up to three operands of any class.
func mixed(d operand, a []operand, f func(v *[4]uint64) uint64) step {
	return func(w *warp, m uint32) {
		var v [4]uint64
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			for k, o := range a {
				v[k] = w.lane(o, i)
			}
			w.set(d, i, f(&v))
		}
	}
}

// wide reports the 64-bit class.
func wide(t string) bool { return t == "u64" || t == "s64" || t == "b64" || t == "f64" }

// bin lowers "op.type d, a, b" with scalar functions of 32 and 64 bits.
func (c *lowering) bin(t string, f32 func(a, b uint32) uint32, f64 func(a, b uint64) uint64) step {
	c.args(3, 3)
	d, a, b := c.dstT(0, t), c.srcT(1, t), c.srcT(2, t)
	if wide(t) {
		if f64 == nil {
			c.failf("no .%s form is known", t)
		}
		return bin64(d, a, b, f64)
	}
	if f32 == nil {
		c.failf("no .%s form is known", t)
	}
	return bin32(d, a, b, f32)
}

func (c *lowering) un(t string, f32 func(a uint32) uint32, f64 func(a uint64) uint64) step {
	c.args(2, 2)
	d, a := c.dstT(0, t), c.srcT(1, t)
	if wide(t) {
		if f64 == nil {
			c.failf("no .%s form is known", t)
		}
		return un64(d, a, f64)
	}
	if f32 == nil {
		c.failf("no .%s form is known", t)
	}
	return un32(d, a, f32)
}

func (c *lowering) tri(t string, f32 func(a, b, c uint32) uint32, f64 func(a, b, c uint64) uint64) step {
	c.args(4, 4)
	d, x, y, z := c.dstT(0, t), c.srcT(1, t), c.srcT(2, t), c.srcT(3, t)
	if wide(t) {
		if f64 == nil {
			c.failf("no .%s form is known", t)
		}
		return tri64(d, x, y, z, f64)
	}
	if f32 == nil {
		c.failf("no .%s form is known", t)
	}
	return tri32(d, x, y, z, f32)
}
