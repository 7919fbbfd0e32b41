// How page_select on a cluster finds the best pages, once every thread has the values of its pages and has counted them: the histogram, 8
// bins an octave, is exchanged once, so that every block knows the bin in which the best pages end, how many of each block's pages lie
// above it, and how many in it. Where that bin holds many pages, as where all pages score nearly alike, it is cut again by a histogram
// of its own. Pages of that bin alone are exchanged and ranked by share and page, exactly. Exchanges are st.async stores that complete
// on the receiver's mbarrier.
#pragma once

#include "kernels/page_select.cuh"
#include "kvloom/ptx/approx.cuh"
#include "kvloom/ptx/cluster_async.cuh"
#include "kvloom/ptx/exp2.cuh"

namespace kvloom {

namespace select {

constexpr int kShareBins = 256;
constexpr int kFineBins = 192;       // 8 an octave: 24 octaves below the largest possible sum of shares
constexpr int kMostCandidates = 512;  // of the bin in which the best pages end
constexpr int kFewCandidates = 160;   // more are worth a second histogram: ranking takes their square
constexpr int kMostExtra = 8192;      // pages of a block beyond those that its threads keep
constexpr float kLargestMass = 0x1p100f;  // beyond it 2^-100 of the mass could not be told from an underflow of exp

// The smallest power of two that is not below n.
__host__ __device__ constexpr int padded(int n) {
  int p = 1;
  while (p < n) p *= 2;
  return p;
}

// Shares are kept times 2^-26: a product below 2^-126 is flushed to 0, which is a share below 2^-100, for no instruction.
constexpr float kShareUnit = 0x1p-26f;

__device__ __forceinline__ float multiply_flushed(float a, float b) {
  float c;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// A score, or -inf and no access. One instruction and no branch: with branches between them the loads of a thread's pages would wait
// for what is computed of the first.
__device__ __forceinline__ float load_score(const float* p, bool live) {
  float v;
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, 0xff800000;\n@p ld.global.f32 %0, [%1];\n}\n"
               : "=f"(v)
               : "l"(p), "r"(static_cast<int>(live))
               : "memory");
  return v;
}

// Volatile, so that a branch that does not want it does not wait for it.
__device__ __forceinline__ int load_length(const int32_t* p) {
  int v;
  asm volatile("ld.global.s32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

__host__ __device__ constexpr int min_of(int a, int b) { return a < b ? a : b; }
__host__ __device__ constexpr int max_of(int a, int b) { return a < b ? b : a; }

// Eighths of an octave from 0 up to the largest sum of HEADS shares, no eighth of which a sum passes.
template <int HEADS>
__host__ __device__ constexpr int top_eighth() {
  return static_cast<int>(__builtin_bit_cast(uint32_t, padded(HEADS) * kShareUnit) >> 20);
}

// The bin of a sum of HEADS shares: larger sums never have a lower bin. Bin 0 holds zeros alone.
template <int HEADS>
__device__ __forceinline__ int share_bin(float sum) {
  const int below = max(top_eighth<HEADS>() - static_cast<int>(__float_as_uint(sum) >> 20), 0);
  const int bin = below < kFineBins ? kShareBins - 1 - below : max(kShareBins - 1 - kFineBins - (below - kFineBins) / 16, 1);
  return sum > 0.0f ? bin : 0;
}

// The least sum of a bin above 0.
template <int HEADS>
__device__ __forceinline__ float bin_begin(int bin) {
  const int below = bin >= kShareBins - kFineBins ? kShareBins - 1 - bin : kFineBins + 16 * (kShareBins - kFineBins - 1 - bin) + 15;
  return bin >= kShareBins ? reduce::kInfinity : __uint_as_float(max(top_eighth<HEADS>() - below, 0) << 20 | (top_eighth<HEADS>() <= below));
}

// The warp's sums of WIDTH values a lane: lane l ends with that of value l % WIDTH. Halves by recursion: a loop over a halving bound
// is not always unrolled, and the values would go to local memory.
template <int WIDTH, int ALL = WIDTH>
__device__ __forceinline__ float warp_sums(const float (&v)[WIDTH]) {
  if constexpr (WIDTH == 1) {
    float sum = v[0];
#pragma unroll
    for (int step = ALL; step < 32; step *= 2) sum += __shfl_xor_sync(reduce::kFullWarp, sum, step);
    return sum;
  } else {
    constexpr int kHalf = WIDTH / 2;
    const bool upper = threadIdx.x % 32 & kHalf;
    float halves[kHalf];
#pragma unroll
    for (int i = 0; i < kHalf; ++i) {
      const float given = __shfl_xor_sync(reduce::kFullWarp, upper ? v[i] : v[i + kHalf], kHalf);
      halves[i] = (upper ? v[i + kHalf] : v[i]) + given;
    }
    return warp_sums<kHalf, ALL>(halves);
  }
}

// Sums `count` rows of WIDTH floats: lane l ends with column l % WIDTH.
template <int WIDTH, int COUNT>
__device__ __forceinline__ float column_sums(const float* rows) {
  const int lane = threadIdx.x % 32;
  float sum = 0.0f;
#pragma unroll
  for (int r = 0; r < COUNT; r += 32 / WIDTH)
    if (COUNT % (32 / WIDTH) == 0 || r + lane / WIDTH < COUNT) sum += rows[(r + lane / WIDTH) * WIDTH + lane % WIDTH];
#pragma unroll
  for (int step = WIDTH; step < 32; step *= 2) sum += __shfl_xor_sync(reduce::kFullWarp, sum, step);
  return sum;
}

// Where the best pages end: `left` of the `in_bin` pages of that bin are still to be taken.
struct Cut {
  int bin, left, in_bin;
};

// In dynamic shared memory, where the radix kernel keeps its scores when it takes over. kExchanges: the blocks exchange masses and
// histograms.
template <int WIDTH, int kThreads, int kCluster, int kPages, bool kExchanges = true>
struct ClusterShared {
  static constexpr int kWarps = kThreads / 32;
  alignas(16) uint32_t histogram[kShareBins];              // of this block
  alignas(16) uint16_t histograms[kExchanges ? kCluster : 1][kShareBins];  // of all blocks
  alignas(16) uint16_t of_bin[kCluster][kShareBins];       // of all blocks, of the bin that is cut again
  alignas(16) float of_warps[kExchanges ? kWarps : 1][WIDTH];    // masses of this block
  alignas(16) float of_ranks[kExchanges ? kCluster : 1][WIDTH];  // masses of all blocks
  alignas(16) uint2 candidates[kMostCandidates];           // share's bits, page; ordered by rank alone
  alignas(16) int lower[kShareBins + 4];                   // pages of blocks of lower rank in this bin and those above; 0 past the last
  uint32_t taken[kWarps * kPages + kMostExtra / 32];       // a bit a page of the block's slice: taken whatever the ranking says
  uint32_t won[kWarps * kPages + kMostExtra / 32];         // and taken by it
  Cut cut;
  int sent;                                                // candidates of this block
  int before;                                              // pages taken by blocks of lower rank
  int sure_before;                                         // those of them that no ranking decides
};

// Counts of the eight bins from 248 - 8 l, summed over the first `ranks` blocks; counts[i] becomes that of the bin and those above it.
// One warp; true sums need 17 bits at most, for a row has fewer than 65536 competing pages.
template <int kCluster>
__device__ __forceinline__ void sum_bins(const uint16_t (*histograms)[kShareBins], int ranks, int (&upto)[8]) {
  const int lane = threadIdx.x % 32, first = kShareBins - 8 - 8 * lane;
  uint32_t all[4] = {};  // two 16-bit counts a word
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
    const uint4 c = *reinterpret_cast<const uint4*>(&histograms[r][first]);
    if (r < ranks) all[0] += c.x, all[1] += c.y, all[2] += c.z, all[3] += c.w;
  }
#pragma unroll
  for (int i = 7; i >= 0; --i) upto[i] = static_cast<int>(all[i / 2] >> 16 * (i % 2) & 0xffff) + (i < 7 ? upto[i + 1] : 0);
  const int before = reduce::warp_exclusive_scan(upto[0]);
#pragma unroll
  for (int i = 0; i < 8; ++i) upto[i] += before;
}

// Sends a block's histogram to all blocks. A constant number of turns: the compiler would unroll a loop from the thread's number four
// times.
template <int kThreads, int kCluster>
__device__ __forceinline__ void send_histogram(const uint32_t* histogram, const uint16_t* to_rank, uint32_t barrier) {
  constexpr int kPieces = kCluster * kShareBins / 8;  // 16 bytes for each destination
  const int tid = threadIdx.x;
#pragma unroll
  for (int from = 0; from < kPieces; from += kThreads) {
    const int piece = (from + tid) % (kShareBins / 8), to = (from + tid) / (kShareBins / 8);
    if (from + tid < kPieces) {
      const uint4 x = *reinterpret_cast<const uint4*>(&histogram[8 * piece]);
      const uint4 y = *reinterpret_cast<const uint4*>(&histogram[8 * piece + 4]);
      ptx::store_async(ptx::map_to_rank(ptx::shared_address(&to_rank[8 * piece]), to),
                       make_uint4(x.x | x.y << 16, x.z | x.w << 16, y.x | y.y << 16, y.z | y.w << 16), ptx::map_to_rank(barrier, to));
    }
  }
}

// Finds the cut from the counts of all blocks; one warp.
__device__ __forceinline__ void find_cut(const int (&upto)[8], int need, Cut& cut) {
  const int lane = threadIdx.x % 32;
  int before = __shfl_up_sync(reduce::kFullWarp, upto[0], 1);
  if (lane == 0) before = 0;
  if (before >= need || upto[0] < need) return;
  int bins = 0, above = before, in = upto[7] - before;
#pragma unroll
  for (int i = 7; i > 0; --i)
    if (upto[i] < need) ++bins, above = upto[i], in = upto[i - 1] - upto[i];
  cut = Cut{kShareBins - 1 - 8 * lane - bins, need - above, in};
}

// The first two warps: warp 0 finds the cut, and announces its candidates where there are no more than `most`; warp 1 finds what blocks of
// lower rank count.
template <int kCluster, class Memory>
__device__ __forceinline__ void cut_of(Memory& sm, const uint16_t (*histograms)[kShareBins], uint64_t* candidates, int rank, int left, int most) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  int upto[8];
  sum_bins<kCluster>(histograms, warp == 0 ? kCluster : rank, upto);
  if (warp == 0) {
    find_cut(upto, left, sm.cut);
    __syncwarp();
    // The other blocks' candidates may have landed already; the phase ends when all have.
    if (lane == 0 && sm.cut.in_bin > sm.cut.left && sm.cut.in_bin <= most) mbarrier_expect(candidates, 8 * sm.cut.in_bin);
  } else {
    int4* const to = reinterpret_cast<int4*>(&sm.lower[kShareBins - 8 - 8 * lane]);
    to[0] = make_int4(upto[0], upto[1], upto[2], upto[3]);
    to[1] = make_int4(upto[4], upto[5], upto[6], upto[7]);
    if (lane == 0) sm.lower[kShareBins] = 0;
  }
}

// Waits for the histograms of all blocks, and finds the cut.
template <int kCluster, class Memory>
__device__ __forceinline__ void cut_by(Memory& sm, const uint16_t (*histograms)[kShareBins], uint32_t landed, uint64_t* candidates, int rank,
                                       int left, int most) {
  if (threadIdx.x / 32 < 2) {
    ptx::wait_cluster_barrier(landed, 0);
    cut_of<kCluster>(sm, histograms, candidates, rank, left, most);
  }
  __syncthreads();
}

// How a bin is cut into 256 parts of equal width in the bits of a float: the parts' width is 2^step.
__device__ __forceinline__ int part_step(float least, float above) {
  return max(24 - __clz(min(__float_as_uint(above) - __float_as_uint(least), 1u << 28) - 1), 0);
}

// Cuts the bin [least, above) again. `values` is this thread's column of [turns][kThreads].
template <int kThreads, int kCluster, class Memory>
__device__ __forceinline__ void cut_bin(Memory& sm, const float* values, int turns, uint32_t landed, uint64_t* candidates, int rank,
                                        float least, float above, int left) {
  const int tid = threadIdx.x, step = part_step(least, above);
  if (tid < kShareBins) sm.histogram[tid] = 0;
  __syncthreads();
  for (int i = 0; i < turns; ++i) {
    const float v = values[i * kThreads];
    if (v >= least && v < above) atomicAdd(&sm.histogram[min((__float_as_uint(v) - __float_as_uint(least)) >> step, kShareBins - 1u)], 1u);
  }
  __syncthreads();
  send_histogram<kThreads, kCluster>(sm.histogram, sm.of_bin[rank], landed);
  cut_by<kCluster>(sm, sm.of_bin, landed, candidates, rank, left, kMostCandidates);
}

// The same as a call: what seldom runs stays out of the way of what always does.
template <int kThreads, int kCluster, class Memory>
__device__ __noinline__ void cut_bin_call(Memory& sm, const float* values, int turns, uint32_t landed, uint64_t* candidates, int rank,
                                          float least, float above, int left) {
  cut_bin<kThreads, kCluster>(sm, values, turns, landed, candidates, rank, least, above, left);
}

// A block's part of the row, and the barriers of its exchanges.
struct Part {
  int rank, begin, end;      // pages
  int turns;                 // steps of kThreads pages; below 1 where the block has none
  int sinks, recent, need;   // forced are pages below sinks and from recent on; how many of the others are wanted
  int pages_wanted;          // slots
  uint64_t *counts, *candidates, *bin;
};

// Arms what choose waits for. One thread, before the blocks meet.
template <int kCluster, class Memory>
__device__ __forceinline__ void prepare_choice(Memory& sm, const Part& part) {
  mbarrier_init(part.counts, 1);
  mbarrier_init(part.candidates, 1);
  mbarrier_init(part.bin, 1);
  mbarrier_init_fence();
  mbarrier_expect(part.counts, kCluster * kShareBins * 2);
  mbarrier_expect(part.bin, kCluster * kShareBins * 2);
  sm.sent = 0;
  sm.cut = Cut{0, 0, 0};
}

// The bits of a word's pages that lie before this lane's, and those of all words before it.
template <class Word>
__device__ __forceinline__ int bits_before(int words, Word word_of) {
  const int lane = threadIdx.x % 32;
  int before = 0;
#pragma unroll 1
  for (int w = lane; w < words; w += 32) before += __popc(word_of(w));
  return __reduce_add_sync(reduce::kFullWarp, before) + __popc(word_of(words) & ((1u << lane) - 1));
}

// Ranks the candidates of the cut, four lanes of the block each: won(rank, page) takes those that are among the best `left`, and what lies
// in this block's part or below it is noted. All warps, which do not meet here.
template <int kThreads, class Memory, class Won>
__device__ __forceinline__ void rank_candidates(Memory& sm, const Part& part, const Cut& cut, Won won) {
  const int tid = threadIdx.x, lane = tid % 32;
  for (int from = 0; from < cut.in_bin; from += kThreads / 4) {
    const int i = from + tid / 4;
    const bool live = i < cut.in_bin;
    if (!__any_sync(reduce::kFullWarp, live)) break;
    const uint2 mine = live ? sm.candidates[i] : make_uint2(0, 0);
    const int page = mine.y;
    int better = 0;
#pragma unroll 4
    for (int j = tid % 4; j < cut.in_bin; j += 4) {
      const uint2 other = sm.candidates[j];
      better += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
    }
    better += __shfl_xor_sync(reduce::kFullWarp, better, 1);
    better += __shfl_xor_sync(reduce::kFullWarp, better, 2);
    const bool wins = live && tid % 4 == 0 && better < cut.left;
    if (wins) won(better, page);
    if (wins && page >= part.begin && page < part.end) atomicOr(&sm.won[(page - part.begin) / 32], 1u << (page - part.begin) % 32);
    const uint32_t lower = __ballot_sync(reduce::kFullWarp, wins && page < part.begin);
    if (lane == 0 && lower != 0) atomicAdd(&sm.before, __popc(lower));
  }
}

// The same by one warp alone, of at most 32 candidates: a lane each. block_of is asked about each page before it is ranked, and won(rank,
// page, block) is told. notes: this warp is the one that notes for the block.
template <class Memory, class BlockOf, class Won>
__device__ __forceinline__ void rank_alone(Memory& sm, const Part& part, const Cut& cut, bool notes, BlockOf block_of, Won won) {
  const int lane = threadIdx.x % 32;
  const bool live = lane < cut.in_bin;
  const uint2 mine = live ? sm.candidates[lane] : make_uint2(0, 0);
  const int page = mine.y;
  const int block = live ? block_of(page) : 0;
  int better = 0;
#pragma unroll 4
  for (int j = 0; j < cut.in_bin; ++j) {
    const uint2 other = sm.candidates[j];
    better += other.x > mine.x || (other.x == mine.x && other.y < mine.y);
  }
  const bool wins = live && better < cut.left;
  if (wins) won(better, page, block);
  if (notes) {
    if (wins && page >= part.begin && page < part.end) atomicOr(&sm.won[(page - part.begin) / 32], 1u << (page - part.begin) % 32);
    const uint32_t lower = __ballot_sync(reduce::kFullWarp, wins && page < part.begin);
    if (lane == 0) sm.before += __popc(lower);
  }
  __syncwarp();
}

// Writes the pages of this block, chosen and ranked, behind a barrier of the block: out(position, page), in order.
template <int kThreads, class Memory, class Out>
__device__ __forceinline__ void write_list(const Memory& sm, const Part& part, const Out& out) {
  constexpr int kWarps = kThreads / 32;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
#pragma unroll 1
  for (int i = 0; i < part.turns; ++i) {
    const auto word_of = [&](int w) { return sm.taken[w] | sm.won[w]; };
    const uint32_t word = word_of(i * kWarps + warp);
    if (word == 0) continue;
    const int position = sm.before + bits_before(i * kWarps + warp, word_of);
    if (word >> lane & 1) out(position, part.begin + i * kThreads + tid);
  }
}

// Chooses the pages of a list: out(position, page) takes those of this block, in order. Where Out::kEarly, the pages are given in places of
// an order of their own, and the caller writes the list: out.sure(place, page, turn) has those of this block that no ranking decides, which
// fill the first places. out.begin(places) follows in every thread, and is true in warps that need places behind them. Those rank what is
// left each alone into out.own, where it is little; else the block ranks it into out.kept, and out.places counts it. out.block_of(page) is
// kept beside a page. The places of the other blocks are filled when they are.
//
// Values of pages that compete are in sm.histogram by share_bin, those of this thread's first kFirst pages in `first`, of the others
// (kOthers) in its column of `values`, [turns][kThreads]; 0 where a page does not compete. False, with nothing written, where too many
// pages lie in one bin or shares of 0 would be taken.
//
// kCounted: the caller has found the cut, by counts that it did not have to exchange.
template <int HEADS, int kThreads, int kCluster, int kFirst, bool kOthers, bool kCalls, bool kCounted = false, class Memory, class Out>
__device__ __forceinline__ bool choose(Memory& sm, const Part& part, const float (&first)[max_of(kFirst, 1)], float* values, Out& out) {
  constexpr int kWarps = kThreads / 32;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const uint32_t counts_in = ptx::shared_address(part.counts), candidates_in = ptx::shared_address(part.candidates);
  const uint32_t bin_in = ptx::shared_address(part.bin);
  if constexpr (!kCounted) {
    __syncthreads();
    send_histogram<kThreads, kCluster>(sm.histogram, sm.histograms[part.rank], counts_in);
    cut_by<kCluster>(sm, sm.histograms, counts_in, part.candidates, part.rank, part.need, kFewCandidates);
  }
  Cut cut = sm.cut;
  int lower_above = sm.lower[cut.bin + 1], lower_in_bin = sm.lower[cut.bin] - lower_above;
  bool whole = cut.in_bin == cut.left;  // the whole bin is taken: nothing to rank
  float least = bin_begin<HEADS>(max(cut.bin, 1)), above = bin_begin<HEADS>(cut.bin + 1);
  if (cut.bin <= 0) return false;
  if (!whole && cut.in_bin > kFewCandidates) {
#pragma unroll
    for (int i = 0; i < kFirst; ++i) values[i * kThreads] = first[i];
    if constexpr (kCalls) {
      cut_bin_call<kThreads, kCluster>(sm, values, part.turns, bin_in, part.candidates, part.rank, least, above, cut.left);
    } else {
      cut_bin<kThreads, kCluster>(sm, values, part.turns, bin_in, part.candidates, part.rank, least, above, cut.left);
    }
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
  const int begin = part.begin, end = part.end;
  const float sure = whole ? least : above;
  const auto classify = [&](int i, float v) {
    const int page = begin + i * kThreads + tid;
    const bool taken = v >= sure || (page < end && (page < part.sinks || page >= part.recent));
    const uint32_t word = __ballot_sync(reduce::kFullWarp, taken);
    if (lane == 0) sm.taken[i * kWarps + warp] = word, sm.won[i * kWarps + warp] = 0;
    if (v >= least && v < sure) {
      const int slot = lower_in_bin + atomicAdd(&sm.sent, 1);
      const uint32_t at = ptx::shared_address(&sm.candidates[slot]);
#pragma unroll
      for (int to = 0; to < kCluster; ++to)
        ptx::store_async(ptx::map_to_rank(at, to), make_uint2(__float_as_uint(v), page), ptx::map_to_rank(candidates_in, to));
    }
  };
#pragma unroll
  for (int i = 0; i < kFirst; ++i) {
    if (begin + i * kThreads >= end) break;
    classify(i, first[i]);
  }
  if constexpr (kOthers) {
#pragma unroll 1
    for (int i = kFirst; i < part.turns; ++i) classify(i, values[i * kThreads]);
  }
  if (tid == 0) {
    sm.before = min(begin, part.sinks) + max(begin - part.recent, 0) + lower_above + (whole ? lower_in_bin : 0);
    if constexpr (Out::kEarly) sm.sure_before = sm.before;
  }
  __syncthreads();
  const int places = part.pages_wanted - (whole ? 0 : cut.left);  // of pages that no ranking decides
  if constexpr (Out::kEarly) {
#pragma unroll 1
    for (int i = 0; i < part.turns; ++i) {
      const uint32_t word = sm.taken[i * kWarps + warp];
      if (word == 0) continue;
      const int place = sm.sure_before + bits_before(i * kWarps + warp, [&](int w) { return sm.taken[w]; });
      if (word >> lane & 1) out.sure(place, begin + i * kThreads + tid, i);
    }
    const bool needs = out.begin(places), alone = whole || cut.in_bin <= 32;
    if (!whole && (!alone || needs || warp == 0)) {
      ptx::wait_cluster_barrier(candidates_in, 0);
      if (alone)
        rank_alone(sm, part, cut, warp == 0, [&](int page) { return out.block_of(page); },
                   [&](int rank, int page, int block) { out.own[rank] = make_int2(page, block); });
      else
        rank_candidates<kThreads>(sm, part, cut, [&](int rank, int page) { out.kept[places + rank] = make_int2(page, out.block_of(page)); });
    }
    out.places = alone ? places : part.pages_wanted;
    __syncthreads();
    return true;  // the list is yet to be written
  } else if (!whole) {
    ptx::wait_cluster_barrier(candidates_in, 0);
    rank_candidates<kThreads>(sm, part, cut, [](int, int) {});
    __syncthreads();
  }
  if constexpr (!Out::kEarly) write_list<kThreads>(sm, part, out);
  return true;
}

}  // namespace select

}  // namespace kvloom
