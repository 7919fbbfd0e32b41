// What page_rerank_list.cuh is made of: sums of rows, exact scores of pages from logits, ranks among keys, copies of rows, and stores into
// the other blocks of a cluster.
#pragma once

#include "kernels/page_attend_list.cuh"
#include "kernels/page_rerank.cuh"
#include "kernels/page_select_cut.cuh"
#include "kvloom/reduce/masses.cuh"

namespace kvloom {

namespace rerank {

// How a block's warps share the sums of the pages that are no candidates: a warp has a head, several warps share one, or a warp several.
template <int HEADS, int kNumWarps>
struct Others {
  static constexpr int kParts = kNumWarps >= HEADS ? kNumWarps / HEADS : 1;  // warps of a head
};

// exp(s - m) with m >= s, for sums: without the digits that exp_difference adds to far scores.
__device__ __forceinline__ float exp_below(float s, float m) {
  const float d = s - m;
  const float e = d >= -104.0f ? exp2_approx(d * kLog2E) : 0.0f;  // 0 for NaN
  return s == m ? 1.0f : e;
}

// What blocks receive of scores, and scratch.
template <int HEADS, int kNumWarps, int kCluster, int kMost>
struct Gathered {
  float exact[HEADS][kMost];
  float2 others[kCluster][HEADS * Others<HEADS, kNumWarps>::kParts];  // peak, sum
  alignas(16) uint32_t keys[kMost];
  float2 heads[HEADS];  // peak, 1 / mass
};

// The unit of each head: over the candidates' exact scores and what the blocks measured of the others.
template <int HEADS, Combine COMBINE, int kNumWarps, int kCluster, int kMost>
__device__ __forceinline__ void unite(Gathered<HEADS, kNumWarps, kCluster, kMost>& sm, int count) {
  constexpr int kParts = Others<HEADS, kNumWarps>::kParts;
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < HEADS; h += kNumWarps) {
    Mass m{-reduce::kInfinity, 0.0f};
    for (int i = lane; i < count; i += 32) {
      const float s = sm.exact[h][i];
      if (COMBINE != Combine::kGroupMass || s < reduce::kInfinity) m.peak = fmaxf(m.peak, s);
    }
    if (m.peak > -reduce::kInfinity)
      for (int i = lane; i < count; i += 32) m.sum += reduce::exp_difference(sm.exact[h][i], m.peak);
    if constexpr (reduce::is_share(COMBINE)) {
      for (int i = lane; i < kCluster * kParts; i += 32) {
        const float2 other = sm.others[i / kParts][h * kParts + i % kParts];
        add_mass(m, Mass{other.x, other.y});
      }
    }
    m = reduce::warp_merge<32>(m);
    if (lane == 0) sm.heads[h] = make_float2(m.peak, COMBINE == Combine::kShareAverage ? 1.0f / m.sum : 1.0f);
  }
}

// Peak and sum of the estimates of a head's pages begin + lane, begin + lane + step, ... that no bit of marks excludes.
__device__ __forceinline__ Mass measure_row(const float* row, int begin, int end, int step, int window, const uint32_t* marks) {
  constexpr int kAtOnce = 8;
  Mass m{-reduce::kInfinity, 0.0f};
#pragma unroll 1
  for (int base = begin; base < end; base += kAtOnce * step) {
    float v[kAtOnce], peak = m.peak;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int page = base + i * step + threadIdx.x % 32;
      v[i] = page < end ? row[page] : -reduce::kInfinity;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int at = base + i * step + static_cast<int>(threadIdx.x % 32) - window;
      if (at < end - window && (marks[at / 32] >> at % 32 & 1)) v[i] = -reduce::kInfinity;
      peak = fmaxf(peak, v[i]);  // leaves NaN out
    }
    if (!(peak > -reduce::kInfinity)) continue;
    float sum = m.sum > 0.0f ? m.sum * exp_below(m.peak, peak) : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) sum += exp_below(v[i], peak);
    m = Mass{peak, sum};
  }
  return reduce::warp_merge<32>(m);
}

