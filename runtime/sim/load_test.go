package sim_test

import (
	"errors"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/sim"
)

const ptxHead = ".version 9.0\n.target sm_90a\n.address_size 64\n"

// kernelText is a module with one kernel k(.param .u64 p).
func kernelText(body string) string {
	return ptxHead + ".visible .entry k(.param .u64 p)\n{\n.reg .b32 %r<9>;\n.reg .b64 %rd<9>;\n.reg .f32 %f<9>;\n.reg .pred %p<4>;\n" + body + "\n}\n.file 1 \"a.cu\"\n"
}

// oneKernel is a simulator with one kernel of kernelText loaded, whose argument is the address of memory.
type oneKernel struct {
	device *sim.Device
	kernel device.Function
	stream device.Stream
	memory device.Ptr
}

func loadOne(t *testing.T, c sim.Config, body string, memory int64) oneKernel {
	t.Helper()
	d, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	m, err := d.Load([]byte(kernelText(body)))
	if err != nil {
		t.Fatal(err)
	}
	f, err := m.Function("k")
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	p, err := d.Alloc(memory)
	if err != nil {
		t.Fatal(err)
	}
	return oneKernel{d.(*sim.Device), f, s, p}
}

func (k oneKernel) launch(blocks, threads uint32) error {
	l := grid(blocks, threads, 1)
	return k.kernel.Launch(k.stream, &l, unsafe.Pointer(&k.memory), unsafe.Sizeof(k.memory))
}

// TestLoadRefuses: what the simulator does not know is an error of Load that names the instruction, its lines and the kernel.
func TestLoadRefuses(t *testing.T) {
	for _, tc := range []struct {
		name, text string
		want       []string
	}{
		{"a cubin", "\x7fELF\x02", []string{"cubin", "PTX"}},
		{"no PTX", "hello", []string{"PTX line 1"}},
		{"empty", "", []string{".version"}},
		{"newer PTX", strings.Replace(kernelText("ret;"), "9.0", "9.1", 1), []string{"9.1", "9.0", "NVRTC 13.0"}},
		{"unknown instruction", kernelText(".loc 1 42 1\ntcgen05.alloc.b32 %r1, %r2;\nret;"), []string{"kernel k", "PTX line 11", "a.cu:42", "tcgen05.alloc.b32", "unknown instruction"}},
		{"unknown modifier", kernelText("add.quick.s32 %r1, %r2, %r3;\nret;"), []string{"add.quick.s32", "unknown modifier .quick", "kernel k"}},
		{"modifier of another instruction", kernelText("add.wide.s32 %r1, %r2, %r3;"), []string{"unknown modifier .wide"}},
		{"unknown type", kernelText("add.s33 %r1, %r2, %r3;"), []string{"add.s33"}},
		{"wrong register class", kernelText("add.s32 %r1, %rd2, %r3;"), []string{"%rd2", "b64", "s32"}},
		{"missing operand", kernelText("add.s32 %r1, %r2;"), []string{"2 operands"}},
		{"extra operand", kernelText("add.s32 %r1, %r2, %r3, %r4;"), []string{"4 operands"}},
		{"unknown special register", kernelText("mov.u32 %r1, %pm0;"), []string{"%pm0"}},
		{"no such mma", kernelText("mma.sync.aligned.m16n8k16.row.col.f32.f64.f64.f32 {%f1,%f2,%f3,%f4}, {%r1,%r2,%r3,%r4}, {%r5,%r6}, {%f1,%f2,%f3,%f4};"), []string{"mma.sync.aligned.m16n8k16", "f64"}},
		{"indirect call", kernelText("call (%r1), %rd1, (%r2), proto;"), []string{"PTX line"}},
		{"function without a body", ptxHead + ".extern .func ext();\n.visible .entry k()\n{\ncall ext;\nret;\n}\n", []string{"ext", "no body"}},
		{"recursion", ptxHead + ".func f()\n{\ncall f;\nret;\n}\n.visible .entry k()\n{\ncall f;\nret;\n}\n", []string{"f calls itself"}},
		{"undefined variable", kernelText("ld.global.u32 %r1, [nothing];"), []string{`unknown name "nothing"`}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			d, err := sim.New(sim.Config{})
			if err != nil {
				t.Fatal(err)
			}
			defer d.Close()
			_, err = d.Load([]byte(tc.text))
			if err == nil {
				t.Fatal("loaded")
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%q does not say %q", err, w)
				}
			}
		})
	}
}

