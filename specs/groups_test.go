package specs

import "testing"

func TestProposals(t *testing.T) {
	for _, tc := range []struct {
		reason                                string
		page, tokens, budget                  int
		rerank                                float64
		sink, recent                          int
		groups, candidates, sinks, neighbours int
	}{
		{"each page has a summary", 16, 16, 2048, 2, 1, 1, 256, 256, 1, 1},
		{"half as many groups", 16, 32, 2048, 2, 1, 1, 128, 256, 1, 1},
		{"a quarter", 16, 64, 2048, 2, 1, 1, 64, 256, 1, 1},
		{"an odd number of pages is rounded up", 16, 32, 240, 1.5, 1, 1, 12, 24, 1, 1},
		{"the last group may hold one page: as many pages as slots are left", 16, 64, 64, 1.1, 1, 1, 2, 8, 1, 1},
		{"two recent pages may lie in two groups", 16, 32, 2048, 2, 3, 2, 128, 256, 2, 2},
		{"all that is kept is proposed", 16, 64, 80, 1.2, 1, 4, 3, 12, 1, 2},
		{"no recent pages", 16, 32, 2048, 2, 0, 0, 128, 256, 0, 0},
	} {
		s := New("x", 32, 8, 128)
		s.Cache.PageSize = tc.page
		s.Locks.SummaryTokens, s.Locks.BudgetTokens, s.Locks.Rerank = tc.tokens, tc.budget, tc.rerank
		s.Locks.AlwaysKeep = Keep{tc.sink, tc.recent}
		got := [4]int{s.Proposals(), s.Candidates(), s.SinkGroups(), s.RecentGroups()}
		if want := [4]int{tc.groups, tc.candidates, tc.sinks, tc.neighbours}; got != want {
			t.Errorf("%s: groups, candidates, sink and recent groups are %v, want %v", tc.reason, got, want)
		}
	}
}

// TestGroupRecord: the figures of records that serve two and four pages of 16 tokens at head dim 128.
func TestGroupRecord(t *testing.T) {
	for _, tc := range []struct{ tokens, rank, payload int }{
		{32, 1, 64 + 32 + 128 + 2*(1+1+32)},
		{32, 2, 128 + 64 + 128 + 2*(1+2+32)},
		{64, 4, 256 + 256 + 128 + 2*(1+4+64)},
	} {
		s := New("x", 32, 8, 128)
		s.Locks.SummaryTokens, s.Locks.Rank, s.Locks.Rerank = tc.tokens, tc.rank, 2
		if err := Validate(s); err != nil {
			t.Error(err)
		}
		pages := s.SummaryPages()
		d := Derive(s)
		if d.Summary.PayloadBytes != tc.payload || d.Summary.Percent != 100*float64(tc.payload)/float64(pages*d.KVPageBytes) {
			t.Errorf("%d tokens, rank %d: %d B, %.2f %% of %d pages; want %d B", tc.tokens, tc.rank, d.Summary.PayloadBytes, d.Summary.Percent, pages, tc.payload)
		}
	}
}
