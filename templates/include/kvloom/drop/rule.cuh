// What the forms of drop_score share: the rules, and what a block knows of a row of the window.
#pragma once

#include "kvloom/drop/tokens.cuh"

namespace kvloom::drop {

enum class Rule { kDropKV, kSnapKV, kValueNorm, kKeyDiff };

constexpr float kSmallestWeight = 0x1p-60f;  // below it a weight counts 0, here and in the reference

// Half the spacing of the type of a, relative: a distance below it times ||a|| cannot be told from 0.
template <typename A>
__device__ constexpr float output_epsilon();
template <>
__device__ constexpr float output_epsilon<float>() { return 0x1p-24f; }
template <>
__device__ constexpr float output_epsilon<bf16>() { return 0x1p-8f; }
template <>
__device__ constexpr float output_epsilon<fp16>() { return 0x1p-11f; }

// What a block knows of one row of the window.
struct RowStats {
  float lse;              // natural log
  float norm;             // ||a||^2
  float unscale;          // -2 times the power of two that a was divided by before it was split
  int limit;              // last token that the row sees; -1: no such row
};

// The power of two that brings the largest of a row to 1 to 2; 1 where that is 0, not finite or without a reciprocal.
struct PowerOfTwo {
  float value, inverse;
  __device__ __forceinline__ explicit PowerOfTwo(float largest) {
    const int exponent = static_cast<int>(__float_as_uint(largest) >> 23);  // of an f32 from 2^-126 to infinity: 1 to 255
    const bool plain = exponent < 2 || exponent > 252;
    value = plain ? 1.0f : __uint_as_float(static_cast<uint32_t>(exponent) << 23);
    inverse = plain ? 1.0f : __uint_as_float(static_cast<uint32_t>(254 - exponent) << 23);
  }
};

// The larger; NaN where either is.
__device__ __forceinline__ float max_nan(float x, float y) {
  float z;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

}  // namespace kvloom::drop
