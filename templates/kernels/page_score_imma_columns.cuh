// page_score on int8 tensor cores, up to 4 query heads: V is the rows of the product and the query its columns, column n = head n / 2,
// high byte (n even) or low. 16 rows are 16 / RANK pages. With lane = 4 g + p, a lane gets X of rows g and g + 8 for head p; one
// transpose turns it (f16 and a residual in f16) into A fragments of row (head g / 2, half g % 2), block-diagonal over pages; C is B.
#pragma once

#include "kernels/page_score_imma_query.cuh"

namespace kvloom {

template <class S>
struct ImmaColumns {
  static_assert(S::kGroup <= 4, "8 columns are 4 heads");
  using R = typename S::Rec;
  static constexpr int kValues = 1;                 // results of a lane
  static constexpr int kHalf = S::kRank / 2;        // rows g of one page; rows g + 8 are the other half of the ranks
  static constexpr int kMmaPages = 16 / S::kRank;   // pages of 16 rows
  static constexpr int kRowPages = S::kRank == 4 ? 2 : 1;  // pages of a row g and its g + 8 in the second product

  uint32_t even[S::kWords], odd[S::kWords];  // B fragments
  int bias;                                  // of head p: what the codes' bias of 8 adds to the low column, taken off
  float scale, x_scale;                      // of head p: integer product to base-2 logit; the same for X
  ImmaRange range;

