// page_summary for pages of 16 tokens and ranks up to 8: a warp builds four pages at a time, with the eigenproblem by a direct method
// in registers (linalg/leading16.cuh) and both passes over the keys on tensor cores.
//
// Keys stay in shared memory from the Gram matrix to V, and a page's place is refilled as soon as its V is in registers. The Gram
// matrix is that of the keys themselves: products are exact and the centroid is projected out of the matrix, which costs
// digits where the centroid is long beside the keys' spread, so such pages take page_summary_exact.cuh's way (kSpread). V and the centroid
// come out of one mma: rows 0-7 of A are u, rows 8-15 all 1/16; for ranks up to 4 two pages share a tile. u enters as hi + lo.
// C = sigma u goes straight to the record; V and the centroid lie in shared memory as the record has them, and are copied in 16 bytes.
#pragma once

#include "kernels/page_summary_few.cuh"
#include "kernels/page_summary_tridiagonal_build.cuh"
#include "kernels/page_summary_tridiagonal_codes.cuh"

namespace kvloom {

// Grid: x shares the pages of one request, y the requests. Any grid is right. An SM's blocks after the first begin kStagger ns later
// each, of the first request, which are those that begin together: those before them then have their keys while others' are on their way.
template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, int kStagger, int kNumWarps, int kNumBlocks, int kSharedBytes,
          class FORM = PlainForm>
__device__ __forceinline__ void page_summary_tridiagonal(const PageSummaryArgs& args) {
  using Build = TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, false, FORM>;
  static_assert(kNumWarps * Build::kWarpBytes + Build::kStartBytes == kSharedBytes, "the launch geometry gives each warp exactly what it lays out");
  extern __shared__ __align__(128) uint8_t shared[];
  // A grid of blocks along z: one that the host sized for a page a request, in a decode step.
  if constexpr (FORM::kPlain) {
    using Few = FewPages<Build, HEAD_DIM, RANK, BITS, T, kNumWarps>;
    if (Few::kFits && gridDim.z > 1) return Few::run(args, shared);
  }
  if (blockIdx.z > 0) return;
  const int warp = threadIdx.x / 32;
  float* starts = reinterpret_cast<float*>(shared + kNumWarps * Build::kWarpBytes);
  const bool aligned = Build::aligned(args.cache);
  Build build{shared + warp * Build::kWarpBytes, starts, static_cast<int>(threadIdx.x % 32)};
  build.key_scale = cache_scale<T>(args.cache.k_scale);
  // A request has fewer than 2^29 batches, so blocks past 2^29 have none and need no own place.
  constexpr unsigned kMost = (1u << 29) / kNumWarps;
  const int own = static_cast<int>(min(blockIdx.x, kMost)) * kNumWarps + warp, step = static_cast<int>(min(gridDim.x, kMost)) * kNumWarps;
  // Where each block has one request, its only read of built_lens is soon behind it: who moves built_lens is settled while keys are
  // on their way, and not after the last store.
  const bool early = gridDim.y >= args.cache.batch;
#pragma unroll 1
  for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
    const BuildRange range = build_range<16>(args, request);
    if constexpr (kStagger > 0) {
      if (request == 0 && own + step < Build::batches(range)) __nanosleep(blockIdx.x * kNumBlocks / gridDim.x * kStagger);
    }
    build.start(args, request, range, own, aligned);
    if (request == blockIdx.y) {
      Build::Eigen::make_starts(starts, threadIdx.x, kNumWarps * 32);
      if (early) finish_build<16>(args);
      else __syncthreads();
    }
    build.run(args, request, range, own, step, aligned);
  }
  if (!early || blockIdx.y >= args.cache.batch) finish_build<16>(args);  // every block is counted once
}

}  // namespace kvloom
