package audit

import (
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"sync"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
)

// Options of an audit.
type Options struct {
	Ratio   float64 // tokens kept, of those that a query sees
	Queries int     // last queries of each head; 0: all in the file
	Subsets int     // random candidate sets a query whose best eviction is found by enumeration
	Size    int     // candidates of such a set, half of which are evicted
	Seed    uint64
}

// Validate reports options that mean nothing.
func (o Options) Validate() error {
	switch {
	case !(o.Ratio > 0 && o.Ratio <= 1):
		return fmt.Errorf("ratio %g; allowed: above 0 and up to 1", o.Ratio)
	case o.Queries < 0:
		return fmt.Errorf("%d queries; use 0 for all of them, or a positive number", o.Queries)
	case o.Subsets < 0:
		return fmt.Errorf("%d subsets; use 0 for none, or a positive number", o.Subsets)
	case o.Size < 2 || o.Size > 20:
		return fmt.Errorf("subsets of %d candidates; allowed: 2 to 20, for every way to halve one is tried", o.Size)
	}
	return nil
}

// Report is the audit of one file: one layer of one prompt.
type Report struct {
	File    string  `json:"file"`
	Tokens  int     `json:"tokens"`
	KVHeads int     `json:"kv_heads"`
	Ratio   float64 `json:"ratio"`
	Queries []Query `json:"queries"`
}

// layer is a file's tensors in float64.
type layer struct {
	keys, values, queries []float64 // [kv head, token, dim], [q head, query, dim]
	kvHeads, qHeads       int
	tokens, last, dim     int
	scale                 float64
}

