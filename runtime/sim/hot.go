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

// hotFloat is add, sub or mul of singles, rounded to nearest.
func hotFloat(op string, ftz bool, d, a, b slot) step {
	var f func(x, y float32) float32
	switch op {
	case "add":
		f = func(x, y float32) float32 { return x + y }
	case "sub":
		f = func(x, y float32) float32 { return x - y }
	default:
		f = func(x, y float32) float32 { return x * y }
	}
	return bin32(d, a, b, func(x, y uint32) uint32 {
		if ftz {
			x, y = flush(x), flush(y)
		}
		r := f(f32of(x), f32of(y))
		if r != r {
			return num.NaN32
		}
		if v := bits32(r); !ftz {
			return v
		} else {
			return flush(v)
		}
	})
}

// hotFMA is the fused multiply-add of singles, rounded to nearest.
func hotFMA(ftz bool, d, a, b, e slot) step {
	return tri32(d, a, b, e, func(x, y, z uint32) uint32 {
		if ftz {
			return flush(bits32(num.FMA(f32of(flush(x)), f32of(flush(y)), f32of(flush(z)))))
		}
		return bits32(num.FMA(f32of(x), f32of(y), f32of(z)))
	})
}
