package search

import (
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestOrder(t *testing.T) {
	if d := cmp.Diff([]int{0, 1, 2}, Order(3, 7)); d != "" {
		t.Errorf("a small space is measured in plan order (-want +got):\n%s", d)
	}
	if got := Order(0, 1); len(got) != 0 {
		t.Errorf("an empty space: got %v", got)
	}
	const n = Exhaustive + 30
	a, b, c := Order(n, 1), Order(n, 1), Order(n, 2)
	if !slices.Equal(a, b) {
		t.Error("the same seed must give the same order, or a resumed run would measure other candidates")
	}
	if slices.Equal(a, c) {
		t.Error("another seed gave the same order")
	}
	if a[0] != 0 || c[0] != 0 {
		t.Error("the default is always measured first")
	}
	sorted := slices.Clone(a)
	slices.Sort(sorted)
	for i, v := range sorted {
		if i != v {
			t.Fatalf("not a permutation: %v", a)
		}
	}
}
