// One tile of 16 tokens of K and V in a warp's registers, loaded there by its lanes as the fragments of both products, without shared memory
// or ldmatrix: a product's sum may go through dims in any order, and rows of O^T may be any dims. Tokens are the M dimension of S^T = K Q^T,
// dims that of O^T = V^T P^T.
#pragma once

#include "kernels/page_attend_state.cuh"
#include "kvloom/ptx/ldmatrix.cuh"

namespace kvloom {

namespace attend {

// 16 bytes that are not read again, or zeros and no access where kMaybe and not live.
template <int kPrefetch, bool kMaybe>
__device__ __forceinline__ uint4 load16_once(const void* p, bool live) {
  uint4 v;
#define KVLOOM_LOAD(prefetch)                                                                                                            \
  if constexpr (kMaybe)                                                                                                                  \
    asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %5, 0;\nmov.b32 %0, 0;\nmov.b32 %1, 0;\nmov.b32 %2, 0;\nmov.b32 %3, 0;\n"             \
                 "@p ld.global.nc.L1::no_allocate.L2::" prefetch ".v4.u32 {%0, %1, %2, %3}, [%4];\n}\n"                                  \
                 : "=&r"(v.x), "=&r"(v.y), "=&r"(v.z), "=&r"(v.w)                                                                          \
                 : "l"(p), "r"(static_cast<int>(live)));                                                                                 \
  else                                                                                                                                   \
    asm volatile("ld.global.nc.L1::no_allocate.L2::" prefetch ".v4.u32 {%0, %1, %2, %3}, [%4];"                                           \
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)                                                                             \
                 : "l"(p))
  if constexpr (kPrefetch == 256) {
    KVLOOM_LOAD("256B");
  } else {
    KVLOOM_LOAD("128B");
  }
#undef KVLOOM_LOAD
  return v;
}

__device__ __forceinline__ uint32_t word_of(const uint4& v, int i) { return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w; }

// Lane l, g = l / 4 and c = l % 4.
template <int HEAD_DIM>
struct Tile {
  static_assert(HEAD_DIM % 64 == 0, "eight lanes load 64 dims of a token of V");
  static constexpr int kKeys = HEAD_DIM / 32, kValues = HEAD_DIM / 64;
  uint4 k[2][kKeys];    // tokens g and g + 8; dims 32 i + 8 c to + 7
  uint4 v[4][kValues];  // tokens 2c, 2c + 1, 2c + 8, 2c + 9; dims 64 i + 8 g to + 7

  // From rows of a page, `tokens` of them; the others are zeros.
  template <typename T>
  __device__ __forceinline__ void load(const T* keys, int64_t key_stride, const T* values, int64_t value_stride, int tokens) {
    if (tokens == kTile)
      load_rows<false>(keys, key_stride, values, value_stride, tokens);
    else
      load_rows<true>(keys, key_stride, values, value_stride, tokens);
  }

  template <bool kMaybe, typename T>
  __device__ __forceinline__ void load_rows(const T* keys, int64_t key_stride, const T* values, int64_t value_stride, int tokens) {
    constexpr int kPrefetch = HEAD_DIM >= 128 ? 256 : 128;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int t = 0; t < 2; ++t) {
      const int token = g + 8 * t;
      const T* const row = keys + token * key_stride + 8 * c;
#pragma unroll
      for (int i = 0; i < kKeys; ++i) k[t][i] = load16_once<kPrefetch, kMaybe>(row + 32 * i, token < tokens);
    }
#pragma unroll
    for (int t = 0; t < 4; ++t) {
      const int token = 2 * c + t % 2 + 8 * (t / 2);
      const T* const row = values + token * value_stride + 8 * g;
#pragma unroll
      for (int i = 0; i < kValues; ++i) v[t][i] = load16_once<kPrefetch, kMaybe>(row + 64 * i, token < tokens);
    }
  }
};

// What a tile adds to the heads of its list: weights of its tokens relative to 2^peak, peak and sum, the last two the same in all lanes of a
// column. Columns are query heads: lane l has 8 n + 2c and the next.
template <int HEAD_DIM, int kColumns>
struct TileWeights {
  uint32_t p[kColumns][2];  // B fragments of P^T [token, head]
  float peak[kColumns][2], sum[kColumns][2];