  // Result i of this lane: query head of the group, page of the tile.
  static __device__ __forceinline__ int head(int) { return threadIdx.x % 32 / 8; }
  static __device__ __forceinline__ int page(int) {
    const int half = threadIdx.x / 4 % 2, p = threadIdx.x % 4;
    return S::kRank == 4 ? 4 * (p / 2) + 2 * half + p % 2 : 2 * p + half;
  }

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head) {
    const int lane = threadIdx.x % 32, n = lane / 4, p = lane % 4;
    const ImmaQuarter<S> q(args, request, kv_head, n / 2);
    int sum = 0;
#pragma unroll
    for (int j = 0; j < S::kWords; j++) {
      even[j] = q.bytes(j, 0, n % 2 == 0);
      odd[j] = q.bytes(j, 1, n % 2 == 0);
      sum = sum_bytes(odd[j], sum_bytes(even[j], sum));
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    bias = -8 * (256 * __shfl_sync(0xffffffffu, sum, 8 * p) + __shfl_sync(0xffffffffu, sum, 8 * p + 4));
    const float unit = args.softmax_scale * kLog2E;
    float most = fabsf(q.top * unit);
#pragma unroll
    for (int mask = 8; mask < 32; mask *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    range.set(most);
    scale = __shfl_sync(0xffffffffu, q.inverse * unit, 8 * p);
    x_scale = scale * range.down * (1.f / 16);  // odd dims keep their nibble's weight of 16
  }

  static __device__ __forceinline__ void split(float value, uint32_t& x, uint32_t& rest) {
    const __half2 twice = __floats2half2_rn(value, value);
    const float left = value - __low2float(twice);
    x = ptx::transpose8x8(f16x2_bits(twice));
    rest = ptx::transpose8x8(f16x2_bits(__floats2half2_rn(left, left)));
  }

  // X of 16 rows, transposed: x[i] holds k = rows 8i + 2p, 8i + 2p + 1. `rows` is the lane's quarter of row g.
  __device__ __forceinline__ void project(const SharedBytes& rows, const float (&column)[2], uint32_t (&x)[2], uint32_t (&rest)[2]) const {
    uint32_t w[2][S::kWords];
    load_words<S::kWords, alignment_of(R::kQuarterBytes)>(rows, 0, w[0]);
    load_words<S::kWords, alignment_of(R::kQuarterBytes)>(rows, kHalf * R::kRowBytes, w[1]);
    int low[4] = {0, bias, 0, bias}, high[4] = {0, 0, 0, 0};
#pragma unroll
    for (int j = 0; j < S::kWords; j += 2) {
      constexpr uint32_t kLow = 0x0f0f0f0fu, kHigh = 0xf0f0f0f0u;
      mma_m16n8k32_us(low, w[0][j] & kLow, w[1][j] & kLow, w[0][j + 1] & kLow, w[1][j + 1] & kLow, even[j], even[j + 1]);
      mma_m16n8k32_us(high, w[0][j] & kHigh, w[1][j] & kHigh, w[0][j + 1] & kHigh, w[1][j + 1] & kHigh, odd[j], odd[j + 1]);
    }
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int product = (low[2 * i] * 16 + high[2 * i]) * 256 + (low[2 * i + 1] * 16 + high[2 * i + 1]);
      split(static_cast<float>(product) * (column[i] * x_scale), x[i], rest[i]);
    }
  }

  // B fragments of C: b[m][i] for the tokens 2 n + m, k = ranks of rows 8i + 2p, 8i + 2p + 1.
  __device__ __forceinline__ void coefficients(const SharedBytes& page, uint32_t (&b)[2][2]) const {
    constexpr int kTokens = 2 * R::kRankPad / 4;  // words of two tokens
    const int n = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
    uint32_t w[kTokens];
    load_words<kTokens, alignment_of(2 * R::kRankPad)>(page, R::kC + n * 2 * R::kRankPad, w);
#pragma unroll
    for (int i = 0; i < kTokens; i++) w[i] ^= 0x80808080u;
#pragma unroll
    for (int m = 0; m < 2; m++)
#pragma unroll
      for (int i = 0; i < 2; i++)
        // Rank 4: ranks 0, 1 then 2, 3 of a token's word. Rank 8: ranks 2 (p % 2) and the next of its first word, then of the second.
        b[m][i] = S::kRank == 4 ? range.codes(w[m], i == 0 ? 0x4140 : 0x4342) : range.codes(w[2 * m + i], p % 2 == 0 ? 0x4140 : 0x4342);
  }

  // Sums over tokens of 2^(logit without the centroid's part), and the centroid's part.
  __device__ __forceinline__ void tile(const SharedBytes& pages, float (&sum)[1], float (&centroid)[1]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4, half = g % 2;
    {
      const SharedBytes page_g{pages.base + g * S::kDistance};
      uint32_t mu_even[S::kWords], mu_odd[S::kWords];
      load_centroid<S>(page_g, mu_even, mu_odd);
      const float mu_scale = shared_bf16(page_g, R::kMuScale);
      int d[4] = {0, 0, 0, 0};
#pragma unroll
      for (int j = 0; j < S::kWords; j += 2) {
        mma_m16n8k32_ss(d, mu_even[j], 0u, mu_even[j + 1], 0u, even[j], even[j + 1]);
        mma_m16n8k32_ss(d, mu_odd[j], 0u, mu_odd[j + 1], 0u, odd[j], odd[j + 1]);
      }
      centroid[0] = __shfl_sync(0xffffffffu, static_cast<float>(d[0] * 256 + d[1]) * (mu_scale * scale), page(0) * 4 + g / 2);
    }
    float part[4];  // by p of the lane that will own it
#pragma unroll
    for (int group = 0; group < kImmaTile / kMmaPages; group++) {
      const uint8_t* base = pages.base + group * kMmaPages * S::kDistance;
      uint32_t x[2], rest[2], b[2][2];
      {
        const SharedBytes of_row{base + g / kHalf * S::kDistance};
        const int row = g % kHalf;
        const float column[2] = {shared_bf16(of_row, R::kColumnScales + 2 * row), shared_bf16(of_row, R::kColumnScales + 2 * (row + kHalf))};
        project(SharedBytes{of_row.base + R::kV + row * R::kRowBytes + p * R::kQuarterBytes}, column, x, rest);
      }
      const int own = S::kRank == 4 ? p : p / 2;  // the page of this lane's k
      coefficients(SharedBytes{base + own * S::kDistance}, b);
      // Row g keeps page kRowPages * half; row g + 8 the next one, at rank 8 nothing.
      const uint32_t keep0 = own == kRowPages * half ? 0xffffffffu : 0u, keep1 = kRowPages == 2 && own == 2 * half + 1 ? 0xffffffffu : 0u;
      float d[2][4] = {};
#pragma unroll
      for (int m = 0; m < 2; m++) {
        mma_m16n8k16(d[m], x[0] & keep0, x[0] & keep1, x[1] & keep0, x[1] & keep1, b[m][0], b[m][1], fp16{});
        mma_m16n8k16(d[m], rest[0] & keep0, rest[0] & keep1, rest[1] & keep0, rest[1] & keep1, b[m][0], b[m][1], fp16{});
      }
#pragma unroll
      for (int i = 0; i < kRowPages; i++) {
        float scales[4];
        load_token_scales<S>(SharedBytes{base + (kRowPages * half + i) * S::kDistance}, scales);
        part[kRowPages * group + i] = sum_four(d[0][2 * i], d[0][2 * i + 1], d[1][2 * i], d[1][2 * i + 1], scales);
      }
    }
    sum[0] = sum_quad_scatter(part);
  }
};

}  // namespace kvloom
