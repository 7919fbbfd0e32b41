// page_score, the parts that every form shares: equation 2 on a tile of 16 records of one kv head, and the exact log-sum-exp of
// the page that is still filling.
//
// A tile is the m of m16n8k16: row i of tile c is column c of page i's V, and one more tile is the centroids; the query heads of
// the group are its n. The accumulators then give a lane all RANK + 1 dot products of 2 pages and 2 heads without a shuffle:
//   lane = 4 g + p:  pages g and g + 8;  heads 2p, 2p + 1 of each n tile
// and the lane sums its pages' tokens in f32. A group of 1, 2 or 4 heads (or 3) fills the 8 columns by repeating the heads; the
// lanes that hold one head share out the page's tokens.
#pragma once

#include "kvloom/abi.cuh"
#include "kvloom/mma/m16n8k16.cuh"
#include "kvloom/ptx/exp2.cuh"
#include "kvloom/ptx/load.cuh"
#include "kvloom/quant/e4m3.cuh"
#include "kvloom/quant/f16_codes.cuh"
#include "kvloom/quant/record_rows.cuh"
#include "kvloom/record.cuh"
#include "kvloom/reduce/masses.cuh"
#include "kvloom/sched/tile_tasks.cuh"

namespace kvloom {

constexpr int kScoreTile = 16;

// Everything that follows from a shape. A unit is one kv head and up to kUnitHeads of its query heads.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, class FORM = PlainForm>
struct ScoreShape {
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "a quarter of a row is loaded in whole words");
  static_assert(PAGE >= 4 && (PAGE & (PAGE - 1)) == 0, "page sizes are powers of two from 4");
  static_assert(GROUP >= 1 && GROUP <= 64, "a kv head serves 1 to 64 query heads");

  using Key = T;
  using Element = typename Compute<T>::type;  // of the query
  using Rec = Record<HEAD_DIM, PAGE, RANK, BITS, FORM>;
  using Basis = F16Codes<BITS>;
  using Centroid = F16Bytes<Basis::kPair>;
  static constexpr int kHeadDim = HEAD_DIM, kPage = PAGE, kRank = RANK, kBits = BITS, kGroup = GROUP;
  static constexpr bool kSoftcap = SOFTCAP;

  static constexpr int kQuarter = HEAD_DIM / 4;                                      // dims a lane holds of each row
  static constexpr int kDimGroups = (kQuarter + Basis::kDims - 1) / Basis::kDims;    // of Basis::kDims dims, the last one padded
  static constexpr int kStepsPerGroup = Basis::kDims / 4;
  static constexpr int kSteps = kDimGroups * kStepsPerGroup;
  static_assert(kDimGroups * Basis::kWords * 4 == Rec::kQuarterBytes, "a padded quarter is whole groups");

  static constexpr int kHeadTiles = (GROUP + 7) / 8;
  // Two n tiles share the unpacking of codes where their accumulators and query fragments fit the registers.
  static constexpr int kTiles = kHeadTiles % 2 == 0 && (RANK + 1) * 8 + kSteps * 4 <= 112 ? 2 : 1;
  static constexpr int kPasses = kHeadTiles / kTiles;                                // units of one kv head
  static constexpr int kUnitHeads = 8 * kTiles;
  static constexpr int kHeadColumns = GROUP > 4 ? 8 : GROUP > 2 ? 4 : GROUP;         // distinct columns of an n tile
  static constexpr int kLaneHeads = kHeadColumns >= 2 ? 2 : 1;                       // distinct heads of a lane in an n tile

  // Lanes that hold the same heads split the tokens into kParts runs of kPartTokens; at least 2 tokens and a word of codes each, so
  // that loads are whole words.
  static constexpr int kCodeWord = 32 / Rec::kCoefficientBits;
  static constexpr int kCopies = kHeadColumns >= 2 ? 8 / kHeadColumns : 4;
  static constexpr int min(int a, int b) { return a < b ? a : b; }
  static constexpr int kParts = min(kCopies, min(PAGE / 2, PAGE * Rec::kRankPad / kCodeWord));
  static constexpr int kPartTokens = PAGE / kParts;
  static constexpr int kPartLane = kHeadColumns == 4 ? 2 : 1;                        // lanes between two parts
  static constexpr int kWanted = kTiles == 1 && RANK <= 8 ? 8 : 4;
  static constexpr int kWordTokens = kCodeWord / Rec::kRankPad;                      // tokens of a word of codes, 0 for less than one
  static constexpr int kChunk = min(kPartTokens, kWanted < kWordTokens ? kWordTokens : kWanted);  // tokens in flight
  static constexpr int kChunks = kPartTokens / kChunk;
};

