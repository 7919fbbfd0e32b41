package kernel_test

import (
	"encoding/binary"
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/gputest"
	model "github.com/kvloom/kvloom/out/smollm2135m"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

const (
	batch    = 3
	maxPages = 40
	heads    = model.QueryHeads
	dim      = model.HeadDim
	page     = model.PageSize
)

// server is a serving process in small: a paged cache, one layer, one captured step.
type server struct {
	t      *testing.T
	dev    device.Device
	stream device.Stream
	k      *kernel.Set
	keys   []float64 // [block, token, kv head, dim]
	values []float64
	q      []float64 // [batch, q head, dim]
	table  []int32   // [batch, maxPages]

	lens, pages, counts, out, dense, lse device.Ptr
}

// TestServing opens a bundle file, loads it, captures build, score, select, attend and dense attention as one graph, and replays it at
// growing and shrinking lengths; each output is compared with float64 softmax over the tokens that it stands for.
func TestServing(t *testing.T) {
	file := pack(t)
	for _, dev := range gputest.Devices(t) {
		t.Run(dev.Info().Backend, func(t *testing.T) {
			k, err := model.Open(file, dev)
			check(t, err)
			t.Cleanup(func() { check(t, k.Unload()) })
			s := newServer(t, dev, k.Set)
			g := s.capture(k)
			for _, lens := range [][]int32{{600, 0, 37}, {601, 1, 48}, {640, 16, 300}, {17, 0, 640}} {
				s.write(s.lens, bytesOf(lens))
				check(t, g.Launch(s.stream), s.stream.Synchronize())
				s.compare(lens)
			}
			check(t, g.Destroy())
			for _, st := range k.Stats() {
				want := int64(1)
				if strings.HasPrefix(st.Work, "drop_") { // eviction is no part of a decode step
					want = 0
				}
				if st.Counts[kernel.DefaultUsed] != want {
					t.Errorf("%s: %d lookups at capture wanted: %+v", st.Work, want, st)
				}
			}
		})
	}
}

// pack compiles the defaults of the model, as 'kvloom tune' would have chosen without a trial.
func pack(t *testing.T) string {
	s, err := specs.Model(model.Model)
	check(t, err)
	p := autotune.Packer{Spec: s, Plan: plan.New(s, plan.Targets["sm_90a"]), Compile: autotune.CompileWith(nvrtctest.Compiler(t)),
		Device: device.Info{Backend: "cuda", Name: "NVIDIA H200", Major: 9, SMs: 132}}
	b, err := p.Pack(t.Context(), nil, nil)
	check(t, err)
	file := filepath.Join(t.TempDir(), "smollm2.kvb")
	check(t, b.Write(file))
	return file
}

func newServer(t *testing.T, dev device.Device, k *kernel.Set) *server {
	s := &server{t: t, dev: dev, k: k}
	var err error
	s.stream, err = dev.NewStream()
	check(t, err)
	t.Cleanup(func() { check(t, s.stream.Destroy()) })
	rng := rand.New(rand.NewPCG(7, 11))
	random := func(n int, scale float64) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(fromBF16(toBF16(float32(rng.NormFloat64() * scale))))
		}
		return v
	}
	s.keys, s.values, s.q = random(batch*maxPages*page*model.KVHeads*dim, 1), random(batch*maxPages*page*model.KVHeads*dim, 1), random(batch*heads*dim, 2)
	s.table = make([]int32, batch*maxPages)
	for i, b := range rng.Perm(len(s.table)) {
		s.table[i] = int32(b)
	}
	return s
}

