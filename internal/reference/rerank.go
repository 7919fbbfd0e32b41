package reference

import (
	"math"
	"slices"

	"github.com/kvloom/kvloom/specs"
)

// Candidates is how many pages an exact rerank looks at: ceil(factor x slots).
func (b Budget) Candidates(factor float64) int {
	return max(b.Slots, int(math.Ceil(factor*float64(b.Slots)*(1-1e-12))))
}

// Rerank chooses one list from estimates and exact scores [group][pages]: the best Candidates(factor) pages by the estimates'
// combined values are scored exactly, the exact scores replace the estimates inside the shares (so the unit that shares are measured
// against changes with them, and the other pages keep their estimated part of it), and the best Slots of the candidates are chosen.
// Sink and recent pages are among both. Allowed nil means all pages may be candidates; forced ones always are. Ties go to the lower
// index; ascending.
func (b Budget) Rerank(rule Combine, estimate, exact [][]float64, factor float64, allowed []bool) []int32 {
	wide := b
	wide.Slots = b.Candidates(factor)
	values := rule.Values(estimate)
	for j := range values {
		if allowed != nil && !allowed[j] {
			values[j] = math.NaN()
		}
	}
	candidates := wide.Choose(values)
	if factor > 1 {
		replaced := make([][]float64, len(estimate))
		for g, row := range estimate {
			replaced[g] = append([]float64{}, row...)
			for _, j := range candidates {
				replaced[g][j] = exact[g][j]
			}
		}
		values = rule.Values(replaced)
	}
	of := make([]float64, len(candidates))
	for i, j := range candidates {
		of[i] = values[j]
	}
	chosen := b.Choose(of) // the first candidates are the sink pages, the last the recent ones
	for i, at := range chosen {
		chosen[i] = candidates[at]
	}
	return chosen
}

// RerankGroups is Rerank where summaries are of groups of pages: the log-sum-exp of a group's estimates is the group's, groups are proposed, of
// as many pages, and exact scores of their pages replace the groups' estimates.
func (b Budget) RerankGroups(rule Combine, estimate, exact [][]float64, factor float64, pages int) []int32 {
	s := specs.Spec{Cache: specs.Cache{PageSize: 1}, Locks: specs.Locks{SummaryTokens: pages, Rerank: factor,
		AlwaysKeep: specs.Keep{SinkPages: b.SinkPages, RecentPages: b.RecentPages}}}
	groups := make([][]float64, len(estimate))
	for g, row := range estimate {
		for group := range slices.Chunk(row, pages) {
			groups[g] = append(groups[g], LSE(group))
		}
	}
	proposed := Budget{s.ProposalsFor(b.Slots), s.SinkGroups(), s.RecentGroups()}.Choose(rule.Values(groups))
	candidates, values := (&Cache{SummaryPages: pages}).RerankValues(rule, proposed, len(estimate[0]), groups,
		func(g int, page int32) float64 { return exact[g][page] })
	chosen := b.Choose(values)
	for i, at := range chosen {
		chosen[i] = candidates[at]
	}
	return chosen
}
