// The argument structs of what query-weighted bases need of a prompt's queries. runtime/kernel/abi_query.go mirrors them.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// query_moment: adds the second moments of a prompt's queries, one for each KV head over the queries of its group, in partial sums.
struct QueryMomentArgs {
  const void* q;                 // [batch, token, q head, dim] by strides, after rotary embedding; 16-byte aligned rows
  const int32_t* q_lens;         // [batch] queries of each request
  float* moments;                // [split, kv head, dim, dim], dense; added to, so zeroed before a prompt's first chunk
  int64_t q_batch_stride, q_token_stride, q_head_stride;  // elements, multiples of 8
  int32_t batch, kv_heads, group, splits;
};

// query_factor: from the partial sums to what page_summary reads as weights.
struct QueryFactorArgs {
  const float* moments;          // [split, kv head, dim, dim], dense
  void* weights;                 // [kv head] factors (page_summary_weights.cuh), 16-byte aligned
  int32_t splits, kv_heads;
};

}  // namespace kvloom
