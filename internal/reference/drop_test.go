package reference

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dropCache makes a cache of random tokens for requests of the given lengths.
func dropCache(r *rand.Rand, dim, page, kvHeads int, lens ...int32) *Cache {
	c := &Cache{DType: BF16, HeadDim: dim, PageSize: page, KVHeads: kvHeads, SeqLens: lens}
	for _, n := range lens {
		c.MaxPages = max(c.MaxPages, c.Pages(int(n)))
	}
	c.TableStride = c.MaxPages
	for range lens {
		for range c.MaxPages {
			id := int32(len(c.Table))
			c.Table = append(c.Table, id)
			c.AddBlock(id)
			for h := range kvHeads {
				fillNormal(r, c.DType, c.BlockKeys(id, h))
				fillNormal(r, c.DType, c.BlockValues(id, h))
			}
		}
	}
	return c
}

func fillNormal(r *rand.Rand, d DType, out []uint16) {
	for i := range out {
		out[i] = d.Bits(r.NormFloat64())
	}
}

func dropWindow(r *rand.Rand, c *Cache, heads, window int) DropWindow {
	q := DropWindow{DType: c.DType, Heads: heads, Window: window, HeadDim: c.HeadDim, Bits: make([]uint16, c.Batch()*heads*window*c.HeadDim)}
	fillNormal(r, c.DType, q.Bits)
	return q
}

func scoring(rule DropRule, group int) DropScoring {
	return DropScoring{Rule: rule, Logits: Logits{Scale: 0.125}, Group: group, Eps: 1e-6, OutputEpsilon: 0x1p-24}
}

// TestDropScoreIsThePerturbation recomputes attention without each token in turn: the paper's exact residual form, p/(1-p) ||a - v||,
// is how far the output moves.
func TestDropScoreIsThePerturbation(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	c := dropCache(r, 16, 4, 1, 23)
	q := dropWindow(r, c, 1, 1)
	tokens := c.DropTokens(0, 0)
	l := Logits{Scale: 0.5}
	rows := c.DropRows(tokens, q, 0, 0, l)
	s := DropScoring{Rule: DropKV, Logits: l, Group: 1, Eps: 1e-300, OutputEpsilon: 0x1p-24}
	got := s.Scores(tokens, rows, nil).Score
	for j := range tokens.N {
		without := tokens
		without.Missing = append([]bool(nil), tokens.Missing...)
		without.Missing[j] = true
		moved := without.Observe(rows[0].Q, rows[0].Limit, l)
		var want float64
		for i := range moved.Out {
			d := moved.Out[i] - rows[0].Out[i]
			want += d * d
		}
		if math.Abs(got[j]-want) > 1e-10*want {
			t.Errorf("token %d: score %g, dropping it moves the output by %g squared", j, got[j], want)
		}
	}
}

// TestDropNoLongerThanWindow is D1: where p is near 1 the score is large and finite, and everything is kept in order.
func TestDropNoLongerThanWindow(t *testing.T) {
	for _, tc := range []struct {
		n, window int
		reason    string
	}{
		{8, 8, "n = w (D1)"}, {5, 8, "shorter than the window"}, {1, 8, "one token: p is 1"}, {0, 8, "no token"}, {64, 64, "the widest window"},
	} {
		c := dropCache(rand.New(rand.NewPCG(3, uint64(tc.n))), 64, 4, 1, int32(tc.n))
		q := dropWindow(rand.New(rand.NewPCG(4, 4)), c, 2, tc.window)
		tokens := c.DropTokens(0, 0)
		scores := scoring(DropKV, 2).Scores(tokens, c.DropRows(tokens, q, 0, 0, Logits{Scale: 0.125}), nil).Score
		for j, s := range scores {
			if math.IsNaN(s) || math.IsInf(s, 0) || s < 0 {
				t.Errorf("%s: token %d has score %g", tc.reason, j, s)
			}
		}
		pooled := DropPool{"max", 11}.Pool(scores, tc.window, 0)
		b := DropBudget{Kind: "uniform", Ratio: 0.05, Window: tc.window}
		want := make([]int32, tc.n)
		for i := range want {
			want[i] = int32(i)
		}
		if diff := cmp.Diff([][]int32{want}, b.Select([][]float64{pooled})); diff != "" {
			t.Errorf("%s: everything is to be kept (-want +got):\n%s", tc.reason, diff)
		}
	}
}

// TestDropRaggedTail is D2: 100 tokens, 14 over 2 heads, d 64, batch 2; every head's budget is met and the window kept.
func TestDropRaggedTail(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	c := dropCache(r, 64, 16, 2, 100, 61)
	q := dropWindow(r, c, 14, 8)
	if err := q.Validate(2); err != nil {
		t.Fatal(err)
	}
	for _, rule := range DropRules {
		for request, n := range c.SeqLens {
			var values [][]float64
			for h := range 2 {
				tokens := c.DropTokens(request, h)
				scores := scoring(rule, 7).Scores(tokens, c.DropRows(tokens, q, request, h, Logits{Scale: 0.125}), tokens.Anchor())
				values = append(values, DropPool{"avg", 5}.Pool(scores.Score, 8, 2))
			}
			for h, list := range (DropBudget{Kind: "uniform", Ratio: 0.3, Window: 8, Sinks: 2}).Select(values) {
				want := int(math.Ceil(0.3 * float64(n)))
				if len(list) != want || list[0] != 0 || list[1] != 1 || list[want-8] != n-8 {
					t.Errorf("%s, request %d, head %d: %d tokens %v, want %d with 0, 1 and the last 8", rule, request, h, len(list), list, want)
				}
			}
		}
	}
}

