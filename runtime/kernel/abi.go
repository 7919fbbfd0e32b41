package kernel

import "github.com/kvloom/kvloom/runtime/device"

// The argument structs mirror templates/include/kvloom/abi.cuh field for field: pointers, then 64-bit, then 32-bit fields, so that
// neither compiler pads. Each kernel takes exactly one of them by value.

// KVCache is a paged KV cache by base pointers and strides. Strides count elements; the dim stride is 1.
type KVCache struct {
	K          device.Ptr // [block, token, kv head, dim] by strides
	V          device.Ptr // [block, token, kv head, dim] by strides
	BlockTable device.Ptr // int32 [batch, max_pages], row stride TableStride; -1 and stale tails are never followed
	SeqLens    device.Ptr // int32 [batch]: tokens in the cache, the query's own included
	HeadLens   device.Ptr // int32 [batch, kv_heads] or 0; honoured by page_attend alone
	// KIVI: int32 [batch, max_pages], row stride TableStride: the blocks of K and V, which hold the pages that are not quantised.
	// BlockTable's are the store's. Else not read.
	RowTable     device.Ptr
	Store        device.Ptr // KIVI: records of quantised pages [block, kv head], byte strides below; else not read
	KBlockStride int64
	KTokenStride int64
	KHeadStride  int64
	VBlockStride int64
	VTokenStride int64
	VHeadStride  int64

	StoreBlockStride int64 // bytes, a multiple of 16
	StoreHeadStride  int64 // bytes, a multiple of 16

	TableStride int64
	Batch       int32
	KVHeads     int32
	MaxPages    int32   // columns of BlockTable: no request has more pages
	KScale      float32 // fp8_e4m3: keys are codes times it; else not read
	VScale      float32 // the same of values
	_           int32
}

// PageSummaryArgs summarises every page that became complete since BuiltLens, then advances BuiltLens.
type PageSummaryArgs struct {
	Cache              KVCache
	Summaries          device.Ptr // records [block, kv head], byte strides below
	BuiltLens          device.Ptr // int32 [batch]: tokens already summarised, a multiple of the page size; written
	Workspace          device.Ptr // zeroed once by the caller; its counters are left zeroed
	Weights            device.Ptr // query-weighted bases: [kv head] factors as query_factor writes them; else not read
	Centre             device.Ptr // 4-bit centroids: f32 [kv head, dim] mean keys that they are stored less; 0: zero. Else not read
	SummaryBlockStride int64      // bytes, a multiple of 16
	SummaryHeadStride  int64      // bytes, a multiple of 16
}

// KVQuantizeArgs quantises every page that became complete since QuantizedLens into the cache's store, then advances QuantizedLens.
type KVQuantizeArgs struct {
	Cache         KVCache
	QuantizedLens device.Ptr // int32 [batch]: tokens already quantised, a multiple of the page size; written
	Workspace     device.Ptr // zeroed once by the caller; its counters are left zeroed
}

// PageScoreArgs scores pages by equation 2, and the page that is still filling by its exact log-sum-exp. Where pages share summaries
// (Model.SummaryPages) scores are of groups of them.
type PageScoreArgs struct {
	Cache              KVCache
	Q                  device.Ptr // [batch, q head, dim], cache dtype; bf16 beside fp8_e4m3
	Summaries          device.Ptr // records [block, kv head]
	Scores             device.Ptr // f32 [batch, q head, page], natural log
	Masses             device.Ptr // f32 [q head, MassParts, 2] of a batch of one, for page_select; or 0
	Centre             device.Ptr // as PageSummaryArgs's
	Workspace          device.Ptr
	QBatchStride       int64 // elements
	QHeadStride        int64
	SummaryBlockStride int64 // bytes
	SummaryHeadStride  int64
	ScoreBatchStride   int64 // elements
	ScoreHeadStride    int64
	SoftmaxScale       float32
	LogitSoftcap       float32 // 0 where the kernel has none
}

// MassParts is how many parts the mass of a query head's scores comes in, beside which page_select need not sum a row itself.
const MassParts = 288

// MassesBytes is the memory of the masses of a batch of one.
func MassesBytes(queryHeads int) int64 { return int64(queryHeads) * MassParts * 8 }

