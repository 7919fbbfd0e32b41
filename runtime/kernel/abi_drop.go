package kernel

import "github.com/kvloom/kvloom/runtime/device"

// The argument structs of the DropKV families mirror templates/include/kvloom/abi_drop.cuh field for field.
//
// Their cache may be contiguous: where BlockTable is 0, token t of request b lies at b*BlockStride + t*TokenStride, and MaxPages
// pages of the model's page size are room enough for the longest request.

// DropObserveArgs asks for the full log-sum-exp and attention output of the last queries, or for KeyDiff's mean direction.
type DropObserveArgs struct {
	Cache        KVCache
	Q            device.Ptr // [batch, q head, window, dim], cache dtype; 0 for keydiff
	Out          device.Ptr // [batch, q head, window, dim], dense: f32, or cache dtype (fast); keydiff: f32 [batch, kv head, dim]
	LSE          device.Ptr // f32 [batch, q head, window], dense, natural log; 0 for keydiff
	Workspace    device.Ptr // zeroed once by the caller; its counters are left zeroed
	QBatchStride int64      // elements
	QHeadStride  int64
	QRowStride   int64
	SoftmaxScale float32
	LogitSoftcap float32
}

// DropScoreArgs scores every token by what dropping it alone would do, over the window.
type DropScoreArgs struct {
	Cache            KVCache
	Q                device.Ptr // [batch, q head, window, dim], cache dtype; 0 for keydiff
	A                device.Ptr // [batch, q head, window, dim], f32 or cache dtype (fast); keydiff: f32 [batch, kv head, dim]
	LSE              device.Ptr // f32 [batch, q head, window], natural log; 0 for keydiff
	Scores           device.Ptr // f32 [batch, kv head, token]
	QBatchStride     int64      // elements
	QHeadStride      int64
	QRowStride       int64
	ABatchStride     int64
	AHeadStride      int64
	ARowStride       int64
	LSEBatchStride   int64
	LSEHeadStride    int64
	ScoreBatchStride int64
	ScoreHeadStride  int64
	SoftmaxScale     float32
	LogitSoftcap     float32
	Eps              float32
	_                int32
}

// DropObserveScoreArgs scores every token from keys, values and queries alone: DropObserve and DropScore in one launch.
type DropObserveScoreArgs struct {
	Cache            KVCache
	Q                device.Ptr // [batch, q head, window, dim], cache dtype
	Scores           device.Ptr // f32 [batch, kv head, token]
	Workspace        device.Ptr // zeroed once by the caller; its counters are left zeroed
	QBatchStride     int64      // elements
	QHeadStride      int64
	QRowStride       int64
	ScoreBatchStride int64
	ScoreHeadStride  int64
	SoftmaxScale     float32
	LogitSoftcap     float32
	Eps              float32
	_                int32
}

// DropPoolArgs smooths scores along the sequence; pinned tokens become +inf.
type DropPoolArgs struct {
	Scores            device.Ptr // f32 [batch, kv head, token]
	SeqLens           device.Ptr // int32 [batch]
	Pooled            device.Ptr // f32 [batch, kv head, token]; not the scores themselves
	ScoreBatchStride  int64      // elements
	ScoreHeadStride   int64
	PooledBatchStride int64
	PooledHeadStride  int64
	Batch             int32
	KVHeads           int32
	MaxTokens         int32
	Sinks             int32
}

// DropBudget is a layer's budget: max(ceil(Ratio*n), Window, 1) tokens a head, at most n.
type DropBudget struct {
	Ratio  float64 // of the prompt, or 0: Tokens
	Floor  float64 // adaptive: share of a head's free tokens that its own best are sure of
	Tokens int32
	Window int32 // always kept, before the sinks, inside the budget
	Sinks  int32
	Layer  int32 // pyramid
	Layers int32 // 0 for other kinds
	_      int32
}

// DropAllotArgs divides a layer's budget over its heads (adaptive).
type DropAllotArgs struct {
	Values           device.Ptr // f32 [batch, kv head, token], pooled
	SeqLens          device.Ptr // int32 [batch]
	Budgets          device.Ptr // int32 [batch, kv head], dense
	Workspace        device.Ptr // zeroed once by the caller; its counters are left zeroed
	ValueBatchStride int64      // elements
	ValueHeadStride  int64
	Budget           DropBudget
	Batch            int32
	KVHeads          int32
	MaxTokens        int32
	_                int32
}

// DropSelectArgs picks the kept tokens of each head, ascending, -1 after.
type DropSelectArgs struct {
	Values            device.Ptr // f32 [batch, kv head, token], pooled; 0: the most recent are best (streaming)
	SeqLens           device.Ptr // int32 [batch]
	Budgets           device.Ptr // int32 [batch, kv head] by BudgetBatchStride, or 0: from Budget
	Indices           device.Ptr // int32 [batch, kv head, slots]
	Counts            device.Ptr // int32 [batch, kv head], dense: head lengths of the compacted cache
	ValueBatchStride  int64      // elements
	ValueHeadStride   int64
	IndexBatchStride  int64
	IndexHeadStride   int64
	BudgetBatchStride int64 // 0: every request has the same
	Budget            DropBudget
	Batch             int32
	KVHeads           int32
	MaxTokens         int32
	Slots             int32 // no head may keep more
}

// DropPoolSelectArgs are the same of a launch that pools: Values are the scores themselves.
type DropPoolSelectArgs = DropSelectArgs

// DropCompactArgs gathers the kept tokens of each head to the front of a cache.
type DropCompactArgs struct {
	Source              KVCache
	Target              KVCache    // BlockTable lists where pages may go: fresh blocks, or in place the source's own for the same page
	Indices             device.Ptr // int32 [batch, kv head, slots], ascending
	Counts              device.Ptr // int32 [batch, kv head], dense
	PositionsIn         device.Ptr // int32 [batch, kv head, token] of the source, or 0: a token's index is its position
	Positions           device.Ptr // int32 [batch, kv head, slots], or 0
	HeadLens            device.Ptr // int32 [batch, kv head], dense, of the target
	SeqLens             device.Ptr // int32 [batch] of the target: the longest head
	Table               device.Ptr // int32 [batch, target max pages], freed pages -1, or 0; not a table that is read here
	IndexBatchStride    int64      // elements; Positions has the same
	IndexHeadStride     int64
	PositionBatchStride int64 // of PositionsIn
	PositionHeadStride  int64
	TableStride         int64
	Slots               int32
	InPlace             int32 // 1 where target blocks may be source blocks: one block serves a head, in order
}
