package verify

import (
	"bytes"
	"math"
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/specs"
)

// plainRecords judges one launch's records of a scorer without a basis: extrema bit for bit, means by their codes and scale.
func (j *summaryJudge) plainRecords(c *reference.Cache, keys []reference.RecordKey, got map[reference.RecordKey][]byte, launch int) {
	shape := j.p.Shape
	for _, key := range keys {
		x := c.DecodeKeys(key.Block, key.Head)
		finite := !slices.ContainsFunc(x, func(v float64) bool { return math.IsNaN(v) || math.IsInf(v, 0) })
		record := got[key]
		switch {
		case shape.Scorer == specs.MeanKey && finite:
			for i, b := range record[shape.Layout().MuScale+2:] {
				if b != 0 {
					j.mu.Fail("launch %d, block %d, head %d: byte %d of the padding is %#02x", launch, key.Block, key.Head, i, b)
				}
			}
			codes := reference.UnpackMean(shape, record)
			if err := codes.Check(); err != nil {
				j.mu.Fail("launch %d, block %d, head %d: %v", launch, key.Block, key.Head, err)
				continue
			}
			j.centroid(x, reference.Centred(x, shape), codes, key)
		case shape.Scorer == specs.MeanKey:
			if codes := reference.UnpackMean(shape, record); !math.IsNaN(reference.FromBF16(codes.MuScale)) {
				j.span.Fail("launch %d, block %d, head %d: a key is not finite and the mean's scale is a number", launch, key.Block, key.Head)
			}
		case shape.Scorer == specs.Quest:
			want, have := make([]float64, len(record)/2), make([]float64, len(record)/2)
			for i := range have {
				bits := uint16(record[2*i]) | uint16(record[2*i+1])<<8
				have[i] = c.DType.Value(bits)
			}
			for i := range shape.HeadDim {
				low, high := math.Inf(1), math.Inf(-1)
				for t := range shape.PageSize {
					v := x[t*shape.HeadDim+i]
					low, high = min(low, v), max(high, v)
				}
				want[i], want[shape.HeadDim+i] = low, high
			}
			for i := range want {
				if finite && have[i] != want[i] || !finite && !math.IsNaN(have[i]) {
					j.span.Fail("launch %d, block %d, head %d: extremum %d is %g, exactly %g (all keys finite: %t)", launch, key.Block, key.Head, i, have[i], want[i], finite)
					break
				}
			}
		default:
			if !bytes.Equal(record, make([]byte, len(record))) {
				j.span.Fail("launch %d, block %d, head %d: a placeholder is not zero", launch, key.Block, key.Head)
			}
		}
		j.span.Passed(1)
	}
}
