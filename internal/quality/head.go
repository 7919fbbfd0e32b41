package quality

import (
	"context"
	"math"
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
)

// scores are the page scores of one query's group: [head][page].
type scores [][]float64

// truth is what is exact about one query position and group.
type truth struct {
	exact  scores
	means  [][][]float64 // [head][page][dim] mean values of the pages under the softmax inside each page
	out    [][]float64   // [head][dim] dense attention
	pages  int           // that the position sees
	full   int           // of them complete
	budget reference.Budget
}

// measureHead sums every setting of one KV head and page size over the queries.
func (l *layer) measureHead(ctx context.Context, head, page int, o Options, a aid) []tally {
	stores := l.stores(o, head, page)
	scorers := l.fit(o, a, head, page, stores)
	states := map[stateKey]*scanState{}
	var tallies []tally
	queries := l.scored(o.Queries)
	for i := range queries {
		if ctx.Err() != nil {
			return nil
		}
		t, q := l.truth(head, l.last-queries+i, page, stores[0])
		t.budget = reference.Budget{SinkPages: o.Sink, RecentPages: o.Recent}
		attended := map[int]truth{0: t} // what attention reads, by its width
		for bits, s := range stores {
			if bits > 0 {
				attended[bits], _ = l.truth(head, l.last-queries+i, page, s)
			}
		}
		known := map[exactKey][][]int32{}
		at := 0
		for n, f := range scorers {
			estimate, square := t.estimate(f, q, reference.Logits{Scale: l.scale})
			if l.device != nil {
				estimate, square = l.device.estimateOf(t, page, n, i, head, f.together)
			} else if f.together > 1 {
				square = 0
				for g, row := range estimate {
					square += t.groupError(g, f.together, func(j int) float64 { return reference.LSE(row[j*f.together : (j+1)*f.together]) })
				}
			}
			coarse := t.coarse(f, q, reference.Logits{Scale: l.scale})
			for _, rule := range f.rules(o.Combine) {
				key := stateKey{n, rule}
				if states[key] == nil {
					states[key] = &scanState{}
				}
				proposals := f.propose(t, estimate, coarse, f.ruleOf(rule), states[key])
				for _, budget := range o.Budgets {
					t.budget.Slots = slots(budget, page)
					for _, factor := range o.factors(f.Scorer) {
						if at == len(tallies) {
							tallies = append(tallies, newTally(f, rule, budget, factor))
						}
						lists := t.choose(proposals, f.ruleOf(rule), factor, f.together)
						if l.device != nil {
							lists = l.device.listsOf(deviceKey{page, n, rule, budget, factor}, i, head, l.kvHeads)
						}
						tallies[at].measure(t, attended[f.Cache.bits()], lists, t.exactLists(known, rule), square)
						tallies[at].cost(proposals, t, factor, o.Context, l.dim)
						at++
					}
				}
			}
		}
	}
	return tallies
}

// stateKey names what a scan remembers: of a score, by its place, and a rule.
type stateKey struct {
	score int
	rule  reference.Combine
}

// choose makes one list a proposal. Pages are proposed one by one, or so many together.
func (t truth) choose(proposals []proposal, rule reference.Combine, factor float64, together int) [][]int32 {
	var lists [][]int32
	exact := rule.Rows(t.exact, len(t.exact))
	for i, p := range proposals {
		if together > 1 {
			lists = append(lists, t.budget.RerankGroups(rule, p.rows, exact[i], factor, together))
			continue
		}
		lists = append(lists, t.budget.Rerank(rule, p.rows, exact[i], factor, p.allowed))
	}
	return lists
}

// rules are the rules that a score is measured with: group_max stands in for share_average where a score is a bound, and a score
// that asks nothing of the query has nothing to combine.
func (f fitted) rules(asked []reference.Combine) []reference.Combine {
	if f.Scorer == SinkAndRecent {
		return asked[:1]
	}
	var out []reference.Combine
	for _, c := range asked {
		if f.Scorer == Quest && c == reference.ShareAverage {
			c = reference.GroupMax
		}
		if !slices.Contains(out, c) {
			out = append(out, c)
		}
	}
	return out
}

// ruleOf is the rule that lists are made by: later pages rank higher without a score, which no share may blur.
func (f fitted) ruleOf(rule reference.Combine) reference.Combine {
	if f.Scorer == SinkAndRecent {
		return reference.GroupMax
	}
	return rule
}

