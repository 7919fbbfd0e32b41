// Package conform compares devices instruction by instruction: one kernel for each variant of each PTX instruction, on random and
// special inputs. An H200's answers are kept in testdata, so that the simulator is checked against hardware with no GPU.
package conform

import (
	"encoding/binary"
	"fmt"
	"hash/fnv"
	"math/rand/v2"
	"strings"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// Bound says how far two devices may differ.
type Bound struct {
	Kind  string  // "exact", "ulp", "relative", "absolute", "mma"
	Value float64 // of ulp, relative and absolute; of mma: k in k x 2^-23 x (sum |ab| + |c|)
	K     int     // products summed, of mma
	// AnyNaN: any NaN equals any other.
	AnyNaN bool
	// LowHalf compares the lower 16 bits only; see packedShared.
	LowHalf bool
}

// Exact is bit for bit.
var Exact = Bound{Kind: "exact"}

// Variant is one instruction with all its modifiers. In the code, %a0, %a1, ... are inputs, %d0, %d1, ... outputs, and %t0 to %t7
// (b32), %w0 to %w3 (b64), %h0 to %h3 (b16) and %p0 to %p3 are free. smem is 4096 bytes of shared memory, aligned to 1024.
type Variant struct {
	Name  string
	Code  string
	In    []ptx.Type
	Out   []ptx.Type
	Bound Bound
	Tame  bool // moderate inputs only, for instructions that sum many
}

// Threads of a launch: Blocks blocks of one warpgroup.
const (
	Threads = 128
	Blocks  = 1
	Count   = Threads * Blocks
)

// Text is the variant as a PTX module with the entry "run", which takes the addresses of the inputs and of the outputs: 8 bytes for each
// value, [slot][thread].
func (v *Variant) Text() string {
	var b strings.Builder
	b.WriteString(".version 9.0\n.target sm_90a\n.address_size 64\n")
	b.WriteString(".visible .entry run(.param .u64 in, .param .u64 out)\n{\n")
	b.WriteString(".reg .b32 %t<8>;\n.reg .b64 %w<4>;\n.reg .b16 %h<4>;\n.reg .pred %p<4>;\n.reg .b64 %io<4>;\n.reg .b32 %x<4>;\n")
	b.WriteString(".shared .align 1024 .b8 smem[4096];\n")
	for i, t := range v.In {
		fmt.Fprintf(&b, ".reg .%s %%a%d;\n", regType(t), i)
	}
	for i, t := range v.Out {
		fmt.Fprintf(&b, ".reg .%s %%d%d;\n", regType(t), i)
	}
	b.WriteString("mov.u32 %x0, %ctaid.x;\nmov.u32 %x1, %ntid.x;\nmov.u32 %x2, %tid.x;\nmad.lo.u32 %x0, %x0, %x1, %x2;\n")
	b.WriteString("mul.wide.u32 %io0, %x0, 8;\nld.param.u64 %io1, [in];\nadd.u64 %io1, %io1, %io0;\nld.param.u64 %io2, [out];\nadd.u64 %io2, %io2, %io0;\n")
	for i, t := range v.In {
		fmt.Fprintf(&b, "ld.global.u64 %%io3, [%%io1+%d];\n%s", i*Count*8, fromWord(t, fmt.Sprintf("%%a%d", i)))
	}
	b.WriteString(v.Code)
	b.WriteString("\n")
	for i, t := range v.Out {
		fmt.Fprintf(&b, "%sst.global.u64 [%%io2+%d], %%io3;\n", toWord(t, fmt.Sprintf("%%d%d", i)), i*Count*8)
	}
	b.WriteString("ret;\n}\n")
	return b.String()
}

// regType is the register type that holds a value of a type.
func regType(t ptx.Type) string {
	switch t.Bits() {
	case 1:
		return "pred"
	case 8, 16:
		return "b16"
	case 32:
		if t == "f32" {
			return "f32"
		}
		return "b32"
	}
	if t == "f64" {
		return "f64"
	}
	return "b64"
}

func fromWord(t ptx.Type, reg string) string {
	switch {
	case t == "pred":
		return "setp.ne.u64 " + reg + ", %io3, 0;\n"
	case t.Bits() <= 16:
		return "cvt.u16.u64 " + reg + ", %io3;\n"
	case t.Bits() == 32:
		return "cvt.u32.u64 %x3, %io3;\nmov.b32 " + reg + ", %x3;\n"
	}
	return "mov.b64 " + reg + ", %io3;\n"
}

func toWord(t ptx.Type, reg string) string {
	switch {
	case t == "pred":
		return "selp.b64 %io3, 1, 0, " + reg + ";\n"
	case t.Bits() <= 16:
		return "cvt.u64.u16 %io3, " + reg + ";\n"
	case t.Bits() == 32:
		return "mov.b32 %x3, " + reg + ";\ncvt.u64.u32 %io3, %x3;\n"
	}
	return "mov.b64 %io3, " + reg + ";\n"
}

// Inputs are the variant's inputs, [slot][thread]: the same on every device and every day.
func (v *Variant) Inputs() [][]uint64 {
	h := fnv.New64a()
	h.Write([]byte(v.Name))
	r := rand.New(rand.NewPCG(h.Sum64(), 7))
	out := make([][]uint64, len(v.In))
	for s, t := range v.In {
		out[s] = make([]uint64, Count)
		special := specials(t)
		for i := range out[s] {
			switch {
			case v.Tame:
				out[s][i] = tame(t, r)
			case s == 0 && i < len(special):
				out[s][i] = special[i]
			case r.IntN(2) == 0:
				out[s][i] = special[r.IntN(len(special))]
			case r.IntN(2) == 0:
				out[s][i] = tame(t, r)
			default:
				out[s][i] = r.Uint64() & widthMask(t)
			}
		}
	}
	return out
}

func widthMask(t ptx.Type) uint64 {
	if t.Bits() >= 64 {
		return ^uint64(0)
	}
	return 1<<t.Bits() - 1
}

// Run executes a variant on a device and returns its outputs, [slot][thread].
func (v *Variant) Run(d device.Device) ([][]uint64, error) { return v.RunOn(d, v.Inputs()) }

// RunOn is Run on inputs of the caller's.
func (v *Variant) RunOn(d device.Device, in [][]uint64) ([][]uint64, error) {
	m, err := d.Load([]byte(v.Text()))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.Name, err)
	}
	out, err := v.launch(d, m, in)
	if uerr := m.Unload(); err == nil && uerr != nil {
		err = uerr
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", v.Name, err)
	}
	return out, nil
}

