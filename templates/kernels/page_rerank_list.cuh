// A list's rerank by a cluster of blocks, as a short chain of dependent steps. Warps share out the candidates and keep the logits of their
// tokens in registers; exact scores go to every block of the cluster by st.async, each of which combines them and ranks its own candidates
// against all. So a warp knows which of its pages are chosen without a list; where they are to be attended to, it reads their values alone:
// keys are read once. Blocks then merge as those of page_attend_list do; the first writes the list, when the output is on its way.
//
// For share_average, exact scores are sent as their masses relative to a shift that is known beforehand, and what lies outside the
// candidates is a row's mass less that of their estimates: page_score has left the row's mass, or the blocks sum the row while keys are on
// their way. Where these tell too little, and for the other rules, scores themselves are sent and each block sums the row's other pages.
//
// Every sum has a fixed order. kMost is the most candidates a list can have.
#pragma once

#include "kernels/page_rerank_parts.cuh"

namespace kvloom {

namespace rerank {

// What blocks receive of outputs, where there are any.
template <class Received, int kNumWarps, int HEADS, bool kAttends>
struct Outputs {
  Received received;
  float2 stats[kNumWarps][HEADS];  // peak and sum of each warp
};
template <class Received, int kNumWarps, int HEADS>
struct Outputs<Received, kNumWarps, HEADS, false> {};

// A cluster's list, from its candidates to the list of those chosen, and to the output.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster, int kMost,
          bool kAttends, int kRing, int SUMMARY_PAGES = 1>
struct ListRerank {
  using Group = Groups<SUMMARY_PAGES>;  // what scores are of and what is proposed
  using S = RowShape<T, HEAD_DIM, PAGE, HEADS, SOFTCAP>;
  using Step = ExactStep<S>;
  using Query = RowQuery<HEAD_DIM, S::kTiles>;
  static constexpr int kThreads = 32 * kNumWarps, kSteps = PAGE / 16, kParts = Others<HEADS, kNumWarps>::kParts;
  static constexpr int kBlocks = kCluster, kWorkers = kNumWarps * kCluster, kEach = (kMost + kWorkers - 1) / kWorkers, kHeld = kEach * kWorkers;
  // Pages of values that a warp holds: kRing, or all of its candidates.
  static constexpr int kHolds = kRing > 0 && kRing < kEach ? kRing : kEach;
  // With a ring, keys go through it too: fewer registers, more warps an SM. Else they go to registers, which is sooner: while copies to
  // shared memory land, whatever reads it waits.
  static constexpr bool kKeysInRing = kAttends && kRing > 0;
  static constexpr int kOfWarp = (HEADS + kNumWarps - 1) / kNumWarps;  // heads of a warp
  static constexpr bool kShare = reduce::is_share(COMBINE);
  static constexpr bool kMassed = COMBINE == Combine::kShareAverage;  // a row's mass tells what lies outside the candidates
  static constexpr int kHeadQuads = HEAD_DIM / 4, kAllQuads = HEADS * kHeadQuads;
  using A = attend::Shape<HEAD_DIM, HEADS, kNumWarps, (kHolds * kSteps + 1) / 2, S::kTiles, 2>;
  using Received = attend::Parts<HEAD_DIM, HEADS, kCluster>;
  static_assert(PAGE >= 16, "a step is tokens of one page");
  static_assert(S::kPasses == 1, "a warp keeps the logits of all heads");
  static_assert(kEach <= 8 && (kEach & (kEach - 1)) == 0, "a lane of a warp knows each of its candidates; whole stores");
  static_assert(!kAttends || HEAD_DIM / 4 >= kCluster, "one thread of a head for each block that receives its peak and sum");

  struct Memory {
    Gathered<HEADS, kNumWarps, kCluster, kHeld> gathered;  // exact: scores, or what they are relative to a row's shift
    Outputs<Received, kNumWarps, HEADS, kAttends> outputs;
    float sums[kCluster][HEADS * kParts];    // of rows, relative to the shift; with masses of the first block's alone
    float estimates[HEADS * kParts];         // of candidates
    float shifts[HEADS], units[HEADS];
    uint32_t marks[kWindow / 32];
    uint32_t words[kWorkers];                // a bit for each candidate of a worker that is chosen
    alignas(8) uint64_t landed, again, worded, merged;
  };

