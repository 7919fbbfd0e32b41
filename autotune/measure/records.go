package measure

import (
	"math"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// largestCode is the largest signed code of a width.
func largestCode(bits int) float64 { return float64(int(1)<<(bits-1) - 1) }

// centre makes mean keys for 4-bit centroids, or none where the record has none.
func (r *Rig) centre() (device.Ptr, error) {
	if !r.record.Form.Centroid4 {
		return 0, nil
	}
	mean := make([]float32, int(r.Problem.KVHeads)*r.record.HeadDim)
	for i := range mean {
		mean[i] = float32(r.rand.NormFloat64())
	}
	return r.upload(bytesOf(mean))
}

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
