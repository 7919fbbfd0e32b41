// Pooling of token scores along the sequence, over the tokens before the window, four neighbours at a time.
//
// max leaves NaN out and pads with -inf; avg divides by the tokens inside, and a NaN makes its neighbours NaN.
#pragma once

#include "kvloom/ptx/exp2.cuh"

namespace kvloom::drop {

enum class Pool { kMax, kAverage, kNone };

// Four consecutive floats from a multiple of 16 bytes.
__device__ __forceinline__ void load_four(const float* from, float (&v)[4]) {
  const float4 x = *reinterpret_cast<const float4*>(from);
  v[0] = x.x, v[1] = x.y, v[2] = x.z, v[3] = x.w;
}

template <Pool KIND, int WIDTH>
struct Pooling {
  static_assert(WIDTH % 2 == 1 && WIDTH >= 1 && WIDTH <= 63, "pools are odd, 1 to 63 wide");
  static constexpr int kHalf = KIND == Pool::kNone ? 0 : WIDTH / 2;
  static constexpr int kPad = (kHalf + 3) / 4 * 4;  // what is read on either side of four tokens

  // The pooled values of tokens [token, token + 4), token a multiple of 4 below `end`, from the head's scores of tokens [0, end). Their own
  // are given. What is not before `end` has no meaning. aligned: row is a multiple of 16 bytes.
  __device__ __forceinline__ static void four(const float* row, int token, int end, bool aligned, const float (&own)[4], float (&out)[4]) {
    if (aligned && token >= kPad && token + 4 + kPad <= end) {
      inside(row + token, own, out);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j] = token + j < end ? at_edge(row, token + j, end) : 0.0f;
    }
  }

  // The same of scores in shared memory: `staged` has the first of the four, kPad before and after them, NaN where there is no token.
  __device__ __forceinline__ static void four(const float* row, const float* staged, int token, int end, float (&v)[4]) {
    if (KIND == Pool::kMax || (token >= kHalf && token + 4 + kHalf <= end)) {
      float own[4];
      load_four(staged, own);
      inside(staged, own, v);
    } else {
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = token + j < end ? at_edge(row, token + j, end) : 0.0f;
    }
  }

 private:
  // All neighbours exist.
  __device__ __forceinline__ static void inside(const float* from, const float (&own)[4], float (&out)[4]) {
    float left[3] = {}, right[3] = {}, core = 0.0f;  // of a maximum: what some of the four see, and what all do
#pragma unroll
    for (int k = -kPad; k < 4 + kPad; k += 4) {
      float v[4] = {own[0], own[1], own[2], own[3]};
      if (k != 0) load_four(from + k, v);
#pragma unroll
      for (int e = 0; e < 4; ++e) {
        const int i = k + e + kHalf;  // token j sees those from j to j + 2 kHalf
        if (i < 0 || i > 3 + 2 * kHalf) continue;
        if constexpr (KIND == Pool::kAverage || kHalf < 2) {
#pragma unroll
          for (int j = 0; j < 4; ++j) {
            if (i < j || i > j + 2 * kHalf) continue;
            out[j] = i == j ? v[e] : KIND == Pool::kAverage ? out[j] + v[e] : fmaxf(out[j], v[e]);
          }
        } else if (i < 3) {
          left[i] = v[e];
        } else if (i <= 2 * kHalf) {
          core = i == 3 ? v[e] : fmaxf(core, v[e]);
        } else {
          right[i - 2 * kHalf - 1] = v[e];
        }
      }
    }
    if constexpr (KIND == Pool::kAverage) {
#pragma unroll
      for (int j = 0; j < 4; ++j) out[j] /= static_cast<float>(2 * kHalf + 1);
    } else if constexpr (kHalf >= 2) {
      const float first = fmaxf(right[0], right[1]), last = fmaxf(left[1], left[2]);
      out[0] = fmaxf(core, fmaxf(left[0], last));
      out[1] = fmaxf(core, fmaxf(last, right[0]));
      out[2] = fmaxf(core, fmaxf(left[2], first));
      out[3] = fmaxf(core, fmaxf(first, right[2]));
    }
  }

  __device__ __forceinline__ static float at_edge(const float* row, int token, int end) {
    const int low = max(token - kHalf, 0), high = min(token + kHalf + 1, end);
    float value = KIND == Pool::kAverage ? 0.0f : row[low];
#pragma unroll 1
    for (int j = KIND == Pool::kAverage ? low : low + 1; j < high; ++j) value = KIND == Pool::kAverage ? value + row[j] : fmaxf(value, row[j]);
    return KIND == Pool::kAverage ? value / static_cast<float>(high - low) : value;
  }
};

}  // namespace kvloom::drop
