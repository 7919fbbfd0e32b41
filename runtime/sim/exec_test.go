package sim_test

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
)

//go:embed testdata/exec.cu
var execSource string

// execArgs mirrors Args of exec.cu.
type execArgs struct {
	x, y, c device.Ptr
	big     int64
	n       int32
	_       int32
}

// machine is a simulator with exec.cu loaded, and buffers x of n, y of 4096 and c of 64 words.
type machine struct {
	t      *testing.T
	dev    device.Device
	mod    device.Module
	stream device.Stream
	x      []int32
	args   execArgs
}

func newMachine(t *testing.T, c sim.Config, arch string, n int) *machine {
	t.Helper()
	dev, err := sim.New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	m := &machine{t: t, dev: dev}
	text := nvrtctest.Compile(t, render.Source{Name: "exec.cu", Text: execSource, Entry: "collatz", Arch: arch, Hash: execSource}).PTX
	if m.mod, err = dev.Load(text); err != nil {
		t.Fatal(err)
	}
	if m.stream, err = dev.NewStream(); err != nil {
		t.Fatal(err)
	}
	r := rand.New(rand.NewPCG(1, 2))
	for range n {
		m.x = append(m.x, int32(1+r.IntN(999)))
	}
	m.args = execArgs{x: m.alloc(m.x), y: m.alloc(make([]int32, 4096)), c: m.alloc(make([]int32, 64)), n: int32(n)}
	return m
}

func (m *machine) alloc(v []int32) device.Ptr {
	m.t.Helper()
	p, err := m.dev.Alloc(int64(4 * len(v)))
	if err != nil {
		m.t.Fatal(err)
	}
	var b []byte
	for _, x := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(x))
	}
	if err := m.dev.Write(p, b); err != nil {
		m.t.Fatal(err)
	}
	return p
}

func (m *machine) launch(kernel string, l device.Launch) error {
	m.t.Helper()
	f, err := m.mod.Function(kernel)
	if err != nil {
		m.t.Fatal(err)
	}
	return f.Launch(m.stream, &l, unsafe.Pointer(&m.args), unsafe.Sizeof(m.args))
}

