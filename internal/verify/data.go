package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
	"github.com/kvloom/kvloom/testdata/smollm2"
)

// filler writes a problem's keys, values and queries.
type filler struct {
	p    *Problem
	r    *rand.Rand
	real *realKeys // for Real
}

func newFiller(p *Problem, r *rand.Rand) (*filler, error) {
	f := &filler{p: p, r: r}
	if p.Case.Data != Real {
		return f, nil
	}
	var err error
	f.real, err = loadReal()
	if err != nil {
		return nil, err
	}
	for _, n := range p.Case.longest() {
		if n > f.real.tokens {
			return nil, fmt.Errorf("case %q: %d tokens, the real sample has %d", p.Case.Name, n, f.real.tokens)
		}
	}
	return f, nil
}

func (f *filler) fill() {
	c := f.p.Cache
	seen := map[int32]bool{}
	lens := f.p.Case.longest()
	for b := range lens {
		for page := range c.Pages(lens[b]) {
			id := c.Block(b, page)
			if id < 0 || seen[id] {
				continue
			}
			seen[id] = true
			for h := range c.KVHeads {
				keys, values := c.BlockKeys(id, h), c.BlockValues(id, h)
				f.keys(keys, page, h)
				f.values(values, page, h)
			}
		}
	}
	f.poisonTails()
	f.queries()
}

// poisonTails makes NaN of every token of a live page that lies behind the longest length that reads it.
func (f *filler) poisonTails() {
	c := f.p.Cache
	used := map[int32]int{}
	lens := f.p.Case.longest()
	for b, n := range lens {
		for page := range c.Pages(n) {
			if id := c.Block(b, page); id >= 0 {
				used[id] = max(used[id], c.TokensIn(page, n))
			}
		}
	}
	for id, tokens := range used {
		for h := range c.KVHeads {
			poisonNaN(c.BlockKeys(id, h)[tokens*c.HeadDim:])
			poisonNaN(c.BlockValues(id, h)[tokens*c.HeadDim:])
		}
	}
}

// keys fills one page [token, dim] of one head.
func (f *filler) keys(out []uint16, page, head int) {
	d, tokens := f.p.Cache.HeadDim, f.p.Cache.PageSize
	x := make([]float64, len(out))
	switch f.p.Case.Data {
	case Random, Wide, Dominant, Rising, NotFinite:
		f.lowRankPlusNoise(x, d, tokens)
	case Extreme:
		for i := range x {
			x[i] = 3e4 * (2*f.r.Float64() - 1)
		}
	case NearEqual:
		for i := range x {
			x[i] = f.r.NormFloat64()
		}
	case Alike:
		for i := range x {
			x[i] = math.Cos(float64(3*head + i%d))
		}
	case LowRank:
		f.exactRankTwo(x, d, tokens)
	case Degenerate:
		f.degenerate(x, d, page)
	case Real:
		f.real.page(f.real.k, x, page*tokens, head, d)
	default:
		panic(fmt.Sprintf("BUG: verify: data %q", f.p.Case.Data))
	}
	f.p.Cache.EncodeKeys(out, x)
}

func encode(dtype reference.DType, out []uint16, x []float64) {
	for i, v := range x {
		out[i] = dtype.Bits(v)
	}
}

// lowRankPlusNoise resembles real pages: a centre, a few strong directions of falling strength, and noise.
func (f *filler) lowRankPlusNoise(x []float64, d, tokens int) {
	centre := make([]float64, d)
	for i := range centre {
		centre[i] = f.r.NormFloat64()
	}
	for i := range x {
		x[i] = centre[i%d] + 0.25*f.r.NormFloat64()
	}
	for c := range 3 {
		direction := make([]float64, d)
		for i := range direction {
			direction[i] = f.r.NormFloat64() / float64(c+1)
		}
		for t := range tokens {
			s := f.r.NormFloat64()
			for i := range d {
				x[t*d+i] += s * direction[i]
			}
		}
	}
}

// exactRankTwo uses small multiples of 1/4, so that 16 bits hold every key exactly and centred pages have rank 2 at most.
func (f *filler) exactRankTwo(x []float64, d, tokens int) {
	ints := func(n, span int) []float64 {
		v := make([]float64, n)
		for i := range v {
			v[i] = float64(f.r.IntN(2*span+1)-span) / 4
		}
		return v
	}
	centre, one, two := ints(d, 8), ints(d, 4), ints(d, 2)
	for t := range tokens {
		a, b := float64(f.r.IntN(9)-4), float64(f.r.IntN(9)-4)
		for i := range d {
			x[t*d+i] = centre[i] + a*one[i] + b*two[i]
		}
	}
}

