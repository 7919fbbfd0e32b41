// drop_pool: smooths token scores along the sequence, over the tokens before the window, and marks pinned tokens with +inf.
//
// max leaves NaN out and pads with -inf; avg divides by the tokens inside, and a NaN makes its neighbours NaN.
#pragma once

#include "kvloom/abi_drop.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/exp2.cuh"

namespace kvloom {

namespace drop {

enum class Pool { kMax, kAverage, kNone };

}  // namespace drop

// kEach: tokens of a thread.
template <int WINDOW, drop::Pool KIND, int WIDTH, int kThreads, int kEach, bool kDependent>
__device__ __forceinline__ void drop_pool(const DropPoolArgs& args) {
  using drop::Pool;
  static_assert(WIDTH % 2 == 1 && WIDTH >= 1 && WIDTH <= 63, "pools are odd, 1 to 63 wide");
  constexpr int kHalf = KIND == Pool::kNone ? 0 : WIDTH / 2;
  constexpr int kTokens = kThreads * kEach;
  __shared__ float scores[kTokens + 2 * kHalf];  // of tokens [first - kHalf, first + kTokens + kHalf)
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int request = blockIdx.z, kv_head = blockIdx.y;
  const int length = min(max(args.seq_lens[request], 0), args.max_tokens);
  const int end = max(length - WINDOW, 0);  // tokens before the window
  const float* const from = args.scores + request * args.score_batch_stride + kv_head * args.score_head_stride;
  float* const to = args.pooled + request * args.pooled_batch_stride + kv_head * args.pooled_head_stride;
  const float kNaN = __int_as_float(0x7fffffff);
  for (int64_t base = static_cast<int64_t>(blockIdx.x) * kTokens; base < length; base += static_cast<int64_t>(gridDim.x) * kTokens) {
    const int first = static_cast<int>(base);
    __syncthreads();
    for (int i = threadIdx.x; i < kTokens + 2 * kHalf; i += kThreads) {
      const int token = first - kHalf + i;
      scores[i] = token >= 0 && token < end ? from[token] : kNaN;
    }
    __syncthreads();
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int token = first + i * kThreads + threadIdx.x;
      if (token >= length) break;
      float value;
      if (token >= end || token < args.sinks) {
        value = -minus_infinity();
      } else if constexpr (KIND == Pool::kAverage) {
        const int low = max(token - kHalf, 0), high = min(token + kHalf + 1, end);
        float sum = 0.0f;
        for (int j = low; j < high; ++j) sum += scores[j - first + kHalf];
        value = sum / static_cast<float>(high - low);
      } else {
        value = scores[i * kThreads + threadIdx.x];
#pragma unroll
        for (int j = 1; j < 2 * kHalf + 1; ++j) value = fmaxf(value, scores[i * kThreads + threadIdx.x + j]);
      }
      to[token] = value;
    }
  }
}

}  // namespace kvloom
