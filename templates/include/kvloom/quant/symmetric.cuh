// Symmetric quantisation as the summary contract has it: scale = bf16(max|x| / q), code = clamp(rne(x / scale), -q, q).
// 2 bits are the four codes 0..3 for -1.5, -0.5, 0.5, 1.5 times a scale of bf16(max|x| / 1.5).
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// Below this a maximum counts as zero. Callers scale their numbers to about one, so it hides nothing and keeps reciprocals finite.
inline constexpr float kZeroMaximum = 1e-30f;

// The largest code of a width; 1.5 for the four levels of 2 bits.
template <int BITS>
__device__ __forceinline__ constexpr float largest_code() {
  return BITS == 2 ? 1.5f : static_cast<float>((1 << (BITS - 1)) - 1);
}

// A bf16 scale as f32, and its reciprocal; both 0 for a zero vector.
struct Scale {
  float value, inverse;
};

// bf16(top / q), rounded once: f32 division rounds first, so a quotient that lands on a tie of bf16 is pushed to its true side.
__device__ __forceinline__ Scale make_scale(float top, float q) {
  if (!(top > kZeroMaximum)) return {0.f, 0.f};
  const float quotient = __fdiv_rn(top, q);
  uint32_t bits = __float_as_uint(quotient);
  if ((bits & 0xffffu) == 0x8000u) {
    const float rest = __fmaf_rn(-quotient, q, top);
    bits += rest > 0.f ? 1u : rest < 0.f ? ~0u : 0u;
  }
  bits += 0x7fffu + ((bits >> 16) & 1u);
  const float value = __uint_as_float(bits & 0xffff0000u);
  return {value, __frcp_rn(value)};
}

// A bf16 scale that is not negative, rounded up to 4 significant bits: f16 holds its products with codes of 8 bits.
__device__ __forceinline__ float four_bits(float scale) { return __uint_as_float(__float_as_uint(scale) + 0x000f0000u & 0xfff00000u); }

// The bf16 pattern of a value that is already a bf16 times a power of two.
__device__ __forceinline__ uint16_t bf16_bits(float x) { return __bfloat16_as_ushort(__float2bfloat16_rn(x)); }

// x / scale, correctly rounded: one residual step after the product with the rounded reciprocal.
__device__ __forceinline__ float divide(float x, Scale s) {
  const float y = x * s.inverse;
  return __fmaf_rn(__fmaf_rn(-y, s.value, x), s.inverse, y);
}

// The signed code of 8 and 4 bits.
template <int BITS>
__device__ __forceinline__ int signed_code(float x, Scale s) {
  constexpr int q = (1 << (BITS - 1)) - 1;
  const int code = __float2int_rn(divide(x, s));
  return min(max(code, -q), q);
}

// What a record stores for one element of the basis, in the low BITS bits.
template <int BITS>
__device__ __forceinline__ uint32_t basis_code(float x, Scale s) {
  if constexpr (BITS == 16) {
    return bf16_bits(x);
  } else if constexpr (BITS == 2) {
    return static_cast<uint32_t>(min(max(__float2int_rn(divide(x, s) + 1.5f), 0), 3));
  } else if constexpr (BITS == 4) {
    return static_cast<uint32_t>(signed_code<4>(x, s) + 8);
  } else {
    return static_cast<uint32_t>(signed_code<8>(x, s)) & 0xffu;
  }
}

}  // namespace kvloom
