package cuda

import (
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"sync"
	"testing"
	"unsafe"

	"github.com/ebitengine/purego"
	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/runtime/device"
)

// seen mirrors struct seen of testdata/fakecuda.c.
type seen struct {
	grid, block                        [3]uint32
	shared, numAttrs                   uint32
	stream                             uintptr
	cluster                            [3]uint32
	programmatic, cooperative, padding uint32
	params                             [256]byte
	size                               uintptr
	launches, pushes, pops             uint64
}

type library struct {
	api    *api
	last   *seen
	offset func(what int) uintptr
}

// fakeLibrary compiles a libcuda against the real cuda.h and opens it through the real loading path.
func fakeLibrary(tb testing.TB) library {
	tb.Helper()
	cc, err := exec.LookPath("cc")
	if err != nil {
		tb.Skip("no C compiler (cc): the structs cannot be compared with cuda.h")
	}
	include, err := filepath.Abs("../../.kvloom/toolchain/nvidia/cu13/include")
	if err != nil {
		tb.Fatal(err)
	}
	if _, err := os.Stat(filepath.Join(include, "cuda.h")); err != nil {
		tb.Skip("no cuda.h: run make toolchain first")
	}
	file := filepath.Join(tb.TempDir(), "libcuda.so.1")
	if out, err := exec.Command(cc, "-shared", "-fPIC", "-O1", "-Wall", "-Werror", "-I", include, "-o", file, "testdata/fakecuda.c").CombinedOutput(); err != nil {
		tb.Fatalf("compile testdata/fakecuda.c: %v\n%s", err, out)
	}
	tb.Setenv("KVLOOM_LIBCUDA", file)
	a, err := load()
	if err != nil {
		tb.Fatal(err)
	}
	if err := a.start(); err != nil {
		tb.Fatal(err)
	}
	lib, err := purego.Dlopen(file, purego.RTLD_NOW)
	if err != nil {
		tb.Fatal(err)
	}
	l := library{api: a}
	var last func() unsafe.Pointer
	purego.RegisterLibFunc(&last, lib, "fake_last")
	purego.RegisterLibFunc(&l.offset, lib, "fake_offset")
	l.last = (*seen)(last())
	return l
}

func TestStructsMatchTheHeader(t *testing.T) {
	l := fakeLibrary(t)
	var c launchConfig
	var at launchAttribute
	for i, tc := range []struct {
		name string
		got  uintptr
	}{
		{"sizeof(CUlaunchConfig)", unsafe.Sizeof(c)},
		{"CUlaunchConfig.hStream", unsafe.Offsetof(c.stream)},
		{"CUlaunchConfig.attrs", unsafe.Offsetof(c.attrs)},
		{"CUlaunchConfig.numAttrs", unsafe.Offsetof(c.numAttrs)},
		{"sizeof(CUlaunchAttribute)", unsafe.Sizeof(at)},
		{"CUlaunchAttribute.value", unsafe.Offsetof(at.value)},
		{"COOPERATIVE", attrCooperative},
		{"CLUSTER_DIMENSION", attrCluster},
		{"PROGRAMMATIC_STREAM_SERIALIZATION", attrProgrammatic},
		{"CAPTURE_MODE_RELAXED", captureRelaxed},
		{"FUNC MAX_DYNAMIC_SHARED_SIZE_BYTES", funcMaxDynamic},
		{"FUNC NON_PORTABLE_CLUSTER_SIZE_ALLOWED", funcNonPortable},
		{"DEVICE MAX_SHARED_MEMORY_PER_BLOCK_OPTIN", attrSharedPerBlockIn},
		{"DEVICE MAX_REGISTERS_PER_MULTIPROCESSOR", attrRegistersPerSM},
		{"DEVICE MAX_SHARED_MEMORY_PER_MULTIPROCESSOR", attrSharedPerSM},
		{"JIT_ERROR_LOG_BUFFER", jitErrorLog},
		{"JIT_ERROR_LOG_BUFFER_SIZE_BYTES", jitErrorLogBytes},
		{"UNSUPPORTED_PTX_VERSION", uintptr(errPTXVersion)},
		{"NO_BINARY_FOR_GPU", uintptr(errNoBinary)},
		{"DEVICE MEMORY_CLOCK_RATE", attrMemoryClock},
		{"DEVICE L2_CACHE_SIZE", attrL2Bytes},
		{"FUNC BINARY_VERSION", funcBinaryVersion},
		{"FUNC NUM_REGS", funcRegisters},
		{"FUNC PREFERRED_SHARED_MEMORY_CARVEOUT", funcCarveout},
	} {
		if want := l.offset(i); tc.got != want {
			t.Errorf("%s is %d, cuda.h says %d", tc.name, tc.got, want)
		}
	}
}

