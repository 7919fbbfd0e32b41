// page_summary with query-weighted bases for 32 tokens, a page or a group of pages, and ranks 1 and 2: a warp a page, with the Gram matrix
// of page_summary_weights.cuh in its registers from the keys' products to the vectors.
//
// The matrix is squared five times by mma from bf16 alone, which is rough, and the column of that 32nd power with the largest
// diagonal is multiplied by the matrix itself twice in f32, which takes what is rough out again. A block keeps one KV head's
// factor in shared memory and has a share of the pages of all heads one after the other, so that all blocks have as many.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_exact.cuh"
#include "kernels/page_summary_quick.cuh"
#include "kernels/page_summary_weights.cuh"
#include "kvloom/linalg/square32.cuh"
#include "kvloom/ptx/approx.cuh"
#include "kvloom/ptx/async_copy16.cuh"

namespace kvloom {

__device__ __forceinline__ uint32_t subtract_pairs(uint32_t x, uint32_t y, bf16) {
  const __nv_bfloat162 d = __hsub2(*reinterpret_cast<const __nv_bfloat162*>(&x), *reinterpret_cast<const __nv_bfloat162*>(&y));
  return *reinterpret_cast<const uint32_t*>(&d);
}

// fp16 becomes bf16, as the factor is.
__device__ __forceinline__ uint32_t subtract_pairs(uint32_t x, uint32_t y, fp16) { return centred_pair(x, unpack(y, fp16{}), fp16{}); }

// 1/32 twice.
__device__ __forceinline__ uint32_t thirtyseconds(bf16) { return 0x3d003d00u; }
__device__ __forceinline__ uint32_t thirtyseconds(fp16) { return 0x28002800u; }

// mma_m16n8k16 in order with the loads around it. In a sequence as long as this one the compiler would bring all loads forward.
__device__ __forceinline__ void mma_in_order(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_in_order_from_zero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, bf16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}
__device__ __forceinline__ void mma_in_order(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, fp16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%0, %1, %2, %3};"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}
__device__ __forceinline__ void mma_in_order_from_zero(float (&d)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, fp16) {
  asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0, %1, %2, %3}, {%4, %5, %6, %7}, {%8, %9}, {%10, %10, %10, %10};"
               : "=f"(d[0]), "=f"(d[1]), "=f"(d[2]), "=f"(d[3])
               : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1), "f"(0.f));
}

// T: the cache's elements, of two bytes.
template <int HEAD_DIM, int RANK, int BITS, class T, class FORM>
struct Weighted32 {
  using Key = typename Compute<T>::type;
  using Group = Groups<FORM::kPages>;
  using Layout = Record<HEAD_DIM, 32, RANK, BITS>;
  using Rows = PageRows<HEAD_DIM>;
  using Factor = WeightFactor<HEAD_DIM>;
  static_assert(FORM::kPlain, "smaller records are built from pages of 16 tokens");
  static_assert(RANK <= 2, "each vector takes five squarings");
  static_assert(HEAD_DIM % 32 == 0 && HEAD_DIM <= 128, "quarters of a row are whole words; sums of 64 columns stay in registers");
  static_assert(BITS == 4 || BITS == 8, "codes are rounded by an addition");
  static_assert(sizeof(T) == 2, "keys are copied as they are");
  static_assert(HEAD_DIM <= 128, "two passes over the columns");
  static constexpr int kSteps = HEAD_DIM / 16, kColumns = kSteps < 4 ? kSteps : 4;
  static constexpr int kPageTokens = 32 / Group::kPages;
  static constexpr int kSquarings = 5, kProducts = 2;
  static constexpr float kSmallest = 1e-6f, kLargest = 1e12f;  // energies whose squares stay far inside f32
  // Less than this share of the keys' energy is spread: the mean's rounding shows, and the page goes the careful way.
  static constexpr float kSpread = 1e-5f;
  static constexpr float kUneven = 1e-5f;  // of the trace, what keys less a rounded mean leave along the vector of ones

