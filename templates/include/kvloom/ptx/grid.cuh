// What blocks of one launch tell each other through global memory (compute capability 9.0).
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

// Adds to two neighbours (8-byte aligned) in L2; the order of adds from different threads is not fixed.
__device__ __forceinline__ void reduce_add2(float* to, float x, float y) {
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(to), "f"(x), "f"(y) : "memory");
}

// Counts one arrival, after everything that this thread, and others through a barrier before, wrote.
__device__ __forceinline__ uint32_t arrive_grid(uint32_t* counter) {
  uint32_t before;
  asm volatile("fence.acq_rel.gpu;\natom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
  return before;
}

// The same without an answer, for which nobody waits then; adds `x`.
__device__ __forceinline__ void add_release(uint32_t* counter, uint32_t x) {
  asm volatile("red.release.gpu.global.add.u32 [%0], %1;" ::"l"(counter), "r"(x) : "memory");
}

// Waits until so many have arrived, by the bits of `mask`, and sees what they wrote; returns the counter.
__device__ __forceinline__ uint32_t wait_grid(const uint32_t* counter, uint32_t arrivals, uint32_t mask = ~0u) {
  uint32_t seen;
  do {
    asm volatile("ld.acquire.gpu.global.u32 %0, [%1];" : "=r"(seen) : "l"(counter) : "memory");
  } while ((seen & mask) < arrivals);
  return seen;
}

// A barrier of `threads` threads of the block.
template <int ID, int THREADS>
__device__ __forceinline__ void named_barrier() {
  asm volatile("bar.sync %0, %1;" ::"n"(ID), "n"(THREADS) : "memory");
}
__device__ __forceinline__ void named_barrier(int id, int threads) { asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory"); }

// A barrier of so many threads that tells each whether any of them asked.
__device__ __forceinline__ bool any_of_group(int id, bool asks, int threads = 128) {
  uint32_t any;
  asm volatile("{\n.reg .pred p, q;\nsetp.ne.u32 p, %1, 0;\nbar.red.or.pred q, %2, %3, p;\nselp.b32 %0, 1, 0, q;\n}\n"
               : "=r"(any)
               : "r"(static_cast<uint32_t>(asks)), "r"(id), "r"(threads)
               : "memory");
  return any != 0;
}

}  // namespace kvloom::ptx