// degenerate makes constant pages, zeros, two repeated keys, one outlier 1e4 times the rest, and one key among zeros.
func (f *filler) degenerate(x []float64, d, page int) {
	one, two := make([]float64, d), make([]float64, d)
	for i := range d {
		one[i], two[i] = f.r.NormFloat64(), f.r.NormFloat64()
	}
	for i := range x {
		t := i / d
		switch page % 5 {
		case 0:
			x[i] = one[i%d]
		case 1:
			x[i] = 0
		case 2:
			x[i] = []float64{one[i%d], two[i%d]}[t%2]
		case 3:
			x[i] = f.r.NormFloat64()
			if t == 1 {
				x[i] *= 1e4
			}
		case 4:
			if t == 2 {
				x[i] = one[i%d]
			}
		}
	}
}

func (f *filler) values(out []uint16, page, head int) {
	x := make([]float64, len(out))
	if f.p.Case.Data == Real {
		f.real.page(f.real.v, x, page*f.p.Cache.PageSize, head, f.p.Cache.HeadDim)
	} else {
		for i := range x {
			x[i] = f.r.NormFloat64()
		}
	}
	f.p.Cache.EncodeValues(out, x)
}

// queries fills [batch, query head, dim]. Wide ones are 12 times longer: logits of the random keys then reach 64 and more.
func (f *filler) queries() {
	p := f.p
	heads := p.Group * p.Cache.KVHeads
	p.Q = reference.Queries{DType: p.Cache.DType.Compute(), Heads: heads, HeadDim: p.Cache.HeadDim,
		Bits: make([]uint16, p.Cache.Batch()*heads*p.Cache.HeadDim)}
	length := 1.0
	switch p.Case.Data {
	case Wide:
		length = 12
	case Degenerate:
		length = 0.01 // one key of the outlier pages is 1e4 times longer
	}
	for b := range p.Cache.Batch() {
		for h := range heads {
			x := make([]float64, p.Cache.HeadDim)
			if p.Case.Data == Real {
				f.real.query(x, b, h/p.Group, h%p.Group)
			} else {
				for i := range x {
					x[i] = length * f.r.NormFloat64()
				}
			}
			at := (b*heads + h) * p.Cache.HeadDim
			encode(p.Q.DType, p.Q.Bits[at:at+p.Cache.HeadDim], x)
		}
	}
}

// realKeys is the SmolLM2 sample: k and v [3][tokens][64], q [9][16][64].
type realKeys struct {
	k, v, q []uint16
	tokens  int
}

const realDim, realHeads, realGroup, realQueries = 64, 3, 3, 16

func loadReal() (*realKeys, error) {
	file, err := tensorfile.ReadFS(smollm2.FS, smollm2.Sample)
	if err != nil {
		return nil, err
	}
	bits := func(name string) (x []uint16) {
		t, tensorErr := file.Tensor(name)
		if tensorErr == nil {
			x, tensorErr = t.Bits16()
		}
		if tensorErr != nil && err == nil {
			err = fmt.Errorf("%s: %w", smollm2.Sample, tensorErr)
		}
		return x
	}
	r := &realKeys{k: bits("k"), v: bits("v"), q: bits("q_last")}
	r.tokens = len(r.k) / realHeads / realDim
	return r, err
}

// page copies tokens from position first on; a head dim other than 64 repeats and cuts the real one.
func (r *realKeys) page(from []uint16, x []float64, first, head, d int) {
	for i := range x {
		token := (first + i/d) % r.tokens
		x[i] = reference.FromBF16(from[(head%realHeads*r.tokens+token)*realDim+i%d%realDim])
	}
}

// query copies the query of a member of a head's group; request b takes the b-th position from the end. Larger groups than the real
// one repeat it at other positions.
func (r *realKeys) query(x []float64, b, head, member int) {
	position := realQueries - 1 - (b+member/realGroup)%realQueries
	at := ((head%realHeads*realGroup+member%realGroup)*realQueries + position) * realDim
	for i := range x {
		x[i] = reference.FromBF16(r.q[at+i%realDim])
	}
}
