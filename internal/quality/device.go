package quality

import (
	"fmt"
	"math"
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/specs"
)

// Kernels are the project's own kernels on some device.
type Kernels interface {
	// SelectPages builds, scores and selects by a spec's kernels; see verify.Env.SelectPages.
	SelectPages(s *specs.Spec, choices []*specs.Spec, c *reference.Cache, q reference.Queries, given bool, weights []reference.Weights) (reference.Scores, []reference.Lists, error)
}

// deviceKey names what lists were made for: a score, by its place among a page size's, a rule, a budget, a rerank factor.
type deviceKey struct {
	page, score int
	rule        reference.Combine
	budget      int
	factor      float64
}

// onDevice is what kernels computed of one layer.
type onDevice struct {
	scores map[[2]int][][][]float64 // by page size and score: [query][query head][page]
	lists  map[deviceKey]reference.Lists
}

// withoutKernels says which of the options no kernel serves.
func (o Options) withoutKernels() error {
	for _, m := range o.Methods {
		switch m {
		case ExactLSE, PageLocal, Quest, MeanKey:
		default:
			return fmt.Errorf("scorer %s has no kernel; with a device ask for exact_lse, page_local, quest, mean_key", m)
		}
	}
	for _, c := range o.Caches {
		if c != Plain {
			return fmt.Errorf("a cache of %s is measured by the reference alone; leave it out with a device", c)
		}
	}
	for _, b := range o.Bits {
		if b == 0 {
			return fmt.Errorf("kernels read stored summaries; leave out unquantised ones")
		}
	}
	for _, f := range o.Forms {
		switch {
		case f.Pages > 1 && !f.Together:
			return fmt.Errorf("form %s is measured by the reference alone; with a device ask for summaries of one page, such as r1c4m4w, or of pages that are proposed together, such as r1wg2", f)
		case f.Together && (!f.Record().Plain() || slices.ContainsFunc(o.PageSizes, func(p int) bool { return p*f.Pages != 32 && p*f.Pages != 64 && p*f.Pages != 128 })):
			return fmt.Errorf("form %s has kernels for plain records of 32, 64 and 128 tokens alone", f)
		case f.Together && slices.Contains(o.factors(PageLocal), 1):
			return fmt.Errorf("form %s proposes pages to a rerank; with a device ask for factors above 1 alone", f)
		case f.Together:
		case f.Grouped && f.BasisBits > 4:
			return fmt.Errorf("form %s has no kernel: scales of 16 dims go with bases of 2 and 4 bits", f)
		case f != reference.PlainForm(f.Rank, f.BasisBits) && (f.Rank > 8 || slices.ContainsFunc(o.PageSizes, func(p int) bool { return p != 16 })):
			return fmt.Errorf("form %s has kernels for pages of 16 tokens and ranks up to 8 alone", f)
		}
		if o.GivenRecords && f.Weighted {
			return fmt.Errorf("given records are those of plain bases; leave out form %s", f)
		}
	}
	if len(o.Scans) > 1 || len(o.Scans) == 1 && o.Scans[0] != FullScan {
		return fmt.Errorf("scans of summaries are measured by the reference alone; leave out the device")
	}
	for _, f := range o.factors(PageLocal) {
		if f > 4 {
			return fmt.Errorf("rerank %g has no kernel; with a device ask for 1 to 4", f)
		}
	}
	return nil
}

// launch runs every score, rule and budget of a layer on the device.
func (l *layer) launch(o Options, a aid) (*onDevice, error) {
	out := &onDevice{scores: map[[2]int][][][]float64{}, lists: map[deviceKey]reference.Lists{}}
	for _, page := range o.PageSizes {
		cache, queries, err := l.paged(o, page)
		if err != nil {
			return nil, err
		}
		for n, f := range l.fit(o, a, 0, page, l.stores(o, 0, page)) { // of head 0: every head has the same settings
			s, weights := l.spec(o, f, page), []reference.Weights(nil)
			if f.Weights != "" {
				s.Locks.Basis, weights = "query_weighted", l.weights(o, a, page)
			}
			var choices []*specs.Spec
			var keys []deviceKey
			for _, rule := range f.rules(o.Combine) {
				for _, budget := range o.Budgets {
					for _, factor := range o.factors(f.Scorer) {
						choice := *s
						choice.Locks.Combine, choice.Locks.BudgetTokens, choice.Locks.Rerank = string(rule), budget, factor
						choices = append(choices, &choice)
						keys = append(keys, deviceKey{page, n, rule, budget, factor})
					}
				}
			}
			own := *cache
			own.SummaryPages = s.SummaryPages()
			if s.Record().Form.Centroid4 {
				own.Centre = l.centres(o, a, page)
			}
			scores, lists, err := o.Kernels.SelectPages(s, choices, &own, queries, o.GivenRecords, weights)
			if err != nil {
				return nil, fmt.Errorf("%s: %w", f.Name(), err)
			}
			out.scores[[2]int{page, n}] = scores.Score
			for i, key := range keys {
				out.lists[key] = lists[i]
			}
		}
	}
	return out, nil
}

// weights are those of every KV head.
func (l *layer) weights(o Options, a aid, page int) (out []reference.Weights) {
	for head := range l.kvHeads {
		out = append(out, (&fitting{Options: o, aid: a, l: l, head: head, page: page}).weigh())
	}
	return out
}