// TestDropGroups is D3.
func TestDropGroups(t *testing.T) {
	if err := (DropWindow{Heads: 7, Window: 8}).Validate(4); err == nil {
		t.Error("7 query heads over 4 KV heads passed")
	}
	for _, w := range []int{0, 65} {
		if err := (DropWindow{Heads: 8, Window: w}).Validate(4); err == nil {
			t.Errorf("a window of %d passed", w)
		}
	}
}

// TestDropDominantTokenRanksFirst: near p = 1 the expanded distance and 1 - p in one subtraction lose the token that matters most.
func TestDropDominantTokenRanksFirst(t *testing.T) {
	const n, dim, dominant = 40, 64, 17
	r := rand.New(rand.NewPCG(7, 8))
	for _, rest := range []float64{0.5, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9, 1e-13, 0} {
		tokens := DropTokens{N: n, Dim: dim, Keys: make([]float64, n*dim), Values: make([]float64, n*dim), Missing: make([]bool, n)}
		for i := range tokens.Values {
			tokens.Values[i] = r.NormFloat64()
		}
		gap := 2000.0 // every other weight underflows
		if rest > 0 {
			gap = math.Log((1 - rest) / rest * (n - 1))
		}
		tokens.Key(dominant)[0] = gap
		q := make([]float64, dim)
		q[0] = 1
		l := Logits{Scale: 1}
		row := DropRow{Q: q, Limit: n - 1, Attention: tokens.Observe(q, n-1, l)}
		for i, x := range row.Out { // a is handed over in f32
			row.Out[i] = float64(float32(x))
		}
		s := DropScoring{Rule: DropKV, Logits: l, Group: 1, Eps: 1e-6, OutputEpsilon: 0x1p-24}
		scores := s.Scores(tokens, []DropRow{row}, nil).Score
		for j, x := range scores {
			if j != dominant && !(scores[dominant] > x) {
				t.Errorf("1 - p = %g: the token scores %g, token %d %g", rest, scores[dominant], j, x)
			}
		}
	}
}

func TestDropPool(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	in := []float64{1, 5, 2, nan, 3, 9, 8}
	for _, tc := range []struct {
		name, reason string
		pool         DropPool
		window       int
		sinks        int
		want         []float64
	}{
		{"none", "only pins", DropPool{"none", 1}, 2, 1, []float64{inf, 5, 2, nan, 3, inf, inf}},
		{"max", "the window's 9 does not leak, NaN is left out", DropPool{"max", 3}, 2, 0, []float64{5, 5, 5, 3, 3, inf, inf}},
		{"avg", "divides by the tokens inside, NaN spreads", DropPool{"avg", 3}, 2, 0, []float64{3, 8. / 3, nan, nan, nan, inf, inf}},
		{"wide", "wider than the prompt", DropPool{"max", 63}, 4, 0, []float64{5, 5, 5, inf, inf, inf, inf}},
		{"all", "nothing before the window", DropPool{"max", 3}, 9, 0, []float64{inf, inf, inf, inf, inf, inf, inf}},
	} {
		got := tc.pool.Pool(in, tc.window, tc.sinks)
		for i := range got {
			if got[i] != tc.want[i] && !(math.IsNaN(got[i]) && math.IsNaN(tc.want[i])) {
				t.Errorf("%s (%s): %v, want %v", tc.name, tc.reason, got, tc.want)
				break
			}
		}
	}
	for _, bad := range []DropPool{{"max", 4}, {"avg", 0}, {"avg", 65}, {"median", 3}} {
		if bad.Validate() == nil {
			t.Errorf("%+v passed", bad)
		}
	}
}

