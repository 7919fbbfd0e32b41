package kernel

import (
	"math"
	"strings"
	"testing"
)

func TestChecksNameTheField(t *testing.T) {
	s := load(t, &fakeDevice{info: h200})
	score := func(change func(a *PageScoreArgs)) error {
		a := scoreArgs()
		change(&a)
		return s.CheckPageScore(&a)
	}
	selectPages := func(change func(a *PageSelectArgs)) error {
		a := selectArgs()
		change(&a)
		return s.CheckPageSelect(&a)
	}
	attend := func(change func(a *PageAttendArgs)) error {
		a := attendArgs()
		change(&a)
		return s.CheckPageAttend(&a)
	}
	summary := func(change func(a *PageSummaryArgs)) error {
		a := summaryArgs()
		change(&a)
		return s.CheckPageSummary(&a)
	}
	for _, tc := range []struct {
		err  error
		want string // "" : legal
	}{
		{score(func(a *PageScoreArgs) {}), ""},
		{score(func(a *PageScoreArgs) { a.Cache.K = 0 }), "page_score: cache.k is null"},
		{score(func(a *PageScoreArgs) { a.Cache.V = 0 }), ""}, // scores read keys alone
		{score(func(a *PageScoreArgs) { a.Cache.K = 0x1008 }), "cache.k is 0x1008, it must be aligned to 16 bytes"},
		{score(func(a *PageScoreArgs) { a.Cache.BlockTable = 0 }), "cache.block_table is null"},
		{score(func(a *PageScoreArgs) { a.Cache.SeqLens = 2 }), "cache.seq_lens is 0x2"},
		{score(func(a *PageScoreArgs) { a.Cache.TableStride = 99 }), "cache.table_stride is 99, rows are at least 100 long"},
		{score(func(a *PageScoreArgs) { a.Cache.Batch, a.Cache.TableStride = 1, 0 }), ""}, // one row: the stride is never used
		{score(func(a *PageScoreArgs) { a.Cache.KTokenStride = 127 }), "cache.k_token_stride is 127"},
		{score(func(a *PageScoreArgs) { a.Cache.KTokenStride = 1028 }), "cache.k_token_stride is 1028, it must be a multiple of 8"},
		{score(func(a *PageScoreArgs) { a.Cache.KBlockStride = -16384 }), "cache.k_block_stride is -16384"},
		{score(func(a *PageScoreArgs) { a.Cache.KBlockStride = 1039680 / 2 }), ""},          // M2: K and V interleaved, blocks larger than a page
		{score(func(a *PageScoreArgs) { a.Cache.KVHeads, a.Cache.KHeadStride = 1, 3 }), ""}, // M2: one KV head with any stride
		{score(func(a *PageScoreArgs) { a.Cache.KVHeads = 0 }), "cache.kv_heads is 0"},
		{score(func(a *PageScoreArgs) { a.Cache.MaxPages = -5 }), "cache.max_pages is -5"},
		{score(func(a *PageScoreArgs) { a.Q = 4 }), "q is 0x4, it must be aligned to 16 bytes"},
		{score(func(a *PageScoreArgs) { a.QHeadStride = 100 }), "q_head_stride is 100, rows are at least 128 long"},
		{score(func(a *PageScoreArgs) { a.Summaries = 0 }), "summaries is null"},
		{score(func(a *PageScoreArgs) { a.SummaryHeadStride = 490 }), "summary_head_stride is 490, rows are at least 496 long"},
		{score(func(a *PageScoreArgs) { a.SummaryHeadStride = 500 }), "summary_head_stride is 500, it must be a multiple of 16"},
		{score(func(a *PageScoreArgs) { a.ScoreHeadStride = 64 }), "score_head_stride is 64, rows are at least 100 long"},
		{score(func(a *PageScoreArgs) { a.Scores = 0 }), "scores is null"},
		{score(func(a *PageScoreArgs) { a.SoftmaxScale = 0 }), "softmax_scale is 0"},
		{score(func(a *PageScoreArgs) { a.SoftmaxScale = float32(math.NaN()) }), "softmax_scale is NaN"},
		{score(func(a *PageScoreArgs) { a.LogitSoftcap = 30 }), "logit_softcap is 30, the kernel was specialised for 0"},
		{selectPages(func(a *PageSelectArgs) {}), ""},
		{selectPages(func(a *PageSelectArgs) { a.Slots = 0 }), "slots is 0"},
		{selectPages(func(a *PageSelectArgs) { a.Slots = 1 }), "slots is 1, 1 sink and 1 recent pages are always selected"},
		{selectPages(func(a *PageSelectArgs) { a.SinkPages, a.RecentPages = math.MaxInt32, math.MaxInt32 }), "slots is 128"},
		{selectPages(func(a *PageSelectArgs) { a.PagesListStride = 127 }), "pages_list_stride is 127, rows are at least 128 long"},
		{selectPages(func(a *PageSelectArgs) { a.Counts = 0 }), "counts is null"},
		{attend(func(a *PageAttendArgs) {}), ""},
		{attend(func(a *PageAttendArgs) { a.Counts = 0 }), "counts and pages must both be given"},
		{attend(func(a *PageAttendArgs) { a.Pages, a.Counts = 0, 0 }), ""},
		{attend(func(a *PageAttendArgs) { a.Cache.V = 0 }), "page_attend: cache.v is null"},
		{attend(func(a *PageAttendArgs) { a.Cache.VTokenStride = 12 }), "cache.v_token_stride is 12"},
		{attend(func(a *PageAttendArgs) { a.Out = 0 }), "out is null"},
		{attend(func(a *PageAttendArgs) { a.LSE = 2 }), "lse is 0x2"},
		{attend(func(a *PageAttendArgs) { a.Cache.HeadLens = 6 }), "cache.head_lens is 0x6"},
		{summary(func(a *PageSummaryArgs) {}), ""},
		{summary(func(a *PageSummaryArgs) { a.BuiltLens = 0 }), "built_lens is null"},
		{summary(func(a *PageSummaryArgs) { a.Workspace = 4 }), "workspace is 0x4"},
		{summary(func(a *PageSummaryArgs) { a.SummaryBlockStride = 0 }), "summary_block_stride is 0"},
	} {
		if tc.want == "" {
			if tc.err != nil {
				t.Errorf("legal arguments refused: %v", tc.err)
			}
			continue
		}
		contains(t, tc.want, tc.err, tc.want)
	}
}

