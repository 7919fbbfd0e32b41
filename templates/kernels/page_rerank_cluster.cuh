// page_rerank as a short chain of dependent steps: a cluster of blocks serves one list. Its warps share out the candidates by number and
// score them from their keys, while all of its threads sum the pages that are no candidates; both are stored into the first block's shared
// memory by st.async, and the first block, which alone waits for them, combines, ranks every candidate by comparing it with all others,
// and writes the list. No counter, no workspace, no cluster barrier on the way.
//
// Every sum has a fixed order. kMost is the most candidates a list can have.
#pragma once

#include "kernels/page_rerank.cuh"
#include "kvloom/ptx/cluster_async.cuh"
#include "kvloom/ptx/dependent_launch.cuh"

namespace kvloom {

namespace rerank {

// How a block's warps share the sums of the pages that are no candidates: a warp has a head, several warps share one, or a warp several.
template <int HEADS, int kNumWarps>
struct Others {
  static constexpr int kParts = kNumWarps >= HEADS ? kNumWarps / HEADS : 1;  // warps of a head
};

// exp(s - m) with m >= s, for sums: without the digits that exp_difference adds to far scores.
__device__ __forceinline__ float exp_below(float s, float m) {
  const float d = s - m;
  const float e = d >= -104.0f ? exp2_approx(d * kLog2E) : 0.0f;  // 0 for NaN
  return s == m ? 1.0f : e;
}

// What the first block receives, and its scratch.
template <int HEADS, int kNumWarps, int kCluster, int kMost>
struct Gathered {
  float exact[HEADS][kMost];
  float2 others[kCluster][HEADS * Others<HEADS, kNumWarps>::kParts];  // peak, sum
  alignas(16) uint32_t keys[kMost];
  float2 heads[HEADS];  // peak, 1 / mass
  int ranks[kMost];
  int counts[kNumWarps];
};

// The unit of each head: over the candidates' exact scores and what the blocks measured of the others.
template <int HEADS, Combine COMBINE, int kNumWarps, int kCluster, int kMost>
__device__ __forceinline__ void unite(Gathered<HEADS, kNumWarps, kCluster, kMost>& sm, int count) {
  constexpr int kParts = Others<HEADS, kNumWarps>::kParts;
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < HEADS; h += kNumWarps) {
    Mass m{-reduce::kInfinity, 0.0f};
    for (int i = lane; i < count; i += 32) {
      const float s = sm.exact[h][i];
      if (COMBINE != Combine::kGroupMass || s < reduce::kInfinity) m.peak = fmaxf(m.peak, s);
    }
    if (m.peak > -reduce::kInfinity)
      for (int i = lane; i < count; i += 32) m.sum += reduce::exp_difference(sm.exact[h][i], m.peak);
    if constexpr (reduce::is_share(COMBINE)) {
      for (int i = lane; i < kCluster * kParts; i += 32) {
        const float2 other = sm.others[i / kParts][h * kParts + i % kParts];
        add_mass(m, Mass{other.x, other.y});
      }
    }
    m = reduce::warp_merge<32>(m);
    if (lane == 0) sm.heads[h] = make_float2(m.peak, COMBINE == Combine::kShareAverage ? 1.0f / m.sum : 1.0f);
  }
}

// Peak and sum of the estimates of a head's pages begin + lane, begin + lane + step, ... that no bit of marks excludes.
__device__ __forceinline__ Mass measure_row(const float* row, int begin, int end, int step, int window, const uint32_t* marks) {
  constexpr int kAtOnce = 8;
  Mass m{-reduce::kInfinity, 0.0f};
#pragma unroll 1
  for (int base = begin; base < end; base += kAtOnce * step) {
    float v[kAtOnce], peak = m.peak;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int page = base + i * step + threadIdx.x % 32;
      v[i] = page < end ? row[page] : -reduce::kInfinity;
    }
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) {
      const int at = base + i * step + static_cast<int>(threadIdx.x % 32) - window;
      if (at < end - window && (marks[at / 32] >> at % 32 & 1)) v[i] = -reduce::kInfinity;
      peak = fmaxf(peak, v[i]);  // leaves NaN out
    }
    if (!(peak > -reduce::kInfinity)) continue;
    float sum = m.sum > 0.0f ? m.sum * exp_below(m.peak, peak) : 0.0f;
#pragma unroll
    for (int i = 0; i < kAtOnce; i++) sum += exp_below(v[i], peak);
    m = Mass{peak, sum};
  }
  return reduce::warp_merge<32>(m);
}

}  // namespace rerank

// Grid: x the cluster, y lists, z requests. HEADS is the number of query heads of one list: the group, or 1 for per_head.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, reduce::Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster,
          int kMost>
