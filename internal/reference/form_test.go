package reference

import (
	"math"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/specs"
)

// TestFormBytes: the plain form's bytes are the record's, the small ones those that the format adds up to.
func TestFormBytes(t *testing.T) {
	for _, bits := range []int{2, 4, 8, 16} {
		for _, rank := range []int{1, 2, 4, 8} {
			if got, want := PlainForm(rank, bits).Bytes(128, 16), float64(specs.NewRecord(128, 16, rank, bits).PayloadBytes()); got != want {
				t.Errorf("r%di%d: %g bytes, the record has %g", rank, bits, got, want)
			}
		}
	}
	for text, want := range map[string]float64{"r2c4": 310, "r2c4s16w": 338, "r1c4m4w": 186, "r1c4m4s16w": 200, "r1": 244, "r1c4m4p2": 113} {
		f, err := ParseForm(text)
		if err != nil {
			t.Error(err)
		} else if got := f.Bytes(128, 16); got != want {
			t.Errorf("%s: %g bytes, want %g", text, got, want)
		}
	}
}

// TestFormRecords: packed records of every form hold what Stored says that the form holds, around a mean key or none, in the bytes of
// the form; a page that is not finite is NaN in each.
func TestFormRecords(t *testing.T) {
	rng := rand.New(rand.NewPCG(15, 16))
	for _, text := range []string{"r1c4", "r4c4", "r3c4m4", "r1c4m4s16", "r2i2m4s16", "r2s16", "r5i8c4m4", "r2i16c4m4"} {
		for _, d := range []int{64, 80, 112, 128} {
			f, err := ParseForm(text)
			if err != nil {
				t.Fatal(err)
			}
			shape := Shape{HeadDim: d, PageSize: 16, Rank: f.Rank, BasisBits: f.BasisBits, Form: f.Record()}
			centre := normal(rng, d)
			keys := normal(rng, 16*d)
			for i := range keys {
				keys[i] += 3 * centre[i%d]
			}
			if got, want := float64(shape.Layout().PayloadBytes()), f.Bytes(d, 16); got != want {
				t.Errorf("%s, head dim %d: the record's payload is %g bytes, the form's %g", text, d, got, want)
			}
			sum := Summarise(keys, shape)
			for _, c := range [][]float64{nil, centre} {
				codes := sum.QuantiseAround(c)
				if err := codes.Check(); err != nil {
					t.Errorf("%s: %v", text, err)
				}
				back, err := Unpack(shape, codes.Pack())
				if err != nil {
					t.Fatalf("%s: %v", text, err)
				}
				if diff := cmp.Diff(codes, back); diff != "" {
					t.Errorf("%s, head dim %d: %s", text, d, diff)
				}
				want, got := sum.Stored(f, c), back.DequantiseAround(c)
				if diff := cmp.Diff([][]float64{want.Mu, want.V, want.C}, [][]float64{got.Mu, got.V, got.C}); diff != "" {
					t.Errorf("%s, head dim %d, stored: %s", text, d, diff)
				}
			}
			keys[3*d+d-1] = math.Inf(1)
			back, err := Unpack(shape, Summarise(keys, shape).QuantiseAround(centre).Pack())
			if err != nil {
				t.Fatalf("%s: %v", text, err)
			}
			if score, _ := back.DequantiseAround(centre).Score(make([]float64, d), Logits{Scale: 1}); !math.IsNaN(score) {
				t.Errorf("%s: the score of an infinite key is %g", text, score)
			}
		}
	}
}

func TestParseForm(t *testing.T) {
	for text, want := range map[string]Form{
		"r3i8c4m4s16wp2": {3, 8, 4, 4, true, true, 2, false},
		"r2wg4":          {2, 4, 8, 8, false, true, 4, true},
	} {
		got, err := ParseForm(text)
		if diff := cmp.Diff(want, got); diff != "" || err != nil || got.String() != text {
			t.Error(err, got, diff)
		}
	}
	for text, want := range map[string]string{"": "is none", "4": "is none", "r4x": "is none", "r0": "rank 0", "r17": "rank 17", "r4i3": "a basis of 3",
		"r4c2": "coefficients of 2", "r4m2": "a centroid of 2", "r1p5": "pages a summary of 5"} {
		if _, err := ParseForm(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v, want %q", text, err, want)
		}
	}
}

// TestStored: the general storage gives what Quantise gives where both apply, and summaries of two pages score each page by its own
// tokens, a page without a partner exactly.
func TestStored(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const d, page = 64, 16
	keys := make([]float64, 3*page*d)
	for i := range keys {
		keys[i] = rng.NormFloat64()
	}
	one := Summarise(keys[:page*d], Shape{HeadDim: d, PageSize: page, Rank: 4, BasisBits: 4})
	for _, bits := range []int{2, 4, 8, 16} {
		f := PlainForm(4, bits)
		want := one.Truncate(4, bits).Quantise().Dequantise()
		got := one.Stored(f, nil)
		f.CentroidBits, f.Grouped = 4, false // forces the general path for the rest
		general := one.Stored(f, nil)
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%d bits: %s", bits, diff)
		}
		if diff := cmp.Diff(want.V, general.V); diff != "" {
			t.Errorf("%d bits, basis: %s", bits, diff)
		}
		if diff := cmp.Diff(want.C, general.C); diff != "" {
			t.Errorf("%d bits, coefficients: %s", bits, diff)
		}
	}
	f := PlainForm(4, 0)
	f.Pages = 2
	pair := Summarise(keys[:2*page*d], Shape{HeadDim: d, PageSize: 2 * page, Rank: 15, BasisBits: 16})
	f.Rank = 15
	s := NewStored([]Summary{pair}, f, d, page, nil, keys[2*page*d:])
	q, scores := keys[:d], make([]float64, 3)
	s.Score(scores, q, Logits{Scale: 0.125})
	whole, _ := pair.Stored(f, nil).Score(q, Logits{Scale: 0.125})
	if got := LSE(scores[:2]); got-whole > 1e-12 || whole-got > 1e-12 {
		t.Errorf("two pages add up to %.12f, their summary to %.12f", got, whole)
	}
	if want := PageLSE(q, keys[2*page*d:], Logits{Scale: 0.125}); scores[2] != want {
		t.Errorf("the page without a summary scores %g, exactly %g", scores[2], want)
	}
}
