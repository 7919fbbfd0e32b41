package ptx

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const sample = `//
.version 9.0
.target sm_90a
.address_size 64
.extern .shared .align 16 .b8 dyn[];
.global .align 4 .b8 table[8] = {1, 2, 3, 4, 255, 0x10, 077, 0};
.global .align 8 .u64 refs[2] = {table, generic(table)+4};
.const .align 4 .f32 half = 0f3F000000;
.func  (.param .b32 retval) twice(.param .b32 twice_param_0)
.noreturn
{
	.reg .b32 %r<3>;
	ld.param.u32 %r1, [twice_param_0];
	add.s32 %r2, %r1, %r1;
	st.param.b32 [retval+0], %r2;
	ret;
}
.visible .entry k(
	.param .align 8 .b8 k_param_0[32],
	.param .u64 .ptr .global .align 4 k_param_1
)
.maxntid 128, 1, 1
.minnctapersm 2
{
	.local .align 4 .b8 	__local_depot0[28];
	.reg .pred %p<4>;
	.reg .b32 %r<9>;
	.reg .f32 %f<4>;
	.reg .b64 %rd<5>;
	.shared .align 4 .b8 s[256];
	.loc	1 6 2
	mov.u32 	%r1, %tid.x;
	ld.param.v2.u32 	{%r2, %r3}, [k_param_0+16];
	.loc	2 9 1, function_name $L__info_string0, inlined_at 1 7 3
	@!%p1 bra 	$L__BB0_2;
	{ .reg .pred p; .reg .b32 %r1; setp.ne.b32 p, %r2, 0; @p mov.b32 %r1, -5; }
	shfl.sync.bfly.b32 	%r4|%p2, %r2, 16, 31, -1;
	mov.f32 %f1, 0fBF800000;
	mov.f64 %fd, 1.5;
$L__BB0_2:
	.pragma "nounroll";
	st.shared.f32 [s+4], %f1;
	call.uni (retval0), twice, (param0);
	bar.sync 0;
	ret;
}
	.file	1 "a.cu"
.section .debug_str { $L__info_string0: .b8 102 .b8 0 }
`

func TestParse(t *testing.T) {
	text := strings.Replace(sample, "\tmov.f64 %fd, 1.5;\n\tcall", "\tcall", 1)
	text = strings.NewReplacer("\tmov.f64 %fd, 1.5;\n", "", "call.uni (retval0), twice, (param0);", "{ .param .b32 param0; .param .b32 retval0; st.param.b32 [param0], %r1;\ncall.uni (retval0), twice, (param0); }").Replace(text)
	m, err := Parse(text)
	if err != nil {
		t.Fatal(err)
	}
	k := m.Func("k")
	if m.Major != 9 || m.Target != "sm_90a" || len(m.Funcs) != 2 || m.Files[1] != "a.cu" || k == nil || k.MaxThreads != 128 || k.MinBlocks != 2 {
		t.Fatalf("module %d.%d %s, functions %d, files %v, kernel %+v", m.Major, m.Minor, m.Target, len(m.Funcs), m.Files, k)
	}
	if v := m.Vars[1]; string(v.Init) != "\x01\x02\x03\x04\xff\x10\x3f\x00" {
		t.Errorf("table is %x", v.Init)
	}
	if v := m.Vars[2]; len(v.Refs) != 2 || v.Refs[1].Add != 4 || v.Refs[1].Offset != 8 {
		t.Errorf("refs are %+v", v.Refs)
	}
	find := func(op string) *Instr {
		for i := range k.Code {
			if k.Code[i].Full() == op {
				return &k.Code[i]
			}
		}
		t.Fatalf("no %s", op)
		return nil
	}
	if in := find("ld.param.v2.u32"); in.Src.Line != 6 || len(in.Args[0].Elems) != 2 || in.Args[1].Off != 16 {
		t.Errorf("ld is %+v", in)
	}
	bra := find("bra")
	if !bra.Negated || bra.Src.InlinedAt == nil || bra.Src.InlinedAt.Line != 7 || k.Code[bra.Args[0].Target].Op != "st" {
		t.Errorf("bra is %+v, to %+v", bra, k.Code[bra.Args[0].Target])
	}
	if in := find("mov.b32"); k.Regs[in.Args[0].Reg].Name != "%r1" || in.Args[0].Reg == find("mov.u32").Args[0].Reg || in.Args[1].Bits != ^uint64(4) {
		t.Errorf("the inner scope's %%r1 is %+v", in)
	}
}

// TestParseErrors: what is wrong is named with its line.
func TestParseErrors(t *testing.T) {
	head := ".version 9.0\n.target sm_90a\n.address_size 64\n.visible .entry k()\n{\n.reg .b32 %r<3>;\n"
	for _, tc := range []struct{ name, text, want string }{
		{"unknown directive", ".version 9.0\n.target sm_90a\n.surface x;", "line 3: unknown directive .surface"},
		{"address size", ".version 9.0\n.target sm_90a\n.address_size 32", "line 3: address_size 32"},
		{"no semicolon", head + "add.s32 %r1, %r1, %r2\n}", `line 8: kernel k: expected ";"`},
		{"unknown name", head + "bra nowhere;\n}", `line 7: kernel k: unknown name "nowhere"`},
		{"guard", head + "@%r1 ret;\n}", "the guard is no predicate"},
		{"open body", head + "ret;\n", "the text ends inside the body"},
		{"register type", head + ".reg .q17 %z;\n}", "unknown register type .q17"},
		{"float literal", head + "mov.b32 %r1, 0f12;\n}", "bad float literal"},
		{"string", ".version 9.0\n.target sm_90a\n.file 1 \"abc", "unterminated string"},
		{"alignment", ".version 9.0\n.target sm_90a\n.global .align 3 .b8 x[4];", "not a power of two"},
	} {
		t.Run(tc.name, func(t *testing.T) {
			_, err := Parse(tc.text)
			if err == nil || !strings.Contains(err.Error(), tc.want) {
				t.Errorf("got %v, want it to say %q", err, tc.want)
			}
		})
	}
}

// FuzzParse: no text makes the parser panic or hang.
func FuzzParse(f *testing.F) {
	f.Add(sample)
	files, err := filepath.Glob("testdata/*.ptx")
	if err != nil {
		f.Fatal(err)
	}
	for _, name := range files {
		data, err := os.ReadFile(name)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(string(data))
	}
	f.Fuzz(func(t *testing.T, text string) {
		m, err := Parse(text)
		if err == nil && m == nil {
			t.Error("neither a module nor an error")
		}
	})
}
