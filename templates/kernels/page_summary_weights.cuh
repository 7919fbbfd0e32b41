// Query-weighted bases: a page's Gram matrix under the second moment S' = L L^T of the queries that will ask about its keys.
//
// With D the centred keys and Y = D L, the basis that leaves the smallest expected squared logit error comes from the singular vectors
// of Y: u of Y Y^T, and for V the directions D^T u (docs/theory.md). Neither a square root nor an inverse of S' enters, so any factor
// will do, and Cholesky's is half zeros. L and Y are rounded to bf16, which changes S' and the rows of Y a little but leaves the Gram
// matrix one of numbers, symmetric and without negative eigenvalues. Keys are centred first, in f32: Y of the centroid would drown D's.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_exact.cuh"
#include "kvloom/mma/m16n8k8.cuh"

namespace kvloom {

// The factor of one KV head as query_factor writes it: bf16, the blocks of 16 x 16 on and below the diagonal, column by column, each in
// the order of mma's B fragments: lane 4 g + p holds in word w, half h, row 2 p + h + 8 (w % 2) and column g + 8 (w / 2).
template <int HEAD_DIM>
struct WeightFactor {
  static constexpr int kBlocks = HEAD_DIM / 16;
  static constexpr int kBytes = kBlocks * (kBlocks + 1) / 2 * 512;

  static __host__ __device__ constexpr int block(int row, int column) { return column * kBlocks - column * (column - 1) / 2 + row - column; }

