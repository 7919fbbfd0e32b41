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
  // The same of a dim that meets TileRowsA: lane t of a quad has dims 8 t to 8 t + 7 of 32 (of the last 16: 4 t to 4 t + 3), in the
  // order of a k step's registers.
  __device__ __forceinline__ static int dim_offset(int row, int dim) {
    const int block = dim / 32 * 32, in_block = dim % 32;
    const int whole = in_block % 8 / 4 * 16 + in_block % 4 / 2 * 8 + in_block / 8 * 2, last = in_block % 4 / 2 * 8 + in_block / 4 * 2;
    return offset(row, block + (K % 32 == 0 || block + 32 <= K ? whole : last) + dim % 2);
  }
  __device__ __forceinline__ static uint64_t descriptor(uint32_t shared) { return wgmma::describe(shared, 16 * N, 128); }

  // d[64, N] (+)= A times the matrix: the whole warpgroup, between fence() and commit().
  template <typename T>
  __device__ __forceinline__ static void multiply(float (&d)[N / 2], const ptx::Matrices4 (&a)[K / 16], uint64_t matrix, bool keep) {
#pragma unroll
    for (int i = 0; i < K / 16; ++i)
      wgmma::Product<T, N>::add(d, a[i].m[0], a[i].m[1], a[i].m[2], a[i].m[3], matrix + i * (32 * N >> 4), keep || i > 0);
  }
};

// The warp's 16 tokens of a tile as A: lane l has tokens 16 (warp%4) + l/4 (m[0], m[2]) and that 8 on (m[1], m[3]), in the order of dims
// of RowMatrix::dim_offset.
template <int HEAD_DIM>
struct TileRowsA {
  static constexpr int kRowBytes = 2 * HEAD_DIM;
  // Where rows start in the same bank, those of odd tokens take the second 64 of each 128 bytes first: eight lanes meet every bank once.
  static constexpr bool kTurns = kRowBytes % 128 == 0;
  ptx::Matrices4 a[HEAD_DIM / 16];

  __device__ __forceinline__ void load(uint32_t tile) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const bool turn = kTurns && lane / 4 % 2 != 0;
    const uint32_t row = tile + (16 * warp + lane / 4) * kRowBytes + lane % 4 * 16;
#pragma unroll
    for (int h = 0; h < 2; ++h) {
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 64; ++i) {
        const uint32_t from = row + h * 8 * kRowBytes + i * 128;
        const uint4 x = ptx::load_shared16(from + (turn ? 64 : 0)), y = ptx::load_shared16(from + (turn ? 0 : 64));
        put(4 * i, h, turn ? y : x);
        put(4 * i + 2, h, turn ? x : y);
      }
      if constexpr (HEAD_DIM % 64 >= 32) put(HEAD_DIM / 64 * 4, h, ptx::load_shared16(row + h * 8 * kRowBytes + HEAD_DIM / 64 * 128));
      if constexpr (HEAD_DIM % 32 != 0) {
        const uint2 x = ptx::load_shared8(row - lane % 4 * 8 + h * 8 * kRowBytes + HEAD_DIM / 32 * 64);
        a[HEAD_DIM / 16 - 1].m[h] = x.x, a[HEAD_DIM / 16 - 1].m[2 + h] = x.y;
      }
    }
  }
  // 8 dims of a token, of two k steps.
  __device__ __forceinline__ void put(int step, int h, uint4 x) {
    a[step].m[h] = x.x, a[step].m[2 + h] = x.y;
    a[step + 1].m[h] = x.z, a[step + 1].m[2 + h] = x.w;
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

// The transposes of a tile's products of 64 dims as A: tokens are k. Row r of 16 of a warp, in product b, is dim first_dim(b) + r; a lane
// has rows l/4 and l/4 + 8.
template <int HEAD_DIM>
struct TileColumnsA {
  static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "dims are whole products");
  static constexpr int kProducts = HEAD_DIM / 64, kPieces = 2 * kProducts;  // of 8 dims, which a warp has one behind the other
  ptx::Matrices4 a[kProducts][kRingTokens / 16];

  __device__ __forceinline__ static int first_dim(int product) { return 16 * (kProducts * (threadIdx.x / 32 % 4) + product); }

  // Rows of one matrix are neighbouring tokens and start in the same bank: token i takes piece p ^ i for p, and the lanes exchange
  // their registers.
  __device__ __forceinline__ void load(uint32_t tile) {
    constexpr int kTogether = 4 / kPieces;  // matrices of 8 tokens at once
    const int lane = threadIdx.x % 32, token = lane % 8 + lane / 8 / kPieces * 8, piece = (lane / 8 ^ lane) % kPieces;
    const uint32_t from = tile + token * (2 * HEAD_DIM) + first_dim(0) * 2 + piece * 16;
#pragma unroll
    for (int i = 0; i < kRingTokens / 8; i += kTogether) {
      const ptx::Matrices4 x = ptx::ldmatrix4_transposed(from + i * (16 * HEAD_DIM));
#pragma unroll
      for (int u = 0; u < 4; u += 2) {
        uint32_t even = x.m[u], odd = x.m[u + 1];  // tokens of even place have pieces as asked for, those of odd place the other one
        if constexpr (kPieces == 4) {
          const bool turn = lane % 2 != 0;        // tokens 2 and 3 of each four
          even = turn ? x.m[u ^ 2] : even, odd = turn ? x.m[u ^ 2 | 1] : odd;
        }
        const int matrix = i + u / kPieces;
        ptx::Matrices4& to = a[u % kPieces / 2][matrix / 2];
        to.m[matrix % 2 * 2] = __byte_perm(even, odd, 0x7610);
        to.m[matrix % 2 * 2 + 1] = __byte_perm(odd, even, 0x7610);
      }
    }
  }
};

}  // namespace kvloom::drop
