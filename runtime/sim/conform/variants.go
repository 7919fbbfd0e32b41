package conform

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

type list []Variant

// add appends a variant of one instruction "name d0, a0, a1, ...".
func (l *list) add(name string, b Bound, out ptx.Type, in ...ptx.Type) {
	args := []string{"%d0"}
	for i := range in {
		args = append(args, fmt.Sprintf("%%a%d", i))
	}
	*l = append(*l, Variant{Name: name, Code: name + " " + strings.Join(args, ", ") + ";", In: in, Out: []ptx.Type{out}, Bound: b})
}

// code appends a variant with code of its own.
func (l *list) code(name, code string, b Bound, tame bool, out, in []ptx.Type) {
	*l = append(*l, Variant{Name: name, Code: code, In: in, Out: out, Bound: b, Tame: tame})
}

func types(s string) []ptx.Type {
	var out []ptx.Type
	for _, f := range strings.Fields(s) {
		out = append(out, ptx.Type(f))
	}
	return out
}

// Variants lists every instruction variant that is compared.
func Variants() []Variant {
	var l list
	l.integers()
	l.logic()
	l.floats()
	l.halves()
	l.compares()
	l.conversions()
	l.warp()
	l.matrices()
	l.atomics()
	l.loads()
	l.warpgroups()
	return l
}

func (l *list) integers() {
	for _, t := range types("u16 s16 u32 s32 u64 s64") {
		s := string(t)
		for _, op := range []string{"add", "sub", "mul.lo", "mul.hi", "min", "max", "rem"} {
			l.add(op+"."+s, Exact, t, t, t)
		}
		l.add("mad.lo."+s, Exact, t, t, t, t)
		l.add("sad."+s, Exact, t, t, t, t)
		if t.Bits() < 64 {
			w := ptx.Type(fmt.Sprintf("%c%d", s[0], t.Bits()*2))
			l.add("mul.wide."+s, Exact, w, t, t)
			l.add("mad.wide."+s, Exact, w, t, t, w)
		}
		if s[0] == 's' {
			l.add("abs."+s, Exact, t, t)
			l.add("neg."+s, Exact, t, t)
		}
	}
	// Division by zero has no defined result, so that divisors are made odd.
	for _, t := range types("u32 s32 u64 s64") {
		b := fmt.Sprint("b", t.Bits())
		l.code("div."+string(t), fmt.Sprintf("or.%s %%a1, %%a1, 1;\ndiv.%s %%d0, %%a0, %%a1;", b, t), Exact, false, []ptx.Type{t}, []ptx.Type{t, t})
	}
	for _, n := range []string{"add.sat.s32", "sub.sat.s32", "mul24.lo.u32", "mul24.lo.s32", "mul24.hi.u32", "mul24.hi.s32"} {
		l.add(n, Exact, "s32", "s32", "s32")
	}
	for _, n := range []string{"mad.hi.u32", "mad.hi.s32", "mad.hi.sat.s32", "mad24.lo.s32", "dp4a.u32.u32", "dp4a.s32.s32", "dp4a.u32.s32", "dp4a.s32.u32", "dp2a.lo.s32.s32", "dp2a.hi.u32.u32"} {
		l.add(n, Exact, "s32", "s32", "s32", "s32")
	}
	l.code("add.cc.u32", "add.cc.u32 %d0, %a0, %a1;\naddc.cc.u32 %d1, %a2, %a3;\naddc.u32 %d2, 0, 0;", Exact, false, types("u32 u32 u32"), types("u32 u32 u32 u32"))
	l.code("sub.cc.u32", "sub.cc.u32 %d0, %a0, %a1;\nsubc.u32 %d1, %a2, %a3;", Exact, false, types("u32 u32"), types("u32 u32 u32 u32"))
	l.code("mad.lo.cc.u32", "mad.lo.cc.u32 %d0, %a0, %a1, %a2;\nmadc.hi.u32 %d1, %a0, %a1, %a3;", Exact, false, types("u32 u32"), types("u32 u32 u32 u32"))
}

