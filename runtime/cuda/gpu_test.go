package cuda_test

import (
	_ "embed"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/runtime/device"
)

//go:embed testdata/fill.ptx
var fillPTX []byte

// fillArgs is the argument of the kernels in testdata/fill.ptx.
type fillArgs struct {
	p    device.Ptr
	n, v uint32
	big  uint64
}

type bench struct {
	dev          device.Device
	stream       device.Stream
	fill, shared device.Function
}

func setup(tb testing.TB) bench {
	tb.Helper()
	b := bench{dev: gputest.Require(tb)}
	m := must(b.dev.Load(fillPTX))(tb)
	b.fill, b.shared = must(m.Function("fill"))(tb), must(m.Function("shared"))(tb)
	b.stream = must(b.dev.NewStream())(tb)
	tb.Cleanup(func() {
		if err := errors.Join(b.stream.Destroy(), m.Unload()); err != nil {
			tb.Error(err)
		}
	})
	return b
}

func must[T any](v T, err error) func(testing.TB) T {
	return func(tb testing.TB) T {
		tb.Helper()
		if err != nil {
			tb.Fatal(err)
		}
		return v
	}
}

func check(tb testing.TB, errs ...error) {
	tb.Helper()
	if err := errors.Join(errs...); err != nil {
		tb.Fatal(err)
	}
}

func alloc(tb testing.TB, dev device.Device, bytes int64) device.Ptr {
	tb.Helper()
	p := must(dev.Alloc(bytes))(tb)
	tb.Cleanup(func() {
		if err := dev.Free(p); err != nil {
			tb.Error(err)
		}
	})
	return p
}

func words(tb testing.TB, dev device.Device, p device.Ptr, n int) []uint32 {
	tb.Helper()
	raw := make([]byte, 4*n)
	check(tb, dev.Read(raw, p))
	w := make([]uint32, n)
	for i := range w {
		w[i] = binary.LittleEndian.Uint32(raw[4*i:])
	}
	return w
}

func ramp(n int, from uint32) []uint32 {
	w := make([]uint32, n)
	for i := range w {
		w[i] = from + uint32(i)
	}
	return w
}

