package conform

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// atomics lists read-modify-writes of a shared word of each thread's own: the old value and the new one.
func (l *list) atomics() {
	for _, a := range []struct{ ops, types string }{
		{"add min max", "u32 s32 u64"}, {"and or xor exch", "b32 b64"}, {"inc dec", "u32"}, {"min max", "s64"}, {"add", "f32 f64 f16 f16x2 bf16 bf16x2"},
	} {
		for _, op := range strings.Fields(a.ops) {
			for _, t := range types(a.types) {
				mod := op
				if t.Bits() <= 32 && strings.Contains(string(t), "f16") {
					mod += ".noftz"
				}
				b := Exact
				if t == "f64" {
					b.AnyNaN = true
				}
				b.LowHalf = packedShared(op, t)
				l.code("atom.shared."+mod+"."+string(t), slot(t)+fmt.Sprintf("atom.shared.%s.%s %%d0, [%%t0], %%a1;\nld.shared.b%d %%d1, [%%t0];", mod, t, t.Bits()),
					b, false, []ptx.Type{t, t}, []ptx.Type{t, t})
				if op == "exch" || t == "s64" {
					continue
				}
				l.code("red.shared."+mod+"."+string(t), slot(t)+fmt.Sprintf("red.shared.%s.%s [%%t0], %%a1;\nld.shared.b%d %%d0, [%%t0];", mod, t, t.Bits()),
					b, false, []ptx.Type{t}, []ptx.Type{t, t})
			}
		}
	}
	for _, t := range types("b16 b32 b64") {
		l.code("atom.shared.cas."+string(t), slot(t)+fmt.Sprintf("atom.shared.cas.%s %%d0, [%%t0], %%a1, %%a2;\nld.shared.%s %%d1, [%%t0];", t, t), Exact, false,
			[]ptx.Type{t, t}, []ptx.Type{t, t, t})
	}
}

// packedShared reports whether an atomic of shared memory is one that the recorded driver's compiler gets wrong. The ISA adds both halves of
// a pair; driver 580.159.04 adds the lower half and leaves the upper one (plus +0). The simulator follows the ISA, so that only lower halves
// can be compared; TestPackedSharedAtomics says so if an answer recorded later is right.
func packedShared(op string, t ptx.Type) bool { return op == "add" && (t == "f16x2" || t == "bf16x2") }

// slot puts %a0 into the thread's 8 bytes of smem, whose address is then in %t0.
func slot(t ptx.Type) string {
	return fmt.Sprintf("mov.u32 %%t0, smem;\nmad.lo.u32 %%t0, %%x2, 8, %%t0;\nst.shared.b%d [%%t0], %%a0;\n", t.Bits())
}

// loads lists how narrow and vector loads widen.
func (l *list) loads() {
	store := "mov.u32 %t0, smem;\nmad.lo.u32 %t0, %x2, 16, %t0;\nst.shared.v4.b32 [%t0], {%a0, %a1, %a2, %a3};\n"
	in := types("b32 b32 b32 b32")
	for _, t := range types("u8 s8 u16 s16 u32 s32") {
		l.code("ld.shared."+string(t)+" to 32 bits", store+fmt.Sprintf("ld.shared.%s %%d0, [%%t0+4];", t), Exact, false, types("b32"), in)
		l.code("ld.shared."+string(t)+" to 64 bits", store+fmt.Sprintf("ld.shared.%s %%d0, [%%t0+8];", t), Exact, false, types("b64"), in)
		l.code("ld.shared.v2."+string(t), store+fmt.Sprintf("ld.shared.v2.%s {%%d0, %%d1}, [%%t0+8];", t), Exact, false, types("b32 b32"), in)
	}
	l.code("st.shared narrow", store+"st.shared.u8 [%t0+1], %a3;\nst.shared.u16 [%t0+6], %a2;\nld.shared.v4.b32 {%d0, %d1, %d2, %d3}, [%t0];", Exact, false, in, in)
	l.code("cp.async zero fill", store+"mov.u32 %t1, smem;\nadd.u32 %t1, %t1, 2048;\nmad.lo.u32 %t1, %x2, 16, %t1;\nand.b32 %t2, %a0, 7;\n"+
		"cp.async.ca.shared.global [%t1], [%io1], 8, %t2;\ncp.async.commit_group;\ncp.async.wait_group 0;\nld.shared.v2.b32 {%d0, %d1}, [%t1];",
		Exact, false, types("b32 b32"), in)
}

