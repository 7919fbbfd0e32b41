package verify

import (
	"bytes"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// TestHostWeights holds the factors that a caller packs to those of the reference: moments that say something, and such that do not.
func TestHostWeights(t *testing.T) {
	const dim = 64
	r := rand.New(rand.NewPCG(5, 6))
	for name, n := range map[string]int{"many queries": 200, "fewer than dims": 9, "one": 1, "none": 0, "not finite": 20} {
		queries := make([]float64, n*dim)
		for i := range queries {
			queries[i] = float64(float32(r.NormFloat64() * math.Exp(math.Sin(float64(i%dim)))))
		}
		s := reference.SecondMoment(queries, dim)
		if name == "not finite" {
			s[77] = math.Inf(1)
		}
		single := make([]float32, len(s))
		for i, x := range s {
			single[i] = float32(x)
			s[i] = float64(single[i])
		}
		got, err := kernel.PackWeights(single, 1, dim)
		if err != nil {
			t.Fatal(err)
		}
		want := reference.NewWeights(s, dim)
		factor := want.Factor()
		if name != "none" && name != "not finite" && bytes.Equal(got, reference.PackFactor(reference.NewWeights(make([]float64, dim*dim), dim).Factor(), dim)) {
			t.Errorf("%s: the factor is the identity", name)
		}
		for i, x := range reference.UnpackFactor(got, dim) {
			if math.Abs(x-factor[i]) > 1./256*math.Abs(factor[i])+1e-6 {
				t.Fatalf("%s: element %d is %g, the reference's %g", name, i, x, factor[i])
			}
		}
	}
	if _, err := kernel.PackWeights(make([]float32, 5), 1, dim); err == nil {
		t.Error("5 moments were taken for a head of dim 64")
	}
}
