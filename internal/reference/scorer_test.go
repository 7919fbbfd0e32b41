package reference

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// summariesOf summarises complete pages of keys [token, dim].
func summariesOf(keys []float64, dim, page, rank int) []Summary {
	var out []Summary
	for at := 0; at+page*dim <= len(keys); at += page * dim {
		out = append(out, Summarise(keys[at:at+page*dim], Shape{HeadDim: dim, PageSize: page, Rank: rank, BasisBits: 16}))
	}
	return out
}

// TestScorersOnDegenerateKeys: constant, zero and repeated keys, one that is 1e4 times larger, and logits of 3e4 give finite scores;
// where the keys of a page are all the same, every score that estimates the log-sum-exp is exact up to the rounding of its codes.
func TestScorersOnDegenerateKeys(t *testing.T) {
	const dim, page, pages = 64, 16, 8
	r := rand.New(rand.NewPCG(1, 2))
	random := func(i int) float64 { return r.NormFloat64() }
	for _, tt := range []struct {
		name, reason string
		key          func(i int) float64
		same         bool
	}{
		{"zero", "no direction at all", func(int) float64 { return 0 }, true},
		{"constant", "a centroid and no direction", func(i int) float64 { return float64(i%dim) / dim }, true},
		{"repeated", "rank 1", func(i int) float64 { return float64(i / dim % 2 * (i % 7)) }, false},
		{"outlier", "one key 1e4 times larger takes the scale", func(i int) float64 {
			if i/dim == 5 {
				return 1e4 * random(i)
			}
			return random(i)
		}, false},
		{"large logits", "exponentials overflow unless the maximum is taken out", func(i int) float64 { return 3e4 * random(i) / dim }, false},
	} {
		keys := make([]float64, pages*page*dim)
		for i := range keys {
			keys[i] = tt.key(i)
		}
		q := make([]float64, dim)
		for i := range q {
			q[i] = random(i)
		}
		summaries, l := summariesOf(keys, dim, page, 8), Logits{Scale: 0.125}
		scorers := map[string]PageScorer{"r8 float": NewPageLocal(summaries, 8, 0), "r4 i4": NewPageLocal(summaries, 4, 4), "mean": NewMeanKey(summaries, true),
			"quest": NewQuest(keys, dim, page), "hybrid": FitShared(keys, len(keys)/dim-3, summaries, true).Cut(12), "shared": FitShared(keys, len(keys)/dim-3, summaries, false).Cut(16)}
		exact := make([]float64, pages)
		NewExactLSE(keys, dim, page).Score(exact, q, l)
		for name, s := range scorers {
			got := make([]float64, pages)
			s.Score(got, q, l)
			for j, x := range got {
				if math.IsNaN(x) || math.IsInf(x, 0) {
					t.Errorf("%s, %s: page %d scores %g (%s)", tt.name, name, j, x, tt.reason)
				} else if tt.same && name != "quest" && math.Abs(x-exact[j]) > 0.02 {
					t.Errorf("%s, %s: page %d scores %g, exactly %g (%s)", tt.name, name, j, x, exact[j], tt.reason)
				} else if name == "quest" && x < exact[j]-math.Log(page)-1e-9*math.Abs(x) {
					t.Errorf("%s: the bound %g of page %d is below its largest logit, which is at least %g less log 16", tt.name, x, j, exact[j])
				}
			}
		}
	}
}

// TestTruncate: a cut summary is the one that a fit of that rank gives, codes included.
func TestTruncate(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	keys := make([]float64, 16*64)
	for i := range keys {
		keys[i] = r.NormFloat64()
	}
	full := Summarise(keys, Shape{HeadDim: 64, PageSize: 16, Rank: 8, BasisBits: 16})
	for _, rank := range []int{1, 3, 8} {
		if diff := cmp.Diff(Summarise(keys, Shape{HeadDim: 64, PageSize: 16, Rank: rank, BasisBits: 4}).Quantise(), full.Truncate(rank, 4).Quantise()); diff != "" {
			t.Errorf("rank %d, fitted -, cut +:\n%s", rank, diff)
		}
	}
}

// TestSharedBasisFindsItsSubspace: keys around page centroids in a subspace of 4 dims are scored by a shared basis of rank 4 up to
// quantisation, and not by one of rank 2. The wholly shared form needs the centroids' directions besides.
func TestSharedBasisFindsItsSubspace(t *testing.T) {
	const dim, page, pages = 64, 16, 32
	r := rand.New(rand.NewPCG(5, 6))
	keys := make([]float64, pages*page*dim)
	centre := make([]float64, dim)
	for at := 0; at < len(keys); at += dim {
		if at%(page*dim) == 0 {
			for i := range centre {
				centre[i] = r.NormFloat64()
			}
		}
		copy(keys[at:at+dim], centre)
		for i := range 4 {
			keys[at+i*9] += 3 * r.NormFloat64()
		}
	}
	q := make([]float64, dim)
	for i := range q {
		q[i] = r.NormFloat64()
	}
	l := Logits{Scale: 0.125}
	rms := func(s PageScorer) float64 {
		exact, got := make([]float64, pages), make([]float64, pages)
		NewExactLSE(keys, dim, page).Score(exact, q, l)
		s.Score(got, q, l)
		for j := range got {
			got[j] -= exact[j]
		}
		return math.Sqrt(dot(got, got) / pages)
	}
	summaries := summariesOf(keys, dim, page, 4)
	hybrid, shared := FitShared(keys, pages*page, summaries, true), FitShared(keys, pages*page, summaries, false)
	two, four, whole := rms(hybrid.Cut(2)), rms(hybrid.Cut(4)), rms(shared.Cut(4))
	if four > 0.1 || two < 3*four || whole < 3*four {
		t.Errorf("RMS error: hybrid of rank 4 %.4f, of rank 2 %.4f, wholly shared of rank 4 %.4f", four, two, whole)
	}
}

// TestMatchedBytes: at the paper's shape and with the tables spread over many pages, matching to 490 and 818 bytes leaves out no
// rank that would fit; the paper's 20, 40 (hybrid) and 28, 48 (wholly shared) fit as well.
func TestMatchedBytes(t *testing.T) {
	for _, tt := range []struct {
		hybrid       bool
		limit, paper int
	}{{true, 490, 20}, {true, 818, 40}, {false, 490, 28}, {false, 818, 48}} {
		f := SharedFit{hybrid: tt.hybrid, summaries: make([]Summary, 2048), dim: 128, page: 16}
		rank := f.RankWithin(float64(tt.limit))
		if rank < tt.paper || f.sharedBytes(rank) > float64(tt.limit) || f.sharedBytes(rank+1) <= float64(tt.limit) {
			t.Errorf("hybrid %v within %d bytes: rank %d at %.1f bytes, the paper has %d at %.1f", tt.hybrid, tt.limit, rank, f.sharedBytes(rank), tt.paper, f.sharedBytes(tt.paper))
		}
	}
}

func TestRelativeError(t *testing.T) {
	for _, tt := range []struct {
		name, reason string
		a, b         []float64
		want         float64
	}{
		{"same", "no error", []float64{3, 4}, []float64{3, 4}, 0},
		{"half", "relative to b", []float64{1.5, 2}, []float64{3, 4}, 0.5},
		{"zero", "a plain distance from nothing", []float64{3, 4}, []float64{0, 0}, 5},
	} {
		if got := RelativeError(tt.a, tt.b); got != tt.want {
			t.Errorf("%s: %g, want %g: %s", tt.name, got, tt.want, tt.reason)
		}
	}
}
