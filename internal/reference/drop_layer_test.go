package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

func TestLayerAttention(t *testing.T) {
	ln2 := math.Ln2
	for _, tc := range []struct {
		name, reason      string
		heads             [][][]float64
		dispersion, shift float64
		tau1, tau2        float64
		want              float64
	}{
		{"swap", "two queries, one key each: no entropy, the largest variance", [][][]float64{{{1, 0}, {0, 1}}}, 0, 1, 1, 1, 0},
		{"still", "equal rows: entropy alone", [][][]float64{{{0.5, 0.5}, {0.5, 0.5}}}, 2 * ln2, 0, 1, 1, 0},
		{"both", "H = 2 (1/4 ln 4 + 1/2 ln 2); V = 2 keys of 2 (1/8)^2", [][][]float64{{{0.25, 0.25}, {0.5, 0.5}}}, 2 * ln2, 0.0625, 1, 1, 0.125 * ln2},
		{"temperatures", "H^(1/2) V^(1/0.5)", [][][]float64{{{0.25, 0.25}, {0.5, 0.5}}}, 2 * ln2, 0.0625, 2, 0.5, math.Sqrt(2*ln2) / 256},
		{"heads add up", "query heads are summed", [][][]float64{{{1, 0}, {0, 1}}, {{0.5, 0.5}, {0.5, 0.5}}}, 2 * ln2, 1, 1, 1, 2 * ln2},
		{"three queries", "the sample variance: weights 0, 0, 3/4 vary by 2 (1/4)^2 + (1/2)^2 over 2", [][][]float64{{{0}, {0}, {0.75}}}, -0.75 * math.Log(0.75), 0.1875, 1, 1, -0.140625 * math.Log(0.75)},
		{"one query", "nothing shifts", [][][]float64{{{0.5, 0.5}}}, ln2, 0, 1, 1, 0},
		{"one token", "no key before the window", [][][]float64{{{}}}, 0, 0, 1, 1, 0},
		{"no head", "the zero value", nil, 0, 0, 1, 1, 0},
		{"nan", "not a number is not hidden", [][][]float64{{{math.NaN(), 0.5}, {0.5, 0.5}}}, math.NaN(), math.NaN(), 1, 1, math.NaN()},
	} {
		var a LayerAttention
		for _, h := range tc.heads {
			a.AddHead(h)
		}
		for _, v := range []struct {
			what      string
			got, want float64
		}{{"dispersion", a.Dispersion, tc.dispersion}, {"shift", a.Shift, tc.shift}, {"preference", a.Preference(tc.tau1, tc.tau2), tc.want}} {
			if math.IsNaN(v.got) != math.IsNaN(v.want) || math.Abs(v.got-v.want) > 1e-15 {
				t.Errorf("%s (%s): %s %g, want %g", tc.name, tc.reason, v.what, v.got, v.want)
			}
		}
	}
}

// TestLayerAttentionOfRows: equal keys give every query the same weight for each key it sees, 1/(position + 1), by hand; a NaN key
// is not hidden; a prompt no longer than the window prefers nothing.
func TestLayerAttentionOfRows(t *testing.T) {
	const n, window, heads = 7, 2, 4 // two KV heads: a group of two
	r := rand.New(rand.NewPCG(5, 6))
	c := dropCache(r, 16, 4, 2, n, 1)
	q := dropWindow(r, c, heads, window)
	of := func(request int, change func(DropTokens)) (a LayerAttention) {
		for h := range c.KVHeads {
			tokens := c.DropTokens(request, h)
			change(tokens)
			a.AddRows(tokens, c.DropRows(tokens, q, request, h, Logits{Scale: 0.25}), window, Logits{Scale: 0.25})
		}
		return a
	}
	for _, missing := range []int{0, 2} {
		got := of(0, func(t DropTokens) {
			clear(t.Keys)
			for j := range missing {
				t.Missing[j] = true
			}
		})
		// Queries at 5 and 6 see 6 and 7 keys less the missing ones, of them 5 before the window.
		keys, x, y := float64(5-missing), float64(6-missing), float64(7-missing)
		dispersion := heads * keys * (math.Log(x)/x + math.Log(y)/y)
		shift := heads * keys * math.Pow(1/x-1/y, 2) / 2
		if math.Abs(got.Dispersion-dispersion) > 1e-13 || math.Abs(got.Shift-shift) > 1e-14 {
			t.Errorf("equal keys, %d missing: %+v, want dispersion %g, shift %g", missing, got, dispersion, shift)
		}
	}
	if p := of(0, func(t DropTokens) { t.Keys[3] = math.NaN() }).Preference(1, 1); !math.IsNaN(p) {
		t.Errorf("a NaN key: preference %g, want NaN", p)
	}
	if got := of(1, func(DropTokens) {}); got != (LayerAttention{}) || got.Preference(1, 1) != 0 {
		t.Errorf("one token: %+v, want zeros", got)
	}
}
