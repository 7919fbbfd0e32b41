package kernel

import (
	"math"

	"github.com/kvloom/kvloom/runtime/device"
)

// dropCache checks a cache that the DropKV kernels read: as other families' where it has a block table; contiguous without one.
func (c *checker) dropCache(m *Model, k *KVCache, values bool) {
	if k.BlockTable != 0 {
		c.cache(m, k, values)
		return
	}
	c.count("cache.batch", k.Batch)
	c.count("cache.kv_heads", k.KVHeads)
	c.count("cache.max_pages", k.MaxPages)
	c.ptr("cache.k", k.K, vectorBytes)
	c.ptr("cache.seq_lens", k.SeqLens, 4)
	d, unit, heads := int64(m.HeadDim), m.cacheUnit(), int(k.KVHeads)
	c.scale("cache.k_scale", m, k.KScale)
	c.stride("cache.k_block_stride", k.KBlockStride, d, unit, int(k.Batch))
	c.stride("cache.k_token_stride", k.KTokenStride, d, unit, 2)
	c.stride("cache.k_head_stride", k.KHeadStride, d, unit, heads)
	if !values {
		return
	}
	c.ptr("cache.v", k.V, vectorBytes)
	c.scale("cache.v_scale", m, k.VScale)
	c.stride("cache.v_block_stride", k.VBlockStride, d, unit, int(k.Batch))
	c.stride("cache.v_token_stride", k.VTokenStride, d, unit, 2)
	c.stride("cache.v_head_stride", k.VHeadStride, d, unit, heads)
}

// window checks the window's queries [batch, q head, window, dim].
func (c *checker) window(m *Model, k *KVCache, q device.Ptr, batch, head, row int64) {
	d, unit := int64(m.HeadDim), int64(vectorBytes/elementBytes)
	c.ptr("q", q, vectorBytes)
	c.stride("q_batch_stride", batch, d, unit, int(k.Batch))
	c.stride("q_head_stride", head, d, unit, int(k.KVHeads)*m.Group())
	c.stride("q_row_stride", row, d, unit, m.Drop.Window)
}

// outputBytes is the size of an element of the attention outputs between DropObserve and DropScore.
func (m *Model) outputBytes() int {
	if m.Drop.Precision == "fast" && m.Drop.Rule != "keydiff" {
		return elementBytes
	}
	return 4
}

// CheckDropObserve tells the first argument that the kernel would trip over.
func (s *Set) CheckDropObserve(a *DropObserveArgs) error {
	if a == nil {
		return &ArgumentError{DropObserve, "arguments", "are nil"}
	}
	c, m := checker{work: DropObserve}, &s.bundle.Model
	c.dropCache(m, &a.Cache, m.Drop.Rule != "keydiff")
	c.ptr("out", a.Out, m.outputBytes())
	c.optional("workspace", a.Workspace, vectorBytes)
	if m.Drop.Queries() {
		c.window(m, &a.Cache, a.Q, a.QBatchStride, a.QHeadStride, a.QRowStride)
		c.ptr("lse", a.LSE, 4)
		c.logits(m, a.SoftmaxScale, a.LogitSoftcap)
	}
	return c.result()
}

