// page_summary for the scorers that keep no basis: quest (element-wise minimum and maximum, in the cache's type), mean_key (the
// mean, int8 with one bf16 scale) and exact_lse (nothing: built_lens advances, a record is a placeholder that no one reads).
//
// A warp builds one (page, head) at a time. Lane i holds the 8 dims of chunk i % kChunks and every kRows-th token.
#pragma once

#include "kernels/page_summary_common.cuh"

namespace kvloom {

enum class PlainScorer { kQuest, kMeanKey, kExactLse };

template <int HEAD_DIM, int PAGE, class Key, PlainScorer SCORER>
struct PlainBuild {
  static constexpr int kChunks = HEAD_DIM / 8;   // 8 to 32 lanes hold a token
  static constexpr int kRows = 32 / kChunks;     // tokens that a warp reads at once
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "a warp holds a whole token");

  // Calls visit(words) for every token of this lane: 8 keys of its chunk.
  template <class Visit>
  __device__ static __forceinline__ void tokens(const PageSummaryArgs& args, const uint16_t* keys, bool aligned, Visit visit) {
    const int lane = threadIdx.x % 32, chunk = lane % kChunks, row = lane / kChunks;
    if (row >= kRows) return;
#pragma unroll 8
    for (int t = row; t < PAGE; t += kRows) {
      const uint16_t* at = keys + t * args.cache.k_token_stride + chunk * 8;
      uint32_t w[4];
      if (aligned) {
        const uint4 v = __ldg(reinterpret_cast<const uint4*>(at));
        w[0] = v.x, w[1] = v.y, w[2] = v.z, w[3] = v.w;
      } else {
#pragma unroll
        for (int i = 0; i < 4; i++) w[i] = __ldg(at + 2 * i) | static_cast<uint32_t>(__ldg(at + 2 * i + 1)) << 16;
      }
      visit(w);
    }
  }

  // Combines the rows of a chunk; lanes below kChunks get the result.
  template <class Merge>
  __device__ static __forceinline__ float over_rows(float x, Merge merge) {
    const int lane = threadIdx.x % 32;
    float all = x;
#pragma unroll
    for (int row = 1; row < kRows; row++) all = merge(all, __shfl_sync(0xffffffffu, x, (lane + row * kChunks) % 32));
    return all;
  }

  __device__ static __forceinline__ uint32_t pack_pair(float x, float y, bf16) {
    const __nv_bfloat162 v = __floats2bfloat162_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&v);
  }
  __device__ static __forceinline__ uint32_t pack_pair(float x, float y, fp16) {
    const __half2 v = __floats2half2_rn(x, y);
    return *reinterpret_cast<const uint32_t*>(&v);
  }

  // The page's power of two: up is NaN where a key is not finite.
  __device__ static __forceinline__ PageScale scale_of(const PageSummaryArgs& args, const uint16_t* keys, bool aligned) {
    uint32_t top = 0;
    tokens(args, keys, aligned, [&](const uint32_t(&w)[4]) {
#pragma unroll
      for (int i = 0; i < 4; i++) top = larger_bits(top, w[i]);
    });
    return page_scale(__reduce_max_sync(0xffffffffu, top), Key{});
  }

  __device__ static __forceinline__ void quest(const PageSummaryArgs& args, const uint16_t* keys, uint8_t* record, bool aligned) {
    const int lane = threadIdx.x % 32;
    const bool finite = !isnan(scale_of(args, keys, aligned).up);
    float low[8], high[8];
#pragma unroll
    for (int i = 0; i < 8; i++) low[i] = __uint_as_float(0x7f800000u), high[i] = __uint_as_float(0xff800000u);
    tokens(args, keys, aligned, [&](const uint32_t(&w)[4]) {
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const float2 x = unpack(w[i], Key{});
        low[2 * i] = fminf(low[2 * i], x.x), low[2 * i + 1] = fminf(low[2 * i + 1], x.y);
        high[2 * i] = fmaxf(high[2 * i], x.x), high[2 * i + 1] = fmaxf(high[2 * i + 1], x.y);
      }
    });
