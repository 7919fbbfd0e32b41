package verify

import (
	"math"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
)

// TestJudgeSelection shows lists that are right, right within rounding, and wrong.
func TestJudgeSelection(t *testing.T) {
	nan, inf := math.NaN(), math.Inf(1)
	budget := reference.Budget{Slots: 4, SinkPages: 1, RecentPages: 1}
	plain := [][]float64{{0, 3, 1, 2, 0}, {0, 3, 1, 2, 0}}
	tests := []struct {
		name, reason string
		rule         reference.Combine
		scores       [][]float64
		chosen       []int32
		excess       float64 // at most
		want         string  // of the error
	}{
		{"right", "the two best of three", reference.ShareAverage, plain, []int32{0, 1, 3, 4}, 0, ""},
		{"worse page", "a share e times larger was left out", reference.ShareAverage, plain, []int32{0, 1, 2, 4}, 2, ""},
		{"within rounding", "shares that differ by 1e-6 may be chosen either way", reference.ShareAverage, [][]float64{{0, 3, 1, 1 + 1e-6, 0}}, []int32{0, 1, 2, 4}, 1.1e-6, ""},
		{"sink left out", "T10", reference.ShareAverage, plain, []int32{1, 2, 3, 4}, 0, "sink or recent"},
		{"recent left out", "T10", reference.GroupMax, plain, []int32{0, 1, 2, 3}, 0, "sink or recent"},
		{"descending", "the contract wants ascending pages", reference.ShareAverage, plain, []int32{0, 3, 1, 4}, 0, "not ascending"},
		{"twice", "one page fills two slots", reference.ShareAverage, plain, []int32{0, 1, 1, 4}, 0, "not ascending"},
		{"out of range", "a page that is not there", reference.ShareAverage, plain, []int32{0, 1, 3, 5}, 0, "page 5 of 5"},
		{"tie goes high", "T7", reference.ShareAverage, [][]float64{{0, 3, 1, 1, 0}}, []int32{0, 1, 3, 4}, 0, "ties"},
		{"tie goes low", "T7", reference.ShareAverage, [][]float64{{0, 3, 1, 1, 0}}, []int32{0, 1, 2, 4}, 0, ""},
		{"shares of 0 tie", "T3: both are below 2^-100", reference.ShareAverage, [][]float64{{0, 3, -200, -150, 0}}, []int32{0, 1, 3, 4}, 0, "ties"},
		{"logarithms do not underflow", "the same scores by group_max", reference.GroupMax, [][]float64{{0, 3, -200, -150, 0}}, []int32{0, 1, 3, 4}, 0, ""},
		{"NaN before a number", "T8", reference.ShareAverage, [][]float64{{0, 3, nan, 1, 0}}, []int32{0, 1, 2, 4}, 0, "left out"},
		{"+inf left out", "T8", reference.GroupMax, [][]float64{{0, 3, 1, inf, 0}}, []int32{0, 1, 2, 4}, 0, "left out"},
		{"finite before -inf", "T8", reference.PerHead, [][]float64{{0, 3, -inf, -1e30, 0}}, []int32{0, 1, 2, 4}, 0, "left out"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			excess, err := JudgeSelection(tt.rule, budget, tt.scores, tt.chosen)
			switch {
			case tt.want == "" && err != nil, tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
				t.Errorf("%s: error %v, want %q", tt.reason, err, tt.want)
			case err == nil && (excess > tt.excess || tt.excess > SelectBound && excess <= SelectBound):
				t.Errorf("%s: excess %g, want about %g", tt.reason, excess, tt.excess)
			}
		})
	}
}