// centres are the mean keys of every KV head, as f32 holds them; nil where there is nothing to take them from.
func (l *layer) centres(o Options, a aid, page int) (out [][]float64) {
	for head := range l.kvHeads {
		mean := append([]float64{}, (&fitting{Options: o, aid: a, l: l, head: head, page: page, prompt: l.tokens - l.last}).centre()...)
		if len(mean) == 0 {
			return nil
		}
		for i, x := range mean {
			mean[i] = float64(float32(x))
		}
		out = append(out, mean)
	}
	return out
}

// spec is what the kernels of one score are built for.
func (l *layer) spec(o Options, f fitted, page int) *specs.Spec {
	s := &specs.Spec{Name: "quality"}
	s.Attention = specs.Attention{QueryHeads: l.qHeads, KVHeads: l.kvHeads, HeadDim: l.dim, SoftmaxScale: l.scale}
	s.Cache = specs.Cache{DType: string(l.dtype), PageSize: page, Layout: "strides"}
	s.Locks = specs.Locks{Rank: 1, BasisBits: 4, CoefficientBits: 8, CentroidBits: 8, ScaleGroup: "column", Basis: "svd", Scorer: string(f.Scorer),
		Summaries: "post", Scan: "full", Rerank: 1, SummaryTokens: page, Combine: string(o.Combine[0]), BudgetTokens: o.Budgets[0],
		AlwaysKeep: specs.Keep{SinkPages: o.Sink, RecentPages: o.Recent}}
	if f.Scorer == PageLocal {
		s.Locks.Rank, s.Locks.BasisBits = f.Rank, f.Bits
		if form, err := reference.ParseForm(f.Form); err == nil {
			s.Locks.CoefficientBits, s.Locks.CentroidBits = form.CoefficientBits, form.CentroidBits
			s.Locks.SummaryTokens = page * form.Pages
			if form.Grouped {
				s.Locks.ScaleGroup = "16"
			}
		}
	}
	s.DropKV = specs.DropKV{Rule: "streaming", Window: 1}
	s.Targets = []string{"sm_90a"}
	return s
}

// paged is the layer as a paged cache, one request a measured position, all on the same blocks, and the queries.
func (l *layer) paged(o Options, page int) (*reference.Cache, reference.Queries, error) {
	queries, blocks := l.scored(o.Queries), slots(l.tokens, page)
	columns := (blocks + 3) / 4 * 4 // whole groups of pages that share a summary
	c := &reference.Cache{DType: l.dtype, HeadDim: l.dim, PageSize: page, KVHeads: l.kvHeads, MaxPages: columns, TableStride: columns}
	c.KStrides = reference.Strides{Block: int64(page * l.kvHeads * l.dim), Token: int64(l.kvHeads * l.dim), Head: int64(l.dim)}
	c.VStrides = c.KStrides
	for j := range int32(blocks) {
		c.AddBlock(j)
	}
	for head := range l.kvHeads {
		for t := range l.tokens {
			at := (head*l.tokens + t) * l.dim
			k, v := c.BlockKeys(int32(t/page), head)[t%page*l.dim:], c.BlockValues(int32(t/page), head)[t%page*l.dim:]
			for i := range l.dim {
				k[i], v[i] = l.dtype.Bits(l.keys[at+i]), l.dtype.Bits(l.values[at+i])
				if l.dtype.Value(k[i]) != l.keys[at+i] {
					return nil, reference.Queries{}, fmt.Errorf("keys are no %s numbers; kernels take BF16 or F16 dumps", l.dtype)
				}
			}
		}
	}
	q := reference.Queries{DType: l.dtype, Heads: l.qHeads, HeadDim: l.dim}
	for i := range queries {
		at := l.last - queries + i
		c.SeqLens = append(c.SeqLens, int32(l.tokens-l.last+at+1))
		for j := range int32(columns) {
			if int(j) >= blocks {
				j = -1
			}
			c.Table = append(c.Table, j)
		}
		for h := range l.qHeads {
			for d := range l.dim {
				q.Bits = append(q.Bits, l.dtype.Bits(l.queries[(h*l.last+at)*l.dim+d]))
			}
		}
	}
	return c, q, nil
}

// estimateOf are the device's scores of query i for the group of a KV head, and the sum of squared errors over complete pages. Where pages are
// proposed together, scores are of so many, and so are errors.
func (d *onDevice) estimateOf(t truth, page, score, i, head, together int) (scores, float64) {
	group := len(t.exact)
	out, square := make(scores, group), 0.0
	for g := range group {
		out[g] = d.scores[[2]int{page, score}][i][head*group+g]
		if together > 1 {
			square += t.groupError(g, together, func(j int) float64 { return out[g][j] })
			continue
		}
		for j := range t.full {
			square += math.Pow(out[g][j]-t.exact[g][j], 2)
		}
	}
	return out, square
}

// listsOf are the lists that the device chose for query i and a KV head: one, or one a query head.
func (d *onDevice) listsOf(key deviceKey, i, head, kvHeads int) [][]int32 {
	all := d.lists[key][i]
	each := len(all) / kvHeads
	return all[head*each : (head+1)*each]
}
