// page_score on int8 tensor cores, more than 4 query heads, in passes of up to 16: the query is the rows of the product, rows g and
// g + 8 the high and low bytes of head g of a set of 8, and V its columns. With lane = 4 g + p, a lane gets X of head g for columns
// 2p, 2p + 1 of 8: already an A fragment of the second product, whose k is those 8 columns (8 / RANK pages) as f16 and then their
// residuals against the same codes.
#pragma once

#include "kernels/page_score_imma_query.cuh"

namespace kvloom {

__device__ __forceinline__ uint32_t multiply_bf16x2(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("mul.rn.bf16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// Scales of two tokens as f16 times 2^t, and -1152 times as much: what takes the bias of their codes off.
struct TokenUnits {
  uint32_t scale, bias;
};

__device__ __forceinline__ uint32_t low_twice(uint32_t w) { return f16x2_bits(__low2half2(f16x2(w))); }
__device__ __forceinline__ uint32_t high_twice(uint32_t w) { return f16x2_bits(__high2half2(f16x2(w))); }

// X = V^T q times 2^-t and codes of C times their token's scale and 2^t, as f16. A column of V has norm 1: |X| <= 16 * most for up to 256
// dims, most the largest |q| in base-2 logits; 2^-t brings that to 4 at most. Scales have 4 significant bits (specs.Record), so their
// products with codes are exact; those of 56.9 and more are infinite or leave NaN, and what f16 rounds of the smallest is 2^-18 of X.
struct RowsRange {
  float down;
  uint32_t up;  // bf16 pair
  __device__ __forceinline__ void set(float most) {
    const int exponent = static_cast<int>(__float_as_uint(most) >> 23 & 0xff) - 127 + 4;
    const int t = min(max(exponent - 1, -110), 110);
    down = __uint_as_float(static_cast<uint32_t>(127 - t) << 23);
    up = static_cast<uint32_t>(127 + t) << 7, up |= up << 16;
  }
  // Of a word of two scales.
  __device__ __forceinline__ TokenUnits units(uint32_t scales) const {
    const uint32_t w = multiply_bf16x2(scales, up);
    const __half2 h = __floats2half2_rn(low_bf16(w), high_bf16(w));
    return {f16x2_bits(h), f16x2_bits(__hmul2(h, f16x2_both(-1152.f)))};
  }
};

// Two of the biased bytes of a word, each under its half of the units.
__device__ __forceinline__ uint32_t scaled_codes(uint32_t biased, uint32_t pick, TokenUnits of) {
  return f16x2_bits(__hfma2(f16x2(__byte_perm(biased, 0x64646464u, pick)), f16x2(of.scale), f16x2(of.bias)));
}

template <class S>
struct ImmaRows {
  using R = typename S::Rec;
  static_assert(S::kRank == 4 || S::kRank == 8, "8 columns are whole pages, and a k pair lies in one");
  static_assert(S::kTokenTiles == 2, "codes are loaded in pairs of tokens");
  static constexpr int kSets = (S::kPassHeads + 7) / 8;
  static constexpr int kValues = 2 * kSets;           // results of a lane: set, page 2p and 2p + 1
  static constexpr int kPages = S::kWarpPages;
  static constexpr int kMmaPages = 8 / S::kRank;      // pages of 8 columns
  static constexpr int kGroups = kPages / kMmaPages;
  static constexpr int kTogether = S::kTogether < kGroups ? S::kTogether : kGroups;
  static constexpr bool kPagePair = kMmaPages == 2 && kSets == 1;  // rows g and g + 8 of the second product are two pages
  static constexpr float kLoss = S::kOnes ? kTf32Loss : 0.f;       // nats that a sum is too low

  uint32_t words[kSets][2][S::kWords];     // A fragments: high bytes, low bytes
  int bias[kSets];                         // of head g: what the bias of 2-bit codes adds to twice the product, taken off
  uint32_t third[S::kThird ? kSets : 1][S::kThird ? S::kWords : 1];  // third bytes: rows g of the first set, rows g + 8 of the second
  int third_bias[kSets];
  float scale[kSets], x_scale[kSets];      // of head g: integer product to base-2 logit; the same for X
  RowsRange range;

  static __device__ __forceinline__ bool owner() { return threadIdx.x % 4 < kPages / 2; }
  static __device__ __forceinline__ int head(int i) { return 8 * (i / 2) + threadIdx.x % 32 / 4; }
  static __device__ __forceinline__ int page(int i) { return 2 * (threadIdx.x % (kPages / 2)) + i % 2; }

  // A unit's query as the warps of a block that share the unit hand it to each other: each makes a part of it. A lane's words are the
  // same in all of them.
  static constexpr bool kHandsOver = true;
  static constexpr int kParts = S::kThird ? 3 : 2;
  struct Exchange {
    uint4 words[kSets][kParts][S::kWords / 4][32];
    float2 scale[kSets][8];  // inverse and top of each head
  };

  static __device__ __forceinline__ int head_of(int set, int pass) {
    const int of_pass = 8 * set + threadIdx.x % 32 / 4;
    return of_pass < S::kPassHeads ? pass * S::kPassHeads + of_pass : S::kGroup;
  }

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int pass) {
    float inverse[kSets], top[kSets];
#pragma unroll
    for (int set = 0; set < kSets; set++) {
      const ImmaQuarter<S> q(args, request, kv_head, head_of(set, pass));
#pragma unroll
      for (int k = 0; k < S::kWords; k++) {
        words[set][0][k] = q.bytes(k, true), words[set][1][k] = q.bytes(k, false);
        if constexpr (S::kThird) third[set][k] = q.third(k);
      }
      inverse[set] = q.inverse, top[set] = q.top;
    }
    settle(args, inverse, top);
  }

  // This warp's share of a query, the turn-th of turns.
  static __device__ __forceinline__ void prepare(const PageScoreArgs& args, int request, int kv_head, int pass, Exchange& to, int turn,
                                                 int turns) {
    const int lane = threadIdx.x % 32;
#pragma unroll 1
    for (int task = turn; task < kSets * kParts; task += turns) {
      const int set = task / kParts, part = task % kParts;
      const ImmaQuarter<S> q(args, request, kv_head, head_of(set, pass));
      uint32_t w[S::kWords];
#pragma unroll
      for (int k = 0; k < S::kWords; k++) {
        if (S::kThird && part == 2)
          w[k] = q.third(k);
        else
          w[k] = q.bytes(k, part == 0);
      }
#pragma unroll
      for (int k = 0; k < S::kWords; k += 4) to.words[set][part][k / 4][lane] = make_uint4(w[k], w[k + 1], w[k + 2], w[k + 3]);
      if (part == 0 && lane % 4 == 0) to.scale[set][lane / 4] = make_float2(q.inverse, q.top);
    }
  }

  // A query whose parts are all there.
  __device__ __forceinline__ void fetch(const PageScoreArgs& args, const Exchange& from) {
    const int lane = threadIdx.x % 32;
    float inverse[kSets], top[kSets];
#pragma unroll
    for (int set = 0; set < kSets; set++) {
#pragma unroll
      for (int part = 0; part < kParts; part++) {
        uint32_t* const to = part == 2 ? third[S::kThird ? set : 0] : words[set][part % 2];
#pragma unroll
        for (int k = 0; k < S::kWords; k += 4) {
          const uint4 w = from.words[set][part][k / 4][lane];
          to[k] = w.x, to[k + 1] = w.y, to[k + 2] = w.z, to[k + 3] = w.w;
        }
      }
      const float2 scales = from.scale[set][lane / 4];
      inverse[set] = scales.x, top[set] = scales.y;
    }
    settle(args, inverse, top);
  }

  // What follows from the words and from each set's head g: its integers' scale and its largest magnitude.
  __device__ __forceinline__ void settle(const PageScoreArgs& args, const float (&inverse)[kSets], const float (&top)[kSets]) {
    const float unit = args.softmax_scale * kLog2E;
    float most = 0.f;
#pragma unroll
    for (int set = 0; set < kSets; set++) {
      if constexpr (S::kBits == 2) {
        int sums[2] = {0, 0};
#pragma unroll
        for (int k = 0; k < S::kWords; k++)
#pragma unroll
          for (int part = 0; part < 2; part++) sums[part] = sum_bytes(words[set][part][k], sums[part]);
        bias[set] = -3 * sum_of_quad(256 * sums[0] + sums[1]);
      }
      if constexpr (S::kThird) {
        int left = 0;
#pragma unroll
        for (int k = 0; k < S::kWords; k++) left = sum_bytes(third[set][k], left);
        third_bias[set] = S::kBits == 2 ? -3 * sum_of_quad(left) : 0;
      }
      scale[set] = inverse[set] * unit;
      most = fmaxf(most, fabsf(top[set] * unit));
    }
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) most = fmaxf(most, __shfl_xor_sync(0xffffffffu, most, mask));
    range.set(most);
#pragma unroll
    for (int set = 0; set < kSets; set++)
      x_scale[set] = scale[set] * range.down * (S::kBits == 2 ? 1.f / 2 : S::kBits == 4 ? 1.f / 16 : 1.f);
  }
  static __device__ __forceinline__ int sum_of_quad(int sum) {
    sum += __shfl_xor_sync(0xffffffffu, sum, 1);
    return sum + __shfl_xor_sync(0xffffffffu, sum, 2);
  }

  // Where a lane finds codes and scales of its two tokens of column n: in the first pages of a tile, from which the others' are constants
  // away.
  struct Tokens {
    SharedBytes codes, scales;
    __device__ __forceinline__ explicit Tokens(const SharedBytes& pages)
        : codes{pages.base + own() * S::kDistance + R::kC + threadIdx.x % 32 / 4 * (2 * R::kRankPad) + (S::kRank == 8 ? 2 * (threadIdx.x % 4) : 0)},
          scales{pages.base + own() * S::kDistance + R::kTokenScales + threadIdx.x % 32 / 4 * 4} {}
    static __device__ __forceinline__ int own() { return S::kRank == 4 ? threadIdx.x % 4 / 2 : 0; }
  };
  // B fragments of C: b[m] for the token of column n of tile m in a block of 16 tokens, k = columns 2p, 2p + 1. `page` is the first of the
  // product's.
  __device__ __forceinline__ void coefficients(const Tokens& tokens, int page, int block, uint32_t (&b)[2]) const {
    const int p = threadIdx.x % 4, at = page * S::kDistance + 16 * block * R::kRankPad;
    const TokenUnits both = range.units(tokens.scales.load4(page * S::kDistance + 32 * block));
    const TokenUnits units[2] = {{low_twice(both.scale), low_twice(both.bias)}, {high_twice(both.scale), high_twice(both.bias)}};
    if constexpr (S::kRank == 4) {
      const uint2 w = tokens.codes.load8(at);
      b[0] = scaled_codes(w.x ^ 0x80808080u, p % 2 == 0 ? 0x4140 : 0x4342, units[0]);
      b[1] = scaled_codes(w.y ^ 0x80808080u, p % 2 == 0 ? 0x4140 : 0x4342, units[1]);
    } else {
#pragma unroll
      for (int m = 0; m < 2; m++) b[m] = scaled_codes(tokens.codes.load2(at + m * R::kRankPad) ^ 0x8080u, 0x4140, units[m]);
    }
  }

  // Products of the third bytes: d0, d1 of the first set, d2, d3 of the second.
  __device__ __forceinline__ void multiply_third(int (&d)[4], int k, uint32_t b0, uint32_t b1) const {
    constexpr int kSecond = S::kThird ? kSets - 1 : 0;
    mma_m16n8k32_ss(d, third[0][k], kSets == 2 ? third[kSecond][k] : 0u, third[0][k + 1], kSets == 2 ? third[kSecond][k + 1] : 0u, b0, b1);
  }
  __device__ __forceinline__ int left(int product, int set) const {
    if constexpr (S::kThird) return S::kBits == 2 ? 2 * product + third_bias[set] : product;
    return 0;
  }

  // X of 8 columns as A fragments, from the products of the high and the low bytes: k = columns 2p, 2p + 1 in f16, and the residuals.
  // left0, left1: products of the third bytes.
  static __device__ __forceinline__ void split(const int (&d)[4], int bias, int left0, int left1, float scale0, float scale1, uint32_t& x,
                                               uint32_t& rest) {
    int product[2] = {d[0] * 256 + d[2], d[1] * 256 + d[3]};
    if constexpr (S::kBits == 2) product[0] = 2 * product[0] + bias, product[1] = 2 * product[1] + bias;
    float f0 = static_cast<float>(product[0]), f1 = static_cast<float>(product[1]);
    if constexpr (S::kThird) f0 = fmaf(static_cast<float>(left0), kThirdUnit, f0), f1 = fmaf(static_cast<float>(left1), kThirdUnit, f1);
    f0 *= scale0, f1 *= scale1;
    const __half2 h = __floats2half2_rn(f0, f1);
    x = f16x2_bits(h);
    rest = f16x2_bits(__floats2half2_rn(f0 - __low2float(h), f1 - __high2float(h)));
  }

  // Where the sums of tokens go: by lanes that will be added up, or through a product with ones.
  struct Sums {
    float part[kSets][2][4] = {};  // page parity, p of the lane that will own it
    float ones[2][4] = {};    // columns are pages

    // Pages 2 group and 2 group + 1 are rows g and g + 8.
    __device__ __forceinline__ void add_pair(int group, const TokenSums<S>& first, const TokenSums<S>& second) {
      if constexpr (S::kOnes) {
        const float on = threadIdx.x % 32 / 8 % kGroups == group ? 1.f : 0.f;
        mma_row_sums_tf32(ones[group % 2], first.a0 + first.b0, second.a0 + second.b0, first.a1 + first.b1, second.a1 + second.b1, on);
      } else {
        part[0][0][group] += first.sum(), part[0][1][group] += second.sum();
      }
    }
    // One page; rows g and g + 8 are two sets.
    __device__ __forceinline__ void add_sets(int page, const TokenSums<S>& first, const TokenSums<S>& second) {
      if constexpr (S::kOnes) {
        const float on = threadIdx.x % 32 / 4 % kPages == page ? 1.f : 0.f;
        mma_row_sums_tf32(ones[0], first.a0, second.a0, first.a1, second.a1, on);
        mma_row_sums_tf32(ones[1], first.b0, second.b0, first.b1, second.b1, on);
      } else {
        part[0][page % 2][page / 2] += first.sum(), part[kSets - 1][page % 2][page / 2] += second.sum();
      }
    }
    // Two pages, `page` even: each has half of a product's k, so that what selects their columns is a pair of registers as it stands.
    __device__ __forceinline__ void add_sets(int page, const TokenSums<S>& first0, const TokenSums<S>& second0, const TokenSums<S>& first1,
                                             const TokenSums<S>& second1) {
      if constexpr (S::kOnes) {
        const int column = threadIdx.x % 32 / 4 % kPages;
        const float low = column == page ? 1.f : 0.f, high = column == page + 1 ? 1.f : 0.f;
        mma_row_sums_tf32(ones[0], first0.a0, second0.a0, first1.a0, second1.a0, low, high);
        mma_row_sums_tf32(ones[1], first0.a1, second0.a1, first1.a1, second1.a1, low, high);
        mma_row_sums_tf32(ones[0], first0.b0, second0.b0, first1.b0, second1.b0, low, high);
        mma_row_sums_tf32(ones[1], first0.b1, second0.b1, first1.b1, second1.b1, low, high);
      } else {
        add_sets(page, first0, second0), add_sets(page + 1, first1, second1);
      }
    }
    // One page of one set: rows g + 8 take half of the tokens.
    __device__ __forceinline__ void add_page(int page, const TokenSums<S>& e) {
      if constexpr (S::kOnes)
        mma_row_sums_tf32(ones[page % 2], e.a0, e.b0, e.a1, e.b1, threadIdx.x % 32 / 4 % kPages == page ? 1.f : 0.f);
      else
        part[0][page % 2][page / 2] += e.sum();
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
    const Tokens tokens(pages);
#pragma unroll
    for (int first = 0; first < kGroups; first += kTogether) {
      uint32_t x[kTogether][kSets], rest[kTogether][kSets];
      {
        BasisRow<S, false> row[kTogether];
        uint32_t column[kTogether];
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          const uint8_t* base = pages.base + (first + t) * kMmaPages * S::kDistance;
          row[t].load(SharedBytes{base + (S::kRank == 4 ? g / 4 * S::kDistance : 0)}, g % S::kRank);
          // Columns 2p, 2p + 1 are two ranks of one page: their scales are one word.
          column[t] = SharedBytes{base}.load4((S::kRank == 4 ? p / 2 * S::kDistance + p % 2 * 4 : p * 4) + R::kColumnScales);
        }
        int d[kTogether][kSets][4], e[kTogether][4] = {};
#pragma unroll
        for (int t = 0; t < kTogether; t++)
#pragma unroll
          for (int set = 0; set < kSets; set++) d[t][set][0] = d[t][set][1] = d[t][set][2] = d[t][set][3] = 0;
#pragma unroll
        for (int k = 0; k < S::kWords; k += 2)
#pragma unroll
          for (int t = 0; t < kTogether; t++) {
            if constexpr (S::kThird) multiply_third(e[t], k, row[t].words[k], row[t].words[k + 1]);
#pragma unroll
            for (int set = 0; set < kSets; set++) {
              auto& a = words[set];
              mma_m16n8k32_ss(d[t][set], a[0][k], a[1][k], a[0][k + 1], a[1][k + 1], row[t].words[k], row[t].words[k + 1]);
            }
          }
#pragma unroll
        for (int t = 0; t < kTogether; t++)
#pragma unroll
          for (int set = 0; set < kSets; set++)
            split(d[t][set], S::kBits == 2 ? bias[set] : 0, left(e[t][2 * set], set), left(e[t][2 * set + 1], set), low_bf16(column[t]) * x_scale[set], high_bf16(column[t]) * x_scale[set],
                  x[t][set], rest[t][set]);
      }
#pragma unroll(S::kTokenBlocks <= 2 ? S::kTokenBlocks : 1)
      for (int block = 0; block < S::kTokenBlocks; block++) {
#pragma unroll
        for (int t = 0; t < kTogether; t++) {
          uint32_t b[2];
          coefficients(tokens, (first + t) * kMmaPages, block, b);
          if constexpr (kPagePair) {
            const uint32_t keep0 = p / 2 == 0 ? 0xffffffffu : 0u, keep1 = ~keep0;
            float y[2][4] = {};
#pragma unroll
            for (int m = 0; m < 2; m++)
              mma_m16n8k16(y[m], x[t][0] & keep0, x[t][0] & keep1, rest[t][0] & keep0, rest[t][0] & keep1, b[m], b[m], fp16{});
            sums.add_pair(first + t, TokenSums<S>(y, 0), TokenSums<S>(y, 2));
          } else {  // rows g and g + 8 are two sets, or nothing; a page at a time
            float y[kMmaPages][2][4] = {};
#pragma unroll
            for (int i = 0; i < kMmaPages; i++) {
              // A product, for those are not as slow as masks. What is not finite makes NaN of its neighbour too.
              const uint32_t on = kMmaPages == 1 || p / 2 == i ? 0x3c003c00u : 0u;
#pragma unroll
              for (int m = 0; m < 2; m++) {
                const uint32_t c = kMmaPages == 1 ? b[m] : f16x2_bits(__hmul2(f16x2(b[m]), f16x2(on)));
                mma_m16n8k16(y[i][m], x[t][0], kSets == 2 ? x[t][kSets - 1] : 0u, rest[t][0], kSets == 2 ? rest[t][kSets - 1] : 0u, c, c, fp16{});
              }
            }
            const int page = (first + t) * kMmaPages;
            if constexpr (kSets == 2 && kMmaPages == 2) {
              sums.add_sets(page, TokenSums<S>(y[0], 0), TokenSums<S>(y[0], 2), TokenSums<S>(y[kMmaPages - 1], 0), TokenSums<S>(y[kMmaPages - 1], 2));
            } else if constexpr (kSets == 2) {
              sums.add_sets(page, TokenSums<S>(y[0], 0), TokenSums<S>(y[0], 2));
            } else {
#pragma unroll
              for (int i = 0; i < kMmaPages; i++) sums.add_page(page + i, TokenSums<S>(y[i], 0));
            }
          }
        }
      }
    }
    sums.get(sum);
    {
      uint32_t mu[S::kWords];
      load_bytes<S>(SharedBytes{pages.base + g % kPages * S::kDistance}, R::kMu, mu);
      const float mu_scale[2] = {shared_bf16(pages, page(0) * S::kDistance + R::kMuScale),
                                 shared_bf16(pages, page(1) * S::kDistance + R::kMuScale)};
      int mean_third[4] = {0, 0, 0, 0};
      if constexpr (S::kThird) {
#pragma unroll
        for (int k = 0; k < S::kWords; k += 2) multiply_third(mean_third, k, mu[k], mu[k + 1]);
      }
#pragma unroll
      for (int set = 0; set < kSets; set++) {
        int d[4] = {0, 0, 0, 0};
#pragma unroll
        for (int k = 0; k < S::kWords; k += 2)
          mma_m16n8k32_ss(d, words[set][0][k], words[set][1][k], words[set][0][k + 1], words[set][1][k + 1], mu[k], mu[k + 1]);
#pragma unroll
        for (int i = 0; i < 2; i++) {
          float dot = static_cast<float>(d[i] * 256 + d[2 + i]);
          if constexpr (S::kThird) dot = fmaf(static_cast<float>(mean_third[2 * set + i]), kThirdUnit, dot);
          centroid[2 * set + i] = dot * (mu_scale[i] * scale[set]);
        }
      }
    }
  }
};

}  // namespace kvloom