func TestDropBudget(t *testing.T) {
	nan, ninf := math.NaN(), math.Inf(-1)
	flat := []float64{4, 4, 4, 4, 4, 4, 4, 4, 4, 4}
	steep := []float64{9, 8, 7, 6, 5, 1, 1, 1, 1, 1}
	for _, tc := range []struct {
		name, reason string
		budget       DropBudget
		values       [][]float64
		want         [][]int32
	}{
		{"ties", "ties go low", DropBudget{Kind: "uniform", Tokens: 4, Window: 2}, [][]float64{flat}, [][]int32{{0, 1, 8, 9}}},
		{"nan", "NaN ranks below -inf", DropBudget{Kind: "uniform", Tokens: 4, Window: 1}, [][]float64{{nan, ninf, nan, 1, ninf, 2}}, [][]int32{{1, 3, 4, 5}}},
		{"ratio 1", "all", DropBudget{Kind: "uniform", Ratio: 1, Window: 1}, [][]float64{{1, 2, 3}}, [][]int32{{0, 1, 2}}},
		{"more than there are", "k > n keeps all", DropBudget{Kind: "uniform", Tokens: 99, Window: 1}, [][]float64{{1, 2, 3}}, [][]int32{{0, 1, 2}}},
		{"below the window", "never fewer than the window", DropBudget{Kind: "uniform", Tokens: 1, Window: 3}, [][]float64{steep}, [][]int32{{7, 8, 9}}},
		{"sinks", "pinned inside the budget", DropBudget{Kind: "uniform", Tokens: 4, Window: 2, Sinks: 1}, [][]float64{{0, 8, 9, 0, 0, 0}}, [][]int32{{0, 2, 4, 5}}},
		{"sinks without room", "the window comes first", DropBudget{Kind: "uniform", Tokens: 3, Window: 2, Sinks: 4}, [][]float64{{0, 8, 9, 0, 0, 0}}, [][]int32{{0, 4, 5}}},
		{"explicit", "a budget a head", DropBudget{Kind: "explicit", List: []int{2, 4}, Window: 2}, [][]float64{flat, steep}, [][]int32{{8, 9}, {0, 1, 8, 9}}},
		{"adaptive", "the steep head takes the flat one's", DropBudget{Kind: "adaptive", Tokens: 5, Window: 1}, [][]float64{flat, steep}, [][]int32{{0, 1, 2, 9}, {0, 1, 2, 3, 4, 9}}},
		{"adaptive floor", "with a floor of 1 it is uniform", DropBudget{Kind: "adaptive", Tokens: 5, Window: 1, Floor: 1}, [][]float64{flat, steep}, [][]int32{{0, 1, 2, 3, 9}, {0, 1, 2, 3, 9}}},
		{"adaptive ties", "between heads, ties go to the lower head", DropBudget{Kind: "adaptive", Tokens: 2, Window: 1}, [][]float64{flat, flat}, [][]int32{{0, 1, 9}, {9}}},
	} {
		if err := tc.budget.Validate(len(tc.values)); err != nil {
			t.Errorf("%s (%s): %v", tc.name, tc.reason, err)
		}
		if diff := cmp.Diff(tc.want, tc.budget.Select(tc.values)); diff != "" {
			t.Errorf("%s (%s) (-want +got):\n%s", tc.name, tc.reason, diff)
		}
	}
	for _, bad := range []DropBudget{
		{Kind: "uniform", Window: 8}, {Kind: "uniform", Ratio: 1.5, Window: 8}, {Kind: "uniform", Ratio: -1, Window: 8}, {Kind: "uniform", Ratio: 1, Window: 65},
		{Kind: "explicit", List: []int{1}, Window: 8}, {Kind: "adaptive", Ratio: 1, Floor: 2, Window: 8}, {Kind: "pyramid", Ratio: 1, Layer: 4, Layers: 4, Window: 8}, {Kind: "equal", Ratio: 1, Window: 8},
	} {
		if bad.Validate(4) == nil {
			t.Errorf("%+v passed", bad)
		}
	}
}

func TestDropKeep(t *testing.T) {
	for _, tc := range []struct {
		b    DropBudget
		n    int
		want int
	}{
		{DropBudget{Kind: "uniform", Ratio: 0.07, Window: 1}, 100, 7},
		{DropBudget{Kind: "uniform", Ratio: 0.05, Window: 8}, 131072, 6554},
		{DropBudget{Kind: "uniform", Ratio: 0.05, Window: 8}, 3, 3},
		{DropBudget{Kind: "pyramid", Tokens: 108, Window: 8, Layer: 0, Layers: 5}, 4096, 8 + 195},
		{DropBudget{Kind: "pyramid", Tokens: 108, Window: 8, Layer: 4, Layers: 5}, 4096, 8 + 195 - 4*47},
		{DropBudget{Kind: "pyramid", Tokens: 108, Window: 8, Layer: 0, Layers: 5}, 128, 8 + 120},
		{DropBudget{Kind: "pyramid", Tokens: 108, Window: 8, Layer: 0, Layers: 1}, 4096, 108},
	} {
		if got := tc.b.Keep(tc.n, 0); got != tc.want {
			t.Errorf("%+v of %d tokens keeps %d, want %d", tc.b, tc.n, got, tc.want)
		}
	}
}

// TestDropKeyDiff: all keys equal have the same score, a key apart the largest.
func TestDropKeyDiff(t *testing.T) {
	tokens := DropTokens{N: 5, Dim: 2, Keys: []float64{1, 1, 2, 2, 1, -1, 3, 3, 0, 0}, Values: make([]float64, 10), Missing: make([]bool, 5)}
	s := scoring(KeyDiff, 1).Scores(tokens, nil, tokens.Anchor()).Score
	if math.Abs(s[0]-s[1]) > 1e-15 || math.Abs(s[0]-s[3]) > 1e-15 || s[2] <= s[0] || s[4] != 0 {
		t.Errorf("scores %v: parallel keys are alike, the one apart is kept first, a zero key scores 0", s)
	}
}
