// page_rerank and page_attend in one launch: a cluster of blocks serves one list. Its warps share out the candidates and keep the logits
// of their tokens in registers; exact scores go to every block of the cluster, each of which combines them and ranks its own candidates
// against all. So a warp knows which of its pages are chosen without a list, and reads their values alone: keys are read once, and not
// at all again. Blocks merge as those of page_attend_list do; the first writes the list, when the output is on its way.
//
// Where page_score has left masses, what lies outside the candidates is a row's mass less that of their estimates: the row is not read.
//
// Every sum has a fixed order. kMost is the most candidates a list can have. kAhead: values of all candidates are asked for beside their
// keys, twice the bytes of those chosen, for they then cost no latency of their own.
#pragma once

#include "kernels/page_attend_list.cuh"
#include "kernels/page_rerank_cluster.cuh"
#include "kernels/page_select_masses.cuh"

namespace kvloom {

namespace rerank {

// 16 rows of values of a page to shared memory, by one warp; rows from `tokens` on become zeros.
template <int HEAD_DIM, int kRowBytes, typename T>
__device__ __forceinline__ void copy_values(uint32_t to, const T* from, int64_t token_stride, int tokens) {
  constexpr int kPieces = HEAD_DIM / 8, kCopies = attend::kTile * kPieces;
#pragma unroll
  for (int turn = 0; turn < (kCopies + 31) / 32; turn++) {
    const int i = turn * 32 + threadIdx.x % 32, row = i / kPieces, at = i % kPieces;
    if (i < kCopies) ptx::copy16_or_zero(to + row * kRowBytes + at * 16, from + row * token_stride + at * 8, row < tokens);
  }
}

// Exact score of a page from the base-2 logits of its tokens, -inf where there is none: the same in all lanes of one column.
template <int kSteps, int kTiles>
__device__ __forceinline__ float page_lse(const float (&x)[kSteps][kTiles][2][2], int tile, int h) {
  float top = minus_infinity(), sum = 0.0f;
#pragma unroll
  for (int s = 0; s < kSteps; s++) top = fmaxf(top, fmaxf(x[s][tile][0][h], x[s][tile][1][h]));
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(reduce::kFullWarp, top, mask));
#pragma unroll
  for (int s = 0; s < kSteps; s++) sum += attend::weight(x[s][tile][0][h], top) + attend::weight(x[s][tile][1][h], top);
#pragma unroll
  for (int mask = 4; mask < 32; mask *= 2) sum += __shfl_xor_sync(reduce::kFullWarp, sum, mask);
  return (top + log2_approx(sum)) * kLn2;
}

// Sends neighbouring values to the block of that rank.
template <int N>
__device__ __forceinline__ void send(const float* to, const float (&v)[N], uint32_t barrier, int rank) {
  const uint32_t at = ptx::map_to_rank(ptx::shared_address(to), rank), there = ptx::map_to_rank(barrier, rank);
  static_assert(N == 1 || N == 2 || N % 4 == 0, "whole stores");
  if constexpr (N == 1) {
    ptx::store_async(at, __float_as_uint(v[0]), there);
  } else if constexpr (N == 2) {
    ptx::store_async(at, make_uint2(__float_as_uint(v[0]), __float_as_uint(v[1])), there);
  } else {
#pragma unroll
    for (int i = 0; i < N; i += 4)
      ptx::store_async(at + 4 * i, make_uint4(__float_as_uint(v[i]), __float_as_uint(v[i + 1]), __float_as_uint(v[i + 2]), __float_as_uint(v[i + 3])), there);
  }
}

// How many of the competing candidates low to high - 1 rank above candidate i, ties to the lower page; all lanes of a warp, the same in each.
template <int kHeld>
__device__ __forceinline__ int rank_above(const uint32_t* keys, int i, int low, int high) {
  static_assert(kHeld % 4 == 0, "four keys a load");
  const uint32_t key = keys[i];
  int better = 0;
#pragma unroll
  for (int from = 0; from < kHeld; from += 128) {
    const int j = from + threadIdx.x % 32 * 4;
    if (j >= kHeld) break;
    const uint4 k = *reinterpret_cast<const uint4*>(&keys[j]);
    better += j >= low && j < high && (k.x > key || (k.x == key && j < i));
    better += j + 1 >= low && j + 1 < high && (k.y > key || (k.y == key && j + 1 < i));
    better += j + 2 >= low && j + 2 < high && (k.z > key || (k.z == key && j + 2 < i));
    better += j + 3 >= low && j + 3 < high && (k.w > key || (k.w == key && j + 3 < i));
  }
  return __reduce_add_sync(reduce::kFullWarp, better);
}

// Of one head, in base 2: the mass of all pages and that of the candidates' estimates, relative to 2^shift.
struct RowMass {
  float shift, all, candidates;
};

// Row mass from what page_score left, and a part of the candidates' mass: those that warp `of` of `step` looks at. By one warp.
__device__ __forceinline__ RowMass row_mass(const float2* masses, const List& l, const float* row, int of, int step) {
  select::RowParts parts;
  parts.load(masses, true);
  RowMass m{-reduce::kInfinity, 0.0f, 0.0f};
#pragma unroll
  for (int i = 0; i < select::RowParts::kLoads; i++)
    if (parts.part[i].y != 0.0f) m.shift = fmaxf(m.shift, parts.part[i].x);
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) m.shift = fmaxf(m.shift, __shfl_xor_sync(reduce::kFullWarp, m.shift, mask));
#pragma unroll
  for (int i = 0; i < select::RowParts::kLoads; i++)
    if (parts.part[i].y != 0.0f) m.all = fmaf(parts.part[i].y, exp2_approx(parts.part[i].x - m.shift), m.all);
#pragma unroll 4
  for (int i = 32 * of + threadIdx.x % 32; i < l.count; i += 32 * step) m.candidates += exp2_approx(fmaf(row[l.candidates[i]], kLog2E, -m.shift));
#pragma unroll
  for (int mask = 16; mask > 0; mask /= 2) {
    m.all += __shfl_xor_sync(reduce::kFullWarp, m.all, mask);
    m.candidates += __shfl_xor_sync(reduce::kFullWarp, m.candidates, mask);
  }
  return m;
}

