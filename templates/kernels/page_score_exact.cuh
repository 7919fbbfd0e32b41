// page_score by exact_lse: equation 1, the exact log-sum-exp of every page, from its keys. Summaries are not read.
//
// A step is 16 tokens as the m of m16n8k16, the query heads are its n. Lane 4 g + p holds dims 32 b + 8 p to + 7 of tokens g and
// g + 8, loaded as whole 16-byte words: which dims of a block make up a k step is free, as long as the query's fragments agree.
// Keys go straight to registers, one step or three ahead of the arithmetic; many warps keep the memory busy.
#pragma once

#include "kernels/page_score_direct.cuh"

namespace kvloom {

// Query heads of a unit as B fragments for rows of DIMS elements that lanes hold 8 dims at a time.
template <int DIMS, int TILES>
struct RowQuery {
  static_assert(DIMS % 16 == 0, "rows are whole k steps");
  static constexpr int kWords = DIMS / 8;  // of a lane's part of a row
  uint32_t b[TILES][kWords];               // word w is b[w % 2] of k step w / 2
};

// A lane's part of a row of DIMS 16-bit elements in global or shared memory: 4 words of every 32 dims, 2 of a last 16. Rows are 16-byte
// aligned.
template <int DIMS, class Bytes>
__device__ __forceinline__ void load_row(const Bytes& bytes, uint32_t (&w)[DIMS / 8]) {
  const int p = threadIdx.x % 4;
#pragma unroll
  for (int block = 0; block < DIMS / 32; block++) {
    const uint4 v = bytes.load16(block * 64 + p * 16);
    w[4 * block] = v.x, w[4 * block + 1] = v.y, w[4 * block + 2] = v.z, w[4 * block + 3] = v.w;
  }
  if constexpr (DIMS % 32 != 0) {
    const uint2 v = bytes.load8(DIMS / 32 * 64 + p * 8);
    w[DIMS / 8 - 2] = v.x, w[DIMS / 8 - 1] = v.y;
  }
}

template <int WORDS>
__device__ __forceinline__ void zero_row(uint32_t (&w)[WORDS]) {
#pragma unroll
  for (int i = 0; i < WORDS; i++) w[i] = 0u;
}

// acc[tile] += rows g and g + 8 times the query.
template <typename T, int DIMS, int TILES>
__device__ __forceinline__ void multiply_rows(const uint32_t (&low)[DIMS / 8], const uint32_t (&high)[DIMS / 8],
                                              const RowQuery<DIMS, TILES>& query, float (&acc)[TILES][4]) {
#pragma unroll
  for (int w = 0; w < DIMS / 8; w += 2)
#pragma unroll
    for (int tile = 0; tile < TILES; tile++)
      mma_m16n8k16(acc[tile], low[w], high[w], low[w + 1], high[w + 1], query.b[tile][w], query.b[tile][w + 1], T{});
}

// Everything that follows from a shape, for scores whose rows are keys or 16-bit vectors.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP>
struct RowShape : ScoreShape<T, HEAD_DIM, PAGE, 1, 16, GROUP, SOFTCAP> {
  static constexpr int kHeadTiles = (GROUP + 7) / 8;
  static constexpr int kTiles = kHeadTiles % 2 == 0 && HEAD_DIM <= 128 ? 2 : 1;
  static constexpr int kPasses = kHeadTiles / kTiles;
  static constexpr int kUnitHeads = 8 * kTiles;
};

// The row of query head `column` of n tile `tile` of a unit, null past the group.
template <class S>
__device__ __forceinline__ const uint8_t* query_row(const PageScoreArgs& args, int request, int kv_head, int pass, int tile) {
  using T = typename S::Element;
  const int head = pass * S::kUnitHeads + tile * 8 + threadIdx.x % 32 / 4;
  if (head >= S::kGroup) return nullptr;
  return reinterpret_cast<const uint8_t*>(static_cast<const T*>(args.q) + request * args.q_batch_stride +
                                          (static_cast<int64_t>(kv_head) * S::kGroup + head) * args.q_head_stride);
}

template <class S>
__device__ __forceinline__ void load_rows(const PageScoreArgs& args, int request, int kv_head, int pass,
                                          RowQuery<S::kHeadDim, S::kTiles>& query) {
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++) {
    const uint8_t* row = query_row<S>(args, request, kv_head, pass, tile);
    zero_row(query.b[tile]);
    if (row != nullptr) load_row<S::kHeadDim>(GlobalBytes{row}, query.b[tile]);
  }
}