func grid(blocks, threads uint32) device.Launch {
	return device.Launch{Grid: [3]uint32{blocks, 1, 1}, Block: [3]uint32{threads, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
}

func TestGPULaunches(t *testing.T) {
	b := setup(t)
	const n = 1000
	p := alloc(t, b.dev, 4*n+16)
	plain, dependent, cluster, cooperative := grid(8, 128), grid(8, 128), grid(8, 128), grid(8, 128)
	dependent.Dependent, cooperative.Cooperative = true, true
	cluster.Cluster = [3]uint32{4, 1, 1}
	for _, tc := range []struct {
		name   string
		launch device.Launch
		hopper bool
	}{{"plain", plain, false}, {"cooperative", cooperative, false}, {"cluster", cluster, true}, {"dependent", dependent, true}} {
		t.Run(tc.name, func(t *testing.T) {
			if tc.hopper && b.dev.Info().Major < 9 {
				t.Skipf("%s has no clusters and no dependent launches", b.dev.Info().Name)
			}
			check(t, b.dev.Fill(p, 0xee, 4*n+16))
			args := &fillArgs{p, n, 7, 1000}
			check(t, b.fill.Launch(b.stream, &tc.launch, unsafe.Pointer(args), unsafe.Sizeof(*args)))
			*args = fillArgs{} // they were copied
			check(t, b.stream.Synchronize())
			want := append(ramp(n, 1007), 0xeeeeeeee)
			if diff := cmp.Diff(want, words(t, b.dev, p, n+1)); diff != "" {
				t.Errorf("memory (-want +got):\n%s", diff)
			}
		})
	}
}

func TestGPUDynamicShared(t *testing.T) {
	b := setup(t)
	n := b.dev.Info().SharedPerBlock / 4
	p := alloc(t, b.dev, int64(4*n))
	args := &fillArgs{p: p, n: uint32(n), v: 1}
	l := grid(1, 256)
	l.DynamicShared = uint32(4 * n)
	err := b.shared.Launch(b.stream, &l, unsafe.Pointer(args), unsafe.Sizeof(*args))
	if err == nil || !strings.Contains(err.Error(), "cuLaunchKernelEx of shared, grid [1 1 1], block [256 1 1]") || !strings.Contains(err.Error(), "CUDA_ERROR_INVALID_VALUE") {
		t.Errorf("more than 48 KB without asking: %v", err)
	}
	check(t, b.shared.SetMaxDynamicShared(4*n), b.shared.Launch(b.stream, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)), b.stream.Synchronize())
	got := words(t, b.dev, p, n)
	for i, v := range got {
		if v != uint32(n-1-i) {
			t.Fatalf("word %d is %d, want %d", i, v, n-1-i)
		}
	}
	blocks := must(b.shared.Occupancy(256, 4*n))(t)
	a := must(b.shared.Attributes())(t)
	if blocks != 1 || a.Registers < 4 || a.LocalBytes != 0 || a.MaxThreads < 256 || a.PTXVersion != 80 || a.BinaryVersion/10 != b.dev.Info().Major {
		t.Errorf("occupancy %d, attributes %+v", blocks, a)
	}
}

// TestGPUGraph captures on whatever thread the goroutine is, moves it, and replays: the arguments are those of the capture, and the
// graph reads the memory of the replay.
func TestGPUGraph(t *testing.T) {
	b := setup(t)
	const n = 300
	p, q := alloc(t, b.dev, 4*n), alloc(t, b.dev, 4*n)
	check(t, b.dev.Fill(p, 0, 4*n), b.stream.BeginCapture())
	args := &fillArgs{p, n, 50, 0}
	l := grid(3, 128)
	check(t, b.stream.FillAsync(q, 1, 4*n), b.fill.Launch(b.stream, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)))
	moved := make(chan error)
	go func() { // another OS thread ends the capture
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		moved <- b.stream.CopyAsync(q, p, 4*n)
	}()
	check(t, <-moved)
	g := must(b.stream.EndCapture())(t)
	*args = fillArgs{p, n, 999, 0}
	if got := words(t, b.dev, p, 2); got[1] != 0 {
		t.Errorf("capturing ran the kernel: %v", got)
	}
	if nodes := must(g.Nodes())(t); nodes != 3 {
		t.Errorf("%d nodes, want a fill, a kernel and a copy", nodes)
	}
	for range 3 {
		check(t, b.dev.Fill(q, 0xff, 4*n), g.Launch(b.stream), b.stream.Synchronize())
		if diff := cmp.Diff(ramp(n, 50), words(t, b.dev, q, n)); diff != "" {
			t.Fatalf("replay (-want +got):\n%s", diff)
		}
	}
	check(t, g.Destroy())
}

func TestGPUEvents(t *testing.T) {
	b := setup(t)
	from, to := must(b.dev.NewEvent())(t), must(b.dev.NewEvent())(t)
	other := must(b.dev.NewStream())(t)
	p := alloc(t, b.dev, 64<<20)
	check(t, b.stream.Record(from), b.stream.FillAsync(p, 5, 64<<20), b.stream.Record(to), other.Wait(to), other.CopyAsync(p+4, p, 4), other.Synchronize(), to.Synchronize())
	if ms := must(to.Since(from))(t); ms <= 0 || ms > 1000 {
		t.Errorf("filling 64 MB took %v ms", ms)
	}
	check(t, from.Destroy(), to.Destroy(), other.Destroy())
}