// The unit of each head over the candidates' exact scores and what the row holds besides their estimates. False where a head's row has no
// masses, or where so much of it is estimates far above their exact scores that the difference tells too little.
template <int HEADS, int kNumWarps, int kCluster, int kMost>
__device__ __forceinline__ bool unite_with_rows(Gathered<HEADS, kNumWarps, kCluster, kMost>& sm, const RowMass* rows, int count) {
  constexpr int kParts = Others<HEADS, kNumWarps>::kParts;
  const int lane = threadIdx.x % 32;
  bool tells = true;
  for (int h = threadIdx.x / 32; h < HEADS; h += kNumWarps) {
    Mass m{-reduce::kInfinity, 0.0f};
    for (int i = lane; i < count; i += 32) m.peak = fmaxf(m.peak, sm.exact[h][i]);
    if (m.peak > -reduce::kInfinity)
      for (int i = lane; i < count; i += 32) m.sum += reduce::exp_difference(sm.exact[h][i], m.peak);
    m = reduce::warp_merge<32>(m);
    const RowMass row = rows[h * kParts];
    float candidates = 0.0f;
#pragma unroll
    for (int i = 0; i < kParts; i++) candidates += rows[h * kParts + i].candidates;
    const float peak = fmaxf(m.peak, row.shift * kLn2), unit = exp2_approx(fmaf(peak, -kLog2E, row.shift));
    const float sum = (m.sum > 0.0f ? m.sum * reduce::exp_difference(m.peak, peak) : 0.0f) + fmaxf(row.all - candidates, 0.0f) * unit;
    tells = tells && row.all >= 0.5f && row.all <= select::kLargestMass && sum >= row.all * unit / 32.0f && sum < reduce::kInfinity;
    if (lane == 0) sm.heads[h] = make_float2(peak, 1.0f / sum);
  }
  return tells;
}

