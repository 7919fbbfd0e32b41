package verify

import (
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/specs"
)

// Problem is a case with its data: everything that the reference needs.
type Problem struct {
	Case   Case
	Spec   *specs.Spec
	Cache  *reference.Cache // SeqLens and HeadLens are those of the launch that SetLaunch chose
	Q      reference.Queries
	Logits reference.Logits
	Shape  reference.Shape
	Rule   reference.Combine
	Budget reference.Budget
	Group  int
	Slots  int
}

// cacheScales are those of an 8-bit cache: no powers of two, f32, and such that the data's largest keys fit 448 of them.
func cacheScales(d Data) (k, v float64) {
	k = 0.0371
	switch d {
	case Extreme:
		k = 70.3
	case Degenerate:
		k = 101.7
	}
	return float64(float32(k)), float64(float32(0.0123))
}

// centres makes a mean key for every KV head, f32 as the device has them: what 4-bit centroids are stored less.
func centres(c *reference.Cache, r *rand.Rand) [][]float64 {
	list := make([][]float64, c.KVHeads)
	for h := range list {
		list[h] = make([]float64, c.HeadDim)
		for i := range list[h] {
			list[h][i] = float64(float32(0.4 * r.NormFloat64()))
		}
	}
	return list
}

// Lists is the page lists of a request: one a KV head, or one a query head for per_head.
func (p *Problem) Lists() int {
	if p.Rule == reference.PerHead {
		return p.Q.Heads
	}
	return p.Cache.KVHeads
}

// NewProblem makes the data of a case: the same for the same spec, case and seed.
func NewProblem(s *specs.Spec, c Case, seed uint64) (*Problem, error) {
	dtype, err := reference.ParseDType(s.Cache.DType)
	if err != nil {
		return nil, err
	}
	rule, err := reference.ParseCombine(s.Locks.Combine)
	if err != nil {
		return nil, err
	}
	if c.KVHeads == 0 {
		c.KVHeads = s.Attention.KVHeads
	}
	p := &Problem{Case: c, Spec: s, Rule: rule, Group: s.Attention.Group(), Slots: s.Slots(),
		Logits: reference.Logits{Scale: s.Attention.SoftmaxScale, Softcap: s.Attention.LogitSoftcap},
		Shape:  reference.Shape{HeadDim: s.Attention.HeadDim, PageSize: s.SummaryTokens(), Rank: s.Locks.Rank, BasisBits: s.Locks.BasisBits, Form: s.Record().Form, Scorer: s.Record().Scorer},
		Budget: reference.Budget{Slots: s.Slots(), SinkPages: s.Locks.AlwaysKeep.SinkPages, RecentPages: s.Locks.AlwaysKeep.RecentPages}}
	p.Cache = &reference.Cache{DType: dtype, HeadDim: s.Attention.HeadDim, PageSize: s.Cache.PageSize, KVHeads: c.KVHeads, SummaryPages: s.SummaryPages()}
	p.Cache.KScale, p.Cache.VScale = cacheScales(c.Data)
	r := rand.New(rand.NewPCG(seed, 0x6b766c6f6f6d)) // "kvloom"
	p.layTable(r)
	p.place()
	if p.Shape.Form.Centroid4 {
		p.Cache.Centre = centres(p.Cache, rand.New(rand.NewPCG(seed, 0x6d65616e))) // "mean"
	}
	f, err := newFiller(p, r)
	if err != nil {
		return nil, err
	}
	f.fill()
	if bits := s.Cache.KiviBits(); bits > 0 {
		p.Cache.QuantiseBlocks(reference.NewKivi(s.Attention.HeadDim, s.Cache.PageSize, bits))
	}
	p.SetLaunch(0)
	return p, nil
}

// firstBlock is the lowest physical id in use: far apart, its offset in elements passes 2^33 with the paper's block of 16384.
func (p *Problem) firstBlock() int32 {
	if p.Case.Layout != FarApart {
		return 0
	}
	return int32(min(16_384_000_000/p.blockStride(), 1_000_000))
}

// blockStride of the layouts that put K and V into one block, in elements.
func (p *Problem) blockStride() int64 {
	natural := int64(2 * p.Cache.PageSize * p.Cache.KVHeads * p.Cache.HeadDim)
	vector := int64(16 / p.Cache.DType.Size()) // elements of 16 bytes
	switch {
	case p.Case.Layout == FarApart:
		return max(natural, 16384)
	case natural < 519_840:
		return 519_840 // 1,039,680 B, an engine's real stride
	}
	return natural + vector*37
}