  // A warp's memory: keys, vectors, then V and the centroid in f32.
  static constexpr int kKeyBytes = 2 * Rows::kBytes, kPitch = HEAD_DIM + 8;  // floats; rows begin 8 banks apart
  static constexpr int kVectors = kKeyBytes;                          // f32 [RANK][32]
  static constexpr int kValues = kVectors + RANK * 128;               // f32 [RANK + 1][kPitch], the centroid last
  static constexpr int kWarpBytes = kValues + (RANK + 1) * kPitch * 4;

  uint8_t* shared;
  const uint8_t* factor;
  int lane;

  __device__ __forceinline__ float* vector(int j) const { return reinterpret_cast<float*>(shared + kVectors) + 32 * j; }
  __device__ __forceinline__ float* values(int j) const { return reinterpret_cast<float*>(shared + kValues) + j * kPitch; }

  static __device__ __forceinline__ float over_rows(float x) {  // of lanes with the same p
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
  }
  static __device__ __forceinline__ float over_columns(float x) {  // of lanes with the same g
    x += __shfl_xor_sync(~0u, x, 1);
    return x + __shfl_xor_sync(~0u, x, 2);
  }
  static __device__ __forceinline__ float warp_top(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
  }

  static __device__ __forceinline__ void load_at(uint32_t (&r)[4], const ptx::Matrices4& f) {
#pragma unroll
    for (int i = 0; i < 4; i++) r[i] = f.m[i];
  }