func TestLaunchRefuses(t *testing.T) {
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	text := strings.Replace(kernelText("ret;"), "(.param .u64 p)", "(.param .u64 p)\n.maxntid 128, 1, 1", 1)
	m, err := d.Load([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Function("nothing"); err == nil || !strings.Contains(err.Error(), "nothing") {
		t.Errorf("a missing kernel: %v", err)
	}
	f, err := m.Function("k")
	if err != nil {
		t.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	p := uint64(0)
	for _, tc := range []struct {
		name   string
		launch device.Launch
		size   uintptr
		want   string
	}{
		{"good", grid(1, 128, 1), 8, ""},
		{"threads", grid(1, 1025, 1), 8, "1 to 1024 threads"},
		{"bounds", grid(1, 256, 1), 8, "at most 128"},
		{"no blocks", grid(0, 32, 1), 8, "grid"},
		{"cluster", grid(6, 32, 4), 8, "multiple of cluster"},
		{"large cluster", grid(16, 32, 16), 8, "SetNonPortableCluster"},
		{"no cluster", grid(1, 32, 0), 8, "{1,1,1}"},
		{"parameters", grid(1, 32, 1), 12, "12 bytes of parameters: the kernel has 8"},
		{"shared", device.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Cluster: [3]uint32{1, 1, 1}, DynamicShared: 50000}, 8, "SetMaxDynamicShared"},
	} {
		err := f.Launch(s, &tc.launch, unsafe.Pointer(&p), tc.size)
		switch {
		case tc.want == "" && err != nil, tc.want != "" && err == nil:
			t.Errorf("%s: %v", tc.name, err)
		case err != nil && (!strings.Contains(err.Error(), tc.want) || !strings.Contains(err.Error(), "k: ")):
			t.Errorf("%s: %q does not say %q", tc.name, err, tc.want)
		}
	}
	if err := f.SetMaxDynamicShared(228 << 10); err == nil {
		t.Error("228 KB of shared memory are no error")
	}
	if err := f.SetMaxDynamicShared(227 << 10); err != nil {
		t.Error(err)
	}
	// 48 KB are for static and dynamic shared memory together: the driver refused 44 KB beside 8 KB of a kernel's own.
	text = kernelText(".shared .align 16 .b8 own[8192];\nmov.u32 %r1, own;\nst.shared.u32 [%r1], %r1;\nret;")
	if m, err = d.Load([]byte(text)); err != nil {
		t.Fatal(err)
	}
	own, err := m.Function("k")
	if err != nil {
		t.Fatal(err)
	}
	l := grid(1, 32, 1)
	l.DynamicShared = 44 << 10
	if err := own.Launch(s, &l, unsafe.Pointer(&p), 8); err == nil || !strings.Contains(err.Error(), "SetMaxDynamicShared") {
		t.Errorf("44 KB beside the kernel's own 8: %v", err)
	}
	if err := device.Prepare(own, 44<<10, 1); err != nil {
		t.Error(err)
	}
	if err := own.Launch(s, &l, unsafe.Pointer(&p), 8); err != nil {
		t.Error(err)
	}
	n, err := f.Occupancy(128, 100<<10)
	if err != nil || n != 2 {
		t.Errorf("blocks of 100 KB on an SM: %d, %v; want 2", n, err)
	}
}

func TestConfigRefuses(t *testing.T) {
	for _, tc := range []struct {
		c    sim.Config
		want string
	}{
		{sim.Config{Workers: -1}, "workers"}, {sim.Config{Schedule: "random"}, "random:SEED"}, {sim.Config{Schedule: "random:x"}, "random:SEED"},
		{sim.Config{InstructionLimit: -5}, "instruction limit"},
	} {
		if _, err := sim.New(tc.c); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%+v: %v", tc.c, err)
		}
	}
	info := device.Info{Name: "small", SMs: 4, SharedPerBlock: 48 << 10, SharedPerSM: 100 << 10, ThreadsPerSM: 1024, RegistersPerSM: 65536, Major: 8}
	d, err := sim.New(sim.Config{Info: &info})
	if err != nil {
		t.Fatal(err)
	}
	if got := d.Info(); got.Backend != "sim" || got.SMs != 4 {
		t.Errorf("info %+v", got)
	}
}

// TestMemoryErrors: host accesses are checked as a kernel's are.
func TestMemoryErrors(t *testing.T) {
	d, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	if _, err := d.Alloc(0); err == nil {
		t.Error("an allocation of 0 bytes is no error")
	}
	p, err := d.Alloc(100)
	if err != nil {
		t.Fatal(err)
	}
	if p%256 != 0 {
		t.Errorf("%#x is not 256-byte aligned", uint64(p))
	}
	if err := d.Write(p+96, make([]byte, 8)); err == nil || !strings.Contains(err.Error(), "100 bytes") {
		t.Errorf("a write past the end: %v", err)
	}
	if err := d.Read(make([]byte, 1), 16); err == nil {
		t.Error("a read of a stray address is no error")
	}
	if err := d.Free(p + 1); err == nil {
		t.Error("a free inside an allocation is no error")
	}
	if err := errors.Join(d.Free(p), d.Free(0)); err != nil {
		t.Error(err)
	}
	if err := d.Fill(p, 1, 4); err == nil || !strings.Contains(err.Error(), "freed") {
		t.Errorf("a fill after free: %v", err)
	}
	if err := d.Free(p); err == nil {
		t.Error("a second free is no error")
	}
}
