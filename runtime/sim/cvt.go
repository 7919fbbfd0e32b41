package sim

import (
	"math"
	"math/bits"
	"slices"

	"github.com/kvloom/kvloom/runtime/sim/num"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"cvt": lowerCvt})

// conversion holds the modifiers of one cvt.
type conversion struct {
	mode       num.Mode
	whole      bool // rni, rzi, rmi, rpi
	ftz        bool
	sat        bool
	finite     bool
	relu       bool
	dst, src   ptx.Type
	fromFloat  bool
	toFloat    bool
	srcW, dstW int
}

func lowerCvt(c *lowering) step {
	if c.has("pack") {
		return c.cvtPack()
	}
	v := conversion{}
	if r := c.oneOf("rni", "rzi", "rmi", "rpi"); r != "" {
		v.whole = true
		v.mode = map[string]num.Mode{"rni": num.RN, "rzi": num.RZ, "rmi": num.RM, "rpi": num.RP}[r]
	} else {
		v.mode = c.rounding()
	}
	v.ftz, v.sat, v.finite, v.relu = c.has("ftz"), c.has("sat"), c.has("satfinite"), c.has("relu")
	v.dst, v.src = c.typ(), c.typ()
	switch v.dst {
	case "f16x2", "bf16x2", "e4m3x2", "e5m2x2":
		return c.cvtPair(v)
	case "tf32":
		return c.cvtTF32(v)
	}
	v.fromFloat, v.toFloat = isFloat(string(v.src)), isFloat(string(v.dst))
	v.srcW, v.dstW = v.src.Bits(), v.dst.Bits()
	c.args(2, 2)
	d, a := c.anyDest(c.arg(0), v.dst), c.any(c.arg(1), v.src)
	if f := v.fast(d, a); f != nil {
		return f
	}
	f := c.converter(v)
	ext := v.extend(d)
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			w.set(d, i, ext(f(w.lane(a, i))))
		}
	}
}

// fast handles the conversions that address arithmetic and quantised data need often.
func (v conversion) fast(d, a operand) step {
	if v.sat {
		return nil
	}
	s, t := a.slot, d.slot
	switch {
	case v.src == "u32" && (v.dst == "u64" || v.dst == "s64") && a.class == c32 && d.class == c64:
		return func(w *warp, m uint32) {
			x, y := w.in32(s), &w.q[t]
			for ; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m) & 31
				y[i] = uint64(x[i])
			}
		}
	case v.src == "s32" && (v.dst == "u64" || v.dst == "s64") && a.class == c32 && d.class == c64:
		return func(w *warp, m uint32) {
			x, y := w.in32(s), &w.q[t]
			for ; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m) & 31
				y[i] = uint64(int64(int32(x[i])))
			}
		}
	case (v.src == "u64" || v.src == "s64") && (v.dst == "u32" || v.dst == "s32") && a.class == c64 && d.class == c32:
		return func(w *warp, m uint32) {
			x, y := w.in64(s), &w.r[t]
			for ; m != 0; m &= m - 1 {
				i := bits.TrailingZeros32(m) & 31
				y[i] = uint32(x[i])
			}
		}
	}
	return nil
}

// extend widens a result to the destination register: by sign for signed types.
func (v conversion) extend(d operand) func(uint64) uint64 {
	width, signed := v.dstW, v.dst[0] == 's'
	mask := ^uint64(0)
	if width < 64 {
		mask = 1<<width - 1
	}
	reg := ^uint64(0)
	if d.bits < 64 && d.bits > 0 {
		reg = 1<<d.bits - 1
	}
	return func(x uint64) uint64 {
		x &= mask
		if signed && width < 64 && x>>(width-1) != 0 {
			x |= ^mask
		}
		return x & reg
	}
}

// converter returns the conversion of one value.
func (c *lowering) converter(v conversion) func(uint64) uint64 {
	switch {
	case !v.fromFloat && !v.toFloat:
		return v.intToInt()
	case v.fromFloat && !v.toFloat:
		return v.floatToInt(c)
	case !v.fromFloat:
		return v.intToFloat(c)
	}
	return v.floatToFloat(c)
}

// integer reads the source as a whole number: negative only for signed types.
func (v conversion) integer(x uint64) (mag uint64, neg bool) {
	if v.srcW < 64 {
		x &= 1<<v.srcW - 1
	}
	if v.src[0] == 's' {
		s := int64(x << (64 - v.srcW) >> 0)
		s >>= 64 - v.srcW
		if s < 0 {
			return uint64(-s), true
		}
		return uint64(s), false
	}
	return x, false
}

// limits of the destination's integers: largest magnitude when positive and when negative.
func (v conversion) limits() (pos, neg uint64) {
	if v.dst[0] == 's' {
		return 1<<(v.dstW-1) - 1, 1 << (v.dstW - 1)
	}
	if v.dstW == 64 {
		return math.MaxUint64, 0
	}
	return 1<<v.dstW - 1, 0
}

func (v conversion) intToInt() func(uint64) uint64 {
	pos, low := v.limits()
	return func(x uint64) uint64 {
		mag, neg := v.integer(x)
		if v.sat {
			if neg {
				mag = min(mag, low)
			} else {
				mag = min(mag, pos)
			}
		}
		if neg {
			return -mag
		}
		return mag
	}
}