  Memory& memory;
  const PageRerankArgs& args;
  const int rank, lane, warp;
  const bool summed;

  __device__ __forceinline__ ListRerank(Memory& memory, const PageRerankArgs& args, int rank)
      : memory(memory), args(args), rank(rank), lane(threadIdx.x % 32), warp(threadIdx.x / 32),
        summed(kMassed && args.masses != nullptr && args.cache.batch == 1) {}

  // Part of the output that this block finishes.
  __device__ __forceinline__ int own_begin() const { return min(rank * Received::kQuads, kAllQuads); }
  __device__ __forceinline__ int own_end() const { return min(own_begin() + Received::kQuads, kAllQuads); }

  // Neighbouring candidates, which are often chosen together, lie with different blocks. Lane i knows a warp's i-th.
  __device__ __forceinline__ int first() const { return (warp * kCluster + rank) * kEach; }

  // Before the blocks of the cluster meet.
  __device__ __forceinline__ void arm() const {
    if (threadIdx.x == 0) {
      mbarrier_init(&memory.landed, 1);
      mbarrier_init(&memory.again, 1);
      mbarrier_init(&memory.worded, 1);
      mbarrier_init(&memory.merged, 1);
      mbarrier_init_fence();
      mbarrier_expect(&memory.landed, HEADS * kHeld * 4 + (summed ? 0 : kCluster * HEADS * kParts * 4));
      mbarrier_expect(&memory.again, HEADS * kHeld * 4);
      if (rank == 0) mbarrier_expect(&memory.worded, 4 * kWorkers);
      if constexpr (kAttends) mbarrier_expect(&memory.merged, kCluster * (16 * (own_end() - own_begin()) + 8 * HEADS));
    }
  }

  // What l says of the request and the list, and what the step's functions take.
  __device__ __forceinline__ void describe(List& l, int request, int list, int length, PageScoreArgs& score) const {
    l.request = request, l.list = list, l.kv_head = list * HEADS / GROUP;
    l.length = length;
    l.pages = min(static_cast<int>((static_cast<int64_t>(length) + PAGE - 1) / PAGE), args.cache.max_pages);
    l.scores = args.scores + request * args.score_batch_stride + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
    l.head_stride = args.score_head_stride;
    score.cache = args.cache;
    score.q = args.q;
    score.q_batch_stride = args.q_batch_stride, score.q_head_stride = args.q_head_stride;
    score.softmax_scale = args.softmax_scale, score.logit_softcap = args.logit_softcap;
  }

  __device__ __forceinline__ void load_query(const PageScoreArgs& score, const List& l, Query& query) const {
    if constexpr (kKeysInRing)
      load_columns<S>(score, l.request, l.list, query);
    else
      load_rows<S>(score, l.request, l.list, 0, query);
  }

  // Head and part of it that this warp looks after, of turn i.
  __device__ __forceinline__ int head_of(int i) const { return kParts > 1 ? warp / kParts : warp + i * kNumWarps; }
  __device__ __forceinline__ int part_of() const { return kParts > 1 ? warp % kParts : 0; }

  // What a warp asks for as soon as there are candidates: those whose estimates its lanes sum, and the masses of the heads that it looks after.
  static constexpr int kProposed = kMost / SUMMARY_PAGES, kOwnEstimates = (kProposed + 32 * kParts - 1) / (32 * kParts);
  struct Asked {
    int group[kOwnEstimates];
    RowMasses masses[kOfWarp];
  };
  struct Estimates {
    float of[kOfWarp][kOwnEstimates];
  };

  // The place of this lane's n-th estimate in the list of candidates.
  __device__ __forceinline__ int place(int n) const { return 32 * (n * kParts + part_of()) + lane; }

  // There are `width` places in the list.
  __device__ __forceinline__ void ask(const List& l, int width, Asked& asked) const {
    if constexpr (!kMassed) return;
#pragma unroll
    for (int n = 0; n < kOwnEstimates; n++) asked.group[n] = place(n) < width ? l.candidates[place(n)] : -1;
#pragma unroll
    for (int i = 0; i < kOfWarp; i++)
      if (summed && head_of(i) < HEADS && part_of() == 0)
        asked.masses[i].load(reinterpret_cast<const float2*>(args.masses) + (static_cast<int64_t>(l.list) * HEADS + head_of(i)) * reduce::kMassParts);
  }

