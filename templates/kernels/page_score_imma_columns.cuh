// page_score on int8 tensor cores, up to 4 query heads: V is the rows of the product and the query its columns, column n = head n / 2,
// high byte (n even) or low. 16 rows are 16 / RANK pages. With lane = 4 g + p, a lane gets X of rows g and g + 8 for head p; one
// transpose turns it (f16 and a residual in f16) into A fragments of row (head g / 2, half g % 2), block-diagonal over pages; C is B.
#pragma once

#include "kernels/page_score_imma_query.cuh"

namespace kvloom {

// X = V^T q times 2^-t, which brings it into the range of f16, and the codes of C times 2^t: f16 pairs 2^t and -1152 * 2^t. A column
// of V has norm 1: |X| <= 16 * most for up to 256 dims, most the largest |q| in base-2 logits. 2^-t brings that to about 2^14.
struct ColumnsRange {
  float down;
  uint32_t up, up_bias;
  __device__ __forceinline__ void set(float most) {
    const int exponent = static_cast<int>(__float_as_uint(most) >> 23 & 0xff) - 127 + 4;
    const int t = min(max(exponent - 14, -14), 5);
    down = __uint_as_float(static_cast<uint32_t>(127 - t) << 23);
    const float f = __uint_as_float(static_cast<uint32_t>(127 + t) << 23);
    up = f16x2_bits(f16x2_both(f)), up_bias = f16x2_bits(f16x2_both(-1152.f * f));
  }
  // Two of the biased bytes of a word as f16, times 2^t.
  __device__ __forceinline__ uint32_t codes(uint32_t biased, uint32_t pick) const {
    return f16x2_bits(__hfma2(f16x2(__byte_perm(biased, 0x64646464u, pick)), f16x2(up), f16x2(up_bias)));
  }
};

// Scales of a lane's tokens in a block: of 16, scale[2 m + i] of the token in column 2p + i of n tile m, which is token 2 (2p + i) + m;
// of 8 or 4, scale[i] of token 2p + i.
// p is the lane's place in its quad, or another where the page's tokens are turned.
template <class S>
__device__ __forceinline__ void load_token_scales(const SharedBytes& page, int block, int p, float (&scale)[4]) {
  if constexpr (S::kTokenTiles == 2) {
    const uint2 w = page.load8(S::Rec::kTokenScales + 32 * block + 8 * p);
    scale[0] = low_bf16(w.x), scale[2] = high_bf16(w.x), scale[1] = low_bf16(w.y), scale[3] = high_bf16(w.y);
  } else {
    const uint32_t w = page.load4(S::Rec::kTokenScales + 4 * (p % (S::kPage / 2)));
    scale[0] = low_bf16(w), scale[1] = high_bf16(w);
  }
}

// Logits of a row without their tokens' scales, times those.
template <class S>
__device__ __forceinline__ TokenSums<S> scaled_sums(const float (&y)[S::kTokenTiles][4], int at, const float (&scale)[4]) {
  float scaled[S::kTokenTiles][4];
#pragma unroll
  for (int m = 0; m < S::kTokenTiles; m++)
#pragma unroll
    for (int i = 0; i < 2; i++) scaled[m][at + i] = y[m][at + i] * scale[2 * m + i];
  return TokenSums<S>(scaled, at);
}

template <class S>
struct ImmaColumns {
  static_assert(S::kGroup <= 4, "8 columns are 4 heads");
  using R = typename S::Rec;
  static constexpr bool kHandsOver = false;  // a warp's share of a query would be all of its work
  struct Exchange {};
  static constexpr int kValues = 1;                 // results of a lane
  static constexpr int kPages = S::kWarpPages;
  static constexpr int kHalf = S::kRank == 1 ? 1 : S::kRank / 2;  // rows g of one page; rows g + 8 are the other half of the ranks
  static constexpr int kMmaPages = S::kRank == 1 ? 8 : 16 / S::kRank;  // pages of 16 rows; at rank 1 rows g + 8 are empty
  static constexpr int kProducts = kPages / kMmaPages;
  static constexpr int kTogether = S::kTogether < kProducts ? S::kTogether : kProducts;
  static constexpr int kRowPages = S::kRank <= 4 ? 2 : 1;         // pages of a row g and its g + 8 in the second product
  static constexpr int kVariants = S::kRank <= 2 ? 2 : 1;         // second products of one first product
  static constexpr int kGroups = kProducts * kVariants;           // second products
  static_assert(kProducts >= 1, "the 8 pages of a tile fill 16 rows: two warps cannot share them at rank 1 and 2");
  static_assert(S::kOnes || S::kRank <= 8, "at rank 16 two lanes share the tokens of a page, which ones add up");
  static_assert(S::kRank > 1 || S::kTokenTiles == 2, "at rank 1 codes are loaded in pairs of tokens");
  // Pages lie at the same banks. The order of their tokens is free: those at odd places of a product begin with their ninth, so that lanes
  // of two pages read coefficients from different banks.
  static constexpr bool kTurns = S::kTokenTiles == 2 && S::kRank == 4;
  static constexpr int kWeight = S::kBits == 4 ? 16 : 1;          // of odd dims, whose nibbles stay where they lie
  static constexpr float kLoss = S::kOnes ? kTf32Loss : 0.f;  // nats that a sum is too low