template <class S>
struct ExactStep {
  static constexpr int kTilePages = S::kPage < 64 ? 64 / S::kPage : 1;  // pages of a task
  static constexpr int kSteps = kTilePages * S::kPage / 16;             // of 16 tokens; even
  static constexpr int kWords = S::kHeadDim / 8;
  uint32_t rows[2][kWords];  // tokens g and g + 8

  // Block ids of a task, one a lane; -1 where there is no complete page.
  __device__ static __forceinline__ int blocks(const PageScoreArgs& args, const TileTask& t) {
    const int lane = threadIdx.x % 32, n = t.tile * kTilePages + lane;
    return lane < kTilePages && n < t.pages ? __ldg(args.cache.block_table + t.request * args.cache.table_stride + n) : -1;
  }

  __device__ __forceinline__ void load(const PageScoreArgs& args, int block, int kv_head, int step) {
    using T = typename S::Element;
    const int g = threadIdx.x % 32 / 4;
#pragma unroll
    for (int i = 0; i < 2; i++) {
      const int token = step * 16 + g + 8 * i;
      const int id = __shfl_sync(0xffffffffu, block, token / S::kPage);
      zero_row(rows[i]);
      if (id >= 0)
        load_row<S::kHeadDim>(GlobalBytes{reinterpret_cast<const uint8_t*>(static_cast<const T*>(args.cache.k) + id * args.cache.k_block_stride +
                                                                           token % S::kPage * args.cache.k_token_stride +
                                                                           kv_head * args.cache.k_head_stride)},
                              rows[i]);
    }
  }
};

// Base-2 logits from dot products, acc as a product leaves it: x[tile][i][h] for token g + 8 i and head 2 p + h.
template <class S>
__device__ __forceinline__ void scale_logits(const PageScoreArgs& args, const float (&acc)[S::kTiles][4], float (&x)[S::kTiles][2][2]) {
  const float unit = S::kSoftcap ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E;
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
    for (int i = 0; i < 2; i++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const float logit = acc[tile][2 * i + h] * unit;
        x[tile][i][h] = S::kSoftcap ? capped_log2(args, logit) : logit;
      }
}

// Base-2 logits of a step: x[tile][i][h] for token g + 8 i and head 2 p + h.
template <class S>
__device__ __forceinline__ void step_logits(const PageScoreArgs& args, const ExactStep<S>& step,
                                            const RowQuery<S::kHeadDim, S::kTiles>& query, float (&x)[S::kTiles][2][2]) {
  float acc[S::kTiles][4];
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++) acc[tile][0] = acc[tile][1] = acc[tile][2] = acc[tile][3] = 0.f;
  multiply_rows<typename S::Element, S::kHeadDim, S::kTiles>(step.rows[0], step.rows[1], query, acc);
  scale_logits<S>(args, acc, x);
}

// Adds terms to a log-sum-exp that is still growing; a NaN makes the sum NaN.
__device__ __forceinline__ void add_terms(LogSum2& total, float a, float b) {
  const float top = fmaxf(total.top, fmaxf(a, b));
  total.sum = total.sum * exp2_approx(total.top - top) + exp2_approx(a - top) + exp2_approx(b - top);
  total.top = top;
}

// Adds a step's tokens to what is known of its pages; when a page ends, the lane g that is its place in the task keeps its score.
template <class S>
__device__ __forceinline__ void sum_step(const float (&x)[S::kTiles][2][2], int step, LogSum2 (&total)[S::kTiles][2],
                                         float (&kept)[S::kTiles][2][2]) {
  const int g = threadIdx.x % 32 / 4;
#pragma unroll
  for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
    for (int h = 0; h < 2; h++) {
      if constexpr (S::kPage >= 16) {
        add_terms(total[tile][h], x[tile][0][h], x[tile][1][h]);
        if ((step + 1) * 16 % S::kPage != 0) continue;
#pragma unroll
        for (int mask = 4; mask < 32; mask *= 2) total[tile][h].merge_lane(mask);
        if (g == step * 16 / S::kPage) kept[tile][0][h] = total[tile][h].log2() * kLn2;
        total[tile][h] = LogSum2{};
      } else {
#pragma unroll
        for (int i = 0; i < 2; i++) {
          LogSum2 one{x[tile][i][h], 1.f};
          one.sum = isnan(one.top) ? one.top : one.sum;
#pragma unroll
          for (int mask = 4; mask < 4 * S::kPage; mask *= 2) one.merge_lane(mask);
          const float value = one.log2() * kLn2;
          if constexpr (S::kPage == 8) {  // page 2 step + i
            if (g == 2 * step + i) kept[tile][0][h] = value;
          } else {  // page 4 step + 2 i + g / 4, of 16: lane g keeps pages g and g + 8
            const float other = __shfl_xor_sync(0xffffffffu, value, 16);
            const float even = g < 4 ? value : other, odd = g < 4 ? other : value;
            const int page = 4 * step + 2 * i;
            if (g == page % 8) kept[tile][page / 8][h] = even;
            if (g == page % 8 + 1) kept[tile][page / 8][h] = odd;
          }
        }
      }
    }
}

