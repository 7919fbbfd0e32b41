package verify

import (
	"bytes"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// valueCase is one input of the families that read a value a token: [batch, kv head, token].
type valueCase struct {
	Name, Reason string
	Kind         string
	Heads        int
	Lens         []int
	Replays      [][]int
	Padded, Long bool
}

// valueCases are the inputs; w is the window.
func valueCases(o Options, w int) []valueCase {
	var kept []valueCase
	for _, c := range []valueCase{
		{Name: "random", Reason: "scores of every size; prompts around the window and none at all", Kind: "random", Heads: 3, Lens: []int{500, 0, 1, w, w + 1, w + 2, 333}},
		{Name: "all equal", Reason: "ties go to the lower token (T1, T7)", Kind: "equal", Heads: 4, Lens: []int{257, 64}},
		{Name: "steps", Reason: "few distinct values, many ties (T1)", Kind: "steps", Heads: 5, Lens: []int{700, 90}},
		{Name: "zeros of both signs", Reason: "-0 ties with 0", Kind: "zeros", Heads: 1, Lens: []int{300}},
		{Name: "not finite", Reason: "NaN below -inf, +inf first (T8)", Kind: "not_finite", Heads: 2, Lens: []int{400, 120}},
		{Name: "all NaN", Reason: "no value at all (T8)", Kind: "nan", Heads: 2, Lens: []int{200}},
		{Name: "one bin", Reason: "keys that share two digits (T2)", Kind: "near", Heads: 1, Lens: []int{3000}},
		{Name: "uneven heads", Reason: "one head holds every large value", Kind: "uneven", Heads: 5, Lens: []int{300, 61}},
		{Name: "many heads", Reason: "more heads than a block has warps", Kind: "uneven", Heads: 20, Lens: []int{90}},
		{Name: "misleading sample", Reason: "every fourth token alone is large: more are kept than the best of each four", Kind: "misleading", Heads: 3, Lens: []int{600, 64}},
		{Name: "negative", Reason: "keydiff's scores", Kind: "negative", Heads: 2, Lens: []int{250}, Padded: true},
		{Name: "replayed at other lengths", Reason: "a graph's lengths come from device memory (G2)", Kind: "random", Heads: 2, Lens: []int{200, 90}, Replays: [][]int{{3, 1000}, {1000, 0}, {201, 90}}},
		{Name: "longer than the buffer", Reason: "keys that do not fit shared memory", Kind: "random", Heads: 1, Lens: []int{20000}},
		{Name: "128K beside 4K", Reason: "long and short rows in one batch (T5)", Kind: "random", Heads: 2, Lens: []int{131072, 4096}, Long: true},
	} {
		if (o.Wants(c.Name)) && (o.Full() || !c.Long) {
			kept = append(kept, c)
		}
	}
	return kept
}

func (c valueCase) launches() [][]int { return append([][]int{c.Lens}, c.Replays...) }

// valueProblem is a case with its data. All launches read the same values, at other lengths.
type valueProblem struct {
	valueCase
	rows      Rows // of values [batch, kv head, token]
	values    []float32
	maxTokens int
}

func newValueProblem(c valueCase, page int, seed uint64) *valueProblem {
	p := &valueProblem{valueCase: c}
	for _, lens := range c.launches() {
		for _, n := range lens {
			p.maxTokens = max(p.maxTokens, n)
		}
	}
	p.maxTokens = max((p.maxTokens+page-1)/page*page, page)
	p.rows = Rows{Batch: len(c.Lens), Rows: c.Heads, Width: p.maxTokens, RowStride: int64(p.maxTokens)}
	if c.Padded {
		p.rows.RowStride += 5
	}
	p.rows.BatchStride = int64(c.Heads)*p.rows.RowStride + p.rows.RowStride - int64(p.maxTokens)
	r := rand.New(rand.NewPCG(seed, 0x76616c756573)) // "values"
	p.values = make([]float32, p.rows.Elements())
	for i := range p.values {
		p.values[i] = float32(math.Inf(1)) // behind a prompt: would be chosen first
	}
	for b := range p.rows.Batch {
		for h := range p.rows.Rows {
			for j := range p.maxTokens {
				p.values[p.rows.At(b, h)+int64(j)] = value(r, c.Kind, h, j)
			}
		}
	}
	return p
}

// value is one token's, of a kind.
func value(r *rand.Rand, kind string, head, token int) float32 {
	switch kind {
	case "random":
		return float32(math.Exp(8 * r.NormFloat64()))
	case "equal":
		return 0.25
	case "steps":
		return float32(r.IntN(5)) / 4
	case "zeros":
		return []float32{0, float32(math.Copysign(0, -1)), 0, -1}[r.IntN(4)]
	case "not_finite":
		return []float32{float32(math.NaN()), float32(math.Inf(1)), float32(math.Inf(-1)), float32(r.Float64()), float32(r.Float64())}[r.IntN(5)]
	case "nan":
		return float32(math.NaN())
	case "near":
		return math.Float32frombits(0x3f800000 + uint32(r.IntN(900)))
	case "uneven":
		return float32(r.Float64()) + float32(head/4)*10
	case "misleading":
		v := 1 + float32(r.Float64())/2
		if token%4 == 1 {
			v += 0.5
		}
		return v
	case "negative":
		return float32(-r.Float64())
	}
	panic(fmt.Sprintf("BUG: verify: values of kind %q", kind))
}

// head is a head's values as float64.
func (p *valueProblem) head(b, h, n int) []float64 {
	out := make([]float64, n)
	at := p.rows.At(b, h)
	for j := range out {
		out[j] = float64(p.values[at+int64(j)])
	}
	return out
}

// layer is every head's.
func (p *valueProblem) layer(b, n int) [][]float64 {
	var out [][]float64
	for h := range p.Heads {
		out = append(out, p.head(b, h, n))
	}
	return out
}

func (p *valueProblem) launch(e *Env, page, slots int) launch.Problem {
	return launch.Problem{Batch: int64(p.rows.Batch), KVHeads: int64(p.Heads), QHeads: int64(p.Heads), Lists: int64(p.Heads), MaxPages: int64(p.maxTokens / page),
		NewPages: 1, Slots: int64(slots), SMs: int64(e.Dev.Info().SMs)}
}

func lens32(lens []int) []int32 {
	out := make([]int32, len(lens))
	for i, n := range lens {
		out[i] = int32(n)
	}
	return out
}

// replayed runs a launch of a case through a captured graph, at each of its lengths, twice each, and hands the outputs of the first
// run to judge. Outputs are poisoned before every run and must be the same bytes after the second.
func replayed(e *Env, a *Arena, launches [][]int, lens *Buffer, outputs []*Buffer, enqueue func(device.Stream) error, judge func(at int, lens []int, data [][]byte) error) error {
	graph, err := e.Capture(enqueue)
	if err != nil {
		return err
	}
	run := func(at int, live []int) error {
		if err := errors.Join(lens.Write(BytesOfInt32(lens32(live))), lens.Freeze()); err != nil {
			return err
		}
		var first [][]byte
		for try := range 2 {
			for _, b := range outputs {
				if err := b.Poison(); err != nil {
					return err
				}
			}
			if err := graph.Run(); err != nil {
				return err
			}
			for i, b := range outputs {
				data, err := b.Read()
				switch {
				case err != nil:
					return err
				case try == 0:
					first = append(first, data)
				case !bytes.Equal(first[i], data):
					return fmt.Errorf("a second launch wrote other bytes to %q: the kernel is not repeatable", b.Name)
				}
			}
		}
		return errors.Join(a.Check(), judge(at, live, first))
	}
	for at, live := range launches {
		if err = run(at, live); err != nil {
			err = fmt.Errorf("launch %d: %w", at, err)
			break
		}
	}
	return errors.Join(err, graph.Close())
}
