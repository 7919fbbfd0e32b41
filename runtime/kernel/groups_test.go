package kernel

import (
	"strings"
	"testing"
)

// TestGroupArguments: where pages share summaries, tables have whole groups of columns, rows of scores are as long as there are groups, and a
// selection counts groups.
func TestGroupArguments(t *testing.T) {
	s := &Set{bundle: &Bundle{Model: Model{QueryHeads: 32, KVHeads: 8, HeadDim: 128, PageSize: 16, DType: "bf16", Rank: 1, BasisBits: 4, RecordBytes: 304,
		Combine: "share_average", Slots: 16, Candidates: 16, SummaryPages: 2, SinkPages: 1, RecentPages: 2, SoftmaxScale: 0.0884}}}
	m := &s.bundle.Model
	if got := [4]int{m.GroupPages(), int(m.Groups(64)), m.SinkGroups(), m.RecentGroups()}; got != [4]int{2, 32, 1, 2} {
		t.Errorf("pages a group, groups of 64 pages, sink and recent groups are %v", got)
	}
	if got := (Model{SinkPages: 3, RecentPages: 2}); got.GroupPages() != 1 || got.Groups(63) != 63 || got.SinkGroups() != 3 || got.RecentGroups() != 2 {
		t.Error("without groups, they are pages")
	}
	layer := func() *LayerArgs {
		c := KVCache{K: 4096, V: 4096, BlockTable: 4096, SeqLens: 4096, KBlockStride: 16 * 8 * 128, KTokenStride: 8 * 128, KHeadStride: 128,
			VBlockStride: 16 * 8 * 128, VTokenStride: 8 * 128, VHeadStride: 128, TableStride: 64, Batch: 2, KVHeads: 8, MaxPages: 64}
		r := &PageRerankArgs{Cache: c, Q: 4096, Scores: 4096, Candidates: 4096, CandidateCounts: 4096, Pages: 8192, Counts: 8192, Workspace: 4096,
			QBatchStride: 32 * 128, QHeadStride: 128, ScoreBatchStride: 32 * 32, ScoreHeadStride: 32, CandidatesBatchStride: 8 * 16, CandidatesListStride: 16,
			PagesBatchStride: 8 * 16, PagesListStride: 16, SoftmaxScale: 0.0884, CandidateSlots: 16, Slots: 16, SinkPages: 1, RecentPages: 2}
		return &LayerArgs{Rerank: r,
			Score: PageScoreArgs{Cache: c, Q: r.Q, Summaries: 4096, Scores: r.Scores, QBatchStride: r.QBatchStride, QHeadStride: r.QHeadStride,
				SummaryBlockStride: 8 * 304, SummaryHeadStride: 304, ScoreBatchStride: r.ScoreBatchStride, ScoreHeadStride: r.ScoreHeadStride, SoftmaxScale: r.SoftmaxScale},
			Select: PageSelectArgs{Scores: r.Scores, SeqLens: c.SeqLens, Pages: r.Candidates, Counts: r.CandidateCounts,
				ScoreBatchStride: r.ScoreBatchStride, ScoreHeadStride: r.ScoreHeadStride, PagesBatchStride: r.CandidatesBatchStride, PagesListStride: r.CandidatesListStride,
				Batch: 2, KVHeads: 8, MaxPages: 32, Slots: 16, SinkPages: 1, RecentPages: 2},
			Attend: PageAttendArgs{Cache: c, Q: r.Q, Pages: r.Pages, Counts: r.Counts, Out: 4096, QBatchStride: r.QBatchStride, QHeadStride: r.QHeadStride,
				OutBatchStride: r.QBatchStride, OutHeadStride: r.QHeadStride, PagesBatchStride: r.PagesBatchStride, PagesListStride: r.PagesListStride,
				SoftmaxScale: r.SoftmaxScale, Slots: 16}}
	}
	if err := s.CheckLayer(layer()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want   string
		change func(*LayerArgs)
	}{
		{"select.max_pages", func(a *LayerArgs) { a.Select.MaxPages = 64; a.Select.ScoreHeadStride = 64 }},
		{"score_head_stride", func(a *LayerArgs) { a.Score.ScoreHeadStride = 31 }},
		{"use a table with 64 columns", func(a *LayerArgs) { a.Score.Cache.MaxPages = 63 }},
		{"use a table with 64 columns", func(a *LayerArgs) { a.Rerank.Cache.MaxPages = 63 }},
		{"14 pages and fewer than the 16 slots", func(a *LayerArgs) { a.Rerank.CandidateSlots = 7 }},
		{"rank at most 16 candidates", func(a *LayerArgs) { a.Rerank.CandidateSlots = 17 }},
	} {
		a := layer()
		tt.change(a)
		if err := s.CheckLayer(a); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want a fault of %s", err, tt.want)
		}
	}
	summary := PageSummaryArgs{Cache: layer().Score.Cache, Summaries: 4096, BuiltLens: 4096, SummaryBlockStride: 8 * 304, SummaryHeadStride: 304}
	if err := s.CheckPageSummary(&summary); err != nil {
		t.Error(err)
	}
	summary.Cache.MaxPages = 61
	if err := s.CheckPageSummary(&summary); err == nil || !strings.Contains(err.Error(), "62 columns") {
		t.Errorf("%v, want a table of 62 columns", err)
	}
}
