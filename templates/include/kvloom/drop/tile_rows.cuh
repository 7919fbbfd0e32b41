// Sixteen tokens of K or V in registers, in the fragment order of an mma's A operand, straight from global memory.
//
// The order of a dot product's terms is free: lane l takes the l%4-th 16 bytes of every 64 bytes of rows l/4 and l/4 + 8, which feed
// two k steps, and whatever it is multiplied with is read in the same order from rows that lie as they are.
#pragma once

#include "kvloom/drop/tokens.cuh"
#include "kvloom/mma/m16n8k16.cuh"

namespace kvloom::drop {

constexpr int kTile = 16;  // tokens a warp takes at once

// Two rows (tokens l/4 and l/4 + 8) of a tile in a lane's fragment order.
template <int HEAD_DIM>
struct TileRows {
  static constexpr int kChunks = HEAD_DIM / 32;
  static constexpr bool kTail = HEAD_DIM % 32 != 0;
  uint4 chunk[2][kChunks];
  uint2 tail[2];

  template <typename T>
  __device__ __forceinline__ void load(const T* row0, bool live0, const T* row1, bool live1) {
    const int quarter = threadIdx.x % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const T* row = r ? row1 : row0;
      const bool live = r ? live1 : live0;
#pragma unroll
      for (int c = 0; c < kChunks; ++c)
        chunk[r][c] = live ? load_eight(row + c * 32 + quarter * 8) : make_uint4(0, 0, 0, 0);
      if constexpr (kTail)
        tail[r] = live ? load_four(row + kChunks * 32 + quarter * 4) : make_uint2(0, 0);
    }
  }

  // Adds the products with one tile of 8 rows in shared memory: d[token, row].
  template <typename T>
  __device__ __forceinline__ void multiply(float (&d)[4], const uint8_t* row) const {
    const int quarter = threadIdx.x % 4;
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      const uint4 b = *reinterpret_cast<const uint4*>(row + c * 64 + quarter * 16);
      mma_m16n8k16(d, chunk[0][c].x, chunk[1][c].x, chunk[0][c].y, chunk[1][c].y, b.x, b.y, T());
      mma_m16n8k16(d, chunk[0][c].z, chunk[1][c].z, chunk[0][c].w, chunk[1][c].w, b.z, b.w, T());
    }
    if constexpr (kTail) {
      const uint2 b = *reinterpret_cast<const uint2*>(row + kChunks * 64 + quarter * 8);
      mma_m16n8k16(d, tail[0].x, tail[1].x, tail[0].y, tail[1].y, b.x, b.y, T());
    }
  }

  // Elements of a row that a lane holds, in order, and the dim of each.
  static constexpr int kElements = HEAD_DIM / 4;
  __device__ __forceinline__ static int dim_of(int element) {
    const int quarter = threadIdx.x % 4, c = element / 8;
    return c < kChunks ? c * 32 + quarter * 8 + element % 8 : kChunks * 32 + quarter * 4 + element % 8;
  }

  // Calls f(element, value) for the lane's elements of row r; both indices are compile-time after unrolling.
  template <typename T, class F>
  __device__ __forceinline__ void each(int r, F f) const {
    const auto pair = [&](int element, uint32_t w) {
      const float2 v = unpack2<T>(w);
      f(element, v.x);
      f(element + 1, v.y);
    };
#pragma unroll
    for (int c = 0; c < kChunks; ++c) {
      pair(8 * c, chunk[r][c].x), pair(8 * c + 2, chunk[r][c].y), pair(8 * c + 4, chunk[r][c].z), pair(8 * c + 6, chunk[r][c].w);
    }
    if constexpr (kTail) pair(8 * kChunks, tail[r].x), pair(8 * kChunks + 2, tail[r].y);
  }

  // Sums f(value) over each of the two rows; the lanes of a quad end with the same sums.
  template <typename T, class F>
  __device__ __forceinline__ void fold(float (&sum)[2], F f) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = 0.0f;
      each<T>(r, [&](int, float x) { sum[r] += f(x); });
      sum[r] = quad_sum(sum[r]);
    }
  }
};

}  // namespace kvloom::drop