// A cluster's list from its candidates to the output. kMost, kAhead: see above.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster, int kMost, bool kAhead>
struct Both {
  using S = RowShape<T, HEAD_DIM, PAGE, HEADS, SOFTCAP>;
  using Step = ExactStep<S>;
  using Query = RowQuery<HEAD_DIM, S::kTiles>;
  static constexpr int kThreads = 32 * kNumWarps, kSteps = PAGE / 16, kParts = Others<HEADS, kNumWarps>::kParts;
  static constexpr int kWorkers = kNumWarps * kCluster, kEach = (kMost + kWorkers - 1) / kWorkers, kHeld = kEach * kWorkers;
  static constexpr int kOfWarp = (HEADS + kNumWarps - 1) / kNumWarps;  // heads of a warp
  static constexpr bool kShare = reduce::is_share(COMBINE);
  static constexpr bool kMassed = COMBINE == Combine::kShareAverage;  // a row's mass tells what lies outside the candidates
  static constexpr int kHeadQuads = HEAD_DIM / 4, kAllQuads = HEADS * kHeadQuads;
  using A = attend::Shape<HEAD_DIM, HEADS, kNumWarps, (kEach * kSteps + 1) / 2, S::kTiles, 2>;
  using Received = attend::Parts<HEAD_DIM, HEADS, kCluster>;
  static_assert(PAGE >= 16, "a step is tokens of one page");
  static_assert(S::kPasses == 1, "a warp keeps the logits of all heads");
  static_assert(kEach <= 8 && (kEach & (kEach - 1)) == 0, "a lane of a warp knows each of its candidates; whole stores");
  static_assert(HEAD_DIM / 4 >= kCluster, "one thread of a head for each block that receives its peak and sum");

  struct Memory {
    Gathered<HEADS, kNumWarps, kCluster, kHeld> gathered;
    Received received;
    float2 stats[kNumWarps][HEADS];   // peak and sum of each warp
    RowMass rows[kMassed ? HEADS * kParts : 1];
    uint32_t marks[kWindow / 32];
    uint32_t words[kWorkers];         // a bit for each candidate of a worker that is chosen
    alignas(8) uint64_t landed, merged;
  };

  Memory& memory;
  const PageRerankAttendArgs& given;
  const PageRerankArgs& args;
  const int rank, lane, warp;
  const bool summed;

  __device__ __forceinline__ Both(Memory& memory, const PageRerankAttendArgs& given, int rank)
      : memory(memory), given(given), args(given.rerank), rank(rank), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
        summed(kMassed && given.rerank.masses != nullptr && given.rerank.cache.batch == 1) {}

  // Part of the output that this block finishes.
  __device__ __forceinline__ int own_begin() const { return min(rank * Received::kQuads, kAllQuads); }
  __device__ __forceinline__ int own_end() const { return min(own_begin() + Received::kQuads, kAllQuads); }

  // Neighbouring candidates, which are often chosen together, lie with different blocks. Lane i knows a warp's i-th.
  __device__ __forceinline__ int first() const { return (warp * kCluster + rank) * kEach; }

  // Before the blocks of the cluster meet.
  __device__ __forceinline__ void arm() const {
    if (threadIdx.x == 0) {
      mbarrier_init(&memory.landed, 1);
      mbarrier_init(&memory.merged, 1);
      mbarrier_init_fence();
      mbarrier_expect(&memory.landed, HEADS * kHeld * 4 + (kShare && !summed ? kCluster * HEADS * kParts * 8 : 0));
      mbarrier_expect(&memory.merged, kCluster * (16 * (own_end() - own_begin()) + 8 * HEADS) + (rank == 0 ? 4 * kWorkers : 0));
    }
    if (kShare)
      for (int i = threadIdx.x; i < kWindow / 32; i += kThreads) memory.marks[i] = 0;
  }