// The query heads of a unit as B fragments, and what turns their products into base-2 logits (with a cap: into logit / cap).
template <class S>
struct ScoreQuery {
  uint32_t b[S::kTiles][S::kSteps][2];
  float scale[S::kTiles][S::kLaneHeads];
  // 4-bit centroids: the logit of the mean key that they are stored less, base 2 (with a cap: over the cap).
  float centre[S::Rec::kCentroidBits == 4 ? S::kTiles : 1][S::kLaneHeads];
};

// Query head of column n of n tile `tile`, counted inside the group.
template <class S>
__device__ __forceinline__ int score_head(int pass, int tile, int n) {
  return pass * S::kUnitHeads + tile * 8 + n % S::kHeadColumns;
}

// Loads the query heads of a unit. Each head is scaled by a power of two so that its largest element lies in [2^14, 2^15): bf16
// and fp16 values are then exact in f16 down to 2^-21 of it. Rows of q must be 8-byte aligned.
template <class S>
__device__ __forceinline__ void load_query(const PageScoreArgs& args, int request, int kv_head, int pass, ScoreQuery<S>& query) {
  using T = typename S::Element;
  const int lane = threadIdx.x % 32, column = lane / 4, p = lane % 4;
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++) {
    const int head = score_head<S>(pass, tile, column);
    float x[S::kSteps * 4];
#pragma unroll
    for (int i = 0; i < S::kSteps * 4; i++) x[i] = 0.f;
    if (head < S::kGroup) {
      const T* row = static_cast<const T*>(args.q) + request * args.q_batch_stride +
                     (static_cast<int64_t>(kv_head) * S::kGroup + head) * args.q_head_stride + p * S::kQuarter;
#pragma unroll
      for (int i = 0; i < S::kQuarter; i += 4) {
        const uint2 w = __ldg(reinterpret_cast<const uint2*>(row + i));
        const T* four = reinterpret_cast<const T*>(&w);
#pragma unroll
        for (int e = 0; e < 4; e++) x[i + e] = static_cast<float>(four[e]);
      }
    }
    float top = 0.f;
#pragma unroll
    for (int i = 0; i < S::kQuarter; i++) top = fmaxf(top, fabsf(x[i]));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 1));
    top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, 2));
    const int exponent = min(max(static_cast<int>(__float_as_uint(top) >> 23), 27), 254);
    const float factor = __uint_as_float(static_cast<uint32_t>(268 - exponent) << 23);
    const float inverse = __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23);
#pragma unroll
    for (int step = 0; step < S::kSteps; step++) {
      float e[4];
#pragma unroll
      for (int i = 0; i < 4; i++) e[i] = x[dim_of_step<S::Basis::kPair>(step, i)] * factor;
      query.b[tile][step][0] = f16x2_bits(__floats2half2_rn(e[0], e[1]));
      query.b[tile][step][1] = f16x2_bits(__floats2half2_rn(e[2], e[3]));
    }
    const float unit = S::kSoftcap ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E;
#pragma unroll
    for (int i = 0; i < S::kLaneHeads; i++) query.scale[tile][i] = __shfl_sync(0xffffffffu, inverse, (2 * p + i) * 4) * unit;
    if constexpr (S::Rec::kCentroidBits == 4) {
      float dot = 0.f;
      if (args.centre != nullptr) {
        const float* centre = args.centre + static_cast<int64_t>(kv_head) * (4 * S::kQuarter) + p * S::kQuarter;
#pragma unroll
        for (int i = 0; i < S::kQuarter; i++) dot = fmaf(x[i], __ldg(centre + i), dot);
      }
      dot += __shfl_xor_sync(0xffffffffu, dot, 1);
      dot += __shfl_xor_sync(0xffffffffu, dot, 2);
#pragma unroll
      for (int i = 0; i < S::kLaneHeads; i++) query.centre[tile][i] = __shfl_sync(0xffffffffu, dot, (2 * p + i) * 4) * unit;
    }
  }
}

