package plan

import (
	"testing"

	"github.com/kvloom/kvloom/specs"
)

// A search on an H200 met a candidate whose four filling warps lapped a ring of three tiles.
func TestImmaOutrun(t *testing.T) {
	spec, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		name                string
		warps, fill, stages int // of 8 heads: 8 warps are one group
		refused             bool
	}{
		{"one warp fills", 8, 1, 2, false},
		{"as many as tiles", 8, 3, 3, false},
		{"more than tiles", 8, 4, 3, true},
		{"two groups, two fill", 16, 2, 4, false},
		{"two groups, three fill: six tiles until the same warp meets the same group", 16, 3, 4, true},
		{"two groups, three fill six", 16, 3, 6, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			reason := immaOutrun(spec, immaChoice{heads: 8, warps: tt.warps, split: 1, fill: tt.fill, stages: tt.stages})
			if (reason != "") != tt.refused {
				t.Errorf("refused %v (%s), want %v", reason != "", reason, tt.refused)
			}
		})
	}
}