#pragma unroll
    for (int i = 0; i < 8; i++) {
      low[i] = over_rows(low[i], [](float a, float b) { return fminf(a, b); });
      high[i] = over_rows(high[i], [](float a, float b) { return fmaxf(a, b); });
    }
    if (lane >= kChunks) return;
    uint4 a = make_uint4(0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu, 0x7fff7fffu), b = a;  // NaN in bf16 and fp16
    if (finite) {
      a = make_uint4(pack_pair(low[0], low[1], Key{}), pack_pair(low[2], low[3], Key{}), pack_pair(low[4], low[5], Key{}), pack_pair(low[6], low[7], Key{}));
      b = make_uint4(pack_pair(high[0], high[1], Key{}), pack_pair(high[2], high[3], Key{}), pack_pair(high[4], high[5], Key{}), pack_pair(high[6], high[7], Key{}));
    }
    reinterpret_cast<uint4*>(record)[lane] = a;
    reinterpret_cast<uint4*>(record)[kChunks + lane] = b;
  }

  __device__ static __forceinline__ void mean(const PageSummaryArgs& args, const uint16_t* keys, uint8_t* record, bool aligned) {
    const int lane = threadIdx.x % 32;
    const PageScale page = scale_of(args, keys, aligned);
    float mu[8] = {0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f, 0.f};
    if (page.down != 0.f) {
      tokens(args, keys, aligned, [&](const uint32_t(&w)[4]) {
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float2 x = unpack(w[i], Key{});
          mu[2 * i] = fmaf(x.x, page.down, mu[2 * i]), mu[2 * i + 1] = fmaf(x.y, page.down, mu[2 * i + 1]);
        }
      });
    }
    float top = 0.f;
#pragma unroll
    for (int i = 0; i < 8; i++) {
      mu[i] = over_rows(mu[i], [](float a, float b) { return a + b; }) * (1.f / PAGE);
      if (lane < kChunks) top = fmaxf(top, fabsf(mu[i]));
    }
    top = __uint_as_float(__reduce_max_sync(0xffffffffu, __float_as_uint(top)));
    const Scale scale = make_scale(top, 127.f);
    uint32_t codes[2] = {0u, 0u};
#pragma unroll
    for (int i = 0; i < 8; i++) codes[i / 4] |= (static_cast<uint32_t>(signed_code<8>(mu[i], scale)) & 0xffu) << (i % 4 * 8);
    if (lane < kChunks) reinterpret_cast<uint2*>(record)[lane] = make_uint2(codes[0], codes[1]);
    if (lane < 4) reinterpret_cast<uint32_t*>(record + HEAD_DIM)[lane] = lane == 0 ? bf16_bits(scale.value * page.up) : 0u;
  }
};

// Grid: x blocks for the new (page, head) pairs of a request, y requests; any number of x is right.
template <int HEAD_DIM, int PAGE, class Key, PlainScorer SCORER, int WARPS>
__device__ __forceinline__ void page_summary_plain(const PageSummaryArgs& args) {
  using Build = PlainBuild<HEAD_DIM, PAGE, Key, SCORER>;
  const int request = blockIdx.y, warp = threadIdx.x / 32;
  const BuildRange range = build_range<PAGE>(args, request);
  const bool aligned = keys_aligned(args.cache);
  for (int item = blockIdx.x * WARPS + warp; item < range.items; item += gridDim.x * WARPS) {
    const BuildItem at = build_item(args, request, range, item);
    if (!at.valid) continue;
    const uint16_t* keys = static_cast<const uint16_t*>(args.cache.k) + at.keys;
    uint8_t* record = args.summaries + at.record;
    if constexpr (SCORER == PlainScorer::kQuest)
      Build::quest(args, keys, record, aligned);
    else if constexpr (SCORER == PlainScorer::kMeanKey)
      Build::mean(args, keys, record, aligned);
    else if (threadIdx.x % 32 < 4)
      reinterpret_cast<uint32_t*>(record)[threadIdx.x % 32] = 0u;
  }
  finish_build<PAGE>(args);
}

}  // namespace kvloom
