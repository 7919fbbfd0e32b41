package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"mov": lowerMov, "cvta": lowerCvta, "isspacep": lowerIsspacep})

// dynamic are special registers that change while a warp runs. Clocks count instructions: the simulator has no time.
var dynamic = map[string]func(w *warp) uint64{
	"%clock": (*warp).instructions, "%clock_hi": func(w *warp) uint64 { return w.instructions() >> 32 }, "%clock64": (*warp).instructions,
	"%globaltimer": (*warp).instructions, "%globaltimer_lo": (*warp).instructions,
	"%globaltimer_hi": func(w *warp) uint64 { return w.instructions() >> 32 },
}

func (w *warp) instructions() uint64 { return uint64(w.steps) }

func lowerMov(c *lowering) step {
	t := c.typ()
	c.args(2, 2)
	d, s := c.arg(0), c.arg(1)
	switch {
	case d.Kind == ptx.Vector:
		return c.unpack(d, s, t)
	case s.Kind == ptx.Vector:
		return c.pack(d, s, t)
	case t == "pred":
		p, q := c.dst(0, t), c.predSrc(1)
		return func(w *warp, m uint32) { w.setPred(p, m, w.pred(q)) }
	case s.Kind == ptx.Special && dynamic[s.Name] != nil:
		f, o := dynamic[s.Name], c.dst(0, t)
		return func(w *warp, m uint32) {
			for v := f(w); m != 0; m &= m - 1 {
				w.set(o, bits.TrailingZeros32(m), v)
			}
		}
	case s.Kind == ptx.Special && s.Name == "%activemask":
		return c.activemask(c.dst(0, t).slot)
	}
	if s.Kind == ptx.Special && c.anyDest(d, t).class == c64 {
		o := c.source(s, "u32")
		return mixed(c.anyDest(d, t), []operand{o}, func(v *[4]uint64) uint64 { return v[0] })
	}
	if classOf(t) == c64 {
		return copy64(c.dst(0, t).slot, c.src(1, t).slot)
	}
	return copy32(c.dst(0, t).slot, c.src(1, t).slot)
}

func copy32(d, a slot) step {
	return func(w *warp, m uint32) {
		x, y := w.in32(a), &w.r[d]
		if m == allLanes {
			*y = *x
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = x[i]
		}
	}
}

func copy64(d, a slot) step {
	return func(w *warp, m uint32) {
		x, y := w.in64(a), &w.q[d]
		if m == allLanes {
			*y = *x
			return
		}
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			y[i] = x[i]
		}
	}
}

// part is the width of one element of a packed move.
func (c *lowering) part(t ptx.Type, n int) int {
	w := t.Bits() / n
	if n < 1 || t.Bits()%n != 0 || w < 8 {
		c.failf("%d parts of .%s", n, t)
	}
	return w
}

func partType(width int) ptx.Type {
	return map[int]ptx.Type{8: "b8", 16: "b16", 32: "b32", 64: "b64"}[width]
}

// pack is mov.b32 d, {a, b}.
func (c *lowering) pack(d, s ptx.Operand, t ptx.Type) step {
	width := c.part(t, len(s.Elems))
	o := c.dest(d, t)
	var parts []operand
	for _, e := range s.Elems {
		parts = append(parts, c.source(e, partType(width)))
	}
	mask := uint64(1)<<width - 1
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			v := uint64(0)
			for k, p := range parts {
				v |= (w.lane(p, i) & mask) << (k * width)
			}
			w.set(o, i, v)
		}
	}
}

// unpack is mov.b32 {d, e}, a.
func (c *lowering) unpack(d, s ptx.Operand, t ptx.Type) step {
	width := c.part(t, len(d.Elems))
	a := c.source(s, t)
	var parts []operand
	for _, e := range d.Elems {
		parts = append(parts, c.dest(e, partType(width)))
	}
	mask := uint64(1)<<width - 1
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			v := w.lane(a, i)
			for k, p := range parts {
				w.set(p, i, v>>(k*width)&mask)
			}
		}
	}
}

// window is the generic window of a state space.
func window(space string) uint64 {
	switch space {
	case "shared", "shared::cta", "shared::cluster":
		return windowShared
	case "local":
		return windowLocal
	case "param", "param::entry":
		return windowParam
	}
	return 0
}

var spaces = []string{"global", "shared", "shared::cta", "shared::cluster", "local", "const", "param", "param::entry", "param::func"}

func lowerCvta(c *lowering) step {
	to := c.has("to")
	space := c.oneOf(spaces...)
	t := c.typ()
	if space == "" {
		c.failf("a state space is wanted")
	}
	c.args(2, 2)
	d, a := c.dst(0, t), c.src(1, t)
	win := window(space)
	if t != "u64" || win == 0 {
		if t == "u64" {
			return copy64(d.slot, a.slot)
		}
		return copy32(d.slot, a.slot)
	}
	if to {
		return un64(d.slot, a.slot, func(v uint64) uint64 { return v &^ windowMask })
	}
	return un64(d.slot, a.slot, func(v uint64) uint64 { return v | win })
}

func lowerIsspacep(c *lowering) step {
	space := c.oneOf(spaces...)
	c.args(2, 2)
	d, a := c.dst(0, "pred"), c.src(1, "u64")
	win := window(space)
	own := space == "shared::cta" || space == "shared"
	return func(w *warp, m uint32) {
		v := uint32(0)
		for i, x := range w.in64(a.slot) {
			hit := x&windowMask == win
			if own && hit {
				hit = uint32(x)>>sharedRank == w.b.rank
			}
			if hit {
				v |= 1 << i
			}
		}
		w.setPred(d, m, v)
	}
}
