package verify

import (
	"math"

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

// rerankValues scores the pages of proposed groups exactly for the query heads from firstHead on, whose estimates are [head][group]: the pages,
// the value of each, and how far apart two of those may be for scores within their bounds.
func (p *Problem) rerankValues(request, firstHead int, proposed []int32, estimates [][]float64) (pages []int32, values []float64, bound float64) {
	pages, values = p.Cache.RerankValues(p.Rule, proposed, p.Pages(request), estimates, func(g int, page int32) float64 {
		tokens := p.Cache.TokensIn(int(page), int(p.Cache.SeqLens[request]))
		exact := reference.PageLSE(p.Q.Of(request, firstHead+g), p.Cache.Keys(request, int(page), (firstHead+g)/p.Group, tokens), p.Logits)
		if x := math.Abs(exact); !math.IsInf(x, 0) {
			bound = max(bound, x)
		}
		return exact
	})
	return pages, values, 4 * ScoreBound(bound)
}