  // A list that page_select left in memory, and this lane's candidate, which is asked for before the count is known: past it the list holds anything.
  __device__ __forceinline__ int find(List& l, int lists, Asked& asked) const {
    l.candidates = args.candidates + l.request * args.candidates_batch_stride + l.list * args.candidates_list_stride;
    const int page = lane < kEach && first() + lane < args.candidate_slots * SUMMARY_PAGES ? page_of<Group>(l, first() + lane) : -1;
    ask(l, min(args.candidate_slots, kProposed), asked);
    l.proposed = min(args.candidate_counts[static_cast<int64_t>(l.request) * lists + l.list], min(args.candidate_slots, kProposed));
    l.count = pages_of<Group>(l.candidates, l.proposed, l.pages, args.recent_pages);
    return page;
  }

  // Shifts and masses of the rows. Without masses, each block sums its part of a row, relative to the larger of its first two scores.
  __device__ __forceinline__ void sum_rows(const List& l, const Asked& asked, uint32_t landed_at) const {
#pragma unroll
    for (int i = 0; i < kOfWarp; i++) {
      const int h = head_of(i), of = part_of();
      if (h >= HEADS) break;
      const float* row = l.scores + h * l.head_stride;
      if (summed) {
        if (of != 0) break;
        const float2 m = asked.masses[i].sum();
        const float all = warp_sum(m.y);
        if (lane == 0) memory.shifts[h] = m.x, memory.sums[0][h * kParts] = all;
      } else {
        constexpr int kAtOnce = 8;
        const int groups = Group::of_pages(l.pages);
        const float shift = kLog2E * fmaxf(row[0], row[min(1, groups - 1)]);
        const int part = (groups + kCluster - 1) / kCluster, begin = min(rank * part, groups), end = min(begin + part, groups);
        float sum = 0.0f;
#pragma unroll 1
        for (int base = begin + 32 * of + lane; base < end; base += 32 * kParts * kAtOnce) {
          float v[kAtOnce];
#pragma unroll
          for (int n = 0; n < kAtOnce; n++) v[n] = select::load_score(row + base + n * 32 * kParts, base + n * 32 * kParts < end);
#pragma unroll
          for (int n = 0; n < kAtOnce; n++) sum += exp2_approx(fmaf(v[n], kLog2E, -shift));
        }
        sum = warp_sum(sum);
        if (of == 0 && lane == 0) memory.shifts[h] = shift;
        if (lane < kCluster) send<1>(&memory.sums[rank][h * kParts + of], {sum}, landed_at, lane);
      }
    }
  }

  // Asks for the estimates.
  __device__ __forceinline__ void ask_estimates(const List& l, const Asked& asked, Estimates& mine) const {
#pragma unroll
    for (int i = 0; i < kOfWarp; i++)
#pragma unroll
      for (int n = 0; n < kOwnEstimates; n++) {
        const bool is = place(n) < l.proposed && asked.group[n] >= 0 && head_of(i) < HEADS;
        const float* at = l.scores + (is ? head_of(i) * l.head_stride + asked.group[n] : 0);
        mine.of[i][n] = is ? *at : -reduce::kInfinity;
      }
  }

  // Sums of the candidates' estimates relative to the shifts, in this block alone.
  __device__ __forceinline__ void sum_estimates(const Estimates& mine) const {
#pragma unroll
    for (int i = 0; i < kOfWarp; i++) {
      const int h = head_of(i), of = part_of();
      if (h >= HEADS) break;
      const float shift = memory.shifts[h];
      float sum = 0.0f;
#pragma unroll
      for (int n = 0; n < kOwnEstimates; n++) sum += exp2_approx(fmaf(mine.of[i][n], kLog2E, -shift));
      sum = warp_sum(sum);
      if (lane == 0) memory.estimates[h * kParts + of] = sum;
    }
  }

