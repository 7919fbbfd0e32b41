package sim

import (
	"strings"

	"github.com/kvloom/kvloom/runtime/sim/num"
)

var _ = register(map[string]func(c *lowering) step{"mma": lowerMma})

// element decodes matrix elements from 32-bit registers.
type element struct {
	bits  int
	float func(v uint32) float64 // nil for integers
	whole func(v uint32) int32
}

var elements = map[string]element{
	"f16":  {16, func(v uint32) float64 { return float64(num.Half(uint16(v))) }, nil},
	"bf16": {16, func(v uint32) float64 { return float64(num.BF16(uint16(v))) }, nil},
	"tf32": {32, func(v uint32) float64 { return float64(f32of(v &^ 0x1fff)) }, nil},
	"e4m3": {8, func(v uint32) float64 { return float64(num.E4M3(uint8(v))) }, nil},
	"e5m2": {8, func(v uint32) float64 { return float64(num.E5M2(uint8(v))) }, nil},
	"s8":   {8, nil, func(v uint32) int32 { return int32(int8(v)) }},
	"u8":   {8, nil, func(v uint32) int32 { return int32(uint8(v)) }},
	"s4":   {4, nil, func(v uint32) int32 { return int32(v<<28) >> 28 }},
	"u4":   {4, nil, func(v uint32) int32 { return int32(v & 15) }},
}

// shape of an mma: m is 16 and n is 8, except for the old m8n8k4.
type shape struct{ m, n, k int }

var shapes = map[string]shape{"m16n8k4": {16, 8, 4}, "m16n8k8": {16, 8, 8}, "m16n8k16": {16, 8, 16}, "m16n8k32": {16, 8, 32}, "m16n8k64": {16, 8, 64}}

// lowerMma is mma.sync.aligned.shape.row.col{.satfinite}.d.a.b.c d, a, b, c.
func lowerMma(c *lowering) step {
	if !c.has("sync") || !c.has("aligned") {
		c.failf("want mma.sync.aligned")
	}
	var s shape
	for name, v := range shapes {
		if c.has(name) {
			s = v
		}
	}
	if s.k == 0 {
		c.failf("no such shape is known")
	}
	if !c.has("row") || !c.has("col") {
		c.failf("want .row.col")
	}
	sat := c.has("satfinite")
	types := c.mods
	if len(types) != 4 {
		c.failf("want the types of d, a, b and c")
	}
	dt, at, bt, ct := types[0], types[1], types[2], types[3]
	c.mods = nil
	ea, okA := elements[at]
	eb, okB := elements[bt]
	if !okA || !okB || ea.bits != eb.bits || (ea.float == nil) != (eb.float == nil) || ea.bits*s.k > 256 || ea.bits*s.k < 128 {
		c.failf("no mma of .%s by .%s in this shape is known", at, bt)
	}
	c.args(4, 4)
	na, nb := s.m*s.k*ea.bits/32/32, s.k*s.n*eb.bits/32/32
	f := fragments{ea: ea, eb: eb, s: s, a: c.elements(c.arg(1), na, "b32", false), b: c.elements(c.arg(2), nb, "b32", false)}
	if ea.float == nil {
		if dt != "s32" || ct != "s32" {
			c.failf("integer products accumulate in .s32")
		}
		f.d, f.c = c.elements(c.arg(0), 4, "s32", true), c.elements(c.arg(3), 4, "s32", false)
		return f.integer(sat)
	}
	half := dt == "f16"
	if dt != ct || !half && dt != "f32" || half && strings.HasPrefix(at, "bf") {
		c.failf("accumulators of .%s and .%s are not known", dt, ct)
	}
	n := 4
	if half {
		n = 2
	}
	f.d, f.c = c.elements(c.arg(0), n, "b32", true), c.elements(c.arg(3), n, "b32", false)
	return f.floating(half, at == "bf16")
}

// fragments are the registers of an mma.
//
// With g = lane/4 and t = lane%4, and p elements in a register: register j of A holds row g + 8(j%2), columns p t .. p t + p-1,
// plus 4p for j >= 2. Register j of B holds column g, rows p t .. p t + p-1, plus 4p j. C and D hold row g + 8(i/2), columns
// 2t + i%2. This one rule gives every m16n8 layout of the ISA.
type fragments struct {
	ea, eb     element
	s          shape
	a, b, c, d []operand
}

// tile is an operand as rows of k elements: 16 rows of A, or 8 columns of B.
type tile[T float64 | int32] [16][64]T

// place is where register j of a fragment goes: added to the row and to the column.
func placeOf(j, p int, isA bool) (row, col int) {
	if isA {
		return 8 * (j & 1), 4 * p * (j >> 1)
	}
	return 0, 4 * p * j
}

func unpack[T float64 | int32](w *warp, regs []operand, width int, decode func(uint32) T, out *tile[T], isA bool) {
	p := 32 / width
	mask := uint32(1)<<(width-1)<<1 - 1
	for j, o := range regs {
		row, col := placeOf(j, p, isA)
		for l, v := range w.in32(o.slot) {
			r := out[(l>>2+row)&15][(p*(l&3)+col)&63:]
			for i := range p {
				r[i] = decode(v >> (i * width) & mask)
			}
		}
	}
}

