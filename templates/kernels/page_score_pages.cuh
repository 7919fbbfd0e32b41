// page_score for records of low rank and small ones, in the block of page_score_imma.cuh: the pages of a tile are the rows of a product
// of f16 or of bytes, one column of V in rows g and the next, or the centroid, in rows g + 8, and the query heads its columns. A lane then has all
// dot products of its page g with two heads of each n tile, and sums the page's tokens in f32: with one or two coefficients a token that
// is less work than bringing them to tensor cores.
#pragma once

#include "kernels/page_score_imma.cuh"
#include "kvloom/quant/record_rows.cuh"

namespace kvloom {

// What load_query and RecordRows ask of a shape, for a pass of up to 16 query heads.
template <class I>
struct PagesShape {
  using Element = typename I::Element;
  using Rec = typename I::Rec;
  using Basis = F16Codes<I::kBits>;
  using Centroid = F16Bytes<Basis::kPair>;
  static constexpr int kRank = I::kRank, kBits = I::kBits, kGroup = I::kGroup, kQuarter = I::kQuarter;
  static constexpr bool kSoftcap = false;
  static constexpr int kDimGroups = (kQuarter + Basis::kDims - 1) / Basis::kDims, kStepsPerGroup = Basis::kDims / 4;
  static constexpr int kSteps = kDimGroups * kStepsPerGroup;
  static constexpr int kTiles = (I::kPassHeads + 7) / 8, kUnitHeads = I::kPassHeads;
  static constexpr int kHeadColumns = I::kPassHeads > 4 ? 8 : I::kPassHeads > 2 ? 4 : I::kPassHeads;
  static constexpr int kLaneHeads = kHeadColumns >= 2 ? 2 : 1;
};

// The query of PagesShape as f16 fragments, and base-2 logits of a coefficient of 1 and of the centroid for this lane's page and heads.
// All forms of a record.
template <class I>
struct HalfPages {
  using S = PagesShape<I>;
  using R = typename I::Rec;
  using Rows = RecordRows<S>;
  static constexpr int kTiles = S::kTiles, kSets = (I::kRank + 2) / 2;  // products: two rows of each page

  ScoreQuery<S> query;

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int pass) {
    load_query<S>(args, request, kv_head, pass, query);
  }

  // Row `row` of this lane's page as an operand: a column of V, or the centroid after the last. Returns what products with the centroid
  // have to be multiplied by.
  static __device__ __forceinline__ float row(const SharedBytes& page, int row, uint32_t (&a)[Rows::kRegisters]) {
    if (row == I::kRank) return Rows::centroid(page, a);
    if (row < I::kRank) {
      Rows::basis(page, row, a);
    } else {
#pragma unroll
      for (int i = 0; i < Rows::kRegisters; i++) a[i] = 0u;
    }
    return 0.f;
  }

  __device__ __forceinline__ void logits(const SharedBytes& page, float (&x)[I::kRank + 1][kTiles][S::kLaneHeads]) const {
    float column[I::kRank];
    Rows::column_scales(page, column);
#pragma unroll
    for (int set = 0; set < kSets; set++) {
      uint32_t low[Rows::kRegisters], high[Rows::kRegisters];
      float acc[kTiles][4] = {};
      const float first = row(page, 2 * set, low), second = row(page, 2 * set + 1, high);
#pragma unroll
      for (int step = 0; step < S::kSteps; step++)
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++)
          mma_m16n8k16(acc[tile], low[2 * step], high[2 * step], low[2 * step + 1], high[2 * step + 1], query.b[tile][step][0],
                       query.b[tile][step][1], fp16{});
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int c = 2 * set + i;
        if (c > I::kRank) continue;
        const float by = c < I::kRank ? column[c % I::kRank] : i == 0 ? first : second;
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
          for (int h = 0; h < S::kLaneHeads; h++) {
            x[c][tile][h] = acc[tile][2 * i + h] * (by * query.scale[tile][h]);
            if (R::kCentroidBits == 4 && c == I::kRank) x[c][tile][h] += query.centre[R::kCentroidBits == 4 ? tile : 0][h];
          }
      }
    }
  }
};