// CheckDropScore tells the first argument that the kernel would trip over.
func (s *Set) CheckDropScore(a *DropScoreArgs) error {
	if a == nil {
		return &ArgumentError{DropScore, "arguments", "are nil"}
	}
	c, m := checker{work: DropScore}, &s.bundle.Model
	c.dropCache(m, &a.Cache, m.Drop.Rule == "dropkv" || m.Drop.Rule == "value_norm")
	tokens := int64(a.Cache.MaxPages) * int64(m.PageSize)
	c.ptr("scores", a.Scores, 4)
	c.stride("score_batch_stride", a.ScoreBatchStride, tokens, 1, int(a.Cache.Batch))
	c.stride("score_head_stride", a.ScoreHeadStride, tokens, 1, int(a.Cache.KVHeads))
	d, heads := int64(m.HeadDim), int(a.Cache.KVHeads)
	if m.Drop.Queries() {
		heads *= m.Group()
		c.window(m, &a.Cache, a.Q, a.QBatchStride, a.QHeadStride, a.QRowStride)
		c.ptr("lse", a.LSE, 4)
		c.stride("lse_batch_stride", a.LSEBatchStride, int64(m.Drop.Window), 1, int(a.Cache.Batch))
		c.stride("lse_head_stride", a.LSEHeadStride, int64(m.Drop.Window), 1, heads)
		c.logits(m, a.SoftmaxScale, a.LogitSoftcap)
	}
	if m.Drop.Rule == "dropkv" || m.Drop.Rule == "keydiff" {
		c.ptr("a", a.A, m.outputBytes())
		c.stride("a_batch_stride", a.ABatchStride, d, 1, int(a.Cache.Batch))
		c.stride("a_head_stride", a.AHeadStride, d, 1, heads)
	}
	if m.Drop.Rule == "dropkv" {
		c.stride("a_row_stride", a.ARowStride, d, 1, m.Drop.Window)
		if !(a.Eps > 0) || a.Eps > 0.01 {
			c.fail("eps", "is %g; allowed: above 0 and up to 0.01 (the spec's is %g)", a.Eps, m.Drop.Eps)
		}
	}
	return c.result()
}

// CheckDropObserveScore tells the first argument that the kernel would trip over.
func (s *Set) CheckDropObserveScore(a *DropObserveScoreArgs) error {
	if a == nil {
		return &ArgumentError{DropObserveScore, "arguments", "are nil"}
	}
	c, m := checker{work: DropObserveScore}, &s.bundle.Model
	c.dropCache(m, &a.Cache, true)
	c.window(m, &a.Cache, a.Q, a.QBatchStride, a.QHeadStride, a.QRowStride)
	tokens := int64(a.Cache.MaxPages) * int64(m.PageSize)
	c.ptr("scores", a.Scores, 4)
	c.stride("score_batch_stride", a.ScoreBatchStride, tokens, 1, int(a.Cache.Batch))
	c.stride("score_head_stride", a.ScoreHeadStride, tokens, 1, int(a.Cache.KVHeads))
	c.ptr("workspace", a.Workspace, vectorBytes)
	c.logits(m, a.SoftmaxScale, a.LogitSoftcap)
	if !(a.Eps > 0) || a.Eps > 0.01 {
		c.fail("eps", "is %g; allowed: above 0 and up to 0.01 (the spec's is %g)", a.Eps, m.Drop.Eps)
	}
	return c.result()
}

// CheckDropPool tells the first argument that the kernel would trip over.
func (s *Set) CheckDropPool(a *DropPoolArgs) error {
	if a == nil {
		return &ArgumentError{DropPool, "arguments", "are nil"}
	}
	c := checker{work: DropPool}
	c.values(a.Scores, a.SeqLens, a.Batch, a.KVHeads, a.MaxTokens, a.ScoreBatchStride, a.ScoreHeadStride)
	c.ptr("pooled", a.Pooled, 4)
	c.stride("pooled_batch_stride", a.PooledBatchStride, int64(a.MaxTokens), 1, int(a.Batch))
	c.stride("pooled_head_stride", a.PooledHeadStride, int64(a.MaxTokens), 1, int(a.KVHeads))
	if a.Pooled == a.Scores {
		c.fail("pooled", "is the scores themselves; a token's neighbours are read after it was written")
	}
	if a.Sinks < 0 {
		c.fail("sinks", "is %d", a.Sinks)
	}
	return c.result()
}

// values checks [batch, kv head, token].
func (c *checker) values(p, lens device.Ptr, batch, heads, tokens int32, batchStride, headStride int64) {
	c.count("batch", batch)
	c.count("kv_heads", heads)
	c.count("max_tokens", tokens)
	c.ptr("values", p, 4)
	c.ptr("seq_lens", lens, 4)
	c.stride("value_batch_stride", batchStride, int64(tokens), 1, int(batch))
	c.stride("value_head_stride", headStride, int64(tokens), 1, int(heads))
}

