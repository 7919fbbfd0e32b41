package verify

import (
	"context"
	"errors"
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// DropProblem is a case with the last queries of each request, for the DropKV families.
type DropProblem struct {
	*Problem
	Window  reference.DropWindow
	Scoring reference.DropScoring
	Pool    reference.DropPool
	Budget  reference.DropBudget
	Fast    bool // attention outputs in the cache's dtype
}

// dominants are the values of 1 - p that one token of each request of the case "dominant token" leaves to the others.
var dominants = []float64{0.5, 1e-2, 1e-3, 1e-4, 1e-6, 1e-9, 0}

// NewDropProblem makes the data of a case: the same for the same spec, case and seed.
func NewDropProblem(s *specs.Spec, c Case, seed uint64) (*DropProblem, error) {
	base, err := NewProblem(s, c, seed)
	if err != nil {
		return nil, err
	}
	rule, err := reference.ParseDropRule(s.DropKV.Rule)
	if err != nil {
		return nil, err
	}
	// Kernels get f32; where a weight is near 1, what rounding took from 0.1 would count as their error.
	base.Logits.Scale, base.Logits.Softcap = float64(float32(base.Logits.Scale)), float64(float32(base.Logits.Softcap))
	k := s.DropKV
	p := &DropProblem{Problem: base, Fast: k.Precision == "fast",
		Pool: reference.DropPool{Kind: k.Pool.Kind, Width: k.Pool.Width},
		Budget: reference.DropBudget{Kind: k.HeadBudgets.Kind, Ratio: k.Budget.Ratio, Tokens: k.Budget.Tokens, Window: k.Window, Sinks: k.SinkTokens,
			Floor: k.HeadBudgets.Floor, List: k.HeadBudgets.List},
		Scoring: reference.DropScoring{Rule: rule, Logits: base.Logits, Group: base.Group, Eps: float64(float32(k.Eps)), OutputEpsilon: 0x1p-24, DotNoise: 0x1p-21}}
	if p.Fast && rule != reference.KeyDiff {
		p.Scoring.OutputEpsilon = base.Cache.DType.Compute().Epsilon() / 2
	}
	p.fillWindow(rand.New(rand.NewPCG(seed, 0x77696e646f77))) // "window"
	switch c.Data {
	case Dominant:
		p.dominate()
		p.Scoring.DotNoise = 0
		if base.Cache.DType == reference.FP8 {
			p.Scoring.DotNoise = 0x1p-23 // the product times the cache's scale
		}
	case Rising:
		p.rise()
	case NotFinite:
		p.spoil()
	}
	return p, nil
}

// fillWindow fills [batch, query head, window, dim]: as a case's queries, real ones by their position.
func (p *DropProblem) fillWindow(r *rand.Rand) {
	c, w := p.Cache, p.Spec.DropKV.Window
	p.Window = reference.DropWindow{DType: c.DType.Compute(), Heads: p.Problem.Q.Heads, Window: w, HeadDim: c.HeadDim,
		Bits: make([]uint16, c.Batch()*p.Problem.Q.Heads*w*c.HeadDim)}
	length := map[Data]float64{Wide: 12, Degenerate: 0.01, Extreme: 1e-4}[p.Case.Data]
	if length == 0 {
		length = 1
	}
	x := make([]float64, c.HeadDim)
	for row := range len(p.Window.Bits) / c.HeadDim {
		if p.Case.Data == Real {
			head := row / w % p.Problem.Q.Heads
			real, err := loadReal()
			if err != nil {
				panic("BUG: verify: " + err.Error()) // NewProblem has read it
			}
			real.query(x, w-1-row%w, head/p.Group, head%p.Group)
		} else {
			for i := range x {
				x[i] = length * r.NormFloat64()
			}
		}
		encode(p.Window.DType, p.Window.Bits[row*c.HeadDim:(row+1)*c.HeadDim], x)
	}
}

// lead is the component of queries that meets a key's: larger beside 8 bits, whose keys are small.
func lead(d reference.DType, usual float64) float64 {
	if d == reference.FP8 {
		return 512
	}
	return usual
}

// dominate makes token 5 of request b hold all of the attention but dominants[b], of every query.
func (p *DropProblem) dominate() {
	c := p.Cache
	lead := lead(c.DType, 1)
	for i := range p.Window.Bits {
		p.Window.Bits[i] = 0
		if i%c.HeadDim == 0 {
			p.Window.Bits[i] = p.Window.DType.Bits(lead)
		}
	}
	for b, n := range c.SeqLens {
		for page := range c.Pages(int(n)) {
			for h := range c.KVHeads {
				keys := c.BlockKeys(c.Block(b, page), h)
				for i := range c.TokensIn(page, int(n)) * c.HeadDim {
					keys[i] = 0
				}
				if at := dominantToken - page*c.PageSize; at >= 0 && at < c.PageSize {
					c.EncodeKeys(keys[at*c.HeadDim:][:1], []float64{dominantGap(dominants[b%len(dominants)], int(n)) / (lead * p.Logits.Scale)})
				}
			}
		}
	}
}

// rise adds a component that all queries share, and to token j of n from 64 on what makes its logits risenBy * j/n larger.
func (p *DropProblem) rise() {
	c := p.Cache
	lead := lead(c.DType, 8)
	for i := range p.Window.Bits {
		if i%c.HeadDim == 0 {
			p.Window.Bits[i] = p.Window.DType.Bits(lead)
		}
	}
	for b, n := range c.SeqLens {
		for page := range c.Pages(int(n)) {
			for h := range c.KVHeads {
				keys := c.BlockKeys(c.Block(b, page), h)
				for i := range c.TokensIn(page, int(n)) {
					if j := page*c.PageSize + i; j >= 64 {
						c.EncodeKeys(keys[i*c.HeadDim:][:1], []float64{risenBy * float64(j) / float64(n) / (lead * p.Logits.Scale)})
					}
				}
			}
		}
	}
}

// risenBy is in nats: twice what 16 bits of a logit hold above their reference.
const risenBy = 50

// dominantToken is where: not in the first tile's first row, far from every window.
const dominantToken = 5

// dominantGap is by how much a logit exceeds n - 1 equal ones when it leaves them `rest` of the attention.
func dominantGap(rest float64, n int) float64 {
	if rest == 0 {
		return 1000 // every other weight underflows, in float64 too
	}
	return math.Log((1 - rest) / rest * float64(n-1))
}

// spoil puts a NaN, +inf and -inf into the values of token 3 of request 0, 1 and 2.
func (p *DropProblem) spoil() {
	c := p.Cache
	for b := range c.Batch() {
		bad := []float64{math.NaN(), math.Inf(1), math.Inf(-1)}[b%3]
		for h := range c.KVHeads {
			c.BlockValues(c.Block(b, 0), h)[3*c.HeadDim+1] = c.DType.Bits(bad) // infinity is the largest value in e4m3
		}
	}
}

// Args is the cache as the DropKV families take it: without a table where it is contiguous.
func (p *DropProblem) Args(d *DeviceProblem) kernel.KVCache {
	args := d.Args()
	if p.Case.Layout == Contiguous {
		args.BlockTable, args.TableStride = 0, 0
		args.KBlockStride *= int64(p.Cache.MaxPages)
		args.VBlockStride *= int64(p.Cache.MaxPages)
	}
	return args
}

// head is one KV head of one request as the reference sees it.
type dropHead struct {
	tokens reference.DropTokens
	rows   []reference.DropRow
	anchor []float64
}

// Head observes one KV head of one request at the current lengths, in float64.
func (p *DropProblem) head(request, kvHead int) dropHead {
	h := dropHead{tokens: p.Cache.DropTokens(request, kvHead)}
	if p.Scoring.Rule == reference.KeyDiff {
		h.anchor = h.tokens.Anchor()
	} else {
		h.rows = p.Cache.DropRows(h.tokens, p.Window, request, kvHead, p.Logits)
	}
	return h
}

// MaxTokens is the longest prompt that the cache has room for.
func (p *DropProblem) MaxTokens() int { return p.Cache.MaxPages * p.Cache.PageSize }

// uploadWindow writes the window's queries by strides, with gaps in padded cases.
func (p *DropProblem) uploadWindow(a *Arena) (*Buffer, windowStrides, error) {
	c, w, d := p.Cache, p.Window.Window, p.Window.HeadDim
	s := windowStrides{row: int64(d)}
	if p.Case.Layout == Padded {
		s.row += 8
	}
	s.head = int64(w)*s.row + s.row - int64(d)
	s.batch = int64(p.Window.Heads)*s.head + s.row - int64(d)
	if p.Case.Layout == HeadMajor { // as engines hold queries: [batch, token, head, dim]
		s = windowStrides{batch: int64(w * p.Window.Heads * d), head: int64(d), row: int64(p.Window.Heads * d)}
	}
	image := make([]uint16, int64(c.Batch())*s.batch)
	poisonNaN(image)
	for row := range len(p.Window.Bits) / d {
		i, h, b := row%w, row/w%p.Window.Heads, row/w/p.Window.Heads
		copy(image[int64(b)*s.batch+int64(h)*s.head+int64(i)*s.row:], p.Window.Bits[row*d:(row+1)*d])
	}
	buffer, err := a.Input("q", BytesOfUint16(image))
	return buffer, s, err
}

type windowStrides struct{ batch, head, row int64 }

// scoreRows is where scores lie: [batch, kv head, token].
func (p *DropProblem) scoreRows() Rows { return p.Rows(p.Cache.KVHeads, p.MaxTokens(), 4) }

// dropCases are the inputs of the families that read a cache.
func dropCases(s *specs.Spec, o Options, own ...Case) []Case {
	p, w, few := s.Cache.PageSize, s.DropKV.Window, min(s.Attention.KVHeads, 2)
	var kept []Case
	shared := map[string]bool{"no pages": true, "one token": true, "33 pages": true, "half-full last page": true, "mixed lengths": true, "interleaved": true, "one kv head": true,
		"holes": true, "far apart": true, "wide logits": true, "degenerate pages": true, "real keys": true, "replayed at other lengths": true, "fewer live requests": true,
		"32K tokens": true, "128K beside 4K": true}
	for _, c := range Cases(s, o) {
		if shared[c.Name] {
			kept = append(kept, c)
		}
	}
	all := append([]Case{
		{Name: "contiguous", Reason: "no block table", KVHeads: few, Lens: []int{9*p + 1, 0, 4 * p}, Spare: 1, Layout: Contiguous, Data: Random},
		{Name: "ragged tail", Reason: "100 tokens, batch 2: no multiple of a tile (D2)", KVHeads: few, Lens: []int{100, 61}, Layout: TokenMajor, Data: Random},
		{Name: "around the window", Reason: "prompts up to and just beyond the window (D1)", KVHeads: few, Lens: []int{1, max(w-1, 1), w, w + 1, w + 2, 2 * w}, Layout: HeadMajor, Data: Random},
		{Name: "dominant token", Reason: "p of .5, .99, .999, .9999, 1 - 1e-6 and 1", KVHeads: few, Lens: []int{100, 100, 100, 100, 100, 100, 100}, Layout: TokenMajor, Data: Dominant},
		{Name: "all keys equal", Reason: "weights and directions tie: the values decide, or the lower token", KVHeads: few, Lens: []int{100, 40}, Layout: TokenMajor, Data: Alike},
		{Name: "values not finite", Reason: "NaN and infinite values, each in a request of its own", KVHeads: few, Lens: []int{70, 70, 70}, Layout: TokenMajor, Data: NotFinite},
	}, own...)
	for _, c := range all {
		if o.Wants(c.Name) {
			kept = append(kept, c)
		}
	}
	return kept
}

// dropRun is one case of a kernel with one tally.
type dropRun interface {
	prepare() error
	enqueue(s device.Stream) error
	once(t *Tally, graph *Replay, at int) error
}

// eachDropCase runs a kernel on every case, until ctx ends, each in an arena of its own; start makes the run of a case.
func eachDropCase(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, seed uint64, metric string, bound float64, cases []Case,
	start func(*DropProblem, *Kernel, *Arena) dropRun) []Result {
	return eachCase(ctx, e, c, metric, cases, func(k *Kernel, cs Case) []Result {
		p, err := NewDropProblem(s, cs, seed)
		if err != nil {
			return []Result{Failed(cs.Name, metric, err)}
		}
		a, t := e.NewArena(), NewTally(cs.Name, metric, bound)
		r := start(p, k, a)
		if err = r.prepare(); err == nil {
			err = e.EachLaunch(cs, r.enqueue, func(graph *Replay, at int) error { return r.once(t, graph, at) })
		}
		t.Err(errors.Join(err, a.Free()))
		return []Result{t.Result()}
	})
}
