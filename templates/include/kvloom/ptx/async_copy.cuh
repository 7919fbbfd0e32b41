// cp.async: 16-byte copies from global to shared memory that bypass registers and L1 (sm_80).
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

// Copies 16 bytes, or writes 16 zeros and reads nothing. Both addresses are multiples of 16.
__device__ __forceinline__ void copy16_or_zero(uint32_t to_shared, const void* from, bool copy) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from), "r"(copy ? 16 : 0) : "memory");
}

// Copies the first `bytes` of 16 and writes zeros for the others. Both addresses are multiples of 16.
__device__ __forceinline__ void copy16_part(uint32_t to_shared, const void* from, int bytes) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to_shared), "l"(from), "r"(bytes) : "memory");
}

// Copies 4 bytes; both addresses are multiples of 4.
__device__ __forceinline__ void copy4(uint32_t to_shared, const void* from) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to_shared), "l"(from) : "memory");
}

// Closes the group of the copies issued since the last call.
__device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }

// Waits until at most kPending of this thread's groups are incomplete. Other lanes see the data after a __syncwarp.
template <int kPending>
__device__ __forceinline__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;" ::"n"(kPending) : "memory");
}

}  // namespace kvloom::ptx