  // Units of the heads from candidates' exact scores relative to the shifts, and what rows hold besides their estimates. False where sums tell too
  // little: a peak far above the shift, scores that are not finite, estimates far above their exact scores.
  __device__ __forceinline__ bool find_units() const {
    bool tells = true;
#pragma unroll
    for (int i = 0; i < kOfWarp; i++) {
      const int h = warp + i * kNumWarps;
      if (h >= HEADS) break;
      float exact = 0.0f, row = 0.0f, estimates = 0.0f;
#pragma unroll
      for (int at = 0; at < kHeld; at += 32) exact += kHeld % 32 == 0 || at + lane < kHeld ? memory.gathered.exact[h][at + lane] : 0.0f;
      exact = warp_sum(exact);
      for (int n = lane; n < (summed ? 1 : kCluster * kParts); n += 32) row += memory.sums[n / kParts][h * kParts + n % kParts];
      row = warp_sum(row);
#pragma unroll
      for (int n = 0; n < kParts; n++) estimates += memory.estimates[h * kParts + n];
      const float all = exact + fmaxf(row - estimates, 0.0f);
      tells = tells && row >= 0.5f && row <= select::kLargestMass && all >= row / 32.0f && all < reduce::kInfinity;
      if (lane == 0) memory.units[h] = 1.0f / all;
    }
    return tells;
  }

  // Keys of candidates from exact scores as scores: for every rule and whatever they are. Every block sums what it needs of a row itself.
  __device__ __forceinline__ void make_keys(const List& l, int low, int high) const {
    auto& sm = memory.gathered;
    if constexpr (kShare) {
      Mass others[kOfWarp];
#pragma unroll
      for (int i = 0; i < kOfWarp; i++) others[i] = Mass{-reduce::kInfinity, 0.0f};
#pragma unroll 1
      for (int window = 0; window < Group::of_pages(l.pages); window += kWindow) {
        const int upto = min(window + kWindow, Group::of_pages(l.pages));
        __syncthreads();
        for (int i = threadIdx.x; i < kWindow / 32; i += kThreads) memory.marks[i] = 0;
        __syncthreads();
        for (int i = threadIdx.x; i < l.proposed; i += kThreads) {
          const int at = l.candidates[i] - window;
          if (at >= 0 && at < upto - window) atomicOr(&memory.marks[at / 32], 1u << at % 32);
        }
        __syncthreads();
#pragma unroll
        for (int i = 0; i < kOfWarp; i++)
          if (head_of(i) < HEADS)
            add_mass(others[i], measure_row(l.scores + head_of(i) * l.head_stride, window + 32 * part_of(), upto, 32 * kParts, window, memory.marks));
      }
      for (int i = threadIdx.x; i < kCluster * HEADS * kParts; i += kThreads)
        sm.others[i / (HEADS * kParts)][i % (HEADS * kParts)] = make_float2(-reduce::kInfinity, 0.0f);
      __syncthreads();
#pragma unroll
      for (int i = 0; i < kOfWarp; i++)
        if (head_of(i) < HEADS && lane == 0) sm.others[0][head_of(i) * kParts + part_of()] = make_float2(others[i].peak, others[i].sum);
      __syncthreads();
    }
    ptx::wait_cluster_barrier(ptx::shared_address(&memory.again), 0);
    unite<HEADS, COMBINE>(sm, l.count);
    __syncthreads();
    float top = 0.0f;
    if constexpr (COMBINE == Combine::kGroupMass) top = select::largest_peak(sm.heads);
    const select::Row<HEADS> row{&sm.exact[0][0], kHeld, nullptr, 0};
#pragma unroll 1
    for (int i = threadIdx.x; i < kHeld; i += kThreads)
      sm.keys[i] = i >= low && i < high ? select::key_of<HEADS, COMBINE>(row, sm.heads, top, i, 0) + 1 : 0u;
  }

  using Logits = float[kEach][kSteps][S::kTiles][2][2];

