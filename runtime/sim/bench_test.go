package sim_test

import (
	_ "embed"
	"encoding/binary"
	"math"
	"math/rand/v2"
	"testing"
	"time"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// selectBench is page_select of llama-3.1-8b on random scores of 8192 pages (128K tokens).
type selectBench struct {
	dev    device.Device
	fn     device.Function
	stream device.Stream
	launch device.Launch
	args   kernel.PageSelectArgs
}

func newSelectBench(b *testing.B, c sim.Config) *selectBench {
	b.Helper()
	const pages, batch = 8192, 2
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		b.Fatal(err)
	}
	cand, ok := plan.ForFamily(plan.PageSelect, s, plan.Targets["sm_90a"]).DefaultOf(plan.Portable)
	if !ok {
		b.Fatal("no portable page_select")
	}
	src, err := render.Candidate(cand)
	if err != nil {
		b.Fatal(err)
	}
	x := &selectBench{}
	if x.dev, err = sim.New(c); err != nil {
		b.Fatal(err)
	}
	m, err := x.dev.Load(nvrtctest.Compile(b, src).PTX)
	if err != nil {
		b.Fatal(err)
	}
	if x.fn, err = m.Function(src.Entry); err != nil {
		b.Fatal(err)
	}
	if x.stream, err = x.dev.NewStream(); err != nil {
		b.Fatal(err)
	}
	if err := x.fn.SetMaxDynamicShared(cand.Geometry.DynamicShared); err != nil {
		b.Fatal(err)
	}
	q, kv := s.Attention.QueryHeads, s.Attention.KVHeads
	p := launch.Problem{Batch: batch, KVHeads: int64(kv), QHeads: int64(q), Lists: int64(kv), MaxPages: pages, Slots: 128, SMs: 132}
	r := rand.New(rand.NewPCG(1, 2))
	scores := make([]byte, batch*q*pages*4)
	for i := 0; i < len(scores); i += 4 {
		binary.LittleEndian.PutUint32(scores[i:], math.Float32bits(float32(r.NormFloat64())))
	}
	lens := binary.LittleEndian.AppendUint32(nil, pages*16)
	lens = binary.LittleEndian.AppendUint32(lens, pages*16)
	alloc := func(n int64, data []byte) device.Ptr {
		ptr, err := x.dev.Alloc(n)
		if err != nil {
			b.Fatal(err)
		}
		if data == nil {
			data = make([]byte, n)
		}
		if err := x.dev.Write(ptr, data); err != nil {
			b.Fatal(err)
		}
		return ptr
	}
	x.args = kernel.PageSelectArgs{Scores: alloc(int64(len(scores)), scores), SeqLens: alloc(8, lens), Pages: alloc(int64(batch*kv*128*4), nil),
		Counts: alloc(int64(batch*kv*4), nil), Workspace: alloc(max(cand.Geometry.WorkspaceBytes(p), 256), nil),
		ScoreBatchStride: int64(q) * pages, ScoreHeadStride: pages, PagesBatchStride: int64(kv) * 128, PagesListStride: 128,
		Batch: batch, KVHeads: int32(kv), MaxPages: pages, Slots: 128, SinkPages: 1, RecentPages: 1}
	g := cand.Geometry
	for i := range x.launch.Grid {
		x.launch.Grid[i] = uint32(g.Grid[i].Value(p))
	}
	x.launch.Block, x.launch.Cluster = [3]uint32{uint32(g.Block), 1, 1}, [3]uint32{uint32(g.Cluster), 1, 1}
	x.launch.DynamicShared = uint32(g.DynamicShared)
	return x
}

func (x *selectBench) run(b *testing.B) {
	b.Helper()
	if err := x.fn.Launch(x.stream, &x.launch, unsafe.Pointer(&x.args), unsafe.Sizeof(x.args)); err != nil {
		b.Fatal(err)
	}
}

// BenchmarkSelect measures thread instructions a second on a kernel without matrix instructions.
func BenchmarkSelect(b *testing.B) {
	for _, tc := range []struct {
		name string
		c    sim.Config
	}{{"plain", sim.Config{}}, {"one worker", sim.Config{Workers: 1}}, {"counters", sim.Config{Count: true}}, {"sanitizer", sim.Config{Sanitize: true}}} {
		b.Run(tc.name, func(b *testing.B) {
			x := newSelectBench(b, tc.c)
			defer x.dev.Close()
			_, before := x.dev.(*sim.Device).Executed()
			cpu := cpuTime()
			for b.Loop() {
				x.run(b)
			}
			_, after := x.dev.(*sim.Device).Executed()
			report(b, float64(after-before)/1e6, cpuTime()-cpu, "Mthread-instr")
		})
	}
}

//go:embed testdata/bench.cu
var benchSource string

// BenchmarkMatrix measures multiply-adds a second inside matrix instructions.
func BenchmarkMatrix(b *testing.B) {
	ptx := nvrtctest.Compile(b, render.Source{Name: "bench.cu", Text: benchSource, Entry: "mma_loop", Arch: "sm_90a", Hash: benchSource}).PTX
	const blocks, warps, loops = 8, 4, 64
	for _, tc := range []struct {
		name string
		adds int
	}{{"mma_loop", 16 * 8 * 16}, {"imma_loop", 16 * 8 * 32}, {"wgmma_loop", 16 * 64 * 16}} {
		b.Run(tc.name, func(b *testing.B) {
			d, err := sim.New(sim.Config{})
			if err != nil {
				b.Fatal(err)
			}
			defer d.Close()
			m, err := d.Load(ptx)
			if err != nil {
				b.Fatal(err)
			}
			f, err := m.Function(tc.name)
			if err != nil {
				b.Fatal(err)
			}
			s, err := d.NewStream()
			if err != nil {
				b.Fatal(err)
			}
			out, err := d.Alloc(blocks * warps * 32 * 4)
			if err != nil {
				b.Fatal(err)
			}
			args := struct {
				out device.Ptr
				n   int32
				_   int32
			}{out, loops, 0}
			l := grid(blocks, warps*32, 1)
			cpu := cpuTime()
			for b.Loop() {
				if err := f.Launch(s, &l, unsafe.Pointer(&args), unsafe.Sizeof(args)); err != nil {
					b.Fatal(err)
				}
			}
			report(b, float64(b.N)*blocks*warps*loops*float64(tc.adds)/1e9, cpuTime()-cpu, "Gmultiply-add")
		})
	}
}

// report gives work by the clock on the wall and by one core's time.
func report(b *testing.B, work float64, cpu time.Duration, unit string) {
	b.ReportMetric(work/b.Elapsed().Seconds(), unit+"/s")
	if cpu > 0 {
		b.ReportMetric(work/cpu.Seconds(), unit+"/core-s")
	}
}
