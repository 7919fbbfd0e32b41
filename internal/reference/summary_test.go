package reference

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func normal(r *rand.Rand, n int) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = r.NormFloat64()
	}
	return x
}

func TestSummariseByHand(t *testing.T) {
	// Four keys on the cross (±3, 0), (0, ±1) around (10, 20): mu is the centre, the first direction is x with sigma 3 sqrt 2.
	keys := []float64{13, 20, 7, 20, 10, 21, 10, 19}
	s := Summarise(keys, Shape{HeadDim: 2, PageSize: 4, Rank: 2, BasisBits: 16})
	round := cmp.Transformer("round", func(x float64) int64 { return int64(math.Round(x * 1e9)) })
	if diff := cmp.Diff([]float64{10, 20}, s.Mu, round); diff != "" {
		t.Errorf("mu: %s", diff)
	}
	if diff := cmp.Diff([]float64{1, 0, 0, 1}, s.V, round); diff != "" {
		t.Errorf("V: %s", diff)
	}
	if diff := cmp.Diff([]float64{3, 0, -3, 0, 0, 1, 0, -1}, s.C, round); diff != "" {
		t.Errorf("C: %s", diff)
	}
	if diff := cmp.Diff([]float64{3 * math.Sqrt2, math.Sqrt2}, s.Sigma, round); diff != "" {
		t.Errorf("sigma: %s", diff)
	}
}

func TestSummaryProperties(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, shape := range []Shape{{HeadDim: 64, PageSize: 16, Rank: 4, BasisBits: 16}, {HeadDim: 128, PageSize: 32, Rank: 16, BasisBits: 16}, {HeadDim: 64, PageSize: 128, Rank: 8, BasisBits: 16}, {HeadDim: 80, PageSize: 4, Rank: 3, BasisBits: 16}} {
		keys := normal(r, shape.PageSize*shape.HeadDim)
		s := Summarise(keys, shape)
		for a := range shape.Rank {
			for b := range shape.Rank {
				want := 0.0
				if a == b {
					want = 1
				}
				got := dot(s.V[a*shape.HeadDim:(a+1)*shape.HeadDim], s.V[b*shape.HeadDim:(b+1)*shape.HeadDim])
				if math.Abs(got-want) > 1e-12 {
					t.Errorf("%+v: v%d . v%d = %g", shape, a, b, got)
				}
			}
		}
		var sigma2, total float64
		for _, x := range s.Sigma {
			sigma2 += x * x
		}
		total = dot(s.D, s.D)
		if got := Energy(s.D, s.V, s.C, shape); math.Abs(got-sigma2) > 1e-12*total {
			t.Errorf("%+v: energy %g, singular values %g", shape, got, sigma2)
		}
		if got := SpanEnergy(s.D, s.V, shape); math.Abs(got-sigma2) > 1e-12*total {
			t.Errorf("%+v: span energy %g, singular values %g", shape, got, sigma2)
		}
		// No other orthonormal basis keeps more (Corollary 1): random ones keep less.
		if got := SpanEnergy(s.D, normal(r, shape.Rank*shape.HeadDim), shape); got >= sigma2 {
			t.Errorf("%+v: a random basis keeps %g, the top singular vectors %g", shape, got, sigma2)
		}
	}
}