  // Byte of an element on or below the diagonal's blocks.
  static __host__ __device__ constexpr int place(int row, int column) {
    const int r = row % 16, c = column % 16;
    return block(row / 16, column / 16) * 512 + (c % 8 * 4 + r % 8 / 2) * 16 + (r / 8 + c / 8 * 2) * 4 + r % 2 * 2;
  }
};

__device__ __forceinline__ uint32_t centred_pair(uint32_t word, float2 centre, bf16) {
  const float2 x = unpack(word, bf16{});
  const __nv_bfloat162 d = __floats2bfloat162_rn(x.x - centre.x, x.y - centre.y);
  return *reinterpret_cast<const uint32_t*>(&d);
}

__device__ __forceinline__ uint32_t centred_pair(uint32_t word, float2 centre, fp16) {
  const float2 x = unpack(word, fp16{});
  const __nv_bfloat162 d = __floats2bfloat162_rn(x.x - centre.x, x.y - centre.y);
  return *reinterpret_cast<const uint32_t*>(&d);
}

__device__ __forceinline__ uint32_t bf16_pair(float x, float y) {
  const __nv_bfloat162 p = __floats2bfloat162_rn(x, y);
  return *reinterpret_cast<const uint32_t*>(&p);
}

// The weighted Gram matrix of a page of keys in shared memory, by a warp, as the accumulators of m16n8k16: columns 0-7 in left, 8-15 in
// right, which are zero before. Returns 16 times the squared length of the centroid, as given: without weights. sixteenth is 1/16 twice in the keys' type.
template <int HEAD_DIM, class Key>
__device__ __forceinline__ float weighted_gram(float (&left)[4], float (&right)[4], const uint8_t* keys, const uint8_t* factor, int lane,
                                               uint32_t sixteenth) {
  using Rows = PageRows<HEAD_DIM>;
  using Factor = WeightFactor<HEAD_DIM>;
  constexpr int kSteps = HEAD_DIM / 16, kColumns = kSteps > 8 ? 4 : kSteps;
  const uint4* blocks = reinterpret_cast<const uint4*>(factor) + lane;
  float centroid = 0.f;
  // 64 or 128 columns of Y at a time, as many as registers hold; later times rows before the columns are known to be zero.
#pragma unroll 1
  for (int first = 0; first < kSteps; first += kColumns) {
    float y[kColumns][2][4] = {};
#pragma unroll 1
    for (int k = first; k < kSteps; k++) {
      const uint8_t* row = keys + Rows::tile(lane, k);
      const ptx::Matrices4 t = ptx::ldmatrix4_transposed(static_cast<uint32_t>(__cvta_generic_to_shared(row)));
      float low[4], high[4];  // means of dims 2 p, 2 p + 1 of both halves of the step, the same in all rows
      mma_m16n8k16_from_zero(low, sixteenth, sixteenth, sixteenth, sixteenth, t.m[0], t.m[1], Key{});
      mma_m16n8k16_from_zero(high, sixteenth, sixteenth, sixteenth, sixteenth, t.m[2], t.m[3], Key{});
      uint32_t d[4];
      load_tile(d, row);
#pragma unroll
      for (int i = 0; i < 4; i++) d[i] = centred_pair(d[i], i < 2 ? make_float2(low[0], low[1]) : make_float2(high[0], high[1]), Key{});
      if (first == 0) centroid = fmaf(low[0], low[0], fmaf(low[1], low[1], fmaf(high[0], high[0], fmaf(high[1], high[1], centroid))));
#pragma unroll
      for (int n = 0; n < kColumns; n++) {
        if (first + n > k || first + n >= kSteps) continue;  // above the diagonal
        const uint4 b = blocks[Factor::block(k, first + n) * 32];
        mma_m16n8k16(y[n][0], d[0], d[1], d[2], d[3], b.x, b.y, bf16{});
        mma_m16n8k16(y[n][1], d[0], d[1], d[2], d[3], b.z, b.w, bf16{});
      }
    }
    // The accumulators are an A fragment as they lie, and of a Gram matrix the B fragment is the same registers.
#pragma unroll
    for (int n = 0; n < kColumns; n++) {
      const uint32_t a0 = bf16_pair(y[n][0][0], y[n][0][1]), a1 = bf16_pair(y[n][0][2], y[n][0][3]);
      const uint32_t a2 = bf16_pair(y[n][1][0], y[n][1][1]), a3 = bf16_pair(y[n][1][2], y[n][1][3]);
      mma_m16n8k16(left, a0, a1, a2, a3, a0, a2, bf16{});
      mma_m16n8k16(right, a0, a1, a2, a3, a1, a3, bf16{});
    }
  }
  centroid += __shfl_xor_sync(~0u, centroid, 1);
  centroid += __shfl_xor_sync(~0u, centroid, 2);
  return 16.f * centroid;
}

// The same for ExactPage's pages: in f32, of keys scaled and taken from the page's first key, column by column of L. Writes the matrix
// to g, f32 [16][20], and returns the power of 4 that brings it near 1, by the square root.
template <int HEAD_DIM, class Key>
__device__ __forceinline__ float weighted_gram_exact(float* g, const uint8_t* keys, const uint8_t* factor, PageScale power, int lane) {
  using Rows = PageRows<HEAD_DIM>;
  const int token = lane % 16, part = lane / 16;
  const uint32_t keep = power.down > 0.f ? ~0u : 0u;
  float sums[8] = {};  // columns 8 part .. of row `token`
#pragma unroll 1
  for (int n = 0; n < HEAD_DIM; n++) {
    float y = 0.f;
#pragma unroll 1
    for (int k = (n & ~15) + 2 * part; k < HEAD_DIM; k += 4) {
      const float2 l = make_float2(__bfloat162float(*reinterpret_cast<const bf16*>(factor + WeightFactor<HEAD_DIM>::place(k, n))),
                                   __bfloat162float(*reinterpret_cast<const bf16*>(factor + WeightFactor<HEAD_DIM>::place(k + 1, n))));
      const float2 o = unpack(*reinterpret_cast<const uint32_t*>(keys + Rows::chunk(0, k / 8) + k % 8 * 2) & keep, Key{});
      const float2 x = unpack(*reinterpret_cast<const uint32_t*>(keys + Rows::chunk(token, k / 8) + k % 8 * 2) & keep, Key{});
      y = fmaf(fmaf(x.x, power.down, -o.x * power.down), l.x, y);
      y = fmaf(fmaf(x.y, power.down, -o.y * power.down), l.y, y);
    }
    y += __shfl_xor_sync(~0u, y, 16);
#pragma unroll
    for (int c = 0; c < 8; c++) sums[c] = fmaf(y, __shfl_sync(~0u, y, part * 8 + c), sums[c]);
  }
  float top = 0.f;
#pragma unroll
  for (int c = 0; c < 8; c++) {
    g[token * 20 + part * 8 + c] = sums[c];
    top = fmaxf(top, fabsf(sums[c]));
  }
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
  const int half = top > 0.f ? (static_cast<int>(__float_as_uint(top) >> 23) - 127) >> 1 : 0;
  return __uint_as_float(static_cast<uint32_t>(127 + half) << 23);
}

}  // namespace kvloom
