package bench

import (
	"testing"

	"github.com/kvloom/kvloom/autotune/measure"
)

func TestSteady(t *testing.T) {
	for _, tc := range []struct {
		name, reason string
		brisk        bool
		medians      []float64 // of the measurements, as they would come
		want         float64
		times        int
	}{
		{"usual", "many samples are believed", false, []float64{9, 5, 5}, 9, 1},
		{"brisk", "two that agree", true, []float64{5, 5.05, 9}, 5, 2},
		{"disturbed at first", "the two later ones agree", true, []float64{9, 5, 5.01}, 5.01, 3},
		{"disturbed when asked again", "the probe is the odd one", true, []float64{5, 9, 5.02}, 5.02, 3},
		{"slow twice", "the middle one, whichever is right", true, []float64{9, 5, 8}, 8, 3},
	} {
		t.Run(tc.name, func(t *testing.T) {
			times := 0
			got, err := steady(func(measure.Timing) ([]float64, error) {
				times++
				return []float64{tc.medians[times-1]}, nil
			}, Job{Brisk: tc.brisk})
			if err != nil || got[0] != tc.want || times != tc.times {
				t.Errorf("%s: %v after %d measurements, %v; want %v after %d", tc.reason, got, times, err, tc.want, tc.times)
			}
		})
	}
}