func TestDeficientPages(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	one, two := normal(r, 64), normal(r, 64)
	for i := range one {
		one[i], two[i] = BF16.Round(one[i]), BF16.Round(two[i])
	}
	page := func(row func(t int) []float64) []float64 {
		var keys []float64
		for t := range 16 {
			keys = append(keys, row(t)...)
		}
		return keys
	}
	tests := []struct {
		name, reason string
		keys         []float64
		rank         int
	}{
		{"zeros", "an unwritten page", make([]float64, 16*64), 0},
		{"constant", "one key repeated has no deviation", page(func(int) []float64 { return one }), 0},
		{"two keys", "two repeated keys span one direction", page(func(t int) []float64 { return [][]float64{one, two}[t%2] }), 1},
		{"three keys", "three span two", page(func(t int) []float64 { return [][]float64{one, two, make([]float64, 64)}[t%3] }), 2},
	}
	for _, tt := range tests {
		for _, bits := range []int{2, 4, 8, 16} {
			shape := Shape{HeadDim: 64, PageSize: 16, Rank: 4, BasisBits: bits}
			s := Summarise(tt.keys, shape)
			d := s.Quantise().Dequantise()
			for r := range 4 {
				row := d.V[r*64 : (r+1)*64]
				if zero := dot(row, row) == 0; zero != (r >= tt.rank) {
					t.Errorf("%s (%s), %d bits: column %d zero: %v, want rank %d", tt.name, tt.reason, bits, r, zero, tt.rank)
				}
			}
			score, _ := d.Score(one, Logits{Scale: 0.125})
			if math.IsNaN(score) || math.IsInf(score, 0) {
				t.Errorf("%s, %d bits: score %g", tt.name, bits, score)
			}
		}
	}
}

func TestQuantisation(t *testing.T) {
	tests := []struct {
		name, reason string
		bits         int
		x            []float64
		scale        float64
		codes        []int32
	}{
		{"eight bits", "the largest is q", 8, []float64{127, -127, 0.4, 2.5, 3.5}, 1, []int32{127, -127, 0, 2, 4}},
		{"four bits", "q is 7", 4, []float64{-7, 3.4, 0.5, 1.5}, 1, []int32{-7, 3, 0, 2}},
		{"two bits", "four codes, none of them zero", 2, []float64{-1.5, -0.4, 0.4, 1.5, 1.1}, 1, []int32{0, 1, 2, 3, 3}},
		{"zero vector", "scale 0, no division", 4, []float64{0, 0}, 0, []int32{0, 0}},
		{"scale rounded down", "129.2/127 rounds to 1.015625 and 127.2 steps clamp to 127", 8, []float64{129.2, 1.015625}, 1.015625, []int32{127, 1}},
	}
	for _, tt := range tests {
		scale := FromBF16(Scale(tt.x, tt.bits))
		codes := make([]int32, len(tt.x))
		for i, x := range tt.x {
			codes[i] = Code(x, scale, tt.bits)
		}
		if scale != tt.scale {
			t.Errorf("%s (%s): scale %v, want %v", tt.name, tt.reason, scale, tt.scale)
		}
		if diff := cmp.Diff(tt.codes, codes); diff != "" {
			t.Errorf("%s (%s): %s", tt.name, tt.reason, diff)
		}
	}
}

func TestTokenScale(t *testing.T) {
	tests := []struct {
		name, reason string
		top, bits    float64
		want         float64
	}{
		{"a power of two", "is kept", 127, 8, 1},
		{"four significant bits", "are kept", 127 * 1.875, 8, 1.875},
		{"five", "are rounded up", 127 * 1.0625, 8, 1.125},
		{"just below two", "are rounded up to it", 127 * 1.9375, 8, 2},
		{"far below one", "keeps its place", 127 * 1.0625 / (1 << 40), 8, 1.125 / (1 << 40)},
		{"nothing", "has no scale", 0, 8, 0},
		{"four-bit codes", "f16 holds their products with any bf16 scale", 7 * 1.0625, 4, 1.0625},
	}
	for _, tt := range tests {
		got := FromBF16(TokenScale([]float64{-tt.top, tt.top / 3}, int(tt.bits)))
		if got != tt.want {
			t.Errorf("%s (%s): %v, want %v", tt.name, tt.reason, got, tt.want)
		}
		for code := range 128 {
			exact := float64(code) * got
			if f16 := FP16.Round(exact); tt.bits == 8 && exact > 0x1p-14 && f16 != exact {
				t.Errorf("%s: f16 makes %v of code %d under %v", tt.name, f16, code, got)
			}
		}
	}
	codes := Codes{Shape: Shape{HeadDim: 4, PageSize: 1, Rank: 1, BasisBits: 4}, TokenScale: []uint16{ToBF16(1.0625)}}
	if err := codes.Check(); err == nil || !strings.Contains(err.Error(), "4 significant bits") {
		t.Errorf("a scale of five significant bits: %v", err)
	}
}

