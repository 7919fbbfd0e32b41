// Operands of wgmma over a tile of a ring: tokens in registers as A, rows of the window in shared memory as B.
#pragma once

#include "kvloom/drop/ring.cuh"
#include "kvloom/mma/wgmma.cuh"
#include "kvloom/ptx/ldmatrix.cuh"

namespace kvloom::drop {

// Rows of the window: core matrices of 8 rows x 16 bytes, those of one k first by rows.
template <int K, int N>
struct RowMatrix {
  static_assert(N % 8 == 0 && N >= 8 && N <= 64, "a product has 8 to 64 rows of the window");
  static constexpr int kBytes = 2 * K * N;

  // Byte offset of element k of a row.
  __device__ __forceinline__ static int offset(int row, int k) { return k / 8 * (16 * N) + row * 16 + k % 8 * 2; }
  __device__ __forceinline__ static uint64_t descriptor(uint32_t shared) { return wgmma::describe(shared, 16 * N, 128); }

  // d[64, N] (+)= A times the matrix: the whole warpgroup, between fence() and commit().
  template <typename T>
  __device__ __forceinline__ static void multiply(float (&d)[N / 2], const ptx::Matrices4 (&a)[K / 16], uint64_t matrix, bool keep) {
#pragma unroll
    for (int i = 0; i < K / 16; ++i)
      wgmma::Product<T, N>::add(d, a[i].m[0], a[i].m[1], a[i].m[2], a[i].m[3], matrix + i * (32 * N >> 4), keep || i > 0);
  }
};

// The warp's 16 tokens of a tile as A: lane l has dims 2 (l%4), the next, and those 8 on, of tokens 8 (l/4) + 2 (warp%4) (m[0], m[2])
// and the one behind it (m[1], m[3]).
template <int HEAD_DIM>
struct TileRowsA {
  ptx::Matrices4 a[HEAD_DIM / 16];

  __device__ __forceinline__ void load(uint32_t tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const uint32_t row = tile + lane % 8 * kRunBytes<HEAD_DIM> + (2 * warp + lane / 8 % 2) * (2 * HEAD_DIM) + lane / 16 * 16;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 16; ++i) a[i] = ptx::ldmatrix4(row + i * 32);
  }

  // Sums f(value) over each of the lane's two tokens; the lanes of a quad end with the same sums.
  template <typename T, class F>
  __device__ __forceinline__ void fold(float (&sum)[2], F f) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float x = 0.0f, y = 0.0f;
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; ++i) {
        const float2 low = unpack2<T>(a[i].m[r]), high = unpack2<T>(a[i].m[2 + r]);
        x += f(low.x), y += f(low.y);
        x += f(high.x), y += f(high.y);
      }
      sum[r] = quad_sum(x + y);
    }
  }
};

// The transpose of 64 dims of a tile as A: dims are rows, 16 a warp, tokens are k in the order of a tile's rows.
template <int HEAD_DIM>
struct TileColumnsA {
  ptx::Matrices4 a[kRingTokens / 16];

  __device__ __forceinline__ void load(uint32_t tile, int first_dim) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    // Matrices: dims 0-7 and 8-15 of tokens 8 i + 2 k, the same of tokens 8 i + 2 k + 1; i is the lane's row.
    const uint32_t row = tile + lane % 8 * kRunBytes<HEAD_DIM> + lane / 16 * (2 * HEAD_DIM) + (first_dim + 16 * warp + lane / 8 % 2 * 8) * 2;
#pragma unroll
    for (int i = 0; i < kRingTokens / 16; ++i) a[i] = ptx::ldmatrix4_transposed(row + i * (4 * HEAD_DIM));
  }
};

}  // namespace kvloom::drop