// layTable gives every page of every request a block, shuffled, and sets traps behind the live pages: a block of NaN, -1, an id far
// outside the cache, the id of someone else's block.
func (p *Problem) layTable(r *rand.Rand) {
	c := p.Cache
	lens := p.Case.longest()
	longest, total := 0, 0
	for _, n := range lens {
		longest = max(longest, c.Pages(n))
		total += c.Pages(n)
	}
	pages := p.Spec.SummaryPages() // rows of the table are whole groups
	c.MaxPages = (max(longest+p.Case.Spare, 1) + pages - 1) / pages * pages
	c.TableStride = c.MaxPages
	if p.Case.Layout == Padded {
		c.TableStride += 3
	}
	c.SeqLens = make([]int32, len(lens))
	c.Table = make([]int32, len(lens)*c.TableStride)
	ids := r.Perm(total + total/4 + 2) // more blocks than pages: ids have gaps
	next := func() int32 {
		id := int32(ids[0]) + p.firstBlock()
		ids = ids[1:]
		return id
	}
	trap := next()
	if p.Case.Layout == Contiguous {
		trap = int32(len(lens) * c.MaxPages)
	}
	c.AddBlock(trap)
	traps := []int32{trap, -1, math.MaxInt32, trap}
	for b, n := range lens {
		row := c.Table[b*c.TableStride : (b+1)*c.TableStride]
		for i := range row {
			row[i] = traps[(i+b)%len(traps)]
		}
		for i := range c.Pages(n) {
			switch {
			case i < p.Case.Shared && b > 0 && i < c.Pages(lens[0]):
				row[i] = c.Table[i]
			case p.Case.Holes && (i/pages%5 == 2 || pages > 1 && i%pages == 0 && i/pages%5 == 4) && i/pages*pages+pages < c.Pages(n):
				row[i] = -1
			case p.Case.Layout == Contiguous:
				row[i] = int32(b*c.MaxPages + i)
				c.AddBlock(row[i])
			default:
				row[i] = next()
				c.AddBlock(row[i])
			}
		}
		traps[3] = row[0] // the next request's tail points at this one's first page
	}
	for h := range c.KVHeads {
		poisonNaN(c.BlockKeys(trap, h))
		poisonNaN(c.BlockValues(trap, h))
	}
}

// nanBits is a NaN in bf16 and in fp16, its low byte in e4m3.
const nanBits = 0x7fff

func poisonNaN(x []uint16) {
	for i := range x {
		x[i] = nanBits
	}
}

// place chooses strides and bases for the case's layout.
func (p *Problem) place() {
	c := p.Cache
	page, heads, d := int64(c.PageSize), int64(c.KVHeads), int64(c.HeadDim)
	vector := int64(16 / c.DType.Size()) // elements of 16 bytes
	c.KStrides = reference.Strides{Block: page * heads * d, Token: heads * d, Head: d}
	c.VStrides = c.KStrides
	switch p.Case.Layout {
	case TokenMajor, Contiguous:
	case HeadMajor:
		c.KStrides = reference.Strides{Block: page * heads * d, Token: d, Head: page * d}
		c.VStrides = c.KStrides
	case Interleaved, FarApart:
		c.Joint = true
		c.KStrides.Block = p.blockStride()
		c.VStrides.Block = p.blockStride()
		c.VBase = page * heads * d
	case Padded:
		head := d + vector
		if heads == 1 {
			head = vector * 12345 // means nothing with one head
		}
		c.KStrides = reference.Strides{Token: max(heads, 1)*(d+vector) + 3*vector, Head: head}
		c.KStrides.Block = page*c.KStrides.Token + 5*vector
		c.VStrides = reference.Strides{Token: d + 2*vector, Head: page*(d+2*vector) + vector}
		c.VStrides.Block = heads*c.VStrides.Head + 7*vector
		c.KBase, c.VBase = 2*vector, 8*vector
	default:
		panic(fmt.Sprintf("BUG: verify: layout %q", p.Case.Layout))
	}
}

// SetLaunch sets the lengths of launch i: 0 is the case's own, the others its replays.
func (p *Problem) SetLaunch(i int) {
	lens := p.Case.Launches()[i]
	for b, n := range lens {
		p.Cache.SeqLens[b] = int32(n)
	}
	if !p.Case.HeadLens {
		return
	}
	p.Cache.HeadLens = make([]int32, len(lens)*p.Cache.KVHeads)
	for b, n := range lens {
		for h := range p.Cache.KVHeads {
			p.Cache.HeadLens[b*p.Cache.KVHeads+h] = int32([]int{n / 2, max(n-3, 0), 0, n}[(b+h)%4])
		}
	}
}