  // What l says of the request and the list, and what the step's functions take.
  __device__ __forceinline__ void describe(List& l, int request, int list, int length, PageScoreArgs& score) const {
    l.request = request, l.list = list, l.kv_head = list * HEADS / GROUP;
    l.pages = min(static_cast<int>((static_cast<int64_t>(length) + PAGE - 1) / PAGE), args.cache.max_pages);
    l.scores = args.scores + request * args.score_batch_stride + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
    l.head_stride = args.score_head_stride;
    score.cache = args.cache;
    score.q = args.q;
    score.q_batch_stride = args.q_batch_stride, score.q_head_stride = args.q_head_stride;
    score.softmax_scale = args.softmax_scale, score.logit_softcap = args.logit_softcap;
  }

  // All of it. `page` is this lane's candidate, whatever it is past the list's count. kMet: the blocks of the cluster have met.
  template <bool kMet>
  __device__ __forceinline__ void run(uint8_t* rings, const List& l, int lists, int length, const PageScoreArgs& score, const Query& query, int page) const {
    const KvCache& cache = args.cache;
    const int tid = threadIdx.x, worker = warp * kCluster + rank, first = worker * kEach;
    auto& sm = memory.gathered;
    auto& marks = memory.marks;
    const int64_t index = static_cast<int64_t>(l.request) * lists + l.list;
    const int own = max(min(l.count - first, kEach), 0);
    int block = -1, tokens = 0;
    if (lane < own && page >= 0 && page < l.pages) block = __ldg(cache.block_table + l.request * cache.table_stride + page);
    if (block >= 0) tokens = min(length - page * PAGE, PAGE);
    Step step[2];
    step[0].load(score, block, l.kv_head, 0);
    if (kEach * kSteps > 1 && own * kSteps > 1) step[1].load(score, block, l.kv_head, 1);
    const uint32_t ring = ptx::shared_address(rings) + warp * A::kRingBytes;
    const T* const values = static_cast<const T*>(cache.v) + l.kv_head * cache.v_head_stride;
    const auto copy_page = [&](int i) {
      const int live = __shfl_sync(reduce::kFullWarp, tokens, i);
      const int64_t id = max(__shfl_sync(reduce::kFullWarp, block, i), 0);
#pragma unroll
      for (int s = 0; s < kSteps; s++)
        copy_values<HEAD_DIM, A::kRowBytes>(ring + (i * kSteps + s) * A::kTensorBytes,
                                            values + id * cache.v_block_stride + s * 16 * cache.v_token_stride, cache.v_token_stride, live - 16 * s);
    };
    if constexpr (kAhead) {
#pragma unroll
      for (int i = 0; i < kEach; i++)
        if (i < own) copy_page(i);
      ptx::commit_copies();
    }
    int32_t* const out = args.pages + l.request * args.pages_batch_stride + l.list * args.pages_list_stride;  // [slots]
    const int chosen = min(args.slots, l.count);
    if (rank == 0) {
      if (tid == 0) args.counts[index] = chosen;
      for (int i = chosen + tid; i < args.slots; i += kThreads) out[i] = -1;
    }
    const bool chooses = l.count > args.slots;  // else every candidate is attended
    Mass others[kOfWarp];
    const auto measure = [&](int begin, int end) {
#pragma unroll
      for (int i = 0; i < kOfWarp; i++) others[i] = Mass{-reduce::kInfinity, 0.0f};
#pragma unroll 1
      for (int window = begin; window < end; window += kWindow) {
        const int upto = min(window + kWindow, end);
        if (window > begin) {  // rows of more than kWindow pages a block
          __syncthreads();
          for (int i = tid; i < kWindow / 32; i += kThreads) marks[i] = 0;
        }
        __syncthreads();
        for (int i = tid; i < l.count; i += kThreads) {
          const int at = l.candidates[i] - window;
          if (at >= 0 && at < upto - window) atomicOr(&marks[at / 32], 1u << at % 32);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOfWarp; i++) {
          const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
          if (h < HEADS) add_mass(others[i], measure_row(l.scores + h * l.head_stride, window + 32 * of, upto, 32 * kParts, window, marks));
        }
      }
    };
    if (kMassed && summed) {
      if (chooses) {
#pragma unroll
        for (int i = 0; i < kOfWarp; i++) {
          const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
          if (h >= HEADS) break;
          const RowMass m = row_mass(reinterpret_cast<const float2*>(args.masses) + (static_cast<int64_t>(l.list) * HEADS + h) * reduce::kMassParts, l,
                                     l.scores + h * l.head_stride, of, kParts);
          if (lane == 0) memory.rows[h * kParts + of] = m;
        }
      }
    } else if (kShare && chooses) {
      const int part = (l.pages + kCluster - 1) / kCluster, begin = min(rank * part, l.pages);
      measure(begin, min(begin + part, l.pages));
    }

    float x[kEach][kSteps][S::kTiles][2][2];  // base-2 logits, -inf where there is no token
#pragma unroll
    for (int n = 0; n < kEach * kSteps; n++) {
      const int i = n / kSteps, s = n % kSteps;
      const int g = lane / 4, live = __shfl_sync(reduce::kFullWarp, tokens, i) - 16 * s;
      if (i < own) {
        step_logits<S>(score, step[n % 2], query, x[i][s]);
        if (n + 2 < own * kSteps) step[n % 2].load(score, block, l.kv_head, n + 2);
      }
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int h = 0; h < 2; h++)
            if (i >= own || g + 8 * j >= live) x[i][s][tile][j][h] = minus_infinity();
    }
    if constexpr (!kMet) ptx::cluster_wait<kCluster>();

