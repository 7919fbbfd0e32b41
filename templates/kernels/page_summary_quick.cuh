// Small parts of page_summary_tridiagonal.cuh: operands of its second mma, and scales and codes without a division.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kvloom/ptx/approx.cuh"

namespace kvloom {

__device__ __forceinline__ void load_tile_transposed(uint32_t (&r)[4], const void* row) {
  const ptx::Matrices4 f = ptx::ldmatrix4_transposed(static_cast<uint32_t>(__cvta_generic_to_shared(row)));
#pragma unroll
  for (int i = 0; i < 4; i++) r[i] = f.m[i];
}

__device__ __forceinline__ uint32_t pack_pair(float x, float y, bf16) {
  const __nv_bfloat162 p = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&p);
}

__device__ __forceinline__ uint32_t pack_pair(float x, float y, fp16) {
  const __half2 p = __floats2half2_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&p);
}

// 1/16 twice.
__device__ __forceinline__ uint32_t sixteenths(bf16) { return 0x3d803d80u; }
__device__ __forceinline__ uint32_t sixteenths(fp16) { return 0x2c002c00u; }

// A quick scale: a product for the division, which can differ from it by the last bit before the rounding to bf16. ROUND_UP: to 4
// significant bits.
template <bool ROUND_UP = false>
__device__ __forceinline__ Scale quick_scale(float top, float over_q) {
  float value = __uint_as_float(static_cast<uint32_t>(bf16_bits(top * over_q)) << 16);
  if constexpr (ROUND_UP) value = four_bits(value);
  return {value, value > 0.f ? rcp_approx(value) : 0.f};
}

// make_key_scale for codes of 8 or 4 bits, as quick.
template <class T, int BITS = 8, bool TOKEN = false>
__device__ __forceinline__ KeyScale quick_key_scale(float top, float up) {
  constexpr bool kRoundUp = TOKEN && BITS == 8;
  if constexpr (sizeof(T) == 2) {
    const Scale s = quick_scale<kRoundUp>(top, 1.f / largest_code<BITS>());
    return {s, s.value * up};
  } else {
    const float power = __uint_as_float(__float_as_uint(up) & 0x7f800000u), rest = up / power;  // 1 to 2; NaN where up is
    const Scale s = quick_scale<kRoundUp>(top * rest, 1.f / largest_code<BITS>());
    return {s.value > 0.f ? Scale{s.value / rest, s.inverse * rest} : Scale{0.f, 0.f}, s.value * power};
  }
}

// x rounded to an integer, in the low bits of a float's pattern, plus `bias`: |x| < 2^21. A scale's own maximum is at most
// q (1 + 2^-8) and so rounds to q: codes need no clamp.
__device__ __forceinline__ uint32_t round_bits(float x, float inverse, int bias) {
  return __float_as_uint(fmaf(x, inverse, 12582912.f + static_cast<float>(bias)));
}

}  // namespace kvloom