// A capped base-2 logit from logit / cap.
__device__ __forceinline__ float capped_log2(const PageScoreArgs& args, float x) {
  return tanh_accurate(x) * (args.logit_softcap * kLog2E);
}

// acc[c][tile] += A tile of one row of both pages times the query. Words hold a lane's quarter of the row, page g then g + 8.
template <class S, class Codes, int WORDS>
__device__ __forceinline__ void multiply_row(const uint32_t (&words)[2][WORDS], const ScoreQuery<S>& query, float (&acc)[S::kTiles][4]) {
#pragma unroll
  for (int group = 0; group < S::kDimGroups; group++) {
    uint32_t a[2][2 * S::kStepsPerGroup];
    Codes::unpack(&words[0][group * Codes::kWords], a[0]);
    Codes::unpack(&words[1][group * Codes::kWords], a[1]);
#pragma unroll
    for (int s = 0; s < S::kStepsPerGroup; s++) {
      const int step = group * S::kStepsPerGroup + s;
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++)
        mma_m16n8k16(acc[tile], a[0][2 * s], a[1][2 * s], a[0][2 * s + 1], a[1][2 * s + 1], query.b[tile][step][0],
                     query.b[tile][step][1], fp16{});
    }
  }
}

// acc[tile] += the operand rows of both pages times the query.
template <class S>
__device__ __forceinline__ void multiply_operand(const uint32_t (&a)[2][2 * S::kSteps], const ScoreQuery<S>& query, float (&acc)[S::kTiles][4]) {
#pragma unroll
  for (int step = 0; step < S::kSteps; step++)
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
      mma_m16n8k16(acc[tile], a[0][2 * step], a[1][2 * step], a[0][2 * step + 1], a[1][2 * step + 1], query.b[tile][step][0],
                   query.b[tile][step][1], fp16{});
}

// Dot products of the query with every row of both pages: acc[c] for column c of V, acc[RANK] for the centroid; of other forms than the
// plain one that is multiplied by its scale already.
template <class S, class Bytes>
__device__ __forceinline__ void project(const Bytes (&page)[2], const ScoreQuery<S>& query, float (&acc)[S::kRank + 1][S::kTiles][4]) {
  using R = typename S::Rec;
  const int p = threadIdx.x % 4;
#pragma unroll
  for (int c = 0; c <= S::kRank; c++)
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) acc[c][tile][i] = 0.f;
  if constexpr (!R::Form::kPlain) {
    using Rows = RecordRows<S>;
    uint32_t a[2][Rows::kRegisters];
#pragma unroll
    for (int c = 0; c < S::kRank; c++) {
#pragma unroll
      for (int i = 0; i < 2; i++) Rows::basis(page[i], c, a[i]);
      multiply_operand<S>(a, query, acc[c]);
    }
    float factor[2];
#pragma unroll
    for (int i = 0; i < 2; i++) factor[i] = Rows::centroid(page[i], a[i]);
    multiply_operand<S>(a, query, acc[S::kRank]);
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int i = 0; i < 4; i++) acc[S::kRank][tile][i] *= factor[i / 2];
    return;
  }
#pragma unroll
  for (int c = 0; c < S::kRank; c++) {
    constexpr int kWords = R::kQuarterBytes / 4;
    uint32_t words[2][kWords];
#pragma unroll
    for (int i = 0; i < 2; i++)
      load_words<kWords, alignment_of(R::kQuarterBytes)>(page[i], R::kV + c * R::kRowBytes + p * R::kQuarterBytes, words[i]);
    multiply_row<S, typename S::Basis>(words, query, acc[c]);
  }
  constexpr int kMuWords = S::kQuarter / 4, kPadded = S::kDimGroups * S::Centroid::kWords;
  static_assert(S::Centroid::kDims == S::Basis::kDims, "one k order for the basis and the centroid");
  uint32_t words[2][kPadded];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    uint32_t mu[kMuWords];
    load_words<kMuWords, alignment_of(S::kQuarter)>(page[i], R::kMu + p * S::kQuarter, mu);
