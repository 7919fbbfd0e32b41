package conform

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

func (l *list) conversions() {
	ints := types("u8 s8 u16 s16 u32 s32 u64 s64")
	for _, d := range ints {
		for _, s := range ints {
			if d == s {
				continue
			}
			l.convert("cvt."+string(d)+"."+string(s), d, s)
			if !holds(d, s) { // the assembler refuses to saturate what always fits
				l.convert("cvt.sat."+string(d)+"."+string(s), d, s)
			}
		}
	}
	for _, f := range types("f16 f32 f64") {
		for _, i := range ints {
			for _, r := range []string{"rn", "rz", "rm", "rp"} {
				l.convert("cvt."+r+"."+string(f)+"."+string(i), f, i)
			}
			for _, r := range []string{"rni", "rzi", "rmi", "rpi"} {
				l.convert("cvt."+r+"."+string(i)+"."+string(f), i, f)
			}
		}
		for _, r := range []string{"rni", "rzi", "rmi", "rpi"} {
			l.convert("cvt."+r+"."+string(f)+"."+string(f), f, f)
		}
	}
	for _, r := range []string{"rn", "rz", "rm", "rp"} {
		l.convert("cvt."+r+".f32.f64", "f32", "f64")
		l.convert("cvt."+r+".f16.f64", "f16", "f64")
	}
	l.convert("cvt.rn.ftz.f32.f64", "f32", "f64")
	l.convert("cvt.rn.sat.f32.f64", "f32", "f64")
	for _, n := range []string{"cvt.rn.f16.f32", "cvt.rz.f16.f32", "cvt.rn.sat.f16.f32", "cvt.rn.relu.f16.f32", "cvt.rm.f16.f32"} {
		l.convert(n, "f16", "f32")
	}
	for _, n := range []string{"cvt.rn.bf16.f32", "cvt.rz.bf16.f32", "cvt.rn.relu.bf16.f32"} {
		l.convert(n, "bf16", "f32")
	}
	l.convert("cvt.f32.f16", "f32", "f16")
	l.convert("cvt.f32.bf16", "f32", "bf16")
	l.convert("cvt.f64.f32", "f64", "f32")
	l.convert("cvt.f64.f16", "f64", "f16")
	l.convert("cvt.ftz.f64.f32", "f64", "f32")
	l.convert("cvt.sat.f32.f32", "f32", "f32")
	for _, n := range []string{"cvt.rn.f16x2.f32", "cvt.rz.f16x2.f32", "cvt.rn.relu.f16x2.f32"} {
		l.add(n, Exact, "f16x2", "f32", "f32")
	}
	for _, n := range []string{"cvt.rn.bf16x2.f32", "cvt.rz.bf16x2.f32", "cvt.rn.relu.bf16x2.f32"} {
		l.add(n, Exact, "bf16x2", "f32", "f32")
	}
	for _, t := range []string{"e4m3x2", "e5m2x2"} {
		l.add("cvt.rn.satfinite."+t+".f32", Exact, "b16", "f32", "f32")
		l.add("cvt.rn.satfinite.relu."+t+".f32", Exact, "b16", "f32", "f32")
		l.add("cvt.rn.satfinite."+t+".f16x2", Exact, "b16", "f16x2")
		l.add("cvt.rn.f16x2."+t, Exact, "f16x2", ptx.Type(t))
		l.add("cvt.rn.relu.f16x2."+t, Exact, "f16x2", ptx.Type(t))
	}
	l.add("cvt.rna.tf32.f32", Exact, "b32", "f32")
	l.add("cvt.rn.tf32.f32", Exact, "b32", "f32")
	l.add("cvt.rz.tf32.f32", Exact, "b32", "f32")
	for _, t := range []string{"s8", "u8"} {
		l.add("cvt.pack.sat."+t+".s32.b32", Exact, "b32", "s32", "s32", "b32")
	}
	for _, t := range []string{"s16", "u16"} {
		l.add("cvt.pack.sat."+t+".s32", Exact, "b32", "s32", "s32")
	}
}

// holds reports whether every value of s is one of d.
func holds(d, s ptx.Type) bool {
	if d[0] == 'u' {
		return s[0] == 'u' && d.Bits() >= s.Bits()
	}
	return d.Bits() > s.Bits() || s[0] == 's' && d.Bits() == s.Bits()
}

