// Base-2 exponential and logarithm on the special function unit, and what is built on them.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

constexpr float kLog2E = 1.44269504088896340736f;
constexpr float kLn2 = 0.69314718055994530942f;

__device__ __forceinline__ float minus_infinity() { return __uint_as_float(0xff800000u); }

// 2^x, relative error 2^-22; 0 below -126; NaN stays NaN.
__device__ __forceinline__ float exp2_approx(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// log2 x, absolute error 2^-22 between 1/2 and 2, relative error 2^-22 elsewhere.
__device__ __forceinline__ float log2_approx(float x) {
  float y;
  asm("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// tanh to about 2^-22 relative. tanh.approx has 2^-11, which a cap of 50 turns into 0.025 nats. Small arguments take the odd
// series (the next term is below 2^-24 relative at 0.25), for 1 - 2^x loses their digits.
__device__ __forceinline__ float tanh_accurate(float x) {
  const float a = fabsf(x);
  const float t = exp2_approx(-2.f * kLog2E * a);
  const float large = copysignf(__fdividef(1.f - t, 1.f + t), x);
  const float s = x * x;
  float p = fmaf(s, 2.1869488e-2f, -5.3968254e-2f);
  p = fmaf(s, p, 1.3333333e-1f);
  p = fmaf(s, p, -3.3333333e-1f);
  const float small = fmaf(x * s, p, x);
  return a < 0.25f ? small : large;
}

// A log-sum-exp in base 2 that is still growing: sum of 2^(x - top). Starts from a finite floor, so that no inf - inf arises; a
// NaN among the terms makes the sum NaN.
struct LogSum2 {
  float top = -1e30f;
  float sum = 0.f;

  // Adds that of the lane whose index differs in the bits of `mask`; both lanes end with the same value.
  __device__ __forceinline__ void merge_lane(int mask) {
    const float t = __shfl_xor_sync(0xffffffffu, top, mask);
    const float s = __shfl_xor_sync(0xffffffffu, sum, mask);
    const float m = fmaxf(top, t);
    // Rounded one by one: a fused multiply-add would make the two lanes differ in the last bit.
    sum = __fadd_rn(__fmul_rn(sum, exp2_approx(top - m)), __fmul_rn(s, exp2_approx(t - m)));
    top = m;
  }
  __device__ __forceinline__ float log2() const { return top + log2_approx(sum); }
};

}  // namespace kvloom
