package verify

import (
	"slices"

	"github.com/kvloom/kvloom/internal/reference"
)

// Groups is one request's live groups of pages that share a summary, pages where each has its own.
func (p *Problem) Groups(request int) int { return p.Cache.Groups(int(p.Cache.SeqLens[request])) }

// maxGroups is the columns of a row of scores.
func (p *Problem) maxGroups() int { return p.Cache.MaxPages / p.Spec.SummaryPages() }

// proposals is what page_select proposes to a rerank that keeps the problem's slots: groups, and those that are always among them.
func (p *Problem) proposals() reference.Budget {
	if p.Spec.SummaryPages() == 1 {
		b := p.Budget
		b.Slots = b.Candidates(p.Spec.Locks.Rerank)
		return b
	}
	return reference.Budget{Slots: p.Spec.ProposalsFor(p.Slots), SinkPages: p.Spec.SinkGroups(), RecentPages: p.Spec.RecentGroups()}
}

// rerankValues combines exact scores of the pages of proposed groups with the estimates [head][group] of the others: the pages, and the
// value of each.
func (p *Problem) rerankValues(request int, proposed []int32, estimates [][]float64, exact func(head int, page int32) float64) (pages []int32, values []float64) {
	pages = p.Cache.GroupPages(proposed, p.Pages(request))
	mixed := make([][]float64, len(estimates))
	for g, row := range estimates {
		for _, page := range pages {
			mixed[g] = append(mixed[g], exact(g, page))
		}
		for group, estimate := range row {
			if _, ok := slices.BinarySearch(proposed, int32(group)); !ok {
				mixed[g] = append(mixed[g], estimate)
			}
		}
	}
	return pages, p.Rule.Values(mixed)[:len(pages)]
}
