package reference

import (
	"fmt"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestKivi quantises pages of every width of a group and tile: elements come back within half a step, records hold all of it, no two codes in
// one place.
func TestKivi(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, bits := range []int{2, 4} {
		for _, dim := range []int{64, 80, 112, 128, 256} {
			for _, page := range []int{4, 8, 16, 64} {
				t.Run(fmt.Sprintf("%d bits d%d p%d", bits, dim, page), func(t *testing.T) {
					k := NewKivi(dim, page, bits)
					keys, values := make([]float64, page*dim), make([]float64, page*dim)
					for i := range keys {
						keys[i] = FromBF16(ToBF16(5*float64(i%dim%7) + r.NormFloat64())) // channels apart from zero
						values[i] = FromBF16(ToBF16(r.NormFloat64()))
					}
					p := k.Quantise(keys, values)
					record := k.Pack(p)
					if len(record) != k.Bytes {
						t.Fatalf("a record of %d bytes, want %d", len(record), k.Bytes)
					}
					if diff := cmp.Diff(p, k.Unpack(record)); diff != "" {
						t.Errorf("packed and unpacked (-want +got)\n%s", diff)
					}
					gotKeys, gotValues := k.Decode(p)
					for i := range keys {
						token, c := i/dim, i%dim
						// Rounding the zero moves a whole group, rounding the scale the ends of its range.
						if off, step := math.Abs(gotKeys[i]-keys[i]), k.KeyStep(p, c); off > 0.51*step+math.Abs(keys[i])/1024 {
							t.Fatalf("key %d of token %d: %g became %g, steps are %g", c, token, keys[i], gotKeys[i], step)
						}
						if off, step := math.Abs(gotValues[i]-values[i]), k.ValueStep(p, token, c); off > 0.53*step+math.Abs(values[i])/128 {
							t.Fatalf("value %d of token %d: %g became %g, steps are %g", c, token, values[i], gotValues[i], step)
						}
					}
				})
			}
		}
	}
}

// TestKiviEdges quantises what has no range and what is no number.
func TestKiviEdges(t *testing.T) {
	k := NewKivi(64, 16, 4)
	keys, values := make([]float64, 16*64), make([]float64, 16*64)
	for i := range keys {
		keys[i], values[i] = 3, -2
	}
	keys[64+1], values[2*64+40] = math.NaN(), math.Inf(1)
	keys[5] = 3e38
	gotKeys, gotValues := k.Decode(k.Quantise(keys, values))
	for i := range keys {
		switch c := i % 64; {
		case c == 1 != math.IsNaN(gotKeys[i]):
			t.Fatalf("key %d: %g; the channel of a NaN is NaN, no other", i, gotKeys[i])
		case c != 1 && c != 5 && gotKeys[i] != 3:
			t.Fatalf("key %d of a constant channel: %g", i, gotKeys[i])
		case c == 5 && (math.IsInf(gotKeys[i], 0) || gotKeys[i] < 3):
			t.Fatalf("key %d of a channel beyond f16: %g", i, gotKeys[i])
		}
		if lost := i/64 == 2 && i%64 >= 32; lost != math.IsNaN(gotValues[i]) || !lost && gotValues[i] != -2 {
			t.Fatalf("value %d: %g; the group of an infinity is NaN, no other", i, gotValues[i])
		}
	}
}
