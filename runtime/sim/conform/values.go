package conform

import (
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// specials are the values of a type where faults hide.
func specials(t ptx.Type) []uint64 {
	switch t {
	case "pred":
		return []uint64{0, 1}
	case "f32", "tf32":
		return []uint64{0, 0x80000000, 0x3f800000, 0xbf800000, 0x7f800000, 0xff800000, 0x7fc00000, 0xffc00001, 0x7f800001, 1, 0x80000001, 0x007fffff,
			0x807fffff, 0x00800000, 0x7f7fffff, 0xff7fffff, 0x3f000000, 0x3effffff, 0x40490fdb, 0x4b000000, 0x4b7fffff, 0x4f000000, 0xcf000000, 0x5f000000,
			0x3fc00000, 0x40200000, 0xc0200000, 0x43160000, 0xc3160000, 0x33800000, 0x34000000, 0x477fe000, 0x477ff000, 0x38800000, 0x7e800001}
	case "f64":
		return []uint64{0, 1 << 63, math.Float64bits(1), math.Float64bits(-1), math.Float64bits(math.Inf(1)), math.Float64bits(math.Inf(-1)), 0x7ff8 << 48,
			1, 1<<63 | 1, 0x000fffffffffffff, 0x0010000000000000, math.Float64bits(math.MaxFloat64), math.Float64bits(0.5), math.Float64bits(1.5),
			math.Float64bits(2.5), math.Float64bits(1 << 31), math.Float64bits(-1 << 31), math.Float64bits(1 << 63), math.Float64bits(0x1.000001p0),
			math.Float64bits(math.MaxFloat32), math.Float64bits(0x1p-149), math.Float64bits(0x1p-150), math.Float64bits(0x1.fffffefp127)}
	case "f16":
		return []uint64{0, 0x8000, 0x3c00, 0xbc00, 0x7c00, 0xfc00, 0x7e00, 0xfe01, 1, 0x8001, 0x03ff, 0x0400, 0x7bff, 0xfbff, 0x3800, 0x3e00, 0x4100, 0x3555}
	case "bf16":
		return []uint64{0, 0x8000, 0x3f80, 0xbf80, 0x7f80, 0xff80, 0x7fc0, 0xffc1, 1, 0x8001, 0x007f, 0x0080, 0x7f7f, 0xff7f, 0x3f00, 0x3fc0, 0x4020, 0x4049}
	case "f16x2", "bf16x2":
		half := specials(t[:len(t)-2])
		var out []uint64
		for i, v := range half {
			out = append(out, v|half[(i*7+3)%len(half)]<<16)
		}
		return out
	case "e4m3x2", "e5m2x2":
		return []uint64{0, 0x8000, 0x7f7e, 0xfffe, 0x0108, 0x8188, 0x7b7c, 0x7d7e, 0x3c38, 0xbcb8}
	}
	if t.Bits() == 64 {
		return []uint64{0, 1, ^uint64(0), 1 << 63, 1<<63 - 1, 2, 7, 0xffffffff, 1 << 32, 31, 32, 63, 64, 0x0123456789abcdef, 1<<53 + 1, 0xfffffffffffffc01}
	}
	m := widthMask(t)
	return []uint64{0, 1, m, m >> 1, m>>1 + 1, 2, 3, 7, 8, 15, 16, 31, 32, 33, 63, 64, 127, 128, 255, 0x01234567 & m, 0x89abcdef & m, 0x7f800001 & m, 0x55555555 & m}
}

// tame is a moderate value.
func tame(t ptx.Type, r *rand.Rand) uint64 {
	x := r.NormFloat64()
	switch t {
	case "f32":
		return uint64(math.Float32bits(float32(x * 4)))
	case "tf32":
		return uint64(math.Float32bits(float32(x*4)) &^ 0x1fff)
	case "f64":
		return math.Float64bits(x * 4)
	case "f16":
		return half(x)
	case "bf16":
		return uint64(math.Float32bits(float32(x)) >> 16)
	case "f16x2":
		return half(x) | half(r.NormFloat64())<<16
	case "bf16x2":
		return tame("bf16", r) | tame("bf16", r)<<16
	case "e4m3x2", "e5m2x2":
		return r.Uint64() & 0x7777 &^ 0x0808
	case "e4m3x4": // never NaN
		return r.Uint64() & 0xf7f7f7f7
	}
	if r.IntN(4) == 0 {
		return r.Uint64N(70) & widthMask(t)
	}
	return r.Uint64() & widthMask(t)
}

// half is a normal f16 near x, by truncation.
func half(x float64) uint64 {
	b := math.Float32bits(float32(x))
	e := int(b>>23&0xff) - 127 + 15
	if e <= 0 || e >= 31 {
		return 0x3c00
	}
	return uint64(b>>31<<15 | uint32(e)<<10 | b>>13&0x3ff)
}
