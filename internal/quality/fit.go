package quality

import (
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
)

// fitted is a page score fitted to the complete pages of one KV head.
type fitted struct {
	Setting
	reference.PageScorer
	coarse   *reference.PageLocal // summaries of groups of pages, for the two-level scan
	together int                  // pages that are proposed together
}

// estimates reports whether the score is meant as a log-sum-exp.
func (f fitted) estimates() bool { return f.Scorer != Quest && f.Scorer != SinkAndRecent }

// fitting is one KV head and page size while its scores are made.
type fitting struct {
	Options
	aid
	l           *layer
	head, page  int
	keys, paged []float64 // [token, dim]: all, and those of complete pages
	prompt      int       // tokens before the queries
	summaries   []reference.Summary
	weights     *reference.Weights
	known       map[wanted][]reference.Summary
	out         []fitted
}

// wanted names summaries that several forms share.
type wanted struct {
	weighted bool
	pages    int
}

// fit makes every score that is asked for, of every form of the cache.
func (l *layer) fit(o Options, a aid, head, page int, stores map[int]store) (all []fitted) {
	made := map[int][]fitted{} // by the width of the keys that scores see
	for _, c := range o.caches() {
		seen := 0
		if c.pre() {
			seen = c.bits()
		}
		if made[seen] == nil {
			made[seen] = l.fitTo(o, a, head, page, stores[seen].keys)
		}
		for _, f := range made[seen] {
			if f.Scorer == ExactLSE && c.bits() > 0 { // it reads what attention reads, whatever summaries are built of
				if c.pre() {
					continue
				}
				f.PageScorer = codesOf{reference.NewExactLSE(stores[c.bits()].keys[:l.tokens/page*page*l.dim], l.dim, page), reference.NewKivi(l.dim, page, c.bits())}
			}
			f.Cache = c
			all = append(all, f)
		}
	}
	return all
}

// fitTo makes every score of a KV head's keys [token, dim].
func (l *layer) fitTo(o Options, a aid, head, page int, keys []float64) []fitted {
	f := &fitting{Options: o, aid: a, l: l, head: head, page: page, prompt: l.tokens - l.last, known: map[wanted][]reference.Summary{}}
	f.keys = keys
	f.paged = f.keys[:l.tokens/page*page*l.dim]
	f.summaries = f.summarised(wanted{false, 1})
	for _, m := range slices.Concat(Methods, Controls) {
		if slices.Contains(o.Methods, m) {
			f.method(m)
		}
	}
	return f.out
}

func (f *fitting) add(s Setting, p reference.PageScorer) {
	s.PageSize = f.page
	for _, scan := range f.scans(s.Scorer, s.Float) {
		one := fitted{Setting: s, PageScorer: p, together: 1}
		if form, err := reference.ParseForm(s.Form); err == nil && form.Together {
			one.together = form.Pages
		}
		if scan != FullScan {
			one.Scan = scan
		}
		if scan == TwoLevel {
			coarse := f.stored(reference.Form{Rank: 1, BasisBits: 4, CoefficientBits: 4, CentroidBits: 8, Weighted: s.Weights != "", Pages: groupPages})
			one.coarse = &coarse
		}
		f.out = append(f.out, one)
	}
}

func (f *fitting) method(m Method) {
	dim := f.l.dim
	switch m {
	case ExactLSE:
		f.add(Setting{Scorer: m}, reference.NewExactLSE(f.paged, dim, f.page))
	case PageLocal:
		f.plain(func(rank, bits int) {
			f.add(Setting{Scorer: m, Rank: rank, Bits: bits, Float: bits == 0}, reference.NewPageLocal(f.summaries, rank, bits))
		})
		for _, form := range f.Forms {
			f.add(f.setting(m, form), f.stored(form))
		}
	case PreRope:
		rope := reference.Rope{Theta: f.l.theta}
		f.plain(func(rank, bits int) {
			form := reference.PlainForm(rank, bits)
			f.add(Setting{Scorer: m, Rank: rank, Bits: bits, Float: bits == 0}, reference.NewPreRope(f.paged, dim, f.page, form, rope))
		})
	case Hybrid, Shared, GlobalHybrid, GlobalShared:
		f.shared(m)
	case Quest:
		f.add(Setting{Scorer: m}, reference.NewQuest(f.paged, dim, f.page))
	case MeanKey:
		f.add(Setting{Scorer: m, Bits: 8}, reference.NewMeanKey(f.summaries, true))
		if slices.Contains(f.Bits, 0) {
			f.add(Setting{Scorer: m, Float: true}, reference.NewMeanKey(f.summaries, false))
		}
	case SinkAndRecent:
		f.add(Setting{Scorer: m}, reference.SinkAndRecent{})
	}
}

