// The argument structs of the four Locks families. Each kernel takes exactly one of them by value.
// runtime/kernel/abi.go mirrors them field for field; a test compares sizes and offsets.
// Pointers come first, then 64-bit integers, then 32-bit, so that no compiler inserts padding.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// A paged KV cache by base pointers and strides, never by a shape name. Strides count elements; dim stride is 1.
struct KvCache {
  const void* k;                 // [block, token, kv head, dim] by strides
  const void* v;                 // [block, token, kv head, dim] by strides
  const int32_t* block_table;    // [batch, max_pages], row stride table_stride; -1 and stale tails are never followed
  const int32_t* seq_lens;       // [batch] tokens in the cache, the query's own included
  const int32_t* head_lens;      // [batch, kv_heads] or null; honoured by page_attend alone
  const int32_t* row_table;      // KIVI: [batch, max_pages] like block_table, the blocks of k and v, which hold the pages that are not quantised
  uint8_t* store;                // KIVI: [block, kv head] records of quantised pages (quant/kivi.cuh), block_table's blocks; else not read
  int64_t k_block_stride, k_token_stride, k_head_stride;
  int64_t v_block_stride, v_token_stride, v_head_stride;
  int64_t store_block_stride, store_head_stride;  // bytes, multiples of 16
  int64_t table_stride;
  int32_t batch, kv_heads;
  int32_t max_pages;             // columns of block_table: no request has more pages
  float k_scale, v_scale;        // e4m3: keys and values are codes times these; else not read
  int32_t reserved;
};

// page_summary: summarises every page that became complete since built_lens, then advances built_lens.
struct PageSummaryArgs {
  KvCache cache;
  uint8_t* summaries;            // [block, kv head] records, byte strides below
  int32_t* built_lens;           // [batch] tokens already summarised (a multiple of the page size); written
  uint32_t* workspace;           // zeroed once by the caller; its counters are left zeroed
  const void* weights;           // query-weighted bases: [kv head] factors as query_factor writes them; else not read
  const float* centre;           // 4-bit centroids: [kv head, dim] mean keys that they are stored less; null: zero. Else not read
  int64_t summary_block_stride, summary_head_stride;  // bytes, multiples of 16
};

// kv_quantize: quantises every page that became complete since quantized_lens into the store, then advances quantized_lens.
struct KvQuantizeArgs {
  KvCache cache;
  int32_t* quantized_lens;       // [batch] tokens already quantised (a multiple of the page size); written
  uint32_t* workspace;           // zeroed once by the caller; its counters are left zeroed
};

// page_score: equation 2 for complete pages, the exact log-sum-exp for the page that is still filling. Where pages share summaries
// (groups.cuh), of groups; max_pages is then a multiple of their pages.
struct PageScoreArgs {
  KvCache cache;
  const void* q;                 // [batch, q head, dim], cache dtype; bf16 beside e4m3
  const uint8_t* summaries;      // [block, kv head]
  float* scores;                 // [batch, q head, page], natural log
  float* masses;                 // [q head, kMassParts, 2] of a batch of one, for page_select (reduce/masses.cuh); or null
  const float* centre;           // as page_summary's
  uint32_t* workspace;
  int64_t q_batch_stride, q_head_stride;              // elements
  int64_t summary_block_stride, summary_head_stride;  // bytes
  int64_t score_batch_stride, score_head_stride;      // elements
  float softmax_scale, logit_softcap;                 // cap 0 with kSoftcap == false
};

// page_select: combines the group's scores and picks exactly min(slots, pages) pages a list, ascending, -1 after. Where pages share summaries
// it knows groups alone: max_pages, slots and what is always kept count them, and lists hold them.
struct PageSelectArgs {
  const float* scores;           // [batch, q head, page]
  const float* masses;           // as page_score left them beside these scores; or null
  const int32_t* seq_lens;       // [batch]
  int32_t* pages;                // [batch, list, slots]; a list is a kv head, or a query head for per_head
  int32_t* counts;               // [batch, list], dense
  uint32_t* workspace;           // zeroed once by the caller; its counters are left zeroed
  int64_t score_batch_stride, score_head_stride;      // elements
  int64_t pages_batch_stride, pages_list_stride;      // elements
  int32_t batch, kv_heads, max_pages;
  int32_t slots, sink_pages, recent_pages;
};

// page_rerank: scores the candidates of every list exactly and chooses min(slots, candidates) of them, ascending, -1 after. Where pages share
// summaries scores and candidates are of groups, whose pages it scores and chooses one by one.
struct PageRerankArgs {
  KvCache cache;
  const void* q;                    // [batch, q head, dim], as page_score
  const float* scores;              // [batch, q head, page]: estimates of complete pages, the exact score of the one that is filling
  const float* masses;              // as page_score left them beside these scores; or null
  const int32_t* candidates;        // [batch, list, candidate_slots] ascending: what page_select chose
  const int32_t* candidate_counts;  // [batch, list], dense
  int32_t* pages;                   // [batch, list, slots]
  int32_t* counts;                  // [batch, list], dense
  uint32_t* workspace;              // zeroed once by the caller; its counters are left zeroed
  int64_t q_batch_stride, q_head_stride;                    // elements
  int64_t score_batch_stride, score_head_stride;            // elements
  int64_t candidates_batch_stride, candidates_list_stride;  // elements
  int64_t pages_batch_stride, pages_list_stride;            // elements
  float softmax_scale, logit_softcap;
  int32_t candidate_slots, slots, sink_pages, recent_pages;
};

// page_rerank_attend: page_rerank, and attention over the pages that it chooses.
struct PageRerankAttendArgs {
  PageRerankArgs rerank;            // its workspace is not used
  void* out;                        // [batch, q head, dim], q's dtype
  float* lse;                       // [batch, q head], dense, natural log; may be null
  int64_t out_batch_stride, out_head_stride;                // elements
};

// page_select_rerank_attend: all three in one launch; the rerank reads the candidates that select writes.
struct PageSelectRerankAttendArgs {
  PageSelectArgs select;
  PageRerankAttendArgs both;
};

// page_attend: softmax over the listed pages alone, or over all pages when pages is null (dense).
struct PageAttendArgs {
  KvCache cache;
  const void* q;                 // [batch, q head, dim], cache dtype; bf16 beside e4m3
  const int32_t* pages;          // [batch, list, slots] page indices (not block ids), or null: every page
  const int32_t* counts;         // [batch, list], dense; null with pages
  void* out;                     // [batch, q head, dim], q's dtype
  float* lse;                    // [batch, q head], dense, natural log; may be null
  uint32_t* workspace;           // zeroed once by the caller; its counters are left zeroed
  int64_t q_batch_stride, q_head_stride;              // elements
  int64_t out_batch_stride, out_head_stride;          // elements
  int64_t pages_batch_stride, pages_list_stride;      // elements
  float softmax_scale, logit_softcap;
  int32_t slots;
  int32_t reserved;
};

// page_select_attend: both in one launch; attend reads the lists that select writes.
struct PageSelectAttendArgs {
  PageSelectArgs select;
  PageAttendArgs attend;
};

}  // namespace kvloom