// budget checks a layer's budget.
func (c *checker) budget(m *Model, b *DropBudget) {
	switch {
	case b.Window != int32(m.Drop.Window):
		c.fail("budget.window", "is %d, the kernels were specialised for %d", b.Window, m.Drop.Window)
	case !(b.Ratio >= 0) || b.Ratio > 1:
		c.fail("budget.ratio", "is %g; allowed: above 0 and up to 1, or 0 with tokens", b.Ratio)
	case b.Ratio == 0 && b.Tokens < 1:
		c.fail("budget.tokens", "is %d; give a ratio, or at least one token", b.Tokens)
	case b.Sinks < 0:
		c.fail("budget.sinks", "is %d", b.Sinks)
	case math.IsNaN(b.Floor) || b.Floor < 0 || b.Floor > 1:
		c.fail("budget.floor", "is %g; allowed: 0 to 1", b.Floor)
	case b.Layers < 0 || b.Layers > 0 && (b.Layer < 0 || b.Layer >= b.Layers):
		c.fail("budget.layer", "is %d of %d layers", b.Layer, b.Layers)
	}
}

// CheckDropAllot tells the first argument that the kernel would trip over.
func (s *Set) CheckDropAllot(a *DropAllotArgs) error {
	if a == nil {
		return &ArgumentError{DropAllot, "arguments", "are nil"}
	}
	c := checker{work: DropAllot}
	c.values(a.Values, a.SeqLens, a.Batch, a.KVHeads, a.MaxTokens, a.ValueBatchStride, a.ValueHeadStride)
	c.ptr("budgets", a.Budgets, 4)
	c.optional("workspace", a.Workspace, vectorBytes)
	c.budget(&s.bundle.Model, &a.Budget)
	if a.Budget.Layers > 0 {
		c.fail("budget.layers", "is %d; adaptive budgets divide one layer's", a.Budget.Layers)
	}
	return c.result()
}

// CheckDropSelect tells the first argument that the kernel would trip over.
func (s *Set) CheckDropSelect(a *DropSelectArgs) error {
	if a == nil {
		return &ArgumentError{DropSelect, "arguments", "are nil"}
	}
	c, m := checker{work: DropSelect}, &s.bundle.Model
	values := a.Values
	if m.Drop.Rule == "streaming" && values == 0 {
		values = a.SeqLens // no values: the most recent tokens
	}
	c.values(values, a.SeqLens, a.Batch, a.KVHeads, a.MaxTokens, max(a.ValueBatchStride, int64(a.MaxTokens)), max(a.ValueHeadStride, int64(a.MaxTokens)))
	if a.Values != 0 {
		c.stride("value_batch_stride", a.ValueBatchStride, int64(a.MaxTokens), 1, int(a.Batch))
		c.stride("value_head_stride", a.ValueHeadStride, int64(a.MaxTokens), 1, int(a.KVHeads))
	}
	c.optional("budgets", a.Budgets, 4)
	c.ptr("indices", a.Indices, 4)
	c.ptr("counts", a.Counts, 4)
	c.count("slots", a.Slots)
	c.stride("index_batch_stride", a.IndexBatchStride, int64(a.Slots), 1, int(a.Batch))
	c.stride("index_head_stride", a.IndexHeadStride, int64(a.Slots), 1, int(a.KVHeads))
	c.budget(m, &a.Budget)
	if c.err == nil && a.Budgets == 0 && int(a.Slots) < a.Budget.Slots(int(a.MaxTokens), 1) {
		c.fail("slots", "is %d, a head may keep %d of %d tokens", a.Slots, a.Budget.Slots(int(a.MaxTokens), 1), a.MaxTokens)
	}
	return c.result()
}

