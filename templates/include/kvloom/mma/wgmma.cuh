// wgmma of sm_90a with A in registers: D[64, N] += A[64, 16] B[N, 16]^T, f32 accumulators, B in shared memory.
//
// Warp w of a warpgroup has rows 16 w to 16 w + 15 of A and D, in the fragment order of mma.m16n8k16; d[4 j + i] is that mma's d[i] of
// columns 8 j to 8 j + 7. Between fence() and wait() neither accumulators nor A may be touched.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::wgmma {

__device__ __forceinline__ void fence() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
__device__ __forceinline__ void commit() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int kPending>
__device__ __forceinline__ void wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(kPending) : "memory");
}

// Makes shared memory written by this thread visible to wgmma and to bulk copies.
__device__ __forceinline__ void proxy_fence() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

// Describes a matrix of core matrices (8 rows of 16 bytes, 128 bytes in one piece) without swizzle: `along_k` and `along_n` are the
// bytes from one to the next.
__device__ __forceinline__ uint64_t describe(uint32_t shared, uint32_t along_k, uint32_t along_n) {
  return static_cast<uint64_t>((shared & 0x3ffffu) >> 4) | static_cast<uint64_t>(along_k >> 4) << 16 |
         static_cast<uint64_t>(along_n >> 4) << 32;
}

template <typename T, int N>
struct Product;

// D: the registers' names; P: their operands; then the numbers of the operands that follow.
#define KVLOOM_WGMMA(TYPE, NAME, N, D, A0, A1, A2, A3, B, S, ...)                                                                      \
  template <>                                                                                                                          \
  struct Product<TYPE, N> {                                                                                                            \
    __device__ __forceinline__ static void add(float (&d)[N / 2], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint64_t b,      \
                                               int keep) {                                                                             \
      asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %" #S ", 0;\nwgmma.mma_async.sync.aligned.m64n" #N "k16.f32." NAME "." NAME        \
                   " {" D "}, {%" #A0 ", %" #A1 ", %" #A2 ", %" #A3 "}, %" #B ", p, 1, 1, 0;\n}\n"                                     \
                   : __VA_ARGS__                                                                                                       \
                   : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "l"(b), "r"(keep));                                                           \
    }                                                                                                                                  \
  };
#define KVLOOM_WGMMA_BOTH(...) KVLOOM_WGMMA(bf16, "bf16", __VA_ARGS__) KVLOOM_WGMMA(fp16, "f16", __VA_ARGS__)
#define KVLOOM_D8 "%0, %1, %2, %3"
#define KVLOOM_P8 "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
#define KVLOOM_D16 KVLOOM_D8 ", %4, %5, %6, %7"
#define KVLOOM_P16 KVLOOM_P8, "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7])
#define KVLOOM_D24 KVLOOM_D16 ", %8, %9, %10, %11"
#define KVLOOM_P24 KVLOOM_P16, "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11])
#define KVLOOM_D32 KVLOOM_D24 ", %12, %13, %14, %15"
#define KVLOOM_P32 KVLOOM_P24, "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15])
#define KVLOOM_D40 KVLOOM_D32 ", %16, %17, %18, %19"
#define KVLOOM_P40 KVLOOM_P32, "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19])
#define KVLOOM_D48 KVLOOM_D40 ", %20, %21, %22, %23"
#define KVLOOM_P48 KVLOOM_P40, "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23])
#define KVLOOM_D56 KVLOOM_D48 ", %24, %25, %26, %27"
#define KVLOOM_P56 KVLOOM_P48, "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27])
#define KVLOOM_D64 KVLOOM_D56 ", %28, %29, %30, %31"
#define KVLOOM_P64 KVLOOM_P56, "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
KVLOOM_WGMMA_BOTH(8, KVLOOM_D8, 4, 5, 6, 7, 8, 9, KVLOOM_P8)
KVLOOM_WGMMA_BOTH(16, KVLOOM_D16, 8, 9, 10, 11, 12, 13, KVLOOM_P16)
KVLOOM_WGMMA_BOTH(24, KVLOOM_D24, 12, 13, 14, 15, 16, 17, KVLOOM_P24)
KVLOOM_WGMMA_BOTH(32, KVLOOM_D32, 16, 17, 18, 19, 20, 21, KVLOOM_P32)
KVLOOM_WGMMA_BOTH(40, KVLOOM_D40, 20, 21, 22, 23, 24, 25, KVLOOM_P40)
KVLOOM_WGMMA_BOTH(48, KVLOOM_D48, 24, 25, 26, 27, 28, 29, KVLOOM_P48)
KVLOOM_WGMMA_BOTH(56, KVLOOM_D56, 28, 29, 30, 31, 32, 33, KVLOOM_P56)
KVLOOM_WGMMA_BOTH(64, KVLOOM_D64, 32, 33, 34, 35, 36, 37, KVLOOM_P64)
#undef KVLOOM_WGMMA
#undef KVLOOM_WGMMA_BOTH

}  // namespace kvloom::wgmma
