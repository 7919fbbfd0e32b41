package sim_test

import (
	"fmt"
	"math"
	"testing"

	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/runtime/sim/conform"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// isaCase is one instruction on chosen values, with the result that the ISA's text gives, worked out by hand.
type isaCase struct {
	code   string // of %a0, %a1, ... to %d0
	out    ptx.Type
	in     []uint64
	types  string // of the inputs, a letter each: w 32 bits, q 64, h 16, p predicate
	want   uint64
	reason string
}

func s32(v int32) uint64  { return uint64(uint32(v)) }
func s64(v int64) uint64  { return uint64(v) }
func fb(v float32) uint64 { return uint64(math.Float32bits(v)) }
func db(v float64) uint64 { return math.Float64bits(v) }

var isaCases = []isaCase{
	{"add.sat.s32 %d0, %a0, %a1;", "s32", []uint64{math.MaxInt32, 1}, "ww", math.MaxInt32, "saturates"},
	{"mul.hi.s32 %d0, %a0, %a1;", "s32", []uint64{s32(-2), 0x40000000}, "ww", s32(-1), "high half of -2^31"},
	{"mul.wide.s16 %d0, %a0, %a1;", "s32", []uint64{0x8000, 0x8000}, "hh", 1 << 30, "16 by 16 bits"},
	{"mad.wide.s32 %d0, %a0, %a1, %a2;", "s64", []uint64{s32(-3), 5, 1}, "wwq", s64(-14), "widens before adding"},
	{"mul24.lo.s32 %d0, %a0, %a1;", "s32", []uint64{0xffffff, 2}, "ww", s32(-2), "24 bits are sign-extended"},
	{"div.s32 %d0, %a0, %a1;", "s32", []uint64{s32(-7), 2}, "ww", s32(-3), "rounds towards zero"},
	{"rem.s32 %d0, %a0, %a1;", "s32", []uint64{s32(-7), 2}, "ww", s32(-1), "takes the dividend's sign"},
	{"sad.u32 %d0, %a0, %a1, %a2;", "u32", []uint64{3, 10, 100}, "www", 107, "c + |a - b|"},
	{"dp4a.s32.u32 %d0, %a0, %a1, %a2;", "s32", []uint64{0xff01ff01, 0x02020202, 10}, "www", 10, "-2 + 2 - 2 + 2"},
	{"dp2a.hi.s32.s32 %d0, %a0, %a1, %a2;", "s32", []uint64{0x00030002, 0x05040000, 1}, "www", 1 + 2*4 + 3*5, "bytes 2 and 3 of b"},
	{"shl.b32 %d0, %a0, %a1;", "b32", []uint64{1, 32}, "ww", 0, "amounts are clamped, not wrapped"},
	{"shr.s32 %d0, %a0, %a1;", "s32", []uint64{s32(-8), 40}, "ww", s32(-1), "fills with the sign"},
	{"shf.l.wrap.b32 %d0, %a0, %a1, %a2;", "b32", []uint64{0x80000000, 1, 33}, "www", 3, "amount mod 32; the low word shifts in"},
	{"shf.r.clamp.b32 %d0, %a0, %a1, %a2;", "b32", []uint64{1, 0xabcd, 40}, "www", 0xabcd, "amount at most 32"},
	{"bfe.u32 %d0, %a0, 28, 8;", "u32", []uint64{0xf0000000}, "w", 0xf, "a field past the end is zero-filled"},
	{"bfe.s32 %d0, %a0, 28, 8;", "s32", []uint64{0xf0000000}, "w", s32(-1), "or filled with the top bit"},
	{"bfe.s32 %d0, %a0, 4, 4;", "s32", []uint64{0x80}, "w", s32(-8), "sign of the field"},
	{"bfe.s32 %d0, %a0, 4, 0;", "s32", []uint64{0xffffffff}, "w", 0, "an empty field is 0"},
	{"bfi.b32 %d0, %a0, %a1, 8, 4;", "b32", []uint64{0xff, 0}, "ww", 0xf00, "four bits at 8"},
	{"bfi.b32 %d0, %a0, %a1, 30, 8;", "b32", []uint64{0xff, 0}, "ww", 0xc0000000, "cut at the top"},
	{"bfind.s32 %d0, %a0;", "u32", []uint64{s32(-1)}, "w", 0xffffffff, "no bit differs from the sign"},
	{"bfind.u32 %d0, %a0;", "u32", []uint64{0x00100000}, "w", 20, "the highest set bit"},
	{"bfind.shiftamt.u32 %d0, %a0;", "u32", []uint64{0x00100000}, "w", 11, "the shift that brings it to the top"},
	{"prmt.b32 %d0, %a0, %a1, 0x7531;", "b32", []uint64{0x33221100, 0x77665544}, "ww", 0x77553311, "bytes of {b, a}"},
	{"prmt.b32 %d0, %a0, %a1, 0x8888;", "b32", []uint64{0x00000080, 0}, "ww", 0xffffffff, "bit 3 replicates the sign"},
	{"prmt.b32.f4e %d0, %a0, %a1, 1;", "b32", []uint64{0x33221100, 0x77665544}, "ww", 0x44332211, "four bytes forward from 1"},
	{"prmt.b32.rc16 %d0, %a0, %a1, 1;", "b32", []uint64{0x33221100, 0}, "ww", 0x33223322, "half 1 twice"},
	{"lop3.b32 %d0, %a0, %a1, %a2, 0xca;", "b32", []uint64{0xff00ff00, 0x12345678, 0x9abcdef0}, "www", 0x12bc56f0, "a ? b : c"},
	{"bmsk.clamp.b32 %d0, %a0, %a1;", "b32", []uint64{4, 8}, "ww", 0xff0, "width 8 at 4"},
	{"szext.clamp.s32 %d0, %a0, %a1;", "s32", []uint64{0x8, 4}, "ww", s32(-8), "four bits, sign-extended"},
	{"slct.b32.s32 %d0, %a0, %a1, %a2;", "b32", []uint64{1, 2, s32(-1)}, "www", 2, "c below 0 takes b"},
	{"min.f32 %d0, %a0, %a1;", "f32", []uint64{0x7fc00000, fb(2)}, "ww", fb(2), "a NaN loses"},
	{"min.NaN.f32 %d0, %a0, %a1;", "f32", []uint64{0x7fc00000, fb(2)}, "ww", 0x7fffffff, "or wins, as the canonical NaN"},
	{"max.xorsign.abs.f32 %d0, %a0, %a1;", "f32", []uint64{fb(-3), fb(2)}, "ww", fb(-3), "larger magnitude, exclusive or of the signs"},
	{"add.rn.f32 %d0, %a0, %a1;", "f32", []uint64{0x7f800000, 0xff800000}, "ww", 0x7fffffff, "the canonical NaN"},
	{"add.rn.ftz.f32 %d0, %a0, %a1;", "f32", []uint64{1, 0x80000000}, "ww", 0, "a subnormal input is flushed"},
	{"add.rz.f32 %d0, %a0, %a1;", "f32", []uint64{fb(1), fb(-0x1p-40)}, "ww", 0x3f7fffff, "just below 1, towards zero"},
	{"mul.rp.f32 %d0, %a0, %a1;", "f32", []uint64{1, fb(0.5)}, "ww", 1, "half the smallest rounds up to it"},
	{"fma.rn.sat.f32 %d0, %a0, %a1, %a2;", "f32", []uint64{fb(3), fb(3), fb(-1)}, "www", fb(1), "saturates to [0, 1]"},
	{"fma.rn.f32 %d0, %a0, %a1, %a2;", "f32", []uint64{fb(0x1.000002p0), fb(0x1.000002p0), fb(-0x1.000004p0)}, "www", fb(0x1p-46), "one rounding keeps the last bit"},
	{"div.approx.f32 %d0, %a0, %a1;", "f32", []uint64{fb(1), fb(0x1p127)}, "ww", 0, "a divisor above 2^126 gives 0"},
	{"rcp.approx.ftz.f32 %d0, %a0;", "f32", []uint64{0x80000001}, "w", 0xff800000, "a flushed subnormal's reciprocal"},
	{"sqrt.rn.f32 %d0, %a0;", "f32", []uint64{0x80000000}, "w", 0x80000000, "the root of -0"},
	{"rsqrt.approx.f32 %d0, %a0;", "f32", []uint64{0x80000000}, "w", 0xff800000, "and its inverse"},
	{"ex2.approx.f32 %d0, %a0;", "f32", []uint64{0xff800000}, "w", 0, "2^-inf"},
	{"ex2.approx.ftz.f32 %d0, %a0;", "f32", []uint64{fb(-127)}, "w", 0, "a subnormal result is flushed"},
	{"lg2.approx.f32 %d0, %a0;", "f32", []uint64{0}, "w", 0xff800000, "the logarithm of 0"},
	{"tanh.approx.f32 %d0, %a0;", "f32", []uint64{0x7f800000}, "w", fb(1), "tanh of infinity"},
	{"cvt.rni.s32.f32 %d0, %a0;", "s32", []uint64{fb(2.5)}, "w", 2, "to even"},
	{"cvt.rpi.s32.f32 %d0, %a0;", "s32", []uint64{fb(-2.5)}, "w", s32(-2), "up"},
	{"cvt.rzi.u32.f32 %d0, %a0;", "u32", []uint64{fb(-1)}, "w", 0, "clamped to the destination"},
	{"cvt.rzi.s32.f32 %d0, %a0;", "s32", []uint64{fb(3e9)}, "w", math.MaxInt32, "clamped above"},
	{"cvt.rzi.s32.f32 %d0, %a0;", "s32", []uint64{0x7fc00000}, "w", 0, "a NaN gives 0"},
	{"cvt.rzi.s64.f64 %d0, %a0;", "s64", []uint64{0x7ff8 << 48}, "q", 1 << 63, "but the top bit for doubles"},
	{"cvt.rn.f32.s64 %d0, %a0;", "f32", []uint64{1<<53 + 1<<29 + 1}, "q", fb(0x1.000002p53), "one rounding: 2^53 + 2^29 + 1 lies above the middle"},
	{"cvt.sat.u8.s32 %d0, %a0;", "u32", []uint64{s32(-5)}, "w", 0, "saturates below"},
	{"cvt.s32.s8 %d0, %a0;", "s32", []uint64{0xff80}, "h", s32(-128), "takes the low byte"},
	{"cvt.rn.f16.f32 %d0, %a0;", "f16", []uint64{fb(65520)}, "w", 0x7c00, "rounds up to infinity"},
	{"cvt.rn.bf16x2.f32 %d0, %a0, %a1;", "b32", []uint64{fb(1), fb(2)}, "ww", 0x3f804000, "the first operand goes high"},
	{"cvt.rn.satfinite.e4m3x2.f32 %d0, %a0, %a1;", "b16", []uint64{fb(1000), fb(-0.5)}, "ww", 0x7eb0, "saturates at 448"},
	{"cvt.rn.f16x2.e5m2x2 %d0, %a0;", "b32", []uint64{0x3c7c}, "h", 0x3c007c00, "e5m2 is the top of f16"},
	{"cvt.rna.tf32.f32 %d0, %a0;", "b32", []uint64{0x3f801000}, "w", 0x3f802000, "ties away"},
	{"cvt.pack.sat.s8.s32.b32 %d0, %a0, %a1, %a2;", "b32", []uint64{200, s32(-200), 0x1234}, "www", 0x12347f80, "b lowest, then a, then c's low half"},
	{"cvt.rn.f32.f64 %d0, %a0;", "f32", []uint64{db(0x1.000001p0)}, "q", fb(1), "a tie, to even"},
	{"testp.subnormal.f32 %d0, %a0;", "pred", []uint64{1}, "w", 1, "the smallest single"},
	{"setp.ltu.f32 %d0, %a0, %a1;", "pred", []uint64{0x7fc00000, 0}, "ww", 1, "unordered counts"},
	{"setp.ne.f32 %d0, %a0, %a1;", "pred", []uint64{0x7fc00000, 0}, "ww", 0, "an ordered comparison with NaN is false"},
	{"setp.lt.s32 %d0, %a0, %a1;", "pred", []uint64{s32(-1), 0}, "ww", 1, "signed"},
	{"setp.lt.u32 %d0, %a0, %a1;", "pred", []uint64{s32(-1), 0}, "ww", 0, "unsigned"},
	{"set.lt.f32.s32 %d0, %a0, %a1;", "f32", []uint64{1, 2}, "ww", fb(1), "true is 1.0"},
	{"add.f16x2 %d0, %a0, %a1;", "b32", []uint64{0x7bff3c00, 0x7bff3c00}, "ww", 0x7c004000, "each half by itself"},
	{"fma.rn.relu.bf16 %d0, %a0, %a1, %a2;", "b16", []uint64{0x3f80, 0xbf80, 0}, "hhh", 0, "negative becomes 0"},
	{"copysign.f32 %d0, %a0, %a1;", "f32", []uint64{0x80000000, fb(3)}, "ww", fb(-3), "a's sign on b"},
	{"mov.b64 %w0, {%a0, %a1};\nshr.u64 %w0, %w0, 16;\ncvt.u32.u64 %d0, %w0;", "u32", []uint64{0x11223344, 0xaabbccdd}, "ww", 0xccdd1122, "the first part is low"},
	{"add.cc.u32 %t0, %a0, %a1;\naddc.u32 %d0, 5, 0;", "u32", []uint64{0xffffffff, 1}, "ww", 6, "the carry goes on"},
	{"sub.cc.u32 %t0, %a0, %a1;\nsubc.u32 %d0, 5, 0;", "u32", []uint64{0, 1}, "ww", 4, "and so does the borrow"},
}

func TestISA(t *testing.T) {
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	names := map[byte]ptx.Type{'w': "b32", 'q': "b64", 'h': "b16", 'p': "pred"}
	for _, tc := range isaCases {
		t.Run(fmt.Sprintf("%s %x", tc.code, tc.in), func(t *testing.T) {
			v := conform.Variant{Name: "isa", Code: tc.code, Out: []ptx.Type{tc.out}}
			var in [][]uint64
			for i := range tc.types {
				v.In = append(v.In, names[tc.types[i]])
				slot := make([]uint64, conform.Count)
				for k := range slot {
					slot[k] = tc.in[i]
				}
				in = append(in, slot)
			}
			got, err := v.RunOn(d, in)
			if err != nil {
				t.Fatal(err)
			}
			if got[0][0] != tc.want || got[0][conform.Count-1] != tc.want {
				t.Errorf("%s: want %#x, got %#x", tc.reason, tc.want, got[0][0])
			}
		})
	}
}