// TestChecksOfEightBits asks for the scales that keys and values are read with, and for strides in steps of 16 codes.
func TestChecksOfEightBits(t *testing.T) {
	s := load(t, &fakeDevice{info: h200})
	s.bundle.Model.DType = fp8
	attend := func(change func(c *KVCache)) error {
		a := attendArgs()
		a.Cache.KScale, a.Cache.VScale = 0.5, 3
		change(&a.Cache)
		return s.CheckPageAttend(&a)
	}
	for _, tc := range []struct {
		err  error
		want string // "" : legal
	}{
		{attend(func(*KVCache) {}), ""},
		{attend(func(c *KVCache) { c.KScale = 0 }), "cache.k_scale is 0"},
		{attend(func(c *KVCache) { c.VScale = -1 }), "cache.v_scale is -1"},
		{attend(func(c *KVCache) { c.KScale = float32(math.NaN()) }), "cache.k_scale is NaN"},
		{attend(func(c *KVCache) { c.VScale = float32(math.Inf(1)) }), "cache.v_scale is +Inf"},
		{attend(func(c *KVCache) { c.KTokenStride = 136 }), "cache.k_token_stride is 136, it must be a multiple of 16"},
	} {
		if tc.want == "" && tc.err != nil || tc.want != "" && (tc.err == nil || !strings.Contains(tc.err.Error(), tc.want)) {
			t.Errorf("got %v, want %q", tc.err, tc.want)
		}
	}
}

func TestNilArguments(t *testing.T) {
	s, w := load(t, &fakeDevice{info: h200}), Workload{1600, 2}
	for _, err := range []error{s.PageSummary(nil, nil, w, 1), s.PageScore(nil, nil, w), s.PageSelect(nil, nil, w), s.PageAttend(nil, nil, w)} {
		contains(t, "nil", err, "arguments are nil")
	}
}

// TestLastPageLen is S5.
func TestLastPageLen(t *testing.T) {
	m := testBundle().Model
	for _, tc := range []struct {
		pages, last int
		want        int32
		says        string
	}{
		{0, 0, 0, ""}, {1, 1, 1, ""}, {1, 16, 16, ""}, {33, 8, 520, ""},
		{1, 17, 0, "last_page_len is 17, a page has 1 to 16 tokens"},
		{1, 0, 0, "last_page_len is 0"},
		{0, 3, 0, "without a page"},
		{-1, 3, 0, "negative"},
		{1 << 28, 16, 0, "2^31-1"},
	} {
		got, err := m.SeqLen(tc.pages, tc.last)
		if tc.says != "" {
			contains(t, tc.says, err, tc.says)
		} else if err != nil || got != tc.want {
			t.Errorf("%d pages, %d in the last: %d, %v, want %d", tc.pages, tc.last, got, err, tc.want)
		}
	}
	if err := m.CheckLengths([]int32{0, 1600, 7}, 100); err != nil {
		t.Errorf("legal lengths refused: %v", err)
	}
	contains(t, "too long", m.CheckLengths([]int32{3, 1601}, 100), "seq_lens[1] is 1601", "0 to 1600")
	contains(t, "negative", m.CheckLengths([]int32{-1}, 100), "seq_lens[0] is -1")
}