// 16 rows of a page to shared memory, by one warp; rows from `tokens` on become zeros.
template <int HEAD_DIM, int kRowBytes, typename T>
__device__ __forceinline__ void copy_rows(uint32_t to, const T* from, int64_t token_stride, int tokens) {
  constexpr int kPieces = HEAD_DIM / 8, kCopies = attend::kTile * kPieces;
#pragma unroll
  for (int turn = 0; turn < (kCopies + 31) / 32; turn++) {
    const int i = turn * 32 + threadIdx.x % 32, row = i / kPieces, at = i % kPieces;
    if (i < kCopies) ptx::copy16_or_zero(to + row * kRowBytes + at * 16, from + row * token_stride + at * 8, row < tokens);
  }
}

// The heads of a list as B fragments, for rows whose fragments ldmatrix reads.
template <class S>
__device__ __forceinline__ void load_columns(const PageScoreArgs& args, int request, int list, RowQuery<S::kHeadDim, S::kTiles>& query) {
  const int p = threadIdx.x % 4;
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++) {
    const uint8_t* row = query_row<S>(args, request, list, 0, tile);
#pragma unroll
    for (int w = 0; w < S::kHeadDim / 8; w++) query.b[tile][w] = row != nullptr ? GlobalBytes{row}.load4(16 * w + 4 * p) : 0u;
  }
}

// Base-2 logits of a step, as step_logits has them, from 16 rows of keys in shared memory.
template <class S, int kRowBytes>
__device__ __forceinline__ void tile_logits(const PageScoreArgs& args, uint32_t rows, const RowQuery<S::kHeadDim, S::kTiles>& query,
                                            float (&x)[S::kTiles][2][2]) {
  using T = typename S::Element;
  float acc[S::kTiles][4] = {};
  attend::Fragments<S::kHeadDim, T>::template each_key<kRowBytes>(rows, [&](int d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++) mma_m16n8k16(acc[tile], a0, a1, a2, a3, query.b[tile][2 * d], query.b[tile][2 * d + 1], T{});
  });
  scale_logits<S>(args, acc, x);
}

// Exact score of a page from the base-2 logits of its tokens, -inf where there is none: the same in all lanes of one column.
template <int kSteps, int kTiles>
__device__ __forceinline__ float page_lse(const float (&x)[kSteps][kTiles][2][2], int tile, int h) {
  float top = minus_infinity(), sum = 0.0f;
#pragma unroll
  for (int s = 0; s < kSteps; s++) top = fmaxf(top, fmaxf(x[s][tile][0][h], x[s][tile][1][h]));
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(reduce::kFullWarp, top, mask));
#pragma unroll
  for (int s = 0; s < kSteps; s++) sum += attend::weight(x[s][tile][0][h], top) + attend::weight(x[s][tile][1][h], top);
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(reduce::kFullWarp, sum, mask);
  return (top + log2_approx(sum)) * kLn2;
}

// 2^(score of the page - shift), and nothing else: where sums relative to a shift are formed, no logarithm is needed.
template <int kSteps, int kTiles>
__device__ __forceinline__ float page_mass(const float (&x)[kSteps][kTiles][2][2], int tile, int h, float shift) {
  float sum = 0.0f;
#pragma unroll
  for (int s = 0; s < kSteps; s++) sum += exp2_approx(x[s][tile][0][h] - shift) + exp2_approx(x[s][tile][1][h] - shift);
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(reduce::kFullWarp, sum, mask);
  return sum;
}

// Sends neighbouring values to the block of that rank.
template <int N>
__device__ __forceinline__ void send(const float* to, const float (&v)[N], uint32_t barrier, int rank) {
  const uint32_t at = ptx::map_to_rank(ptx::shared_address(to), rank), there = ptx::map_to_rank(barrier, rank);
  static_assert(N == 1 || N == 2 || N % 4 == 0, "whole stores");
  if constexpr (N == 1) {
    ptx::store_async(at, __float_as_uint(v[0]), there);
  } else if constexpr (N == 2) {
    ptx::store_async(at, make_uint2(__float_as_uint(v[0]), __float_as_uint(v[1])), there);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      ptx::store_async(at + 4 * i, make_uint4(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]), __float_as_uint(v[i + 3])), there);
  }
}

