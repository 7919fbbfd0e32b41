// How parts of a softmax become one: sums relative to 2^peak of each part, added relative to the largest peak, always in the same order.
#pragma once

#include "kernels/page_attend_state.cuh"

namespace kvloom {

namespace attend {

// Four dims of the merged result of `kParts` parts, and the peak and sum of their head.
struct MergedQuad {
  float4 o;
  float peak, sum;
};

template <int kParts, class LoadStats, class LoadOut>
__device__ __forceinline__ MergedQuad merge_quad(LoadStats stats_of, LoadOut out_of) {
  MergedQuad m{{0.0f, 0.0f, 0.0f, 0.0f}, minus_infinity(), 0.0f};
  float2 stats[kParts];
#pragma unroll
  for (int i = 0; i < kParts; ++i) stats[i] = stats_of(i);
#pragma unroll
  for (int i = 0; i < kParts; ++i) m.peak = fmaxf(m.peak, stats[i].x);
#pragma unroll
  for (int i = 0; i < kParts; ++i) {
    const float w = weight(stats[i].x, m.peak);
    const float4 o = out_of(i);
    m.sum += w * stats[i].y;
    m.o.x += w * o.x, m.o.y += w * o.y, m.o.z += w * o.z, m.o.w += w * o.w;
  }
  return m;
}

// How many lanes share out the parts of a quad, so that no thread of a block is idle beside others that add sixteen parts one after the other.
constexpr int sharers(int parts, int quads, int threads) {
  int share = 1;
  while (2 * share <= parts && parts % (2 * share) == 0 && 2 * share <= 8 && 2 * share * quads <= threads) share *= 2;
  return share;
}

// merge_quad by kShare lanes of a warp, 32 / kShare apart, each of which adds kParts / kShare parts; all have the result. Whole warps alone.
template <int kParts, int kShare, class LoadStats, class LoadOut>
__device__ __forceinline__ MergedQuad merge_shared(LoadStats stats_of, LoadOut out_of) {
  constexpr int kEach = kParts / kShare, kApart = 32 / kShare;
  const int first = threadIdx.x % 32 / kApart * kEach;
  MergedQuad m{{0.0f, 0.0f, 0.0f, 0.0f}, minus_infinity(), 0.0f};
  float2 stats[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) stats[i] = stats_of(first + i);
#pragma unroll
  for (int i = 0; i < kEach; ++i) m.peak = fmaxf(m.peak, stats[i].x);
#pragma unroll
  for (int step = kApart; step < 32; step *= 2) m.peak = fmaxf(m.peak, __shfl_xor_sync(kAll, m.peak, step));
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const float w = weight(stats[i].x, m.peak);
    const float4 o = out_of(first + i);
    m.sum += w * stats[i].y;
    m.o.x += w * o.x, m.o.y += w * o.y, m.o.z += w * o.z, m.o.w += w * o.w;
  }
#pragma unroll
  for (int step = kApart; step < 32; step *= 2) {
    m.sum += __shfl_xor_sync(kAll, m.sum, step);
    m.o.x += __shfl_xor_sync(kAll, m.o.x, step), m.o.y += __shfl_xor_sync(kAll, m.o.y, step);
    m.o.z += __shfl_xor_sync(kAll, m.o.z, step), m.o.w += __shfl_xor_sync(kAll, m.o.w, step);
  }
  return m;
}

// The first of a thread's quads, and whether it is the one of its lanes that passes the result on.
template <int kShare>
__device__ __forceinline__ int first_quad() {
  return threadIdx.x / 32 * (32 / kShare) + threadIdx.x % (32 / kShare);
}
template <int kShare>
__device__ __forceinline__ bool passes_on() {
  return threadIdx.x % 32 < 32 / kShare;
}

// merge_quad of a number of parts known only now, kChunk at a time: all loads of a chunk are in flight together.
template <int kChunk, class LoadStats, class LoadOut>
__device__ __forceinline__ MergedQuad merge(int parts, LoadStats stats_of, LoadOut out_of) {
  MergedQuad m{{0.0f, 0.0f, 0.0f, 0.0f}, minus_infinity(), 0.0f};
#pragma unroll 1
  for (int base = 0; base < parts; base += kChunk) {
    float2 stats[kChunk];
    float4 o[kChunk];
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      stats[i] = make_float2(minus_infinity(), 0.0f), o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
      if (base + i < parts) stats[i] = stats_of(base + i), o[i] = out_of(base + i);
    }
    const float before = m.peak;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) m.peak = fmaxf(m.peak, stats[i].x);
    const float shrink = weight(before, m.peak);
    m.sum *= shrink, m.o.x *= shrink, m.o.y *= shrink, m.o.z *= shrink, m.o.w *= shrink;
#pragma unroll
    for (int i = 0; i < kChunk; ++i) {
      const float w = weight(stats[i].x, m.peak);
      m.sum += w * stats[i].y;
      m.o.x += w * o[i].x, m.o.y += w * o[i].y, m.o.z += w * o[i].z, m.o.w += w * o[i].w;
    }
  }
  return m;
}

}  // namespace attend

}  // namespace kvloom
