// Keys and values in 8 bits: e4m3, a sign, four bits of exponent with bias 7, three of mantissa; no infinity, 0x7f and 0xff are NaN. What a
// cache holds is the code times the layer's k_scale or v_scale. f16 and bf16 hold every code exactly, so kernels convert where they load
// and bring the scale in where sums are f32.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// Two codes (the low 16 bits) to two f16, the first one low.
__device__ __forceinline__ uint32_t e4m3x2_to_f16x2(uint32_t codes) {
#if __CUDA_ARCH__ >= 890
  uint32_t h;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(h) : "h"(static_cast<uint16_t>(codes)));
  return h;
#else
  // The seven bits below the sign are an f16 with an exponent 8 too small; its subnormals are e4m3's.
  const uint32_t wide = __byte_perm(codes, 0, 0x1404);  // each code in the upper byte of a half
  const uint32_t bits = (wide & 0x80008000u) | (wide & 0x7f007f00u) >> 1;
  const __half2 h = __hmul2(*reinterpret_cast<const __half2*>(&bits), __float2half2_rn(256.0f));
  const uint32_t value = *reinterpret_cast<const uint32_t*>(&h);
  return value | __heq2_mask(__habs2(h), __float2half2_rn(480.0f));  // what 0x7f would be
#endif
}

// Two codes to two bf16, the first one low.
__device__ __forceinline__ uint32_t e4m3x2_to_bf16x2(uint32_t codes) {
  const uint32_t bits = e4m3x2_to_f16x2(codes);
  const float2 v = __half22float2(*reinterpret_cast<const __half2*>(&bits));
  const __nv_bfloat162 b = __floats2bfloat162_rn(v.x, v.y);
  return *reinterpret_cast<const uint32_t*>(&b);
}

// A pair of a cache's elements as its compute type holds them: where rows of T are read two at a time. For e4m3 the address is even.
template <typename T>
__device__ __forceinline__ uint32_t load_pair(const T* from) {
  return __ldg(reinterpret_cast<const uint32_t*>(from));
}
template <>
__device__ __forceinline__ uint32_t load_pair<fp8_e4m3>(const fp8_e4m3* from) {
  return e4m3x2_to_bf16x2(__ldg(reinterpret_cast<const uint16_t*>(from)));
}

// Eight elements as the compute type holds them, 16 bytes; the address is a multiple of what they take.
template <typename T>
__device__ __forceinline__ uint4 load_eight(const T* from) {
  return __ldg(reinterpret_cast<const uint4*>(from));
}
template <>
__device__ __forceinline__ uint4 load_eight<fp8_e4m3>(const fp8_e4m3* from) {
  const uint2 w = __ldg(reinterpret_cast<const uint2*>(from));
  return make_uint4(e4m3x2_to_bf16x2(w.x), e4m3x2_to_bf16x2(w.x >> 16), e4m3x2_to_bf16x2(w.y), e4m3x2_to_bf16x2(w.y >> 16));
}

// Four elements, 8 bytes.
template <typename T>
__device__ __forceinline__ uint2 load_four(const T* from) {
  return __ldg(reinterpret_cast<const uint2*>(from));
}
template <>
__device__ __forceinline__ uint2 load_four<fp8_e4m3>(const fp8_e4m3* from) {
  const uint32_t w = __ldg(reinterpret_cast<const uint32_t*>(from));
  return make_uint2(e4m3x2_to_bf16x2(w), e4m3x2_to_bf16x2(w >> 16));
}

// What turns sums over a cache's elements into sums over keys (k_scale) or values (v_scale): 1 for 16-bit caches, whatever the argument.
template <typename T>
__device__ __forceinline__ float cache_scale(float) {
  return 1.0f;
}
template <>
__device__ __forceinline__ float cache_scale<fp8_e4m3>(float scale) {
  return scale;
}

}  // namespace kvloom