// real reads a floating source exactly.
func (v conversion) real(c *lowering) func(uint64) float64 {
	switch v.src {
	case "f64":
		return f64of
	case "f32":
		if v.ftz {
			return func(x uint64) float64 { return float64(f32of(flush(uint32(x)))) }
		}
		return func(x uint64) float64 { return float64(f32of(uint32(x))) }
	case "f16":
		return func(x uint64) float64 { return float64(num.Half(uint16(x))) }
	case "bf16":
		return func(x uint64) float64 { return float64(num.BF16(uint16(x))) }
	}
	c.failf("no conversion from .%s is known", v.src)
	return nil
}

func (v conversion) floatToInt(c *lowering) func(uint64) uint64 {
	read := v.real(c)
	pos, low := v.limits()
	top := math.Ldexp(1, v.dstW)
	if v.dst[0] == 's' {
		top /= 2
	}
	// A NaN gives 0, except where a double or a 64-bit integer takes part: then the top bit alone.
	nan := uint64(0)
	if v.src == "f64" || v.dstW == 64 {
		nan = 1 << (v.dstW - 1)
	}
	return func(x uint64) uint64 {
		r := read(x)
		if r != r {
			return nan
		}
		r = num.RoundInt(r, v.mode)
		switch {
		case r >= top:
			return pos
		case r < 0:
			if -r >= float64(low) {
				return -low
			}
			return -uint64(-r)
		}
		return uint64(r)
	}
}

// intToFloat rounds once: the double nearest to the integer, and what it leaves.
func (v conversion) intToFloat(c *lowering) func(uint64) uint64 {
	return func(x uint64) uint64 {
		mag, neg := v.integer(x)
		s := float64(mag)
		var e float64
		switch {
		case s >= 0x1p64:
			e = -float64(-mag)
		case mag >= 1<<53:
			e = float64(int64(mag - uint64(s)))
		}
		if neg {
			s, e = -s, -e
		}
		return v.write(s, e)
	}
}

// write rounds s + e to the floating destination.
func (v conversion) write(s, e float64) uint64 {
	switch v.dst {
	case "f64":
		switch {
		case v.mode == num.RP && e > 0:
			s = math.Nextafter(s, math.Inf(1))
		case v.mode == num.RM && e < 0:
			s = math.Nextafter(s, math.Inf(-1))
		case v.mode == num.RZ && (s > 0 && e < 0 || s < 0 && e > 0):
			s = math.Nextafter(s, 0)
		}
		return bits64(s)
	case "f32":
		r := num.Canon(num.To32(s, e, v.mode))
		if v.sat {
			r = num.Sat(r)
		}
		if v.ftz {
			r = num.FTZ(r)
		}
		return uint64(bits32(r))
	}
	if v.sat {
		switch {
		case !(s > 0):
			s, e = 0, 0
		case s >= 1:
			s, e = 1, 0
		}
	}
	if v.relu && (s < 0 || s == 0) {
		s, e = 0, 0
	}
	if v.dst == "f16" {
		if v.finite && !math.IsNaN(s) {
			return uint64(num.ToHalfFinite(s, v.mode))
		}
		return uint64(num.ToHalfExact(s, e, v.mode))
	}
	if v.finite && !math.IsNaN(s) {
		return uint64(num.ToBF16Finite(s, v.mode))
	}
	return uint64(num.ToBF16Exact(s, e, v.mode))
}

func (v conversion) floatToFloat(c *lowering) func(uint64) uint64 {
	if !slices.Contains([]ptx.Type{"f64", "f32", "f16", "bf16"}, v.dst) {
		c.failf("no conversion to .%s is known", v.dst)
	}
	read := v.real(c)
	same := v.src == v.dst
	return func(x uint64) uint64 {
		r := read(x)
		if r != r && !v.sat && !same {
			if b, ok := v.keepNaN(x); ok {
				return b
			}
		}
		if v.whole {
			r = num.RoundInt(r, v.mode)
		} else if same && !v.sat && !v.ftz {
			return x
		}
		if v.dst == "f64" {
			if v.sat {
				r = math.Max(0, math.Min(r, 1))
			}
			return bits64(r)
		}
		if v.dst == "bf16" && v.src == "f32" && v.mode == num.RN && !v.relu && !v.finite {
			return uint64(num.BF16FromSingle(float32(r)))
		}
		return v.write(r, 0)
	}
}

// keepNaN is the result of a NaN where an H200 keeps its sign and upper payload: a double made narrower, which also becomes quiet
// (recorded for the NaN 0x7ff8 << 48), and a bf16 made a single. Everywhere else a NaN becomes the canonical one.
func (v conversion) keepNaN(x uint64) (uint64, bool) {
	switch {
	case v.src == "bf16" && v.dst == "f32":
		return x << 16 & 0xffff0000, true
	case v.src == "f64" && v.dst == "f32":
		return x>>32&0x80000000 | 0x7fc00000 | x>>29&0x3fffff, true
	case v.src == "f64" && v.dst == "f16":
		return x>>48&0x8000 | 0x7e00 | x>>42&0x1ff, true
	}
	return 0, false
}
