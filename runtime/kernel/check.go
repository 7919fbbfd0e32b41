package kernel

import (
	"fmt"
	"math"

	"github.com/kvloom/kvloom/runtime/device"
)

// vectorBytes is the width of the loads of keys, values, queries and summaries.
const vectorBytes = 16

// massBytes is the size of one part of a mass.
const massBytes = 8

// elementBytes of bf16 and fp16.
const elementBytes = 2

// dtypes are the cache types that kernels exist for.
var dtypes = []string{"bf16", "fp16", fp8, "kivi4", "kivi2"}

// fp8 is the cache type whose keys and values are codes times a scale. Queries and outputs are bf16 beside it.
const fp8 = "fp8_e4m3"

// cacheUnit is how many elements of the cache make a vector.
func (m *Model) cacheUnit() int64 {
	if m.DType == fp8 {
		return vectorBytes
	}
	return vectorBytes / elementBytes
}

// ArgumentError is an argument that a kernel would trip over: which field, and what it must be.
type ArgumentError struct {
	Work, Field, Problem string
}

func (e *ArgumentError) Error() string { return e.Work + ": " + e.Field + " " + e.Problem }

// checker collects the first fault of an argument struct. Nothing is allocated where there is none.
type checker struct {
	work string
	err  *ArgumentError
}

func (c *checker) fail(field, format string, args ...any) {
	if c.err == nil {
		c.err = &ArgumentError{c.work, field, fmt.Sprintf(format, args...)}
	}
}

func (c *checker) result() error {
	if c.err == nil {
		return nil
	}
	return c.err
}

// ptr wants a pointer that is not null, aligned to bytes.
func (c *checker) ptr(field string, p device.Ptr, align int) {
	if p == 0 {
		c.fail(field, "is null")
		return
	}
	c.optional(field, p, align)
}

func (c *checker) optional(field string, p device.Ptr, align int) {
	if uint64(p)%uint64(align) != 0 {
		c.fail(field, "is %#x, it must be aligned to %d bytes", uint64(p), align)
	}
}

// count wants a number of things from 1 on.
func (c *checker) count(field string, n int32) {
	if n < 1 {
		c.fail(field, "is %d, at least 1 is needed", n)
	}
}

// scale wants a cache's scale to be a positive normal number, where it is read.
func (c *checker) scale(field string, m *Model, s float32) {
	if m.DType == fp8 && !(s >= 0x1p-126 && s <= math.MaxFloat32) {
		c.fail(field, "is %g, a cache of %s needs a positive number", s, fp8)
	}
}

// stride wants rows of at least low units, in steps of unit, wherever more than one row (n) exists. A stride over a single row is
// never used, and engines leave anything there.
func (c *checker) stride(field string, s, low, unit int64, n int) {
	if n <= 1 {
		return
	}
	if s < low {
		c.fail(field, "is %d, rows are at least %d long", s, low)
	} else if s%unit != 0 {
		c.fail(field, "is %d, it must be a multiple of %d (rows are aligned to %d bytes)", s, unit, vectorBytes)
	}
}

// cache checks what all families read of a cache.
func (c *checker) cache(m *Model, k *KVCache, values bool) {
	c.count("cache.batch", k.Batch)
	c.count("cache.kv_heads", k.KVHeads)
	c.count("cache.max_pages", k.MaxPages)
	c.ptr("cache.k", k.K, vectorBytes)
	c.ptr("cache.block_table", k.BlockTable, 4)
	c.ptr("cache.seq_lens", k.SeqLens, 4)
	c.optional("cache.head_lens", k.HeadLens, 4)
	if m.Kivi() {
		c.ptr("cache.row_table", k.RowTable, 4)
	} else if k.RowTable != 0 {
		c.fail("cache.row_table", "is given, the model's cache of %s has but the block table", m.DType)
	}
	d, unit, heads := int64(m.HeadDim), m.cacheUnit(), int(k.KVHeads)
	c.scale("cache.k_scale", m, k.KScale)
	c.stride("cache.table_stride", k.TableStride, int64(k.MaxPages), 1, int(k.Batch))
	c.stride("cache.k_block_stride", k.KBlockStride, d, unit, 2)
	c.stride("cache.k_token_stride", k.KTokenStride, d, unit, m.PageSize)
	c.stride("cache.k_head_stride", k.KHeadStride, d, unit, heads)
	if !values {
		return
	}
	c.ptr("cache.v", k.V, vectorBytes)
	c.scale("cache.v_scale", m, k.VScale)
	c.stride("cache.v_block_stride", k.VBlockStride, d, unit, 2)
	c.stride("cache.v_token_stride", k.VTokenStride, d, unit, m.PageSize)
	c.stride("cache.v_head_stride", k.VHeadStride, d, unit, heads)
}

