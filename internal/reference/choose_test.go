package reference

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var inf, nan = math.Inf(1), math.NaN()

func TestValues(t *testing.T) {
	ln := math.Log
	tests := []struct {
		name, reason string
		rule         Combine
		scores       [][]float64
		want         []float64
	}{
		{"shares", "exp(s) over its sum, averaged", ShareAverage, [][]float64{{ln(1), ln(3)}, {ln(4), ln(4)}}, []float64{.375, .625}},
		{"NaN page", "left out of the normaliser", ShareAverage, [][]float64{{ln(1), nan, ln(3)}}, []float64{.25, nan, .75}},
		{"NaN for one head", "no vote of that head", ShareAverage, [][]float64{{0, nan}, {0, 0}}, []float64{.75, .25}},
		{"+inf", "shares 1 equally", ShareAverage, [][]float64{{inf, 5, inf}}, []float64{.5, 0, .5}},
		{"empty head", "contributes 0", ShareAverage, [][]float64{{-inf, -inf}, {0, 0}}, []float64{.25, .25}},
		{"all NaN head", "contributes 0", ShareAverage, [][]float64{{nan, nan}, {0, 0}}, []float64{.25, .25}},
		{"underflow", "2^-101 is 0, 2^-99 is not", ShareAverage, [][]float64{{0, -101 * math.Ln2, -99 * math.Ln2}}, []float64{1, 0, 0x1p-99}},
		{"peak", "exp(s - max), averaged", PeakNormalised, [][]float64{{ln(1), ln(4)}, {0, 0}}, []float64{.625, 1}},
		{"peak at +inf", "each is the peak", PeakNormalised, [][]float64{{inf, 5, inf}}, []float64{1, 0, 1}},
		{"max", "of the scores", GroupMax, [][]float64{{1, -inf, nan}, {2, -inf, nan}}, []float64{2, -inf, nan}},
		{"mass", "log-sum-exp over heads", GroupMass, [][]float64{{ln(1), inf, 2}, {ln(3), 0, nan}}, []float64{ln(4), inf, 2}},
		{"per head", "the score itself", PerHead, [][]float64{{-900, 3, nan}}, []float64{-900, 3, nan}},
	}
	near := cmp.Comparer(func(a, b float64) bool {
		return a == b || math.IsNaN(a) && math.IsNaN(b) || math.Abs(a-b) <= 1e-12*math.Abs(a)
	})
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, tt.rule.Values(tt.scores), near); diff != "" {
			t.Errorf("%s (%s): %s", tt.name, tt.reason, diff)
		}
	}
}

func TestChoose(t *testing.T) {
	tests := []struct {
		name, reason string
		values       []float64
		budget       Budget
		want         []int32
	}{
		{"largest", "sink and last page are kept inside the budget", []float64{0, 1, 5, 2, 4, 0}, Budget{4, 1, 1}, []int32{0, 2, 4, 5}},
		{"ties", "go to the lower index (T1, T7)", make([]float64, 64), Budget{8, 1, 1}, []int32{0, 1, 2, 3, 4, 5, 6, 63}},
		{"fewer pages than slots", "all of them (T9)", []float64{1, 2, 3}, Budget{128, 1, 1}, []int32{0, 1, 2}},
		{"no pages", "seq_len 0 (T9)", nil, Budget{8, 1, 1}, []int32{}},
		{"one page", "sink and recent coincide", []float64{7}, Budget{8, 1, 1}, []int32{0}},
		{"NaN ranks below -inf", "T8", []float64{0, nan, -inf, nan, 0}, Budget{3, 1, 1}, []int32{0, 2, 4}},
		{"all NaN", "ties still go low (T8)", []float64{nan, nan, nan, nan}, Budget{2, 0, 0}, []int32{0, 1}},
		{"+inf", "is the largest (T8)", []float64{1, 2, inf, 3}, Budget{1, 0, 0}, []int32{2}},
	}
	for _, tt := range tests {
		if diff := cmp.Diff(tt.want, tt.budget.Choose(tt.values)); diff != "" {
			t.Errorf("%s (%s): %s", tt.name, tt.reason, diff)
		}
	}
}

