// page_score on int8 tensor cores, for bases of 2, 4 and 8 bits whose rank is a power of two (sm_90): one block an SM or two, PRODUCERS
// warps fill a ring of tiles by bulk copies, CONSUMERS warps compute, one more warp sums the pages that are still filling.
//
// Logits stand without the centroid's part until their exponentials are summed, and no maximum is taken out. Sums outside
// [1e-30, 1e38], and whatever is not finite, are computed again in another way (score_by_lanes).
#pragma once

#include "kernels/page_score_imma_columns.cuh"
#include "kernels/page_score_imma_masses.cuh"
#include "kernels/page_score_imma_rows.cuh"
#include "kvloom/ptx/grid.cuh"

namespace kvloom {

template <bool COLUMNS, class S>
struct ImmaArrangement {
  using Query = ImmaRows<S>;
};
template <class S>
struct ImmaArrangement<true, S> {
  using Query = ImmaColumns<S>;
};

// Scores of a warp's pages by plain arithmetic: quad g takes page g, lane p a quarter of the dims and then of the tokens. For pages
// whose logits lie too far apart for a sum without a maximum, and for values that are not finite. `to` is the first page's score of the
// pass's first head, heads are `stride` apart.
template <class S>
__device__ __noinline__ void score_by_lanes(const PageScoreArgs& args, const uint8_t* tile, int request, int kv_head, int pass, float* to,
                                            int64_t stride, uint32_t mapped, int live) {
  using T = typename S::Element;
  using R = typename S::Rec;
  constexpr int kQuarter = S::kHeadDim / 4, kTokens = S::kPage / 4;
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  const SharedBytes page{tile + g % S::kWarpPages * S::kDistance};
  const float unit = args.softmax_scale * kLog2E;
#pragma unroll 1
  for (int head = 0; head < S::kPassHeads && pass * S::kPassHeads + head < S::kGroup; head++) {
    const T* q = static_cast<const T*>(args.q) + request * args.q_batch_stride +
                 (static_cast<int64_t>(kv_head) * S::kGroup + pass * S::kPassHeads + head) * args.q_head_stride + p * kQuarter;
    float dots[S::kRank + 1], centre = 0.f;
#pragma unroll
    for (int c = 0; c <= S::kRank; c++) dots[c] = 0.f;
#pragma unroll 1
    for (int i = 0; i < kQuarter; i++) {
      const float x = static_cast<float>(q[i]);
      const int group = (p * kQuarter + i) / kScaleDims;  // where scales are grouped
#pragma unroll
      for (int c = 0; c < S::kRank; c++) {
        const uint8_t* row = page.base + R::kV + c * R::kRowBytes + p * R::kQuarterBytes;
        float code;
        if constexpr (S::kBits == 8)
          code = static_cast<int8_t>(row[i]);
        else if constexpr (S::kBits == 4)
          code = (row[i / 2] >> i % 2 * 4 & 15) - 8;
        else
          code = (row[i / 4] >> i % 4 * 2 & 3) - 1.5f;
        if constexpr (R::Form::kGrouped) code *= shared_bf16(page, R::kColumnScales + 2 * (c * R::kScaleGroups + group));
        dots[c] = fmaf(x, code, dots[c]);
      }
      if constexpr (R::kCentroidBits == 4) {
        const int code = (page.base[R::kMu + p * R::kMuQuarterBytes + i / 2] >> i % 2 * 4 & 15) - 8;
        dots[S::kRank] = fmaf(x, static_cast<float>(code) * shared_bf16(page, R::kMuScale + 2 * group), dots[S::kRank]);
        if (args.centre != nullptr) centre = fmaf(x, args.centre[static_cast<int64_t>(kv_head) * S::kHeadDim + p * kQuarter + i], centre);
      } else {
        dots[S::kRank] = fmaf(x, static_cast<float>(static_cast<int8_t>(page.base[R::kMu + p * kQuarter + i])), dots[S::kRank]);
      }
    }
    dots[S::kRank] += centre;
#pragma unroll
    for (int c = 0; c <= S::kRank; c++) {
      dots[c] += __shfl_xor_sync(0xffffffffu, dots[c], 1);
      dots[c] += __shfl_xor_sync(0xffffffffu, dots[c], 2);
      const bool scaled = c < S::kRank ? R::Form::kGrouped : R::kCentroidBits == 4;
      dots[c] *= (scaled ? 1.f : shared_bf16(page, c < S::kRank ? R::kColumnScales + 2 * c : R::kMuScale)) * unit;
    }
    LogSum2 total;
#pragma unroll 1
    for (int token = p * kTokens; token < (p + 1) * kTokens; token++) {
      float x = 0.f;
#pragma unroll
      for (int c = 0; c < S::kRank; c++) {
        const int at = token * R::kRankPad + c;
        const int code = R::kCoefficientBits == 4 ? (page.base[R::kC + at / 2] >> at % 2 * 4 & 15) - 8 : static_cast<int8_t>(page.base[R::kC + at]);
        x = fmaf(static_cast<float>(code), dots[c], x);
      }
      x *= shared_bf16(page, R::kTokenScales + 2 * token);
      const float top = fmaxf(total.top, x);
      total.sum = fmaf(total.sum, exp2_approx(total.top - top), exp2_approx(x - top));
      total.top = top;
    }
    total.merge_lane(1);
    total.merge_lane(2);
    if (p == 0 && g < live) to[head * stride + g] = mapped >> g & 1 ? (total.log2() + dots[S::kRank]) * kLn2 : minus_infinity();
  }
}

// Stores a lane's scores of `heads` heads; `to` is that of its result 0. pairs: two neighbouring pages can be stored together.
template <class S, class Query>
__device__ __forceinline__ void store_scores(const float (&score)[Query::kValues], float* to, int64_t stride, int heads, int live,
                                             bool pairs) {
#pragma unroll
  for (int i = 0; i < Query::kValues; i += 2) {
    if (Query::head(i) < heads && Query::owner()) {
      float* at = to + (Query::head(i) - Query::head(0)) * stride;
      if constexpr (Query::kValues == 1) {
        if (Query::page(i) < live) at[0] = score[i];
      } else if (pairs && Query::page(i + 1) < live) {
        *reinterpret_cast<float2*>(at) = make_float2(score[i], score[i + 1]);
      } else {
        if (Query::page(i) < live) at[0] = score[i];
        if (Query::page(i + 1) < live) at[1] = score[i + 1];
      }
    }
  }
}

// Writes a run of up to 32 pages from its slot, a line a query head. `to` is the first head's first page.
template <class S>
__device__ __forceinline__ void write_run(const float* slot, float* to, int64_t stride, int heads, int pages, bool by16) {
  __syncwarp();
#pragma unroll
  for (int i = threadIdx.x % 32; i < S::kPassHeads * 8; i += 32) {
    const int head = i / 8, page = i % 8 * 4;
    if (S::kPasses > 1 && head >= heads) break;
    const float* from = slot + head * S::kRowFloats + page;
    float* at = to + head * stride + page;
    if (by16 && page + 3 < pages) {
      *reinterpret_cast<float4*>(at) = *reinterpret_cast<const float4*>(from);
    } else {
#pragma unroll
      for (int e = 0; e < 4; e++)
        if (page + e < pages) at[e] = from[e];
    }
  }
}

// Barriers of a block beside 0 and that of the consumers, 1.
constexpr int kRingIsMade = 2, kProducersMeet = 3;
template <class S>
constexpr int kRingThreads = 32 * (S::kConsumers + S::kProducers);

// Whether several warps of a block begin with the same query, and make it together.
template <class S, class Query>
constexpr bool kHandsOver = Query::kHandsOver && S::kWarpGroups * S::kSplit > 1;

// A warp that scores tiles, or the half of tiles, of one kv head of each chunk.
template <class S, class Query>
__device__ __forceinline__ void imma_consume(const PageScoreArgs& args, const ImmaRing<S>& ring, typename Query::Exchange* exchange,
                                             ImmaMasses<S, Query>& masses, int warp) {
  using R = typename S::Rec;
  const int lane = threadIdx.x % 32;
  const int unit = warp / S::kSplit % S::kUnits, from = warp % S::kSplit * S::kWarpPages;
  const int own = unit / S::kPasses, pass = unit % S::kPasses;
  const int heads = min(S::kGroup - pass * S::kPassHeads, S::kPassHeads);
  int stage = warp / (S::kSplit * S::kUnits);
  uint32_t parity = 0;
  Query query;
  float* rows = nullptr;       // scores of the pass's first query head
  float* lane_rows = nullptr;  // of this lane's result 0, of the request's first page
  int loaded_request = -1, loaded_head = -1;
  auto take = [&](int request, int kv_head) {
    rows = args.scores + request * args.score_batch_stride +
           (static_cast<int64_t>(kv_head) * S::kGroup + pass * S::kPassHeads) * args.score_head_stride;
    lane_rows = rows + Query::head(0) * args.score_head_stride + Query::page(0) + from;
    loaded_request = request, loaded_head = kv_head;
  };
  auto load = [&](int request, int kv_head) {
    query.load(args, request, kv_head, pass);
    take(request, kv_head);
  };
  // The first query comes before anything has landed. All warps of a block begin with one request and chunk.
  int first_request = 0, first_chunk = 0;
  bool any = true;
  if (args.cache.batch != 1) {
    using Tiles = typename ImmaDealer<S>::Tiles;
    Tiles tiles(args.cache, (args.cache.kv_heads + S::kHeads - 1) / S::kHeads, Tiles::first_length(args.cache));
    int first, pages;
    any = tiles.next(first_request, first_chunk, first, pages);
  }
  const int first_head = first_chunk * S::kHeads + own;
  const bool begins = any && first_head < args.cache.kv_heads;
  if constexpr (kHandsOver<S, Query>) {
    constexpr int kTurns = S::kWarpGroups * S::kSplit;
    if (begins)
      Query::prepare(args, first_request, first_head, pass, exchange[unit], warp / (S::kSplit * S::kUnits) * S::kSplit + warp % S::kSplit,
                     kTurns);
    ptx::named_barrier<1, 32 * S::kConsumers>();
    if (begins) query.fetch(args, exchange[unit]), take(first_request, first_head);
  } else {
    if (begins) load(first_request, first_head);
  }
  ptx::named_barrier<kRingIsMade, kRingThreads<S>>();
  // Addresses that the compiler would otherwise make anew for each tile, from a special register that takes its time.
  const uint32_t full = kept_address(ring.full), empty = kept_address(ring.empty), entries = kept_address(ring.entries);
  const uint32_t own_records = kept_address(ring.records) + own * R::kBytes + from * S::kDistance;
  while (true) {
    mbarrier_wait(full + 8 * stage, parity);
    const ImmaTile t = load_tile(entries + 16 * stage);
    if (t.request < 0) break;
    const int kv_head = t.chunk * S::kHeads + own;
    const bool mine = kv_head < args.cache.kv_heads;
    if (mine) {
      if (t.request != loaded_request || kv_head != loaded_head) load(t.request, kv_head);
      const uint32_t mapped = (t.pages & 0xffu) >> from;
      const int live = min(static_cast<int>(t.pages >> 8 & 15u) - from, S::kWarpPages);  // none where it is not positive
      float* to = rows + t.first + from;
      int64_t stride = args.score_head_stride;
      bool pairs = true;
      if constexpr (S::kRun > 1) {
        to = ring.out + ((t.pages >> 18) * S::kUnits + unit) * S::kSlotFloats + t.first % (S::kRun * kImmaTile) + from;
        stride = S::kRowFloats;
      } else {
        pairs = (reinterpret_cast<uint64_t>(rows) | stride * 4) % 8 == 0;
      }
      float score[Query::kValues];
      bool near = true;
      const uint8_t* records = static_cast<const uint8_t*>(__cvta_shared_to_generic(own_records + stage * S::kStageBytes));
      if ((t.pages & 0xffu) != 0) {
        float sum[Query::kValues], centroid[Query::kValues];
        query.tile(SharedBytes{records}, sum, centroid);
#pragma unroll
        for (int i = 0; i < Query::kValues; i++) {
          near = near && sum[i] > 1e-30f && sum[i] < 1e38f;
          score[i] = fmaf(log2_approx(sum[i]) + centroid[i], kLn2, Query::kLoss);
        }
      }
#pragma unroll
      for (int i = 0; i < Query::kValues; i++)
        if ((mapped >> Query::page(i) & 1) == 0) score[i] = minus_infinity();
      if (__all_sync(0xffffffffu, near)) {
        float* at = S::kRun == 1 ? lane_rows + t.first : to + Query::head(0) * stride + Query::page(0);
        store_scores<S, Query>(score, at, stride, heads, live, pairs);
        masses.add(score, mapped);
      } else {
        score_by_lanes<S>(args, records, t.request, kv_head, pass, to, stride, mapped, live);
        masses.spoil();
      }
    }
    if constexpr (S::kRun > 1) {
      const int pages = static_cast<int>(t.pages >> 12 & 63u), slot = static_cast<int>(t.pages >> 18);
      const int of_run = t.first % (S::kRun * kImmaTile);
      bool last = of_run + kImmaTile >= pages;
      if constexpr (S::kShared) {
        uint32_t before = 0;
        __syncwarp();
        if (lane == 0) {
          __threadfence_block();
          before = atomicAdd(ring.arrived + slot * S::kUnits + unit, 1u);
          __threadfence_block();
        }
        last = static_cast<int>(__shfl_sync(0xffffffffu, before, 0)) == (pages + kImmaTile - 1) / kImmaTile * S::kSplit - 1;
      }
      if (last && mine)
        write_run<S>(ring.out + (slot * S::kUnits + unit) * S::kSlotFloats, rows + t.first - of_run, args.score_head_stride, heads, pages,
                     (reinterpret_cast<uint64_t>(rows) | args.score_head_stride * 4) % 16 == 0);
      if (S::kShared && last) {
        __syncwarp();
        if (lane == 0) {
          ring.arrived[slot * S::kUnits + unit] = 0;
          mbarrier_arrive(ring.written + slot);
        }
      }
    }
    __syncwarp();
    if (lane == 0) mbarrier_arrive(empty + 8 * stage);
    stage += S::kWarpGroups;
    if (stage >= S::kStages) stage -= S::kStages, parity ^= 1;
  }
}

// Asks L2 for the queries of several requests, each block for a part: a block that comes to its next request does not wait for memory.
template <class G>
__device__ __forceinline__ void prefetch_queries(const PageScoreArgs& args) {
  constexpr uint32_t kLines = (G::kHeadDim * 2 + 127) / 128;
  const uint32_t heads = static_cast<uint32_t>(args.cache.kv_heads) * G::kGroup, lines = args.cache.batch * heads * kLines;
  for (uint32_t i = blockIdx.x * 32 + threadIdx.x % 32; i < lines; i += gridDim.x * 32) {
    const uint32_t row = i / kLines;
    prefetch_l2(static_cast<const typename G::Element*>(args.q) + row / heads * args.q_batch_stride + row % heads * args.q_head_stride +
                i % kLines * 64);
  }
}

// The warp that sums the pages that are still filling, from their keys: (request, kv head) pairs dealt out to the blocks.
template <class G>
__device__ __forceinline__ void imma_tails(const PageScoreArgs& args, bool leaves) {
  const KvCache& cache = args.cache;
  if (cache.batch > 1) prefetch_queries<G>(args);
  if (leaves) write_other_masses<G>(args);
  const uint32_t pairs = static_cast<uint32_t>(cache.batch) * cache.kv_heads;
  for (uint32_t pair = blockIdx.x; pair < pairs; pair += gridDim.x) {
    const int request = static_cast<int>(pair / cache.kv_heads), kv_head = static_cast<int>(pair % cache.kv_heads);
    const int length = __ldg(cache.seq_lens + request);
    const int page = length > 0 ? length / G::kPage : 0, tokens = length > 0 ? length % G::kPage : 0;
    const bool filling = tokens > 0 && page < G::Rec::Group::of_table(cache.max_pages);
    if (filling)
#pragma unroll 1
      for (int pass = 0; pass < G::kPasses; pass++) score_tail<G>(args, request, kv_head, pass, page, tokens);
    if (leaves) write_tail_mass<G>(args, kv_head, filling ? page : -1);
  }
}

// A block. G is the ScoreShape of the pages that are still filling, Query what consumers do with a tile.
template <class S, class G, class Query>
__device__ __forceinline__ void imma_run(const PageScoreArgs& args) {
  constexpr int kCounters = S::kShared ? S::kSlots * S::kUnits : 1, kWritten = S::kShared ? S::kSlots : 1;
  extern __shared__ __align__(128) uint8_t records[];
  __shared__ ImmaTile entries[S::kStages];
  __shared__ ImmaVector vectors[S::kProducers];
  __shared__ uint32_t arrived[kCounters];
  __shared__ __align__(8) uint64_t full[S::kStages], empty[S::kStages], written[kWritten];
  const ImmaRing<S> ring{records, reinterpret_cast<float*>(records + S::kStages * S::kStageBytes), entries, arrived, full, empty, written};
  __shared__ float2 parts[S::kConsumers == S::kUnits ? 1 : S::kConsumers][S::kPassHeads];
  __shared__ typename Query::Exchange exchange[kHandsOver<S, Query> ? S::kUnits : 1];
  ImmaDealer<S> dealer(args.cache, threadIdx.x >= 32 * S::kConsumers && threadIdx.x < 32 * (S::kConsumers + S::kProducers));
  const bool leaves = leaves_masses<S>(args);
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  if (warp >= S::kConsumers && warp < S::kConsumers + S::kProducers) {
    const int producer = warp - S::kConsumers;
    if (producer == 0) {
      if (threadIdx.x % 32 == 0) {
        for (int i = 0; i < S::kStages; i++) {
          mbarrier_init(full + i, 1);
          mbarrier_init(empty + i, S::kUnits * S::kSplit);
        }
        if (S::kShared)
          for (int i = 0; i < kWritten; i++) mbarrier_init(written + i, S::kUnits);
        mbarrier_init_fence();
      }
      if (S::kShared)
        for (int i = threadIdx.x % 32; i < kCounters; i += 32) arrived[i] = 0;
      __syncwarp();
    }
    // The first copies wait for nobody; consumers meet here before they wait for them.
    if (S::kProducers > 1) ptx::named_barrier<kProducersMeet, 32 * S::kProducers>();
    asm volatile("bar.arrive %0, %1;" ::"n"(kRingIsMade), "n"(kRingThreads<S>) : "memory");
    imma_produce<S>(args, ring, dealer, vectors[producer], producer);
  } else if (warp < S::kConsumers) {
    ImmaMasses<S, Query> masses;
    imma_consume<S, Query>(args, ring, exchange, masses, warp);
    if (leaves) write_masses<S>(args, masses, parts, warp);
  } else {
    if (!leaves && blockIdx.x == 0) reduce::leave_no_masses(args.masses, args.cache.kv_heads * S::kGroup, threadIdx.x % 32, 32);
    imma_tails<G>(args, leaves);
  }
}

// Grid: x blocks of CONSUMERS + PRODUCERS + 1 warps, any number. Dynamic shared memory: STAGES * ImmaShape::kStageBytes + 4 * kOutFloats.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int HEADS, int CONSUMERS, int STAGES, int RUN,
          int SPLIT, int TOGETHER, bool ONES, bool PAD, bool HINT, int PRODUCERS, class FORM = PlainForm>
__device__ __forceinline__ void page_score_imma(const PageScoreArgs& args) {
  using S = ImmaShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, HEADS, CONSUMERS, STAGES, RUN, SPLIT, TOGETHER, ONES, PAD, HINT,
                      PRODUCERS, FORM>;
  static_assert(FORM::kPlain, "codes and scales are the plain record's");
  imma_run<S, ScoreShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, FORM>, typename ImmaArrangement<GROUP <= 4, S>::Query>(args);
}

}  // namespace kvloom