  // Columns 16 FIRST and on of the products with the factor, as many as registers hold, and what they add to the matrix.
  template <int FIRST>
  static __device__ __forceinline__ void add_columns(Square32& out, uint32_t at, uint32_t blocks, const uint32_t* mean, int lane) {
    float y[kColumns][2][2][4];  // [16 columns][strip][8 columns]
#pragma unroll
    for (int k = FIRST; k < kSteps; k++) {
      uint32_t d[2][4];
      __syncwarp();
      const uint32_t low = mean[8 * k], high = mean[8 * k + 4];
#pragma unroll
      for (int s = 0; s < 2; s++) {
        load_at(d[s], ptx::ldmatrix4(at + s * Rows::kBytes + Rows::tile(lane, k)));
#pragma unroll
        for (int i = 0; i < 4; i++) d[s][i] = subtract_pairs(d[s][i], i < 2 ? low : high, Key{});
      }
#pragma unroll
      for (int n = 0; n < kColumns; n++) {
        if (FIRST + n > k || FIRST + n >= kSteps) continue;  // above the diagonal
        const uint4 b = ptx::load_shared16(blocks + Factor::block(k, FIRST + n) * 512);  // in order, or registers run out
#pragma unroll
        for (int s = 0; s < 2; s++) {
          if (FIRST + n == k) {
            mma_in_order_from_zero(y[n][s][0], d[s], b.x, b.y, bf16{});
            mma_in_order_from_zero(y[n][s][1], d[s], b.z, b.w, bf16{});
          } else {
            mma_in_order(y[n][s][0], d[s], b.x, b.y, bf16{});
            mma_in_order(y[n][s][1], d[s], b.z, b.w, bf16{});
          }
        }
      }
    }
    // Accumulators are A fragments as they lie, and of a product with itself B fragments too.
#pragma unroll
    for (int n = 0; n < kColumns; n++) {
      if (FIRST + n >= kSteps) continue;
      uint32_t a[2][4];
#pragma unroll
      for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int i = 0; i < 4; i++) a[s][i] = bf16_pair(y[n][s][i / 2][i % 2 * 2], y[n][s][i / 2][i % 2 * 2 + 1]);
      }
#pragma unroll
      for (int s = 0; s < 2; s++) {
#pragma unroll
        for (int j = 0; j < 4; j++) {
          if (FIRST + n == 0) mma_in_order_from_zero(out.m[s][j], a[s], a[j / 2][j % 2], a[j / 2][2 + j % 2], bf16{});
          else mma_in_order(out.m[s][j], a[s], a[j / 2][j % 2], a[j / 2][2 + j % 2], bf16{});
        }
      }
    }
  }

  // The matrix of keys less their mean, rounded as keys are, times the factor. Returns 32 times the centroid's squared length. Keys
  // that are centred already have none.
  template <bool CENTRED>
  __device__ __forceinline__ float gram(Square32& out, const uint8_t* keys) const {
    const int lane = opaque(this->lane);
    uint32_t* const mean = reinterpret_cast<uint32_t*>(values(0)) + lane % 4;  // pairs, in shared memory: registers are for sums
    const uint32_t at = static_cast<uint32_t>(__cvta_generic_to_shared(keys));
    float centroid = 0.f;
    const uint32_t part = thirtyseconds(Key{}), parts[4] = {part, part, part, part};
#pragma unroll 1
    for (int k = 0; k < kSteps; k++) {
      __syncwarp();
      float low[4], high[4];
      uint32_t t[4];
      load_at(t, ptx::ldmatrix4_transposed(at + Rows::tile(lane, k)));
      mma_in_order_from_zero(low, parts, t[0], t[1], Key{});
      mma_in_order_from_zero(high, parts, t[2], t[3], Key{});
      load_at(t, ptx::ldmatrix4_transposed(at + Rows::kBytes + Rows::tile(lane, k)));
      mma_in_order(low, parts, t[0], t[1], Key{});
      mma_in_order(high, parts, t[2], t[3], Key{});
      centroid = fmaf(low[0], low[0], fmaf(low[1], low[1], fmaf(high[0], high[0], fmaf(high[1], high[1], centroid))));
      if (lane < 4) mean[8 * k] = CENTRED ? 0u : pack_pair(low[0], low[1], Key{}), mean[8 * k + 4] = CENTRED ? 0u : pack_pair(high[0], high[1], Key{});
    }
    __syncwarp();
    const uint32_t blocks = static_cast<uint32_t>(__cvta_generic_to_shared(factor)) + lane * 16;
    add_columns<0>(out, at, blocks, mean, lane);
    if constexpr (kColumns < kSteps) add_columns<kColumns>(out, at, blocks, mean, lane);
    return 32.f * over_columns(centroid);
  }

  // By columns from by rows.
  __device__ __forceinline__ void to_columns(float (&columns)[8], const float (&rows)[4]) const {
    const int p = lane % 4;
#pragma unroll
    for (int j = 0; j < 4; j++) {
#pragma unroll
      for (int e = 0; e < 2; e++) columns[2 * j + e] = __shfl_sync(~0u, rows[j], 8 * p + 4 * e);
    }
  }

  // The product with a vector that is given by columns, by rows.
  static __device__ __forceinline__ void multiply(float (&y)[4], const Square32& m, const float (&x)[8]) {
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int at = r % 2 * 2;
      float even = 0.f, odd = 0.f;
#pragma unroll
      for (int j = 0; j < 4; j++) even = fmaf(m.m[r / 2][j][at], x[2 * j], even), odd = fmaf(m.m[r / 2][j][at + 1], x[2 * j + 1], odd);
      y[r] = over_columns(even + odd);
    }
  }

  static __device__ __forceinline__ float dot(const float (&x)[4], const float (&y)[4]) {
    return over_rows(fmaf(x[0], y[0], fmaf(x[1], y[1], fmaf(x[2], y[2], x[3] * y[3]))));
  }

  // Takes out what is left of the vector of ones, of keys that are not centred exactly.
  __device__ __forceinline__ void centre(Square32& m, float total) const {
    float rows[4], columns[8];
#pragma unroll
    for (int r = 0; r < 4; r++) {
      const int at = r % 2 * 2;
      float sum = 0.f;
#pragma unroll
      for (int j = 0; j < 4; j++) sum += m.m[r / 2][j][at] + m.m[r / 2][j][at + 1];
      rows[r] = over_columns(sum) * (1.f / 32);
    }
    to_columns(columns, rows);
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
      for (int j = 0; j < 4; j++) {
#pragma unroll
        for (int i = 0; i < 4; i++) m.m[s][j][i] -= rows[2 * s + i / 2] + (columns[2 * j + i % 2] - total * (1.f / 1024));
      }
    }
  }

  __device__ __forceinline__ float trace(const Square32& m) const {
    const int g = lane / 4;
    const float mine = m.diagonal(0, g) + m.diagonal(1, g) + (m.diagonal(2, g) + m.diagonal(3, g));
    return over_rows(__shfl_sync(~0u, mine, lane / 4 * 4 + g / 2));
  }

  // The leading vectors, in shared memory, of length 1 or 0.
  __device__ __forceinline__ void decompose(Square32& m, float all) const {
    const int g = lane / 4, p = lane % 4;
    float before[4] = {0.f, 0.f, 0.f, 0.f}, first = 0.f;
#pragma unroll
    for (int j = 0; j < RANK; j++) {
      const float size = j == 0 ? all : trace(m);
      // A power of two that brings the trace to 4..8: the largest of 31 eigenvalues is 1/8 to 8, and its 32nd power inside f32.
      const int e = min(max(static_cast<int>(__float_as_uint(size) >> 23) - 129, -120), 120);
      const uint32_t scale = static_cast<uint32_t>(127 - e) << 7;
      uint32_t a[2][2][4];
      m.pack(a);
#pragma unroll
      for (int i = 0; i < 16; i++) a[i / 8][i / 4 % 2][i % 4] = times_pairs(a[i / 8][i / 4 % 2][i % 4], scale | scale << 16);
      Square32 power;
      power.square(a);
#pragma unroll
      for (int n = 1; n < kSquarings; n++) {
        power.pack(a);
        power.square(a);
      }
      // The largest element of the diagonal and whose it is: positive floats are ordered as their bits, of which the last five are given up.
      uint32_t top = 0;
      if (p == g / 2) {
#pragma unroll
        for (int r = 0; r < 4; r++) top = max(top, __float_as_uint(fmaxf(power.diagonal(r, g), 0.f)) & ~31u | static_cast<uint32_t>(8 * r + g));
      }
      top = __reduce_max_sync(~0u, top);
      const int best = static_cast<int>(top & 31u), r = best / 8;
      const float largest = __uint_as_float(top & ~31u);
      const bool found = size > 1e-7f * all && largest > 0.f;  // what is left of a matrix of lower rank is rounding
      const float inverse = found ? rcp_approx(largest) : 0.f;
      float x[8], y[4];
#pragma unroll
      for (int i = 0; i < 8; i++) {
        const float low = r % 2 ? power.m[0][i / 2][2 + i % 2] : power.m[0][i / 2][i % 2], high = r % 2 ? power.m[1][i / 2][2 + i % 2] : power.m[1][i / 2][i % 2];
        x[i] = __shfl_sync(~0u, r / 2 ? high : low, best % 8 * 4 + p) * inverse;
      }
      const float down = __uint_as_float(static_cast<uint32_t>(127 - e) << 23);
      float value = 0.f;
#pragma unroll 1
      for (int n = 0; n < kProducts; n++) {
        multiply(y, m, x);
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] *= down;
        if (j > 0) {
          const float along = dot(y, before);
#pragma unroll
          for (int i = 0; i < 4; i++) y[i] = fmaf(-along, before[i], y[i]);
        }
        const float square = dot(y, y), over = square > 0.f ? rsqrt_approx(square) : 0.f;
        value = square * over;
#pragma unroll
        for (int i = 0; i < 4; i++) y[i] *= over;
        to_columns(x, y);
      }
      if (j == 0) first = value;
      const bool kept = j == 0 || value * first > 0.f && value * __uint_as_float(static_cast<uint32_t>(127 + e) << 23) > kRankTolerance * all;
      // What rounding left of the vector of ones would take the centroid into V.
      const float sum = over_rows(y[0] + y[1] + (y[2] + y[3])) * (1.f / 32);
      const float low = p % 2 ? y[1] : y[0], high = p % 2 ? y[3] : y[2];
      vector(j)[8 * p + g] = found && kept ? (p / 2 ? high : low) - sum : 0.f;
      if (j + 1 < RANK) {
        const float own = value * __uint_as_float(static_cast<uint32_t>(127 + e) << 23);
#pragma unroll
        for (int s = 0; s < 2; s++) {
#pragma unroll
          for (int c = 0; c < 4; c++) {
#pragma unroll
            for (int i = 0; i < 4; i++) m.m[s][c][i] = fmaf(-own * y[2 * s + i / 2], x[2 * c + i % 2], m.m[s][c][i]);
          }
        }
#pragma unroll
        for (int i = 0; i < 4; i++) before[i] = y[i];
      }
    }
    __syncwarp();
  }

  // D^T u and the centroid, f32 in shared memory: dims are the rows of a product, and its columns u, what bf16 leaves of it, and 1/32.
  template <bool CENTRED>
  __device__ __forceinline__ void basis(const uint8_t* keys) const {
    const int lane = opaque(this->lane);
    const int g = lane / 4, p = lane % 4;
    const float* u = vector(RANK == 2 && g >= 4 ? 1 : 0);
    uint32_t b[2][2];
#pragma unroll
    for (int s = 0; s < 2; s++) {
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float2 x = *reinterpret_cast<const float2*>(u + 16 * s + 8 * h + 2 * p);
        const uint32_t hi = pack_pair(x.x, x.y, Key{});
        const float2 rounded = unpack(hi, Key{});
        const uint32_t lo = pack_pair(x.x - rounded.x, x.y - rounded.y, Key{});
        b[s][h] = g == 2 ? thirtyseconds(Key{}) : g == 0 || RANK == 2 && g == 4 ? hi : g == 1 || RANK == 2 && g == 5 ? lo : 0u;
      }
    }
    // p 0 holds the first vector, 1 the centroid, 2 the second vector.
    const bool mine = p < 2 && !(p == 1 && CENTRED) || RANK == 2 && p == 2;
    float* out = values(p == 1 ? RANK : p / 2) + g;