// convert appends a conversion; NaN payloads of f64 are the hardware's own.
func (l *list) convert(name string, d, s ptx.Type) {
	b := Exact
	if d == "f64" {
		b.AnyNaN = true
	}
	l.add(name, b, d, s)
}

func (l *list) warp() {
	for _, m := range []string{"up", "down", "bfly", "idx"} {
		for _, c := range []string{"0x1f", "0x181f", "0", "0x1807"} {
			l.code("shfl.sync."+m+" "+c, fmt.Sprintf("shfl.sync.%s.b32 %%d0|%%d1, %%a0, %%a1, %s, 0xffffffff;", m, c), Exact, false, types("b32 pred"), types("b32 u32"))
		}
	}
	l.code("vote.sync", "vote.sync.all.pred %d0, %a0, 0xffffffff;\nvote.sync.any.pred %d1, %a0, 0xffffffff;\nvote.sync.uni.pred %d2, %a0, 0xffffffff;\nvote.sync.ballot.b32 %d3, %a0, 0xffffffff;",
		Exact, false, types("pred pred pred b32"), types("pred"))
	l.code("match.any.sync.b32", "and.b32 %a0, %a0, 3;\nmatch.any.sync.b32 %d0, %a0, 0xffffffff;", Exact, false, types("b32"), types("b32"))
	l.code("match.all.sync.b32", "and.b32 %a0, %a0, 1;\nmatch.all.sync.b32 %d0|%d1, %a0, 0xffffffff;", Exact, false, types("b32 pred"), types("b32"))
	for _, op := range []string{"add.u32", "add.s32", "min.u32", "min.s32", "max.u32", "max.s32", "and.b32", "or.b32", "xor.b32"} {
		l.code("redux.sync."+op, "redux.sync."+op+" %d0, %a0, 0xffffffff;", Exact, false, types("u32"), types("u32"))
	}
	l.code("activemask", "activemask.b32 %d0;", Exact, false, types("b32"), types("b32"))
	l.code("lanemasks", "mov.u32 %d0, %lanemask_eq;\nmov.u32 %d1, %lanemask_lt;\nmov.u32 %d2, %lanemask_le;\nmov.u32 %d3, %lanemask_gt;\nmov.u32 %d4, %lanemask_ge;\nmov.u32 %d5, %laneid;",
		Exact, false, types("b32 b32 b32 b32 b32 b32"), types("b32"))
	l.code("elect.sync", "elect.sync %d0|%d1, 0xffffffff;", Exact, false, types("b32 pred"), types("b32"))
	l.code("elect.sync part", "setp.gt.u32 %p0, %x2, 69;\nmov.u32 %d0, 77;\nmov.pred %d1, 0;\n@%p0 bra DONE;\nactivemask.b32 %t0;\nelect.sync %d0|%d1, %t0;\nDONE:", Exact, false, types("b32 pred"), types("b32"))
	l.code("movmatrix", "movmatrix.sync.aligned.m8n8.trans.b16 %d0, %a0;", Exact, false, types("b32"), types("b32"))
	// Every warp has 1 KB: eight rows of 16 bytes for each matrix. Lane l gives row l.
	store := "mov.u32 %t0, smem;\nand.b32 %t1, %x2, 31;\nshr.u32 %t2, %x2, 5;\nmad.lo.u32 %t0, %t2, 1024, %t0;\nmad.lo.u32 %t3, %t1, 16, %t0;\n"
	fill := store + "st.shared.v4.b32 [%t3], {%a0, %a1, %a2, %a3};\nbar.warp.sync 0xffffffff;\n"
	for _, trans := range []string{"", ".trans"} {
		for n, regs := range map[string]string{"x1": "%d0", "x2": "%d0, %d1", "x4": "%d0, %d1, %d2, %d3"} {
			out := types(strings.Repeat("b32 ", strings.Count(regs, ",")+1))
			l.code("ldmatrix."+n+trans, fill+fmt.Sprintf("ldmatrix.sync.aligned.m8n8.%s%s.shared.b16 {%s}, [%%t3];", n, trans, regs), Exact, false, out, types("b32 b32 b32 b32"))
			src := strings.ReplaceAll(regs, "%d", "%a")
			l.code("stmatrix."+n+trans, store+"st.shared.v4.b32 [%t3], {0, 0, 0, 0};\nbar.warp.sync 0xffffffff;\n"+
				fmt.Sprintf("stmatrix.sync.aligned.m8n8.%s%s.shared.b16 [%%t3], {%s};\nbar.warp.sync 0xffffffff;\n", n, trans, src)+
				"ld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%t3];", Exact, false, types("b32 b32 b32 b32"), types("b32 b32 b32 b32"))
		}
	}
}

