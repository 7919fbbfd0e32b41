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
  static constexpr int kPages = S::kWarpPages;
  static constexpr int kHalf = S::kRank / 2;        // rows g of one page; rows g + 8 are the other half of the ranks
  static constexpr int kMmaPages = 16 / S::kRank;   // pages of 16 rows
  static constexpr int kRowPages = S::kRank == 4 ? 2 : 1;  // pages of a row g and its g + 8 in the second product
  static constexpr int kGroups = kPages / kMmaPages;
  static constexpr int kTogether = S::kTogether < kGroups ? S::kTogether : kGroups;
  static constexpr float kLoss = S::kOnes ? kTf32Loss : 0.f;  // nats that a sum is too low

  uint32_t even[S::kWords], odd[S::kWords];  // B fragments
  int bias;                                  // of head p: what the codes' bias of 8 adds to the low column, taken off
  float scale, x_scale;                      // of head p: integer product to base-2 logit; the same for X
  ImmaRange range;

  // Result i of this lane: query head of the group, page of the warp's. Of 4 pages two lanes have each result.
  static __device__ __forceinline__ bool owner() { return kPages == 8 || threadIdx.x % 4 < 2; }
  static __device__ __forceinline__ int head(int) { return threadIdx.x % 32 / 8; }
  static __device__ __forceinline__ int page(int) {
    const int half = threadIdx.x / 4 % 2, p = threadIdx.x % 4;
    return (S::kRank == 4 ? 4 * (p / 2) + 2 * half + p % 2 : 2 * p + half) % kPages;
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
    int mean[2][4] = {};  // of the even and the odd dims: two short chains
    float mu_scale;
    {
      const SharedBytes page_g{pages.base + g % kPages * S::kDistance};
      uint32_t mu_even[S::kWords], mu_odd[S::kWords];
      load_centroid<S>(page_g, mu_even, mu_odd);
      mu_scale = shared_bf16(page_g, R::kMuScale);
#pragma unroll
      for (int j = 0; j < S::kWords; j += 2) {
        mma_m16n8k32_ss(mean[0], mu_even[j], 0u, mu_even[j + 1], 0u, even[j], even[j + 1]);
        mma_m16n8k32_ss(mean[1], mu_odd[j], 0u, mu_odd[j + 1], 0u, odd[j], odd[j + 1]);
      }
    }
    float part[4];          // by p of the lane that will own it
    float ones[2][4] = {};  // or the sums of all rows, a column a group
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      uint32_t w[kTogether][2][S::kWords], b[kTogether][2][2];
      float column[kTogether][2], scales[kTogether][kRowPages][4];
      const int own = S::kRank == 4 ? p : p / 2;  // the page of this lane's k
#pragma unroll
      for (int t = 0; t < kTogether; t++) {
        const uint8_t* base = pages.base + (first + t) * kMmaPages * S::kDistance;
        const SharedBytes of_row{base + g / kHalf * S::kDistance};
        const int row = g % kHalf;
#pragma unroll
        for (int i = 0; i < 2; i++) {
          load_words<S::kWords, alignment_of(R::kQuarterBytes)>(of_row, R::kV + (row + i * kHalf) * R::kRowBytes + p * R::kQuarterBytes, w[t][i]);
          column[t][i] = shared_bf16(of_row, R::kColumnScales + 2 * (row + i * kHalf));
        }
        coefficients(SharedBytes{base + own * S::kDistance}, b[t]);
#pragma unroll
        for (int i = 0; i < kRowPages; i++) load_token_scales<S>(SharedBytes{base + (kRowPages * half + i) * S::kDistance}, scales[t][i]);
      }
      int low[kTogether][4], high[kTogether][4];
#pragma unroll
      for (int t = 0; t < kTogether; t++) low[t][0] = low[t][2] = 0, low[t][1] = low[t][3] = bias, high[t][0] = high[t][1] = high[t][2] = high[t][3] = 0;
#pragma unroll
      for (int j = 0; j < S::kWords; j += 2)
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          constexpr uint32_t kLow = 0x0f0f0f0fu, kHigh = 0xf0f0f0f0u;
          const uint32_t a0 = w[t][0][j], a1 = w[t][1][j], a2 = w[t][0][j + 1], a3 = w[t][1][j + 1];
          mma_m16n8k32_us(low[t], a0 & kLow, a1 & kLow, a2 & kLow, a3 & kLow, even[j], even[j + 1]);
          mma_m16n8k32_us(high[t], a0 & kHigh, a1 & kHigh, a2 & kHigh, a3 & kHigh, odd[j], odd[j + 1]);
        }
      // X of 16 rows, transposed: x[i] holds k = rows 8i + 2p, 8i + 2p + 1.
      uint32_t x[kTogether][2], rest[kTogether][2];
