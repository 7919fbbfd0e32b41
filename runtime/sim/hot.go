package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/num"
)

// Loops of the operations that profiles show hot: a call per lane would cost more than the operation.

func hotAdd(d, a, b slot) step {
	return func(w *warp, m uint32) {
		x, z, y := w.in32(a), w.in32(b), &w.r[d]
		if m == allLanes {
			for i := range y {
				y[i] = x[i] + z[i]
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = x[i] + z[i]
		}
	}
}

// canon is the bits of a result, with the canonical NaN.
func canon(r float32) uint32 {
	if r != r {
		return num.NaN32
	}
	return bits32(r)
}

// hotFloat is add, sub or mul of singles, rounded to nearest.
func hotFloat(op string, ftz bool, d, a, b slot) step {
	if ftz {
		return flushedFloat(op, d, a, b)
	}
	var full func(y, x, z *vec32)
	one := func(x, z float32) float32 { return x + z }
	switch op {
	case "add":
		full = func(y, x, z *vec32) {
			for i := range y {
				y[i] = canon(f32of(x[i]) + f32of(z[i]))
			}
		}
	case "sub":
		one = func(x, z float32) float32 { return x - z }
		full = func(y, x, z *vec32) {
			for i := range y {
				y[i] = canon(f32of(x[i]) - f32of(z[i]))
			}
		}
	default:
		one = func(x, z float32) float32 { return x * z }
		full = func(y, x, z *vec32) {
			for i := range y {
				y[i] = canon(f32of(x[i]) * f32of(z[i]))
			}
		}
	}
	return func(w *warp, m uint32) {
		x, z, y := w.in32(a), w.in32(b), &w.r[d]
		if m == allLanes {
			full(y, x, z)
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = canon(one(f32of(x[i]), f32of(z[i])))
		}
	}
}

func flushedFloat(op string, d, a, b slot) step {
	f := func(x, y float32) float32 { return x * y }
	switch op {
	case "add":
		f = func(x, y float32) float32 { return x + y }
	case "sub":
		f = func(x, y float32) float32 { return x - y }
	}
	return bin32(d, a, b, func(x, y uint32) uint32 { return flush(canon(f(f32of(flush(x)), f32of(flush(y))))) })
}

// hotFMA is the fused multiply-add of singles, rounded to nearest. The sum in double is right unless it is a midpoint between two
// singles or near the subnormals; see num.FMA, which settles those.
func hotFMA(ftz bool, d, a, b, e slot) step {
	if ftz {
		return tri32(d, a, b, e, func(x, y, z uint32) uint32 {
			return flush(bits32(num.FMA(f32of(flush(x)), f32of(flush(y)), f32of(flush(z)))))
		})
	}
	return func(w *warp, m uint32) {
		x, z, u, y := w.in32(a), w.in32(b), w.in32(e), &w.r[d]
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			s := float64(float64(f32of(x[i]))*float64(f32of(z[i]))) + float64(f32of(u[i]))
			v := bits64(s)
			if exp := v >> 52 & 0x7ff; v&0x1fffffff != 0x10000000 && exp > 1023-126 && exp < 0x7ff {
				y[i] = bits32(float32(s))
			} else {
				y[i] = bits32(num.FMA(f32of(x[i]), f32of(z[i]), f32of(u[i])))
			}
		}
	}
}

// hotAdd64 is address arithmetic.
func hotAdd64(d, a, b slot) step {
	return func(w *warp, m uint32) {
		x, z, y := w.in64(a), w.in64(b), &w.q[d]
		if m == allLanes {
			for i := range y {
				y[i] = x[i] + z[i]
			}
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = x[i] + z[i]
		}
	}
}

// hotLogic is and, or and xor of words.
func hotLogic(op string, d, a, b slot) step {
	full := func(y, x, z *vec32) {
		for i := range y {
			y[i] = x[i] & z[i]
		}
	}
	switch op {
	case "or":
		full = func(y, x, z *vec32) {
			for i := range y {
				y[i] = x[i] | z[i]
			}
		}
	case "xor":
		full = func(y, x, z *vec32) {
			for i := range y {
				y[i] = x[i] ^ z[i]
			}
		}
	}
	return masked(full, d, a, b)
}

// masked runs a loop over all lanes, and keeps only those of the mask where not all are running: cheaper than a call for each lane.
func masked(full func(y, x, z *vec32), d, a, b slot) step {
	return func(w *warp, m uint32) {
		x, z, y := w.in32(a), w.in32(b), &w.r[d]
		if m == allLanes {
			full(y, x, z)
			return
		}
		var t vec32
		full(&t, x, z)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = t[i]
		}
	}
}

// hotShift is shl and shr of words; amounts of 32 and more clear the word, or leave its sign.
func hotShift(t string, left bool, d, a, b slot) step {
	switch {
	case left:
		return masked(func(y, x, z *vec32) {
			for i := range y {
				y[i] = x[i] << z[i]
			}
		}, d, a, b)
	case t == "s32":
		return masked(func(y, x, z *vec32) {
			for i := range y {
				y[i] = uint32(int32(x[i]) >> z[i])
			}
		}, d, a, b)
	}
	return masked(func(y, x, z *vec32) {
		for i := range y {
			y[i] = x[i] >> z[i]
		}
	}, d, a, b)
}

// hotFloatCompare compares singles in full: a bit for each lane.
func hotFloatCompare(set order, x, y *vec32) uint32 {
	var lt, eq, gt uint32
	for i := range x {
		a, b := f32of(x[i]), f32of(y[i])
		var l, e, g uint32
		if a < b {
			l = 1
		}
		if a == b {
			e = 1
		}
		if a > b {
			g = 1
		}
		lt |= l << i
		eq |= e << i
		gt |= g << i
	}
	r := uint32(0)
	if set&less != 0 {
		r |= lt
	}
	if set&equal != 0 {
		r |= eq
	}
	if set&greater != 0 {
		r |= gt
	}
	if set&unordered != 0 {
		r |= ^(lt | eq | gt)
	}
	return r
}