#pragma unroll
    for (int k = 0; k < kSteps; k++) {
      float acc[4];
      uint32_t t[4];
      load_tile_transposed(t, keys + Rows::tile(lane, k));
      mma_m16n8k16_from_zero(acc, t[0], t[2], t[1], t[3], b[0][0], b[0][1], Key{});
      load_tile_transposed(t, keys + Rows::kBytes + Rows::tile(lane, k));
      mma_m16n8k16(acc, t[0], t[2], t[1], t[3], b[1][0], b[1][1], Key{});
      if (mine) out[16 * k] = acc[0] + acc[1], out[16 * k + 8] = acc[2] + acc[3];
    }
    __syncwarp();
  }

  // Codes and scales of what lies in shared memory, straight to the record.
  __device__ __forceinline__ void write(uint8_t* out, float up) const {
    const int lane = opaque(this->lane);
    const bool own = 4 * lane < HEAD_DIM;
    float c[Layout::kRankPad], top_c = 0.f;
    uint16_t* const columns = reinterpret_cast<uint16_t*>(out + Layout::kColumnScales);
#pragma unroll
    for (int j = 0; j < RANK; j++) {
      const float4 v = own ? *reinterpret_cast<const float4*>(values(j) + 4 * lane) : make_float4(0.f, 0.f, 0.f, 0.f);
      float square = fmaf(v.x, v.x, fmaf(v.y, v.y, fmaf(v.z, v.z, v.w * v.w)));
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) square += __shfl_xor_sync(~0u, square, mask);
      const float top = warp_top(fmaxf(fmaxf(fabsf(v.x), fabsf(v.y)), fmaxf(fabsf(v.z), fabsf(v.w))));
      const float over = square > 1e-30f ? rsqrt_approx(square) : 0.f;
      const Scale scale = quick_scale(top * over, 1.f / largest_code<BITS>());
      const float by = over * scale.inverse;
      if constexpr (BITS == 4) {
        const uint32_t low = round_bits(v.x, by, 8) + (round_bits(v.y, by, 8) << 4), high = round_bits(v.z, by, 8) + (round_bits(v.w, by, 8) << 4);
        if (own) reinterpret_cast<uint16_t*>(out + j * Layout::kRowBytes)[lane] = static_cast<uint16_t>(__byte_perm(low, high, 0x0040));
      } else {
        if (own) reinterpret_cast<uint32_t*>(out + j * Layout::kRowBytes)[lane] = bytes(v, by);
      }
      if (lane == 0) columns[j] = bf16_bits(scale.value);
      c[j] = vector(j)[lane] * (square * over);
      top_c = fmaxf(top_c, fabsf(c[j]));
    }
    const float4 m = own ? *reinterpret_cast<const float4*>(values(RANK) + 4 * lane) : make_float4(0.f, 0.f, 0.f, 0.f);
    const KeyScale mu = quick_key_scale<T>(warp_top(fmaxf(fmaxf(fabsf(m.x), fabsf(m.y)), fmaxf(fabsf(m.z), fabsf(m.w)))), up);
    if (own) reinterpret_cast<uint32_t*>(out + Layout::kMu)[lane] = bytes(m, mu.scale.inverse);
    const KeyScale token = quick_key_scale<T, 8, true>(top_c, up);
    if constexpr (RANK == 1) {
      out[Layout::kC + lane] = static_cast<uint8_t>(round_bits(c[0], token.scale.inverse, 0));
    } else {
      reinterpret_cast<uint16_t*>(out + Layout::kC)[lane] =
          static_cast<uint16_t>(__byte_perm(round_bits(c[0], token.scale.inverse, 0), round_bits(c[1], token.scale.inverse, 0), 0x0040));
    }
    reinterpret_cast<uint16_t*>(out + Layout::kTokenScales)[lane] = bf16_bits(token.scale.value > 0.f ? token.stored : 0.f);
    // The rest of the record: the centroid's scale, zeros before and behind.
    constexpr int kFrom = Layout::kColumnScales + 2 * RANK;
    if (lane < (Layout::kBytes - kFrom) / 2) {
      reinterpret_cast<uint16_t*>(out + kFrom)[lane] = kFrom + 2 * lane == Layout::kMuScale ? bf16_bits(mu.stored) : static_cast<uint16_t>(0);
    }
  }

  static __device__ __forceinline__ uint32_t bytes(float4 x, float by) {
    return __byte_perm(__byte_perm(round_bits(x.x, by, 0), round_bits(x.y, by, 0), 0x0040), __byte_perm(round_bits(x.z, by, 0), round_bits(x.w, by, 0), 0x0040), 0x5410);
  }

  // The careful way: keys in shared memory become their distances from the centroid over a power of two, which is taken from the first key's
  // distances in f32 and left where basis() would leave it. Keys that are not finite become zeros, with a centroid that is NaN.
  __device__ __forceinline__ float make_centred(uint8_t* keys) const {
    const int lane = opaque(this->lane);
    const auto place = [&](int row, int pair) { return reinterpret_cast<uint32_t*>(keys + row / 16 * Rows::kBytes + Rows::chunk(row % 16, pair / 4) + pair % 4 * 4); };
    uint32_t top = 0;
#pragma unroll 1
    for (int i = lane; i < 32 * (HEAD_DIM / 2); i += 32) top = larger_bits(top, *place(i / (HEAD_DIM / 2), i % (HEAD_DIM / 2)));
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) top = max(top, __shfl_xor_sync(~0u, top, mask));
    const PageScale power = page_scale(top, Key{});
    const uint32_t keep = power.down > 0.f ? ~0u : 0u;
    __syncwarp();
