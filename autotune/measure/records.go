package measure

import (
	"math"

	"github.com/kvloom/kvloom/specs"
)

// plainRecords makes n random records of a scorer other than page_local.
func (r *Rig) plainRecords(n int) []byte {
	l := r.record
	if l.Scorer == specs.Quest {
		return r.halves(n*l.Bytes/2, 1)
	}
	b := make([]byte, n*l.Bytes)
	if l.Scorer != specs.MeanKey {
		return b
	}
	for at := 0; at < len(b); at += l.Bytes {
		for i := range l.HeadDim {
			b[at+i] = byte(r.rand.IntN(255) - 127)
		}
		scale := math.Float32bits(float32(2.0 / 127 * (0.2 + 0.8*r.rand.Float64())))
		b[at+l.MuScale], b[at+l.MuScale+1] = byte(scale>>16), byte(scale>>24)
	}
	return b
}
