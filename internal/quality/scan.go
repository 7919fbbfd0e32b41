package quality

import (
	"math"
	"slices"
	"sort"

	"github.com/kvloom/kvloom/internal/reference"
)

// Scan is a way to look at the summaries in one step.
type Scan string

// The scans.
const (
	FullScan     Scan = "full"
	TwoLevel     Scan = "two_level"     // summaries of groups of pages first, then those of the pages in the best groups
	PreviousStep Scan = "previous_step" // the pages that were best before; all of them every few steps
)

// Scans are all of them.
var Scans = []Scan{FullScan, TwoLevel, PreviousStep}

// What the scans cost and look at.
const (
	groupPages  = 4    // pages that one coarse summary serves
	keptGroups  = 0.25 // of the groups
	keptPages   = 0.25 // of the pages
	refreshStep = 8    // steps from one full scan to the next
)

// proposal is what one list is chosen from: rows of scores [group][pages], which pages may be chosen (nil: all), and the part of
// the fine summaries that was read.
type proposal struct {
	rows    scores
	allowed []bool
	read    float64 // bytes a page
}

// propose applies the score's scan to one position's estimates, for every list of a rule. State belongs to one score and rule.
func (f fitted) propose(t truth, estimate, coarse scores, rule reference.Combine, state *scanState) []proposal {
	var out []proposal
	parts := rule.Rows(estimate, len(estimate))
	for i, rows := range parts {
		switch f.Scan {
		case TwoLevel:
			out = append(out, f.twoLevel(t, rows, rule.Rows(coarse, len(coarse))[i], rule))
		case PreviousStep:
			for len(state.last) < len(parts) {
				state.last = append(state.last, nil)
			}
			p, now := f.previousStep(t, rows, state.last[i], state.steps, rule)
			state.last[i] = now
			out = append(out, p)
		default:
			out = append(out, proposal{rows: rows, read: f.Bytes()})
		}
	}
	state.steps++
	return out
}

// twoLevel keeps the best groups by their coarse shares. A page outside them cannot be chosen; in the unit of the shares it stands
// with its coarse score. Groups with always-kept pages or with a page that no coarse summary covers are kept.
func (f fitted) twoLevel(t truth, rows, coarse scores, rule reference.Combine) proposal {
	groups := t.full / groupPages
	sums := make(scores, len(coarse))
	for g, row := range coarse {
		for j := range groups {
			sums[g] = append(sums[g], reference.LSE(row[j*groupPages:(j+1)*groupPages]))
		}
	}
	allowed := make([]bool, t.pages)
	for j := range allowed {
		allowed[j] = j >= groups*groupPages || j < t.budget.SinkPages || j >= t.pages-t.budget.RecentPages
	}
	kept := reference.Budget{Slots: int(math.Ceil(keptGroups * float64(groups)))}
	for _, j := range kept.Choose(rule.Values(sums)) {
		for i := range groupPages {
			allowed[int(j)*groupPages+i] = true
		}
	}
	return f.limited(rows, coarse, allowed, f.coarse.Bytes())
}

// previousStep keeps the best pages by what was last known of them, and those that were not yet known; every refreshStep steps all.
// What is known of the others stays in the unit of the shares.
func (f fitted) previousStep(t truth, rows, last scores, steps int, rule reference.Combine) (proposal, scores) {
	if last == nil || steps%refreshStep == 0 {
		return proposal{rows: rows, read: f.Bytes()}, rows
	}
	known := len(last[0])
	allowed := make([]bool, t.pages)
	for j := range allowed {
		allowed[j] = j >= known || j < t.budget.SinkPages || j >= t.pages-t.budget.RecentPages
	}
	kept := reference.Budget{Slots: int(math.Ceil(keptPages * float64(known)))}
	for _, j := range kept.Choose(rule.Values(last)) {
		allowed[j] = true
	}
	old := make(scores, len(rows))
	for g := range rows {
		old[g] = append(slices.Clone(last[g]), rows[g][known:]...)
	}
	p := f.limited(rows, old, allowed, 0)
	return p, p.rows
}

// limited has the fine scores of allowed pages and other scores for the rest.
func (f fitted) limited(rows, otherwise scores, allowed []bool, bytes float64) proposal {
	mixed, fine := make(scores, len(rows)), 0
	for _, yes := range allowed {
		if yes {
			fine++
		}
	}
	for g, row := range rows {
		mixed[g] = slices.Clone(row)
		for j, yes := range allowed {
			if !yes {
				mixed[g][j] = otherwise[g][j]
			}
		}
	}
	return proposal{rows: mixed, allowed: allowed, read: bytes + f.Bytes()*float64(fine)/float64(len(allowed))}
}

// scanState is what a scan remembers from step to step of one KV head.
type scanState struct {
	steps int
	last  []scores // of each list
}

// scans are the scans that a score is measured with: only page_local's summaries have coarse ones.
func (o Options) scans(m Method, float bool) []Scan {
	if m != PageLocal || float || len(o.Scans) == 0 {
		return []Scan{FullScan}
	}
	out := slices.Clone(o.Scans)
	sort.SliceStable(out, func(i, j int) bool { return slices.Index(Scans, out[i]) < slices.Index(Scans, out[j]) })
	return slices.Compact(out)
}

// factors are the rerank factors that a score is measured with: the exact score has nothing to gain, and no score nothing to propose.
func (o Options) factors(m Method) []float64 {
	if m == ExactLSE || m == SinkAndRecent || len(o.Rerank) == 0 {
		return []float64{1}
	}
	return o.Rerank
}
