package kernel

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestLayerTokens(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		b            DropBudget
		preferences  []float64
		n            int
		want         []int
	}{
		{"proportional", "40 tokens beside windows of 8 by 1:3", DropBudget{Tokens: 28, Window: 8}, []float64{1, 3}, 1000, []int{18, 38}},
		{"remainders", "1.2, 2.4, 2.4 of 6: one is left, both have .4", DropBudget{Tokens: 3, Window: 1}, []float64{1, 2, 2}, 100, []int{2, 4, 3}},
		{"ties", "3.33 each of 10: the lowest layer has one more", DropBudget{Ratio: 0.11, Window: 1}, []float64{5, 5, 5, 0, 0}, 27, []int{5, 4, 4, 1, 1}},
		{"too short", "24 of 27 exceed 12, the others share 18 by 1:2", DropBudget{Tokens: 14, Window: 4}, []float64{24, 1, 2}, 16, []int{16, 10, 16}},
		{"passed on twice", "the second is full once the first is", DropBudget{Tokens: 8, Window: 1}, []float64{100, 10, 1}, 10, []int{10, 10, 4}},
		{"only unwanted ones left", "a preference of 0 takes what nobody else can hold", DropBudget{Tokens: 8, Window: 1}, []float64{0, 1, 0}, 10, []int{7, 10, 7}},
		{"all alike", "no preference at all is uniform", DropBudget{Tokens: 8, Window: 1}, []float64{0, 0}, 10, []int{8, 8}},
		{"extremes", "sums do not overflow", DropBudget{Tokens: 8, Window: 1}, []float64{math.MaxFloat64, math.MaxFloat64}, 100, []int{8, 8}},
		{"pyramid", "its layers are not looked at", DropBudget{Tokens: 28, Window: 8, Layer: 1, Layers: 2}, []float64{1, 3}, 1000, []int{18, 38}},
		{"one layer", "has all", DropBudget{Ratio: 0.05, Window: 8}, []float64{0.3}, 131072, []int{6554}},
		{"one token", "kept by all", DropBudget{Ratio: 0.05, Window: 8}, []float64{1, 2}, 1, []int{1, 1}},
		{"no token", "nothing to keep", DropBudget{Ratio: 0.05, Window: 8}, []float64{1, 2}, 0, []int{0, 0}},
		{"keeps all", "a ratio of 1", DropBudget{Ratio: 1, Window: 8}, []float64{1, 200}, 50, []int{50, 50}},
	} {
		got, err := tc.b.LayerTokens(tc.preferences, tc.n)
		if diff := cmp.Diff(tc.want, got); diff != "" || err != nil {
			t.Errorf("%s (%s): %v (-want +got):\n%s", tc.name, tc.reason, err, diff)
		}
	}
	for _, bad := range [][]float64{nil, {1, math.NaN()}, {1, -1}, {math.Inf(1), 1}} {
		if got, err := (DropBudget{Tokens: 8, Window: 1}).LayerTokens(bad, 100); err == nil {
			t.Errorf("preferences %v gave %v", bad, got)
		}
	}
}

// TestLayerTokensAddUp: whatever the preferences, layers keep together what uniform budgets keep, none more than there is or fewer
// than its window, none more than a layer that is preferred, and each launch keeps its number.
func TestLayerTokensAddUp(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b := DropBudget{Ratio: r.Float64(), Window: 1 + r.Int32N(64)}
		n := 1 + r.IntN(3000)
		p := make([]float64, 1+r.IntN(80))
		for l := range p {
			p[l] = math.Exp(6 * r.NormFloat64())
		}
		got, err := b.LayerTokens(p, n)
		if err != nil {
			t.Fatal(err)
		}
		total := 0
		for l, k := range got {
			total += k
			if own := (DropBudget{Tokens: int32(k), Window: b.Window}).Keep(n); own != k {
				t.Fatalf("%+v of %d: layer %d is to keep %d, a launch keeps %d", b, n, l, k, own)
			}
			if l > 0 && p[l] > p[l-1] && k < got[l-1] {
				t.Fatalf("%+v of %d: preferences %v keep %v", b, n, p, got)
			}
		}
		if want := len(p) * b.Keep(n); total != want {
			t.Fatalf("%+v of %d: layers keep %d of %d tokens: %v", b, n, total, want, got)
		}
	}
}