// CheckDropCompact tells the first argument that the kernel would trip over. In place, target and source are one cache; which blocks
// are the request's own is the caller's to know: PlacePages.
func (s *Set) CheckDropCompact(a *DropCompactArgs) error {
	if a == nil {
		return &ArgumentError{DropCompact, "arguments", "are nil"}
	}
	c, m := checker{work: DropCompact}, &s.bundle.Model
	c.dropCache(m, &a.Source, true)
	target := a.Target
	target.SeqLens = a.Source.SeqLens // not read
	c.dropCache(m, &target, true)
	c.ptr("indices", a.Indices, 4)
	c.ptr("counts", a.Counts, 4)
	c.ptr("head_lens", a.HeadLens, 4)
	c.ptr("seq_lens", a.SeqLens, 4)
	c.count("slots", a.Slots)
	c.stride("index_batch_stride", a.IndexBatchStride, int64(a.Slots), 1, int(a.Source.Batch))
	c.stride("index_head_stride", a.IndexHeadStride, int64(a.Slots), 1, int(a.Source.KVHeads))
	same := a.Source.K == a.Target.K && a.Source.V == a.Target.V && a.Source.KBlockStride == a.Target.KBlockStride && a.Source.KTokenStride == a.Target.KTokenStride &&
		a.Source.KHeadStride == a.Target.KHeadStride && a.Source.VBlockStride == a.Target.VBlockStride && a.Source.VTokenStride == a.Target.VTokenStride &&
		a.Source.VHeadStride == a.Target.VHeadStride
	switch {
	case a.Target.Batch != a.Source.Batch || a.Target.KVHeads != a.Source.KVHeads:
		c.fail("target", "has batch %d and %d KV heads, the source %d and %d", a.Target.Batch, a.Target.KVHeads, a.Source.Batch, a.Source.KVHeads)
	case m.DType == fp8 && (a.Target.KScale != a.Source.KScale || a.Target.VScale != a.Source.VScale):
		c.fail("target.k_scale", "is %g beside v_scale %g, the source has %g and %g: codes are copied as they are", a.Target.KScale, a.Target.VScale, a.Source.KScale, a.Source.VScale)
	case a.InPlace != 0 && !same:
		c.fail("in_place", "is set, but target and source differ in a pointer or stride")
	case a.InPlace == 0 && (a.Source.K == a.Target.K || a.Source.V == a.Target.V):
		c.fail("in_place", "is not set, but target and source share memory: blocks would overwrite tokens that others still read")
	case a.SeqLens == a.Source.SeqLens || a.HeadLens == a.Source.SeqLens:
		c.fail("seq_lens", "is the source's, which other blocks still read; swap the buffers after the launch")
	case a.Table != 0 && (a.Table == a.Source.BlockTable || a.Table == a.Target.BlockTable):
		c.fail("table", "is one that the launch reads; swap the buffers after it")
	case a.Table != 0 && a.Target.BlockTable == 0:
		c.fail("table", "is given, but the target is contiguous and has none")
	case a.Table != 0 && a.TableStride < int64(a.Target.MaxPages) && a.Target.Batch > 1:
		c.fail("table_stride", "is %d, rows have %d pages", a.TableStride, a.Target.MaxPages)
	case int64(a.Slots) > int64(a.Target.MaxPages)*int64(m.PageSize):
		c.fail("slots", "is %d, the target has room for %d tokens a head", a.Slots, int64(a.Target.MaxPages)*int64(m.PageSize))
	}
	return c.result()
}

// PlacePages makes the block table of a compaction in place: for each page of a request the block that it has now, where exclusive
// says that no other request reads it, else the next of free. It returns the table [batch, maxPages], -1 behind pages, and how many of
// free it took; the launch itself then frees pages that the kept tokens do not fill.
func PlacePages(table []int32, maxPages int, pages []int, exclusive func(block int32) bool, free []int32) ([]int32, int, error) {
	out, taken := make([]int32, len(pages)*maxPages), 0
	for b, n := range pages {
		for page := range maxPages {
			at := b*maxPages + page
			switch {
			case page >= n || table[at] < 0:
				out[at] = -1
			case exclusive(table[at]):
				out[at] = table[at]
			case taken == len(free):
				return nil, taken, &ArgumentError{DropCompact, "free", "has too few blocks: every page that another request shares needs one"}
			default:
				out[at] = free[taken]
				taken++
			}
		}
	}
	return out, taken, nil
}