// PageSelectArgs combines the group's scores and picks min(Slots, pages) pages a list, ascending, -1 after. Where pages share summaries
// (Model.SummaryPages) all that it counts and lists are groups: Model.Groups, SinkGroups, RecentGroups.
type PageSelectArgs struct {
	Scores           device.Ptr // f32 [batch, q head, page]
	Masses           device.Ptr // as page_score left them beside these scores; or 0
	SeqLens          device.Ptr // int32 [batch]
	Pages            device.Ptr // int32 [batch, list, slots]; a list is a kv head, or a query head for per_head
	Counts           device.Ptr // int32 [batch, list], dense
	Workspace        device.Ptr // zeroed once by the caller; its counters are left zeroed
	ScoreBatchStride int64      // elements
	ScoreHeadStride  int64
	PagesBatchStride int64
	PagesListStride  int64
	Batch            int32
	KVHeads          int32
	MaxPages         int32
	Slots            int32
	SinkPages        int32
	RecentPages      int32
}

// PageRerankArgs scores the candidates of every list exactly and chooses min(Slots, candidates) of them, ascending, -1 after. Where pages share
// summaries (Model.SummaryPages) Scores and Candidates are of groups, whose pages are scored and chosen one by one.
type PageRerankArgs struct {
	Cache                 KVCache
	Q                     device.Ptr // [batch, q head, dim], as PageScoreArgs
	Scores                device.Ptr // f32 [batch, q head, page]: what page_score wrote
	Masses                device.Ptr // as page_score left them beside these scores; or 0
	Candidates            device.Ptr // int32 [batch, list, candidate slots], ascending: what page_select chose
	CandidateCounts       device.Ptr // int32 [batch, list], dense
	Pages                 device.Ptr // int32 [batch, list, slots]
	Counts                device.Ptr // int32 [batch, list], dense
	Workspace             device.Ptr // zeroed once by the caller; its counters are left zeroed
	QBatchStride          int64      // elements
	QHeadStride           int64
	ScoreBatchStride      int64
	ScoreHeadStride       int64
	CandidatesBatchStride int64
	CandidatesListStride  int64
	PagesBatchStride      int64
	PagesListStride       int64
	SoftmaxScale          float32
	LogitSoftcap          float32
	CandidateSlots        int32
	Slots                 int32
	SinkPages             int32
	RecentPages           int32
}

// PageSelectAttendArgs is both in one launch: Attend reads the lists that Select writes.
type PageSelectAttendArgs struct {
	Select PageSelectArgs
	Attend PageAttendArgs
}

// PageRerankAttendArgs is PageRerank, and PageAttend over the pages that it keeps, in one launch.
type PageRerankAttendArgs struct {
	Rerank         PageRerankArgs // Workspace is not used
	Out            device.Ptr     // [batch, q head, dim], the queries' dtype
	LSE            device.Ptr     // f32 [batch, q head], dense, natural log; may be 0
	OutBatchStride int64          // elements
	OutHeadStride  int64          // elements
}

// PageSelectRerankAttendArgs is all three in one launch: Both reads the candidates that Select writes.
type PageSelectRerankAttendArgs struct {
	Select PageSelectArgs
	Both   PageRerankAttendArgs
}

// PageAttendArgs attends to the listed pages alone, or to all pages when Pages is 0 (dense).
type PageAttendArgs struct {
	Cache            KVCache
	Q                device.Ptr // [batch, q head, dim], cache dtype; bf16 beside fp8_e4m3
	Pages            device.Ptr // int32 [batch, list, slots]: page indices, not block ids; or 0: every page
	Counts           device.Ptr // int32 [batch, list], dense; 0 with Pages
	Out              device.Ptr // [batch, q head, dim], Q's dtype
	LSE              device.Ptr // f32 [batch, q head], dense, natural log; may be 0
	Workspace        device.Ptr // zeroed once by the caller; its counters are left zeroed
	QBatchStride     int64      // elements
	QHeadStride      int64
	OutBatchStride   int64
	OutHeadStride    int64
	PagesBatchStride int64
	PagesListStride  int64
	SoftmaxScale     float32
	LogitSoftcap     float32
	Slots            int32
	_                int32
}