// summaries checks where records lie.
func (c *checker) summaries(m *Model, p device.Ptr, block, head int64, kvHeads int) {
	c.ptr("summaries", p, vectorBytes)
	c.stride("summary_block_stride", block, int64(m.RecordBytes), vectorBytes, 2)
	c.stride("summary_head_stride", head, int64(m.RecordBytes), vectorBytes, kvHeads)
}

// heads checks a tensor [batch, q head, dim] of the cache's dtype. fields are its pointer and strides; joining names would allocate.
func (c *checker) heads(m *Model, k *KVCache, fields *[3]string, p device.Ptr, batch, head int64) {
	unit := int64(vectorBytes / elementBytes)
	c.ptr(fields[0], p, vectorBytes)
	c.stride(fields[1], batch, int64(m.HeadDim), unit, int(k.Batch))
	c.stride(fields[2], head, int64(m.HeadDim), unit, int(k.KVHeads)*m.Group())
}

var (
	qFields   = [3]string{"q", "q_batch_stride", "q_head_stride"}
	outFields = [3]string{"out", "out_batch_stride", "out_head_stride"}
)

// CheckPageSummary tells the first argument that the kernel would trip over: null or misaligned pointers, impossible counts and
// strides. Lengths are in device memory; see CheckLengths.
func (s *Set) CheckPageSummary(a *PageSummaryArgs) error {
	if a == nil {
		return &ArgumentError{PageSummary, "arguments", "are nil"}
	}
	c, m := checker{work: PageSummary}, &s.bundle.Model
	c.cache(m, &a.Cache, false)
	c.groups(m, &a.Cache)
	c.ptr("built_lens", a.BuiltLens, 4)
	c.summaries(m, a.Summaries, a.SummaryBlockStride, a.SummaryHeadStride, int(a.Cache.KVHeads))
	c.optional("workspace", a.Workspace, vectorBytes)
	if m.Basis == queryWeighted {
		c.ptr("weights", a.Weights, vectorBytes)
	}
	c.optional("centre", a.Centre, vectorBytes)
	return c.result()
}

// CheckPageScore is CheckPageSummary for page_score.
func (s *Set) CheckPageScore(a *PageScoreArgs) error {
	if a == nil {
		return &ArgumentError{PageScore, "arguments", "are nil"}
	}
	c, m := checker{work: PageScore}, &s.bundle.Model
	c.cache(m, &a.Cache, false)
	c.groups(m, &a.Cache)
	c.heads(m, &a.Cache, &qFields, a.Q, a.QBatchStride, a.QHeadStride)
	c.summaries(m, a.Summaries, a.SummaryBlockStride, a.SummaryHeadStride, int(a.Cache.KVHeads))
	c.ptr("scores", a.Scores, 4)
	c.stride("score_batch_stride", a.ScoreBatchStride, int64(m.Groups(a.Cache.MaxPages)), 1, int(a.Cache.Batch))
	c.stride("score_head_stride", a.ScoreHeadStride, int64(m.Groups(a.Cache.MaxPages)), 1, int(a.Cache.KVHeads)*m.Group())
	c.optional("masses", a.Masses, massBytes)
	c.optional("centre", a.Centre, vectorBytes)
	c.optional("workspace", a.Workspace, vectorBytes)
	c.logits(m, a.SoftmaxScale, a.LogitSoftcap)
	return c.result()
}