__device__ __forceinline__ void page_rerank_cluster(const PageRerankArgs& args) {
  using namespace rerank;
  using S = RowShape<T, HEAD_DIM, PAGE, HEADS, SOFTCAP>;
  using Step = ExactStep<S>;
  constexpr int kThreads = 32 * kNumWarps, kSteps = PAGE / 16, kParts = Others<HEADS, kNumWarps>::kParts;
  constexpr bool kShare = reduce::is_share(COMBINE);
  static_assert(PAGE >= 16, "a step is tokens of one page");
  static_assert(kMost <= 32 * kNumWarps * kCluster, "a lane of a warp knows each of its candidates");
  __shared__ Gathered<HEADS, kNumWarps, kCluster, kMost> sm;
  __shared__ uint32_t marks[kWindow / 32];
  __shared__ __align__(8) uint64_t landed;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, lists = gridDim.y;
  const int rank = ptx::cluster_rank<kCluster>();
  List l;
  l.request = blockIdx.z, l.list = blockIdx.y, l.kv_head = l.list * HEADS / GROUP;
  if (tid == 0) {
    mbarrier_init(&landed, 1);
    mbarrier_init_fence();
  }
  ptx::cluster_arrive<kCluster>();  // awaited before the first store into the first block
  // The length, the table and the query stand since before the layer's first launch.
  const int length = max(args.cache.seq_lens[l.request], 0);
  PageScoreArgs score;
  score.cache = args.cache;
  score.q = args.q;
  score.q_batch_stride = args.q_batch_stride, score.q_head_stride = args.q_head_stride;
  score.softmax_scale = args.softmax_scale, score.logit_softcap = args.logit_softcap;
  RowQuery<HEAD_DIM, S::kTiles> query;
  load_rows<S>(score, l.request, l.list, 0, query);
  l.pages = min(static_cast<int>((static_cast<int64_t>(length) + PAGE - 1) / PAGE), args.cache.max_pages);
  l.complete = min(length / PAGE, args.cache.max_pages);
  for (int i = tid; i < kWindow / 32; i += kThreads) marks[i] = 0;
  ptx::wait_for_dependencies();

  const int64_t index = static_cast<int64_t>(l.request) * lists + l.list;
  l.count = min(args.candidate_counts[index], min(args.candidate_slots, kMost));
  l.candidates = args.candidates + l.request * args.candidates_batch_stride + l.list * args.candidates_list_stride;
  l.scores = args.scores + l.request * args.score_batch_stride + static_cast<int64_t>(l.list) * HEADS * args.score_head_stride;
  l.head_stride = args.score_head_stride;
  int32_t* const out = args.pages + l.request * args.pages_batch_stride + l.list * args.pages_list_stride;  // [slots]
  const int chosen = min(args.slots, l.count);
  if (rank == 0) {
    if (tid == 0) args.counts[index] = chosen;
    for (int i = chosen + tid; i < args.slots; i += kThreads) out[i] = -1;
  }
  if (l.count <= args.slots) {  // nothing to choose
    if (rank == 0)
      for (int i = tid; i < l.count; i += kThreads) out[i] = l.candidates[i];
    ptx::cluster_wait<kCluster>();
    return;
  }
  if (rank == 0 && tid == 0)
    mbarrier_expect(&landed, l.count * HEADS * 4 + (kShare ? kCluster * HEADS * kParts * 8 : 0));

  // A warp's candidates follow each other; lane i knows the i-th.
  const int share = (l.count + kCluster * kNumWarps - 1) / (kCluster * kNumWarps);
  const int first = (rank * kNumWarps + warp) * share, own = max(min(l.count - first, share), 0);
  const int page = lane < own ? l.candidates[first + lane] : 0;
  const int part = (l.pages + kCluster - 1) / kCluster, begin = min(rank * part, l.pages), end = min(begin + part, l.pages);
  if constexpr (kShare) {
    __syncthreads();
    for (int i = tid; i < l.count; i += kThreads) {
      const int at = l.candidates[i] - begin;
      if (at >= 0 && at < min(kWindow, end - begin)) atomicOr(&marks[at / 32], 1u << at % 32);
    }
  }
  const int block = lane < own && page < l.complete ? __ldg(args.cache.block_table + l.request * args.cache.table_stride + page) : -1;
  const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0);
  const uint32_t landed_there = ptx::map_to_rank(shared_address(&landed), 0);
  Step step[2];
  step[0].load(score, block, l.kv_head, 0);
  if (own * kSteps > 1) step[1].load(score, block, l.kv_head, 1);
  ptx::cluster_wait<kCluster>();

  if constexpr (kShare) {
    __syncthreads();
    Mass mine[(HEADS + kNumWarps - 1) / kNumWarps];
#pragma unroll
    for (int i = 0; i < (HEADS + kNumWarps - 1) / kNumWarps; i++) {
      const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
      mine[i] = Mass{-reduce::kInfinity, 0.0f};
      if (h < HEADS) mine[i] = measure_row(l.scores + h * l.head_stride, begin + 32 * of, min(end, begin + kWindow), 32 * kParts, begin, marks);
    }
#pragma unroll 1
    for (int window = begin + kWindow; window < end; window += kWindow) {  // rows of more than kWindow pages a block
      const int upto = min(window + kWindow, end);
      __syncthreads();
      for (int i = tid; i < kWindow / 32; i += kThreads) marks[i] = 0;
      __syncthreads();
      for (int i = tid; i < l.count; i += kThreads) {
        const int at = l.candidates[i] - window;
        if (at >= 0 && at < upto - window) atomicOr(&marks[at / 32], 1u << at % 32);
      }
      __syncthreads();
#pragma unroll
      for (int i = 0; i < (HEADS + kNumWarps - 1) / kNumWarps; i++) {
        const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
        if (h < HEADS) add_mass(mine[i], measure_row(l.scores + h * l.head_stride, window + 32 * of, upto, 32 * kParts, window, marks));
      }
    }
#pragma unroll
    for (int i = 0; i < (HEADS + kNumWarps - 1) / kNumWarps; i++) {
      const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
      if (h < HEADS && lane == 0)
        ptx::store_async(ptx::map_to_rank(shared_address(&sm.others[rank][h * kParts + of]), 0),
                         make_uint2(__float_as_uint(mine[i].peak), __float_as_uint(mine[i].sum)), landed_there);
    }
  }
