// Thread-block clusters and distributed shared memory (compute capability 9.0). A cluster of one compiles to plain block code, so
// that one kernel serves both forms.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

// The 32-bit address of a shared variable inside the calling block's window.
__device__ __forceinline__ uint32_t shared_address(const void* p) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(p));
}

// This block's rank in its cluster.
template <int kCluster>
__device__ __forceinline__ uint32_t cluster_rank() {
  if constexpr (kCluster == 1) {
    return 0;
  } else {
    uint32_t rank;
    asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
    return rank;
  }
}

// A barrier of every thread of the cluster. Shared memory written before it, one's own or another block's, is seen after it.
template <int kCluster>
__device__ __forceinline__ void cluster_sync() {
  if constexpr (kCluster == 1) {
    __syncthreads();
  } else {
    asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
    asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  }
}

// The two halves of a barrier that orders nothing: it tells only that the blocks run, so that their shared memory exists.
template <int kCluster>
__device__ __forceinline__ void cluster_arrive() {
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.arrive.relaxed.aligned;");
}

template <int kCluster>
__device__ __forceinline__ void cluster_wait() {
  if constexpr (kCluster > 1) asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

// The address of the same shared variable in the block of that rank.
__device__ __forceinline__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

__device__ __forceinline__ void store_cluster(uint32_t address, uint32_t x, uint32_t y) {
  asm volatile("st.shared::cluster.v2.u32 [%0], {%1, %2};" ::"r"(address), "r"(x), "r"(y) : "memory");
}

__device__ __forceinline__ uint2 load_cluster(uint32_t address) {
  uint2 v;
  asm volatile("ld.shared::cluster.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(address) : "memory");
  return v;
}

__device__ __forceinline__ uint32_t load_cluster_word(uint32_t address) {
  uint32_t v;
  asm volatile("ld.shared::cluster.u32 %0, [%1];" : "=r"(v) : "r"(address) : "memory");
  return v;
}

}  // namespace kvloom::ptx
