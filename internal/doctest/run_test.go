package doctest

import (
	"errors"
	"math"
	"math/rand/v2"
	"path/filepath"
	"slices"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/out/smollm2135m"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// TestStep runs the README's example on the simulator with an untuned bundle: 41 pages, the last one half full, against float64.
func TestStep(t *testing.T) {
	dev, err := sim.New(sim.Config{})
	if err != nil {
		t.Fatal(err)
	}
	k := openBundle(t, dev)
	stream, err := dev.NewStream()
	if err != nil {
		t.Fatal(err)
	}
	const tokens = 40*smollm2135m.PageSize + 8
	ref := randomCache(tokens)
	q := reference.Queries{DType: reference.BF16, Heads: smollm2135m.QueryHeads, HeadDim: smollm2135m.HeadDim}
	r := rand.New(rand.NewPCG(3, 4))
	for range smollm2135m.QueryHeads * smollm2135m.HeadDim {
		q.Bits = append(q.Bits, bf16(r.NormFloat64()))
	}
	l := newLayer(t, dev, k, ref, q)
	if err := errors.Join(step(k, stream, l, kernel.Workload{Context: tokens, Batch: 1}), stream.Synchronize()); err != nil {
		t.Fatal(err)
	}
	pages, counts := make([]int32, smollm2135m.KVHeads*smollm2135m.Slots), make([]int32, smollm2135m.KVHeads)
	out := make([]uint16, len(q.Bits))
	if err := errors.Join(dev.Read(bytesOf(pages), l.pages), dev.Read(bytesOf(counts), l.counts), dev.Read(bytesOf(out), l.out)); err != nil {
		t.Fatal(err)
	}
	for head := range smollm2135m.QueryHeads {
		kv := head / smollm2135m.Group
		list := pages[kv*smollm2135m.Slots:][:smollm2135m.Slots]
		if counts[kv] != smollm2135m.Slots || list[0] != 0 || list[len(list)-1] != 40 || !slices.IsSorted(list) {
			t.Fatalf("KV head %d has %d pages, %v; want %d ascending, with the first and the last", kv, counts[kv], list, smollm2135m.Slots)
		}
		want := ref.Attend(0, kv, q.Of(0, head), list, reference.Logits{Scale: smollm2135m.SoftmaxScale})
		for i, x := range want.Out {
			if got := reference.FromBF16(out[head*smollm2135m.HeadDim+i]); math.Abs(got-x) > 1e-2 {
				t.Fatalf("query head %d, dim %d: %g, float64 has %g", head, i, got, x)
			}
		}
	}
}

// openBundle writes an untuned bundle for the device, as kvloom tune writes a tuned one, and opens it through the generated package.
func openBundle(t *testing.T, dev device.Device) *smollm2135m.Kernels {
	t.Helper()
	s, err := specs.Model(smollm2135m.Model)
	if err != nil {
		t.Fatal(err)
	}
	compiler := nvrtctest.Compiler(t)
	packer := autotune.Packer{Spec: s, Plan: plan.New(s, plan.Targets[s.Targets[0]]), Compile: autotune.CompileWith(compiler),
		NVRTC: compiler.Version(), Generator: "test", Device: dev.Info()}
	b, err := packer.Pack(t.Context(), nil, nil)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "smollm2-135m.kvb")
	if err := b.Write(path); err != nil {
		t.Fatal(err)
	}
	k, err := smollm2135m.Open(path, dev)
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range k.Warnings() {
		t.Error("warning:", w)
	}
	return k
}

// randomCache is one request whose pages lie in blocks in reverse order.
func randomCache(tokens int) *reference.Cache {
	pages := (tokens + smollm2135m.PageSize - 1) / smollm2135m.PageSize
	c := &reference.Cache{DType: reference.BF16, HeadDim: smollm2135m.HeadDim, PageSize: smollm2135m.PageSize, KVHeads: smollm2135m.KVHeads,
		MaxPages: pages, SeqLens: []int32{int32(tokens)}, TableStride: pages}
	r := rand.New(rand.NewPCG(1, 2))
	for p := range pages {
		c.Table = append(c.Table, int32(pages-1-p))
	}
	for id := range pages {
		c.AddBlock(int32(id))
		for head := range c.KVHeads {
			for _, page := range [][]uint16{c.BlockKeys(int32(id), head), c.BlockValues(int32(id), head)} {
				for i := range page {
					page[i] = bf16(r.NormFloat64())
				}
			}
		}
	}
	return c
}

// newLayer puts the cache on the device, blocks of [kv head, token, dim], and allocates the rest.
func newLayer(t *testing.T, dev device.Device, k *smollm2135m.Kernels, ref *reference.Cache, q reference.Queries) *layer {
	t.Helper()
	alloc := func(n int64) device.Ptr {
		if n == 0 {
			return 0
		}
		p, err := dev.Alloc(n)
		if err != nil {
			t.Fatal(err)
		}
		if err := dev.Fill(p, 0, n); err != nil {
			t.Fatal(err)
		}
		return p
	}
	put := func(b []byte) device.Ptr {
		p := alloc(int64(len(b)))
		if err := dev.Write(p, b); err != nil {
			t.Fatal(err)
		}
		return p
	}
	var keys, values []uint16
	for id := range ref.MaxPages {
		for head := range ref.KVHeads {
			keys = append(keys, ref.BlockKeys(int32(id), head)...)
			values = append(values, ref.BlockValues(int32(id), head)...)
		}
	}
	page := int64(ref.PageSize * ref.HeadDim)
	c := kernel.KVCache{K: put(bytesOf(keys)), V: put(bytesOf(values)), BlockTable: put(bytesOf(ref.Table)), SeqLens: put(bytesOf(ref.SeqLens)),
		KBlockStride: page * int64(ref.KVHeads), KHeadStride: page, KTokenStride: int64(ref.HeadDim),
		VBlockStride: page * int64(ref.KVHeads), VHeadStride: page, VTokenStride: int64(ref.HeadDim),
		TableStride: int64(ref.MaxPages), Batch: 1, KVHeads: int32(ref.KVHeads), MaxPages: int32(ref.MaxPages)}
	l := &layer{cache: c, q: put(bytesOf(q.Bits)), summaries: alloc(smollm2135m.SummaryBytes(ref.MaxPages, ref.KVHeads)), builtLens: alloc(4)}
	heads, lists := int64(q.Heads), int64(ref.KVHeads)
	l.scores, l.out, l.lse = alloc(4*heads*int64(ref.MaxPages)), alloc(2*heads*int64(ref.HeadDim)), alloc(4*heads)
	l.pages, l.counts = alloc(4*lists*smollm2135m.Slots), alloc(4*lists)
	problem := k.ProblemOf(1, ref.KVHeads, ref.MaxPages, ref.MaxPages)
	for work, at := range map[string]*device.Ptr{kernel.PageSummary: &l.build, kernel.PageScore: &l.score, kernel.PageSelect: &l.pick, kernel.PageAttend: &l.attend} {
		n, err := k.WorkspaceBytes(work, problem)
		if err != nil {
			t.Fatal(err)
		}
		*at = alloc(n)
	}
	return l
}

func bf16(x float64) uint16 { return uint16(math.Float32bits(float32(x)) >> 16) }

func bytesOf[T uint16 | int32](s []T) []byte {
	return unsafe.Slice((*byte)(unsafe.Pointer(&s[0])), len(s)*int(unsafe.Sizeof(s[0])))
}
