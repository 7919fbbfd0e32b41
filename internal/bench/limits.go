package bench

import (
	"context"
	_ "embed"
	"errors"
	"fmt"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// Limits are what the card gave to kernels that do one thing alone, measured in the run whose lines are held against them.
type Limits struct {
	ReadTBPerS  float64 // of a kernel that reads 2 GiB and keeps nothing
	ExpPerSec   float64 // exponentials (ex2.approx.ftz.f32) of a kernel that does nothing else
	FlopsPerSec float64 // of 16-bit tensor cores, dense: tensorFlops a clock and SM, at the clock that ExpPerSec shows
	LaunchUS    float64 // one node of a graph of empty kernels of one block
}

// Rates of an SM of compute capability 9.0 (CUDA C++ Programming Guide, arithmetic instructions; Hopper tuning guide).
const (
	exponentialsPerClock = 16   // results of the special function units
	tensorFlops          = 4096 // 16-bit wgmma, f32 sums, multiply and add counted apart
)

// String is one line for a person.
func (l Limits) String() string {
	return fmt.Sprintf("read bandwidth %.2f TB/s, %.2f T exponentials/s, 16-bit tensor cores %.0f Tflop/s, a node of a graph %.2f us",
		l.ReadTBPerS, l.ExpPerSec/1e12, l.FlopsPerSec/1e12, l.LaunchUS)
}

// The names of a line's limits. Launch is no limit of the work: it is what an empty kernel costs in the same place.
const (
	MemoryLimit      = "memory"
	ExponentialLimit = "exponential"
	TensorLimit      = "tensor"
	LaunchCost       = "launch"
)

// of says how many microseconds a work takes at each limit alone.
func (l Limits) of(w plan.Work) map[string]float64 {
	return map[string]float64{
		MemoryLimit:      float64(w.Bytes) / l.ReadTBPerS / 1e6,
		ExponentialLimit: float64(w.Exponential) / l.ExpPerSec * 1e6,
		TensorLimit:      float64(w.Flops) / l.FlopsPerSec * 1e6,
		LaunchCost:       l.LaunchUS,
	}
}

// Tightest is the limit that binds a line and the microseconds it asks for: the largest of memory, exponentials and tensor cores. Lines of
// before limits were recorded have their bytes over the read bandwidth.
func (r Result) Tightest() (name string, us float64) {
	if len(r.Limits) == 0 {
		return MemoryLimit, float64(r.Bytes) / r.RoofTBPerS / 1e6
	}
	for _, n := range []string{MemoryLimit, ExponentialLimit, TensorLimit} {
		if r.Limits[n] > us {
			name, us = n, r.Limits[n]
		}
	}
	return name, us
}

//go:embed roof.cu
var roofSource string

// roofEntries are the kernels of roof.cu.
var roofEntries = []string{"roof", "exponentials", "nothing"}

func roof(entry string) render.Source {
	return render.Source{Name: "roof.cu", Text: roofSource, Entry: entry, Arch: plan.Targets["sm_90a"].Arch, Hash: "roof " + entry}
}

// roofKernel loads one kernel of roof.cu.
func (b *Bench) roofKernel(ctx context.Context, entry string) (device.Function, error) {
	return b.load(ctx, roof(entry), &launch.Geometry{})
}

// measureLimits measures what lines are held against. It takes a fraction of a second.
func (b *Bench) measureLimits(ctx context.Context) (l Limits, err error) {
	stream, err := b.Dev.NewStream()
	if err != nil {
		return l, err
	}
	defer stream.Destroy() //nolint:errcheck // the measurement stands
	out, err := b.Dev.Alloc(16)
	if err != nil {
		return l, err
	}
	defer b.Dev.Free(out) //nolint:errcheck // the measurement stands
	if l.ExpPerSec, err = b.exponentialRate(ctx, stream, out); err != nil {
		return l, fmt.Errorf("rate of exponentials: %w", err)
	}
	if l.ReadTBPerS, err = b.readRate(ctx, stream, out); err != nil {
		return l, fmt.Errorf("read bandwidth: %w", err)
	}
	l.FlopsPerSec = l.ExpPerSec / exponentialsPerClock * tensorFlops
	if l.LaunchUS, err = b.launchCost(ctx, stream, out); err != nil {
		return l, fmt.Errorf("cost of a launch: %w", err)
	}
	return l, nil
}

// readRate reads 2 GiB some times and returns the best TB/s.
func (b *Bench) readRate(ctx context.Context, stream device.Stream, never device.Ptr) (float64, error) {
	fn, err := b.roofKernel(ctx, "roof")
	if err != nil {
		return 0, err
	}
	const bytes = 2 << 30
	data, err := b.Dev.Alloc(bytes)
	if err != nil {
		return 0, err
	}
	defer b.Dev.Free(data) //nolint:errcheck // the measurement stands
	if err := b.Dev.Fill(data, 0x5a, bytes); err != nil {
		return 0, err
	}
	args := &struct {
		data  device.Ptr
		words int64
		never device.Ptr
	}{data, bytes / 16, never}
	l := wide(b.Dev.Info())
	ms, err := b.best(stream, 12, func() error { return fn.Launch(stream, l, unsafe.Pointer(args), unsafe.Sizeof(*args)) })
	return bytes / ms / 1e9, err
}

// exponentialRate returns the best exponentials a second.
func (b *Bench) exponentialRate(ctx context.Context, stream device.Stream, never device.Ptr) (float64, error) {
	fn, err := b.roofKernel(ctx, "exponentials")
	if err != nil {
		return 0, err
	}
	const rounds, each = 20000, 8 // each is the chains of a thread in roof.cu
	args := &struct {
		never  device.Ptr
		rounds int32
		_      int32
	}{never: never, rounds: rounds}
	l := wide(b.Dev.Info())
	// About 0.4 s, in which an idle card's clocks rise to what they are under load.
	ms, err := b.best(stream, 40, func() error { return fn.Launch(stream, l, unsafe.Pointer(args), 12) })
	return float64(l.Grid[0]) * float64(l.Block[0]) * rounds * each / ms * 1000, err
}

// wide fills the card: four blocks of 512 threads an SM.
func wide(info device.Info) *device.Launch {
	return &device.Launch{Grid: [3]uint32{uint32(info.SMs * 4), 1, 1}, Block: [3]uint32{512, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
}

// launchCost returns the microseconds of one node of a replayed graph of empty kernels.
func (b *Bench) launchCost(ctx context.Context, stream device.Stream, never device.Ptr) (us float64, err error) {
	fn, err := b.roofKernel(ctx, "nothing")
	if err != nil {
		return 0, err
	}
	const nodes = 1000
	args := &struct{ never device.Ptr }{never}
	l := &device.Launch{Grid: [3]uint32{1, 1, 1}, Block: [3]uint32{32, 1, 1}, Cluster: [3]uint32{1, 1, 1}}
	if err := stream.BeginCapture(); err != nil {
		return 0, err
	}
	for range nodes {
		err = errors.Join(err, fn.Launch(stream, l, unsafe.Pointer(args), unsafe.Sizeof(*args)))
	}
	graph, end := stream.EndCapture()
	if err := errors.Join(err, end); err != nil {
		return 0, err
	}
	defer func() { err = errors.Join(err, graph.Destroy()) }()
	ms, err := b.best(stream, 12, func() error { return graph.Launch(stream) })
	return ms * 1000 / nodes, err
}

// best is the least milliseconds of so many runs of what enqueue puts into the stream.
func (b *Bench) best(stream device.Stream, runs int, enqueue func() error) (least float64, err error) {
	begin, err := b.Dev.NewEvent()
	if err != nil {
		return 0, err
	}
	end, err := b.Dev.NewEvent()
	if err != nil {
		return 0, errors.Join(err, begin.Destroy())
	}
	defer func() { err = errors.Join(err, begin.Destroy(), end.Destroy()) }()
	for i := range runs {
		if err := errors.Join(stream.Record(begin), enqueue(), stream.Record(end), end.Synchronize()); err != nil {
			return 0, err
		}
		ms, err := end.Since(begin)
		if err != nil {
			return 0, err
		}
		if i == 0 || ms < least {
			least = ms
		}
	}
	return least, nil
}
