// Stores into another block's shared memory that complete on that block's mbarrier (compute capability 9.0): an exchange between
// the blocks of a cluster without a cluster barrier. Addresses are those of map_to_rank.
#pragma once

#include "kvloom/ptx/bulk_copy.cuh"
#include "kvloom/ptx/cluster.cuh"

namespace kvloom::ptx {

__device__ __forceinline__ void store_async(uint32_t address, uint32_t x, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(address), "r"(x), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void store_async(uint32_t address, uint2 v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, [%3];" ::"r"(address), "r"(v.x),
               "r"(v.y), "r"(barrier)
               : "memory");
}

__device__ __forceinline__ void store_async(uint32_t address, uint4 v, uint32_t barrier) {
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, [%5];" ::"r"(address), "r"(v.x),
               "r"(v.y), "r"(v.z), "r"(v.w), "r"(barrier)
               : "memory");
}

// Waits until the phase of this parity is complete, and sees what other blocks' stores brought.
__device__ __forceinline__ void wait_cluster_barrier(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  } while (!done);
}

}  // namespace kvloom::ptx
