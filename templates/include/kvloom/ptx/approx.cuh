// Reciprocals on the special function unit: relative error about 2^-22, no Newton step and no care for denormal numbers.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

__device__ __forceinline__ float rcp_approx(float x) {
  float y;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float rsqrt_approx(float x) {
  float y;
  asm("rsqrt.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A product that is 0 where it would be below 2^-126.
__device__ __forceinline__ float multiply_flushed(float x, float y) {
  float z;
  asm("mul.ftz.f32 %0, %1, %2;" : "=f"(z) : "f"(x), "f"(y));
  return z;
}

}  // namespace kvloom
