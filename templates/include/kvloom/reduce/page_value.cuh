// How a group's page scores become one value a page, and the integer keys that order values (design.md, "Select").
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::reduce {

enum class Combine { kShareAverage, kGroupMax, kGroupMass, kPeakNormalised, kPerHead };

// Rules whose values are shares, not logarithms.
__device__ __host__ constexpr bool is_share(Combine c) {
  return c == Combine::kShareAverage || c == Combine::kPeakNormalised;
}

constexpr float kInfinity = __builtin_bit_cast(float, 0x7f800000u);
constexpr float kSmallestShare = 0x1p-100f;  // below it a share counts as 0

// exp(s - m) with m >= s. The rounding error of s - m is added back to first order: at scores of 1000 nats it would be 3e-5 of
// the share. NaN and -inf give 0; +inf among +inf gives 1, a finite s below +inf gives 0.
__device__ __forceinline__ float exp_difference(float s, float m) {
  if (s == m) return 1.0f;
  const float d = s - m;
  if (!(d >= -104.0f)) return 0.0f;  // also NaN and infinities
  const float b = d - s;
  const float residual = (s - (d - b)) + (-m - b);
  const float e = expf(d);
  return fmaf(e, residual, e);
}

// A row's peak and its sum of exp(s - peak). The neutral element is {-inf, 0}.
struct Mass {
  float peak, sum;
};

// The mass of the first WIDTH lanes (a power of two), the same in each of them.
template <int WIDTH>
__device__ __forceinline__ Mass warp_merge(Mass v) {
  float peak = v.peak;
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(0xffffffffu, peak, step));
  float sum = v.sum > 0.0f ? v.sum * exp_difference(v.peak, peak) : 0.0f;
#pragma unroll
  for (int step = WIDTH / 2; step > 0; step /= 2) sum += __shfl_xor_sync(0xffffffffu, sum, step);
  return {peak, sum};
}

// Larger keys are better. NaN is 0, below -inf.
__device__ __forceinline__ uint32_t logarithm_key(float v) {
  if (v != v) return 0;
  const uint32_t bits = __float_as_uint(v + 0.0f);  // -0 ties with 0
  return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

// Shares are 0 or at least 2^-100, and their sum at most 64: 30 bits tell them apart. Shifted up by two, the first 11 bits of a
// key hold 16 steps an octave instead of 4, so that the first digit of the radix select leaves few candidates.
__device__ __forceinline__ uint32_t share_key(float sum) {
  constexpr uint32_t kBase = 0x0d800000u - 1;  // bits of 2^-100, one below so that no share maps to 1
  return sum > 0.0f ? ((__float_as_uint(sum) - kBase) << 2) + 1 : 1u;
}

}  // namespace kvloom::reduce
