package kernel

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// The works that make a query-weighted basis's weights of a prompt's own queries: QueryMoment for each chunk of the prompt, then
// QueryFactor once, before the prompt's pages are built. Moments that are calibrated beforehand need neither: see PackWeights.
const (
	QueryMoment = "query_moment"
	QueryFactor = "query_factor"
)

// MomentSplits is the number of partial sums that QueryMoment is sized for; any other number is right too.
const MomentSplits = 16

// MomentBytes is the size of the partial sums.
func MomentBytes(splits, kvHeads, headDim int) int64 {
	return 4 * int64(splits) * int64(kvHeads) * int64(headDim) * int64(headDim)
}

// QueryMoment adds the second moments of a prompt's queries to partial sums that were zeroed before its first chunk.
func (s *Set) QueryMoment(st device.Stream, a *QueryMomentArgs, w Workload) error {
	if err := s.CheckQueryMoment(a); err != nil {
		return err
	}
	p := Problem{Batch: int64(a.Batch), KVHeads: int64(a.KVHeads), SMs: int64(s.info.SMs)}
	return s.launch(st, momentWork, w, p, 0, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// QueryFactor turns the partial sums into page_summary's weights.
func (s *Set) QueryFactor(st device.Stream, a *QueryFactorArgs, w Workload) error {
	if err := s.CheckQueryFactor(a); err != nil {
		return err
	}
	p := Problem{Batch: 1, KVHeads: int64(a.KVHeads), SMs: int64(s.info.SMs)}
	return s.launch(st, factorWork, w, p, 0, unsafe.Pointer(a), unsafe.Sizeof(*a), false)
}

// CheckQueryMoment is CheckPageSummary for query_moment.
func (s *Set) CheckQueryMoment(a *QueryMomentArgs) error {
	if a == nil {
		return &ArgumentError{QueryMoment, "arguments", "are nil"}
	}
	c, m := checker{work: QueryMoment}, &s.bundle.Model
	c.count("batch", a.Batch)
	c.count("kv_heads", a.KVHeads)
	c.count("splits", a.Splits)
	if int(a.Group) != m.Group() {
		c.fail("group", "is %d, the model's is %d", a.Group, m.Group())
	}
	c.ptr("q", a.Q, vectorBytes)
	c.ptr("q_lens", a.QLens, 4)
	c.ptr("moments", a.Moments, vectorBytes)
	unit := int64(vectorBytes / 2)
	c.stride("q_batch_stride", a.QBatchStride, int64(m.HeadDim), unit, int(a.Batch))
	c.stride("q_token_stride", a.QTokenStride, int64(m.HeadDim), unit, 2)
	c.stride("q_head_stride", a.QHeadStride, int64(m.HeadDim), unit, int(a.KVHeads)*m.Group())
	return c.result()
}

// CheckQueryFactor is CheckPageSummary for query_factor.
func (s *Set) CheckQueryFactor(a *QueryFactorArgs) error {
	if a == nil {
		return &ArgumentError{QueryFactor, "arguments", "are nil"}
	}
	c := checker{work: QueryFactor}
	c.count("splits", a.Splits)
	c.count("kv_heads", a.KVHeads)
	c.ptr("moments", a.Moments, vectorBytes)
	c.ptr("weights", a.Weights, vectorBytes)
	return c.result()
}