func (m *machine) read(p device.Ptr, n int) []int32 {
	m.t.Helper()
	b := make([]byte, 4*n)
	if err := m.dev.Read(b, p); err != nil {
		m.t.Fatal(err)
	}
	out := make([]int32, n)
	for i := range out {
		out[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return out
}

// configs are the ways a kernel must give the same result in.
var configs = map[string]sim.Config{
	"plain": {}, "one worker": {Workers: 1}, "three workers": {Workers: 3}, "random 1": {Schedule: "random:1"}, "random 2": {Schedule: "random:2", Workers: 2},
	"sanitizer": {Sanitize: true}, "random sanitizer": {Sanitize: true, Schedule: "random:3"}, "counters": {Count: true},
}

// TestExecution runs each kernel of exec.cu in every configuration and compares with Go.
func TestExecution(t *testing.T) {
	for _, tc := range []struct {
		name   string
		launch device.Launch
		n      int
		want   func(x []int32) []int32 // y, from its start
	}{
		{"collatz", grid(3, 64, 1), 150, wantCollatz},
		{"nested", grid(1, 64, 1), 64, wantNested},
		{"jump_table", grid(1, 64, 1), 64, wantJump},
		{"calls", grid(1, 64, 1), 64, wantCalls},
		{"local_array", grid(1, 64, 1), 64, func(x []int32) (y []int32) {
			for i, v := range x {
				y = append(y, (v&15)*(v&15)+int32(i))
			}
			return y
		}},
		{"block_sum", grid(2, 256, 1), 200, func(x []int32) []int32 { return []int32{sum(x), sum(x)} }},
		{"barrier_votes", grid(1, 96, 1), 96, wantVotes},
		{"named_barriers", grid(1, 64, 1), 64, func(x []int32) (y []int32) {
			for k := range int32(4) {
				for lane := range 32 {
					y = append(y, x[31-lane]+k)
				}
			}
			return y
		}},
		{"grid_barrier", grid(200, 32, 1), 200, func(x []int32) []int32 {
			y := append([]int32(nil), x...)
			for i := range x {
				y = append(y, x[len(x)-1-i])
			}
			return y
		}},
		{"last_block", grid(50, 64, 1), 50, func(x []int32) []int32 { return append([]int32{sum(x)}, x...) }},
		{"cluster_ring", grid(8, 32, 4), 32, func(x []int32) (y []int32) {
			for b := range 8 {
				for _, v := range x {
					y = append(y, v+int32((b+3)%4))
				}
			}
			return y
		}},
		{"bulk_ring", grid(1, 64, 1), 32 * 9, func(x []int32) []int32 {
			y := make([]int32, 32)
			for i, v := range x {
				y[i%32] += v
			}
			return y
		}},
		{"lock_in_warp", grid(2, 64, 1), 1, func([]int32) []int32 { return []int32{128} }},
	} {
		for name, c := range configs {
			t.Run(tc.name+"/"+name, func(t *testing.T) {
				if tc.name == "lock_in_warp" && c.Sanitize {
					t.Skip("a lock taken without an acquire fence is a race, which the sanitizer reports")
				}
				m := newMachine(t, c, "sm_90a", tc.n)
				if err := m.launch(tc.name, tc.launch); err != nil {
					t.Fatal(err)
				}
				want := tc.want(m.x)
				if diff := cmp.Diff(want, m.read(m.args.y, len(want))); diff != "" {
					t.Errorf("y (-want +got):\n%s", diff)
				}
			})
		}
	}
}

func sum(x []int32) (s int32) {
	for _, v := range x {
		s += v
	}
	return s
}

func wantCollatz(x []int32) (y []int32) {
	for _, v := range x {
		steps := int32(0)
		for v != 1 {
			if v%2 == 0 {
				v /= 2
			} else {
				v = 3*v + 1
			}
			if steps++; steps == 100 {
				break
			}
		}
		y = append(y, steps)
	}
	return y
}

func wantNested(x []int32) (y []int32) {
	for i, v := range x {
		s := int32(0)
		for j := range int32(i % 7) {
			for k := j; k < 9; k++ {
				if k == v%11 {
					break
				}
				if k%3 == 1 {
					continue
				}
				s += k * j
			}
			s++
		}
		y = append(y, s)
	}
	return y
}

func wantJump(x []int32) (y []int32) {
	for _, v := range x {
		y = append(y, [...]int32{v + 1, v * 3, v - 7, v / 2, v ^ 21, ^v, v << 2, -v}[v%8])
	}
	return y
}

func wantCalls(x []int32) (y []int32) {
	step := func(u, v int32) (int32, int32) {
		u += 2*v + 1
		if v > 3 {
			return u, v
		}
		return u, (2*x[v&3] + 1) % 100
	}
	for i := range int32(64) {
		u, v := i, i%6
		if i%3 != 0 {
			u, v = step(u, v)
			u, v = step(u, v)
		}
		y = append(y, u*1000+v)
	}
	return y
}

func wantVotes(x []int32) (y []int32) {
	all, any, count := int32(1), int32(0), int32(0)
	for _, v := range x {
		if v >= 1000 {
			all = 0
		}
		if v == 5 {
			any = 1
		}
		count += v % 2
	}
	for range x {
		y = append(y, all+10*any+100*count)
	}
	return y
}

func TestAtomics(t *testing.T) {
	m := newMachine(t, sim.Config{Workers: 2}, "sm_90a", 64)
	if err := m.launch("atomics", grid(4, 64, 1)); err != nil {
		t.Fatal(err)
	}
	c := m.read(m.args.c, 12)
	f := func(x float32) int32 { return int32(math.Float32bits(x)) }
	xor := int32(0)
	for i := range int32(256) {
		xor ^= i
	}
	// 256 decrements wrap at 6: 0 goes to 6, so that the value is 6 after 1, 0 after 7.
	want := []int32{768, 100, -255, -1, xor, f(128), 256 << 20, 0, int32(0x5800<<16 | 0x5c00), 6 - (256-1)%7, f(256), f(512)}
	if diff := cmp.Diff(want, c); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

// TestSparseAddresses reads far past 2^32 and 2^40 bytes: memory is mapped only where it is touched.
func TestSparseAddresses(t *testing.T) {
	m := newMachine(t, sim.Config{}, "sm_90a", 32)
	const far = 1<<40 + 4096
	p, err := m.dev.Alloc(far + 4096)
	if err != nil {
		t.Skipf("no sparse memory here: %v", err)
	}
	var b []byte
	for i := range uint32(32) {
		b = binary.LittleEndian.AppendUint32(b, i*i)
	}
	for _, offset := range []int64{1 << 33, far} {
		if err := m.dev.Write(p+device.Ptr(offset), b); err != nil {
			t.Fatal(err)
		}
		m.args.x, m.args.big = p, offset
		if err := m.launch("big_offset", grid(1, 32, 1)); err != nil {
			t.Fatal(err)
		}
		for i, v := range m.read(m.args.y, 32) {
			if v != int32(i*i) {
				t.Fatalf("offset %#x: element %d is %d", offset, i, v)
			}
		}
	}
	if err := m.dev.Free(p); err != nil {
		t.Fatal(err)
	}
}

// TestOneWorkerIsRepeatable runs a kernel whose result depends on the order of float additions.
func TestOneWorkerIsRepeatable(t *testing.T) {
	run := func(c sim.Config) int32 {
		m := newMachine(t, c, "sm_90a", 97)
		if err := m.launch("sum_floats", grid(40, 96, 1)); err != nil {
			t.Fatal(err)
		}
		return m.read(m.args.y, 1)[0]
	}
	first := run(sim.Config{Workers: 1})
	for range 3 {
		if again := run(sim.Config{Workers: 1}); again != first {
			t.Fatalf("two runs with one worker: %#x and %#x", first, again)
		}
	}
	if a, b := run(sim.Config{Workers: 1, Schedule: "random:5"}), run(sim.Config{Workers: 1, Schedule: "random:5"}); a != b {
		t.Errorf("two runs with one seed: %#x and %#x", a, b)
	}
}

func TestGraphsAndStreams(t *testing.T) {
	m := newMachine(t, sim.Config{}, "sm_90a", 64)
	side, err := m.dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	event, err := m.dev.NewEvent()
	if err != nil {
		t.Fatal(err)
	}
	if err := m.stream.BeginCapture(); err != nil {
		t.Fatal(err)
	}
	if err := m.stream.FillAsync(m.args.y, 0, 256); err != nil {
		t.Fatal(err)
	}
	if err := m.launch("add_one", grid(1, 64, 1)); err != nil {
		t.Fatal(err)
	}
	m.args.y = 0 // parameters are copied before Launch returns
	if err := m.stream.Record(event); err != nil {
		t.Fatal(err)
	}
	if err := side.Wait(event); err != nil {
		t.Fatal(err)
	}
	y := m.args.x + 0
	if err := side.FillAsync(y, 7, 16); err != nil { // by a stream that the event has drawn into the capture
		t.Fatal(err)
	}
	if got := m.read(m.args.x, 1)[0]; got == 0x07070707 {
		t.Error("an operation of a captured stream ran at once")
	}
	g, err := m.stream.EndCapture()
	if err != nil {
		t.Fatal(err)
	}
	if n, _ := g.Nodes(); n != 3 {
		t.Errorf("%d nodes, want 3", n)
	}
	for range 2 {
		if err := g.Launch(m.stream); err != nil {
			t.Fatal(err)
		}
		if got := m.read(y, 1)[0]; got != 0x07070707 {
			t.Errorf("after the replay: %#x", got)
		}
	}
	if _, err := event.Since(event); err != device.ErrNoTimes {
		t.Errorf("Since: %v, want ErrNoTimes", err)
	}
	if _, err := side.EndCapture(); err == nil {
		t.Error("EndCapture without a capture is no error")
	}
}