  // To every block: each page's score of each head, or 2^(that - shift).
  template <class Value>
  __device__ __forceinline__ void send_exact(const Logits& x, uint32_t barrier, Value value) const {
#pragma unroll
    for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
      for (int h = 0; h < 2; h++) {
        const int head = tile * 8 + lane % 4 * 2 + h;
        float exact[kEach];
#pragma unroll
        for (int i = 0; i < kEach; i++) exact[i] = value(x[i], tile, h, min(head, HEADS - 1));
        if (head < HEADS)
#pragma unroll
          for (int to = 0; to < kCluster; to += 8)
            if (kCluster % 8 == 0 || to + lane / 4 < kCluster) send<kEach>(&memory.gathered.exact[head][first()], exact, barrier, to + lane / 4);
      }
  }
  __device__ __forceinline__ void send_scores(const Logits& x) const {
    send_exact(x, ptx::shared_address(&memory.again), [](const auto& logits, int tile, int h, int) { return page_lse<kSteps, S::kTiles>(logits, tile, h); });
  }

  // What the blocks do where sums relative to the shifts tell too little. Rare, so it is a call: inlined, it would lie between the steps.
  static __device__ __noinline__ void rank_by_scores(Memory& memory, const PageRerankArgs& args, const List& l, int low, int high, const Logits& x) {
    const ListRerank all(memory, args, ptx::cluster_rank<kCluster>());
    ptx::cluster_sync<kCluster>();  // nobody looks at what was sent first any more
    all.send_scores(x);
    all.make_keys(l, low, high);
  }

  // The chosen pages, in order: by one warp of the first block, whose others have results to merge.
  __device__ __forceinline__ void write_list(const List& l, uint32_t worded_at) const {
    if (rank != 0 || warp != kNumWarps - 1) return;
    ptx::wait_cluster_barrier(worded_at, 0);
    int32_t* const out = args.pages + l.request * args.pages_batch_stride + l.list * args.pages_list_stride;  // [slots]
    int before = 0;
#pragma unroll 1
    for (int base = 0; base < l.count; base += 32) {
      const int i = base + lane;
      const bool mine = i < l.count && (memory.words[i / kEach] >> i % kEach & 1);
      const uint32_t all = __ballot_sync(reduce::kFullWarp, mine);
      const int position = before + __popc(all & ((1u << lane) - 1));
      if (mine && position < args.slots) out[position] = page_of<Group>(l, i);
      before += __popc(all);
    }
  }