func open(tb testing.TB, l library) (*Device, *Function, device.Stream) {
	tb.Helper()
	d, err := l.api.open(0)
	if err != nil {
		tb.Fatal(err)
	}
	m, err := d.Load([]byte(".version 9.0\n.target sm_90a\n"))
	if err != nil {
		tb.Fatal(err)
	}
	f, err := m.Function("page_score")
	if err != nil {
		tb.Fatal(err)
	}
	s, err := d.NewStream()
	if err != nil {
		tb.Fatal(err)
	}
	return d, f.(*Function), s
}

func TestLaunchReachesTheDriver(t *testing.T) {
	l := fakeLibrary(t)
	_, f, s := open(t, l)
	params := new([40]byte)
	for i := range params {
		params[i] = byte(i + 1)
	}
	for _, tc := range []struct {
		name   string
		reason string
		launch device.Launch
		want   seen
	}{
		{"plain", "a cluster of one is no attribute", device.Launch{Grid: [3]uint32{7, 8, 9}, Block: [3]uint32{128, 2, 1}, Cluster: [3]uint32{1, 1, 1}, DynamicShared: 1000},
			seen{grid: [3]uint32{7, 8, 9}, block: [3]uint32{128, 2, 1}, shared: 1000}},
		{"cluster", "x, y and z are three words of the union", device.Launch{Grid: [3]uint32{8, 4, 2}, Block: [3]uint32{32, 1, 1}, Cluster: [3]uint32{8, 2, 1}},
			seen{grid: [3]uint32{8, 4, 2}, block: [3]uint32{32, 1, 1}, numAttrs: 1, cluster: [3]uint32{8, 2, 1}}},
		{"all", "three attributes at once", device.Launch{Grid: [3]uint32{2, 1, 1}, Block: [3]uint32{32, 1, 1}, Cluster: [3]uint32{2, 1, 1}, Dependent: true, Cooperative: true},
			seen{grid: [3]uint32{2, 1, 1}, block: [3]uint32{32, 1, 1}, numAttrs: 3, cluster: [3]uint32{2, 1, 1}, programmatic: 1, cooperative: 1}},
		{"plain again", "a pooled record keeps nothing of the launch before", device.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{1, 1, 1}},
			seen{grid: [3]uint32{1, 1, 1}, block: [3]uint32{1, 1, 1}}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			if err := f.Launch(s, &tc.launch, unsafe.Pointer(params), unsafe.Sizeof(*params)); err != nil {
				t.Fatal(err)
			}
			tc.want.stream, tc.want.size = 0x55, 40
			copy(tc.want.params[:], params[:])
			got := *l.last
			got.launches, got.pushes, got.pops = 0, 0, 0
			if diff := cmp.Diff(tc.want, got, cmp.AllowUnexported(seen{})); diff != "" {
				t.Errorf("%s (-want +got):\n%s", tc.reason, diff)
			}
		})
	}
	if l.last.pushes != l.last.pops {
		t.Errorf("%d contexts pushed, %d popped: a thread is left with a context", l.last.pushes, l.last.pops)
	}
}