// TestChooseEqualsBruteForce picks one page a time by a plain scan.
func TestChooseEqualsBruteForce(t *testing.T) {
	r := rand.New(rand.NewPCG(13, 14))
	for range 500 {
		n := r.IntN(40)
		values := make([]float64, n)
		for j := range values {
			values[j] = []float64{float64(r.IntN(6)), nan, inf, -inf}[max(0, r.IntN(9)-5)]
		}
		b := Budget{2 + r.IntN(20), r.IntN(2), r.IntN(2)}
		var want []int32
		for len(want) < min(b.Slots, n) {
			best := -1
			for j := range values {
				if slices.Contains(want, int32(j)) {
					continue
				}
				switch {
				case best < 0:
					best = j
				case b.forced(best, n):
				case b.forced(j, n) || above(values[j], values[best]):
					best = j
				}
			}
			want = append(want, int32(best))
		}
		slices.Sort(want)
		if got := b.Choose(values); !slices.Equal(got, want) {
			t.Fatalf("%+v of %v: %v, want %v", b, values, got, want)
		}
	}
}

func TestCheck(t *testing.T) {
	scores := [][]float64{{0, 1, 5, 2, 5, 5.000004, 0}}
	tests := []struct {
		name, reason string
		chosen       []int32
		tol          Tolerance
		fault        string // in the error; "" is right
	}{
		{"best", "what Choose picks", []int32{0, 2, 5, 6}, Given, ""},
		{"within tolerance", "4e-6 nats apart: either", []int32{0, 2, 4, 6}, Given, ""},
		{"tie high", "page 4 equals page 2", []int32{0, 4, 5, 6}, Given, "ties go to the lower"},
		{"tie high end to end", "scores differ there anyway", []int32{0, 4, 5, 6}, EndToEnd, ""},
		{"worse page", "page 3 is 3 nats below", []int32{0, 2, 3, 6}, EndToEnd, "page 3"},
		{"sink missing", "T10", []int32{2, 4, 5, 6}, Given, "page 0"},
		{"too few", "a silent drop (T2)", []int32{0, 2, 6}, Given, "3 pages"},
		{"not ascending", "the contract's order", []int32{0, 5, 2, 6}, Given, "ascending"},
		{"twice", "one page must not fill two slots", []int32{0, 2, 2, 6}, Given, "ascending"},
		{"out of range", "an uninitialised slot", []int32{0, 2, 5, 7}, Given, "outside"},
		{"-1 as a page", "an unused slot among the count", []int32{-1, 2, 5, 6}, Given, "outside"},
	}
	for _, tt := range tests {
		_, err := Budget{4, 1, 1}.Check(ShareAverage, scores, tt.chosen, tt.tol)
		if tt.fault == "" && err != nil || tt.fault != "" && (err == nil || !strings.Contains(err.Error(), tt.fault)) {
			t.Errorf("%s (%s): error %v, want %q", tt.name, tt.reason, err, tt.fault)
		}
	}
	far := [][]float64{{0, -200, -300, -100}}
	if _, err := (Budget{2, 0, 0}).Check(ShareAverage, far, []int32{0, 3}, Given); err == nil {
		t.Error("a page without share was preferred to a lower page without share")
	}
	if _, err := (Budget{2, 0, 0}).Check(GroupMax, far, []int32{0, 3}, Given); err != nil {
		t.Errorf("scores below every share still order group_max: %v", err)
	}
}

func TestChosenIsAlwaysAccepted(t *testing.T) {
	r := rand.New(rand.NewPCG(15, 16))
	for _, rule := range []Combine{ShareAverage, GroupMax, GroupMass, PeakNormalised, PerHead} {
		for range 200 {
			scores := make([][]float64, 1+r.IntN(4))
			if rule == PerHead {
				scores = scores[:1]
			}
			n := 1 + r.IntN(50)
			for h := range scores {
				scores[h] = make([]float64, n)
				for j := range scores[h] {
					scores[h][j] = []float64{float64(r.IntN(200)), nan, inf, -inf}[max(0, r.IntN(12)-8)]
				}
			}
			b := Budget{2 + r.IntN(20), r.IntN(2), r.IntN(2)}
			if excess, err := b.Check(rule, scores, b.Choose(rule.Values(scores)), Given); err != nil || excess != 0 {
				t.Fatalf("%s %+v of %v: excess %g, %v", rule, b, scores, excess, err)
			}
		}
	}
}
