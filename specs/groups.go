package specs

import (
	"math"

	"github.com/kvloom/kvloom/internal/groups"
)

// Summaries of several pages: a summary of SummaryTokens tokens serves a group of neighbouring pages, by their places in the request. Groups
// are scored and proposed; the exact rerank scores their pages one by one.

// SummaryTokens is the tokens that share a summary.
func (s *Spec) SummaryTokens() int {
	if s.Locks.SummaryTokens == 0 { // made in Go, without defaults
		return s.Cache.PageSize
	}
	return s.Locks.SummaryTokens
}

// SummaryPages is the pages that share a summary, a group; 1 where each has its own.
func (s *Spec) SummaryPages() int { return s.SummaryTokens() / s.Cache.PageSize }

// Groups is how many groups so many tokens occupy: pages, where each has a summary of its own.
func (s *Spec) Groups(tokens int) int { return (tokens + s.SummaryTokens() - 1) / s.SummaryTokens() }

// Proposals is how many groups a list page_select proposes to the exact rerank: as hold ceil(rerank x slots) pages, and always the slots' number
// of pages, although the last group may be short of some. Without a rerank, the slots.
func (s *Spec) Proposals() int { return s.ProposalsFor(s.Slots()) }

// ProposalsFor is Proposals of lists of k pages.
func (s *Spec) ProposalsFor(k int) int {
	pages := s.SummaryPages()
	wanted := max(k, int(math.Ceil(s.Locks.Rerank*float64(k)*(1-1e-12))))
	if pages == 1 {
		return wanted
	}
	return max((wanted+pages-1)/pages, (k+2*pages-2)/pages, s.SinkGroups()+s.RecentGroups())
}

// SinkGroups is the groups that hold the first pages that are always kept.
func (s *Spec) SinkGroups() int { return groups.First(s.Locks.AlwaysKeep.SinkPages, s.SummaryPages()) }

// RecentGroups is the groups that hold the last pages that are always kept, wherever in a group they begin.
func (s *Spec) RecentGroups() int {
	return groups.Last(s.Locks.AlwaysKeep.RecentPages, s.SummaryPages())
}
