package quality

import (
	"math"
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
)

// TestAgainstNumpy holds the measurement to what an independent numpy script (float64, its own SVD, quantisation, selection) gave
// for the sample, all 16 queries, rounded to six decimals. On the six whole layers that the sample is a part of, the same code
// gave the script's mass, recall and RMS error to the same six decimals in all 144 cells that both measure. The script's scales of tokens
// are those of 8 significant bits; ours have had 4 since, which moves what is quantised by as much as the wider bounds allow.
func TestAgainstNumpy(t *testing.T) {
	o := options()
	o.Ranks = []int{1, 2, 4, 8}
	rows := run(t, o, sample)[0].Rows
	type pair struct{ mass, recall float64 }
	for _, tt := range []struct {
		name   string
		at     map[int]pair // by budget, tokens
		rms    float64      // 0: none
		reason string
	}{
		{"exact_lse", map[int]pair{256: {0.895656, 1}, 512: {0.968024, 1}}, 0, "equation 1"},
		{"page_local r1 float", map[int]pair{256: {0.849703, 0.800781}, 512: {0.943959, 0.921875}}, 1.41679, "equation 2"},
		{"page_local r2 float", map[int]pair{256: {0.880525, 0.886719}, 512: {0.962544, 0.949219}}, 0.962731, "equation 2"},
		{"page_local r4 float", map[int]pair{256: {0.890734, 0.929688}, 512: {0.967518, 0.965495}}, 0.506128, "equation 2"},
		{"page_local r8 float", map[int]pair{256: {0.895243, 0.970052}, 512: {0.967909, 0.978516}}, 0.224089, "equation 2"},
		{"page_local r1 i4", map[int]pair{256: {0.845881, 0.795573}, 512: {0.944877, 0.924479}}, 1.400906, "quantised"},
		{"page_local r2 i4", map[int]pair{256: {0.880854, 0.888021}, 512: {0.962514, 0.951172}}, 0.95237, "quantised"},
		{"page_local r4 i4", map[int]pair{256: {0.890981, 0.934896}, 512: {0.967405, 0.964844}}, 0.518907, "quantised"},
		{"page_local r8 i4", map[int]pair{256: {0.894951, 0.966146}, 512: {0.96784, 0.975911}}, 0.298423, "quantised"},
		{"mean_key float", map[int]pair{256: {0.770546, 0.65625}, 512: {0.890014, 0.86263}}, 2.162924, "rank 0"},
		{"quest", map[int]pair{256: {0.868648, 0.794271}, 512: {0.946586, 0.807943}}, 0, "a bound, by the maximum over the group"},
		{"sink_and_recent", map[int]pair{256: {0.724381, 0.5}, 512: {0.818055, 0.744792}}, 0, "no score"},
	} {
		rule := reference.ShareAverage
		if tt.name == "quest" {
			rule = reference.GroupMax
		}
		for budget, want := range tt.at {
			r := find(t, rows, tt.name, budget, rule)
			mass, recall, rms := 6e-7, 6e-7, 2e-6
			if tt.reason == "quantised" {
				mass, recall, rms = 3e-4, 2e-3, 2e-3
			}
			if math.Abs(r.Mass-want.mass) > mass || math.Abs(r.Recall-want.recall) > recall {
				t.Errorf("%s at %d tokens: mass %.6f, recall %.6f; want %.6f, %.6f (%s)", tt.name, budget, r.Mass, r.Recall, want.mass, want.recall, tt.reason)
			}
			if tt.rms != 0 && r.RMS == nil {
				t.Errorf("%s: no RMS error", tt.name)
			} else if tt.rms != 0 && math.Abs(*r.RMS-tt.rms) > rms {
				t.Errorf("%s: RMS error %.6f, want %.6f", tt.name, *r.RMS, tt.rms)
			}
		}
	}
}