func (f *fitting) setting(m Method, form reference.Form) Setting {
	s := Setting{Scorer: m, Rank: form.Rank, Bits: form.BasisBits, Form: form.String()}
	if form.Weighted {
		s.Weights = fromPrompt
		if f.calibration != nil {
			s.Weights = fromFile
		}
	}
	return s
}

// stored fits and stores one form of page_local.
func (f *fitting) stored(form reference.Form) reference.PageLocal {
	summaries := f.summarised(wanted{form.Weighted, form.Pages})
	rest := f.paged[len(summaries)*form.Pages*f.page*f.l.dim:]
	return reference.NewStored(summaries, form, f.l.dim, f.page, f.centre(), rest)
}

// centre is the mean key that 4-bit centroids are centred on.
func (f *fitting) centre() []float64 {
	if c := f.calibration; c != nil {
		return c.MeanKeys[f.head*f.l.dim : (f.head+1)*f.l.dim]
	}
	if f.prompt == 0 {
		return nil
	}
	return f.l.meanKey(f.head, f.prompt)
}

// summarised fits every page, or every group of pages, to the largest rank that is asked for.
func (f *fitting) summarised(w wanted) []reference.Summary {
	if s, ok := f.known[w]; ok {
		return s
	}
	top := 1
	for _, r := range f.Ranks {
		top = max(top, r)
	}
	for _, form := range f.Forms {
		top = max(top, form.Rank)
	}
	dim, page := f.l.dim, f.page*w.pages
	shape := reference.Shape{HeadDim: dim, PageSize: page, Rank: min(top, page-1), BasisBits: 16}
	out := []reference.Summary{}
	for at := 0; at+page*dim <= len(f.paged); at += page * dim {
		keys := f.paged[at : at+page*dim]
		if w.weighted {
			out = append(out, reference.SummariseWeighted(keys, shape, f.weigh()))
		} else {
			out = append(out, reference.Summarise(keys, shape))
		}
	}
	f.known[w] = out
	return out
}

// weigh are the weights of the calibration, or of the queries before those that are measured.
func (f *fitting) weigh() reference.Weights {
	if f.weights == nil {
		dim := f.l.dim
		var moment []float64
		if c := f.calibration; c != nil {
			moment = c.Moments[f.head*dim*dim : (f.head+1)*dim*dim]
		} else {
			moment = f.l.moment(f.head, f.l.last-f.l.scored(f.Queries))
		}
		w := reference.NewWeights(moment, dim)
		f.weights = &w
	}
	return *f.weights
}

// plain calls do for every rank and width of page_local.
func (o Options) plain(do func(rank, bits int)) {
	for _, bits := range o.Bits {
		for _, rank := range o.Ranks {
			do(rank, bits)
		}
	}
}

// shared adds the shared basis whose bytes come closest below those of each page-local form: fitted to the prompt, or to all of the
// other text for the global ones.
func (f *fitting) shared(m Method) {
	if f.prompt < f.page {
		return // nothing was complete before the queries
	}
	perPage := m == Hybrid || m == GlobalHybrid
	var all reference.SharedFit
	if m == Hybrid || m == Shared {
		all = reference.FitShared(f.keys, f.prompt, f.summaries, perPage)
	} else {
		other := fitting{Options: f.Options, l: f.other, head: f.head, page: f.page, known: map[wanted][]reference.Summary{}}
		other.keys = f.other.keys[f.head*f.other.tokens*f.other.dim : (f.head+1)*f.other.tokens*f.other.dim]
		other.paged = other.keys[:f.other.tokens/f.page*f.page*f.other.dim]
		fit := reference.FitShared(other.keys, f.other.tokens, other.summarised(wanted{false, 1}), perPage)
		all = fit.Rebase(f.keys, f.summaries)
	}
	var seen []int
	f.plain(func(rank, bits int) {
		if bits == 0 {
			return // nothing is stored that could be matched
		}
		r := all.RankWithin(reference.PlainForm(rank, bits).Bytes(f.l.dim, f.page))
		if r == 0 || slices.Contains(seen, r) {
			return
		}
		seen = append(seen, r)
		f.add(Setting{Scorer: m, Rank: r, Bits: 4}, all.Cut(r))
	})
}