    uint32_t taken = (1u << own) - 1;
    if (chooses) {
      const uint32_t landed_at = ptx::shared_address(&memory.landed);
      if (kShare && !summed) {
#pragma unroll
        for (int i = 0; i < kOfWarp; i++) {
          const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
          if (h < HEADS && lane < kCluster) send<2>(&sm.others[rank][h * kParts + of].x, {others[i].peak, others[i].sum}, landed_at, lane);
        }
      }
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float exact[kEach];
#pragma unroll
          for (int i = 0; i < kEach; i++) exact[i] = page_lse<kSteps, S::kTiles>(x[i], tile, h);
          const int head = tile * 8 + lane % 4 * 2 + h;
          if (head < HEADS)
#pragma unroll
            for (int to = 0; to < kCluster; to += 8)
              if (to + lane / 4 < kCluster) send<kEach>(&sm.exact[head][first], exact, landed_at, to + lane / 4);
        }
      const int sinks = min(args.sink_pages, l.pages), recent = max(l.pages - args.recent_pages, sinks);
      const int low = lower_bound(l.candidates, l.count, sinks), high = lower_bound(l.candidates, l.count, recent);  // those that compete
      const int need = args.slots - (l.count - (high - low));
      ptx::wait_cluster_barrier(landed_at, 0);
      if (kMassed && summed) {
        __syncthreads();  // the rows' masses are whole
        if (__syncthreads_or(!unite_with_rows(sm, memory.rows, l.count))) {  // rare: every block sums the whole row
          measure(0, l.pages);
          for (int i = tid; i < kCluster * HEADS * kParts; i += kThreads) sm.others[i / (HEADS * kParts)][i % (HEADS * kParts)] = make_float2(-reduce::kInfinity, 0.0f);
          __syncthreads();
#pragma unroll
          for (int i = 0; i < kOfWarp; i++) {
            const int h = kParts > 1 ? warp / kParts : warp + i * kNumWarps, of = kParts > 1 ? warp % kParts : 0;
            if (h < HEADS && lane == 0) sm.others[0][h * kParts + of] = make_float2(others[i].peak, others[i].sum);
          }
          __syncthreads();
          unite<HEADS, COMBINE>(sm, l.count);
        }
      } else {
        unite<HEADS, COMBINE>(sm, l.count);
      }
      __syncthreads();
      float top = 0.0f;
      if constexpr (COMBINE == Combine::kGroupMass) top = select::largest_peak(sm.heads);
      const select::Row<HEADS> row{&sm.exact[0][0], kHeld, nullptr, 0};
      for (int i = tid; i < kHeld; i += kThreads) sm.keys[i] = i < l.count ? select::key_of<HEADS, COMBINE>(row, sm.heads, top, i, 0) : 0u;
      __syncthreads();
      taken = 0;
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int n = first + i;
        if (i < own && (n < low || n >= high || rank_above<kHeld>(sm.keys, n, low, high) < need)) taken |= 1u << i;
      }
    }
    if constexpr (!kAhead) {
#pragma unroll
      for (int i = 0; i < kEach; i++)
        if (taken >> i & 1) copy_page(i);
      ptx::commit_copies();
    }
    const uint32_t merged_at = ptx::shared_address(&memory.merged);
    if (lane == 0) ptx::store_async(ptx::map_to_rank(ptx::shared_address(&memory.words[worker]), 0), taken, ptx::map_to_rank(merged_at, 0));
    attend::State<HEAD_DIM, S::kTiles, T> state;
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++) {
#pragma unroll
      for (int j = 0; j < 2; j++) state.peak[tile][j] = minus_infinity(), state.sum[tile][j] = 0.0f;
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; d++)
#pragma unroll
        for (int j = 0; j < 4; j++) state.o[d][tile][j] = 0.0f;
    }
    ptx::wait_copies<0>();
    __syncwarp();
