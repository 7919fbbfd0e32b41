package reference

import (
	"math"
	"math/rand/v2"
	"testing"
)

// TestPreRope: unquantised and at full rank the score is the exact one, so turning keys back and queries after them is right; and a
// turn there and back is nothing.
func TestPreRope(t *testing.T) {
	rng := rand.New(rand.NewPCG(9, 10))
	const d, page = 64, 4
	rope := Rope{Theta: 1e4}
	keys, q := make([]float64, 5*page*d), make([]float64, d)
	for i := range keys {
		keys[i] = rng.NormFloat64()
	}
	for i := range q {
		q[i] = rng.NormFloat64()
	}
	f := PlainForm(3, 0)
	s, want, got := NewPreRope(keys, d, page, f, rope), make([]float64, 5), make([]float64, 5)
	s.Score(got, q, Logits{Scale: 0.125})
	NewExactLSE(keys, d, page).Score(want, q, Logits{Scale: 0.125})
	for j := range want {
		if math.Abs(got[j]-want[j]) > 1e-12 {
			t.Errorf("page %d: %.12f, exactly %.12f", j, got[j], want[j])
		}
	}
	x := append([]float64{}, q...)
	rope.Turn(x, 8191)
	rope.Turn(x, -8191)
	if off := RelativeError(x, q); off > 1e-12 {
		t.Errorf("turned there and back: off by %g", off)
	}
}