// capture allocates all that a step needs and captures it.
func (s *server) capture(k *model.Kernels) device.Graph {
	const tokenStride = model.KVHeads * dim
	s.lens = s.upload(make([]byte, 4*batch))
	cache := kernel.KVCache{K: s.upload(bf16(s.keys)), V: s.upload(bf16(s.values)), BlockTable: s.upload(bytesOf(s.table)), SeqLens: s.lens,
		KBlockStride: page * tokenStride, KTokenStride: tokenStride, KHeadStride: dim, VBlockStride: page * tokenStride, VTokenStride: tokenStride, VHeadStride: dim,
		TableStride: maxPages, Batch: batch, KVHeads: model.KVHeads, MaxPages: maxPages}
	q, summaries := s.upload(bf16(s.q)), s.upload(make([]byte, model.SummaryBytes(batch*maxPages, model.KVHeads)))
	built, scores := s.upload(make([]byte, 4*batch)), s.poisoned(4*batch*heads*maxPages)
	s.pages, s.counts = s.poisoned(4*batch*model.KVHeads*model.Slots), s.poisoned(4*batch*model.KVHeads)
	s.out, s.dense, s.lse = s.poisoned(2*batch*heads*dim), s.poisoned(2*batch*heads*dim), s.poisoned(4*batch*heads)

	w := kernel.Workload{Context: maxPages * page, Batch: batch}
	build := model.NewPageSummaryArgs(cache, summaries, built, s.workspace(kernel.PageSummary))
	score := model.NewPageScoreArgs(cache, q, summaries, scores, s.workspace(kernel.PageScore))
	choose := model.NewPageSelectArgs(cache, scores, s.pages, s.counts, s.workspace(kernel.PageSelect))
	attend := model.NewPageAttendArgs(cache, q, s.pages, s.counts, s.out, 0, s.workspace(kernel.PageAttend))
	all := model.NewPageAttendArgs(cache, q, 0, 0, s.dense, s.lse, s.workspace(kernel.Dense))
	layer := &kernel.LayerArgs{Score: score.PageScoreArgs, Select: choose.PageSelectArgs, Attend: attend.PageAttendArgs}
	check(s.t, s.stream.BeginCapture(), k.PageSummary(s.stream, build, w, 1), k.DecodeLayer(s.stream, layer, w), k.PageAttend(s.stream, all, w))
	g, err := s.stream.EndCapture()
	check(s.t, err)
	return g
}

func (s *server) compare(lens []int32) {
	s.t.Helper()
	pages, counts := ints(s.read(s.pages, 4*batch*model.KVHeads*model.Slots)), ints(s.read(s.counts, 4*batch*model.KVHeads))
	out, dense := floats16(s.read(s.out, 2*batch*heads*dim)), floats16(s.read(s.dense, 2*batch*heads*dim))
	lse := floats32(s.read(s.lse, 4*batch*heads))
	for r, n := range lens {
		filled := (int(n) + page - 1) / page
		all := make([]int32, filled)
		for i := range all {
			all[i] = int32(i)
		}
		for h := range heads {
			list := r*model.KVHeads + h/model.Group
			slots := pages[list*model.Slots : (list+1)*model.Slots]
			if int(counts[list]) != min(model.Slots, filled) {
				s.t.Fatalf("lens %v, request %d: %d pages selected of %d", lens, r, counts[list], filled)
			}
			chosen := slots[:counts[list]]
			if filled > 0 && (!slices.IsSorted(chosen) || chosen[0] != 0 || int(chosen[len(chosen)-1]) != filled-1 || len(slices.Compact(slices.Clone(chosen))) != len(chosen)) {
				s.t.Fatalf("lens %v, request %d: pages %v of %d", lens, r, slots, filled)
			}
			at := (r*heads + h) * dim
			s.near("sparse", lens, r, out[at:at+dim], s.attention(r, h, n, chosen).out)
			want := s.attention(r, h, n, all)
			s.near("dense", lens, r, dense[at:at+dim], want.out)
			if got := lse[r*heads+h]; got != want.lse && math.Abs(got-want.lse) > 1e-3*max(1, math.Abs(want.lse)) {
				s.t.Errorf("lens %v, request %d, head %d: normaliser %v, want %v", lens, r, h, got, want.lse)
			}
		}
	}
}

type attention struct {
	out []float64 // [dim]
	lse float64
}

