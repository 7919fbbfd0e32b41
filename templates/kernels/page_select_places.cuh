// How a list is chosen whose scores the threads of a cluster hold in registers, and where its pages go, as page_select_attend's direct form takes them: place p of the list is that of block
// p % kCluster. Pages that no ranking decides have the first places, in ascending order; each is sent to the one block that attends to
// it. Then come those that the ranking takes, the best first; warps that have such a place rank for themselves.
#pragma once

#include "kernels/page_select_cluster.cuh"
#include "kernels/page_select_masses.cuh"

namespace kvloom {

namespace select {

// Places of block `rank` among the first `places` of a list.
template <int kCluster>
__device__ __forceinline__ int places_of(int places, int rank) {
  return (places + kCluster - 1 - rank) / kCluster;
}

// What a block keeps of its list, and what choosing tells each warp.
template <int kCluster>
struct PlacesOut {
  static constexpr bool kEarly = false;  // as selection tells them apart: not as page_select_attend's other form takes pages
  int2* kept;               // [kShareSlots / kCluster] pages and blocks of this block's places that no ranking decides, in shared memory
  int2* ranked;             // [kShareSlots] those that the ranking takes, where the block ranks, best first
  int2* own;                // [32] the same of this warp, where it ranks alone
  int32_t* blocks;          // [kMostCandidates] where the pages lie that are to be ranked
  uint64_t* listed;         // the barrier of what other blocks send
  const int32_t* table;
  int max_pages;            // of the table
  const int32_t* known;     // blocks of this block's pages; null where they were not read ahead
  int begin_page;           // of this block
  int item, last;           // the first and the last of this block's places that this warp attends to; last -1: none
  // Told:
  int2 first;               // page and block of the first one
  int before;               // in the last warp: pages of the list that lie below this block's

