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
  static constexpr int kPages = S::kWarpPages;
  static constexpr int kMmaPages = 8 / S::kRank;      // pages of 8 columns
  static constexpr int kGroups = kPages / kMmaPages;
  static constexpr int kTogether = S::kTogether < kGroups ? S::kTogether : kGroups;
  static constexpr bool kPagePair = kMmaPages == 2 && kSets == 1;  // rows g and g + 8 of the second product are two pages
  static constexpr float kLoss = S::kOnes ? kTf32Loss : 0.f;       // nats that a sum is too low

  uint32_t even[kSets][2][S::kWords], odd[kSets][2][S::kWords];  // A fragments: high bytes, low bytes
  int bias[kSets];                         // of head g: what the codes' bias of 8 adds to the low row, taken off
  float scale[kSets], x_scale[kSets];      // of head g: integer product to base-2 logit; the same for X
  ImmaRange range;

  static __device__ __forceinline__ bool owner() { return threadIdx.x % 4 < kPages / 2; }
  static __device__ __forceinline__ int head(int i) { return 8 * (i / 2) + threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int page(int i) { return 2 * (threadIdx.x % (kPages / 2)) + i % 2; }

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

  // X of 8 columns as A fragments, from the products of the high and the low bytes: k = columns 2p, 2p + 1 in f16, and the residuals.
  static __device__ __forceinline__ void split(const int (&d)[4], float scale0, float scale1, uint32_t& x, uint32_t& rest) {
    const float f0 = static_cast<float>(d[0] * 256 + d[2]) * scale0, f1 = static_cast<float>(d[1] * 256 + d[3]) * scale1;
    const __half2 h = __floats2half2_rn(f0, f1);
    x = f16x2_bits(h);
    rest = f16x2_bits(__floats2half2_rn(f0 - __low2float(h), f1 - __high2float(h)));
  }

  // Where the sums of tokens go: by lanes that will be added up, or through a product with ones.
  struct Sums {
    float part[kSets][2][4];  // page parity, p of the lane that will own it
    float ones[2][4] = {};    // columns are pages

    // Pages 2 group and 2 group + 1 are rows g and g + 8.
    __device__ __forceinline__ void add_pair(int group, const FourTokens& first, const FourTokens& second) {
      if constexpr (S::kOnes) {
        const float on = threadIdx.x % 32 / 8 % kGroups == group ? 1.f : 0.f;
        mma_row_sums_tf32(ones[0], first.a0, second.a0, first.a1, second.a1, on);
        mma_row_sums_tf32(ones[1], first.b0, second.b0, first.b1, second.b1, on);
      } else {
        part[0][0][group] = first.sum(), part[0][1][group] = second.sum();
      }
    }
    // One page; rows g and g + 8 are two sets.
    __device__ __forceinline__ void add_sets(int page, const FourTokens& first, const FourTokens& second) {
      if constexpr (S::kOnes) {
        const float on = threadIdx.x % 32 / 4 % kPages == page ? 1.f : 0.f;
        mma_row_sums_tf32(ones[0], first.a0, second.a0, first.a1, second.a1, on);
        mma_row_sums_tf32(ones[1], first.b0, second.b0, first.b1, second.b1, on);
      } else {
        part[0][page % 2][page / 2] = first.sum(), part[kSets - 1][page % 2][page / 2] = second.sum();
      }
    }
    // One page of one set: rows g + 8 take half of the tokens.
    __device__ __forceinline__ void add_page(int page, const FourTokens& e) {
      if constexpr (S::kOnes)
        mma_row_sums_tf32(ones[page % 2], e.a0, e.b0, e.a1, e.b1, threadIdx.x % 32 / 4 % kPages == page ? 1.f : 0.f);
      else
        part[0][page % 2][page / 2] = e.sum();
    }
    __device__ __forceinline__ void get(float (&sum)[kValues]) {
      if constexpr (S::kOnes) {
        float all[4];
#pragma unroll
        for (int i = 0; i < 4; i++) all[i] = ones[0][i] + ones[1][i];
#pragma unroll
        for (int i = 0; i < kValues; i++) sum[i] = kPagePair ? all[2 * i] : kSets == 1 ? all[i] + all[2 + i] : all[i];
      } else {
#pragma unroll
        for (int i = 0; i < kValues; i++) {
          float(&mine)[4] = part[i / 2][i % 2];
          if constexpr (kPages == 4) mine[2] = mine[0], mine[3] = mine[1];
          sum[i] = sum_quad_scatter(mine);
        }
      }
    }
  };

  // Sums over tokens of 2^(logit without the centroid's part), and the centroid's part.
  __device__ __forceinline__ void tile(const SharedBytes& pages, float (&sum)[kValues], float (&centroid)[kValues]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    Sums sums;
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      uint32_t w[kTogether][S::kWords], b[kTogether][2], column[kTogether];
#pragma unroll
      for (int t = 0; t < kTogether; t++) {
        const SharedBytes base{pages.base + (first + t) * kMmaPages * S::kDistance};
        const int of_g = S::kRank == 4 ? g / 4 * S::kDistance + g % 4 * R::kRowBytes : g * R::kRowBytes;
        load_words<S::kWords, alignment_of(R::kQuarterBytes)>(base, of_g + R::kV + p * R::kQuarterBytes, w[t]);
        // Columns 2p, 2p + 1 are two ranks of one page: their scales are one word.
        column[t] = base.load4((S::kRank == 4 ? p / 2 * S::kDistance + p % 2 * 4 : p * 4) + R::kColumnScales);
        coefficients(SharedBytes{base.base + (S::kRank == 4 ? p / 2 * S::kDistance : 0)}, b[t]);
      }
      int d[kTogether][kSets][4];
#pragma unroll
      for (int t = 0; t < kTogether; t++)
#pragma unroll
        for (int set = 0; set < kSets; set++) d[t][set][0] = d[t][set][1] = 0, d[t][set][2] = d[t][set][3] = bias[set];
#pragma unroll
      for (int j = 0; j < S::kWords; j += 2)
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          const uint32_t low0 = w[t][j] & 0x0f0f0f0fu, low1 = w[t][j + 1] & 0x0f0f0f0fu;
          const uint32_t high0 = w[t][j] >> 4 & 0x0f0f0f0fu, high1 = w[t][j + 1] >> 4 & 0x0f0f0f0fu;
#pragma unroll
          for (int set = 0; set < kSets; set++) {
            mma_m16n8k32_su(d[t][set], even[set][0][j], even[set][1][j], even[set][0][j + 1], even[set][1][j + 1], low0, low1);
            mma_m16n8k32_su(d[t][set], odd[set][0][j], odd[set][1][j], odd[set][0][j + 1], odd[set][1][j + 1], high0, high1);
          }
        }
      uint32_t x[kTogether][kSets], rest[kTogether][kSets];
#pragma unroll
      for (int t = 0; t < kTogether; t++)
#pragma unroll
        for (int set = 0; set < kSets; set++)
          split(d[t][set], low_bf16(column[t]) * x_scale[set], high_bf16(column[t]) * x_scale[set], x[t][set], rest[t][set]);
      if constexpr (kPagePair) {
        const uint32_t keep0 = p / 2 == 0 ? 0xffffffffu : 0u, keep1 = ~keep0;
        float y[kTogether][2][4] = {};
#pragma unroll
        for (int m = 0; m < 2; m++)
#pragma unroll
          for (int t = 0; t < kTogether; t++)
            mma_m16n8k16(y[t][m], x[t][0] & keep0, x[t][0] & keep1, rest[t][0] & keep0, rest[t][0] & keep1, b[t][m], b[t][m], fp16{});
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          float scales[2][4];
#pragma unroll
          for (int i = 0; i < 2; i++) load_token_scales<S>(SharedBytes{pages.base + (2 * (first + t) + i) * S::kDistance}, scales[i]);
          sums.add_pair(first + t, FourTokens(y[t][0][0], y[t][0][1], y[t][1][0], y[t][1][1], scales[0]),
                        FourTokens(y[t][0][2], y[t][0][3], y[t][1][2], y[t][1][3], scales[1]));
        }
      } else {  // rows g and g + 8 are two sets, or nothing; a page at a time
#pragma unroll
        for (int t = 0; t < kTogether; t++)
#pragma unroll
          for (int i = 0; i < kMmaPages; i++) {
            const int of = (first + t) * kMmaPages + i;
            const uint32_t keep = kMmaPages == 1 || p / 2 == i ? 0xffffffffu : 0u;
            float y[2][4] = {};
#pragma unroll
            for (int m = 0; m < 2; m++)
              mma_m16n8k16(y[m], x[t][0], kSets == 2 ? x[t][kSets - 1] : 0u, rest[t][0], kSets == 2 ? rest[t][kSets - 1] : 0u,
                           b[t][m] & keep, b[t][m] & keep, fp16{});
            float scales[4];
            load_token_scales<S>(SharedBytes{pages.base + of * S::kDistance}, scales);
            const FourTokens e(y[0][0], y[0][1], y[1][0], y[1][1], scales);
            if constexpr (kSets == 2)
              sums.add_sets(of, e, FourTokens(y[0][2], y[0][3], y[1][2], y[1][3], scales));
            else
              sums.add_page(of, e);
          }
      }
    }
    sums.get(sum);
    {
      uint32_t mu_even[S::kWords], mu_odd[S::kWords];
      load_centroid<S>(SharedBytes{pages.base + g % kPages * S::kDistance}, mu_even, mu_odd);
      const float mu_scale[2] = {shared_bf16(pages, page(0) * S::kDistance + R::kMuScale), shared_bf16(pages, page(1) * S::kDistance + R::kMuScale)};
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