// attention is softmax over the tokens of the pages, in float64. Without tokens it is 0 and -inf.
func (s *server) attention(r, h int, n int32, pages []int32) attention {
	a := attention{make([]float64, dim), math.Inf(-1)}
	var logits []float64
	var rows []int
	for _, p := range pages {
		for t := range page {
			if int(p)*page+t >= int(n) {
				break
			}
			row := ((int(s.table[r*maxPages+int(p)])*page+t)*model.KVHeads + h/model.Group) * dim
			var dot float64
			for i := range dim {
				dot += s.q[(r*heads+h)*dim+i] * s.keys[row+i]
			}
			logits, rows = append(logits, dot*model.SoftmaxScale), append(rows, row)
		}
	}
	if len(logits) == 0 {
		return a
	}
	top, sum := slices.Max(logits), 0.0
	for _, l := range logits {
		sum += math.Exp(l - top)
	}
	a.lse = top + math.Log(sum)
	for j, l := range logits {
		for i := range dim {
			a.out[i] += math.Exp(l-a.lse) * s.values[rows[j]+i]
		}
	}
	return a
}

// near wants 1e-2 relative, as design.md bounds attention in bf16.
func (s *server) near(what string, lens []int32, r int, got, want []float64) {
	s.t.Helper()
	var diff, norm float64
	for i := range want {
		diff += (got[i] - want[i]) * (got[i] - want[i])
		norm += want[i] * want[i]
	}
	if !(math.Sqrt(diff) <= 1e-2*math.Sqrt(norm)) {
		s.t.Errorf("lens %v, request %d: %s attention is off by %.2g of %.2g", lens, r, what, math.Sqrt(diff), math.Sqrt(norm))
	}
}

// workspace allocates and zeroes what the work needs.
func (s *server) workspace(work string) device.Ptr {
	n, err := s.k.WorkspaceBytes(work, s.k.ProblemOf(batch, model.KVHeads, maxPages, 1))
	check(s.t, err)
	return s.upload(make([]byte, max(n, 16)))
}

func (s *server) alloc(n int) device.Ptr {
	p, err := s.dev.Alloc(int64(n))
	check(s.t, err)
	s.t.Cleanup(func() { check(s.t, s.dev.Free(p)) })
	return p
}

// poisoned memory shows what a kernel leaves unwritten: 0xff is -1 among pages and NaN among floats.
func (s *server) poisoned(n int) device.Ptr {
	p := s.alloc(n)
	check(s.t, s.dev.Fill(p, 0xff, int64(n)))
	return p
}

func (s *server) upload(b []byte) device.Ptr {
	p := s.alloc(len(b))
	s.write(p, b)
	return p
}

func (s *server) write(p device.Ptr, b []byte) { check(s.t, s.dev.Write(p, b)) }

func (s *server) read(p device.Ptr, n int) []byte {
	b := make([]byte, n)
	check(s.t, s.dev.Read(b, p))
	return b
}

func check(t *testing.T, errs ...error) {
	t.Helper()
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
}

func toBF16(f float32) uint16   { return uint16(math.Float32bits(f) >> 16) }
func fromBF16(b uint16) float32 { return math.Float32frombits(uint32(b) << 16) }

func bf16(v []float64) []byte {
	b := make([]byte, 0, 2*len(v))
	for _, f := range v {
		b = binary.LittleEndian.AppendUint16(b, toBF16(float32(f)))
	}
	return b
}

func bytesOf(v []int32) []byte {
	b := make([]byte, 0, 4*len(v))
	for _, n := range v {
		b = binary.LittleEndian.AppendUint32(b, uint32(n))
	}
	return b
}

func ints(b []byte) []int32 {
	v := make([]int32, len(b)/4)
	for i := range v {
		v[i] = int32(binary.LittleEndian.Uint32(b[4*i:]))
	}
	return v
}

func floats32(b []byte) []float64 {
	v := make([]float64, len(b)/4)
	for i := range v {
		v[i] = float64(math.Float32frombits(binary.LittleEndian.Uint32(b[4*i:])))
	}
	return v
}

func floats16(b []byte) []float64 {
	v := make([]float64, len(b)/2)
	for i := range v {
		v[i] = float64(fromBF16(binary.LittleEndian.Uint16(b[2*i:])))
	}
	return v
}
