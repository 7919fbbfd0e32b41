// mma.sync.m16n8k32 of 8-bit integers with s32 accumulators. Fragments of lane l, with g = l / 4 and p = l % 4, four bytes a register:
//   A (row major): a0 = row g, columns 4p .. 4p+3; a1 = row g+8; a2 = row g, columns 4p+16 .. 4p+19; a3 = row g+8 of those
//   B (column major): b0 = rows 4p .. 4p+3 of column g; b1 = rows 4p+16 .. 4p+19
//   D: d0, d1 = row g, columns 2p, 2p+1; d2, d3 = row g+8
// The order of the k dimension is free as long as A and B agree.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// Unsigned A, signed B.
__device__ __forceinline__ void mma_m16n8k32_us(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

// Signed A, signed B.
__device__ __forceinline__ void mma_m16n8k32_ss(int (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                                uint32_t b1) {
  asm("mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+r"(d[0]), "+r"(d[1]), "+r"(d[2]), "+r"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace kvloom