func (v *Variant) launch(d device.Device, m device.Module, inputs [][]uint64) (result [][]uint64, err error) {
	f, err := m.Function("run")
	if err != nil {
		return nil, err
	}
	s, err := d.NewStream()
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, s.Destroy()) }()
	var bytes []byte
	for _, slot := range inputs {
		for _, x := range slot {
			bytes = binary.LittleEndian.AppendUint64(bytes, x)
		}
	}
	in, err := d.Alloc(int64(max(len(bytes), 8)))
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, d.Free(in)) }()
	size := len(v.Out) * Count * 8
	out, err := d.Alloc(int64(size))
	if err != nil {
		return nil, err
	}
	defer func() { err = first(err, d.Free(out)) }()
	args := struct{ in, out device.Ptr }{in, out}
	l := device.Launch{Grid: [3]uint32{Blocks, 1, 1}, Block: [3]uint32{Threads, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
	data := make([]byte, size)
	for _, step := range []func() error{
		func() error { return d.Write(in, bytes) },
		func() error { return d.Fill(out, 0xa5, int64(size)) },
		func() error { return f.Launch(s, &l, unsafe.Pointer(&args), unsafe.Sizeof(args)) },
		s.Synchronize,
		func() error { return d.Read(data, out) },
	} {
		if err := step(); err != nil {
			return nil, err
		}
	}
	result = make([][]uint64, len(v.Out))
	for i := range result {
		for k := range Count {
			result[i] = append(result[i], binary.LittleEndian.Uint64(data[(i*Count+k)*8:]))
		}
	}
	return result, nil
}

func first(a, b error) error {
	if a != nil {
		return a
	}
	return b
}