// warpgroups lists wgmma products m64n8 and m64n16. A lies in the first 2 KB of smem, B behind it; every thread brings 16 bytes of A, and
// the first 16 or 32 threads 16 bytes of B. What the bytes mean is the layout's business, so that layouts are compared too.
func (l *list) warpgroups() {
	type layout struct {
		name                   string
		mode                   uint64 // of the descriptors
		leadA, strideA         uint64
		leadB, strideB         uint64
		transA, transB, halves bool
	}
	layouts := []layout{
		{"no swizzle", 0, 128, 256, 128, 256, false, false, false},
		{"32-byte swizzle", 3, 16, 256, 16, 256, false, false, false},
		{"no swizzle, transposed", 0, 128, 256, 128, 256, true, true, true},
		{"32-byte swizzle, transposed", 3, 512, 256, 512, 256, true, true, true},
		{"no swizzle, b transposed", 0, 128, 256, 128, 256, false, true, true},
	}
	for _, m := range []struct {
		d, a, b string
		k       int
		in      ptx.Type
	}{
		{"f32", "f16", "f16", 16, "f16x2"}, {"f16", "f16", "f16", 16, "f16x2"}, {"f32", "bf16", "bf16", 16, "bf16x2"}, {"f32", "tf32", "tf32", 8, "tf32"},
		{"f32", "e4m3", "e4m3", 32, "b32"}, {"f32", "e5m2", "e4m3", 32, "b32"}, {"s32", "s8", "s8", 32, "b32"}, {"s32", "u8", "s8", 32, "b32"}, {"s32", "s8", "u8", 32, "b32"},
	} {
		for _, y := range layouts {
			if y.halves && m.k != 16 {
				continue
			}
			v := wgmmaVariant(m.d, m.a, m.b, m.k, m.in)
			desc := func(offset, lead, stride uint64) string {
				return fmt.Sprintf("%#x", (offset>>4)|lead>>4<<16|stride>>4<<32|y.mode<<62)
			}
			immediates := ""
			if m.d != "s32" {
				immediates = ", 1, 1"
			}
			if m.k == 16 {
				immediates += fmt.Sprintf(", %d, %d", bit(y.transA), bit(y.transB))
			}
			v.Name = fmt.Sprintf("wgmma m64n16k%d.%s.%s.%s, %s", m.k, m.d, m.a, m.b, y.name)
			v.Code = strings.NewReplacer("DESC_A", desc(0, y.leadA, y.strideA), "DESC_B", desc(2048, y.leadB, y.strideB), "IMM", immediates).Replace(v.Code)
			*l = append(*l, v)
		}
	}
}

func bit(b bool) int {
	if b {
		return 1
	}
	return 0
}

// wgmmaVariant is the code of one product, with the descriptors' constant parts and the immediates left open.
func wgmmaVariant(d, a, b string, k int, in ptx.Type) Variant {
	out, n, bound := ptx.Type("s32"), 8, Exact
	switch {
	case d == "f16":
		out, n, bound = "f16x2", 4, Bound{Kind: "mma", Value: 0x1p-10, K: k}
	case d == "f32" && k == 32:
		out, bound = "f32", Bound{Kind: "mma", Value: 0x1p-13, K: k}
	case d == "f32":
		out, bound = "f32", Bound{Kind: "mma", Value: 0x1p-23, K: k}
	}
	code := ""
	if in == "b32" && d == "f32" { // no infinity and no NaN
		for i := range 8 {
			code += fmt.Sprintf("and.b32 %%a%d, %%a%d, 0xb7b7b7b7;\n", i, i)
		}
	}
	code += "mov.u32 %t0, smem;\nmad.lo.u32 %t1, %x2, 16, %t0;\nst.shared.v4.b32 [%t1], {%a0, %a1, %a2, %a3};\nsetp.lt.u32 %p0, %x2, 32;\n" +
		"@%p0 st.shared.v4.b32 [%t1+2048], {%a4, %a5, %a6, %a7};\nfence.proxy.async;\nbar.sync 0;\n" +
		"shr.u32 %t0, %t0, 4;\ncvt.u64.u32 %w0, %t0;\nadd.u64 %w1, %w0, DESC_A;\nadd.u64 %w2, %w0, DESC_B;\n"
	for i := range n {
		code += fmt.Sprintf("mov.b32 %%d%d, %%a%d;\n", i, 8+i)
	}
	code += fmt.Sprintf("setp.eq.u32 %%p1, 0, 0;\nwgmma.fence.sync.aligned;\nwgmma.mma_async.sync.aligned.m64n16k%d.%s.%s.%s {%s}, %%w1, %%w2, %%p1IMM;\n", k, d, a, b, registers("d", 0, n)) +
		"wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;"
	return Variant{Code: code, In: append(repeat(in, 8), repeat(out, n)...), Out: repeat(out, n), Bound: bound, Tame: d != "s32"}
}