  // All of it. `page` is this lane's candidate, whatever it is past the list's count. kMet: the blocks of the cluster have met. `rings` and
  // `given`, for the output, are used where there is one.
  template <bool kMet>
  __device__ __forceinline__ void run(uint8_t* rings, const PageRerankAttendArgs* given, const List& l, int lists, int length, const PageScoreArgs& score,
                                      const Query& query, int page, const Asked& asked) const {
    const KvCache& cache = args.cache;
    const int tid = threadIdx.x, worker = warp * kCluster + rank, first = worker * kEach;
    auto& sm = memory.gathered;
    const int64_t index = static_cast<int64_t>(l.request) * lists + l.list;
    const int own = max(min(l.count - first, kEach), 0);
    int block = -1, tokens = 0;
    if (lane < own && page >= 0 && page < l.pages) block = __ldg(cache.block_table + l.request * cache.table_stride + page);
    const bool chooses = l.count > args.slots;  // else every candidate is attended
    [[maybe_unused]] Estimates estimates;
    if (kMassed && chooses) ask_estimates(l, asked, estimates);
    if (block >= 0) tokens = min(length - page * PAGE, PAGE);
    const uint32_t landed_at = ptx::shared_address(&memory.landed);
    // A warp's ring holds values, and before that keys.
    const uint32_t ring = (kAttends ? ptx::shared_address(rings) : 0u) + warp * A::kRingBytes;
    const auto copy_page = [&](const RowLane<HEAD_DIM, A::kRowBytes, T>& rows, int64_t block_stride, int64_t token_stride, int i) {
      const int live = __shfl_sync(reduce::kFullWarp, tokens, i);
      const int64_t id = max(__shfl_sync(reduce::kFullWarp, block, i), 0);
#pragma unroll
      for (int s = 0; s < kSteps; s++)
        rows.copy(ring + (i % kHolds * kSteps + s) * A::kTensorBytes, id * block_stride + s * 16 * token_stride, live - 16 * s);
    };
    const T* const all_keys = static_cast<const T*>(cache.k) + l.kv_head * cache.k_head_stride;
    [[maybe_unused]] const RowLane<HEAD_DIM, A::kRowBytes, T> keys(all_keys, cache.k_token_stride);
    [[maybe_unused]] const auto copy_keys = [&](int i) { copy_page(keys, cache.k_block_stride, cache.k_token_stride, i); };
    // A step's rows lie in one page.
    [[maybe_unused]] const auto load_keys = [&](Step& step, int n) {
      const int id = __shfl_sync(reduce::kFullWarp, block, n / kSteps);
      if (id < 0) {
        zero_row(step.rows[0]), zero_row(step.rows[1]);
        return;
      }
      const T* row = all_keys + lane / 4 * cache.k_token_stride + id * cache.k_block_stride + n % kSteps * 16 * cache.k_token_stride;
      load_row<HEAD_DIM>(GlobalBytes{reinterpret_cast<const uint8_t*>(row)}, step.rows[0]);
      load_row<HEAD_DIM>(GlobalBytes{reinterpret_cast<const uint8_t*>(row + 8 * cache.k_token_stride)}, step.rows[1]);
    };
    [[maybe_unused]] Step step[2];
    if constexpr (kKeysInRing) {
#pragma unroll
      for (int i = 0; i < kHolds; i++) {
        copy_keys(i);
        ptx::commit_copies();
      }
    } else {
      load_keys(step[0], 0);
      if constexpr (kEach * kSteps > 1) load_keys(step[1], 1);
    }
    if (rank == 0) {
      int32_t* const out = args.pages + l.request * args.pages_batch_stride + l.list * args.pages_list_stride;  // [slots]
      const int chosen = min(args.slots, l.count);
      if (tid == 0) args.counts[index] = chosen;
      for (int i = chosen + tid; i < args.slots; i += kThreads) out[i] = -1;
    }
    if constexpr (!kMet) ptx::cluster_wait<kCluster>();
    if (kMassed && chooses) {
      sum_rows(l, asked, landed_at);
      __syncthreads();  // the shifts are there
    }

    Logits x;  // base-2 logits, -inf where there is no token
#pragma unroll
    for (int n = 0; n < kEach * kSteps; n++) {
      const int i = n / kSteps, s = n % kSteps;
      const int g = lane / 4, live = __shfl_sync(reduce::kFullWarp, tokens, i) - 16 * s;
      if constexpr (kKeysInRing) {
        if (s == 0) {
          ptx::wait_copies<kHolds - 1>();
          __syncwarp();
        }
        tile_logits<S, A::kRowBytes>(score, ring + (i % kHolds * kSteps + s) * A::kTensorBytes, query, x[i][s]);
        if (s == kSteps - 1) {
          __syncwarp();  // every lane has read what the next copies overwrite
          if (i + kHolds < kEach) copy_keys(i + kHolds);
          ptx::commit_copies();
        }
      } else {
        step_logits<S>(score, step[n % 2], query, x[i][s]);
        if (n + 2 < kEach * kSteps) load_keys(step[n % 2], n + 2);
      }
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
        for (int j = 0; j < 2; j++)
#pragma unroll
          for (int h = 0; h < 2; h++)
            if (g + 8 * j >= live) x[i][s][tile][j][h] = minus_infinity();
    }

    uint32_t taken = (1u << own) - 1;
    if (chooses) {
      const int sinks = min(args.sink_pages, l.pages), recent = max(l.pages - args.recent_pages, sinks);
      if constexpr (kMassed)
        send_exact(x, landed_at, [&](const auto& logits, int tile, int h, int head) { return page_mass<kSteps, S::kTiles>(logits, tile, h, memory.shifts[head]); });
      else
        send_scores(x);
      // Those that compete: from low to high. All pages that are always kept are candidates.
      const int low = sinks, high = l.count - (l.pages - recent);
      const int need = args.slots - (l.count - (high - low));
      if constexpr (kMassed) {
        sum_estimates(estimates);
        ptx::wait_cluster_barrier(landed_at, 0);
        __syncthreads();  // the estimates are summed
        if (__syncthreads_or(!find_units())) {  // rare
          Logits copy;
#pragma unroll
          for (int n = 0; n < kEach * kSteps * S::kTiles * 4; n++)
            copy[n / (kSteps * S::kTiles * 4)][n / (S::kTiles * 4) % kSteps][n / 4 % S::kTiles][n / 2 % 2][n % 2] =
                x[n / (kSteps * S::kTiles * 4)][n / (S::kTiles * 4) % kSteps][n / 4 % S::kTiles][n / 2 % 2][n % 2];
          const List copied = l;
          rank_by_scores(memory, args, copied, low, high, copy);
        } else {
          for (int i = tid; i < kHeld; i += kThreads) {
            float sum = 0.0f;
#pragma unroll
            for (int h = 0; h < HEADS; h++) {
              const float share = sm.exact[h][i] * memory.units[h];
              sum += share < reduce::kSmallestShare ? 0.0f : share;
            }
            sm.keys[i] = i >= low && i < high ? reduce::share_key(sum) + 1 : 0u;
          }
        }
      } else {
        make_keys(l, low, high);
      }
      __syncthreads();
      const LaneKeys<kHeld> all(sm.keys);
      taken = 0;
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const int n = first + i;
        if (i < own && (n < low || n >= high || all.above(n, sm.keys[n]) < need)) taken |= 1u << i;
      }
    }
    [[maybe_unused]] const RowLane<HEAD_DIM, A::kRowBytes, T> values(static_cast<const T*>(cache.v) + l.kv_head * cache.v_head_stride, cache.v_token_stride);
    [[maybe_unused]] const auto copy_values = [&](int i) { copy_page(values, cache.v_block_stride, cache.v_token_stride, i); };
    if constexpr (kAttends) {
#pragma unroll
      for (int i = 0; i < kHolds; i++) {
        if (taken >> i & 1) copy_values(i);
        ptx::commit_copies();
      }
    }
    const uint32_t merged_at = ptx::shared_address(&memory.merged), worded_at = ptx::shared_address(&memory.worded);
    if (lane == 0) ptx::store_async(ptx::map_to_rank(ptx::shared_address(&memory.words[worker]), 0), taken, ptx::map_to_rank(worded_at, 0));
    if constexpr (kAttends) {
      attend::State<HEAD_DIM, S::kTiles, T> state;
#pragma unroll
      for (int tile = 0; tile < S::kTiles; tile++) {
        // All logits are known: the peak comes first, and nothing is scaled again.
#pragma unroll
        for (int h = 0; h < 2; h++) {
          float peak = minus_infinity();
#pragma unroll
          for (int i = 0; i < kEach; i++)
#pragma unroll
            for (int s = 0; s < kSteps; s++)
              if (taken >> i & 1) peak = fmaxf(peak, fmaxf(x[i][s][tile][0][h], x[i][s][tile][1][h]));
#pragma unroll
          for (int mask = 4; mask < 32; mask *= 2) peak = fmaxf(peak, __shfl_xor_sync(reduce::kFullWarp, peak, mask));
          state.peak[tile][h] = peak, state.sum[tile][h] = 0.0f;
        }
#pragma unroll
        for (int d = 0; d < HEAD_DIM / 16; d++)
#pragma unroll
          for (int j = 0; j < 4; j++) state.o[d][tile][j] = 0.0f;
      }
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        ptx::wait_copies<kHolds - 1>();
        __syncwarp();
#pragma unroll
        for (int s = 0; s < kSteps; s++) {
          if (!(taken >> i & 1)) continue;
          uint32_t p[S::kTiles][2];  // B fragments of P^T [token, head]
#pragma unroll
          for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
            for (int j = 0; j < 2; j++) {
              float w[2];
#pragma unroll
              for (int h = 0; h < 2; h++) {
                w[h] = attend::weight(x[i][s][tile][j][h], state.peak[tile][h]);
                state.sum[tile][h] += w[h];
              }
              p[tile][j] = ptx::transpose8x8(pack2<T>(w[0], w[1]));
            }
          attend::Fragments<HEAD_DIM, T>::template each_value<A::kRowBytes>(
              ring + (i % kHolds * kSteps + s) * A::kTensorBytes, [&](int d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
                for (int tile = 0; tile < S::kTiles; tile++) mma_m16n8k16(state.o[d][tile], a0, a1, a2, a3, p[tile][0], p[tile][1], T());
              });
        }
        if constexpr (kHolds < kEach) {
          __syncwarp();  // every lane has read what the next copies overwrite
          if (i + kHolds < kEach && (taken >> (i + kHolds) & 1)) copy_values(i + kHolds);
        }
        ptx::commit_copies();
      }
      __syncwarp();  // the result takes the values' place
      attend::store_state<A>(state, reinterpret_cast<float*>(rings + warp * A::kRingBytes), memory.outputs.stats[warp]);
      __syncthreads();