#pragma unroll
      for (int t = 0; t < kTogether; t++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int product = (low[t][2 * i] * 16 + high[t][2 * i]) * 256 + (low[t][2 * i + 1] * 16 + high[t][2 * i + 1]);
          split(static_cast<float>(product) * (column[t][i] * x_scale), x[t][i], rest[t][i]);
        }
      // Row g keeps page kRowPages * half; row g + 8 the next one, at rank 8 nothing.
      const uint32_t keep0 = own == kRowPages * half ? 0xffffffffu : 0u, keep1 = kRowPages == 2 && own == 2 * half + 1 ? 0xffffffffu : 0u;
      float d[kTogether][2][4] = {};
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < kTogether; t++)
          mma_m16n8k16(d[t][m], x[t][0] & keep0, x[t][0] & keep1, x[t][1] & keep0, x[t][1] & keep1, b[t][m][0], b[t][m][1], fp16{});
#pragma unroll
      for (int m = 0; m < 2; m++)
#pragma unroll
        for (int t = 0; t < kTogether; t++)
          mma_m16n8k16(d[t][m], rest[t][0] & keep0, rest[t][0] & keep1, rest[t][1] & keep0, rest[t][1] & keep1, b[t][m][0], b[t][m][1], fp16{});
#pragma unroll
      for (int t = 0; t < kTogether; t++) {
        const int group = first + t;
        const FourTokens e0(d[t][0][0], d[t][0][1], d[t][1][0], d[t][1][1], scales[t][0]);
        if constexpr (kRowPages == 2) {
          const FourTokens e1(d[t][0][2], d[t][0][3], d[t][1][2], d[t][1][3], scales[t][1]);
          if constexpr (S::kOnes) {  // lanes p / 2 = group have their columns; row g is page 2 half, row g + 8 the next
            const float column_on = lane / 16 % kGroups == group ? 1.f : 0.f;
            mma_row_sums_tf32(ones[0], e0.a0, e1.a0, e0.a1, e1.a1, column_on);
            mma_row_sums_tf32(ones[1], e0.b0, e1.b0, e0.b1, e1.b1, column_on);
          } else {
            part[2 * group] = e0.sum(), part[2 * group + 1] = e1.sum();
          }
        } else if constexpr (S::kOnes) {  // rows g + 8 take half of the tokens
          mma_row_sums_tf32(ones[group % 2], e0.a0, e0.b0, e0.a1, e0.b1, lane / 8 % kGroups == group ? 1.f : 0.f);
        } else {
          part[group] = e0.sum();
        }
      }
    }
    if constexpr (S::kOnes) {
      const float s0 = ones[0][0] + ones[1][0], s1 = ones[0][2] + ones[1][2];
      sum[0] = kRowPages == 1 ? s0 + s1 : p % 2 == 0 ? s0 : s1;
    } else {
      if constexpr (kPages == 4) part[2] = part[0], part[3] = part[1];
      sum[0] = sum_quad_scatter(part);
    }
    const int product = (mean[0][0] + mean[1][0]) * 256 + (mean[0][1] + mean[1][1]);
    centroid[0] = __shfl_sync(0xffffffffu, static_cast<float>(product) * (mu_scale * scale), page(0) * 4 + g / 2);
  }
};

}  // namespace kvloom
