package quality

import (
	"math"
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
)

// tally sums one setting's measurements.
type tally struct {
	Setting
	bytes, read                float64 // sums over pairs
	estimates                  bool
	mass, worst, recall, error float64
	square                     float64 // of score errors
	pages                      float64 // scores that square is a sum of
	n                          float64 // (query, KV head) pairs, each of weight 1
}

func newTally(f fitted, rule reference.Combine, budget int, factor float64) tally {
	t := tally{Setting: f.Setting, estimates: f.estimates()}
	t.Combine, t.Budget = rule, budget
	if factor > 1 {
		t.Rerank = factor
	}
	return t
}

// cost adds what one query and KV head reads: the scan of its lists, and the keys of the candidates that are not chosen, once for
// each list, spread over the pages of the context.
func (t *tally) cost(proposals []proposal, truth truth, factor float64, context, dim int) {
	pages := float64(truth.pages)
	if context > 0 {
		pages = float64(slots(context, t.PageSize))
	}
	for _, p := range proposals {
		t.bytes += p.read / float64(len(proposals))
	}
	candidates := min(truth.budget.Candidates(factor), truth.pages)
	more := max(0, candidates-truth.budget.Slots) * len(proposals) * t.PageSize * dim * 2
	t.read += float64(more) / pages
}

// measure adds one query and KV head: the lists that were chosen and those that exact scores choose. Mass and recall are of the keys as
// they are; attention reads the cache as it is held, and its error is against dense attention over keys and values as they are.
func (t *tally) measure(truth, attended truth, lists, exact [][]int32, square float64) {
	group := len(truth.exact)
	var recall float64
	for i, list := range lists {
		recall += common(list, exact[i])
	}
	worst, mass, off := math.Inf(1), 0.0, 0.0
	for g := range group {
		list := lists[g*len(lists)/group]
		m := reference.RetainedMass(truth.exact[g], list)
		mass += m
		worst = min(worst, m)
		off += reference.RelativeError(attended.attend(g, list), truth.out[g])
	}
	t.mass += mass / float64(group)
	t.worst += worst
	t.recall += recall / float64(len(lists))
	t.error += off / float64(group)
	t.square += square
	t.pages += float64(group * truth.full)
	t.n++
}

// common is the share of want's pages that are in got.
func common(got, want []int32) float64 {
	hits := 0
	for _, j := range want {
		if _, ok := slices.BinarySearch(got, j); ok {
			hits++
		}
	}
	return float64(hits) / float64(len(want))
}

// add joins the sums of another KV head.
func (t *tally) add(u tally) {
	t.mass += u.mass
	t.worst += u.worst
	t.recall += u.recall
	t.error += u.error
	t.square += u.square
	t.pages += u.pages
	t.n += u.n
	t.bytes += u.bytes
	t.read += u.read
}

// row is the mean.
func (t tally) row() Row {
	r := Row{Setting: t.Setting, Bytes: t.bytes / t.n, Read: (t.bytes + t.read) / t.n, Mass: t.mass / t.n, Worst: t.worst / t.n, Recall: t.recall / t.n, Error: t.error / t.n}
	if t.estimates {
		rms := math.Sqrt(t.square / t.pages)
		r.RMS = &rms
	}
	return r
}

// addRow adds a file's row, of weight 1 like every other.
func (t *tally) addRow(r Row) {
	t.add(tally{mass: r.Mass, worst: r.Worst, recall: r.Recall, error: r.Error, bytes: r.Bytes, read: r.Read - r.Bytes, n: 1})
	if r.RMS != nil {
		t.estimates = true
		t.square += *r.RMS
	}
}

// mean is the mean over the rows that were added.
func (t tally) mean() Row {
	rms := t.square / t.n
	estimates := t.estimates
	t.estimates = false
	r := t.row()
	if estimates {
		r.RMS = &rms
	}
	return r
}