#pragma unroll
    for (int i = 0; i < kEach; i++) {
      if (!(taken >> i & 1)) continue;
#pragma unroll
      for (int s = 0; s < kSteps; s++) {
        float logits[S::kTiles][4];
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
          for (int j = 0; j < 4; j++) logits[tile][j] = x[i][s][tile][j / 2][j % 2];
        uint32_t p[S::kTiles][2];
        state.template weigh<false, T>(logits, 0xffffu, 0.0f, p);
        attend::Fragments<HEAD_DIM, T>::template each_value<A::kRowBytes>(
            ring + (i * kSteps + s) * A::kTensorBytes, [&](int d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
              for (int tile = 0; tile < S::kTiles; tile++) mma_m16n8k16(state.o[d][tile], a0, a1, a2, a3, p[tile][0], p[tile][1], T());
            });
      }
    }
    __syncwarp();  // the result takes the values' place
    attend::store_state<A>(state, reinterpret_cast<float*>(rings + warp * A::kRingBytes), memory.stats[warp]);
    __syncthreads();

    for (int quad = tid; quad < kAllQuads; quad += kThreads) {
      const int head = quad / kHeadQuads, at = quad % kHeadQuads;
      const attend::MergedQuad m = attend::merge_quad<kNumWarps>(
          [&](int w) { return memory.stats[w][head]; },
          [&](int w) { return *reinterpret_cast<const float4*>(rings + w * A::kRingBytes + (head * A::kOutStride + 4 * at) * 4); });
      const int owner = quad / Received::kQuads;
      send<4>(&memory.received.out[rank][quad % Received::kQuads].x, {m.o.x, m.o.y, m.o.z, m.o.w}, merged_at, owner);
      if (at < kCluster) send<2>(&memory.received.stats[rank][head].x, {m.peak, m.sum}, merged_at, at);
    }
    ptx::wait_cluster_barrier(merged_at, 0);  // by every thread: no block leaves before all that was sent to it has landed
    for (int quad = own_begin() + tid; quad < own_end(); quad += kThreads) {
      const int head = quad / kHeadQuads, at = quad % kHeadQuads;
      const attend::MergedQuad m = attend::merge_quad<kCluster>([&](int r) { return memory.received.stats[r][head]; },
                                                                [&](int r) { return memory.received.out[r][quad - own_begin()]; });
      const float unit = m.sum == 0.0f ? 0.0f : 1.0f / m.sum;
      const int64_t q_head = static_cast<int64_t>(l.list) * HEADS + head;
      T* to = static_cast<T*>(given.out) + l.request * given.out_batch_stride + q_head * given.out_head_stride;
      *reinterpret_cast<uint2*>(to + 4 * at) = make_uint2(pack2<T>(m.o.x * unit, m.o.y * unit), pack2<T>(m.o.z * unit, m.o.w * unit));
      if (at == 0 && given.lse)
        given.lse[static_cast<int64_t>(l.request) * lists * HEADS + q_head] = m.sum == 0.0f ? minus_infinity() : (m.peak + log2f(m.sum)) * kLn2;
    }
    if (rank == 0) {
      int before = 0;
#pragma unroll 1
      for (int base = 0; base < l.count; base += kThreads) {
        const int i = base + tid;
        const bool mine = i < l.count && (memory.words[i / kEach] >> i % kEach & 1);
        const uint32_t all = __ballot_sync(reduce::kFullWarp, mine);
        if (lane == 0) sm.counts[warp] = __popc(all);
        __syncthreads();
        int position = before + __popc(all & ((1u << lane) - 1));
        for (int w = 0; w < kNumWarps; w++) {
          if (w < warp) position += sm.counts[w];
          before += sm.counts[w];
        }
        if (mine && position < args.slots) out[position] = l.candidates[i];
        __syncthreads();
      }
    }
    __syncthreads();  // nobody looks at the barriers any more
    if (tid == 0) mbarrier_invalidate(&memory.landed), mbarrier_invalidate(&memory.merged);  // their memory is the next block's
  }
};

}  // namespace rerank

