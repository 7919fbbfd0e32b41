package audit

import (
	"bytes"
	"image/png"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/internal/tensorfile"
	"github.com/kvloom/kvloom/testdata/smollm2"
)

func unit(x ...float64) []float64 {
	n := math.Sqrt(dot(x, x))
	for i := range x {
		x[i] /= n
	}
	return x
}

func TestCone(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		r            []float64
		dim          int
		want         float64 // of c*; 0: no cone
	}{
		{"one", "a single direction is its own cone", unit(3, 4), 2, 1},
		{"right angle", "the middle is 45 degrees from either", append(unit(1, 0), unit(0, 1)...), 2, math.Sqrt2 / 2},
		{"opposite", "no half-space holds both", append(unit(1, 0), unit(-1, 0)...), 2, 0},
		{"surrounded", "three directions at 120 degrees hold the origin", append(append(unit(1, 0), unit(-1, math.Sqrt(3))...), unit(-1, -math.Sqrt(3))...), 2, 0},
		{"repeated", "the same vector twice is no new corner", append(append(unit(1, 1), unit(1, 1)...), unit(1, -1)...), 2, math.Sqrt2 / 2},
		{"axes", "d axes: 1/sqrt(d)", []float64{1, 0, 0, 0, 1, 0, 0, 0, 1}, 3, 1 / math.Sqrt(3)},
		{"none", "nothing is evicted", nil, 3, 1},
	} {
		c := SolveCone(tc.r, tc.dim)
		if math.Abs(c.Lower-tc.want) > 2*coneTolerance && tc.want > 0 || tc.want == 0 && c.Positive() {
			t.Errorf("%s (%s): c* in [%g, %g], want %g", tc.name, tc.reason, c.Lower, c.Upper, tc.want)
		}
		if tc.want > 0 && c.Upper-c.Lower > coneTolerance {
			t.Errorf("%s: the gap %g is above the tolerance", tc.name, c.Upper-c.Lower)
		}
	}
}

// TestConeBrackets checks both bounds against many directions u: none does better than Upper, and random cones close the gap.
func TestConeBrackets(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	for _, spread := range []float64{0.3, 1, 3} {
		const n, dim = 300, 24
		var v []float64
		for range n {
			x := make([]float64, dim)
			x[0] = 2
			for i := range x {
				x[i] += spread * r.NormFloat64()
			}
			v = append(v, unit(x...)...)
		}
		c := SolveCone(v, dim)
		if c.Positive() && c.Upper-c.Lower > coneTolerance {
			t.Errorf("spread %g: [%g, %g] after %d steps", spread, c.Lower, c.Upper, c.Steps)
		}
		for range 200 {
			u := make([]float64, dim)
			u[0] = 3
			for i := range u {
				u[i] += r.NormFloat64()
			}
			u = unit(u...)
			least := 1.0
			for j := range n {
				least = min(least, dot(u, v[j*dim:(j+1)*dim]))
			}
			if least > c.Upper+1e-9 {
				t.Errorf("spread %g: a direction has %g, above the bound %g", spread, least, c.Upper)
			}
		}
	}
}

// TestMoved holds the closed form of F against attention computed again without the tokens, and the enumeration against its limits.
func TestMoved(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 2))
	const n, dim = 20, 8
	random := func(n int) []float64 {
		x := make([]float64, n)
		for i := range x {
			x[i] = r.NormFloat64()
		}
		return x
	}
	q, keys, values := random(dim), random(n*dim), random(n*dim)
	a := attend(q, keys, values, n, dim, 0.3)
	set := []int{1, 4, 5, 17}
	var kept, keptValues []float64
	for j := range n {
		if j != 1 && j != 4 && j != 5 && j != 17 {
			kept = append(kept, keys[j*dim:(j+1)*dim]...)
			keptValues = append(keptValues, values[j*dim:(j+1)*dim]...)
		}
	}
	b := attend(q, kept, keptValues, n-4, dim, 0.3)
	var want float64
	for d := range dim { // out = v_0 + (a - v_0)
		diff := a.rest[d] + values[d] - (b.rest[d] + keptValues[d])
		want += diff * diff
	}
	if got := a.moved(set); math.Abs(got-math.Sqrt(want)) > 1e-12 {
		t.Errorf("F is %g, attention without the tokens moves by %g", got, math.Sqrt(want))
	}
	for range 5 {
		if ratio := a.ratio(r.Perm(n)[:8]); ratio < 1 || ratio > 10 {
			t.Errorf("ratio %g: the best is at least as good as the decoupled choice", ratio)
		}
	}
	if e := a.examine(n - 1); e.Evicted != n-1 || e.Eps <= 0 {
		t.Errorf("%+v", e)
	}
}

