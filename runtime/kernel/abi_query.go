package kernel

import "github.com/kvloom/kvloom/runtime/device"

// The argument structs of abi_query.cuh, field for field.

// QueryMomentArgs adds the second moments of a prompt's queries, one for each KV head over the queries of its group, in partial sums.
type QueryMomentArgs struct {
	Q            device.Ptr // [batch, token, q head, dim] by strides, after rotary embedding
	QLens        device.Ptr // int32 [batch]: queries of each request
	Moments      device.Ptr // f32 [split, kv head, dim, dim], dense; added to, so zeroed before a prompt's first chunk
	QBatchStride int64      // elements, a multiple of 8
	QTokenStride int64
	QHeadStride  int64
	Batch        int32
	KVHeads      int32
	Group        int32
	Splits       int32
}

// QueryFactorArgs turns the partial sums into what page_summary reads as weights.
type QueryFactorArgs struct {
	Moments device.Ptr // f32 [split, kv head, dim, dim], dense
	Weights device.Ptr // [kv head] factors, WeightBytes in all
	Splits  int32
	KVHeads int32
}