  __device__ __forceinline__ int look_up(int page) const { return page < max_pages ? table[page] : -1; }
  // Where a page of this block lies, by its number there.
  __device__ __forceinline__ int block_at(int at) const { return known ? known[at] : look_up(begin_page + at); }
  __device__ __forceinline__ void send(int place, int at) const {
    const int home = place % kCluster;
    ptx::store_async(ptx::map_to_rank(ptx::shared_address(kept + place / kCluster), home), make_uint2(begin_page + at, block_at(at)),
                     ptx::map_to_rank(ptx::shared_address(listed), home));
  }
  // The same places later, where the cut is known.
  __device__ __forceinline__ int2 entry(const Cut& cut, int item, int rank, int slots) const {
    const int left = cut.in_bin == cut.left ? 0 : cut.left, winner = item * kCluster + rank - (slots - left);
    return winner < 0 ? kept[item] : (cut.in_bin <= 32 ? own : ranked)[winner];
  }
};

// Ranks at most 32 candidates, one a lane, bit by bit from the first that differs: votes alone, for loads of keys and values hold up whatever
// else passes through shared memory. Returns how many are better, and at least `left` where there is no candidate.
__device__ __forceinline__ int rank_by_votes(uint2 mine, bool live, int left) {
  const uint32_t lanes = __ballot_sync(reduce::kFullWarp, live);
  const uint32_t differs = __reduce_or_sync(reduce::kFullWarp, live ? mine.x : 0u) ^ __reduce_and_sync(reduce::kFullWarp, live ? mine.x : ~0u);
  int better = live ? 0 : left;
  uint32_t same = lanes;  // that are equal in the bits so far
#pragma unroll 1
  for (uint32_t bit = differs == 0 ? 0u : 0x80000000u >> __clz(differs); bit != 0; bit >>= 1) {
    const bool has = mine.x & bit;
    const uint32_t with = __ballot_sync(reduce::kFullWarp, has);
    if (!has) better += __popc(same & with);
    same &= has ? with : ~with;
  }
  if (__any_sync(reduce::kFullWarp, live && (same & (same - 1)) != 0)) {  // equal shares: the lower page first
#pragma unroll 1
    for (uint32_t others = lanes; others != 0; others &= others - 1) {
      const int j = __ffs(others) - 1;
      const uint32_t other = __shfl_sync(reduce::kFullWarp, mine.y, j);
      better += live && (same >> j & 1) != 0 && other < mine.y;
    }
  }
  return better;
}

// A list's pages in order, those taken and those that won the ranking; one warp.
template <class Memory, class Write>
__device__ __forceinline__ void write_marked(const Memory& sm, const Part& part, int before, Write write) {
  const int lane = threadIdx.x % 32;
#pragma unroll 1
  for (int first = 0; first < part.end - part.begin; first += 1024) {
    uint32_t word = sm.taken[first / 32 + lane] | sm.won[first / 32 + lane];
    const int scan = reduce::warp_exclusive_scan(__popc(word));
    int position = before + scan;
    before += __shfl_sync(reduce::kFullWarp, scan + __popc(word), 31);
#pragma unroll 1
    for (; word != 0; word &= word - 1) write(position++, part.begin + first + 32 * lane + __ffs(word) - 1);
  }
}

// choose for values in registers, kVec adjacent pages a thread and turn: value[kVec q + i] is that of page begin + kVec (q kThreads + tid) + i;
// 0 where it does not compete. `values` is this block's, [turns][kThreads], and free; sm.taken and sm.won are zeroed. One warp deals out
// the block's pages, a word of 32 a lane, another sends on what is to be ranked.
template <int HEADS, int kThreads, int kCluster, int kVec, int kTurns, bool kCounted, class Memory>
__device__ __forceinline__ bool choose_held(Memory& sm, const Part& part, const float (&value)[kVec * kTurns], float* values,
                                            PlacesOut<kCluster>& out) {
  constexpr int kWarps = kThreads / 32;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const uint32_t candidates_in = ptx::shared_address(part.candidates), listed_in = ptx::shared_address(out.listed);
  if constexpr (!kCounted) {
    const uint32_t counts_in = ptx::shared_address(part.counts);
    __syncthreads();
    send_histogram<kThreads, kCluster>(sm.histogram, sm.histograms[part.rank], counts_in);
    cut_by<kCluster>(sm, sm.histograms, counts_in, part.candidates, part.rank, part.need, kFewCandidates);
  }
  Cut cut = sm.cut;
  if (cut.bin <= 0) return false;
  int lower_above = sm.lower[cut.bin + 1], lower_in_bin = sm.lower[cut.bin] - lower_above;
  bool whole = cut.in_bin == cut.left;  // the whole bin is taken: nothing to rank
  float least = bin_begin<HEADS>(cut.bin), above = bin_begin<HEADS>(cut.bin + 1);
  if (!whole && cut.in_bin > kFewCandidates) {
#pragma unroll
    for (int i = 0; i < kVec * kTurns; ++i) values[i * kThreads + tid] = value[i];
    cut_bin_call<kThreads, kCluster>(sm, values + tid, kVec * kTurns, ptx::shared_address(part.bin), part.candidates, part.rank, least, above, cut.left);
    const uint32_t from = __float_as_uint(least);
    const int step = part_step(least, above);
    cut = sm.cut;
    const int lower_before = lower_above;
    lower_above += sm.lower[cut.bin + 1];
    lower_in_bin = sm.lower[cut.bin] + lower_before - lower_above;
    whole = cut.in_bin == cut.left;
    if (cut.bin < kShareBins - 1) above = __uint_as_float(from + ((cut.bin + 1u) << step));
    least = __uint_as_float(from + (static_cast<uint32_t>(cut.bin) << step));
    if (!whole && cut.in_bin > kMostCandidates) return false;
  }
  const float sure = whole ? least : above;
  uint2* const mine = reinterpret_cast<uint2*>(values);  // what this block has to be ranked
  float top = value[0];
#pragma unroll
  for (int i = 1; i < kVec * kTurns; ++i) top = fmaxf(top, value[i]);
  if (top >= least) {  // of few threads
#pragma unroll
    for (int i = 0; i < kVec * kTurns; ++i) {
      const int at = kVec * (i / kVec * kThreads + tid) + i % kVec;
      if (value[i] >= sure)
        atomicOr(&sm.taken[at / 32], 1u << at % 32);
      else if (value[i] >= least)
        mine[atomicAdd(&sm.sent, 1)] = make_uint2(__float_as_uint(value[i]), at);
    }
  }
#pragma unroll 1
  for (int at = tid; at < min(part.end, part.sinks) - part.begin; at += kThreads) atomicOr(&sm.taken[at / 32], 1u << at % 32);
#pragma unroll 1
  for (int at = max(part.recent - part.begin, 0) + tid; at < part.end - part.begin; at += kThreads) atomicOr(&sm.taken[at / 32], 1u << at % 32);
  const int sure_places = part.pages_wanted - (whole ? 0 : cut.left);
  const int before = min(part.begin, part.sinks) + max(part.begin - part.recent, 0) + lower_above + (whole ? lower_in_bin : 0);
  if (tid == 0) {
    mbarrier_expect(out.listed, 8 * places_of<kCluster>(sure_places, part.rank) + (whole ? 0 : 4 * cut.in_bin));
    sm.before = before;
  }
  __syncthreads();
  if (warp == 0) {
    int place = before;
#pragma unroll 1
    for (int first = 0; first < part.end - part.begin; first += 1024) {
      uint32_t word = sm.taken[first / 32 + lane];
      const int scan = reduce::warp_exclusive_scan(__popc(word));
      int at = place + scan;
      place += __shfl_sync(reduce::kFullWarp, scan + __popc(word), 31);
#pragma unroll 1
      for (; word != 0; word &= word - 1) {
        const int page = first + 32 * lane + __ffs(word) - 1;
        out.send(at++, page);
      }
    }
  } else if (warp == 1 && !whole) {
    const uint32_t pieces = sm.sent * kCluster;
#pragma unroll 1
    for (uint32_t x = lane; x < pieces; x += 32) {
      const uint2 of = mine[x / kCluster];
      const uint32_t slot = lower_in_bin + x / kCluster, to = x % kCluster;
      ptx::store_async(ptx::map_to_rank(ptx::shared_address(&sm.candidates[slot]), to), make_uint2(of.x, part.begin + of.y), ptx::map_to_rank(candidates_in, to));
      ptx::store_async(ptx::map_to_rank(ptx::shared_address(&out.blocks[slot]), to), static_cast<uint32_t>(out.block_at(of.y)), ptx::map_to_rank(listed_in, to));
    }
  }
  // What the warps read of shared memory, before one of them asks for keys and values.
  const bool alone = cut.in_bin <= 32, has = out.last >= 0, late = has && out.last * kCluster + part.rank >= sure_places;
  const bool ranks = !whole && (late || warp == kWarps - 1);
  const int winner = out.item * kCluster + part.rank - sure_places;  // below 0: no ranking decides
  const bool live = lane < cut.in_bin;
  uint2 mine_of = make_uint2(0, 0);
  int block = 0;
  ptx::wait_cluster_barrier(listed_in, 0);
  if (has && winner < 0) out.first = out.kept[out.item];
  if (ranks || (!whole && !alone)) {
    ptx::wait_cluster_barrier(candidates_in, 0);
    if (alone && live) mine_of = sm.candidates[lane], block = out.blocks[lane];
  }
  __syncthreads();
  out.before = before;
  if (whole) return true;
  if (alone) {
    if (ranks) {
      const int better = rank_by_votes(mine_of, live, cut.left), page = mine_of.y;
      const bool wins = better < cut.left;
      if (wins) out.own[better] = make_int2(page, block);
      if (has && winner >= 0) {
        const bool first = wins && better == winner;
        out.first = make_int2(__reduce_or_sync(reduce::kFullWarp, first ? static_cast<unsigned>(page) : 0u),
                              __reduce_or_sync(reduce::kFullWarp, first ? static_cast<unsigned>(block) : 0u));
      }
      if (warp == kWarps - 1) {
        if (wins && page >= part.begin && page < part.end) atomicOr(&sm.won[(page - part.begin) / 32], 1u << (page - part.begin) % 32);
        out.before += __popc(__ballot_sync(reduce::kFullWarp, wins && page < part.begin));
      }
      __syncwarp();
    }
  } else {
    rank_candidates<kThreads>(sm, part, cut, [&](int rank, int page) { out.ranked[rank] = make_int2(page, out.look_up(page)); });
    __syncthreads();
    if (has && winner >= 0) out.first = out.ranked[winner];
    out.before = sm.before;
  }
  return true;
}

// The same where page_select_shares has made values, four adjacent pages a thread.
template <int HEADS, int kThreads, int kCluster, int kQuads, bool kCounted, class Memory>
__device__ __forceinline__ bool choose_quads(Memory& sm, const Part& part, const float (&value)[4 * kQuads], float* values,
                                             PlacesOut<kCluster>& out) {
  if (threadIdx.x < 4 * kQuads * kThreads / 32) sm.won[threadIdx.x] = 0;
  return choose_held<HEADS, kThreads, kCluster, 4, kQuads, kCounted>(sm, part, value, values, out);
}

// The same for longer rows, which the threads do not hold: page_select_attend reads the list from memory.
template <int HEADS, int kThreads, int kCluster, int kFirst, bool kOthers, bool kCalls, bool kCounted = false, class Memory>
__device__ __forceinline__ bool choose(Memory&, const Part&, const float (&)[max_of(kFirst, 1)], float*, PlacesOut<kCluster>&) {
  return false;
}

// Scores of kTurns times kVec adjacent pages of all heads, -inf from `left` pages on. `whole`: rows are aligned to kVec floats. One branch for all:
// branches between loads would keep the second from being asked for before the first is there.
template <int HEADS, int kVec, int kTurns, int kTurn>
__device__ __forceinline__ void load_scores(float (&to)[kTurns][HEADS][kVec], const float* from, int64_t stride, int left, bool whole) {
  static_assert(kVec == 2 || kVec == 4, "two or four pages at once");
  if (__builtin_expect(whole && left >= (kTurns - 1) * kTurn + kVec, true)) {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const float* const row = from + h * stride;
#pragma unroll
      for (int q = 0; q < kTurns; ++q) {
        float(&v)[kVec] = to[q][h];
        if constexpr (kVec == 4)
          asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v[0]), "=f"(v[1]), "=f"(v[2]), "=f"(v[3]) : "l"(row + q * kTurn) : "memory");
        else
          asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(v[0]), "=f"(v[1]) : "l"(row + q * kTurn) : "memory");
      }
    }
  } else {
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const float* const row = from + h * stride;
#pragma unroll
      for (int i = 0; i < kTurns * kVec; ++i)
        to[i / kVec][h][i % kVec] = load_score(row + i / kVec * kTurn + i % kVec, i / kVec * kTurn + i % kVec < left);
    }
  }
}

}  // namespace select

