package kernel

import (
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// TestRerankArguments: the first fault of a rerank's arguments is named, and a layer's rerank must read what its select writes and write
// what its attend reads.
func TestRerankArguments(t *testing.T) {
	good := func() *PageRerankArgs {
		c := KVCache{K: 4096, V: 4096, BlockTable: 4096, SeqLens: 4096, KBlockStride: 16 * 8 * 128, KTokenStride: 8 * 128, KHeadStride: 128,
			VBlockStride: 16 * 8 * 128, VTokenStride: 8 * 128, VHeadStride: 128, TableStride: 64, Batch: 2, KVHeads: 8, MaxPages: 64}
		return &PageRerankArgs{Cache: c, Q: 4096, Scores: 4096, Candidates: 4096, CandidateCounts: 4096, Pages: 4096, Counts: 4096, Workspace: 4096,
			QBatchStride: 32 * 128, QHeadStride: 128, ScoreBatchStride: 32 * 64, ScoreHeadStride: 64, CandidatesBatchStride: 8 * 32, CandidatesListStride: 32,
			PagesBatchStride: 8 * 16, PagesListStride: 16, SoftmaxScale: 0.0884, CandidateSlots: 32, Slots: 16, SinkPages: 1, RecentPages: 1}
	}
	s := &Set{bundle: &Bundle{Model: Model{QueryHeads: 32, KVHeads: 8, HeadDim: 128, PageSize: 16, DType: "bf16", Rank: 1, BasisBits: 4, RecordBytes: 256,
		Combine: "share_average", Slots: 16, Candidates: 32, SinkPages: 1, RecentPages: 1, SoftmaxScale: 0.0884}}}
	if err := s.CheckPageRerank(good()); err != nil {
		t.Fatal(err)
	}
	if err := s.CheckPageRerank(nil); err == nil {
		t.Error("no arguments are no error")
	}
	for _, tt := range []struct {
		want   string
		change func(*PageRerankArgs)
	}{
		{"candidates", func(a *PageRerankArgs) { a.Candidates = 0 }},
		{"candidate_slots", func(a *PageRerankArgs) { a.CandidateSlots = 8 }},
		{"slots", func(a *PageRerankArgs) { a.SinkPages = 17 }},
		{"pages_list_stride", func(a *PageRerankArgs) { a.PagesListStride = 8 }},
		{"candidates_list_stride", func(a *PageRerankArgs) { a.CandidatesListStride = 16 }},
		{"scores", func(a *PageRerankArgs) { a.Scores = device.Ptr(3) }},
		{"logit_softcap", func(a *PageRerankArgs) { a.LogitSoftcap = 30 }},
	} {
		a := good()
		tt.change(a)
		if err := s.CheckPageRerank(a); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want a fault of %s", err, tt.want)
		}
	}
	both := func(change func(*PageRerankAttendArgs)) error {
		a := &PageRerankAttendArgs{Rerank: *good(), Out: 4096, OutBatchStride: 32 * 128, OutHeadStride: 128}
		change(a)
		return s.CheckPageRerankAttend(a)
	}
	for _, tt := range []struct {
		want   string
		change func(*PageRerankAttendArgs)
	}{
		{"out", func(a *PageRerankAttendArgs) { a.Out = 0 }},
		{"out_head_stride", func(a *PageRerankAttendArgs) { a.OutHeadStride = 64 }},
		{"lse", func(a *PageRerankAttendArgs) { a.LSE = 2 }},
		{"candidates", func(a *PageRerankAttendArgs) { a.Rerank.Candidates = 0 }},
	} {
		if err := both(tt.change); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want a fault of %s", err, tt.want)
		}
	}
	if err := errors.Join(both(func(*PageRerankAttendArgs) {}), both(func(a *PageRerankAttendArgs) { a.LSE = 4096 })); err != nil {
		t.Error(err)
	}
	layer := func() *LayerArgs {
		a := &LayerArgs{Rerank: good()}
		r := a.Rerank
		r.Pages, r.Counts = 8192, 8192
		a.Score = PageScoreArgs{Cache: r.Cache, Q: r.Q, Summaries: 4096, Scores: r.Scores, QBatchStride: r.QBatchStride, QHeadStride: r.QHeadStride,
			SummaryBlockStride: 8 * 256, SummaryHeadStride: 256, ScoreBatchStride: r.ScoreBatchStride, ScoreHeadStride: r.ScoreHeadStride, SoftmaxScale: r.SoftmaxScale}
		a.Select = PageSelectArgs{Scores: r.Scores, SeqLens: r.Cache.SeqLens, Pages: r.Candidates, Counts: r.CandidateCounts,
			ScoreBatchStride: r.ScoreBatchStride, ScoreHeadStride: r.ScoreHeadStride, PagesBatchStride: r.CandidatesBatchStride, PagesListStride: r.CandidatesListStride,
			Batch: 2, KVHeads: 8, MaxPages: 64, Slots: 32, SinkPages: 1, RecentPages: 1}
		a.Attend = PageAttendArgs{Cache: r.Cache, Q: r.Q, Pages: r.Pages, Counts: r.Counts, Out: 4096, QBatchStride: r.QBatchStride, QHeadStride: r.QHeadStride,
			OutBatchStride: r.QBatchStride, OutHeadStride: r.QHeadStride, PagesBatchStride: r.PagesBatchStride, PagesListStride: r.PagesListStride,
			SoftmaxScale: r.SoftmaxScale, Slots: 16}
		return a
	}
	if err := s.CheckLayer(layer()); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		want   string
		change func(*LayerArgs)
	}{
		{"rerank", func(a *LayerArgs) { a.Rerank = nil }},
		{"rerank.candidates", func(a *LayerArgs) { a.Rerank.Candidates = 12288 }},
		{"rerank.scores", func(a *LayerArgs) { a.Rerank.Scores = 12288 }},
		{"rerank.masses", func(a *LayerArgs) { a.Rerank.Masses = 12288 }},
		{"attend.pages", func(a *LayerArgs) { a.Attend.Pages = a.Select.Pages }},
	} {
		a := layer()
		tt.change(a)
		if err := s.CheckLayer(a); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%v, want a fault of %s", err, tt.want)
		}
	}
}

