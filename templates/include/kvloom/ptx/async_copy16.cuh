// cp.async of 16 bytes without a size: the zero-filling form (async_copy.cuh) costs a 64-bit addition a copy.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

// Copies 16 bytes; both addresses are multiples of 16.
__device__ __forceinline__ void copy16(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(to_shared), "l"(from) : "memory");
}

}  // namespace kvloom::ptx