#pragma unroll
    for (int w = 0; w < kPadded; w++) words[i][w] = w < kMuWords ? mu[w < kMuWords ? w : 0] : 0u;
  }
  multiply_row<S, typename S::Centroid>(words, query, acc[S::kRank]);
}

// Log-sum-exp of one page's reconstructed logits, base 2, for this lane's heads: out[tile][head].
// dots[c][tile][head] are the products of project() for this page.
template <class S, class Bytes>
__device__ __forceinline__ void sum_tokens(const PageScoreArgs& args, const Bytes& page, const ScoreQuery<S>& query,
                                           const float (&dots)[S::kRank + 1][S::kTiles][S::kLaneHeads],
                                           float (&out)[S::kTiles][S::kLaneHeads]) {
  using R = typename S::Rec;
  const int part = (threadIdx.x % 4 / S::kPartLane) % S::kParts;
  float scaled[S::kRank][S::kTiles][S::kLaneHeads], mu[S::kTiles][S::kLaneHeads];
  LogSum2 total[S::kTiles][S::kLaneHeads];
  {
    float column[S::kRank];
    RecordRows<S>::column_scales(page, column);
    const float mu_scale = R::Form::kPlain ? low_bf16(page.load2(R::kMuScale)) : 1.f;
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int h = 0; h < S::kLaneHeads; h++) {
#pragma unroll
        for (int c = 0; c < S::kRank; c++) scaled[c][tile][h] = dots[c][tile][h] * (column[c] * query.scale[tile][h]);
        mu[tile][h] = dots[S::kRank][tile][h] * (mu_scale * query.scale[tile][h]);
        if constexpr (R::kCentroidBits == 4) mu[tile][h] += query.centre[tile][h];
      }
  }
#pragma unroll(S::kChunks <= 2 ? S::kChunks : 1)
  for (int chunk = 0; chunk < S::kChunks; chunk++) {
    const int token = part * S::kPartTokens + chunk * S::kChunk;
    constexpr int kCodes = S::kChunk * R::kRankPad, kCodeWords = kCodes / S::kCodeWord, kScaleWords = S::kChunk / 2;
    static_assert(kCodes % S::kCodeWord == 0 && S::kChunk % 2 == 0, "a chunk of tokens is whole words");
    uint32_t codes[kCodeWords], scales[kScaleWords];
    float numbers[kCodes];  // of 4-bit codes
    load_words<kCodeWords, alignment_of(4 * kCodeWords)>(page, R::kC + token * R::kRankPad / (S::kCodeWord / 4), codes);
    if constexpr (R::kCoefficientBits == 4) coefficient_codes<4, kCodes>(codes, numbers);
    constexpr int kScaleAlign = alignment_of(2 * S::kChunk) < alignment_of(R::kTokenScales) ? alignment_of(2 * S::kChunk)
                                                                                            : alignment_of(R::kTokenScales);
    load_words<kScaleWords, kScaleAlign>(page, R::kTokenScales + 2 * token, scales);
    float x[S::kTiles][S::kLaneHeads][S::kChunk];
#pragma unroll
    for (int t = 0; t < S::kChunk; t++) {
      float sum[S::kTiles][S::kLaneHeads];
#pragma unroll
      for (int c = 0; c < S::kRank; c++) {
        const int at = t * R::kRankPad + c;
        const float code = R::kCoefficientBits == 4 ? numbers[at] : static_cast<float>(static_cast<int8_t>(codes[at / S::kCodeWord] >> (at % 4 * 8)));
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
          for (int h = 0; h < S::kLaneHeads; h++)
            sum[tile][h] = c == 0 ? code * scaled[c][tile][h] : fmaf(code, scaled[c][tile][h], sum[tile][h]);
      }
      const float scale = t % 2 ? high_bf16(scales[t / 2]) : low_bf16(scales[t / 2]);
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
        for (int h = 0; h < S::kLaneHeads; h++)
          x[tile][h][t] = S::kSoftcap ? capped_log2(args, fmaf(sum[tile][h], scale, mu[tile][h])) : sum[tile][h] * scale;
    }
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int h = 0; h < S::kLaneHeads; h++) {
        float top = x[tile][h][0];
#pragma unroll
        for (int t = 1; t < S::kChunk; t++) top = fmaxf(top, x[tile][h][t]);
        if (S::kChunks > 1) top = fmaxf(top, total[tile][h].top);
        float sum = 0.f;
#pragma unroll
        for (int t = 0; t < S::kChunk; t++) sum += exp2_approx(x[tile][h][t] - top);
        total[tile][h].sum = S::kChunks > 1 ? fmaf(total[tile][h].sum, exp2_approx(total[tile][h].top - top), sum) : sum;
        total[tile][h].top = top;
      }
  }
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
    for (int h = 0; h < S::kLaneHeads; h++) {
#pragma unroll
      for (int part_bit = 1; part_bit < S::kParts; part_bit *= 2) total[tile][h].merge_lane(part_bit * S::kPartLane);
      out[tile][h] = total[tile][h].log2() + (S::kSoftcap ? 0.f : mu[tile][h]);
    }
}