// The copies of a lane for 16 rows of keys or values whose pieces fill warps whole: one address, which then only grows.
template <int HEAD_DIM, int kRowBytes, typename T>
struct RowLane {
  static constexpr int kPieces = HEAD_DIM / 8, kRows = 32 / kPieces;
  static constexpr bool kWhole = 32 % kPieces == 0;
  const T* from;     // this lane's row and piece of page 0
  int64_t stride;    // elements between rows

  __device__ __forceinline__ RowLane(const T* rows, int64_t stride) : from(rows), stride(stride) {
    if constexpr (kWhole) from += threadIdx.x % 32 / kPieces * stride + threadIdx.x % kPieces * 8;
  }

  // 16 rows from `offset` elements on.
  __device__ __forceinline__ void copy(uint32_t to, int64_t offset, int tokens) const {
    if constexpr (kWhole) {
      const int row = threadIdx.x % 32 / kPieces;
      const T* next = from + offset;
      to += row * kRowBytes + threadIdx.x % kPieces * 16;
#pragma unroll
      for (int at = 0; at < attend::kTile; at += kRows) {
        ptx::copy16_or_zero(to + at * kRowBytes, next, at + row < tokens);  // a dead row lies in a page too, and is not read
        next += kRows * stride;
      }
    } else {
      copy_rows<HEAD_DIM, kRowBytes>(to, from + offset, stride, tokens);
    }
  }
};

// Of the keys [kHeld] that all warps have made, this lane's, four of every 128; and how many of all rank above candidate i, whose key is not 0: ties to
// the lower index.
template <int kHeld>
struct LaneKeys {
  static_assert(kHeld % 4 == 0, "four keys a load");
  static constexpr int kLoads = (kHeld + 127) / 128;
  uint4 k[kLoads];

  __device__ __forceinline__ explicit LaneKeys(const uint32_t* keys) {
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      const int at = n * 128 + threadIdx.x % 32 * 4;
      k[n] = kHeld % 128 == 0 || at < kHeld ? *reinterpret_cast<const uint4*>(&keys[at]) : make_uint4(0, 0, 0, 0);
    }
  }

  __device__ __forceinline__ int above(int i, uint32_t key) const {
    int better = 0;
#pragma unroll
    for (int n = 0; n < kLoads; n++) {
      const int at = n * 128 + threadIdx.x % 32 * 4;
      better += k[n].x >= key + (at >= i);
      better += k[n].y >= key + (at + 1 >= i);
      better += k[n].z >= key + (at + 2 >= i);
      better += k[n].w >= key + (at + 3 >= i);
    }
    return __reduce_add_sync(reduce::kFullWarp, better);
  }
};

// The masses that page_score has left of a head's row; a lane's parts.
struct RowMasses {
  static constexpr int kLoads = reduce::kMassParts / 32;
  static_assert(reduce::kMassParts % 32 == 0, "a lane has as many parts as another");
  float2 part[kLoads];

  __device__ __forceinline__ void load(const float2* masses) {
#pragma unroll
    for (int i = 0; i < kLoads; i++) part[i] = masses[32 * i + threadIdx.x % 32];
  }

  // The row's shift, and this lane's share of the mass of all its pages relative to 2^shift; by one warp.
  __device__ __forceinline__ float2 sum() const {
    float shift = -reduce::kInfinity, all = 0.0f;
#pragma unroll
    for (int i = 0; i < kLoads; i++)
      if (part[i].y != 0.0f) shift = fmaxf(shift, part[i].x);
#pragma unroll
    for (int mask = 16; mask > 0; mask /= 2) shift = fmaxf(shift, __shfl_xor_sync(reduce::kFullWarp, shift, mask));
#pragma unroll
    for (int i = 0; i < kLoads; i++)
      if (part[i].y != 0.0f) all = fmaf(part[i].y, exp2_approx(part[i].x - shift), all);
    return make_float2(shift, all);
  }
};

__device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) v += __shfl_xor_sync(reduce::kFullWarp, v, mask);
  return v;
}

}  // namespace rerank

}  // namespace kvloom