func TestGPUManyGoroutines(t *testing.T) {
	b := setup(t)
	const n, workers = 4096, 16
	var wg sync.WaitGroup
	for id := range workers {
		p := alloc(t, b.dev, 4*n)
		wg.Go(func() {
			s, err := b.dev.NewStream()
			if err != nil {
				t.Error(err)
				return
			}
			for i := range 50 {
				args := &fillArgs{p, n, uint32(id), uint64(i)}
				l := grid(n/256, 256)
				if err := b.fill.Launch(s, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)); err != nil {
					t.Error(err)
				}
				runtime.Gosched()
			}
			if err := s.Synchronize(); err != nil {
				t.Error(err)
			}
			if got := words(t, b.dev, p, n); got[n-1] != uint32(id+49+n-1) {
				t.Errorf("worker %d: last word %d", id, got[n-1])
			}
			if err := s.Destroy(); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
}

func TestGPUAttach(t *testing.T) {
	b := setup(t)
	owner := b.dev.(*cuda.Device)
	d := must(cuda.Attach(owner.Context()))(t)
	if diff := cmp.Diff(owner.Info(), d.Info()); diff != "" {
		t.Errorf("info (-opened +attached):\n%s", diff)
	}
	p := alloc(t, d, 4096)
	args := &fillArgs{p, 1024, 3, 0}
	l := grid(4, 256)
	s := d.WrapStream(b.stream.Handle())
	check(t, b.fill.Launch(s, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)), s.Synchronize(), s.Destroy(), d.Close())
	if got := words(t, b.dev, p, 1024); got[1023] != 1026 {
		t.Errorf("last word %d", got[1023])
	}
	if _, err := cuda.FromCurrent(); err == nil || !strings.Contains(err.Error(), "no context is current") {
		t.Errorf("a call left its context on the thread: %v", err)
	}
}

func TestGPUErrors(t *testing.T) {
	b := setup(t)
	_, oom := b.dev.Alloc(1 << 50)
	_, missing := must(b.dev.Load(fillPTX))(t).Function("nothing")
	future := []byte(strings.Replace(string(fillPTX), ".version 7.0", ".version 9.9", 1))
	_, newer := b.dev.Load(future)
	_, broken := b.dev.Load([]byte(strings.Replace(string(fillPTX), "mad.lo.s32", "moo.lo.s32", 1)))
	_, foreign := b.dev.Load([]byte(strings.Replace(string(fillPTX), ".target sm_80", ".target sm_121a", 1)))
	for _, tc := range []struct {
		name string
		err  error
		want []string
	}{
		{"too much memory", oom, []string{fmt.Sprintf("cuMemAlloc_v2 of %d bytes: CUDA_ERROR_OUT_OF_MEMORY: out of memory", int64(1)<<50)}},
		{"no such kernel", missing, []string{`cuModuleGetFunction of "nothing": CUDA_ERROR_NOT_FOUND`}},
		{"PTX of the future", newer, []string{"load PTX 9.9 for sm_80 on " + b.dev.Info().Name}},
		{"broken PTX", broken, []string{"load PTX 7.0 for sm_80", "moo"}},
		{"another architecture", foreign, []string{"for sm_121a on " + b.dev.Info().Name}},
	} {
		if tc.err == nil {
			t.Errorf("%s: no error", tc.name)
			continue
		}
		t.Logf("%s: %v", tc.name, tc.err)
		for _, w := range tc.want {
			if !strings.Contains(tc.err.Error(), w) {
				t.Errorf("%s: %q lacks %q", tc.name, tc.err, w)
			}
		}
	}
	// The context survived all of that.
	check(t, b.dev.Synchronize())
}

// TestGPULargeMemory writes past 4 GB into one allocation: sizes and offsets are 64-bit.
func TestGPULargeMemory(t *testing.T) {
	b := setup(t)
	const size = int64(5) << 30
	if b.dev.Info().MemoryBytes < 2*size {
		t.Skipf("%s has %d bytes of memory", b.dev.Info().Name, b.dev.Info().MemoryBytes)
	}
	p := alloc(t, b.dev, size)
	check(t, b.dev.Fill(p, 0x11, size))
	args := &fillArgs{p + device.Ptr(size-400), 100, 8, 0}
	l := grid(1, 128)
	check(t, b.fill.Launch(b.stream, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)), b.stream.Synchronize())
	if diff := cmp.Diff(append([]uint32{0x11111111}, ramp(100, 8)...), words(t, b.dev, p+device.Ptr(size-404), 101)); diff != "" {
		t.Errorf("the end of 5 GB (-want +got):\n%s", diff)
	}
}

// BenchmarkGPULaunch is the whole of a launch: at most 5 us and no allocation (design.md, Threads). It drains the stream outside the
// timer, so that a full queue is not counted.
func BenchmarkGPULaunch(b *testing.B) {
	g := setup(b)
	args := &fillArgs{p: must(g.dev.Alloc(4))(b), n: 1}
	for _, tc := range []struct {
		name               string
		dependent, current bool
	}{{"plain", false, true}, {"dependent", true, true}, {"context not current", false, false}} {
		b.Run(tc.name, func(b *testing.B) {
			if tc.current { // as on a serving thread
				release, err := g.dev.(*cuda.Device).MakeCurrent()
				check(b, err)
				defer release()
			}
			l := grid(1, 32)
			l.Dependent = tc.dependent
			b.ReportAllocs()
			for i := range b.N {
				if i%256 == 255 {
					b.StopTimer()
					check(b, g.stream.Synchronize())
					b.StartTimer()
				}
				if err := g.fill.Launch(g.stream, &l, unsafe.Pointer(args), unsafe.Sizeof(*args)); err != nil {
					b.Fatal(err)
				}
			}
			check(b, g.stream.Synchronize())
		})
	}
}