// Scores of a tile: first page `first`, of which `live` (1 to 16) are complete pages. Bit i of `mapped` says that page i has a
// record; the others get -inf. page[] are the records of this lane's pages g and g + 8 (any record for those without one).
template <class S, class Bytes>
__device__ __forceinline__ void score_tile(const PageScoreArgs& args, const Bytes (&page)[2], const ScoreQuery<S>& query, int request,
                                           int kv_head, int pass, int first, int live, uint32_t mapped) {
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  float acc[S::kRank + 1][S::kTiles][4];
  project<S>(page, query, acc);
  float out[2][S::kTiles][S::kLaneHeads];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    float dots[S::kRank + 1][S::kTiles][S::kLaneHeads];
#pragma unroll
    for (int c = 0; c <= S::kRank; c++)
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
        for (int h = 0; h < S::kLaneHeads; h++) dots[c][tile][h] = acc[c][tile][2 * i + h];
    sum_tokens<S>(args, page[i], query, dots, out[i]);
  }
  // Where several lanes hold the same result, the second stores the page g + 8.
  const int copy = p / S::kPartLane;
  float* scores = args.scores + request * args.score_batch_stride + first;
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const int n = g + 8 * i;
    if (n >= live || (S::kCopies > 1 && copy != i)) continue;
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int h = 0; h < S::kLaneHeads; h++) {
        const int head = score_head<S>(pass, tile, S::kLaneHeads == 2 ? 2 * p + h : 0);
        if (head < S::kGroup)
          scores[(static_cast<int64_t>(kv_head) * S::kGroup + head) * args.score_head_stride + n] =
              mapped >> n & 1 ? out[i][tile][h] * kLn2 : minus_infinity();
      }
  }
}

// The tile of which no page has a record: -inf for its complete pages.
template <class S>
__device__ __forceinline__ void fill_tile(const PageScoreArgs& args, int request, int kv_head, int pass, int first, int live) {
  const int lane = threadIdx.x % 32;
  for (int i = lane; i < S::kUnitHeads * kScoreTile; i += 32) {
    const int head = pass * S::kUnitHeads + i / kScoreTile, n = i % kScoreTile;
    if (head < S::kGroup && n < live)
      args.scores[request * args.score_batch_stride + (static_cast<int64_t>(kv_head) * S::kGroup + head) * args.score_head_stride +
                  first + n] = minus_infinity();
  }
}