func (l *list) logic() {
	for _, t := range types("b16 b32 b64") {
		for _, op := range []string{"and", "or", "xor"} {
			l.add(op+"."+string(t), Exact, t, t, t)
		}
		l.add("not."+string(t), Exact, t, t)
		l.add("cnot."+string(t), Exact, t, t)
		l.add("shl."+string(t), Exact, t, t, "u32")
	}
	for _, t := range types("u16 s16 u32 s32 u64 s64") {
		l.add("shr."+string(t), Exact, t, t, "u32")
	}
	for _, op := range []string{"shf.l.wrap", "shf.l.clamp", "shf.r.wrap", "shf.r.clamp"} {
		l.add(op+".b32", Exact, "b32", "b32", "b32", "u32")
	}
	for _, t := range types("u32 s32 u64 s64") {
		l.code("bfe."+string(t), fmt.Sprintf("and.b32 %%a1, %%a1, 255;\nand.b32 %%a2, %%a2, 255;\nbfe.%s %%d0, %%a0, %%a1, %%a2;", t), Exact, false, []ptx.Type{t}, []ptx.Type{t, "u32", "u32"})
		l.add("bfind."+string(t), Exact, "u32", t)
		l.add("bfind.shiftamt."+string(t), Exact, "u32", t)
	}
	for _, t := range types("b32 b64") {
		l.code("bfi."+string(t), fmt.Sprintf("and.b32 %%a2, %%a2, 255;\nand.b32 %%a3, %%a3, 255;\nbfi.%s %%d0, %%a0, %%a1, %%a2, %%a3;", t), Exact, false, []ptx.Type{t}, []ptx.Type{t, t, "u32", "u32"})
		l.add("brev."+string(t), Exact, t, t)
		l.add("popc."+string(t), Exact, "u32", t)
		l.add("clz."+string(t), Exact, "u32", t)
	}
	for _, mode := range []string{"", ".f4e", ".b4e", ".rc8", ".ecl", ".ecr", ".rc16"} {
		l.add("prmt.b32"+mode, Exact, "b32", "b32", "b32", "b32")
	}
	for _, lut := range []int{0x80, 0x96, 0xe8, 0xca, 0xf8, 0xea, 0x6a, 0x1b, 0xd8} {
		l.code(fmt.Sprintf("lop3.b32 %#x", lut), fmt.Sprintf("lop3.b32 %%d0, %%a0, %%a1, %%a2, %d;", lut), Exact, false, types("b32"), types("b32 b32 b32"))
	}
	for _, m := range []string{"clamp", "wrap"} {
		l.add("bmsk."+m+".b32", Exact, "b32", "u32", "u32")
		l.add("szext."+m+".u32", Exact, "u32", "u32", "u32")
		l.add("szext."+m+".s32", Exact, "s32", "s32", "u32")
	}
}

func (l *list) floats() {
	for _, r := range []string{"rn", "rz", "rm", "rp"} {
		for _, mod := range []string{"", ".ftz", ".sat", ".ftz.sat"} {
			for _, op := range []string{"add", "sub", "mul"} {
				l.add(op+"."+r+mod+".f32", Exact, "f32", "f32", "f32")
			}
			l.add("fma."+r+mod+".f32", Exact, "f32", "f32", "f32", "f32")
		}
		for _, mod := range []string{"", ".ftz"} {
			l.add("div."+r+mod+".f32", Exact, "f32", "f32", "f32")
			l.add("rcp."+r+mod+".f32", Exact, "f32", "f32")
			l.add("sqrt."+r+mod+".f32", Exact, "f32", "f32")
		}
		nan := Bound{Kind: "exact", AnyNaN: true}
		for _, op := range []string{"add", "sub", "mul", "div"} {
			l.add(op+"."+r+".f64", nan, "f64", "f64", "f64")
		}
		l.add("fma."+r+".f64", nan, "f64", "f64", "f64", "f64")
		l.add("rcp."+r+".f64", nan, "f64", "f64")
	}
	l.add("sqrt.rn.f64", Bound{Kind: "exact", AnyNaN: true}, "f64", "f64")
	for _, op := range []string{"min", "max"} {
		for _, mod := range []string{"", ".ftz", ".NaN", ".ftz.NaN", ".xorsign.abs", ".NaN.xorsign.abs"} {
			l.add(op+mod+".f32", Exact, "f32", "f32", "f32")
		}
		l.add(op+".f64", Bound{Kind: "exact", AnyNaN: true}, "f64", "f64", "f64")
	}
	for _, op := range []string{"abs", "neg"} {
		l.add(op+".f32", Bound{Kind: "exact", AnyNaN: true}, "f32", "f32")
		l.add(op+".ftz.f32", Bound{Kind: "exact", AnyNaN: true}, "f32", "f32")
	}
	l.add("copysign.f32", Exact, "f32", "f32", "f32")
	l.approximate()
}

