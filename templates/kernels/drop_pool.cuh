// drop_pool: smooths token scores along the sequence, over the tokens before the window, and marks pinned tokens with +inf.
#pragma once

#include "kvloom/abi_drop.cuh"
#include "kvloom/drop/pooling.cuh"
#include "kvloom/ptx/dependent_launch.cuh"

namespace kvloom {

// kEach: groups of four neighbours that a thread pools, a block's threads apart.
template <int WINDOW, drop::Pool KIND, int WIDTH, int kThreads, int kEach, bool kDependent>
__device__ __forceinline__ void drop_pool(const DropPoolArgs& args) {
  using namespace drop;
  constexpr int kTokens = 4 * kThreads * kEach;  // of a block
  if constexpr (kDependent) {
    ptx::launch_dependents();
    ptx::wait_for_dependencies();
  }
  const int request = blockIdx.z, kv_head = blockIdx.y;
  const int length = min(max(args.seq_lens[request], 0), args.max_tokens);
  const int end = max(length - WINDOW, 0);  // tokens before the window
  const float* const from = args.scores + request * args.score_batch_stride + kv_head * args.score_head_stride;  // [token]
  float* const to = args.pooled + request * args.pooled_batch_stride + kv_head * args.pooled_head_stride;        // [token]
  const bool from_aligned = reinterpret_cast<uint64_t>(from) % 16 == 0, to_aligned = reinterpret_cast<uint64_t>(to) % 16 == 0;
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * kTokens; base < length; base += static_cast<int64_t>(gridDim.x) * kTokens) {
    const int first = static_cast<int>(base) + 4 * static_cast<int>(threadIdx.x);
    // All loads first, so that none waits for another.
    float own[kEach][4];
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = first + 4 * i * kThreads;
      const bool whole = from_aligned && token + 4 <= end;
      if (whole) {
        load_four(from + token, own[i]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) own[i][j] = token + j < end ? from[token + j] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = first + 4 * i * kThreads;
      if (token >= length) break;
      float v[4];
      if constexpr (Pooling<KIND, WIDTH>::kHalf > 0) {
        Pooling<KIND, WIDTH>::four(from, token, end, from_aligned, own[i], v);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[j] = own[i][j];
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (token + j >= end || token + j < args.sinks) v[j] = -minus_infinity();
      if (to_aligned && token + 4 <= length) {
        *reinterpret_cast<float4*>(to + token) = make_float4(v[0], v[1], v[2], v[3]);
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (token + j < length) to[token + j] = v[j];
      }
    }
  }
}

}  // namespace kvloom