// coarse scores the pages from the summaries of groups, as estimate does; nil without such summaries.
func (t truth) coarse(f fitted, q [][]float64, logits reference.Logits) scores {
	if f.coarse == nil {
		return nil
	}
	out := make(scores, len(q))
	for g := range q {
		out[g] = slices.Clone(t.exact[g])
		f.coarse.Score(out[g][:t.full], q[g], logits)
	}
	return out
}

// estimate scores the pages for every head of the group; a page that is still filling has its exact score. The second result is
// the sum over heads and complete pages of the squared error.
func (t truth) estimate(f fitted, q [][]float64, logits reference.Logits) (scores, float64) {
	out, square := make(scores, len(q)), 0.0
	for g := range q {
		out[g] = slices.Clone(t.exact[g])
		f.Score(out[g][:t.full], q[g], logits)
		if f.Scorer == SinkAndRecent {
			for j := t.full; j < t.pages; j++ {
				out[g][j] = float64(j)
			}
		}
		for j := range t.full {
			e := out[g][j] - t.exact[g][j]
			square += e * e
		}
	}
	return out, square
}

// groupError is the squared error of a head's scores of complete groups of pages, each counted for all of its pages.
func (t truth) groupError(g, together int, score func(group int) float64) (square float64) {
	for j := range t.full / together {
		e := score(j) - reference.LSE(t.exact[g][j*together:(j+1)*together])
		square += e * e * float64(together)
	}
	return square
}

// exactKey names an exact choice of a position.
type exactKey struct {
	perHead bool
	slots   int
}

// exactLists are the pages that the exact scores choose within the budget: by share_average, which is the best a list of the whole
// group can do for its mean mass, or for each query head by itself where the rule is per_head.
func (t truth) exactLists(known map[exactKey][][]int32, rule reference.Combine) [][]int32 {
	key := exactKey{rule == reference.PerHead, t.budget.Slots}
	if lists, ok := known[key]; ok {
		return lists
	}
	if !key.perHead {
		rule = reference.ShareAverage
	}
	for _, rows := range rule.Rows(t.exact, len(t.exact)) {
		known[key] = append(known[key], t.budget.Choose(rule.Values(rows)))
	}
	return known[key]
}

// truth computes the exact attention of query i of a KV head's group over a cache, page by page, and returns the queries.
func (l *layer) truth(head, i, page int, cache store) (truth, [][]float64) {
	group := l.qHeads / l.kvHeads
	n := l.tokens - l.last + i + 1 // tokens that the position sees
	t := truth{pages: slots(n, page), full: n / page}
	var queries [][]float64
	logits := make([]float64, page)
	for g := range group {
		at := ((head*group+g)*l.last + i) * l.dim
		q := l.queries[at : at+l.dim]
		exact, means := make([]float64, t.pages), make([][]float64, t.pages)
		for j := range exact {
			count := min(page, n-j*page)
			keys, values := cache.of(j, count)
			for k := range count {
				logits[k] = l.scale * dot(q, keys[k*l.dim:(k+1)*l.dim])
			}
			exact[j] = reference.LSE(logits[:count])
			means[j] = make([]float64, l.dim)
			for k := range count {
				axpy(means[j], math.Exp(logits[k]-exact[j]), values[k*l.dim:(k+1)*l.dim])
			}
		}
		t.exact, t.means = append(t.exact, exact), append(t.means, means)
		t.out = append(t.out, t.attend(g, nil))
		queries = append(queries, q)
	}
	return t, queries
}

// attend is the attention output of head g over the listed pages alone, renormalised; nil means all.
func (t truth) attend(g int, pages []int32) []float64 {
	if pages == nil {
		for j := range int32(t.pages) {
			pages = append(pages, j)
		}
	}
	held := make([]float64, len(pages))
	for i, j := range pages {
		held[i] = t.exact[g][j]
	}
	lse := reference.LSE(held)
	out := make([]float64, len(t.means[g][0]))
	for i, j := range pages {
		axpy(out, math.Exp(held[i]-lse), t.means[g][j])
	}
	return out
}

func dot(a, b []float64) (sum float64) {
	for i, x := range a {
		sum += x * b[i]
	}
	return sum
}

func axpy(y []float64, s float64, x []float64) {
	for i := range y {
		y[i] += s * x[i]
	}
}