  // query: shared address of rows of `kQueryRowBytes` of 8 kColumns heads. scale makes base-2 logits of products, or what tanh takes.
  template <bool SOFTCAP, int kQueryRowBytes, typename T>
  __device__ __forceinline__ void make(const Tile<HEAD_DIM>& tile, uint32_t query, int tokens, float scale, float cap) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float s[kColumns][4], odd[kColumns][4];  // two chains of products
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = odd[n][i] = 0.0f;
#pragma unroll
    for (int i = 0; i < Tile<HEAD_DIM>::kKeys; ++i)
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const uint4 q = ptx::load_shared16(query + (8 * n + g) * kQueryRowBytes + (4 * i + c) * 16);
        const uint4 &a = tile.k[0][i], &b = tile.k[1][i];
        mma_m16n8k16(s[n], a.x, b.x, a.y, b.y, q.x, q.y, T());
        mma_m16n8k16(odd[n], a.z, b.z, a.w, b.w, q.z, q.w, T());
      }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = (s[n][i] + odd[n][i]) * scale;
        if (SOFTCAP) s[n][i] = cap * tanh_accurate(s[n][i]);
        if (g + i / 2 * 8 >= tokens) s[n][i] = minus_infinity();
      }
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(s[n][j], s[n][j + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, step));
        peak[n][j] = top;
        s[n][j] = weight(s[n][j], top), s[n][j + 2] = weight(s[n][j + 2], top);
        sum[n][j] = s[n][j] + s[n][j + 2];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) p[n][half] = ptx::transpose8x8(pack2<T>(s[n][2 * half], s[n][2 * half + 1]));
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j)
#pragma unroll
        for (int step = 4; step < 32; step *= 2) sum[n][j] += __shfl_xor_sync(kAll, sum[n][j], step);
  }

  // Four dims of O^T, 64 i + 8 g + 4 half to + 3, of the heads of each column: o[n][j] is head 8 n + 2c + j.
  template <typename T>
  __device__ __forceinline__ void multiply(const Tile<HEAD_DIM>& tile, int i, int half, float4 (&o)[kColumns][2], T) const {
    float two[2][kColumns][4];  // pairs of dims: elements 0 and 1 are the first dim of the two heads, 2 and 3 the second
#pragma unroll
    for (int d = 0; d < 2; ++d) {
      const int m = 2 * half + d;
      const uint32_t v0 = word_of(tile.v[0][i], m), v1 = word_of(tile.v[1][i], m), v2 = word_of(tile.v[2][i], m), v3 = word_of(tile.v[3][i], m);
      // Rows g of the product are the lower dims of the words, rows g + 8 the upper ones; two tokens a register.
      const uint32_t a0 = __byte_perm(v0, v1, 0x5410), a1 = __byte_perm(v0, v1, 0x7632);
      const uint32_t a2 = __byte_perm(v2, v3, 0x5410), a3 = __byte_perm(v2, v3, 0x7632);
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
#pragma unroll
        for (int e = 0; e < 4; ++e) two[d][n][e] = 0.0f;
        mma_m16n8k16(two[d][n], a0, a1, a2, a3, p[n][0], p[n][1], T());
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) o[n][j] = make_float4(two[0][n][j], two[0][n][j + 2], two[1][n][j], two[1][n][j + 2]);
  }
};

// What the warps of a block leave of their tiles, in shared memory. kRows: of warps.
template <int HEAD_DIM, int HEADS, int kRows>
struct TileSums {
  static constexpr int kStride = HEAD_DIM + 8;  // floats of a head: lanes meet most banks once
  alignas(16) float out[kRows][HEADS][kStride];
  float2 stats[kRows][HEADS];  // peak and sum

  // Adds a tile to what the warp has, first: to nothing. Every lane keeps to its own words of it.
  template <typename T, int kColumns>
  __device__ __forceinline__ void add(int row, bool first, const Tile<HEAD_DIM>& tile, const TileWeights<HEAD_DIM, kColumns>& w) {
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
    float keep[kColumns][2], take[kColumns][2], peak[kColumns][2], sum[kColumns][2];
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        const int head = 8 * n + 2 * c + j;
        keep[n][j] = 0.0f, take[n][j] = 1.0f;
        if (8 * n + j >= HEADS || head >= HEADS) continue;
        peak[n][j] = w.peak[n][j], sum[n][j] = w.sum[n][j];
        if (!first) {
          const float2 before = stats[row][head];
          peak[n][j] = fmaxf(before.x, peak[n][j]);
          keep[n][j] = weight(before.x, peak[n][j]), take[n][j] = weight(w.peak[n][j], peak[n][j]);
          sum[n][j] = keep[n][j] * before.y + take[n][j] * sum[n][j];
        }
      }
    __syncwarp();  // all lanes have read what some of them write
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j)
        if (8 * n + j < HEADS && 8 * n + 2 * c + j < HEADS && g == 0) stats[row][8 * n + 2 * c + j] = make_float2(peak[n][j], sum[n][j]);
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 64; ++i)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        float4 o[kColumns][2];
        w.multiply(tile, i, half, o, T());
#pragma unroll
        for (int n = 0; n < kColumns; ++n)
#pragma unroll
          for (int j = 0; j < 2; ++j) {
            const int head = 8 * n + 2 * c + j;
            if (8 * n + j >= HEADS || head >= HEADS) continue;
            float4* const to = reinterpret_cast<float4*>(&out[row][head][64 * i + 8 * g + 4 * half]);
            float4 v = o[n][j];
            if (!first) {
              const float4 b = *to;
              const float x = keep[n][j], y = take[n][j];
              v = make_float4(x * b.x + y * v.x, x * b.y + y * v.y, x * b.z + y * v.z, x * b.w + y * v.w);
            }
            *to = v;
          }
      }
  }
};

}  // namespace attend

}  // namespace kvloom
