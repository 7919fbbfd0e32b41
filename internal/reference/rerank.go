package reference

import "math"

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
