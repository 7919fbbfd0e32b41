package kernel

import "github.com/kvloom/kvloom/internal/groups"

// Groups of neighbouring pages share a summary in bundles of a spec whose locks.summary_tokens are above the page size. A group's record lies
// at the block of its last page, so requests may share blocks of a common prefix and no others. PageScore writes scores of groups [batch,
// q head, group]; PageSelect is given those, with MaxPages, Slots, SinkPages and RecentPages that count groups, and proposes groups; PageRerank
// reads those, scores each of their pages exactly, and chooses pages.

// GroupPages is the pages that share a summary: 1 where each has its own.
func (m Model) GroupPages() int { return max(m.SummaryPages, 1) }

// Groups is the groups of so many columns of a block table, whose rows are whole groups: pages, where each has a summary of its own.
func (m Model) Groups(maxPages int32) int32 { return maxPages / int32(m.GroupPages()) }

// SinkGroups is what PageSelect of a model that reranks is given for SinkPages: the groups that hold them.
func (m Model) SinkGroups() int { return groups.First(m.SinkPages, m.GroupPages()) }

// RecentGroups is what PageSelect of a model that reranks is given for RecentPages: the groups that hold them, wherever in a group they begin.
func (m Model) RecentGroups() int { return groups.Last(m.RecentPages, m.GroupPages()) }

// selectsGroups checks that a selection counts groups as what reads the same scores does. Where each page has a summary of its own, it may look at
// fewer pages than the table holds.
func (c *checker) selectsGroups(m *Model, x *PageSelectArgs, k *KVCache) {
	if m.SummaryPages > 0 && x.MaxPages != m.Groups(k.MaxPages) {
		c.fail("select.max_pages", "is %d, a table of %d pages has %d groups of %d", x.MaxPages, k.MaxPages, m.Groups(k.MaxPages), m.SummaryPages)
	}
}

// groups checks that a table's rows are whole groups.
func (c *checker) groups(m *Model, k *KVCache) {
	if n := m.GroupPages(); int(k.MaxPages)%n != 0 {
		c.fail("cache.max_pages", "is %d, summaries are of %d pages: use a table with %d columns", k.MaxPages, n, (int(k.MaxPages)+n-1)/n*n)
	}
}
