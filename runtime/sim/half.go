package sim

import (
	"github.com/kvloom/kvloom/runtime/sim/num"
)

// halfKind tells f16 from bf16, and packed pairs from single values.
type halfKind struct {
	bf, pair bool
	value    func(uint16) float32
	round    func(x, e float64, mode num.Mode) uint16
}

func halfOf(t string) (halfKind, bool) {
	switch t {
	case "f16", "f16x2":
		return halfKind{false, t == "f16x2", num.Half, num.ToHalfExact}, true
	case "bf16", "bf16x2":
		return halfKind{true, t == "bf16x2", num.BF16, num.ToBF16Exact}, true
	}
	return halfKind{}, false
}

func (c *lowering) half(t string) halfKind {
	h, ok := halfOf(t)
	if !ok {
		c.failf("no .%s form is known", t)
	}
	return h
}

func flush16(h halfKind, v uint16) uint16 {
	exp := uint16(0x7c00)
	if h.bf {
		exp = 0x7f80
	}
	if v&exp == 0 {
		return v & 0x8000
	}
	return v
}

// smallBin lowers add, sub and mul of 16-bit floats: exact in double, rounded once.
func (c *lowering) smallBin(op, t string, ftz, sat bool) step {
	h := c.half(t)
	one := func(a, b uint32) uint32 {
		x, y := h.load(a, ftz), h.load(b, ftz)
		var s, e float64
		switch op {
		case "add":
			s, e = num.TwoSum64(x, y)
		case "sub":
			s, e = num.TwoSum64(x, -y)
		default:
			s = x * y
		}
		return uint32(h.store(s, e, ftz, sat))
	}
	if h.pair {
		one = pair16(one)
	}
	return c.bin(t, one, nil)
}

func (h halfKind) load(v uint32, ftz bool) float64 {
	b := uint16(v)
	if ftz {
		b = flush16(h, b)
	}
	return float64(h.value(b))
}

func (h halfKind) store(s, e float64, ftz, sat bool) uint16 {
	if e != e {
		e = 0
	}
	if sat {
		switch {
		case !(s > 0):
			s, e = 0, 0
		case s >= 1:
			s, e = 1, 0
		}
	}
	r := h.round(s, e, num.RN)
	if ftz {
		r = flush16(h, r)
	}
	return r
}

func (c *lowering) smallFMA(t string, ftz, sat, relu bool) step {
	h := c.half(t)
	one := func(a, b, d uint32) uint32 {
		p := h.load(a, ftz) * h.load(b, ftz)
		s, e := num.TwoSum64(p, h.load(d, ftz))
		if relu && !(s > 0) && s == s {
			s, e = 0, 0
		}
		return uint32(h.store(s, e, ftz, sat))
	}
	if h.pair {
		single := one
		one = func(a, b, d uint32) uint32 {
			return single(a&0xffff, b&0xffff, d&0xffff) | single(a>>16, b>>16, d>>16)<<16
		}
	}
	return c.tri(t, one, nil)
}

func (c *lowering) smallMinMax(t string, larger, ftz, nan, xorsign bool) step {
	h := c.half(t)
	f := num.Min
	if larger {
		f = num.Max
	}
	one := func(a, b uint32) uint32 {
		sign := (a ^ b) & 0x8000
		if xorsign {
			a, b = a&0x7fff, b&0x7fff
		}
		x, y := float32(h.load(a, ftz)), float32(h.load(b, ftz))
		if nan && (x != x || y != y) || x != x && y != y {
			return 0x7fff
		}
		r := uint32(h.store(float64(f(x, y)), 0, ftz, false))
		if xorsign {
			r |= sign
		}
		return r
	}
	if h.pair {
		one = pair16(one)
	}
	return c.bin(t, one, nil)
}

func (c *lowering) smallUn(t string, ftz bool, f func(float64) float64) step {
	h := c.half(t)
	one := func(a uint32) uint32 { return uint32(h.store(f(h.load(a, ftz)), 0, ftz, false)) }
	if h.pair {
		single := one
		one = func(a uint32) uint32 { return single(a&0xffff) | single(a>>16)<<16 }
	}
	return c.un(t, one, nil)
}
