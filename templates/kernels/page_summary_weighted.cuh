// page_summary with query-weighted bases, for pages of 16 tokens and ranks up to 8: page_summary_tridiagonal.cuh with the Gram matrix of
// page_summary_weights.cuh. A block keeps one KV head's factor in shared memory, so its pages are of that head.
#pragma once

#include "kernels/page_summary_tridiagonal.cuh"

namespace kvloom {

// Grid: x shares the KV heads and the pages of each, y the requests. Any grid is right.
template <int HEAD_DIM, int RANK, int BITS, class Key, bool kResidual, int kNumWarps, int kSharedBytes, class FORM = PlainForm>
__device__ __forceinline__ void page_summary_weighted(const PageSummaryArgs& args) {
  using Build = TridiagonalBuild<HEAD_DIM, RANK, BITS, Key, kResidual, true, FORM>;
  using Factor = WeightFactor<HEAD_DIM>;
  static_assert(Factor::kBytes + kNumWarps * Build::kWarpBytes + Build::kStartBytes == kSharedBytes, "the launch geometry gives what is laid out here");
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32, heads = args.cache.kv_heads;
  float* starts = reinterpret_cast<float*>(shared + Factor::kBytes + kNumWarps * Build::kWarpBytes);
  const bool aligned = keys_aligned(args.cache) && args.cache.k_token_stride >= 0 && args.cache.k_token_stride < 1 << 26;
  Build build{shared + Factor::kBytes + warp * Build::kWarpBytes, starts, static_cast<int>(threadIdx.x % 32), shared};
  constexpr unsigned kMost = (1u << 29) / kNumWarps;
  const int grid = static_cast<int>(min(gridDim.x, kMost)), block = static_cast<int>(min(blockIdx.x, kMost));
  const bool early = gridDim.y >= args.cache.batch;
  int loaded = -1;  // whose factor is there
#pragma unroll 1
  for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
    BuildRange range = build_range<16>(args, request);
    range.items /= heads;
    // Heads that a block has one after the other where there are more heads than blocks, else one and a share of its pages.
#pragma unroll 1
    for (int head = block % heads; head < heads; head += grid) {
      const int own = block / heads * kNumWarps + warp, step = max((grid - head + heads - 1) / heads, 1) * kNumWarps;
      build.own_head = head;
      build.start(args, request, range, own, aligned);
      if (head != loaded) {
        __syncthreads();  // the factor before is no longer read
        const uint4* from = reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(args.weights) + static_cast<int64_t>(head) * Factor::kBytes);
        for (int i = threadIdx.x; i < Factor::kBytes / 16; i += kNumWarps * 32) reinterpret_cast<uint4*>(shared)[i] = from[i];
        if (loaded < 0) Build::Eigen::make_starts(starts, threadIdx.x, kNumWarps * 32);
        if (loaded < 0 && early) finish_build<16>(args);
        else __syncthreads();
        loaded = head;
      }
      build.run(args, request, range, own, step, aligned);
    }
  }
  if (!early || blockIdx.y >= args.cache.batch) finish_build<16>(args);  // every block is counted once
}

}  // namespace kvloom
