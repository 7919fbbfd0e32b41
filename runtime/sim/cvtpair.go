package sim

import (
	"github.com/kvloom/kvloom/runtime/sim/num"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// cvtPair converts two singles to a pair, d = {a high, b low}, or unpacks a pair of 8-bit floats to f16x2.
func (c *lowering) cvtPair(v conversion) step {
	one := v
	one.dst = map[ptx.Type]ptx.Type{"f16x2": "f16", "bf16x2": "bf16", "e4m3x2": "e4m3", "e5m2x2": "e5m2"}[v.dst]
	narrow := v.dst == "e4m3x2" || v.dst == "e5m2x2"
	to := func(x float64) uint64 {
		switch one.dst {
		case "e4m3":
			return uint64(num.ToE4M3(x))
		case "e5m2":
			return uint64(num.ToE5M2(x))
		}
		return one.write(x, 0)
	}
	if narrow {
		to = reluFirst(v.relu, to)
		if !v.finite {
			c.failf("a conversion to .%s saturates: .satfinite is missing", v.dst)
		}
	}
	width := 16
	if narrow {
		width = 8
	}
	if v.src == "f32" {
		c.args(3, 3)
		d, a, b := c.dst(0, v.dst), c.src(1, "f32"), c.src(2, "f32")
		if v.dst == "bf16x2" && v.mode == num.RN && !v.relu && !v.finite {
			return bin32(d.slot, a.slot, b.slot, func(hi, lo uint32) uint32 {
				return uint32(num.BF16FromSingle(f32of(hi)))<<16 | uint32(num.BF16FromSingle(f32of(lo)))
			})
		}
		return bin32(d.slot, a.slot, b.slot, func(hi, lo uint32) uint32 {
			return uint32(to(float64(f32of(hi)))<<width | to(float64(f32of(lo))))
		})
	}
	c.args(2, 2)
	d, a := c.dst(0, v.dst), c.src(1, v.src)
	switch v.src {
	case "e4m3x2", "e5m2x2":
		read := num.E4M3
		if v.src == "e5m2x2" {
			read = num.E5M2
		}
		return un32(d.slot, a.slot, func(x uint32) uint32 {
			return uint32(to(float64(read(uint8(x>>8))))<<16 | to(float64(read(uint8(x)))))
		})
	case "f16x2", "bf16x2":
		h, _ := halfOf(string(v.src))
		return un32(d.slot, a.slot, func(x uint32) uint32 {
			return uint32(to(float64(h.value(uint16(x>>16))))<<width | to(float64(h.value(uint16(x)))))
		})
	}
	c.failf("no conversion from .%s to .%s is known", v.src, v.dst)
	return nil
}

func reluFirst(relu bool, f func(float64) uint64) func(float64) uint64 {
	if !relu {
		return f
	}
	return func(x float64) uint64 {
		if x <= 0 {
			x = 0
		}
		return f(x)
	}
}

func (c *lowering) cvtTF32(v conversion) step {
	if v.src != "f32" {
		c.failf("no conversion from .%s to .tf32 is known", v.src)
	}
	c.args(2, 2)
	return un32(c.dst(0, "b32").slot, c.src(1, "f32").slot, func(x uint32) uint32 {
		f := f32of(x)
		if v.relu && f <= 0 {
			f = 0
		}
		return num.TF32(f, v.mode)
	})
}

// cvtPack is cvt.pack.sat.T.s32{.b32} d, a, b{, c}: b goes lowest, a above it, and c's low bits above both.
func (c *lowering) cvtPack() step {
	if !c.has("sat") {
		c.failf("cvt.pack without .sat")
	}
	t := c.typ()
	c.typ()
	width := t.Bits()
	if string(t[1:]) == "16" {
		c.args(3, 3)
	} else {
		c.typ()
		c.args(4, 4)
	}
	lo, hi := int64(0), int64(1)<<width-1
	if t[0] == 's' {
		lo, hi = -(int64(1) << (width - 1)), int64(1)<<(width-1)-1
	}
	pack := func(a, b, e uint32) uint32 {
		x := uint32(min(max(int64(int32(a)), lo), hi)) & uint32(1<<width-1)
		y := uint32(min(max(int64(int32(b)), lo), hi)) & uint32(1<<width-1)
		return uint32(uint64(e)<<(2*width)) | x<<width | y
	}
	if len(c.in.Args) == 3 {
		return bin32(c.dstT(0, "b32"), c.srcT(1, "s32"), c.srcT(2, "s32"), func(a, b uint32) uint32 { return pack(a, b, 0) })
	}
	return tri32(c.dstT(0, "b32"), c.srcT(1, "s32"), c.srcT(2, "s32"), c.srcT(3, "b32"), pack)
}