func TestNonFiniteKeyMakesScoresNaN(t *testing.T) {
	for _, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for _, bits := range []int{2, 4, 8, 16} {
			shape := Shape{HeadDim: 64, PageSize: 16, Rank: 4, BasisBits: bits}
			keys := make([]float64, 16*64)
			keys[77] = bad
			codes := Summarise(keys, shape).Quantise()
			back, err := Unpack(shape, codes.Pack())
			if err != nil {
				t.Fatal(err)
			}
			if score, _ := back.Dequantise().Score(make([]float64, 64), Logits{Scale: 1}); !math.IsNaN(score) {
				t.Errorf("key %g, %d bits: score %g, want NaN", bad, bits, score)
			}
		}
	}
}

func TestPackRoundTrip(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	for _, dim := range []int{64, 80, 96, 112, 128, 192, 256} {
		for _, page := range []int{4, 8, 16, 32, 64, 128} {
			for _, bits := range []int{2, 4, 8, 16} {
				shape := Shape{HeadDim: dim, PageSize: page, Rank: min(3, page-1), BasisBits: bits}
				codes := Summarise(normal(r, page*dim), shape).Quantise()
				packed := codes.Pack()
				back, err := Unpack(shape, packed)
				if err != nil {
					t.Fatalf("%+v: %v", shape, err)
				}
				if diff := cmp.Diff(codes, back); diff != "" {
					t.Fatalf("%+v: %s", shape, diff)
				}
				if err := codes.Check(); err != nil {
					t.Errorf("%+v: %v", shape, err)
				}
			}
		}
	}
}

func TestRecordByHand(t *testing.T) {
	// Row 0 of a 4-bit basis begins at byte 0; dims 0 and 1 share a byte, the lower nibble first, biased by 8.
	shape := Shape{HeadDim: 64, PageSize: 16, Rank: 2, BasisBits: 4}
	codes := Summarise(make([]float64, 16*64), shape).Quantise()
	codes.V[0], codes.V[1], codes.V[16] = -7, 7, 3 // dim 16 opens the second quarter
	codes.Mu[5], codes.C[2*2+1] = -3, 9
	codes.MuScale = ToBF16(1)
	b := codes.Pack()
	l := shape.Layout()
	if b[0] != 0xf1 || b[l.QuarterBytes] != 0x8b {
		t.Errorf("basis bytes %#x, %#x, want 0xf1, 0x8b", b[0], b[l.QuarterBytes])
	}
	if b[l.Mu+5] != 0xfd || b[l.C+2*l.RankPad+1] != 9 || b[l.MuScale] != 0x80 || b[l.MuScale+1] != 0x3f {
		t.Error("centroid, coefficient or scale is not where the layout says")
	}
	b[l.Bytes-1] = 1
	if _, err := Unpack(shape, b); err == nil {
		t.Error("padding that is not zero was accepted")
	}
}

func TestRememberedVectorsAreTheSame(t *testing.T) {
	r := rand.New(rand.NewPCG(25, 26))
	shape := Shape{HeadDim: 64, PageSize: 32, Rank: 4, BasisBits: 16}
	keys := normal(r, 32*64)
	first := Summarise(keys, shape)
	first.V[0], first.Sigma[0] = 99, 99 // what a caller does to his copy must not reach the memo
	again := Summarise(keys, shape)
	v, sigma := computeTopSingular(again.D, 32, 64, 4)
	if diff := cmp.Diff(v, again.V); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(sigma, again.Sigma); diff != "" {
		t.Error(diff)
	}
	keys[5] += 1e-9
	if other := Summarise(keys, shape); cmp.Equal(other.V, again.V) {
		t.Error("another page got the remembered vectors")
	}
}
