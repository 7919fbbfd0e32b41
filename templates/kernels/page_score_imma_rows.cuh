// page_score on int8 tensor cores, 5 to 16 query heads: the query is the rows of the product, rows g and g + 8 the high and low bytes of
// head g of a set of 8, and V its columns. With lane = 4 g + p, a lane gets X of head g for columns 2p, 2p + 1 of 8: already an A
// fragment of the second product, whose k is those 8 columns (8 / RANK pages) as f16 and then their residuals against the same codes.
#pragma once

#include "kernels/page_score_imma_query.cuh"

namespace kvloom {

template <class S>
struct ImmaRows {
  using R = typename S::Rec;
  static constexpr int kSets = (S::kGroup + 7) / 8;
  static constexpr int kValues = 2 * kSets;           // results of a lane: set, page 2p and 2p + 1
  static constexpr int kMmaPages = 8 / S::kRank;      // pages of 8 columns

  uint32_t even[kSets][2][S::kWords], odd[kSets][2][S::kWords];  // A fragments: high bytes, low bytes
  int bias[kSets];                         // of head g: what the codes' bias of 8 adds to the low row, taken off
  float scale[kSets], x_scale[kSets];      // of head g: integer product to base-2 logit; the same for X
  ImmaRange range;

  static __device__ __forceinline__ int head(int i) { return 8 * (i / 2) + threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int page(int i) { return 2 * (threadIdx.x % 4) + i % 2; }

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head) {
    const int g = threadIdx.x % 32 / 4;
    const float unit = args.softmax_scale * kLog2E;
    float most = 0.f;
#pragma unroll
    for (int set = 0; set < kSets; set++) {
      const ImmaQuarter<S> q(args, request, kv_head, 8 * set + g);
      int high = 0, low = 0;
#pragma unroll
      for (int j = 0; j < S::kWords; j++) {
#pragma unroll
        for (int part = 0; part < 2; part++) even[set][part][j] = q.bytes(j, 0, part == 0), odd[set][part][j] = q.bytes(j, 1, part == 0);
        high = sum_bytes(odd[set][0][j], sum_bytes(even[set][0][j], high));
        low = sum_bytes(odd[set][1][j], sum_bytes(even[set][1][j], low));
      }
      int sum = 256 * high + low;
      sum += __shfl_xor_sync(0xffffffffu, sum, 1);
      sum += __shfl_xor_sync(0xffffffffu, sum, 2);
      bias[set] = -8 * sum;
      scale[set] = q.inverse * unit;
      most = fmaxf(most, fabsf(q.top * unit));
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    range.set(most);
#pragma unroll
    for (int set = 0; set < kSets; set++) x_scale[set] = scale[set] * range.down;
  }

  // X of 8 columns as A fragments: k = columns 2p, 2p + 1 in f16, and the residuals. `column` is the lane's quarter of column g.
  __device__ __forceinline__ void project(const SharedBytes& column, float scale0, float scale1, uint32_t (&x)[kSets],
                                          uint32_t (&rest)[kSets]) const {
    uint32_t w[S::kWords];
    load_words<S::kWords, alignment_of(R::kQuarterBytes)>(column, 0, w);
    int d[kSets][4];
#pragma unroll
    for (int set = 0; set < kSets; set++) d[set][0] = d[set][1] = 0, d[set][2] = d[set][3] = bias[set];
#pragma unroll
    for (int j = 0; j < S::kWords; j += 2) {
      const uint32_t low0 = w[j] & 0x0f0f0f0fu, low1 = w[j + 1] & 0x0f0f0f0fu;
      const uint32_t high0 = w[j] >> 4 & 0x0f0f0f0fu, high1 = w[j + 1] >> 4 & 0x0f0f0f0fu;
#pragma unroll
      for (int set = 0; set < kSets; set++) {
        mma_m16n8k32_su(d[set], even[set][0][j], even[set][1][j], even[set][0][j + 1], even[set][1][j + 1], low0, low1);
        mma_m16n8k32_su(d[set], odd[set][0][j], odd[set][1][j], odd[set][0][j + 1], odd[set][1][j + 1], high0, high1);
      }
    }
#pragma unroll
    for (int set = 0; set < kSets; set++) {
      const float f0 = static_cast<float>(d[set][0] * 256 + d[set][2]) * (scale0 * x_scale[set]);
      const float f1 = static_cast<float>(d[set][1] * 256 + d[set][3]) * (scale1 * x_scale[set]);
      const __half2 h = __floats2half2_rn(f0, f1);
      x[set] = f16x2_bits(h);
      rest[set] = f16x2_bits(__floats2half2_rn(f0 - __low2float(h), f1 - __high2float(h)));
    }
  }

  // B fragments of C: b[m] for the tokens 2 n + m, k = columns 2p, 2p + 1.
  __device__ __forceinline__ void coefficients(const SharedBytes& page, uint32_t (&b)[2]) const {
    const int n = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
    if constexpr (S::kRank == 4) {
      const uint2 w = page.load8(R::kC + n * 8);
      b[0] = range.codes(w.x ^ 0x80808080u, p % 2 == 0 ? 0x4140 : 0x4342);
      b[1] = range.codes(w.y ^ 0x80808080u, p % 2 == 0 ? 0x4140 : 0x4342);
    } else {
#pragma unroll
      for (int m = 0; m < 2; m++) b[m] = range.codes(page.load2(R::kC + (2 * n + m) * R::kRankPad + 2 * p) ^ 0x8080u, 0x4140);
    }
  }

  // Sums over tokens of 2^(logit without the centroid's part), and the centroid's part.
  __device__ __forceinline__ void tile(const SharedBytes& pages, float (&sum)[kValues], float (&centroid)[kValues]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    float part[kSets][2][4];  // page parity, p of the lane that will own it
#pragma unroll
    for (int group = 0; group < kImmaTile / kMmaPages; group++) {
      const SharedBytes base{pages.base + group * kMmaPages * S::kDistance};
      uint32_t x[kSets], rest[kSets], b[2];
      {
        // Columns 2p, 2p + 1 are two ranks of one page: their scales are one word.
        const int at = S::kRank == 4 ? p / 2 * S::kDistance + p % 2 * 4 : p * 4;
        const uint32_t scales = base.load4(at + R::kColumnScales);
        const int column = S::kRank == 4 ? g / 4 * S::kDistance + g % 4 * R::kRowBytes : g * R::kRowBytes;
        project(SharedBytes{base.base + column + R::kV + p * R::kQuarterBytes}, low_bf16(scales), high_bf16(scales), x, rest);
        coefficients(SharedBytes{base.base + (S::kRank == 4 ? p / 2 * S::kDistance : 0)}, b);
      }
      if constexpr (kMmaPages == 2 && kSets == 1) {  // rows g and g + 8 are the two pages
        const uint32_t keep0 = p / 2 == 0 ? 0xffffffffu : 0u, keep1 = ~keep0;
        float d[2][4] = {};
#pragma unroll
        for (int m = 0; m < 2; m++) mma_m16n8k16(d[m], x[0] & keep0, x[0] & keep1, rest[0] & keep0, rest[0] & keep1, b[m], b[m], fp16{});
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float scales[4];
          load_token_scales<S>(SharedBytes{base.base + i * S::kDistance}, scales);
          part[0][i][group] = sum_four(d[0][2 * i], d[0][2 * i + 1], d[1][2 * i], d[1][2 * i + 1], scales);
        }
      } else {  // rows g and g + 8 are two sets, or nothing; a page at a time
#pragma unroll
        for (int i = 0; i < kMmaPages; i++) {
          const uint32_t keep = kMmaPages == 1 || p / 2 == i ? 0xffffffffu : 0u;
          float d[2][4] = {};
#pragma unroll
          for (int m = 0; m < 2; m++)
            mma_m16n8k16(d[m], x[0], kSets == 2 ? x[kSets - 1] : 0u, rest[0], kSets == 2 ? rest[kSets - 1] : 0u, b[m] & keep, b[m] & keep,
                         fp16{});
          float scales[4];
          load_token_scales<S>(SharedBytes{base.base + i * S::kDistance}, scales);
          const int of = group * kMmaPages + i;
#pragma unroll
          for (int set = 0; set < kSets; set++)
            part[set][of % 2][of / 2] = sum_four(d[0][2 * set], d[0][2 * set + 1], d[1][2 * set], d[1][2 * set + 1], scales);
        }
      }
    }
#pragma unroll
    for (int set = 0; set < kSets; set++)
#pragma unroll
      for (int i = 0; i < 2; i++) sum[2 * set + i] = sum_quad_scatter(part[set][i]);
    {
      uint32_t mu_even[S::kWords], mu_odd[S::kWords];
      load_centroid<S>(SharedBytes{pages.base + g * S::kDistance}, mu_even, mu_odd);
      const float mu_scale[2] = {shared_bf16(pages, 2 * p * S::kDistance + R::kMuScale), shared_bf16(pages, (2 * p + 1) * S::kDistance + R::kMuScale)};
#pragma unroll
      for (int set = 0; set < kSets; set++) {
        int d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int j = 0; j < S::kWords; j += 2) {
          mma_m16n8k32_ss(d, even[set][0][j], even[set][1][j], even[set][0][j + 1], even[set][1][j + 1], mu_even[j], mu_even[j + 1]);
          mma_m16n8k32_ss(d, odd[set][0][j], odd[set][1][j], odd[set][0][j + 1], odd[set][1][j + 1], mu_odd[j], mu_odd[j + 1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) centroid[2 * set + i] = static_cast<float>(d[i] * 256 + d[2 + i]) * (mu_scale[i] * scale[set]);
      }
    }
  }
};

}  // namespace kvloom
