// KeyDiff's two kernels: the mean of the keys' directions (drop_observe), and minus the cosine of each key to it (drop_score). They
// read K alone, once each. A key whose squared norm is below f32's normal numbers has no direction.
#pragma once

#include "kvloom/drop/tile_rows.cuh"
#include "kvloom/ptx/dependent_launch.cuh"

namespace kvloom {

namespace drop {

constexpr float kSmallestNorm = 0x1p-126f;  // of a squared norm

// The tiles of a block of a row of blocks, and how many blocks of the grid have any.
struct Share {
  int begin, end, blocks;
};

template <int kWarps>
__device__ __forceinline__ Share share_of(int length) {
  const int tiles = length / kTile + (length % kTile != 0);
  const int blocks = min(static_cast<int>(gridDim.x), max((tiles + kWarps - 1) / kWarps, 1));
  const int64_t block = blockIdx.x;
  return {static_cast<int>(tiles * min(block, static_cast<int64_t>(blocks)) / blocks),
          static_cast<int>(tiles * min(block + 1, static_cast<int64_t>(blocks)) / blocks), blocks};
}

}  // namespace drop

// Workspace: one record a request and KV head: 64 counter words, then of each split its sum [HEAD_DIM] and its tokens, in 64s.
template <int HEAD_DIM, int PAGE, typename T, int kWarps, bool kDependent>
__device__ __forceinline__ void drop_keydiff_anchor(const DropObserveArgs& args) {
  using namespace drop;
  using R = TileRows<HEAD_DIM>;
  using C = typename Compute<T>::type;
  constexpr int kThreads = 32 * kWarps;
  constexpr int kPart = (HEAD_DIM + 1 + 63) / 64 * 64;
  __shared__ float sums[kWarps][HEAD_DIM];
  __shared__ float counts[kWarps];
  __shared__ int is_last;
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int kv_head = blockIdx.y, request = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Tokens<PAGE> tokens(args.cache, request, length_of<PAGE>(args.cache, request));
  const HeadRows<T> k = keys_of<T>(args.cache, kv_head);
  const float k_scale = cache_scale<T>(args.cache.k_scale);  // directions do not depend on it
  const Share share = share_of<kWarps>(tokens.length);
  if (static_cast<int>(blockIdx.x) >= share.blocks) return;

  float sum[R::kElements] = {};
  float count = 0.0f;
  for (int i = share.begin + warp; i < share.end; i += kWarps) {
    const Place at[2] = {tokens.place(i * kTile + lane / 4), tokens.place(i * kTile + lane / 4 + 8)};
    R key;
    key.load(k.row(at[0]), at[0].live, k.row(at[1]), at[1].live);
    float norm[2];
    key.template fold<C>(norm, [](float x) { return x * x; });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float unit = norm[r] * k_scale * k_scale < kSmallestNorm ? 0.0f : 1.0f / sqrtf(norm[r]);
      key.template each<C>(r, [&](int e, float x) { sum[e] = fmaf(x, unit, sum[e]); });
      if (lane % 4 == 0) count += at[r].live;
    }
  }
#pragma unroll
  for (int e = 0; e < R::kElements; ++e) {
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum[e] += __shfl_xor_sync(kFullWarp, sum[e], step);
    if (lane < 4) sums[warp][R::dim_of(e)] = sum[e];
  }
  count = warp_sum(count);
  if (lane == 0) counts[warp] = count;
  __syncthreads();

  float* const out = static_cast<float*>(args.out) + (static_cast<int64_t>(request) * gridDim.y + kv_head) * HEAD_DIM;
  constexpr int kCounterWords = 64;
  uint32_t* const counter = args.workspace + (static_cast<int64_t>(request) * gridDim.y + kv_head) * (kCounterWords + gridDim.x * kPart);
  float* const parts = reinterpret_cast<float*>(counter + kCounterWords);  // [split][kPart]
  for (int d = threadIdx.x; d <= HEAD_DIM; d += kThreads) {
    float total = 0.0f;
    for (int w = 0; w < kWarps; ++w) total += d < HEAD_DIM ? sums[w][d] : counts[w];
    parts[static_cast<int64_t>(blockIdx.x) * kPart + d] = total;
  }
  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == static_cast<uint32_t>(share.blocks - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int d = threadIdx.x; d < HEAD_DIM; d += kThreads) {
    float total = 0.0f, live = 0.0f;
    for (int i = 0; i < share.blocks; ++i) {
      total += __ldcg(parts + static_cast<int64_t>(i) * kPart + d);
      live += __ldcg(parts + static_cast<int64_t>(i) * kPart + HEAD_DIM);
    }
    out[d] = live > 0.0f ? total / live : 0.0f;
  }
  __syncthreads();  // the workspace is left zeroed
  for (int i = threadIdx.x; i < share.blocks * kPart; i += kThreads) parts[i] = 0.0f;
  if (threadIdx.x == 0) *counter = 0;
}

template <int HEAD_DIM, int PAGE, typename T, int kWarps, bool kDependent>
__device__ __forceinline__ void drop_keydiff_score(const DropScoreArgs& args) {
  using namespace drop;
  using R = TileRows<HEAD_DIM>;
  using C = typename Compute<T>::type;
  __shared__ float anchor[HEAD_DIM];
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int kv_head = blockIdx.y, request = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Tokens<PAGE> tokens(args.cache, request, length_of<PAGE>(args.cache, request));
  const HeadRows<T> k = keys_of<T>(args.cache, kv_head);
  const float k_scale = cache_scale<T>(args.cache.k_scale);  // directions do not depend on it
  const Share share = share_of<kWarps>(tokens.length);
  if (share.begin >= share.end) return;
  const float* const a = static_cast<const float*>(args.a) + request * args.a_batch_stride + kv_head * args.a_head_stride;
  for (int d = threadIdx.x; d < HEAD_DIM; d += 32 * kWarps) anchor[d] = a[d];
  __syncthreads();
  float a_norm = 0.0f;
  for (int d = 0; d < HEAD_DIM; ++d) a_norm += anchor[d] * anchor[d];
  float* const out = args.scores + request * args.score_batch_stride + kv_head * args.score_head_stride;  // [token]
  for (int i = share.begin + warp; i < share.end; i += kWarps) {
    const int token = i * kTile + lane / 4;
    const Place at[2] = {tokens.place(token), tokens.place(token + 8)};
    R key;
    key.load(k.row(at[0]), at[0].live, k.row(at[1]), at[1].live);
    float norm[2];
    key.template fold<C>(norm, [](float x) { return x * x; });
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float dot = 0.0f;
      key.template each<C>(r, [&](int e, float x) { dot = fmaf(x, anchor[R::dim_of(e)], dot); });
      dot = quad_sum(dot);
      const bool none = norm[r] * k_scale * k_scale < kSmallestNorm || a_norm < kSmallestNorm;
      const float score = none ? 0.0f : -dot / (sqrtf(norm[r]) * sqrtf(a_norm));
      if (lane % 4 == 0 && token + 8 * r < tokens.length) out[token + 8 * r] = at[r].live ? score : __int_as_float(0x7fffffff);
    }
  }
}

}  // namespace kvloom
