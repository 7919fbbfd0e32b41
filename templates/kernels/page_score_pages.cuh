// page_score for records of low rank and small ones, in the block of page_score_imma.cuh: the pages of a tile are the rows of an f16
// product, one column of V in rows g and the next, or the centroid, in rows g + 8, and the query heads its columns. A lane then has all
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

template <class I>
struct ImmaPages {
  using S = PagesShape<I>;
  using R = typename I::Rec;
  using Rows = RecordRows<S>;
  static_assert(I::kSplit == 1, "a warp takes the 8 pages of a tile");
  static_assert(I::kRank <= 4 && I::kPage >= 16, "a lane holds its page's coefficients");
  static constexpr bool kHandsOver = false;  // a warp's share of a query would be all of its work
  struct Exchange {};
  static constexpr int kTiles = S::kTiles;
  static constexpr int kSets = (I::kRank + 2) / 2;                // products: two rows of each page
  static constexpr int kValues = S::kLaneHeads == 2 ? 2 * kTiles : 1;
  static constexpr int kParts = S::kHeadColumns == 8 ? 1 : S::kHeadColumns == 4 ? 2 : 4;  // lanes that share a page's tokens
  static constexpr int kPartLane = S::kHeadColumns == 4 ? 2 : 1;  // lanes between two parts
  static constexpr int kPartTokens = I::kPage / kParts;
  static constexpr int kCodeWord = 32 / R::kCoefficientBits;      // codes
  static constexpr int kChunk = kPartTokens < 8 ? (4 * R::kRankPad < kCodeWord ? 8 : 4) : 8;  // tokens at a time
  static_assert(kChunk <= kPartTokens && kChunk * R::kRankPad % kCodeWord == 0, "a chunk is whole words of codes");
  static constexpr float kLoss = 0.f;

  ScoreQuery<S> query;

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

  // Sums over tokens of 2^(logit without the centroid's part), and the centroid's part.
  __device__ __forceinline__ void tile(const SharedBytes& pages, float (&sum)[kValues], float (&centroid)[kValues]) const {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const SharedBytes page{pages.base + g * I::kDistance};
    float x[I::kRank][kTiles][S::kLaneHeads], mu[kTiles][S::kLaneHeads];  // base-2 logits of a coefficient of 1, and of the centroid
    {
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
        for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
          for (int h = 0; h < S::kLaneHeads; h++) {
            const float unit = query.scale[tile][h];
            if (2 * set < I::kRank)
              x[2 * set][tile][h] = acc[tile][h] * (column[2 * set] * unit);
            else
              mu[tile][h] = acc[tile][h] * (first * unit);  // an even rank's last product
            if (2 * set + 1 < I::kRank)
              x[2 * set + 1][tile][h] = acc[tile][2 + h] * (column[(2 * set + 1) % I::kRank] * unit);
            else if (2 * set + 1 == I::kRank)
              mu[tile][h] = acc[tile][2 + h] * (second * unit);
          }
      }
    }
    if constexpr (R::kCentroidBits == 4) {
#pragma unroll
      for (int tile = 0; tile < kTiles; tile++)
#pragma unroll
        for (int h = 0; h < S::kLaneHeads; h++) mu[tile][h] += query.centre[tile][h];
    }
    float total[kTiles][S::kLaneHeads] = {};
    const int part = p / kPartLane % kParts;
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
#pragma unroll
    for (int tile = 0; tile < kTiles; tile++) {
#pragma unroll
      for (int h = 0; h < S::kLaneHeads; h++)
#pragma unroll
        for (int bit = 1; bit < kParts; bit *= 2) total[tile][h] += __shfl_xor_sync(0xffffffffu, total[tile][h], bit * kPartLane);
      if constexpr (kValues == 1)
        sum[0] = total[0][0], centroid[0] = mu[0][0];
      else
        pair(total[tile], sum[2 * tile], sum[2 * tile + 1]), pair(mu[tile], centroid[2 * tile], centroid[2 * tile + 1]);
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

template <class I>
struct HeadLanes<ImmaPages<I>> {
  static constexpr int kStep = ImmaPages<I>::kValues == 1 ? 4 : 8, kOf = 32 / kStep;
};

// Grid: x blocks of CONSUMERS + PRODUCERS + 1 warps, any number. Dynamic shared memory: STAGES * ImmaShape::kStageBytes + 4 * kOutFloats.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int HEADS, int CONSUMERS, int STAGES, int RUN,
          bool PAD, bool HINT, int PRODUCERS, class FORM = PlainForm>
__device__ __forceinline__ void page_score_pages(const PageScoreArgs& args) {
  using I = ImmaShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, HEADS, CONSUMERS, STAGES, RUN, 1, 1, false, PAD, HINT, PRODUCERS, FORM>;
  imma_run<I, ScoreShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP>, ImmaPages<I>>(args);
}

}  // namespace kvloom