#pragma unroll 1
  for (int pass = 0; pass < S::kPasses; pass++) {
    if (pass > 0) {
      load_rows<S>(score, l.request, l.list, pass, query);
      step[0].load(score, block, l.kv_head, 0);
      if (own * kSteps > 1) step[1].load(score, block, l.kv_head, 1);
    }
    LogSum2 total[S::kTiles][2];
    float kept[S::kTiles][2][2];
#pragma unroll 1
    for (int i = 0; i < own; i++) {
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
        float x[S::kTiles][2][2];
        step_logits<S>(score, step[0], query, x);
        step[0] = step[1];
        if (i * kSteps + s + 2 < own * kSteps) step[1].load(score, block, l.kv_head, i * kSteps + s + 2);
        sum_step<S>(x, s, total, kept);
      }
      const int of = __shfl_sync(0xffffffffu, page, i);
      if (lane < 4) {
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int head = pass * S::kUnitHeads + tile * 8 + 2 * lane + h;
            if (head < HEADS) {
              // A page that is still filling, or that has no block, keeps what page_score wrote, which is exact.
              const float value = mapped >> i & 1 ? kept[tile][0][h] : l.scores[head * l.head_stride + of];
              ptx::store_async(ptx::map_to_rank(shared_address(&sm.exact[head][first + i]), 0), __float_as_uint(value), landed_there);
            }
          }
      }
    }
  }
  if (rank != 0) return;

  const int sinks = min(args.sink_pages, l.pages), recent = max(l.pages - args.recent_pages, sinks);
  const int low = lower_bound(l.candidates, l.count, sinks), high = lower_bound(l.candidates, l.count, recent);  // candidates that compete
  const int need = args.slots - (l.count - (high - low));
  for (int i = tid; i < kMost; i += kThreads) sm.ranks[i] = 0;
  ptx::wait_cluster_barrier(shared_address(&landed), 0);
  unite<HEADS, COMBINE>(sm, l.count);
  __syncthreads();
  float top = 0.0f;
  if constexpr (COMBINE == Combine::kGroupMass) top = select::largest_peak(sm.heads);
  const select::Row<HEADS> row{&sm.exact[0][0], kMost, nullptr, 0};
  for (int i = tid; i < kMost; i += kThreads) sm.keys[i] = i < l.count ? select::key_of<HEADS, COMBINE>(row, sm.heads, top, i, 0) : 0u;
  __syncthreads();
  // Ranks among those that compete: how many are better, ties to the lower page. Several threads share a candidate's comparisons.
  constexpr int kSharers = kThreads / kMost > 1 ? kThreads / kMost : 1;
  for (int i = tid % (kThreads / kSharers); i < l.count; i += kThreads / kSharers) {
    const uint32_t key = sm.keys[i];
    int better = 0;
    for (int j = tid / (kThreads / kSharers) * 4; j < high; j += 4 * kSharers) {
      const uint4 k = *reinterpret_cast<const uint4*>(&sm.keys[j]);
      better += (j >= low && j < high && (k.x > key || (k.x == key && j < i)));
      better += (j + 1 >= low && j + 1 < high && (k.y > key || (k.y == key && j + 1 < i)));
      better += (j + 2 >= low && j + 2 < high && (k.z > key || (k.z == key && j + 2 < i)));
      better += (j + 3 >= low && j + 3 < high && (k.w > key || (k.w == key && j + 3 < i)));
    }
    if (kSharers == 1)
      sm.ranks[i] = better;
    else
      atomicAdd(&sm.ranks[i], better);
  }
  __syncthreads();
  int before = 0;
#pragma unroll 1
  for (int base = 0; base < l.count; base += kThreads) {
    const int i = base + tid;
    const bool taken = i < l.count && (i < low || i >= high || sm.ranks[i] < need);
    const uint32_t all = __ballot_sync(0xffffffffu, taken);
    if (lane == 0) sm.counts[warp] = __popc(all);
    __syncthreads();
    int position = before + __popc(all & ((1u << lane) - 1));
    for (int w = 0; w < kNumWarps; w++) {
      if (w < warp) position += sm.counts[w];
      before += sm.counts[w];
    }
    if (taken && position < args.slots) out[position] = l.candidates[i];
    __syncthreads();
  }
}

}  // namespace kvloom