// unpackPairs is unpack for 16-bit floats, without a call for each element.
func unpackPairs(w *warp, regs []operand, bf bool, out *tile[float64], isA bool) {
	for j, o := range regs {
		row, col := placeOf(j, 2, isA)
		for l, v := range w.in32(o.slot) {
			r := out[(l>>2+row)&15][(2*(l&3)+col)&62:]
			if bf {
				r[0], r[1] = float64(f32of(v<<16)), float64(f32of(v&0xffff0000))
			} else {
				r[0], r[1] = float64(num.Half(uint16(v))), float64(num.Half(uint16(v>>16)))
			}
		}
	}
}

// unpackBytes is unpack for 8-bit integers.
func unpackBytes(w *warp, regs []operand, signed bool, out *tile[int32], isA bool) {
	for j, o := range regs {
		row, col := placeOf(j, 4, isA)
		for l, v := range w.in32(o.slot) {
			r := out[(l>>2+row)&15][(4*(l&3)+col)&60:]
			if signed {
				r[0], r[1], r[2], r[3] = int32(int8(v)), int32(int8(v>>8)), int32(int8(v>>16)), int32(v)>>24
			} else {
				r[0], r[1], r[2], r[3] = int32(v&255), int32(v>>8&255), int32(v>>16&255), int32(v>>24)
			}
		}
	}
}

// dots are the products of one row with four columns: four chains of additions, so that none waits for the other.
func dots[T float64 | int32](a, b0, b1, b2, b3 []T) (s0, s1, s2, s3 T) {
	b0, b1, b2, b3 = b0[:len(a)], b1[:len(a)], b2[:len(a)], b3[:len(a)]
	for k, x := range a {
		s0 += x * b0[k]
		s1 += x * b1[k]
		s2 += x * b2[k]
		s3 += x * b3[k]
	}
	return
}

// matrixScratch holds the operands of the matrix instruction in flight, one for each unit: it is too large to clear each time.
type matrixScratch struct {
	fa, fb tile[float64]
	ia, ib tile[int32]
	fd     [4][32]float64
	id     [4][32]int32
}

// multiply writes the 16 x 8 product in the layout of the accumulator.
func multiply[T float64 | int32](a, b *tile[T], k int, d *[4][32]T) {
	for row := range 16 {
		x := a[row][:k]
		i, lane := row>>3*2, row&7*4
		lo, hi := d[i&3][lane&31:][:4], d[(i+1)&3][lane&31:][:4]
		lo[0], hi[0], lo[1], hi[1] = dots(x, b[0][:k], b[1][:k], b[2][:k], b[3][:k])
		lo[2], hi[2], lo[3], hi[3] = dots(x, b[4][:k], b[5][:k], b[6][:k], b[7][:k])
	}
}

func (f fragments) integer(sat bool) step {
	decode := func(w *warp, regs []operand, e element, out *tile[int32], isA bool) {
		unpack(w, regs, e.bits, e.whole, out, isA)
	}
	if f.ea.bits == 8 {
		decode = func(w *warp, regs []operand, e element, out *tile[int32], isA bool) {
			unpackBytes(w, regs, e.whole(255) < 0, out, isA)
		}
	}
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		w.tensorOps(f.s.m * f.s.n * f.s.k)
		x := &w.b.unit.matrix
		decode(w, f.a, f.ea, &x.ia, true)
		decode(w, f.b, f.eb, &x.ib, false)
		multiply(&x.ia, &x.ib, f.s.k, &x.id)
		for i, d := range f.d {
			sum, c, y := &x.id[i&3], w.in32(f.c[i].slot), &w.r[d.slot]
			for l := range y {
				// k products of at most 2^14 and the old sum overflow 32 bits only in the last addition.
				if sat {
					y[l] = clamp32(int64(int32(c[l])) + int64(sum[l]))
				} else {
					y[l] = c[l] + uint32(sum[l])
				}
			}
		}
	}
}

// floating sums the products of one step in double and rounds once: the ISA leaves the order and the inner precision open.
func (f fragments) floating(half, bf bool) step {
	decode := func(w *warp, regs []operand, e element, out *tile[float64], isA bool) {
		unpack(w, regs, e.bits, e.float, out, isA)
	}
	if f.ea.bits == 16 {
		decode = func(w *warp, regs []operand, e element, out *tile[float64], isA bool) {
			unpackPairs(w, regs, bf, out, isA)
		}
	}
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		w.tensorOps(f.s.m * f.s.n * f.s.k)
		x := &w.b.unit.matrix
		decode(w, f.a, f.ea, &x.fa, true)
		decode(w, f.b, f.eb, &x.fb, false)
		multiply(&x.fa, &x.fb, f.s.k, &x.fd)
		if half {
			f.storeHalf(w, &x.fd)
			return
		}
		for i, d := range f.d {
			sum, c, y := &x.fd[i&3], w.in32(f.c[i].slot), &w.r[d.slot]
			for l := range y {
				v := float32(sum[l] + float64(f32of(c[l])))
				if v != v {
					y[l] = num.NaN32
				} else {
					y[l] = bits32(v)
				}
			}
		}
	}
}

// storeHalf adds to f16 accumulators, two in a register.
func (f fragments) storeHalf(w *warp, sums *[4][32]float64) {
	for j, d := range f.d {
		lo, hi, c, y := &sums[2*j&3], &sums[(2*j+1)&3], w.in32(f.c[j].slot), &w.r[d.slot]
		for l := range y {
			a, b := float64(num.Half(uint16(c[l]))), float64(num.Half(uint16(c[l]>>16)))
			y[l] = uint32(num.ToHalf(lo[l]+a, num.RN)) | uint32(num.ToHalf(hi[l]+b, num.RN))<<16
		}
	}
}