#pragma unroll 1
    for (int pair = lane; pair < HEAD_DIM / 2; pair += 32) {
      const float2 first = unpack(*place(0, pair) & keep, Key{});
      const float ox = first.x * power.down, oy = first.y * power.down;
      float x = 0.f, y = 0.f;
#pragma unroll 1
      for (int t = 1; t < 32; t++) {
        const float2 key = unpack(*place(t, pair) & keep, Key{});
        x += fmaf(key.x, power.down, -ox), y += fmaf(key.y, power.down, -oy);
      }
      x = fmaf(x, 1.f / 32, ox), y = fmaf(y, 1.f / 32, oy);
      *reinterpret_cast<float2*>(values(RANK) + 2 * pair) = make_float2(x, y);
#pragma unroll 1
      for (int t = 0; t < 32; t++) {
        const float2 key = unpack(*place(t, pair) & keep, Key{});
        *place(t, pair) = pack_pair(fmaf(key.x, power.down, -x), fmaf(key.y, power.down, -y), Key{});
      }
    }
    __syncwarp();
    return power.up;
  }

  // Builds a page whose keys are there. CENTRED: keys are make_centred's, and so is `up`.
  template <bool CENTRED = false>
  __device__ __forceinline__ void build(uint8_t* keys, uint8_t* out, float up = 1.f) const {
    Square32 m;
    const float centroid = gram<CENTRED>(m, keys), energy = trace(m);
    if constexpr (!CENTRED) {
      if (!(energy > kSmallest && energy < kLargest && energy > kSpread * centroid)) {
        __syncwarp();
        build<true>(keys, out, make_centred(keys));
        return;
      }
    }
    float total = 0.f;
#pragma unroll
    for (int i = 0; i < 32; i++) total += m.m[i / 16][i / 4 % 4][i % 4];
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) total += __shfl_xor_sync(~0u, total, mask);
    if (total > 32.f * kUneven * energy) centre(m, total);
    decompose(m, energy);
    basis<CENTRED>(keys);
    write(out, up);
  }

  // Where a page's keys lie: the block of the lane's page of a group, and the record's block, -1 for none.
  struct Blocks {
    int keys, record;
  };

  __device__ __forceinline__ Blocks look_up(const KvCache& cache, int request, int page) const {
    const int64_t at = request * cache.table_stride + static_cast<int64_t>(page) * Group::kPages;
    if constexpr (Group::kPages > 1) return {cache.block_table[at + lane % Group::kPages], cache.block_table[at + Group::kPages - 1]};
    const int block = cache.block_table[at];
    return {cache.row_table == nullptr || block < 0 ? block : cache.row_table[at], block};
  }

  // Starts loading keys; those of a page without a block are not finite.
  __device__ __forceinline__ void fetch(const KvCache& cache, Blocks blocks, int head, bool aligned) const {
    constexpr int kChunks = HEAD_DIM / 8;
    const int lane = opaque(this->lane);  // no address is worked out before the loop over pages
    const auto from = static_cast<const uint16_t*>(cache.k) + head * cache.k_head_stride;
    if (blocks.record < 0) return;
#pragma unroll
    for (int q = 0; q < Group::kPages; q++) {
      const int block = __shfl_sync(~0u, blocks.keys, q);
      const auto page = from + block * cache.k_block_stride;
      if (block < 0 || !aligned) {
#pragma unroll 1
        for (int i = opaque(lane); i < kPageTokens * kChunks; i += 32) {
          const int row = q * kPageTokens + i / kChunks, chunk = i % kChunks;
          uint8_t* const at = shared + row / 16 * Rows::kBytes + Rows::chunk(row % 16, chunk);
          if (block < 0) *reinterpret_cast<uint4*>(at) = make_uint4(~0u, ~0u, ~0u, ~0u);
          else copy_keys(at, page + i / kChunks * cache.k_token_stride + chunk * 8, false);
        }
        continue;
      }
      const uint32_t stride = static_cast<uint32_t>(cache.k_token_stride) * 2;  // bytes
      if constexpr (32 % kChunks == 0 && kPageTokens % 16 == 0) {
        constexpr int kAtOnce = 32 / kChunks;
        const int row = lane / kChunks, chunk = lane % kChunks;
        const uint32_t place = static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + row * Rows::kPitch;
        const uint8_t* first = reinterpret_cast<const uint8_t*>(page) + row * stride + chunk * 16;
#pragma unroll
        for (int i = 0; i < kPageTokens; i += kAtOnce) {  // row + i is row | i, so its chunk is exchanged by a constant more
          const int tile = (q * kPageTokens + i) / 16 * Rows::kBytes + i % 16 * Rows::kPitch;
          ptx::copy16(place + (Rows::kSwizzled ? (chunk ^ row ^ (i & 7)) << 4 : chunk << 4) + tile, first + static_cast<uint64_t>(stride) * i);
        }
      } else {
#pragma unroll 1
        for (int i = lane; i < kPageTokens * kChunks; i += 32) {
          const int own = i / kChunks, row = q * kPageTokens + own;
          ptx::copy16(static_cast<uint32_t>(__cvta_generic_to_shared(shared)) + row / 16 * Rows::kBytes + Rows::chunk(row % 16, i % kChunks),
                      reinterpret_cast<const uint8_t*>(page) + static_cast<uint64_t>(stride) * own + i % kChunks * 16);
        }
      }
    }
    ptx::commit_copies();
  }

  // Starts loading page own of a head, where that is before `end`.
  __device__ __forceinline__ Blocks start(const KvCache& cache, int request, int head, int own, int end, bool aligned) const {
    if (own >= end) return {-1, -1};
    const Blocks now = look_up(cache, request, own);
    fetch(cache, now, head, aligned);
    return now;
  }

  // Builds pages own, own + step, ... before `end` of one head; `now` is the first's.
  __device__ __forceinline__ void run(const PageSummaryArgs& args, int request, int head, int own, int end, int step, Blocks now, bool aligned) const {
    Blocks next = now;
    uint8_t* const out = args.summaries + head * args.summary_head_stride;
#pragma unroll 1
    for (int page = own; page < end; page += step) {
      const bool more = page + step < end;
      if (more) next = look_up(args.cache, request, page + step);
      ptx::wait_copies<0>();
      __syncwarp();
      if (now.record >= 0) build(shared, out + now.record * args.summary_block_stride);
      __syncwarp();  // keys are read
      now = next;
      if (more) fetch(args.cache, now, head, aligned);
    }
  }
};