// Stores the scores of a task's pages, of which `mapped` says whether they have a block.
template <class S>
__device__ __forceinline__ void store_kept(const PageScoreArgs& args, const TileTask& t, uint32_t mapped, const float (&kept)[S::kTiles][2][2]) {
  constexpr int kPages = ExactStep<S>::kTilePages, kKept = S::kPage == 4 ? 2 : 1;
  const int g = threadIdx.x % 32 / 4, p = threadIdx.x % 4, first = t.tile * kPages;
  const int kv_head = t.unit / S::kPasses, pass = t.unit % S::kPasses;
  float* scores = args.scores + t.request * args.score_batch_stride + first;
#pragma unroll
  for (int k = 0; k < kKept; k++) {
    const int n = g + 8 * k;
    if (n >= kPages || first + n >= t.pages) continue;
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int head = pass * S::kUnitHeads + tile * 8 + 2 * p + h;
        if (head < S::kGroup)
          scores[(static_cast<int64_t>(kv_head) * S::kGroup + head) * args.score_head_stride + n] =
              mapped >> n & 1 ? kept[tile][k][h] : minus_infinity();
      }
  }
}

// Grid: x blocks of WARPS warps, any number. No shared memory. STEPS: of keys in registers, all but one of them on their way.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP, int WARPS, int STEPS>
__device__ __forceinline__ void page_score_exact(const PageScoreArgs& args) {
  using S = RowShape<T, HEAD_DIM, PAGE, GROUP, SOFTCAP>;
  using Step = ExactStep<S>;
  static_assert(Step::kSteps % STEPS == 0, "a step of every task has the same registers");
  const uint32_t units = static_cast<uint32_t>(args.cache.kv_heads) * S::kPasses;
  const WarpShare share(WARPS, units);
  if (blockIdx.x == 0) reduce::leave_no_masses(args.masses, args.cache.kv_heads * S::kGroup, threadIdx.x, blockDim.x);
  if (share.idle()) return;
  TileTasks<PAGE, Step::kTilePages> tasks(args.cache.seq_lens, args.cache.batch, units, args.cache.max_pages, share.first, share.stride);
  TileTask now, then;
  if (!tasks.next(now)) return;
  int block = Step::blocks(args, now);
  RowQuery<HEAD_DIM, S::kTiles> query;
  int loaded_request = -1, loaded_unit = -1;
  Step step[STEPS];
  const auto begin = [&](int of, int head) {
#pragma unroll
    for (int s = 0; s + 1 < STEPS; s++) step[s].load(args, of, head, s);
  };
  begin(block, now.unit / S::kPasses);
  for (bool more = true; more; now = then) {
    more = tasks.next(then);
    const int next_block = more ? Step::blocks(args, then) : -1;
    const int kv_head = now.unit / S::kPasses, pass = now.unit % S::kPasses, first = now.tile * Step::kTilePages;
    const int next_head = more ? then.unit / S::kPasses : 0;
    if (now.request != loaded_request || now.unit != loaded_unit) {
      load_rows<S>(args, now.request, kv_head, pass, query);
      loaded_request = now.request, loaded_unit = now.unit;
    }
    if (first >= now.pages) {
      begin(next_block, next_head);
      score_tail<S>(args, now.request, kv_head, pass, now.pages, now.tail);
      block = next_block;
      continue;
    }
    const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0);
    LogSum2 total[S::kTiles][2];
    float kept[S::kTiles][2][2];
#pragma unroll
    for (int s = 0; s < Step::kSteps; s++) {
      constexpr int kAhead = STEPS - 1;
      if (s + kAhead < Step::kSteps)
        step[(s + kAhead) % STEPS].load(args, block, kv_head, s + kAhead);
      else
        step[(s + kAhead) % STEPS].load(args, next_block, next_head, s + kAhead - Step::kSteps);
      float x[S::kTiles][2][2];
      step_logits<S>(args, step[s % STEPS], query, x);
      sum_step<S>(x, s, total, kept);
    }
    store_kept<S>(args, now, mapped, kept);
    block = next_block;
  }
}

}  // namespace kvloom
