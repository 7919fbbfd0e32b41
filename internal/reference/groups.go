package reference

import (
	"math"
	"slices"
)

// Groups of neighbouring pages share a summary where SummaryPages is above 1. Scores and proposals are then of groups. A group's record
// belongs to the block of its last page: requests that share that block share a prefix, so all of the group.

func (c *Cache) summaryPages() int { return max(c.SummaryPages, 1) }

// SummaryTokens is the tokens that share a summary.
func (c *Cache) SummaryTokens() int { return c.PageSize * c.summaryPages() }

// Groups is how many groups so many tokens occupy.
func (c *Cache) Groups(tokens int) int { return (tokens + c.SummaryTokens() - 1) / c.SummaryTokens() }

// GroupBlock is the block that a complete group's record belongs to, -1 where the table has none.
func (c *Cache) GroupBlock(request, group int) int32 {
	return c.Block(request, (group+1)*c.summaryPages()-1)
}

// GroupKeys decodes the first tokens of a group: [tokens, dim]. In a complete group keys of a page without a block are NaN, so that it
// has no score; of one that is still filling they are left out.
func (c *Cache) GroupKeys(request, group, head, tokens int) []float64 {
	if c.summaryPages() == 1 {
		return c.Keys(request, group, head, tokens)
	}
	var keys []float64
	whole := tokens == c.SummaryTokens()
	for page := group * c.summaryPages(); tokens > 0; page++ {
		n := min(tokens, c.PageSize)
		if c.Block(request, page) >= 0 {
			keys = append(keys, c.Keys(request, page, head, n)...)
		} else if whole {
			for range n * c.HeadDim {
				keys = append(keys, math.NaN())
			}
		}
		tokens -= n
	}
	return keys
}

// RerankValues puts exact scores of the pages of proposed groups in the place of the groups' estimates [head][group]: those pages, of a request
// of so many, and the combined value of each.
func (c *Cache) RerankValues(rule Combine, proposed []int32, pages int, estimates [][]float64, exact func(head int, page int32) float64) (candidates []int32, values []float64) {
	candidates = c.GroupPages(proposed, pages)
	mixed := make([][]float64, len(estimates))
	for h, row := range estimates {
		for _, page := range candidates {
			mixed[h] = append(mixed[h], exact(h, page))
		}
		for group, estimate := range row {
			if _, ok := slices.BinarySearch(proposed, int32(group)); !ok {
				mixed[h] = append(mixed[h], estimate)
			}
		}
	}
	return candidates, rule.Values(mixed)[:len(candidates)]
}

// GroupPages are the pages of groups of a request of so many pages.
func (c *Cache) GroupPages(groups []int32, pages int) []int32 {
	var list []int32
	for _, group := range groups {
		for page := int(group) * c.summaryPages(); page < min((int(group)+1)*c.summaryPages(), pages); page++ {
			list = append(list, int32(page))
		}
	}
	return list
}
