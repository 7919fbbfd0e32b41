// mma.sync.m16n8k16 with f32 accumulators. Fragments of lane l, with g = l / 4 and p = l % 4, two 16-bit values a register:
//   A (row major): a0 = row g, columns 2p, 2p+1; a1 = row g+8; a2 = row g, columns 2p+8, 2p+9; a3 = row g+8 of those
//   B (column major): b0 = rows 2p, 2p+1 of column g; b1 = rows 2p+8, 2p+9
//   D: d0, d1 = row g, columns 2p, 2p+1; d2, d3 = row g+8
// The order of the k dimension is free as long as A and B agree. The asm is not volatile: the compiler interleaves chains.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                             uint32_t b1, fp16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

__device__ __forceinline__ void mma_m16n8k16(float (&d)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3, uint32_t b0,
                                             uint32_t b1, bf16) {
  asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
}

}  // namespace kvloom
