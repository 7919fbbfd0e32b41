// A symmetric 32 x 32 matrix in a warp's registers, and its square by mma.
#pragma once

#include "kvloom/mma/m16n8k16.cuh"
#include "kvloom/mma/m16n8k8.cuh"

namespace kvloom {

// The product of two pairs of bf16.
__device__ __forceinline__ uint32_t times_pairs(uint32_t x, uint32_t y) {
  const __nv_bfloat162 d = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&x), *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&d);
}

// A symmetric 32 x 32 matrix as mma leaves it: strips of 16 rows, tiles of 8 columns. With g = lane / 4 and p = lane % 4, elements 0 and 1
// are columns 2p and 2p + 1 of row g, 2 and 3 those of row g + 8. A vector "by rows" holds elements g, g + 8, g + 16 and g + 24, "by
// columns" elements 8 j + 2p and the next.
struct Square32 {
  float m[2][4][4];

  // Rounded to bf16, both operands of a product with itself: [strip][16 columns][A's registers].
  __device__ __forceinline__ void pack(uint32_t (&a)[2][2][4]) const {
    const auto both = [](const float* x) {
      const __nv_bfloat162 p = __floats2bfloat162_rn(x[0], x[1]);
      return *reinterpret_cast<const uint32_t*>(&p);
    };
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
      for (int k = 0; k < 2; k++) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[s][k][i] = both(m[s][2 * k + i / 2] + i % 2 * 2);
      }
    }
  }

  __device__ __forceinline__ void square(const uint32_t (&a)[2][2][4]) {
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
        mma_m16n8k16_from_zero(m[s][j], a[s][0][0], a[s][0][1], a[s][0][2], a[s][0][3], a[j / 2][0][j % 2], a[j / 2][0][2 + j % 2], bf16{});
        mma_m16n8k16(m[s][j], a[s][1][0], a[s][1][1], a[s][1][2], a[s][1][3], a[j / 2][1][j % 2], a[j / 2][1][2 + j % 2], bf16{});
      }
    }
  }

  // Element (row, row) of row 8 r + g, where this lane holds it.
  __device__ __forceinline__ float diagonal(int r, int g) const { return g % 2 ? m[r / 2][r][r % 2 * 2 + 1] : m[r / 2][r][r % 2 * 2]; }
};

}  // namespace kvloom
