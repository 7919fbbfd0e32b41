// Rows of the window in shared memory as the B operand of wgmma, for A operands in the fragment order of TileRows.
//
// Core matrices of 8 rows x 16 bytes, those of one k first by rows; dims lie where TileRows has them: lane l of a quad holds dims 8 l to
// 8 l + 7 of every 32, its words 0 and 1 feed one k step, 2 and 3 the next.
#pragma once

#include "kvloom/drop/tile_rows.cuh"
#include "kvloom/mma/wgmma.cuh"

namespace kvloom::drop {

template <int HEAD_DIM, int N>
struct RowMatrix {
  static_assert(N % 8 == 0 && N >= 8 && N <= 64, "a product has 8 to 64 rows of the window");
  static constexpr int kBytes = 2 * HEAD_DIM * N;
  static constexpr int kStep = 32 * N;  // bytes of one k step: two core matrices deep

  // Byte offset of dims `dim` and `dim` + 1 of a row; dim is even.
  __device__ __forceinline__ static int offset(int row, int dim) {
    constexpr int kWhole = HEAD_DIM / 32 * 32;
    const int quarter = dim < kWhole ? dim % 32 / 8 : dim % 16 / 4;
    const int word = dim < kWhole ? dim % 8 / 2 : dim % 4 / 2;
    const int core = (dim < kWhole ? dim / 32 * 4 : kWhole / 8) + word;
    return core * (16 * N) + row * 16 + quarter * 4;
  }

  __device__ __forceinline__ static uint64_t descriptor(uint32_t shared) { return wgmma::describe(shared, 16 * N, 128); }

  // d[token, row] (+)= rows of a tile times the matrix: the whole warpgroup, between fence() and commit().
  template <typename T>
  __device__ __forceinline__ static void multiply(float (&d)[N / 2], const TileRows<HEAD_DIM>& rows, uint64_t matrix, bool keep) {
    using P = wgmma::Product<T, N>;
#pragma unroll
    for (int c = 0; c < TileRows<HEAD_DIM>::kChunks; ++c) {
      const uint4 x = rows.chunk[0][c], y = rows.chunk[1][c];
      P::add(d, x.x, y.x, x.y, y.y, matrix + (2 * c) * (kStep >> 4), keep || c > 0);
      P::add(d, x.z, y.z, x.w, y.w, matrix + (2 * c + 1) * (kStep >> 4), 1);
    }
    if constexpr (TileRows<HEAD_DIM>::kTail)
      P::add(d, rows.tail[0].x, rows.tail[1].x, rows.tail[0].y, rows.tail[1].y, matrix + 2 * TileRows<HEAD_DIM>::kChunks * (kStep >> 4), 1);
  }
};

}  // namespace kvloom::drop