// registers is "%a4, %a5, %a6" for n names from first.
func registers(prefix string, first, n int) string {
	var out []string
	for i := range n {
		out = append(out, fmt.Sprintf("%%%s%d", prefix, first+i))
	}
	return strings.Join(out, ", ")
}

func repeat(t ptx.Type, n int) []ptx.Type {
	var out []ptx.Type
	for range n {
		out = append(out, t)
	}
	return out
}

func (l *list) matrices() {
	for _, m := range []struct {
		shape, d, a, b, c string
		k, na, nb         int
		in                ptx.Type
	}{
		{"m16n8k8", "f32", "f16", "f16", "f32", 8, 2, 1, "f16x2"},
		{"m16n8k16", "f32", "f16", "f16", "f32", 16, 4, 2, "f16x2"},
		{"m16n8k8", "f16", "f16", "f16", "f16", 8, 2, 1, "f16x2"},
		{"m16n8k16", "f16", "f16", "f16", "f16", 16, 4, 2, "f16x2"},
		{"m16n8k8", "f32", "bf16", "bf16", "f32", 8, 2, 1, "bf16x2"},
		{"m16n8k16", "f32", "bf16", "bf16", "f32", 16, 4, 2, "bf16x2"},
		{"m16n8k4", "f32", "tf32", "tf32", "f32", 4, 2, 1, "tf32"},
		{"m16n8k8", "f32", "tf32", "tf32", "f32", 8, 4, 2, "tf32"},
		{"m16n8k16", "s32", "s8", "s8", "s32", 16, 2, 1, "b32"},
		{"m16n8k32", "s32", "s8", "s8", "s32", 32, 4, 2, "b32"},
		{"m16n8k32", "s32", "u8", "s8", "s32", 32, 4, 2, "b32"},
		{"m16n8k32", "s32", "s8", "u8", "s32", 32, 4, 2, "b32"},
		{"m16n8k32", "s32", "u8", "u8", "s32", 32, 4, 2, "b32"},
		{"m16n8k32", "s32", "s4", "s4", "s32", 32, 2, 1, "b32"},
		{"m16n8k64", "s32", "s4", "s4", "s32", 64, 4, 2, "b32"},
		{"m16n8k64", "s32", "u4", "s4", "s32", 64, 4, 2, "b32"},
	} {
		out, nd, b := ptx.Type("s32"), 4, Exact
		if m.d == "f32" {
			out, b = "f32", Bound{Kind: "mma", Value: 0x1p-23, K: m.k}
		}
		if m.d == "f16" {
			out, nd, b = "f16x2", 2, Bound{Kind: "mma", Value: 0x1p-10, K: m.k}
		}
		in := append(append(repeat(m.in, m.na), repeat(m.in, m.nb)...), repeat(out, nd)...)
		for _, sat := range []string{"", ".satfinite"} {
			if sat != "" && out != "s32" {
				continue
			}
			name := fmt.Sprintf("mma.sync.aligned.%s.row.col%s.%s.%s.%s.%s", m.shape, sat, m.d, m.a, m.b, m.c)
			l.code(name, fmt.Sprintf("%s {%s}, {%s}, {%s}, {%s};", name, registers("d", 0, nd), registers("a", 0, m.na), registers("a", m.na, m.nb), registers("a", m.na+m.nb, nd)),
				b, out != "s32", repeat(out, nd), in)
		}
	}
	for _, t := range [][2]string{{"e4m3", "e4m3"}, {"e5m2", "e5m2"}, {"e4m3", "e5m2"}} {
		name := fmt.Sprintf("mma.sync.aligned.m16n8k32.row.col.f32.%s.%s.f32", t[0], t[1])
		// Without bit 3, no byte is an infinity or NaN in either format.
		code := ""
		for i := range 6 {
			code += fmt.Sprintf("and.b32 %%a%d, %%a%d, 0xb7b7b7b7;\n", i, i)
		}
		l.code(name, code+name+" {%d0, %d1, %d2, %d3}, {%a0, %a1, %a2, %a3}, {%a4, %a5}, {%a6, %a7, %a8, %a9};",
			Bound{Kind: "mma", Value: 0x1p-13, K: 32}, true, repeat("f32", 4), append(repeat("b32", 6), repeat("f32", 4)...))
	}
}
