// Loads of a few 32-bit words from read-only global memory or from shared memory, in the widest pieces that the alignment allows.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// The largest power of two that divides n, at most 16: what a compile-time offset leaves of a 16-byte alignment.
__host__ __device__ constexpr int alignment_of(int n) {
  return n % 16 == 0 ? 16 : n % 8 == 0 ? 8 : n % 4 == 0 ? 4 : n % 2 == 0 ? 2 : 1;
}

// Bytes in global memory that no one writes while the kernel runs. The loads are not volatile, so that the compiler may hoist
// them over arithmetic: that is where memory-level parallelism comes from.
struct GlobalBytes {
  const uint8_t* base;

  __device__ __forceinline__ uint4 load16(int at) const {
    uint4 v;
    asm("ld.global.nc.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(base + at));
    return v;
  }
  __device__ __forceinline__ uint2 load8(int at) const {
    uint2 v;
    asm("ld.global.nc.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(base + at));
    return v;
  }
  __device__ __forceinline__ uint32_t load4(int at) const {
    uint32_t v;
    asm("ld.global.nc.u32 %0, [%1];" : "=r"(v) : "l"(base + at));
    return v;
  }
  __device__ __forceinline__ uint16_t load2(int at) const {
    uint16_t v;
    asm("ld.global.nc.u16 %0, [%1];" : "=h"(v) : "l"(base + at));
    return v;
  }
};

// Bytes in shared memory.
struct SharedBytes {
  const uint8_t* base;

  __device__ __forceinline__ uint4 load16(int at) const { return *reinterpret_cast<const uint4*>(base + at); }
  __device__ __forceinline__ uint2 load8(int at) const { return *reinterpret_cast<const uint2*>(base + at); }
  __device__ __forceinline__ uint32_t load4(int at) const { return *reinterpret_cast<const uint32_t*>(base + at); }
  __device__ __forceinline__ uint16_t load2(int at) const { return *reinterpret_cast<const uint16_t*>(base + at); }
};

// Loads WORDS consecutive words from byte `at`, of which the caller knows that it is a multiple of ALIGN (4, 8 or 16).
template <int WORDS, int ALIGN, class Bytes>
__device__ __forceinline__ void load_words(const Bytes& bytes, int at, uint32_t (&w)[WORDS]) {
  static_assert(ALIGN >= 4, "words are loaded from multiples of 4 bytes");
  constexpr int kBy16 = ALIGN >= 16 ? WORDS / 4 * 4 : 0;
  constexpr int kBy8 = ALIGN >= 8 ? WORDS / 2 * 2 : kBy16;
#pragma unroll
  for (int i = 0; i < kBy16; i += 4) {
    const uint4 v = bytes.load16(at + 4 * i);
    w[i] = v.x, w[i + 1] = v.y, w[i + 2] = v.z, w[i + 3] = v.w;
  }
#pragma unroll
  for (int i = kBy16; i < kBy8; i += 2) {
    const uint2 v = bytes.load8(at + 4 * i);
    w[i] = v.x, w[i + 1] = v.y;
  }
#pragma unroll
  for (int i = kBy8; i < WORDS; i++) w[i] = bytes.load4(at + 4 * i);
}

// Asks for the line of L2 that holds an address, without waiting. The address must be readable.
__device__ __forceinline__ void prefetch_l2(const void* p) { asm volatile("prefetch.global.L2 [%0];" ::"l"(p)); }

}  // namespace kvloom