// Selection from page_score's masses of rows whose scores threads hold in registers, kVec adjacent pages a turn: true where it has chosen.
// `part` becomes this block's part. prepare() is what else a block does first, while the scores are on their way: its registers keep it from
// starting before page_score's blocks have ended.
template <int PAGE, int HEADS, int kThreads, int kCluster, bool kDependent, int kVec, int kTurns, class Memory, class Out, class Prepare>
__device__ __forceinline__ bool select_held(const PageSelectArgs& args, Memory& sm, float* values, select::Part& part, Out& out, Prepare prepare) {
  using namespace select;
  constexpr int kWarps = kThreads / 32, kRowsOfWarp = (HEADS + kWarps - 1) / kWarps, kTurn = kVec * kThreads;
  static_assert(kThreads >= kShareBins && kTurns * kTurn / 32 <= kThreads, "a thread clears one bin, and a word of the pages that are taken");
  __shared__ __align__(8) uint64_t barriers[3];
  __shared__ float2 heads[HEADS];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  part.rank = ptx::cluster_rank<kCluster>(), part.counts = &barriers[0], part.candidates = &barriers[1], part.bin = &barriers[2];
  part.histograms = sm.histograms;
  const auto stand_by = [&] {
    if (tid == 0) prepare_choice<kCluster>(sm, part);
    prepare();
    ptx::cluster_arrive<kCluster>();  // awaited before a store into another block: its barriers stand by then
    if (tid < kShareBins) sm.histogram[tid] = 0;
    if (tid < max_of(kTurns * kTurn / 32, 32)) sm.taken[tid] = 0, sm.won[tid] = 0;
  };
  const int list = blockIdx.x / kCluster, longest = args.max_pages;
  part.width = ((longest + kCluster - 1) / kCluster + 31) / 32 * 32;
  part.begin = part.rank * part.width;
  const int limit = min(part.begin + part.width, longest), page = part.begin + kVec * tid;
  const float* const scores = args.scores + static_cast<int64_t>(list) * HEADS * args.score_head_stride + page;
  const float2* const masses = reinterpret_cast<const float2*>(args.masses) + static_cast<int64_t>(list) * HEADS * reduce::kMassParts;
  const bool whole = (reinterpret_cast<uint64_t>(args.scores) | static_cast<uint64_t>(args.score_head_stride) * 4) % (4 * kVec) == 0;
  const bool held = args.masses != nullptr && args.batch == 1 && longest <= kCluster * kTurns * kTurn;
  if (!held) {
    stand_by();
    ptx::cluster_wait<kCluster>();
    return false;
  }
  const int length = load_length(args.seq_lens);
  if constexpr (kDependent) ptx::wait_for_dependencies();  // the scores; lengths stand since before the layer's first launch
  RowParts rows[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    if (warp + i * kWarps < HEADS) rows[i].load_usual(masses + (warp + i * kWarps) * reduce::kMassParts);
  float score[kTurns][HEADS][kVec];
  load_scores<HEADS, kVec, kTurns, kTurn>(score, scores, args.score_head_stride, limit - page, whole);
  stand_by();
  const int pages = min(static_cast<int>((static_cast<uint32_t>(max(length, 0)) + PAGE - 1) / PAGE), longest);
  part.sinks = min(args.sink_pages, pages), part.recent = max(pages - args.recent_pages, part.sinks);
  part.need = args.slots - (part.sinks + pages - part.recent), part.pages_wanted = args.slots;
  part.end = max(min(limit, pages), part.begin), part.pages = pages;
  bool tells = pages > args.slots && part.need > 0 && part.recent - part.sinks < 65536;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    if (warp + i * kWarps < HEADS) {
      const float2 head = rows[i].sum_usual(masses + (warp + i * kWarps) * reduce::kMassParts);
      tells = tells && head.y == head.y;
      if (lane == 0) heads[warp + i * kWarps] = head;
    }
  }
  if (!__syncthreads_and(tells)) {
    ptx::cluster_wait<kCluster>();
    return false;
  }
  float value[kVec * kTurns];
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const float2 head = heads[h];
#pragma unroll
    for (int i = 0; i < kVec * kTurns; ++i) {
      const float share = flushed_share(exp2_approx(fmaf(score[i / kVec][h][i % kVec], kLog2E, head.x)), head.y);
      value[i] = h == 0 ? share : value[i] + share;
    }
  }
  const int stop = min(part.end, part.recent);
#pragma unroll
  for (int i = 0; i < kVec * kTurns; ++i) {
    const int of = page + i / kVec * kTurn + i % kVec;
    const bool competes = of >= part.sinks && of < stop;
    if (!competes) value[i] = 0.0f;
    const int bin = share_bin<HEADS>(value[i]);
    if (bin > 0) atomicAdd(&sm.histogram[bin], 1u);
  }
  ptx::cluster_wait<kCluster>();
  ptx::wait_copies<0>();  // the caller's: choose meets after it
  return choose_held<HEADS, kThreads, kCluster, kVec, kTurns, false>(sm, part, value, values, out);
}

}  // namespace kvloom
