// The argument structs of the DropKV families. runtime/kernel/abi_drop.go mirrors them field for field; a test compares sizes and
// offsets. Pointers come first, then 64-bit fields, then 32-bit ones.
//
// The cache of these families may be contiguous: where block_table is null, token t of request b lies at b * block_stride + t *
// token_stride, and max_pages pages of the compiled page size are room enough for the longest request.
#pragma once

#include "kvloom/abi.cuh"

namespace kvloom {

// drop_observe: full log-sum-exp and attention output of the last `window` queries; query i stands at position n - window + i. For
// keydiff, the mean of the keys' directions.
struct DropObserveArgs {
  KvCache cache;
  const void* q;                 // [batch, q head, window, dim], cache dtype; null for keydiff
  void* out;                     // [batch, q head, window, dim], dense: f32, or cache dtype (fast); keydiff: f32 [batch, kv head, dim]
  float* lse;                    // [batch, q head, window], dense, natural log; null for keydiff
  uint32_t* workspace;           // zeroed once by the caller; every launch leaves it zeroed
  int64_t q_batch_stride, q_head_stride, q_row_stride;  // elements
  float softmax_scale, logit_softcap;
};

// drop_score: what dropping each token alone would do, over the window.
struct DropScoreArgs {
  KvCache cache;
  const void* q;                 // [batch, q head, window, dim], cache dtype; null for keydiff
  const void* a;                 // [batch, q head, window, dim], f32 or cache dtype (fast); keydiff: f32 [batch, kv head, dim]
  const float* lse;              // [batch, q head, window], natural log; null for keydiff
  float* scores;                 // [batch, kv head, token]
  int64_t q_batch_stride, q_head_stride, q_row_stride;  // elements
  int64_t a_batch_stride, a_head_stride, a_row_stride;  // elements
  int64_t lse_batch_stride, lse_head_stride;            // elements
  int64_t score_batch_stride, score_head_stride;        // elements
  float softmax_scale, logit_softcap;
  float eps;
  int32_t reserved;
};

// drop_observe_score: drop_observe and drop_score in one launch, for prompts of which neither log-sum-exps nor outputs are at hand.
struct DropObserveScoreArgs {
  KvCache cache;
  const void* q;                 // [batch, q head, window, dim], cache dtype
  float* scores;                 // [batch, kv head, token]
  uint32_t* workspace;           // zeroed once by the caller; every launch leaves it zeroed
  int64_t q_batch_stride, q_head_stride, q_row_stride;  // elements
  int64_t score_batch_stride, score_head_stride;        // elements
  float softmax_scale, logit_softcap;
  float eps;
  int32_t reserved;
};

// drop_pool: smooths scores along the sequence; pinned tokens become +inf.
struct DropPoolArgs {
  const float* scores;           // [batch, kv head, token]
  const int32_t* seq_lens;       // [batch]
  float* pooled;                 // [batch, kv head, token]; not the scores themselves
  int64_t score_batch_stride, score_head_stride;        // elements
  int64_t pooled_batch_stride, pooled_head_stride;      // elements
  int32_t batch, kv_heads, max_tokens, sinks;
};

// What drop_allot and drop_select know of a layer's budget. keep = max(ceil(ratio * n), window, 1), at most n.
struct DropBudget {
  double ratio;                  // of the prompt, or 0: tokens
  double floor;                  // adaptive: share of a head's free tokens that its own best are sure of
  int32_t tokens;
  int32_t window, sinks;         // always kept, the window first, inside the budget
  int32_t layer, layers;         // pyramid; layers 0 for other kinds
  int32_t reserved;
};

// drop_allot: how many tokens each head of a layer keeps under adaptive budgets.
struct DropAllotArgs {
  const float* values;           // [batch, kv head, token], pooled
  const int32_t* seq_lens;       // [batch]
  int32_t* budgets;              // [batch, kv head], dense
  uint32_t* workspace;           // zeroed once by the caller; every launch leaves it zeroed
  int64_t value_batch_stride, value_head_stride;        // elements
  DropBudget budget;
  int32_t batch, kv_heads, max_tokens;
  int32_t reserved;
};

// drop_select: the kept tokens of each head, ascending, -1 after.
struct DropSelectArgs {
  const float* values;           // [batch, kv head, token], pooled; null: the most recent are best (streaming)
  const int32_t* seq_lens;       // [batch]
  const int32_t* budgets;        // [batch, kv head] by budget_batch_stride, or null: from the budget below
  int32_t* indices;              // [batch, kv head, slots]
  int32_t* counts;               // [batch, kv head], dense: head_lens of the compacted cache
  int64_t value_batch_stride, value_head_stride;        // elements
  int64_t index_batch_stride, index_head_stride;        // elements
  int64_t budget_batch_stride;                          // elements; 0: every request has the same
  DropBudget budget;
  int32_t batch, kv_heads, max_tokens;
  int32_t slots;                 // no head may keep more
};

// drop_compact: gathers the kept tokens of each head to the front of a cache.
struct DropCompactArgs {
  KvCache source;
  KvCache target;                // its block_table lists where pages may go: fresh blocks, or in_place the source's own for the same page
  const int32_t* indices;        // [batch, kv head, slots], ascending
  const int32_t* counts;         // [batch, kv head], dense
  const int32_t* positions_in;   // [batch, kv head, token] of the source, or null: a token's index is its position
  int32_t* positions;            // [batch, kv head, slots], or null
  int32_t* head_lens;            // [batch, kv head], dense, of the target
  int32_t* seq_lens;             // [batch] of the target: the longest head
  int32_t* table;                // [batch, target.max_pages] of the target, freed pages -1, or null; not a table that is read here
  int64_t index_batch_stride, index_head_stride;        // elements; positions have the same
  int64_t position_batch_stride, position_head_stride;  // of positions_in, elements
  int64_t table_stride;                                 // elements, of table
  int32_t slots;
  int32_t in_place;              // 1 where target blocks may be source blocks: one block serves a head, in order
};

}  // namespace kvloom
