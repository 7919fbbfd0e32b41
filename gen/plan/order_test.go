package plan

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/specs"
)

// Each workload begins with what a plan for it alone begins with: few lists with wide clusters, many with narrow ones.
func TestOrderAt(t *testing.T) {
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	p := New(s, Targets["sm_90a"])
	for _, tc := range []struct {
		work    string
		family  Family
		w       specs.Workload
		cluster int
	}{
		{"page_select", PageSelect, specs.Workload{Context: 131072, Batch: 1}, 8},
		{"page_select", PageSelect, specs.Workload{Context: 131072, Batch: 8}, 2},
		{"page_attend", PageAttend, specs.Workload{Context: 131072, Batch: 1}, 8},
		{"dense", PageAttend, specs.Workload{Context: 131072, Batch: 1}, 1},
	} {
		fp, order := p.Of(tc.family), p.OrderAt(tc.work, tc.family, tc.w)
		sorted := slices.Sorted(slices.Values(order))
		if len(sorted) != len(fp.Candidates) || len(slices.Compact(sorted)) != len(sorted) {
			t.Errorf("%s %v: %v is no order of %d candidates", tc.work, tc.w, order, len(fp.Candidates))
		}
		if c := fp.Candidates[order[0]]; c.Geometry.Cluster != tc.cluster {
			t.Errorf("%s %v begins with %s, want a cluster of %d", tc.work, tc.w, c.ID(), tc.cluster)
		}
	}
}
