package launch

import "testing"

func TestExtentValue(t *testing.T) {
	p := Problem{Batch: 3, KVHeads: 8, MaxPages: 33, SMs: 132}
	tests := []struct {
		name string
		e    Extent
		want int64
	}{
		{"a constant does not depend on the problem", Const(7), 7},
		{"division rounds up, so that the last pages are covered", Extent{Of: []Quantity{MaxPages}, Times: 1, Per: 16}, 3},
		{"a product of quantities", Each(Batch, KVHeads), 24},
		{"never below one block, even with no pages", Extent{Of: []Quantity{NewPages}, Times: 1, Per: 4}, 1},
		{"a cap", Extent{Of: []Quantity{MaxPages}, Times: 1, Per: 1, AtMost: 8}, 8},
	}
	for _, tt := range tests {
		if got := tt.e.Value(p); got != tt.want {
			t.Errorf("%s: got %d, want %d", tt.name, got, tt.want)
		}
	}
}
