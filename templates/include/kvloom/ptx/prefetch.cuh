// Fetches into L2 (sm_90): hints, that nothing waits for.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

// bytes and the address are multiples of 16.
__device__ __forceinline__ void fetch_l2(const void* from, uint32_t bytes) {
  asm volatile("cp.async.bulk.prefetch.L2.global [%0], %1;" ::"l"(from), "r"(bytes) : "memory");
}

}  // namespace kvloom::ptx
