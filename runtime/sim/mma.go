package sim

import (
	"strings"

	"github.com/kvloom/kvloom/runtime/sim/num"
)

var _ = register(map[string]func(c *lowering) step{"mma": lowerMma})

// element decodes matrix elements from 32-bit registers.
type element struct {
	bits  int
	float func(v uint32) float32 // nil for integers
	whole func(v uint32) int32
}

var elements = map[string]element{
	"f16":  {16, func(v uint32) float32 { return num.Half(uint16(v)) }, nil},
	"bf16": {16, func(v uint32) float32 { return num.BF16(uint16(v)) }, nil},
	"tf32": {32, func(v uint32) float32 { return f32of(v &^ 0x1fff) }, nil},
	"e4m3": {8, func(v uint32) float32 { return num.E4M3(uint8(v)) }, nil},
	"e5m2": {8, func(v uint32) float32 { return num.E5M2(uint8(v)) }, nil},
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
	return f.floating(half)
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

// unpack decodes one operand into rows of length k. rows is 16 for A and 8 for B.
func unpackFloat(w *warp, regs []operand, e element, k int, out *[16][64]float32, isA bool) {
	p := 32 / e.bits
	mask := uint32(1)<<(e.bits-1)<<1 - 1
	for j, o := range regs {
		row, col := 0, 4*p*j
		if isA {
			row, col = 8*(j&1), 4*p*(j>>1)
		}
		x := w.in32(o.slot)
		for l, v := range x {
			r := &out[(l>>2+row)&15]
			at := p*(l&3) + col
			for i := range p {
				r[(at+i)&63] = e.float(v >> (i * e.bits) & mask)
			}
		}
	}
}

func unpackWhole(w *warp, regs []operand, e element, k int, out *[16][64]int32, isA bool) {
	p := 32 / e.bits
	for j, o := range regs {
		row, col := 0, 4*p*j
		if isA {
			row, col = 8*(j&1), 4*p*(j>>1)
		}
		x := w.in32(o.slot)
		for l, v := range x {
			r := &out[(l>>2+row)&15]
			at := p*(l&3) + col
			for i := range p {
				r[(at+i)&63] = e.whole(v >> (i * e.bits))
			}
		}
	}
}

func (f fragments) integer(sat bool) step {
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		w.tensorOps(f.s.m * f.s.n * f.s.k)
		var a, b [16][64]int32
		unpackWhole(w, f.a, f.ea, f.s.k, &a, true)
		unpackWhole(w, f.b, f.eb, f.s.k, &b, false)
		var out [4]vec32
		for i := range out {
			x := w.in32(f.c[i].slot)
			for l := range x {
				ra, rb := &a[l>>2+8*(i>>1)], &b[2*(l&3)+i&1]
				sum := int64(0)
				for k := range f.s.k {
					sum += int64(ra[k] * rb[k])
				}
				total := int64(int32(x[l])) + sum
				if sat {
					out[i][l] = clamp32(total)
				} else {
					out[i][l] = uint32(total)
				}
			}
		}
		for i := range out {
			w.r[f.d[i].slot] = out[i]
		}
	}
}

// floating sums the products of one step in double and rounds once: the ISA leaves the order and the inner precision open.
func (f fragments) floating(half bool) step {
	return func(w *warp, m uint32) {
		if !w.full(m) {
			return
		}
		w.tensorOps(f.s.m * f.s.n * f.s.k)
		var a, b [16][64]float32
		unpackFloat(w, f.a, f.ea, f.s.k, &a, true)
		unpackFloat(w, f.b, f.eb, f.s.k, &b, false)
		var out [4]vec32
		for i := range out {
			for l := range 32 {
				ra, rb := &a[l>>2+8*(i>>1)], &b[2*(l&3)+i&1]
				sum := f.start(w, i, l, half)
				for k := range f.s.k {
					sum += float64(ra[k]) * float64(rb[k])
				}
				if half {
					out[i>>1][l] |= uint32(num.ToHalf(sum, num.RN)) << (16 * (i & 1))
				} else {
					out[i][l] = bits32(num.Canon(float32(sum)))
				}
			}
		}
		for i, d := range f.d {
			w.r[d.slot] = out[i]
		}
	}
}

// start is the accumulator's element i of a lane.
func (f fragments) start(w *warp, i, l int, half bool) float64 {
	if half {
		return float64(num.Half(uint16(w.in32(f.c[i>>1].slot)[l] >> (16 * (i & 1)))))
	}
	return float64(f32of(w.in32(f.c[i].slot)[l]))
}