// Grid: x shares the pages of all heads, y the requests. Any grid is right.
template <int HEAD_DIM, int RANK, int BITS, class T, int kNumWarps, int kSharedBytes, class FORM = PlainForm>
__device__ __forceinline__ void page_summary_weighted32(const PageSummaryArgs& args) {
  using Build = Weighted32<HEAD_DIM, RANK, BITS, T, FORM>;
  using Factor = WeightFactor<HEAD_DIM>;
  static_assert(Factor::kBytes + kNumWarps * Build::kWarpBytes == kSharedBytes, "the launch geometry gives what is laid out here");
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32;
  const Build build{shared + Factor::kBytes + warp * Build::kWarpBytes, shared, static_cast<int>(threadIdx.x % 32)};
  const bool aligned = keys_aligned(args.cache) && args.cache.k_token_stride >= 0 && args.cache.k_token_stride < 1 << 26;
#pragma unroll 1
  for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
    const BuildRange range = build_range<32, typename Build::Group>(args, request);
    const int heads = args.cache.kv_heads, pages = range.items / heads;
    int begin = static_cast<int>(static_cast<int64_t>(range.items) * blockIdx.x / gridDim.x);
    const int end = static_cast<int>(static_cast<int64_t>(range.items) * (blockIdx.x + 1) / gridDim.x);
#pragma unroll 1
    while (begin < end) {
      const int head = begin / pages, page = begin - head * pages, last = min(pages, page + end - begin);
      const int own = range.first + page + warp, upto = range.first + last;
      const typename Build::Blocks now = build.start(args.cache, request, head, own, upto, aligned);
      __syncthreads();  // the factor before is no longer read
      const uint4* from = reinterpret_cast<const uint4*>(static_cast<const uint8_t*>(args.weights) + static_cast<int64_t>(head) * Factor::kBytes);
      for (int i = threadIdx.x; i < Factor::kBytes / 16; i += kNumWarps * 32) reinterpret_cast<uint4*>(shared)[i] = from[i];
      __syncthreads();
      build.run(args, request, head, own, upto, kNumWarps, now, aligned);
      begin += last - page;
    }
  }
  finish_build<32, typename Build::Group>(args);
}

}  // namespace kvloom