// approximate lists the functions whose error the ISA bounds.
func (l *list) approximate() {
	for _, mod := range []string{"", ".ftz"} {
		l.add("div.approx"+mod+".f32", Bound{Kind: "ulp", Value: 2}, "f32", "f32", "f32")
		l.add("div.full"+mod+".f32", Bound{Kind: "ulp", Value: 2}, "f32", "f32", "f32")
		l.add("rcp.approx"+mod+".f32", Bound{Kind: "ulp", Value: 1}, "f32", "f32")
		l.add("sqrt.approx"+mod+".f32", Bound{Kind: "relative", Value: 0x1p-22}, "f32", "f32")
		l.add("rsqrt.approx"+mod+".f32", Bound{Kind: "relative", Value: 0x1p-22}, "f32", "f32")
		l.add("ex2.approx"+mod+".f32", Bound{Kind: "relative", Value: 0x1p-22}, "f32", "f32")
		l.add("lg2.approx"+mod+".f32", Bound{Kind: "absolute or relative", Value: 0x1p-22}, "f32", "f32")
	}
	l.add("tanh.approx.f32", Bound{Kind: "relative", Value: 0x1p-11}, "f32", "f32")
	l.code("sin.approx.f32", "sin.approx.f32 %d0, %a0;", Bound{Kind: "absolute", Value: 0x1p-20}, true, types("f32"), types("f32"))
	l.code("cos.approx.f32", "cos.approx.f32 %d0, %a0;", Bound{Kind: "absolute", Value: 0x1p-20}, true, types("f32"), types("f32"))
	l.add("ex2.approx.f16", Bound{Kind: "relative", Value: 0x1p-9}, "f16", "f16")
	l.add("tanh.approx.f16", Bound{Kind: "relative", Value: 0x1p-10}, "f16", "f16")
	l.add("tanh.approx.bf16", Bound{Kind: "relative", Value: 0x1p-7}, "bf16", "bf16")
	l.add("ex2.approx.ftz.bf16", Bound{Kind: "relative", Value: 0x1p-7}, "bf16", "bf16")
}

func (l *list) halves() {
	for _, t := range types("f16 f16x2") {
		for _, mod := range []string{"", ".ftz", ".sat", ".ftz.sat"} {
			for _, op := range []string{"add", "sub", "mul"} {
				l.add(op+mod+"."+string(t), Exact, t, t, t)
			}
			l.add("fma.rn"+mod+"."+string(t), Exact, t, t, t, t)
		}
		l.add("fma.rn.relu."+string(t), Exact, t, t, t, t)
	}
	for _, t := range types("bf16 bf16x2") {
		for _, op := range []string{"add", "sub", "mul"} {
			l.add(op+"."+string(t), Exact, t, t, t)
		}
		l.add("fma.rn."+string(t), Exact, t, t, t, t)
		l.add("fma.rn.relu."+string(t), Exact, t, t, t, t)
	}
	for _, t := range types("f16 f16x2 bf16 bf16x2") {
		for _, op := range []string{"min", "max"} {
			l.add(op+"."+string(t), Exact, t, t, t)
			l.add(op+".NaN."+string(t), Exact, t, t, t)
			l.add(op+".xorsign.abs."+string(t), Exact, t, t, t)
		}
		l.add("neg."+string(t), Bound{Kind: "exact", AnyNaN: true}, t, t)
		l.add("abs."+string(t), Bound{Kind: "exact", AnyNaN: true}, t, t)
	}
}

func (l *list) compares() {
	for _, t := range types("u16 s16 u32 s32 u64 s64") {
		for _, c := range []string{"eq", "ne", "lt", "le", "gt", "ge"} {
			l.add("setp."+c+"."+string(t), Exact, "pred", t, t)
		}
	}
	for _, c := range []string{"lo", "ls", "hi", "hs"} {
		l.add("setp."+c+".u32", Exact, "pred", "u32", "u32")
	}
	for _, t := range types("f32 f64 f16 bf16") {
		for _, c := range []string{"eq", "ne", "lt", "le", "gt", "ge", "equ", "neu", "ltu", "leu", "gtu", "geu", "num", "nan"} {
			l.add("setp."+c+"."+string(t), Exact, "pred", t, t)
		}
	}
	l.add("setp.lt.ftz.f32", Exact, "pred", "f32", "f32")
	l.add("setp.eq.ftz.f32", Exact, "pred", "f32", "f32")
	l.add("setp.lt.and.s32", Exact, "pred", "s32", "s32", "pred")
	l.add("setp.lt.or.s32", Exact, "pred", "s32", "s32", "pred")
	l.add("setp.lt.xor.s32", Exact, "pred", "s32", "s32", "pred")
	l.code("setp.gt.s32 p|q", "setp.gt.s32 %d0|%d1, %a0, %a1;", Exact, false, types("pred pred"), types("s32 s32"))
	l.add("set.lt.u32.f32", Exact, "u32", "f32", "f32")
	l.add("set.lt.f32.s32", Exact, "f32", "s32", "s32")
	l.add("set.eq.s32.u32", Exact, "s32", "u32", "u32")
	l.add("selp.b32", Exact, "b32", "b32", "b32", "pred")
	l.add("selp.b64", Exact, "b64", "b64", "b64", "pred")
	l.add("slct.b32.s32", Exact, "b32", "b32", "b32", "s32")
	l.add("slct.f32.f32", Exact, "f32", "f32", "f32", "f32")
	for _, p := range []string{"finite", "infinite", "number", "notanumber", "normal", "subnormal"} {
		l.add("testp."+p+".f32", Exact, "pred", "f32")
	}
}
