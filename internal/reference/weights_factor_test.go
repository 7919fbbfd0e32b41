package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestFactor: L L^T is S', packing loses bf16's last bits alone, and no two elements share a place.
func TestFactor(t *testing.T) {
	for _, dim := range []int{64, 80, 128} {
		rng := rand.New(rand.NewPCG(3, uint64(dim)))
		w := NewWeights(SecondMoment(randomMatrix(rng, 40, dim), dim), dim) // fewer queries than dims: S is singular
		l := w.Factor()
		back := UnpackFactor(PackFactor(l, dim), dim)
		want := times(w.Half, w.Half, dim)
		for i := range dim {
			for j := range dim {
				if got := dot(l[i*dim:(i+1)*dim], l[j*dim:(j+1)*dim]); math.Abs(got-want[i*dim+j]) > 1e-9*(1+math.Abs(want[i*dim+j])) {
					t.Fatalf("dim %d: L L^T (%d, %d) is %g, S' %g", dim, i, j, got, want[i*dim+j])
				}
				if a, b := l[i*dim+j], back[i*dim+j]; math.Abs(a-b) > math.Abs(a)/256 {
					t.Fatalf("dim %d: element (%d, %d) is %g, packed %g", dim, i, j, a, b)
				}
			}
		}
		seen := map[int]bool{}
		for i := range dim {
			for j := range i/16*16 + 16 {
				at := factorPlace(dim, i, j)
				if seen[at] || at < 0 || at+2 > FactorBytes(dim) {
					t.Fatalf("dim %d: element (%d, %d) lies at byte %d, as another does or outside", dim, i, j, at)
				}
				seen[at] = true
			}
		}
		if len(seen)*2 != FactorBytes(dim) {
			t.Errorf("dim %d: %d places of %d", dim, len(seen), FactorBytes(dim)/2)
		}
	}
}