// TestDecodeLayerReranks: a layer of a model that reranks is four launches, three where the bundle has rerank and attend in one, two where
// it has all but the scores in one and its blocks run at once; arguments are those of all; all but the first may start early.
func TestDecodeLayerReranks(t *testing.T) {
	for _, tc := range []struct {
		works []string // beside those of every bundle
		want  []bool
	}{
		{[]string{PageRerank}, []bool{false, true, true, true}},
		{[]string{PageRerank, PageRerankAttend}, []bool{false, true, true}},
		{[]string{PageRerank, PageRerankAttend, PageSelectRerankAttend}, []bool{false, true}},
	} {
		b := testBundle()
		b.Model.Candidates = 256
		for _, work := range tc.works {
			k := b.Kernels[0]
			k.Family, k.Entry = work, work
			b.Kernels = append(b.Kernels, k)
			b.Works = append(b.Works, Work{Name: work, Points: []Point{}, Default: len(b.Kernels) - 1, Portable: -1})
		}
		for i := range b.Kernels {
			b.Kernels[i].Geometry.Dependent = b.Kernels[i].Family != PageScore
			if b.Kernels[i].Family == PageRerankAttend {
				b.Kernels[i].Geometry.Workspace = nil
			}
			if b.Kernels[i].Family == PageSelectRerankAttend {
				b.Kernels[i].Geometry.Grid[0] = launch.Extent{Of: []launch.Quantity{launch.Lists}, Times: 8, Per: 1}
			}
		}
		d := &fakeDevice{info: h200, all: make([]device.Launch, 0, 8)}
		s, err := b.Load(d)
		if err != nil {
			t.Fatal(err)
		}
		a := layerArgs()
		a.Select.Pages, a.Select.Counts, a.Select.Slots, a.Select.PagesBatchStride, a.Select.PagesListStride = 0xa000, 0xb000, 256, 2048, 256
		a.Rerank = &PageRerankArgs{Cache: a.Score.Cache, Q: a.Score.Q, Scores: a.Score.Scores, Candidates: a.Select.Pages, CandidateCounts: a.Select.Counts,
			Pages: a.Attend.Pages, Counts: a.Attend.Counts, Workspace: 0xc000, QBatchStride: 4096, QHeadStride: 128, ScoreBatchStride: 3200, ScoreHeadStride: 100,
			CandidatesBatchStride: 2048, CandidatesListStride: 256, PagesBatchStride: 1024, PagesListStride: 128, SoftmaxScale: 0.0884,
			CandidateSlots: 256, Slots: 128, SinkPages: 1, RecentPages: 1}
		decode := func() {
			if err := s.DecodeLayer(nil, &a, Workload{131072, 1}); err != nil {
				t.Fatal(err)
			}
		}
		decode()
		var got []bool
		for _, l := range d.all {
			got = append(got, l.Dependent)
		}
		if diff := cmp.Diff(tc.want, got); diff != "" {
			t.Errorf("%v (-want +got):\n%s", tc.works, diff)
		}
		d.all = nil
		if n := testing.AllocsPerRun(20, decode); n > 0 {
			t.Errorf("%v: a layer allocates %g times", tc.works, n)
		}
	}
}
