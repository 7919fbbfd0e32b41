// Two 16-bit floats in a word, the first in its low half.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

template <typename T>
__device__ __forceinline__ float2 unpack2(uint32_t w);
template <>
__device__ __forceinline__ float2 unpack2<bf16>(uint32_t w) {
  return make_float2(__uint_as_float(w << 16), __uint_as_float(w & 0xffff0000u));
}
template <>
__device__ __forceinline__ float2 unpack2<fp16>(uint32_t w) {
  return __half22float2(*reinterpret_cast<const __half2*>(&w));
}

template <typename T>
__device__ __forceinline__ uint32_t pack2(float lo, float hi);
template <>
__device__ __forceinline__ uint32_t pack2<bf16>(float lo, float hi) {
  const __nv_bfloat162 v = __floats2bfloat162_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}
template <>
__device__ __forceinline__ uint32_t pack2<fp16>(float lo, float hi) {
  const __half2 v = __floats2half2_rn(lo, hi);
  return *reinterpret_cast<const uint32_t*>(&v);
}

// The next 16-bit part of two floats, which keep what it leaves: parts one after the other add up to more digits than T has.
template <typename T>
__device__ __forceinline__ uint32_t take_part(float& x, float& y) {
  const uint32_t word = pack2<T>(x, y);
  const float2 taken = unpack2<T>(word);
  x -= taken.x, y -= taken.y;
  return word;
}

}  // namespace kvloom