  uint32_t words[S::kWords];  // B fragments
  // The same in the order of a centroid's bytes: registers instead of eight permutations a tile.
  static constexpr bool kPlainWords = !S::kThird;
  uint32_t plain[kPlainWords ? S::kWords : 1];
  int bias;                   // of head p: what the codes' bias adds to the low column, taken off; twice that of 2-bit codes
  uint32_t third[S::kThird ? S::kWords : 1];  // third bytes in the columns of high ones, nothing in those of low ones
  int third_bias;
  float scale, x_scale;       // of head p: integer product to base-2 logit; the same for X
  ColumnsRange range;

  // Result i of this lane: query head of the group, page of the warp's. Of 4 pages two lanes have each result.
  static __device__ __forceinline__ bool owner() { return kPages == 8 || threadIdx.x % 4 < 2; }
  static __device__ __forceinline__ int head(int) { return threadIdx.x % 32 / 8; }
  static __device__ __forceinline__ int page(int) {
    const int half = threadIdx.x / 4 % 2, p = threadIdx.x % 4;
    return (S::kRank <= 4 ? 4 * (p / 2) + 2 * half + p % 2 : 2 * p + half) % kPages;
  }

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int) {
    const int lane = threadIdx.x % 32, n = lane / 4, p = lane % 4;
    const ImmaQuarter<S> q(args, request, kv_head, n / 2);
    int sum = 0;
#pragma unroll
    for (int k = 0; k < S::kWords; k++) {
      words[k] = q.bytes(k, n % 2 == 0);
      if constexpr (kPlainWords) plain[k] = q.plain_bytes(k, n % 2 == 0);
      sum = sum_bytes(words[k], sum);
    }
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    sum += __shfl_xor_sync(0xffffffffu, sum, 2);
    const int high = __shfl_sync(0xffffffffu, sum, 8 * p), low = __shfl_sync(0xffffffffu, sum, 8 * p + 4);
    bias = (S::kBits == 2 ? -3 : S::kBits == 4 ? -8 : 0) * (256 * high + low);
    if constexpr (S::kThird) {
      int left = 0;
#pragma unroll
      for (int k = 0; k < S::kWords; k++) {
        third[k] = n % 2 == 0 ? q.third(k) : 0u;
        left = sum_bytes(third[k], left);
      }
      left += __shfl_xor_sync(0xffffffffu, left, 1);
      left += __shfl_xor_sync(0xffffffffu, left, 2);
      third_bias = (S::kBits == 2 ? -3 : S::kBits == 4 ? -8 * kWeight : 0) * __shfl_sync(0xffffffffu, left, 8 * p);
    }
    const float unit = args.softmax_scale * kLog2E;
    float most = fabsf(q.top * unit);
#pragma unroll
    for (int mask = 8; mask < 32; mask *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    range.set(most);
    scale = __shfl_sync(0xffffffffu, q.inverse * unit, 8 * p);
    x_scale = scale * range.down * (S::kBits == 2 ? 1.f / 2 : 1.f / kWeight);
  }

  static __device__ __forceinline__ void split(float value, uint32_t& x, uint32_t& rest) {
    const __half2 twice = __floats2half2_rn(value, value);
    const float left = value - __low2float(twice);
    x = ptx::transpose8x8(f16x2_bits(twice));
    rest = ptx::transpose8x8(f16x2_bits(__floats2half2_rn(left, left)));
  }

  // B fragments of C: b[m][i] for the token of column n of tile m in a block of tokens, k = ranks of rows 8i + 2p, 8i + 2p + 1. `pages`
  // is the product's first page. At rank 1 i = 1 is the residual's, and the same.
  __device__ __forceinline__ void coefficients(const SharedBytes& pages, int block, uint32_t (&b)[S::kTokenTiles][2]) const {
    constexpr int kTiles = S::kTokenTiles;
    const int n = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
    const int turned = kTurns ? (n + 4 * p) % 8 : n;
    const int token = kTiles == 2 ? 16 * block + 2 * turned : n % S::kPage;  // of tile 0
    const int at = R::kC + token * R::kRankPad;
    if constexpr (S::kRank <= 2) {  // of pages 2p and 2p + 1
      const SharedBytes first{pages.base + 2 * p * S::kDistance}, second{pages.base + (2 * p + 1) * S::kDistance};
      constexpr bool kWord = kTiles * S::kRank == 4;
      const uint32_t w0 = (kWord ? first.load4(at) : first.load2(at)) ^ 0x80808080u;
      const uint32_t w1 = (kWord ? second.load4(at) : second.load2(at)) ^ 0x80808080u;
#pragma unroll
      for (int m = 0; m < kTiles; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const int byte = S::kRank == 2 ? 2 * m + i : m;
          b[m][i] = range.codes(__byte_perm(w0, w1, byte | (4 + byte) << 4), 0x4140);
        }
    } else if constexpr (S::kRank == 16) {
#pragma unroll
      for (int m = 0; m < kTiles; m++)
#pragma unroll
        for (int i = 0; i < 2; i++) b[m][i] = range.codes(pages.load2(at + 16 * m + 8 * i + 2 * p) ^ 0x8080u, 0x4140);
    } else {
      constexpr int kWords = kTiles * R::kRankPad / 4;
      const SharedBytes page{pages.base + (S::kRank == 4 ? p : p / 2) * S::kDistance};
      uint32_t w[kWords];
      load_words<kWords, alignment_of(4 * kWords)>(page, at, w);
#pragma unroll
      for (int i = 0; i < kWords; i++) w[i] ^= 0x80808080u;
#pragma unroll
      for (int m = 0; m < kTiles; m++)
#pragma unroll
        for (int i = 0; i < 2; i++)
          // Rank 4: ranks 0, 1 then 2, 3 of a token's word. Rank 8: ranks 2 (p % 2) and the next of its first word, then of the second.
          b[m][i] = S::kRank == 4 ? range.codes(w[m], i == 0 ? 0x4140 : 0x4342)
                                  : range.codes(w[(2 * m + i) % kWords], p % 2 == 0 ? 0x4140 : 0x4342);
    }
  }

  // What row g (i = 0) and row g + 8 (i = 1) keep of a k pair in second product v of a first one: the ranks of their page.
  static __device__ __forceinline__ uint32_t keep(int v, int i) {
    const int half = threadIdx.x / 4 % 2, p = threadIdx.x % 4;
    if constexpr (S::kRank <= 2) return p == 2 * v + half ? (i == 0 ? 0x0000ffffu : 0xffff0000u) : 0u;
    if constexpr (S::kRank == 4) return p == 2 * half + i ? 0xffffffffu : 0u;
    if constexpr (S::kRank == 8) return i == 0 && p / 2 == half ? 0xffffffffu : 0u;
    return i == 0 ? 0xffffffffu : 0u;
  }

  // Where the sums of tokens go: to lanes that will be added up, by p of the lane that will own the sum, or through a product with ones.
  struct Sums {
    float part[4] = {};
    float ones[2][4] = {};  // columns: pages of a second product

    __device__ __forceinline__ void add(int group, const float (&y)[S::kTokenTiles][4], const float (&scales)[kRowPages][4]) {
      const int lane = threadIdx.x % 32;
      if constexpr (S::kRank == 16) {  // rows (head, half) are the same: each takes one tile of tokens
        const bool second = lane / 4 % 2 != 0;
        const float x0 = second ? y[S::kTokenTiles - 1][0] * scales[0][2] : y[0][0] * scales[0][0];
        const float x1 = second ? y[S::kTokenTiles - 1][1] * scales[0][3] : y[0][1] * scales[0][1];
        mma_row_sums_tf32(ones[group % 2], exp2_approx(x0), 0.f, exp2_approx(x1), 0.f, lane / 4 == group ? 1.f : 0.f);
      } else if constexpr (kRowPages == 2) {  // row g is page 4 group + 2 half, row g + 8 the next
        const TokenSums<S> e0 = scaled_sums<S>(y, 0, scales[0]), e1 = scaled_sums<S>(y, 2, scales[kRowPages - 1]);
        if constexpr (S::kOnes) {
          const float on = lane / 16 % kGroups == group ? 1.f : 0.f;
          mma_row_sums_tf32(ones[0], e0.a0, e1.a0, e0.a1, e1.a1, on);
          if constexpr (S::kTokenTiles == 2) mma_row_sums_tf32(ones[1], e0.b0, e1.b0, e0.b1, e1.b1, on);
        } else {
          part[2 * group] += e0.sum(), part[2 * group + 1] += e1.sum();
        }
      } else {
        const TokenSums<S> e = scaled_sums<S>(y, 0, scales[0]);
        if constexpr (S::kOnes)  // rows g + 8 take half of the tokens
          mma_row_sums_tf32(ones[group % 2], e.a0, e.b0, e.a1, e.b1, lane / 8 % kGroups == group ? 1.f : 0.f);
        else
          part[group] += e.sum();
      }
    }
    __device__ __forceinline__ float get() {
      const int p = threadIdx.x % 4;
      if constexpr (S::kRank == 16) {
        const float s0 = ones[0][0] + ones[1][0], s1 = ones[0][1] + ones[1][1];
        const float both0 = s0 + __shfl_xor_sync(0xffffffffu, s0, 4), both1 = s1 + __shfl_xor_sync(0xffffffffu, s1, 4);
        return threadIdx.x / 4 % 2 == 0 ? both0 : both1;
      } else if constexpr (S::kOnes) {
        const float s0 = ones[0][0] + ones[1][0], s1 = ones[0][2] + ones[1][2];
        return kRowPages == 1 ? s0 + s1 : p % 2 == 0 ? s0 : s1;
      } else {
        if constexpr (kPages == 4) part[2] = part[0], part[3] = part[1];
        return sum_quad_scatter(part);
      }
    }
  };

  // Sums over tokens of 2^(logit without the centroid's part), and the centroid's part.
  __device__ __forceinline__ void tile(const SharedBytes& pages, float (&sum)[1], float (&centroid)[1]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4, half = g % 2;
    int mean[2] = {}, mean_third[4] = {};  // of the query's high and low bytes
    float mu_scale;
    {
      const SharedBytes page_g{pages.base + g % kPages * S::kDistance};
      int chains[2][4] = {};
      mu_scale = shared_bf16(page_g, R::kMuScale);
      if constexpr (kPlainWords) {
        // Four words as they are loaded are a fragment: rows g take every second of them and rows g + 8 the others, each with its own
        // product, whose other half of the rows means nothing.
        constexpr int kLoaded = S::kQuarter / 4;
        uint32_t mu[kLoaded];
        load_words<kLoaded, alignment_of(S::kQuarter)>(page_g, R::kMu + p * S::kQuarter, mu);
        const auto word = [&](int k) { return k < kLoaded ? mu[k < kLoaded ? k : 0] : 0u; };
#pragma unroll
        for (int k = 0; k < S::kWords; k += 4)
#pragma unroll
          for (int i = 0; i < 2; i++)
            mma_m16n8k32_ss(chains[i], word(k), word(k + 1), word(k + 2), word(k + 3), plain[k + i], plain[k + i + 2]);
#pragma unroll
        for (int i = 0; i < 2; i++) mean[i] = chains[0][i] + chains[1][i + 2];
      } else {
        uint32_t mu[S::kWords];
        load_bytes<S>(page_g, R::kMu, mu);
#pragma unroll
        for (int k = 0; k < S::kWords; k += 2) {
          mma_m16n8k32_ss(chains[k / 2 % 2], mu[k], 0u, mu[k + 1], 0u, words[k], words[k + 1]);
          if constexpr (S::kThird) mma_m16n8k32_ss(mean_third, mu[k], 0u, mu[k + 1], 0u, third[k], third[k + 1]);
        }
#pragma unroll
        for (int i = 0; i < 2; i++) mean[i] = chains[0][i] + chains[1][i];
      }
    }
    // What differs between lanes stands in one address for all products: the rest is added by the loads.
    const uint8_t* const lane_rows = pages.base + g / kHalf * S::kDistance + g % kHalf * R::kRowBytes + p * R::kQuarterBytes;
    constexpr bool kWideScales = S::kRank == 4 && R::kColumnScales % 8 == 0;  // of a page, all in one load
    const uint8_t* const lane_scales = pages.base + g / kHalf * S::kDistance + (kWideScales ? 0 : g % kHalf * 2);
    const uint32_t pick = g % 2 == 0 ? 0x1044 : 0x3244;  // of two bf16
    const uint8_t* const lane_tokens = pages.base + (S::kRank <= 4 ? 2 * half : S::kRank == 8 ? half : 0) * S::kDistance;
    const int turned = kTurns ? (p + 2) % 4 : p;  // which tokens of a block rows g + 8 have, in quarters
    Sums sums;
#pragma unroll
    for (int first = 0; first < kProducts; first += kTogether) {
      int low[kTogether][4], high[kTogether][4];  // of even and odd dims (or of halves of k)
      int low_third[kTogether][4] = {}, high_third[kTogether][4] = {};
      float column[kTogether][2];
      {
        BasisRow<S, true> rows[kTogether][2];
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          const int page = (first + t) * kMmaPages * S::kDistance;
          if constexpr (kWideScales) {
            const uint2 w = SharedBytes{lane_scales}.load8(page + R::kColumnScales);
            column[t][0] = __uint_as_float(__byte_perm(w.x, 0u, pick)) * x_scale;
            column[t][1] = __uint_as_float(__byte_perm(w.y, 0u, pick)) * x_scale;
          }
#pragma unroll
          for (int i = 0; i < (S::kRank == 1 ? 1 : 2); i++) {
            rows[t][i].load_quarter(SharedBytes{lane_rows}, page + i * kHalf * R::kRowBytes);
            if constexpr (!kWideScales)
              column[t][i] = shared_bf16(SharedBytes{lane_scales}, page + R::kColumnScales + 2 * i * kHalf) * x_scale;
          }
        }
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          low[t][0] = low[t][2] = 0, low[t][1] = low[t][3] = S::kBits == 4 ? bias : 0;
          high[t][0] = high[t][1] = high[t][2] = high[t][3] = 0;
        }
#pragma unroll
        for (int k = 0; k < S::kWords / 2; k += 2)
#pragma unroll
          for (int t = 0; t < kTogether; t++)
#pragma unroll
            for (int part = 0; part < 2; part++) {
              const int at = k + part * (S::kWords / 2);
              const uint32_t *a = rows[t][0].words + at, *b = rows[t][1].words + at;
              auto& d = part == 0 ? low[t] : high[t];
              constexpr bool kBoth = S::kRank > 1;
              if constexpr (S::kBits == 8)
                mma_m16n8k32_ss(d, a[0], kBoth ? b[0] : 0u, a[1], kBoth ? b[1] : 0u, words[at], words[at + 1]);
              else
                mma_m16n8k32_us(d, a[0], kBoth ? b[0] : 0u, a[1], kBoth ? b[1] : 0u, words[at], words[at + 1]);
              if constexpr (S::kThird) {
                auto& e = part == 0 ? low_third[t] : high_third[t];
                if constexpr (S::kBits == 8)
                  mma_m16n8k32_ss(e, a[0], kBoth ? b[0] : 0u, a[1], kBoth ? b[1] : 0u, third[at], third[at + 1]);
                else
                  mma_m16n8k32_us(e, a[0], kBoth ? b[0] : 0u, a[1], kBoth ? b[1] : 0u, third[at], third[at + 1]);
              }
            }
      }
      // X of 16 rows, transposed: x[i] holds k = rows 8i + 2p, 8i + 2p + 1.
      uint32_t x[kTogether][2], rest[kTogether][2];
#pragma unroll
      for (int t = 0; t < kTogether; t++)
#pragma unroll
        for (int i = 0; i < (S::kRank == 1 ? 1 : 2); i++) {
          int product = (low[t][2 * i] * kWeight + high[t][2 * i]) * 256 + (low[t][2 * i + 1] * kWeight + high[t][2 * i + 1]);
          if constexpr (S::kBits == 2) product = 2 * product + bias;
          float sum = static_cast<float>(product);
          if constexpr (S::kThird) {
            const int left = low_third[t][2 * i] * kWeight + high_third[t][2 * i];
            sum = fmaf(static_cast<float>(S::kBits == 2 ? 2 * left + third_bias : left + third_bias), kThirdUnit, sum);
          }
          split(sum * column[t][i], x[t][i], rest[t][i]);
        }
#pragma unroll(S::kTokenBlocks <= 2 ? S::kTokenBlocks : 1)
      for (int block = 0; block < S::kTokenBlocks; block++) {
        uint32_t b[kTogether][S::kTokenTiles][2];
        float y[kTogether][kVariants][S::kTokenTiles][4] = {};
#pragma unroll
        for (int t = 0; t < kTogether; t++) coefficients(SharedBytes{pages.base + (first + t) * kMmaPages * S::kDistance}, block, b[t]);
        if constexpr (S::kRank >= 8) {  // X is rows g, which are all results of these pages, and its residual rows g + 8
#pragma unroll
          for (int m = 0; m < S::kTokenTiles; m++)
#pragma unroll
            for (int t = 0; t < kTogether; t++) {
              float(&d)[4] = y[t][0][m];
              const uint32_t kept = keep(0, 0);
              mma_m16n8k16(d, x[t][0] & kept, rest[t][0] & kept, x[t][1] & kept, rest[t][1] & kept, b[t][m][0], b[t][m][1], fp16{});
              d[0] += d[2], d[1] += d[3];
            }
        } else {
#pragma unroll
          for (int r = 0; r < (S::kRank == 1 ? 1 : 2); r++)  // X, then its residual; at rank 1 they are two halves of k
#pragma unroll
            for (int v = 0; v < kVariants; v++)
#pragma unroll
              for (int m = 0; m < S::kTokenTiles; m++)
#pragma unroll
                for (int t = 0; t < kTogether; t++) {
                  const uint32_t a = r == 0 ? x[t][0] : rest[t][0], c = S::kRank == 1 ? rest[t][0] : r == 0 ? x[t][1] : rest[t][1];
                  mma_m16n8k16(y[t][v][m], a & keep(v, 0), a & keep(v, 1), c & keep(v, 0), c & keep(v, 1), b[t][m][0], b[t][m][1], fp16{});
                }
        }
#pragma unroll
        for (int t = 0; t < kTogether; t++)
#pragma unroll
          for (int v = 0; v < kVariants; v++) {
            const int group = (first + t) * kVariants + v;
            float scales[kRowPages][4];
#pragma unroll
            for (int i = 0; i < kRowPages; i++) {
              const int page = S::kRank <= 4 ? 4 * group + i : S::kRank == 8 ? 2 * group : group;
              load_token_scales<S>(SharedBytes{lane_tokens + page * S::kDistance}, block, i == 0 ? p : turned, scales[i]);
            }
            sums.add(group, y[t][v], scales);
          }
      }
    }
    sum[0] = sums.get();
    const int product = mean[0] * 256 + mean[1];
    float dot = static_cast<float>(product);
    if constexpr (S::kThird) dot = fmaf(static_cast<float>(mean_third[0]), kThirdUnit, dot);
    centroid[0] = __shfl_sync(0xffffffffu, dot * (mu_scale * scale), page(0) * 4 + g / 2);
  }
};

}  // namespace kvloom
