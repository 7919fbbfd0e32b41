package reference

import (
	"encoding/binary"
	"math"

	"github.com/kvloom/kvloom/specs"
)

// record is the packed summary of one page of a head's keys.
func (c *Cache) record(keys []float64, shape Shape, head int) []byte {
	if shape.Scorer == "" {
		return Summarise(keys, shape).QuantiseAround(c.centre(head)).Pack()
	}
	l := shape.Layout()
	b := make([]byte, l.Bytes)
	summary := newSummary(keys, Shape{HeadDim: shape.HeadDim, PageSize: shape.PageSize, BasisBits: 16})
	switch shape.Scorer {
	case specs.Quest:
		extrema := NewQuest(keys, shape.HeadDim, shape.PageSize)
		for i, x := range append(append([]float64{}, extrema.low...), extrema.high...) {
			if summary.NonFinite {
				x = math.NaN()
			}
			binary.LittleEndian.PutUint16(b[2*i:], c.DType.Bits(x))
		}
	case specs.MeanKey:
		codes := summary.Quantise()
		for i, x := range codes.Mu {
			b[i] = byte(x)
		}
		binary.LittleEndian.PutUint16(b[l.MuScale:], codes.MuScale)
	}
	return b
}

// UnpackMean reads the codes and the scale of a mean_key record.
func UnpackMean(shape Shape, record []byte) Codes {
	codes := Codes{Shape: shape, Mu: make([]int8, shape.HeadDim)}
	for i := range codes.Mu {
		codes.Mu[i] = int8(record[i])
	}
	codes.MuScale = binary.LittleEndian.Uint16(record[shape.Layout().MuScale:])
	return codes
}

// plainScorer scores a complete page by a scorer without a basis: from its record, or for exact_lse from its keys.
func (c *Cache) plainScorer(shape Shape, record []byte, keys []float64, l Logits) func(q []float64) (score, largest float64) {
	var one PageScorer
	switch shape.Scorer {
	case specs.Quest:
		both := make([]uint16, 2*shape.HeadDim)
		for i := range both {
			both[i] = binary.LittleEndian.Uint16(record[2*i:])
		}
		values := make([]float64, len(both))
		c.DType.Values(values, both)
		one = Quest{low: values[:shape.HeadDim], high: values[shape.HeadDim:], dim: shape.HeadDim}
	case specs.MeanKey:
		codes := UnpackMean(shape, record)
		mean := MeanKey{dim: shape.HeadDim, page: shape.PageSize}
		for _, x := range codes.Mu {
			mean.mu = append(mean.mu, float64(x)*FromBF16(codes.MuScale))
		}
		one = mean
	case specs.ExactLSE:
		one = NewExactLSE(keys, shape.HeadDim, shape.PageSize)
	}
	return func(q []float64) (float64, float64) {
		var score [1]float64
		one.Score(score[:], q, l)
		return score[0], math.Abs(score[0]) + math.Log(float64(shape.PageSize))
	}
}
