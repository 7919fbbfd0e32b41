package kernel

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// dropSet is a set of a model whose DropKV kernels were never loaded: enough for checks.
func dropSet() *Set {
	return &Set{bundle: &Bundle{Spec: "m", Model: Model{QueryHeads: 8, KVHeads: 2, HeadDim: 64, PageSize: 16, DType: "bf16",
		Drop: DropModel{Rule: "dropkv", Window: 8, Pool: "max", PoolWidth: 11, Precision: "exact", Eps: 1e-6}}}}
}

func contiguous() KVCache {
	return KVCache{K: 1 << 20, V: 2 << 20, SeqLens: 256, KBlockStride: 64 * 2 * 1024, KTokenStride: 128, KHeadStride: 64,
		VBlockStride: 64 * 2 * 1024, VTokenStride: 128, VHeadStride: 64, Batch: 2, KVHeads: 2, MaxPages: 64}
}

func dropScoreArgs() *DropScoreArgs {
	return &DropScoreArgs{Cache: contiguous(), Q: 4 << 20, A: 5 << 20, LSE: 6 << 20, Scores: 7 << 20, QBatchStride: 8 * 8 * 64, QHeadStride: 8 * 64, QRowStride: 64,
		ABatchStride: 8 * 8 * 64, AHeadStride: 8 * 64, ARowStride: 64, LSEBatchStride: 64, LSEHeadStride: 8, ScoreBatchStride: 2048, ScoreHeadStride: 1024, SoftmaxScale: 0.125, Eps: 1e-6}
}

func dropSelectArgs() *DropSelectArgs {
	return &DropSelectArgs{Values: 1 << 20, SeqLens: 256, Indices: 2 << 20, Counts: 512, ValueBatchStride: 2048, ValueHeadStride: 1024, IndexBatchStride: 200, IndexHeadStride: 100,
		Budget: DropBudget{Ratio: 0.05, Window: 8}, Batch: 2, KVHeads: 2, MaxTokens: 1024, Slots: 52}
}

func dropCompactArgs() *DropCompactArgs {
	to := contiguous()
	to.K, to.V = 8<<20, 9<<20
	return &DropCompactArgs{Source: contiguous(), Target: to, Indices: 3 << 20, Counts: 512, HeadLens: 1024, SeqLens: 2048, IndexBatchStride: 200, IndexHeadStride: 100, Slots: 100}
}

