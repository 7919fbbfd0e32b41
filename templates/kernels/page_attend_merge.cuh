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

// The same of a number of parts known only now, kChunk at a time: all loads of a chunk are in flight together.
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