// The exact log-sum-exp of the page (or the group of pages) that is still filling, from its `tokens` keys: one warp, 16 tokens a step.
// Products of bf16 or fp16 are exact in the f32 accumulators; e4m3 becomes bf16. Rows of keys must be aligned to two elements. Tokens of a
// page without a block do not count.
template <class S>
__device__ __forceinline__ void score_tail(const PageScoreArgs& args, int request, int kv_head, int pass, int page, int tokens) {
  using T = typename S::Element;
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const int32_t* table = args.cache.row_table != nullptr ? args.cache.row_table : args.cache.block_table;
  // A group's pages each have a block of their own.
  constexpr int kPages = S::Rec::Group::kPages, kPageTokens = S::kPage / kPages;
  table += request * args.cache.table_stride + static_cast<int64_t>(page) * kPages;
  const int block = kPages == 1 ? __ldg(table) : 0;
  float* scores = args.scores + request * args.score_batch_stride + page;
  using Key = typename S::Key;
  const Key* keys = static_cast<const Key*>(args.cache.k) + (block < 0 ? 0 : block) * args.cache.k_block_stride +
                  kv_head * args.cache.k_head_stride + 2 * p;
  const T* q = static_cast<const T*>(args.q) + request * args.q_batch_stride + 2 * p;
  const float unit = (S::kSoftcap ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E) * cache_scale<Key>(args.cache.k_scale);
#pragma unroll 1
  for (int tile = 0; tile < S::kTiles; tile++) {
    const int base = (pass * S::kTiles + tile) * 8;
    LogSum2 total[2];
#pragma unroll 1
    for (int t0 = 0; t0 < tokens && block >= 0; t0 += 16) {
      bool has_a = t0 + g < tokens, has_b = t0 + g + 8 < tokens;
      const bool has_q = base + g < S::kGroup;
      const Key* row_a = keys + (t0 + g) * args.cache.k_token_stride;
      const Key* row_b = row_a + 8 * args.cache.k_token_stride;
      if constexpr (kPages > 1) {
        const auto row = [&](int token, bool& has) {
          const int id = has ? __ldg(table + token / kPageTokens) : -1;
          has = id >= 0;
          return keys + max(id, 0) * args.cache.k_block_stride + token % kPageTokens * args.cache.k_token_stride;
        };
        row_a = row(t0 + g, has_a), row_b = row(t0 + g + 8, has_b);
      }
      const T* row_q = q + (static_cast<int64_t>(kv_head) * S::kGroup + base + g) * args.q_head_stride;
      float d[4] = {0.f, 0.f, 0.f, 0.f};
#pragma unroll(S::kHeadDim <= 128 ? S::kHeadDim / 16 : 4)
      for (int k = 0; k < S::kHeadDim; k += 16) {
        const uint32_t a0 = has_a ? load_pair(row_a + k) : 0u, a1 = has_b ? load_pair(row_b + k) : 0u;
        const uint32_t a2 = has_a ? load_pair(row_a + k + 8) : 0u, a3 = has_b ? load_pair(row_b + k + 8) : 0u;
        const uint32_t b0 = has_q ? load_pair(row_q + k) : 0u, b1 = has_q ? load_pair(row_q + k + 8) : 0u;
        mma_m16n8k16(d, a0, a1, a2, a3, b0, b1, T{});
      }
#pragma unroll
      for (int h = 0; h < 2; h++) {
        float x[2];
#pragma unroll
        for (int i = 0; i < 2; i++) {
          const float logit = S::kSoftcap ? capped_log2(args, d[2 * i + h] * unit) : d[2 * i + h] * unit;
          x[i] = (i == 0 ? has_a : has_b) ? logit : minus_infinity();
        }
        const float top = fmaxf(total[h].top, fmaxf(x[0], x[1]));
        total[h].sum = total[h].sum * exp2_approx(total[h].top - top) + exp2_approx(x[0] - top) + exp2_approx(x[1] - top);
        total[h].top = top;
      }
    }
#pragma unroll
    for (int h = 0; h < 2; h++) {
#pragma unroll
      for (int mask = 4; mask < 32; mask *= 2) total[h].merge_lane(mask);
      const int head = base + 2 * p + h;
      if (g == 0 && head < S::kGroup)
        scores[(static_cast<int64_t>(kv_head) * S::kGroup + head) * args.score_head_stride] =
            block < 0 ? minus_infinity() : total[h].log2() * kLn2;
    }
  }
}

}  // namespace kvloom
