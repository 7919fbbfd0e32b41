package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

// tinyCache has one request in shuffled blocks of four tokens, the last page half full, one KV head of dim 4.
func tinyCache(r *rand.Rand, length int) *Cache {
	c := &Cache{DType: BF16, HeadDim: 4, PageSize: 4, KVHeads: 2, MaxPages: 8, TableStride: 9, SeqLens: []int32{int32(length)}}
	c.Table = []int32{5, 2, 7, 0, -1, 3, 12345678, -1, -99}
	for _, id := range []int32{0, 2, 3, 5, 7} {
		c.AddBlock(id)
		for h := range 2 {
			for i := range 16 {
				c.BlockKeys(id, h)[i] = ToBF16(r.NormFloat64())
				c.BlockValues(id, h)[i] = ToBF16(r.NormFloat64())
			}
		}
	}
	return c
}

func TestAttendEqualsPlainSoftmax(t *testing.T) {
	r := rand.New(rand.NewPCG(17, 18))
	c := tinyCache(r, 14)
	q := normal(r, 4)
	l := Logits{Scale: 0.5}
	for _, pages := range [][]int32{nil, {0, 3}, {1, 2, 3}} {
		listed := pages
		if pages == nil {
			listed = []int32{0, 1, 2, 3}
		}
		var logits []float64
		var values [][]float64
		for _, page := range listed {
			n := c.TokensIn(int(page), 14)
			k, v := c.Keys(0, int(page), 1, n), c.Values(0, int(page), 1, n)
			for i := range n {
				logits = append(logits, 0.5*dot(q, k[4*i:4*i+4]))
				values = append(values, v[4*i:4*i+4])
			}
		}
		lse := LSE(logits)
		want := make([]float64, 4)
		for i, x := range logits {
			axpy(want, math.Exp(x-lse), values[i])
		}
		got := c.Attend(0, 1, q, pages, l)
		if math.Abs(got.LSE-lse) > 1e-12 {
			t.Errorf("pages %v: LSE %v, want %v", pages, got.LSE, lse)
		}
		for i := range want {
			if math.Abs(got.Out[i]-want[i]) > 1e-12 {
				t.Errorf("pages %v: out %v, want %v", pages, got.Out, want)
			}
		}
	}
}

func TestAttendCorners(t *testing.T) {
	r := rand.New(rand.NewPCG(19, 20))
	q := normal(r, 4)
	l := Logits{Scale: 0.5}
	c := tinyCache(r, 0)
	if got := c.Attend(0, 0, q, nil, l); !math.IsInf(got.LSE, -1) || dot(got.Out, got.Out) != 0 {
		t.Errorf("no tokens: %+v, want zeros and -inf", got)
	}
	c = tinyCache(r, 24)
	all, without := c.Attend(0, 0, q, nil, l), c.Attend(0, 0, q, []int32{0, 1, 2, 3, 5}, l)
	if all.LSE != without.LSE {
		t.Errorf("a page without a block (4) counts: %v, %v", all.LSE, without.LSE)
	}
	c = tinyCache(r, 16)
	c.HeadLens = []int32{6, 0}
	if got, want := c.Attend(0, 0, q, nil, l).LSE, PageLSE(q, append(c.Keys(0, 0, 0, 4), c.Keys(0, 1, 0, 2)...), l); math.Abs(got-want) > 1e-12 {
		t.Errorf("head of length 6: %v, want %v", got, want)
	}
	if got := c.Attend(0, 1, q, []int32{0, 1}, l); !math.IsInf(got.LSE, -1) {
		t.Errorf("head of length 0: %v", got.LSE)
	}
}

func TestMassAndLSEAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(21, 22))
	c := tinyCache(r, 15)
	q := normal(r, 4)
	l := Logits{Scale: 0.5, Softcap: 1}
	exact := c.ExactScores(0, 0, q, l)
	if got, want := LSE(exact), c.Attend(0, 0, q, nil, l).LSE; math.Abs(got-want) > 1e-12 {
		t.Errorf("page scores sum to %v, attention to %v", got, want)
	}
	got, want := RetainedMass(exact, []int32{0, 2}), math.Exp(c.Attend(0, 0, q, []int32{0, 2}, l).LSE-LSE(exact))
	if math.Abs(got-want) > 1e-12 {
		t.Errorf("retained mass %v, want %v", got, want)
	}
}

func TestLayerAgreesWithItsParts(t *testing.T) {
	r := rand.New(rand.NewPCG(23, 24))
	c := tinyCache(r, 24)
	shape := Shape{HeadDim: 4, PageSize: 4, Rank: 2, BasisBits: 16}
	q := Queries{DType: BF16, Heads: 6, HeadDim: 4, Bits: make([]uint16, 24)}
	for i := range q.Bits {
		q.Bits[i] = ToBF16(r.NormFloat64())
	}
	l := Logits{Scale: 0.5}
	s := c.Build(shape)
	if len(s.Records) != 10 {
		t.Fatalf("%d records, want 5 blocks x 2 heads (page 4 has no block)", len(s.Records))
	}
	c.SeqLens[0] = 23
	scores := c.Score(s, q, l)
	if got, want := scores.Score[0][4][5], PageLSE(q.Of(0, 4), c.Keys(0, 5, 1, 3), l); got != want {
		t.Errorf("the filling page scores %v, want its exact %v", got, want)
	}
	if got := scores.Score[0][4][4]; !math.IsInf(got, -1) {
		t.Errorf("a page without a block scores %v, want -inf", got)
	}
	want, _ := Summarise(c.Keys(0, 1, 1, 4), shape).Quantise().Dequantise().Score(q.Of(0, 4), l)
	if got := scores.Score[0][4][1]; got != want {
		t.Errorf("a complete page scores %v, want equation 2's %v", got, want)
	}
	for _, rule := range []Combine{ShareAverage, PerHead} {
		lists := scores.Select(rule, 3, Budget{3, 1, 1})
		if n := map[Combine]int{ShareAverage: 2, PerHead: 6}[rule]; len(lists[0]) != n {
			t.Fatalf("%s: %d lists, want %d", rule, len(lists[0]), n)
		}
		out := c.AttendAll(q, lists, l)
		list := lists[0][5*len(lists[0])/6]
		if got, want := out[5].LSE, c.Attend(0, 1, q.Of(0, 5), list, l).LSE; got != want {
			t.Errorf("%s: head 5 has LSE %v, want %v", rule, got, want)
		}
	}
}

func TestOffsets(t *testing.T) {
	c := &Cache{HeadDim: 128, PageSize: 16, KVHeads: 8, KStrides: Strides{16384, 1024, 128}, VStrides: Strides{16384, 1024, 128}, VBase: 7}
	c.AddBlock(1_000_000)
	if got, want := c.KOffset(1_000_000, 15, 7), int64(16_384_000_000+15*1024+7*128); got != want {
		t.Errorf("offset %d, want %d: 32 bits are not enough (M1)", got, want)
	}
	if k, v := c.Elements(); k != 16_384_000_000+16384 || v != k+7 {
		t.Errorf("buffers of %d and %d elements", k, v)
	}
}
