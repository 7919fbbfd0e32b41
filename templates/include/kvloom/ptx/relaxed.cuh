// Words in global memory that blocks of one launch hand to each other: each word tells by itself that it has been written, so that
// nothing orders them.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

__device__ __forceinline__ uint32_t load_relaxed(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.relaxed.gpu.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void store_relaxed(uint32_t* p, uint32_t v) {
  asm volatile("st.relaxed.gpu.global.u32 [%0], %1;" ::"l"(p), "r"(v) : "memory");
}

}  // namespace kvloom::ptx
