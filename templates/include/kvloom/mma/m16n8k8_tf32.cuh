// mma.sync.m16n8k8 of tf32, which reads the upper 19 bits of f32 values and accumulates in f32. Fragments of lane l, with g = l / 4 and
// p = l % 4: a0 = row g, column p; a1 = row g+8; a2 = row g, column p+4; a3 = row g+8 of that; b0 = row p of column g, b1 = row p+4;
// d0, d1 = row g, columns 2p, 2p+1; d2, d3 = row g+8.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// d += row sums of a in the columns n for which `low` of lanes 4n .. 4n+3, of k below 4 (a0, a1), and `high`, of the others, is 1.0f; 0.f
// keeps the others as they are. Dropping 13 bits makes a sum too small by a share between 0 and 2^-10, on average kTf32Loss where mantissas
// are as likely as their logarithms.
__device__ __forceinline__ void mma_row_sums_tf32(float (&d)[4], float a0, float a1, float a2, float a3, float low, float high) {
  asm("mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
      : "r"(__float_as_uint(a0)), "r"(__float_as_uint(a1)), "r"(__float_as_uint(a2)), "r"(__float_as_uint(a3)), "r"(__float_as_uint(low)), "r"(__float_as_uint(high)));
}

__device__ __forceinline__ void mma_row_sums_tf32(float (&d)[4], float a0, float a1, float a2, float a3, float column) {
  mma_row_sums_tf32(d, a0, a1, a2, a3, column, column);
}

constexpr float kTf32Loss = 3.5e-4f;

}  // namespace kvloom