// The same on int8 tensor cores, for nibbles and bytes beside a query in bf16: a query head is two columns, high and low bytes. Fewer
// instructions, for codes become bytes by a mask and the centroid has them already.
template <class I>
struct BytePages {
  using S = PagesShape<I>;
  using R = typename I::Rec;
  static_assert(R::kCentroidBits == 8 && !R::Form::kGrouped && (I::kBits == 4 || I::kBits == 8) && !I::kThird, "signed bytes, one scale a row, two bytes of the query");
  static constexpr int kTiles = S::kTiles, kSets = (I::kRank + 2) / 2;
  // Sums start from 1.5 * 2^23: as f32 they are that and the integer, up to 2^22 of it, so no conversion is needed.
  static_assert(127 * 127 * I::kHeadDim < 1 << 22, "sums of products of bytes stay below 2^22");
  static constexpr int kStart = 0x4b400000;
  static constexpr float kOffset = 12582912.f;

  uint32_t words[kTiles][2][I::kWords];  // B fragments: high bytes, low bytes
  float scale[kTiles][S::kLaneHeads];

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int pass) {
    const int lane = threadIdx.x % 32, p = lane % 4;
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
      const ImmaQuarter<I> q(args, request, kv_head, score_head<S>(pass, tile, lane / 4));
#pragma unroll
      for (int k = 0; k < I::kWords; k++) words[tile][0][k] = q.bytes(k, true), words[tile][1][k] = q.bytes(k, false);
      const float unit = q.inverse * (args.softmax_scale * kLog2E);
#pragma unroll
      for (int i = 0; i < S::kLaneHeads; i++) scale[tile][i] = __shfl_sync(0xffffffffu, unit, (2 * p + i) * 4);
    }
  }

  static __device__ __forceinline__ void row(const SharedBytes& page, int row, uint32_t (&a)[I::kWords]) {
    if (row == I::kRank) {
      load_bytes<I>(page, R::kMu, a);
    } else if (row < I::kRank) {
      BasisRow<I, false> basis;
      basis.load(page, row);
#pragma unroll
      for (int i = 0; i < I::kWords; i++) a[i] = basis.words[i];
    } else {
#pragma unroll
      for (int i = 0; i < I::kWords; i++) a[i] = 0u;
    }
  }

  __device__ __forceinline__ void logits(const SharedBytes& page, float (&x)[I::kRank + 1][kTiles][S::kLaneHeads]) const {
    float column[I::kRank];
    RecordRows<S>::column_scales(page, column);
    const float mu_scale = low_bf16(page.load2(R::kMuScale));
#pragma unroll
    for (int set = 0; set < kSets; set++) {
      uint32_t low[I::kWords], high[I::kWords];
      row(page, 2 * set, low), row(page, 2 * set + 1, high);
      int acc[kTiles][2][4];
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
        for (int part = 0; part < 2; part++)
#pragma unroll
          for (int i = 0; i < 4; i++) acc[tile][part][i] = kStart;
#pragma unroll
      for (int k = 0; k < I::kWords; k += 2)
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
          for (int part = 0; part < 2; part++)
            mma_m16n8k32_ss(acc[tile][part], low[k], high[k], low[k + 1], high[k + 1], words[tile][part][k], words[tile][part][k + 1]);
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int c = 2 * set + i;
        if (c > I::kRank) continue;
        const float by = c < I::kRank ? column[c % I::kRank] * (I::kBits == 4 ? 1.f / 16 : 1.f) : mu_scale;
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
          for (int h = 0; h < S::kLaneHeads; h++) {
            const float high_part = __int_as_float(acc[tile][0][2 * i + h]) - kOffset, low_part = __int_as_float(acc[tile][1][2 * i + h]) - kOffset;
            x[c][tile][h] = fmaf(high_part, 256.f, low_part) * (by * scale[tile][h]);
          }
      }
    }
  }
};

// BYTES: the products are of bytes.
template <class I, bool BYTES>
struct ImmaPages {
  using S = PagesShape<I>;
  using R = typename I::Rec;
  static_assert(I::kSplit == 1, "a warp takes the 8 pages of a tile");
  static_assert(I::kRank <= 4 && I::kPage >= 16, "a lane holds its page's coefficients");
  static constexpr int kTiles = S::kTiles;
  static constexpr int kValues = S::kLaneHeads == 2 ? 2 * kTiles : 1;
  static constexpr int kParts = S::kHeadColumns == 8 ? 1 : S::kHeadColumns == 4 ? 2 : 4;  // lanes that share a page's tokens
  static constexpr int kPartLane = S::kHeadColumns == 4 ? 2 : 1;  // lanes between two parts
  static constexpr int kPartTokens = I::kPage / kParts;
  static constexpr int kCodeWord = 32 / R::kCoefficientBits;      // codes
  static constexpr int kChunk = kPartTokens < 8 ? (4 * R::kRankPad < kCodeWord ? 8 : 4) : 8;  // tokens at a time
  static_assert(kChunk <= kPartTokens && kChunk * R::kRankPad % kCodeWord == 0, "a chunk is whole words of codes");
  // Where lanes of a page would all make the same numbers of its codes, each makes a quarter and they exchange them in shared memory, as
  // far as that holds them.
  static constexpr bool kExchange = I::kRank <= 2 && I::kRank * I::kPage <= 64 && kParts <= 2;
  static constexpr int kFours = I::kPage / 4;  // of tokens
  static constexpr float kLoss = 0.f;
  static constexpr bool kHandsOver = false;
  struct Exchange {};

