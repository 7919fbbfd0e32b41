package sim

import (
	"math"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

func lowerDiv(c *lowering) step {
	t := string(lastType(c))
	k := mask16(t)
	switch t {
	case "u16", "u32":
		return c.bin(t, func(a, b uint32) uint32 {
			if b == 0 {
				return k
			}
			return a / b
		}, nil)
	case "s16", "s32":
		return c.bin(t, func(a, b uint32) uint32 {
			x, y := signed(t, a), signed(t, b)
			if y == 0 {
				return k
			}
			return uint32(int64(x)/int64(y)) & k
		}, nil)
	case "u64":
		return c.bin(t, nil, func(a, b uint64) uint64 {
			if b == 0 {
				return math.MaxUint64
			}
			return a / b
		})
	case "s64":
		return c.bin(t, nil, func(a, b uint64) uint64 {
			switch {
			case b == 0:
				return math.MaxUint64
			case int64(b) == -1:
				return -a
			}
			return uint64(int64(a) / int64(b))
		})
	}
	return c.floatDiv(t)
}

func signed(t string, v uint32) int32 {
	if t == "s16" {
		return int32(int16(v))
	}
	return int32(v)
}

func lastType(c *lowering) ptx.Type { return c.lastTyp() }

func lowerRem(c *lowering) step {
	t := string(c.typ())
	k := mask16(t)
	return c.bin(t, func(a, b uint32) uint32 {
		if b == 0 { // the ISA leaves it open; an H200 gives all ones, as for a quotient
			return k
		}
		if t[0] == 's' {
			return uint32(int64(signed(t, a))%int64(signed(t, b))) & k
		}
		return a % b
	}, func(a, b uint64) uint64 {
		switch {
		case b == 0:
			return math.MaxUint64
		case t == "u64":
			return a % b
		case int64(b) == -1:
			return 0
		}
		return uint64(int64(a) % int64(b))
	})
}

func lowerSad(c *lowering) step {
	t := string(c.typ())
	k := mask16(t)
	return c.tri(t, func(a, b, d uint32) uint32 {
		var x int64
		if t[0] == 's' {
			x = int64(signed(t, a)) - int64(signed(t, b))
		} else {
			x = int64(a) - int64(b)
		}
		return (d + uint32(max(x, -x))) & k
	}, func(a, b, d uint64) uint64 {
		if t == "s64" && int64(a) < int64(b) || t == "u64" && a < b {
			a, b = b, a
		}
		return d + a - b
	})
}

func byteOf(t ptx.Type, v uint32, i int) int32 {
	if t[0] == 's' {
		return int32(int8(v >> (8 * i)))
	}
	return int32(uint8(v >> (8 * i)))
}

func lowerDp4a(c *lowering) step {
	ta, tb := c.typ(), c.typ()
	c.args(4, 4)
	return tri32(c.dstT(0, "u32"), c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "u32"), func(a, b, d uint32) uint32 {
		for i := range 4 {
			d += uint32(byteOf(ta, a, i) * byteOf(tb, b, i))
		}
		return d
	})
}

func lowerDp2a(c *lowering) step {
	half := 0
	if c.oneOf("lo", "hi") == "hi" {
		half = 2
	}
	ta, tb := c.typ(), c.typ()
	c.args(4, 4)
	return tri32(c.dstT(0, "u32"), c.srcT(1, "b32"), c.srcT(2, "b32"), c.srcT(3, "u32"), func(a, b, d uint32) uint32 {
		for i := range 2 {
			x := ext16(string(ta), a>>(16*i))
			d += uint32(x * byteOf(tb, b, i+half))
		}
		return d
	})
}
