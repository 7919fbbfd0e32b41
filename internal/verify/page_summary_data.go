package verify

import (
	"math"
	"math/bits"
	"math/rand/v2"
)

// Cases whose keys or launch differ from what Case can say.
const (
	notFinite  = "keys that are not finite"
	oddStrides = "odd strides"
	oneBlock   = "more pages than the grid was sized for"
	equalSpan  = "equal singular values"
	decaying   = "decaying singular values"
	hugeKeys   = "largest finite keys"
	tinyKeys   = "tiny keys"
	farKeys    = "centroid of six times the spread"
)

// plant changes the keys of the cases above. Every stored block is filled anew, the traps of padding excepted.
func plant(p *Problem, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	d, page := p.Cache.HeadDim, p.Cache.PageSize
	switch p.Case.Name {
	case notFinite:
		plantNonFinite(p)
	case equalSpan:
		// Rows of a Walsh matrix with random signs of the dims, plus noise on every other page: all singular values alike, exactly.
		n := 0
		refill(p, func(x []float64) {
			n++
			for i := range d {
				sign := 3 * float64(1-2*r.IntN(2))
				for t := range page {
					x[t*d+i] = sign * float64(1-2*(bits.OnesCount(uint(t&i))%2))
					if n%2 == 0 {
						x[t*d+i] += 0.02 * r.NormFloat64()
					}
				}
			}
		})
	case decaying:
		refill(p, func(x []float64) {
			for c := range page {
				strength := math.Exp(-0.5 * float64(c))
				for i := range d {
					direction := strength * r.NormFloat64()
					for t := range page {
						x[t*d+i] += direction * math.Cos(math.Pi*float64(c)*(float64(t)+0.5)/float64(page))
					}
				}
			}
		})
	case farKeys:
		refill(p, func(x []float64) {
			for i := range d {
				centre := 6 * r.NormFloat64()
				for t := range page {
					x[t*d+i] = centre + r.NormFloat64()
				}
			}
		})
	case hugeKeys, tinyKeys:
		top := map[string]float64{"bf16": 3.3e38, "fp16": 65504, "fp8_e4m3": 16.6}[p.Spec.Cache.DType]
		if p.Case.Name == tinyKeys {
			top = map[string]float64{"bf16": 1e-30, "fp16": 2e-6, "fp8_e4m3": 2e-4}[p.Spec.Cache.DType]
		}
		refill(p, func(x []float64) {
			for i := range x {
				x[i] = top * (2*r.Float64() - 1)
			}
		})
	}
}

// refill replaces the keys of every live page.
func refill(p *Problem, fill func(x []float64)) {
	c := p.Cache
	for b, n := range p.Case.longest() {
		for page := range n / c.PageSize {
			for h := range c.KVHeads {
				x := make([]float64, c.PageSize*c.HeadDim)
				fill(x)
				c.EncodeKeys(c.BlockKeys(c.Block(b, page), h), x)
			}
		}
	}
}

// plantNonFinite puts one bad key into pages 1, 3 and 5: a NaN and +inf of every head, -inf of the first alone, at different places.
func plantNonFinite(p *Problem) {
	c := p.Cache
	for i, bad := range []float64{math.NaN(), math.Inf(1), math.Inf(-1)} {
		for h := range c.KVHeads {
			if i == 2 && h > 0 {
				break
			}
			keys := c.BlockKeys(c.Block(0, 2*i+1), h)
			keys[(i*len(keys)/2+h)%len(keys)] = c.DType.Bits(bad)
		}
	}
}