  template <bool B, class = void>
  struct Products {
    using type = HalfPages<I>;
  };
  template <class V>
  struct Products<true, V> {
    using type = BytePages<I>;
  };
  typename Products<BYTES>::type products;

  static __device__ __forceinline__ bool owner() { return threadIdx.x % 4 < (S::kHeadColumns + 1) / 2; }
  static __device__ __forceinline__ int head(int i) {
    const int lane = threadIdx.x % 32;
    return kValues == 1 ? 0 : 8 * (i / 2) + (2 * (lane % 4) + lane / 4 % 2) % S::kHeadColumns;
  }
  static __device__ __forceinline__ int page(int i) {
    const int g = threadIdx.x % 32 / 4;
    return kValues == 1 ? g : g / 2 * 2 + i % 2;
  }

  __device__ __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int pass) {
    products.load(args, request, kv_head, pass);
  }

  // Sums over tokens of 2^(logit without the centroid's part), and the centroid's part.
  __device__ __forceinline__ void tile(const SharedBytes& pages, float (&sum)[kValues], float (&centroid)[kValues]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const SharedBytes page{pages.base + g * I::kDistance};
    float x[I::kRank + 1][kTiles][S::kLaneHeads];  // base-2 logits of a coefficient of 1, and of the centroid
    float total[kTiles][S::kLaneHeads] = {};
    const int part = p / kPartLane % kParts;
    if constexpr (kExchange) {
      __shared__ float4 exchange[I::kConsumers][8][kFours * I::kRank + 1];  // coefficients [page][rank][token]; an odd number of units a page
      float4(&own)[kFours * I::kRank + 1] = exchange[threadIdx.x / 32][g];
#pragma unroll
      for (int four = p; four < kFours; four += 4) {
        constexpr int kWords = 4 * R::kRankPad * R::kCoefficientBits <= 32 ? 1 : 2, kCodes = kWords * kCodeWord;
        uint32_t words[kWords], scales[2];
        const int at = R::kC + four * (R::kRankPad * R::kCoefficientBits / 2);
        if constexpr (R::kRankPad * R::kCoefficientBits == 4)
          words[0] = page.load2(at);
        else
          load_words<kWords, alignment_of(4 * kWords)>(page, at, words);
        load_words<2, alignment_of(R::kTokenScales) < 8 ? 4 : 8>(page, R::kTokenScales + 8 * four, scales);
        float code[kCodes];
        coefficient_codes<R::kCoefficientBits, kCodes>(words, code);
        const float scale[4] = {low_bf16(scales[0]), high_bf16(scales[0]), low_bf16(scales[1]), high_bf16(scales[1])};
#pragma unroll
        for (int r = 0; r < I::kRank; r++)
          own[kFours * r + four] = make_float4(code[r] * scale[0], code[R::kRankPad + r] * scale[1], code[2 * R::kRankPad + r] * scale[2],
                                       code[3 * R::kRankPad + r] * scale[3]);
      }
      products.logits(page, x);
      __syncwarp();
#pragma unroll
      for (int chunk = 0; chunk < kPartTokens / 4; chunk++) {
        float4 c[I::kRank];
#pragma unroll
        for (int r = 0; r < I::kRank; r++) c[r] = own[kFours * r + part * (kPartTokens / 4) + chunk];
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
          for (int h = 0; h < S::kLaneHeads; h++) {
            float logit[4] = {c[0].x * x[0][tile][h], c[0].y * x[0][tile][h], c[0].z * x[0][tile][h], c[0].w * x[0][tile][h]};
#pragma unroll
            for (int r = 1; r < I::kRank; r++) {
              logit[0] = fmaf(c[r].x, x[r][tile][h], logit[0]), logit[1] = fmaf(c[r].y, x[r][tile][h], logit[1]);
              logit[2] = fmaf(c[r].z, x[r][tile][h], logit[2]), logit[3] = fmaf(c[r].w, x[r][tile][h], logit[3]);
            }
#pragma unroll
            for (int t = 0; t < 4; t++) total[tile][h] += exp2_approx(logit[t]);
          }
      }
    } else {
      products.logits(page, x);
      sum_codes(page, part, x, total);
    }
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
#pragma unroll
      for (int h = 0; h < S::kLaneHeads; h++)
#pragma unroll
        for (int bit = 1; bit < kParts; bit *= 2) total[tile][h] += __shfl_xor_sync(0xffffffffu, total[tile][h], bit * kPartLane);
      if constexpr (kValues == 1)
        sum[0] = total[0][0], centroid[0] = x[I::kRank][0][0];
      else
        pair(total[tile], sum[2 * tile], sum[2 * tile + 1]), pair(x[I::kRank][tile], centroid[2 * tile], centroid[2 * tile + 1]);
    }
  }

  // The sums of this lane's part of its page's tokens, straight from the codes.
  static __device__ __forceinline__ void sum_codes(const SharedBytes& page, int part, const float (&x)[I::kRank + 1][kTiles][S::kLaneHeads],
                                                   float (&total)[kTiles][S::kLaneHeads]) {
#pragma unroll(kPartTokens / kChunk <= 2 ? kPartTokens / kChunk : 1)
    for (int chunk = 0; chunk < kPartTokens / kChunk; chunk++) {
      const int token = part * kPartTokens + chunk * kChunk;
      constexpr int kCodes = kChunk * R::kRankPad, kWords = kCodes / kCodeWord;
      uint32_t words[kWords], scales[kChunk / 2];
      load_words<kWords, alignment_of(4 * kWords)>(page, R::kC + token * R::kRankPad / (kCodeWord / 4), words);
      constexpr int kScaleAlign = alignment_of(2 * kChunk) < alignment_of(R::kTokenScales) ? alignment_of(2 * kChunk)
                                                                                          : alignment_of(R::kTokenScales);
      load_words<kChunk / 2, kScaleAlign>(page, R::kTokenScales + 2 * token, scales);
      float code[kCodes];
      coefficient_codes<R::kCoefficientBits, kCodes>(words, code);
#pragma unroll
      for (int t = 0; t < kChunk; t++) {
        const float scale = t % 2 ? high_bf16(scales[t / 2]) : low_bf16(scales[t / 2]);
        float c[I::kRank];
#pragma unroll
        for (int r = 0; r < I::kRank; r++) c[r] = code[t * R::kRankPad + r] * (I::kRank <= 2 ? scale : 1.f);
#pragma unroll
        for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
          for (int h = 0; h < S::kLaneHeads; h++) {
            float logit = c[0] * x[0][tile][h];
#pragma unroll
            for (int r = 1; r < I::kRank; r++) logit = fmaf(c[r], x[r][tile][h], logit);
            total[tile][h] += exp2_approx(I::kRank <= 2 ? logit : logit * scale);
          }
      }
    }
  }

  // Two heads of page g become one head of pages g / 2 * 2 and the next, so that stores are of two pages.
  static __device__ __forceinline__ void pair(const float (&value)[S::kLaneHeads], float& first, float& second) {
    const bool odd = threadIdx.x / 4 % 2 != 0;
    const float mine = odd ? value[S::kLaneHeads - 1] : value[0];
    const float other = __shfl_xor_sync(0xffffffffu, odd ? value[0] : value[S::kLaneHeads - 1], 4);
    first = odd ? other : mine, second = odd ? mine : other;
  }
};

template <class I, bool BYTES>
struct HeadLanes<ImmaPages<I, BYTES>> {
  static constexpr int kStep = ImmaPages<I, BYTES>::kValues == 1 ? 4 : 8, kOf = 32 / kStep;
};

// Grid: x blocks of CONSUMERS + PRODUCERS + 1 warps, any number. Dynamic shared memory: STAGES * ImmaShape::kStageBytes + 4 * kOutFloats.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int HEADS, int CONSUMERS, int STAGES, int RUN,
          bool PAD, bool HINT, int PRODUCERS, bool BYTES, class FORM = PlainForm>
__device__ __forceinline__ void page_score_pages(const PageScoreArgs& args) {
  using I = ImmaShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, HEADS, CONSUMERS, STAGES, RUN, 1, 1, false, PAD, HINT, PRODUCERS, FORM>;
  imma_run<I, ScoreShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, FORM>, ImmaPages<I, BYTES>>(args);
}

}  // namespace kvloom
