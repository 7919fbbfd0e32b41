package sim_test

import (
	"fmt"
	"math"
	"math/bits"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/runtime/sim/conform"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// operation is one instruction of a random program on 32-bit registers, and what it means in plain Go.
type operation struct {
	text string // with D, A, B, C for the registers
	eval func(a, b, c uint32) uint32
}

func f32(f func(a, b, c float32) float32) func(a, b, c uint32) uint32 {
	return func(a, b, c uint32) uint32 {
		r := f(math.Float32frombits(a), math.Float32frombits(b), math.Float32frombits(c))
		if r != r {
			return 0x7fffffff
		}
		return math.Float32bits(r)
	}
}

func boolean(v bool) uint32 {
	if v {
		return 1
	}
	return 0
}

var operations = []operation{
	{"add.s32 D, A, B;", func(a, b, _ uint32) uint32 { return a + b }},
	{"sub.s32 D, A, B;", func(a, b, _ uint32) uint32 { return a - b }},
	{"mul.lo.s32 D, A, B;", func(a, b, _ uint32) uint32 { return a * b }},
	{"mul.hi.u32 D, A, B;", func(a, b, _ uint32) uint32 { h, _ := bits.Mul32(a, b); return h }},
	{"mad.lo.s32 D, A, B, C;", func(a, b, c uint32) uint32 { return a*b + c }},
	{"and.b32 D, A, B;", func(a, b, _ uint32) uint32 { return a & b }},
	{"or.b32 D, A, B;", func(a, b, _ uint32) uint32 { return a | b }},
	{"xor.b32 D, A, B;", func(a, b, _ uint32) uint32 { return a ^ b }},
	{"not.b32 D, A;", func(a, _, _ uint32) uint32 { return ^a }},
	{"lop3.b32 D, A, B, C, 0xca;", func(a, b, c uint32) uint32 { return a&b | ^a&c }},
	{"lop3.b32 D, A, B, C, 0x1e;", func(a, b, c uint32) uint32 { return a ^ (b | c) }},
	{"shl.b32 D, A, B;", func(a, b, _ uint32) uint32 { return a << b }},
	{"shr.u32 D, A, B;", func(a, b, _ uint32) uint32 { return a >> b }},
	{"shr.s32 D, A, B;", func(a, b, _ uint32) uint32 { return uint32(int32(a) >> min(b, 31)) }},
	{"shf.l.wrap.b32 D, A, A, B;", func(a, b, _ uint32) uint32 { return bits.RotateLeft32(a, int(b&31)) }},
	{"popc.b32 D, A;", func(a, _, _ uint32) uint32 { return uint32(bits.OnesCount32(a)) }},
	{"clz.b32 D, A;", func(a, _, _ uint32) uint32 { return uint32(bits.LeadingZeros32(a)) }},
	{"brev.b32 D, A;", func(a, _, _ uint32) uint32 { return bits.Reverse32(a) }},
	{"min.s32 D, A, B;", func(a, b, _ uint32) uint32 { return uint32(min(int32(a), int32(b))) }},
	{"max.u32 D, A, B;", func(a, b, _ uint32) uint32 { return max(a, b) }},
	{"prmt.b32 D, A, B, 0x5410;", func(a, b, _ uint32) uint32 { return a&0xffff | b<<16 }},
	{"prmt.b32 D, A, B, 0x3276;", func(a, b, _ uint32) uint32 { return a&0xffff0000 | b>>16 }},
	{"setp.lt.s32 %p0, A, B; selp.b32 D, A, C, %p0;", func(a, b, c uint32) uint32 {
		if int32(a) < int32(b) {
			return a
		}
		return c
	}},
	{"setp.ge.u32 %p0, A, B; @%p0 add.s32 A, A, 1; mov.b32 D, A;", nil},
	{"add.rn.f32 D, A, B;", f32(func(a, b, _ float32) float32 { return a + b })},
	{"mul.rn.f32 D, A, B;", f32(func(a, b, _ float32) float32 { return a * b })},
	{"div.rn.f32 D, A, B;", f32(func(a, b, _ float32) float32 { return a / b })},
	{"cvt.rn.f32.s32 D, A;", func(a, _, _ uint32) uint32 { return math.Float32bits(float32(int32(a))) }},
	{"cvt.u32.u8 D, A;", func(a, _, _ uint32) uint32 { return a & 255 }},
	{"cvt.s32.s8 D, A;", func(a, _, _ uint32) uint32 { return uint32(int32(int8(a))) }},
	{"setp.eq.f32 %p0, A, B; selp.b32 D, 1, 0, %p0;", func(a, b, _ uint32) uint32 {
		return boolean(math.Float32frombits(a) == math.Float32frombits(b))
	}},
	{"bfe.u32 D, A, 5, 9;", func(a, _, _ uint32) uint32 { return a >> 5 & 511 }},
	{"bfi.b32 D, A, B, 7, 6;", func(a, b, _ uint32) uint32 { return b&^(63<<7) | a&63<<7 }},
	{"mul.wide.u32 %w0, A, B; shr.u64 %w0, %w0, 16; cvt.u32.u64 D, %w0;", func(a, b, _ uint32) uint32 { return uint32(uint64(a) * uint64(b) >> 16) }},
	{"mov.b64 %w0, {A, B}; neg.s64 %w0, %w0; mov.b64 {D, %t0}, %w0;", func(a, b, _ uint32) uint32 { return uint32(-(uint64(b)<<32 | uint64(a))) }},
}

const programRegisters = 6

// program turns fuzz bytes into PTX text on %a0 to %a5, and runs it in Go on one thread's registers.
func program(data []byte) (text string, run func(r *[programRegisters]uint32)) {
	type inst struct{ op, d, a, b, c int }
	var list []inst
	var b strings.Builder
	for len(data) >= 3 && len(list) < 200 {
		i := inst{int(data[0]) % len(operations), int(data[1]) % programRegisters, int(data[1]/8) % programRegisters, int(data[2]) % programRegisters, int(data[2]/8) % programRegisters}
		data = data[3:]
		list = append(list, i)
		name := func(n int) string { return fmt.Sprintf("%%a%d", n) }
		b.WriteString(strings.NewReplacer("D", name(i.d), "A", name(i.a), "B", name(i.b), "C", name(i.c)).Replace(operations[i.op].text) + "\n")
	}
	for i := range programRegisters {
		fmt.Fprintf(&b, "mov.b32 %%d%d, %%a%d;\n", i, i)
	}
	return b.String(), func(r *[programRegisters]uint32) {
		for _, i := range list {
			if f := operations[i.op].eval; f != nil {
				r[i.d] = f(r[i.a], r[i.b], r[i.c])
				continue
			}
			if r[i.a] >= r[i.b] {
				r[i.a]++
			}
			r[i.d] = r[i.a]
		}
	}
}

// FuzzProgram compares random straight-line programs with their evaluation in Go.
func FuzzProgram(f *testing.F) {
	all := []byte{}
	for i := range operations {
		all = append(all, byte(i), byte(i*37+11), byte(i*91+5))
	}
	f.Add(all)
	f.Add([]byte{0, 1, 2, 26, 9, 17, 4, 40, 50})
	f.Fuzz(func(t *testing.T, data []byte) {
		text, run := program(data)
		v := conform.Variant{Name: "program", Code: text}
		for range programRegisters {
			v.In, v.Out = append(v.In, "b32"), append(v.Out, "b32")
		}
		d, err := sim.New(sim.Config{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		in := v.Inputs()
		got, err := v.RunOn(d, in)
		if err != nil {
			t.Fatal(err)
		}
		for i := range conform.Count {
			var r [programRegisters]uint32
			for k := range r {
				r[k] = uint32(in[k][i])
			}
			run(&r)
			for k := range r {
				if uint32(got[k][i]) != r[k] {
					t.Fatalf("thread %d, register %d: want %#x, got %#x, of\n%s", i, k, r[k], got[k][i], text)
				}
			}
		}
	})
}

// FuzzLoad: a module that parses is loaded or refused, and runs or faults, without a panic.
func FuzzLoad(f *testing.F) {
	for _, v := range conform.Variants()[:200] {
		f.Add(v.Text())
	}
	f.Fuzz(func(t *testing.T, text string) {
		if m, err := ptx.Parse(text); err != nil || len(m.Vars) > 100 {
			return
		}
		d, err := sim.New(sim.Config{Workers: 1, InstructionLimit: 1000})
		if err != nil {
			t.Fatal(err)
		}
		defer d.Close()
		m, err := d.Load([]byte(text))
		if err != nil {
			return
		}
		if err := m.Unload(); err != nil {
			t.Error(err)
		}
	})
}
