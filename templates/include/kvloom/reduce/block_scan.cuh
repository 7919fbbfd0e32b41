// Sums over warps and blocks in a fixed order.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::reduce {

constexpr uint32_t kFullWarp = 0xffffffffu;

__device__ __forceinline__ int warp_sum(int value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value += __shfl_xor_sync(kFullWarp, value, step);
  return value;
}

// The sum of the lanes below this one.
__device__ __forceinline__ int warp_exclusive_scan(int value) {
  const int lane = threadIdx.x % 32;
  int sum = value;
#pragma unroll
  for (int step = 1; step < 32; step *= 2) {
    const int other = __shfl_up_sync(kFullWarp, sum, step);
    if (lane >= step) sum += other;
  }
  return sum - value;
}

// The sum of the threads below this one. totals is scratch that no thread may reuse before the next barrier.
template <int kThreads>
__device__ __forceinline__ int block_exclusive_scan(int value, int (&totals)[kThreads / 32]) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const int below = warp_exclusive_scan(value);
  if (lane == 31) totals[warp] = below + value;
  __syncthreads();
  const int of_warps = warp_exclusive_scan(lane < kWarps ? totals[lane] : 0);
  return below + __shfl_sync(kFullWarp, of_warps, warp);
}

}  // namespace kvloom::reduce