// Run audits one safetensors file with tensors k and v [KV heads, tokens, dim] and q_last [query heads, last positions, dim], of BF16
// or F16. Metadata softmax_scale replaces 1/sqrt(dim).
func Run(ctx context.Context, path string, o Options) (Report, error) {
	if err := o.Validate(); err != nil {
		return Report{}, err
	}
	l, err := load(path)
	if err != nil {
		return Report{}, err
	}
	r := Report{File: filepath.Base(path), Tokens: l.tokens, KVHeads: l.kvHeads, Ratio: o.Ratio}
	queries := l.last
	if o.Queries > 0 {
		queries = min(queries, o.Queries)
	}
	r.Queries = make([]Query, l.qHeads*queries)
	var wg sync.WaitGroup
	next := make(chan int)
	for range runtime.GOMAXPROCS(0) {
		wg.Go(func() {
			for i := range next {
				r.Queries[i] = l.query(i/queries, l.last-queries+i%queries, o)
			}
		})
	}
	for i := range r.Queries {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	return r, ctx.Err()
}

// query audits query i of a head.
func (l *layer) query(head, i int, o Options) Query {
	kv := head / (l.qHeads / l.kvHeads)
	position := l.tokens - l.last + i
	n := position + 1
	size := l.tokens * l.dim
	at := (head*l.last + i) * l.dim
	a := attend(l.queries[at:at+l.dim], l.keys[kv*size:(kv+1)*size], l.values[kv*size:(kv+1)*size], n, l.dim, l.scale)
	kept := min(n, max(int(math.Ceil(o.Ratio*float64(n)*(1-1e-12))), 1))
	q := a.examine(n - kept)
	q.Head, q.Position = head, position
	r := rand.New(rand.NewPCG(o.Seed, uint64(at)))
	for range o.Subsets {
		if n < o.Size+1 {
			break // the rest must keep a token
		}
		q.Ratios = append(q.Ratios, a.ratio(r.Perm(n)[:o.Size]))
	}
	return q
}

func load(path string) (*layer, error) {
	f, err := tensorfile.Read(path)
	if err != nil {
		return nil, err
	}
	var faults []error
	tensor := func(name string) ([]float64, []int) {
		t, err := f.Tensor(name)
		var bits []uint16
		if err == nil && len(t.Shape) != 3 {
			err = fmt.Errorf("tensor %q has %d dimensions, not 3", name, len(t.Shape))
		}
		if err == nil {
			bits, err = t.Bits16()
		}
		if err != nil {
			faults = append(faults, fmt.Errorf("%s: %w", path, err))
			return nil, make([]int, 3)
		}
		d := reference.BF16
		if t.DType == "F16" {
			d = reference.FP16
		}
		out := make([]float64, len(bits))
		d.Values(out, bits)
		return out, t.Shape
	}
	l := &layer{}
	var k, v, q []int
	l.keys, k = tensor("k")
	l.values, v = tensor("v")
	l.queries, q = tensor("q_last")
	if len(faults) > 0 {
		return nil, errors.Join(faults...)
	}
	l.kvHeads, l.tokens, l.dim, l.qHeads, l.last = k[0], k[1], k[2], q[0], q[1]
	switch {
	case !slices.Equal(k, v):
		return nil, fmt.Errorf("%s: k is %v and v %v; both are [KV heads, tokens, dim]", path, k, v)
	case q[2] != l.dim || l.last > l.tokens || l.last < 1 || l.dim < 1:
		return nil, fmt.Errorf("%s: q_last is %v for keys %v; it is [query heads, last positions, dim]", path, q, k)
	case l.kvHeads < 1 || l.qHeads%l.kvHeads != 0:
		return nil, fmt.Errorf("%s: %d query heads over %d KV heads: every KV head serves the same whole number of query heads", path, l.qHeads, l.kvHeads)
	}
	for name, x := range map[string][]float64{"k": l.keys, "v": l.values, "q_last": l.queries} {
		if slices.ContainsFunc(x, func(e float64) bool { return math.IsNaN(e) || math.IsInf(e, 0) }) {
			return nil, fmt.Errorf("%s: tensor %q holds values that are not finite; no cone is defined", path, name)
		}
	}
	l.scale = 1 / math.Sqrt(float64(l.dim))
	if text, ok := f.Metadata["softmax_scale"]; ok {
		if l.scale, err = strconv.ParseFloat(text, 64); err != nil {
			return nil, fmt.Errorf("%s: softmax_scale %q is no number", path, text)
		}
	}
	return l, nil
}

// Summary condenses queries: of a KV head, of a file, of everything.
type Summary struct {
	Name     string  `json:"name"`
	Queries  int     `json:"queries"`
	Cone     float64 `json:"cone"`     // share with c* > 0
	Finite   float64 `json:"finite"`   // share with c* > 0 and k eps < 1
	MedianC  float64 `json:"median_c"` // of c*, by its lower bound, 0 where no cone exists
	Factor   float64 `json:"median_factor"`
	Ratios   int     `json:"ratios"`
	RatioMid float64 `json:"ratio_median"`
	RatioP95 float64 `json:"ratio_p95"`
	RatioMax float64 `json:"ratio_max"`
}

// Summarise condenses a list of queries. Medians of nothing are 0.
func Summarise(name string, queries []Query) Summary {
	s := Summary{Name: name, Queries: len(queries)}
	var cs, factors, ratios []float64
	for _, q := range queries {
		cs = append(cs, max(q.Lower, 0))
		if q.Cone() {
			s.Cone++
		}
		if q.Factor > 0 {
			s.Finite++
			factors = append(factors, q.Factor)
		}
		ratios = append(ratios, q.Ratios...)
	}
	if n := float64(len(queries)); n > 0 {
		s.Cone /= n
		s.Finite /= n
	}
	s.MedianC, s.Factor = quantile(cs, 0.5), quantile(factors, 0.5)
	s.Ratios, s.RatioMid, s.RatioP95, s.RatioMax = len(ratios), quantile(ratios, 0.5), quantile(ratios, 0.95), quantile(ratios, 1)
	return s
}

// ByHead are the file's summaries, one a KV head.
func (r Report) ByHead() []Summary {
	var list []Summary
	group := 1
	for _, q := range r.Queries {
		group = max(group, (q.Head+r.KVHeads)/r.KVHeads)
	}
	for h := range r.KVHeads {
		var of []Query
		for _, q := range r.Queries {
			if q.Head/group == h {
				of = append(of, q)
			}
		}
		list = append(list, Summarise(fmt.Sprintf("KV head %d", h), of))
	}
	return list
}

// quantile of a list, by the nearest rank.
func quantile(x []float64, p float64) float64 {
	if len(x) == 0 {
		return 0
	}
	x = slices.Sorted(slices.Values(x))
	return x[min(int(p*float64(len(x))), len(x)-1)]
}