// CheckPageSelect is CheckPageSummary for page_select.
func (s *Set) CheckPageSelect(a *PageSelectArgs) error {
	if a == nil {
		return &ArgumentError{PageSelect, "arguments", "are nil"}
	}
	c, m := checker{work: PageSelect}, &s.bundle.Model
	c.count("batch", a.Batch)
	c.count("kv_heads", a.KVHeads)
	c.count("max_pages", a.MaxPages)
	c.count("slots", a.Slots)
	if a.SinkPages < 0 || a.RecentPages < 0 || int64(a.SinkPages)+int64(a.RecentPages) > int64(a.Slots) {
		c.fail("slots", "is %d, %d sink and %d recent pages are always selected", a.Slots, a.SinkPages, a.RecentPages)
	}
	c.ptr("scores", a.Scores, 4)
	c.ptr("seq_lens", a.SeqLens, 4)
	c.ptr("pages", a.Pages, 4)
	c.ptr("counts", a.Counts, 4)
	c.optional("masses", a.Masses, massBytes)
	c.optional("workspace", a.Workspace, vectorBytes)
	c.stride("score_batch_stride", a.ScoreBatchStride, int64(a.MaxPages), 1, int(a.Batch))
	c.stride("score_head_stride", a.ScoreHeadStride, int64(a.MaxPages), 1, int(a.KVHeads)*m.Group())
	c.stride("pages_batch_stride", a.PagesBatchStride, int64(a.Slots), 1, int(a.Batch))
	c.stride("pages_list_stride", a.PagesListStride, int64(a.Slots), 1, m.Lists(int(a.KVHeads)))
	return c.result()
}

// CheckPageAttend is CheckPageSummary for page_attend.
func (s *Set) CheckPageAttend(a *PageAttendArgs) error {
	if a == nil {
		return &ArgumentError{PageAttend, "arguments", "are nil"}
	}
	c, m := checker{work: PageAttend}, &s.bundle.Model
	c.cache(m, &a.Cache, true)
	c.store(m, &a.Cache)
	c.heads(m, &a.Cache, &qFields, a.Q, a.QBatchStride, a.QHeadStride)
	c.heads(m, &a.Cache, &outFields, a.Out, a.OutBatchStride, a.OutHeadStride)
	if (a.Pages == 0) != (a.Counts == 0) {
		c.fail("counts", "and pages must both be given, or both be null for all pages")
	}
	if a.Pages != 0 {
		c.count("slots", a.Slots)
		c.optional("pages", a.Pages, 4)
		c.optional("counts", a.Counts, 4)
		c.stride("pages_batch_stride", a.PagesBatchStride, int64(a.Slots), 1, int(a.Cache.Batch))
		c.stride("pages_list_stride", a.PagesListStride, int64(a.Slots), 1, m.Lists(int(a.Cache.KVHeads)))
	}
	c.optional("lse", a.LSE, 4)
	c.optional("workspace", a.Workspace, vectorBytes)
	c.logits(m, a.SoftmaxScale, a.LogitSoftcap)
	return c.result()
}

// logits checks the scale, and that a cap is given exactly where the kernel was specialised for one.
func (c *checker) logits(m *Model, scale, softcap float32) {
	if !(scale > 0) || scale > 1e6 {
		c.fail("softmax_scale", "is %g, a positive number is needed (the spec's is %g)", scale, m.SoftmaxScale)
	}
	if (m.LogitSoftcap > 0) != (softcap > 0) || softcap != softcap || softcap < 0 {
		c.fail("logit_softcap", "is %g, the kernel was specialised for %g", softcap, m.LogitSoftcap)
	}
}

// CheckLengths checks sequence lengths before a caller uploads them: kernels read them on the device, where nothing can be reported.
func (m Model) CheckLengths(seqLens []int32, maxPages int) error {
	limit := int64(maxPages) * int64(m.PageSize)
	for i, n := range seqLens {
		if n < 0 || int64(n) > limit {
			return &ArgumentError{"lengths", fmt.Sprintf("seq_lens[%d]", i), fmt.Sprintf("is %d, a table of %d pages of %d tokens holds 0 to %d", n, maxPages, m.PageSize, limit)}
		}
	}
	return nil
}