// TestCheckDrop plants one fault an argument struct: each is named.
func TestCheckDrop(t *testing.T) {
	s := dropSet()
	for name, err := range map[string]error{"score": s.CheckDropScore(dropScoreArgs()), "select": s.CheckDropSelect(dropSelectArgs()), "compact": s.CheckDropCompact(dropCompactArgs())} {
		if err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
	score := func(change func(*DropScoreArgs)) error { a := dropScoreArgs(); change(a); return s.CheckDropScore(a) }
	choose := func(change func(*DropSelectArgs)) error {
		a := dropSelectArgs()
		change(a)
		return s.CheckDropSelect(a)
	}
	compact := func(change func(*DropCompactArgs)) error {
		a := dropCompactArgs()
		change(a)
		return s.CheckDropCompact(a)
	}
	fused := func(change func(*DropObserveScoreArgs)) error {
		a := &DropObserveScoreArgs{Cache: contiguous(), Q: 4 << 20, Scores: 7 << 20, Workspace: 8 << 20, QBatchStride: 8 * 8 * 64, QHeadStride: 8 * 64, QRowStride: 64,
			ScoreBatchStride: 2048, ScoreHeadStride: 1024, SoftmaxScale: 0.125, Eps: 1e-6}
		change(a)
		return s.CheckDropObserveScore(a)
	}
	if err := fused(func(*DropObserveScoreArgs) {}); err != nil {
		t.Errorf("observe and score: %v", err)
	}
	pool := DropPoolArgs{Scores: 1 << 20, Pooled: 1 << 20, SeqLens: 256, ScoreBatchStride: 2048, ScoreHeadStride: 1024, PooledBatchStride: 2048, PooledHeadStride: 1024, Batch: 2, KVHeads: 2, MaxTokens: 1024}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"misaligned keys", score(func(a *DropScoreArgs) { a.Cache.K += 2 }), "cache.k"},
		{"odd token stride", score(func(a *DropScoreArgs) { a.Cache.VTokenStride = 130 }), "cache.v_token_stride"},
		{"short head stride", score(func(a *DropScoreArgs) { a.Cache.KHeadStride = 32 }), "cache.k_head_stride"},
		{"no queries", score(func(a *DropScoreArgs) { a.Q = 0 }), "q is null"},
		{"short scores", score(func(a *DropScoreArgs) { a.ScoreHeadStride = 1000 }), "score_head_stride"},
		{"no eps", score(func(a *DropScoreArgs) { a.Eps = 0 }), "eps is 0"},
		{"a misaligned", score(func(a *DropScoreArgs) { a.A += 2 }), "a is 0x500002"},
		{"no workspace", fused(func(a *DropObserveScoreArgs) { a.Workspace = 0 }), "workspace is null"},
		{"values misaligned", fused(func(a *DropObserveScoreArgs) { a.Cache.V += 8 }), "cache.v"},
		{"negative eps", fused(func(a *DropObserveScoreArgs) { a.Eps = -1 }), "eps is -1"},
		{"softcap", score(func(a *DropScoreArgs) { a.LogitSoftcap = 30 }), "logit_softcap"},
		{"another window", choose(func(a *DropSelectArgs) { a.Budget.Window = 65 }), "budget.window is 65"},
		{"ratio above 1", choose(func(a *DropSelectArgs) { a.Budget.Ratio = 1.5 }), "budget.ratio is 1.5"},
		{"ratio 0 without tokens", choose(func(a *DropSelectArgs) { a.Budget.Ratio = 0 }), "budget.tokens is 0"},
		{"slots that drop tokens", choose(func(a *DropSelectArgs) { a.Slots = 51 }), "slots is 51, a head may keep 52"},
		{"layer outside", choose(func(a *DropSelectArgs) { a.Budget.Layer, a.Budget.Layers = 4, 4 }), "budget.layer is 4 of 4"},
		{"no values", choose(func(a *DropSelectArgs) { a.Values = 0 }), "values is null"},
		{"overlap", compact(func(a *DropCompactArgs) { a.Target.K = a.Source.K }), "in_place is not set"},
		{"in place elsewhere", compact(func(a *DropCompactArgs) { a.InPlace = 1 }), "in_place is set"},
		{"lengths in place", compact(func(a *DropCompactArgs) { a.SeqLens = a.Source.SeqLens }), "seq_lens is the source's"},
		{"too small", compact(func(a *DropCompactArgs) { a.Target.MaxPages = 6 }), "slots is 100, the target has room for 96"},
		{"a table for none", compact(func(a *DropCompactArgs) { a.Table = 4096 }), "table is given"},
		{"pool in place", s.CheckDropPool(&pool), "pooled is the scores"},
		{"nil", s.CheckDropObserve(nil), "arguments are nil"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, tc.err, tc.want)
		}
	}
}

// TestDropChecks8Bits: rows of 8 bits are aligned in elements of 1 byte, and their scales are numbers that both caches share.
func TestDropChecks8Bits(t *testing.T) {
	s := dropSet()
	s.bundle.Model.DType = fp8
	compact := func(change func(*DropCompactArgs)) error {
		a := dropCompactArgs()
		for _, c := range []*KVCache{&a.Source, &a.Target} {
			c.KScale, c.VScale = 0.5, 0.25
		}
		change(a)
		return s.CheckDropCompact(a)
	}
	if err := compact(func(*DropCompactArgs) {}); err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no scale", compact(func(a *DropCompactArgs) { a.Source.KScale = 0 }), "cache.k_scale is 0"},
		{"another scale", compact(func(a *DropCompactArgs) { a.Target.VScale = 1 }), "target.k_scale is 0.5 beside v_scale 1"},
		{"rows of 8 bytes", compact(func(a *DropCompactArgs) { a.Source.BlockTable, a.Source.KTokenStride = 0, 136 }), "cache.k_token_stride is 136, it must be a multiple of 16"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: error %v, want one with %q", tc.name, tc.err, tc.want)
		}
	}
}