// Grid: x the cluster, y lists, z requests. HEADS is the number of query heads of one list: the group, or 1 for per_head. Dynamic shared
// memory: attend::Shape's kRingBytes a warp.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, reduce::Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster,
          int kMost, bool kAhead>
__device__ __forceinline__ void page_rerank_attend(const PageRerankAttendArgs& given) {
  using namespace rerank;
  using B = Both<T, HEAD_DIM, PAGE, GROUP, HEADS, COMBINE, SOFTCAP, kNumWarps, kCluster, kMost, kAhead>;
  extern __shared__ __align__(128) uint8_t rings[];  // [kNumWarps][kRingBytes]
  __shared__ typename B::Memory memory;
  const PageRerankArgs& args = given.rerank;
  const B both(memory, given, ptx::cluster_rank<kCluster>());
  both.arm();
  ptx::cluster_arrive<kCluster>();  // awaited before the first store into another block
  // The length, the table and the query stand since before the layer's first launch.
  const int length = max(args.cache.seq_lens[blockIdx.z], 0);
  List l;
  PageScoreArgs score;
  both.describe(l, blockIdx.z, blockIdx.y, length, score);
  typename B::Query query;
  load_rows<typename B::S>(score, l.request, l.list, 0, query);
  ptx::wait_for_dependencies();
  l.candidates = args.candidates + l.request * args.candidates_batch_stride + l.list * args.candidates_list_stride;
  int page = -1;  // asked for before the count is known: past it the list holds anything
  const int own = threadIdx.x % 32;
  if (own < B::kEach && both.first() + own < args.candidate_slots) page = l.candidates[both.first() + own];
  l.count = min(args.candidate_counts[static_cast<int64_t>(l.request) * gridDim.y + l.list], min(args.candidate_slots, kMost));
  both.template run<false>(rings, l, gridDim.y, length, score, query, page);
}

}  // namespace kvloom