func TestRun(t *testing.T) {
	data, err := smollm2.FS.ReadFile(smollm2.Sample)
	if err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(t.TempDir(), "layer.safetensors")
	if err := os.WriteFile(path, data, 0o600); err != nil {
		t.Fatal(err)
	}
	o := Options{Ratio: 0.05, Queries: 2, Subsets: 2, Size: 8, Seed: 1}
	report, err := Run(t.Context(), path, o)
	if err != nil {
		t.Fatal(err)
	}
	if len(report.Queries) != 18 || report.Tokens != 1024 {
		t.Fatalf("%d queries over %d tokens", len(report.Queries), report.Tokens)
	}
	var heads int
	for _, s := range report.ByHead() {
		heads += s.Queries
		if s.Ratios != 12 || s.RatioMid < 1 {
			t.Errorf("%+v", s)
		}
	}
	if heads != 18 {
		t.Errorf("heads hold %d of 18 queries", heads)
	}
	var b bytes.Buffer
	if err := Picture(&b, []Report{report}); err != nil {
		t.Fatal(err)
	}
	if _, err := png.DecodeConfig(&b); err != nil {
		t.Errorf("the picture is no PNG: %v", err)
	}
}

func TestRunRefuses(t *testing.T) {
	dir := t.TempDir()
	bits := func(n int) []uint16 { return make([]uint16, n) }
	good := []tensorfile.Tensor{tensorfile.FromBits16("k", "BF16", []int{2, 4, 8}, bits(64)), tensorfile.FromBits16("v", "BF16", []int{2, 4, 8}, bits(64)),
		tensorfile.FromBits16("q_last", "BF16", []int{4, 1, 8}, bits(32))}
	with := func(i int, t tensorfile.Tensor) []tensorfile.Tensor {
		out := append([]tensorfile.Tensor(nil), good...)
		out[i] = t
		return out
	}
	nan := bits(64)
	nan[3] = 0x7fc0
	o := Options{Ratio: 0.5, Size: 4}
	for _, tc := range []struct {
		name    string
		tensors []tensorfile.Tensor
		o       Options
		want    string
	}{
		{"heads", with(2, tensorfile.FromBits16("q_last", "BF16", []int{3, 1, 8}, bits(24))), o, "3 query heads over 2 KV heads"},
		{"missing", good[:2], o, `no tensor "q_last"`},
		{"shapes", with(1, tensorfile.FromBits16("v", "BF16", []int{2, 2, 8}, bits(32))), o, "k is [2 4 8] and v [2 2 8]"},
		{"nan", with(1, tensorfile.FromBits16("v", "BF16", []int{2, 4, 8}, nan)), o, `"v" holds values that are not finite`},
		{"ratio", good, Options{Ratio: 1.5, Size: 4}, "ratio 1.5"},
		{"size", good, Options{Ratio: 0.5, Size: 40}, "subsets of 40 candidates"},
	} {
		path := filepath.Join(dir, tc.name)
		if err := (&tensorfile.File{Tensors: tc.tensors}).Write(path); err != nil {
			t.Fatal(err)
		}
		if _, err := Run(t.Context(), path, tc.o); err == nil || !strings.Contains(err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, err, tc.want)
		}
	}
}