// TestStreamingNeedsNoValues: the streaming rule has no scores to give.
func TestStreamingNeedsNoValues(t *testing.T) {
	s := dropSet()
	s.bundle.Model.Drop.Rule = "streaming"
	a := dropSelectArgs()
	a.Values, a.ValueBatchStride, a.ValueHeadStride = 0, 0, 0
	if err := s.CheckDropSelect(a); err != nil {
		t.Error(err)
	}
}

func TestDropSlots(t *testing.T) {
	for _, tc := range []struct {
		b      DropBudget
		tokens int
		heads  int
		want   int
		reason string
	}{
		{DropBudget{Ratio: 0.05, Window: 8}, 131072, 1, 6554, "uniform"},
		{DropBudget{Ratio: 0.05, Window: 8}, 131072, 8, 52432, "adaptive: one head may take all"},
		{DropBudget{Ratio: 0.5, Window: 8}, 1000, 8, 1000, "never more than there are"},
		{DropBudget{Tokens: 108, Window: 8, Layers: 5}, 4096, 1, 208, "pyramid: twice the mean beside the window"},
		{DropBudget{Tokens: 1 << 30, Window: 8}, 100, 1, 100, "k > n"},
	} {
		if got := tc.b.Slots(tc.tokens, tc.heads); got != tc.want {
			t.Errorf("%s: %d slots, want %d", tc.reason, got, tc.want)
		}
		for n := 1; n <= tc.tokens; n = n*3/2 + 1 {
			if tc.heads == 1 && tc.b.Keep(n) > tc.want {
				t.Errorf("%s: %d of %d tokens do not fit %d slots", tc.reason, tc.b.Keep(n), n, tc.want)
			}
		}
	}
}

func TestPlacePages(t *testing.T) {
	table := []int32{5, 6, 7, 9, 5, 6, 8, -1}
	own := func(b int32) bool { return b > 6 }
	got, taken, err := PlacePages(table, 4, []int{3, 4}, own, []int32{20, 21, 22, 23, 24})
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]int32{20, 21, 7, -1, 22, 23, 8, -1}, got); diff != "" || taken != 4 {
		t.Errorf("%d taken (-want +got):\n%s", taken, diff)
	}
	if _, _, err := PlacePages(table, 4, []int{3, 4}, own, []int32{20}); err == nil {
		t.Error("one free block served four shared pages")
	}
}

// TestCheckDropAllocatesNothing: checks run at every launch.
func TestCheckDropAllocatesNothing(t *testing.T) {
	s, score, choose, compact := dropSet(), dropScoreArgs(), dropSelectArgs(), dropCompactArgs()
	if n := testing.AllocsPerRun(100, func() {
		if s.CheckDropScore(score) != nil || s.CheckDropSelect(choose) != nil || s.CheckDropCompact(compact) != nil {
			t.Error("a check failed")
		}
	}); n > 0 {
		t.Errorf("%g allocations", n)
	}
}

// TestDropPrefers: one launch takes the place of two unless the tuner found the two faster.
func TestDropPrefers(t *testing.T) {
	tuned := func(us float64) *loadedWork {
		w := &loadedWork{Work: &Work{}}
		if us > 0 {
			w.Points = []Point{{Workload: Workload{Context: 4096, Batch: 1}, Evidence: Evidence{MedianUS: us}}}
		}
		return w
	}
	for _, tc := range []struct {
		reason              string
		both, pool, choose  float64 // 0: not tuned
		context             int
		there, neither, yes bool
	}{
		{"not there", 0, 5, 9, 4096, false, false, false},
		{"faster", 11, 5, 9, 4096, true, false, true},
		{"slower", 15, 5, 9, 4096, true, false, false},
		{"slower, of a workload that nobody tuned", 15, 5, 9, 1 << 20, true, false, true},
		{"nothing is known of it", 0, 5, 9, 4096, true, false, true},
		{"nothing is known of another", 15, 5, 0, 4096, true, false, true},
		{"the others are not there", 15, 0, 0, 4096, true, true, true},
	} {
		s := &Set{}
		if tc.there {
			s.works[dropPoolSelectWork] = tuned(tc.both)
		}
		if !tc.neither {
			s.works[dropPoolWork], s.works[dropSelectWork] = tuned(tc.pool), tuned(tc.choose)
		}
		if got := s.Pools(Workload{Context: tc.context, Batch: 1}); got != tc.yes {
			t.Errorf("%s: %v", tc.reason, got)
		}
	}
}