func TestLaunchAllocatesNothing(t *testing.T) {
	if raceEnabled {
		t.Skip("sync.Pool drops items at random under the race detector")
	}
	l := fakeLibrary(t)
	_, f, s := open(t, l)
	params := new([200]byte)
	launch := &device.Launch{Grid: [3]uint32{132, 1, 1}, Block: [3]uint32{256, 1, 1}, Cluster: [3]uint32{2, 1, 1}, Dependent: true}
	if n := testing.AllocsPerRun(1000, func() {
		if err := f.Launch(s, launch, unsafe.Pointer(params), 200); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a launch allocates %v times; it must allocate nothing", n)
	}
	g := &Graph{d: f.d, graph: 0x33, exec: 0x34}
	if n := testing.AllocsPerRun(1000, func() {
		if err := g.Launch(s); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("a graph launch allocates %v times; it must allocate nothing", n)
	}
}

// TestLaunchFromMovingStacks grows goroutine stacks and collects garbage while launching: an argument on a stack would be read at its
// old address.
func TestLaunchFromMovingStacks(t *testing.T) {
	l := fakeLibrary(t)
	_, f, s := open(t, l)
	var mu sync.Mutex // the fake keeps one launch
	var grow func(depth int, work func())
	grow = func(depth int, work func()) {
		var pad [512]byte
		if depth > 0 {
			grow(depth-1, work)
		} else {
			work()
		}
		runtime.KeepAlive(&pad)
	}
	var wg sync.WaitGroup
	for id := range 8 {
		wg.Go(func() {
			for i := range 50 {
				grow(i, func() {
					mu.Lock()
					defer mu.Unlock()
					params := [2]uint64{uint64(id), uint64(i)} // escapes through Launch
					launch := device.Launch{Grid: [3]uint32{uint32(id + 1), 1, 1}, Block: [3]uint32{32, 1, 1}}
					if err := f.Launch(s, &launch, unsafe.Pointer(&params), 16); err != nil {
						t.Error(err)
					}
					if got := *(*[2]uint64)(unsafe.Pointer(&l.last.params)); got != params {
						t.Errorf("the driver read %v, launched with %v", got, params)
					}
				})
				if i%10 == 0 {
					runtime.GC()
				}
			}
		})
	}
	wg.Wait()
}

func TestDeviceThroughTheLibrary(t *testing.T) {
	l := fakeLibrary(t)
	d, f, s := open(t, l)
	want := device.Info{Backend: "cuda", Name: "Fake GPU MIG 1g.18gb", UUID: "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f", Major: 75000, Minor: 76000,
		SMs: 16000, L2Bytes: 38000, MemoryBytes: 150 << 30, MemoryClockMHz: 36, SharedPerBlock: 97000, SharedPerSM: 81000, RegistersPerSM: 82000,
		ThreadsPerSM: 39000, DriverVersion: 13000, MultiInstanceGPU: true, ErrorCorrectionOn: true, DriverName: driverName()}
	if diff := cmp.Diff(want, d.Info()); diff != "" {
		t.Errorf("info (-want +got):\n%s", diff)
	}
	p, err := d.Alloc(1000)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Fill(p, 0xa5, 1000); err != nil {
		t.Fatal(err)
	}
	if err := d.Write(p+10, []byte("hello")); err != nil {
		t.Fatal(err)
	}
	if err := s.CopyAsync(p+100, p+10, 5); err != nil {
		t.Fatal(err)
	}
	got := make([]byte, 7)
	if err := d.Read(got, p+99); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]byte("\xa5hello\xa5"), got); diff != "" {
		t.Errorf("memory (-want +got):\n%s", diff)
	}
	if err := d.Free(p); err != nil {
		t.Error(err)
	}
	at, err := f.Attributes()
	if diff := cmp.Diff(device.FuncAttributes{Registers: 14, LocalBytes: 13, SharedBytes: 11, MaxThreads: 10, BinaryVersion: 16, PTXVersion: 15}, at); err != nil || diff != "" {
		t.Errorf("attributes: %v\n%s", err, diff)
	}
	if n, err := f.Occupancy(256, 0); n != 8 || err != nil {
		t.Errorf("occupancy: %d, %v", n, err)
	}
	if err := s.BeginCapture(); err != nil {
		t.Fatal(err)
	}
	g, err := s.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	if n, err := g.Nodes(); n != 3 || err != nil {
		t.Errorf("nodes: %d, %v", n, err)
	}
	if err := g.Launch(s); err != nil {
		t.Error(err)
	}
	from, err := d.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	if ms, err := from.Since(from); ms != 1.5 || err != nil {
		t.Errorf("since: %v, %v", ms, err)
	}
	for _, err := range []error{s.Record(from), s.Wait(from), from.Synchronize(), from.Destroy(), g.Destroy(), s.Synchronize(), d.Synchronize(), s.Destroy(), d.Close(), d.Close()} {
		if err != nil {
			t.Error(err)
		}
	}
	if l.last.pushes != l.last.pops {
		t.Errorf("%d contexts pushed, %d popped", l.last.pushes, l.last.pops)
	}
}

func TestDriverErrorsThroughTheLibrary(t *testing.T) {
	l := fakeLibrary(t)
	d, _, _ := open(t, l)
	_, oom := d.Alloc(1<<30 + 1)
	m, err := d.Load([]byte(".version 9.0\n.target sm_90a\n"))
	if err != nil {
		t.Fatal(err)
	}
	_, missing := m.Function("page_scare")
	_, bad := d.Load([]byte(".version 9.0\n.target sm_90a\nWILL NOT LOAD"))
	for _, tc := range []struct {
		err  error
		want string
	}{
		{oom, "cuMemAlloc_v2 of 1073741825 bytes: CUDA_ERROR_OUT_OF_MEMORY: out of memory"},
		{missing, `cuModuleGetFunction of "page_scare": CUDA_ERROR_NOT_FOUND: named symbol not found`},
		{bad, "load PTX 9.0 for sm_90a on Fake GPU MIG 1g.18gb (sm_7500076000), driver " + withSpace(driverName()) + "with CUDA 13.0: " +
			"cuModuleLoadDataEx: CUDA error 218: this driver has no text for it; the driver's compiler refused it for sm_7500076000; its log follows if it wrote one\nline 3: not PTX"},
	} {
		if tc.err == nil || tc.err.Error() != tc.want {
			t.Errorf("got  %v\nwant %s", tc.err, tc.want)
		}
	}
}

func withSpace(s string) string {
	if s == "" {
		return ""
	}
	return s + " "
}

// BenchmarkLaunch measures Go's part of a launch: everything but the driver's own work.
func BenchmarkLaunch(b *testing.B) {
	l := fakeLibrary(b)
	_, f, s := open(b, l)
	params := new([200]byte)
	launch := &device.Launch{Grid: [3]uint32{132, 1, 1}, Block: [3]uint32{256, 1, 1}, Cluster: [3]uint32{2, 1, 1}, Dependent: true}
	b.ReportAllocs()
	for b.Loop() {
		if err := f.Launch(s, launch, unsafe.Pointer(params), 200); err != nil {
			b.Fatal(err)
		}
	}
}