      for (int quad = tid; quad < kAllQuads; quad += kThreads) {
        const int head = quad / kHeadQuads, at = quad % kHeadQuads;
        const attend::MergedQuad m = attend::merge_quad<kNumWarps>(
            [&](int w) { return memory.outputs.stats[w][head]; },
            [&](int w) { return *reinterpret_cast<const float4*>(rings + w * A::kRingBytes + (head * A::kOutStride + 4 * at) * 4); });
        const int owner = quad / Received::kQuads;
        send<4>(&memory.outputs.received.out[rank][quad % Received::kQuads].x, {m.o.x, m.o.y, m.o.z, m.o.w}, merged_at, owner);
        if (at < kCluster) send<2>(&memory.outputs.received.stats[rank][head].x, {m.peak, m.sum}, merged_at, at);
      }
      write_list(l, worded_at);
      ptx::wait_cluster_barrier(merged_at, 0);  // by every thread: no block leaves before all that was sent to it has landed
      for (int quad = own_begin() + tid; quad < own_end(); quad += kThreads) {
        const int head = quad / kHeadQuads, at = quad % kHeadQuads;
        const attend::MergedQuad m = attend::merge_quad<kCluster>([&](int r) { return memory.outputs.received.stats[r][head]; },
                                                                  [&](int r) { return memory.outputs.received.out[r][quad - own_begin()]; });
        const float unit = m.sum == 0.0f ? 0.0f : 1.0f / m.sum;
        const int64_t q_head = static_cast<int64_t>(l.list) * HEADS + head;
        T* to = static_cast<T*>(given->out) + l.request * given->out_batch_stride + q_head * given->out_head_stride;
        *reinterpret_cast<uint2*>(to + 4 * at) = make_uint2(pack2<T>(m.o.x * unit, m.o.y * unit), pack2<T>(m.o.z * unit, m.o.w * unit));
        if (at == 0 && given->lse)
          given->lse[static_cast<int64_t>(l.request) * lists * HEADS + q_head] = m.sum == 0.0f ? minus_infinity() : (m.peak + log2f(m.sum)) * kLn2;
      }
    } else {
      write_list(l, worded_at);
    }
    __syncthreads();  // nobody looks at the barriers any more
    if (tid == 0) mbarrier_invalidate(&memory.landed), mbarrier_invalidate(&memory.again), mbarrier_invalidate(&memory.worded), mbarrier_invalidate(&memory.merged);  // their memory is the next block's
  }
};

// One list by a cluster, of a launch that begins with the rerank. B is a ListRerank; rings and attends are of those that attend too.
template <class B>
__device__ __forceinline__ void serve(typename B::Memory& memory, const PageRerankArgs& args, uint8_t* rings, const PageRerankAttendArgs* attends) {
  const B all(memory, args, ptx::cluster_rank<B::kBlocks>());
  all.arm();
  ptx::cluster_arrive<B::kBlocks>();  // awaited before the first store into another block
  // The length, the table and the query stand since before the layer's first launch.
  const int length = max(args.cache.seq_lens[blockIdx.z], 0);
  List l;
  PageScoreArgs score;
  all.describe(l, blockIdx.z, blockIdx.y, length, score);
  typename B::Query query;
  all.load_query(score, l, query);
  ptx::wait_for_dependencies();
  typename B::Asked asked;
  const int page = all.find(l, gridDim.y, asked);
  all.template run<false>(rings, attends, l, gridDim.y, length, score, query, page, asked);
}

}  // namespace rerank

}  // namespace kvloom
