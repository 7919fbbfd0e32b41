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
constexpr int kLowestBin = 41;       // below it lie sums near 2^-70, in which shares that count as 0 could have a part
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

__device__ __forceinline__ float flushed_share(float a, float b) {
  float c;
  asm("mul.rn.ftz.f32 %0, %1, %2;" : "=f"(c) : "f"(a), "f"(b));
  return c;
}

// A float, or the one with the bits kElse and no access. One instruction and no branch: with branches between them the loads of a thread's
// pages would wait for what is computed of the first.
template <uint32_t kElse>
__device__ __forceinline__ float load_or(const float* p, bool live) {
  float v;
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %2, 0;\nmov.b32 %0, %3;\n@p ld.global.f32 %0, [%1];\n}\n"
               : "=f"(v)
               : "l"(p), "r"(static_cast<int>(live)), "n"(kElse)
               : "memory");
  return v;
}

// Four floats, 16-byte aligned. Volatile, so that all of a thread's are asked for before the first is waited for.
__device__ __forceinline__ float4 load4(const float* p) {
  float4 v;
  asm volatile("ld.global.v4.f32 {%0, %1, %2, %3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "l"(p) : "memory");
  return v;
}

constexpr uint32_t kMinusInfinity = 0xff800000u;

// A score, or -inf and no access.
__device__ __forceinline__ float load_score(const float* p, bool live) { return load_or<kMinusInfinity>(p, live); }

// Four adjacent values of `rows` rows of floats, those before `limit`; else the float of the bits kElse. `whole`: rows are aligned to 16 bytes.
// Few instructions where all four are there, as nearly always.
template <uint32_t kElse, int kTurns, int kRows>
__device__ __forceinline__ void load_quads(float4 (&to)[kTurns][kRows], const float* row, int64_t stride, int turn, int at, int limit, bool whole,
                                           int rows = kRows) {
  if (__builtin_expect(whole && at + (kTurns - 1) * turn + 4 <= limit && rows >= kRows, true)) {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      const float* const from = row + r * stride + at;
#pragma unroll
      for (int i = 0; i < kTurns; ++i) to[i][r] = load4(from + i * turn);
    }
  } else {
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
#pragma unroll
      for (int i = 0; i < kTurns; ++i) {
        const int left = r < rows ? limit - at - i * turn : 0;
        const float* const from = row + r * stride + at + i * turn;
        to[i][r].x = load_or<kElse>(from, left > 0), to[i][r].y = load_or<kElse>(from + 1, left > 1);
        to[i][r].z = load_or<kElse>(from + 2, left > 2), to[i][r].w = load_or<kElse>(from + 3, left > 3);
      }
    }
  }
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

// The bin of a sum of HEADS shares, which pages below kLowestBin have none of: 0. Larger sums never have a lower bin. Bins below kShareBins -
// kFineBins are two octaves wide: the larger of two lines, which meet there.
template <int HEADS>
__device__ __forceinline__ int share_bin(float sum) {
  constexpr int kFirstWide = kShareBins - 1 - kFineBins + kFineBins / 16;
  const int eighth = static_cast<int>(__float_as_uint(sum) >> 20);
  const int bin = max(eighth + (kShareBins - 1 - top_eighth<HEADS>()), (eighth + (16 * kFirstWide + 15 - top_eighth<HEADS>())) >> 4);
  static_assert(kFineBins % 16 == 0 && 16 * kFirstWide + 15 >= top_eighth<HEADS>(), "the lines meet at a bin's end, and no bin is negative");
  static_assert(kFirstWide - (top_eighth<HEADS>() - static_cast<int>(__builtin_bit_cast(uint32_t, 0x1p-72f * kShareUnit) >> 20)) / 16 < kLowestBin,
                "sums of 2^-72 lie below the lowest bin");
  return bin >= kLowestBin ? bin : 0;
}

// The least sum of a bin from kLowestBin on.
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
  alignas(16) uint32_t of_cut[kShareBins / 32];            // counts of each warp's bins
  Cut cut;
  int sent;                                                // candidates of this block
  int before;                                              // pages taken by blocks of lower rank
  int sure[kCluster];                                      // pages of each block that no ranking decides
};

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

// Finds the cut, announces its candidates where there are no more than `most`, and finds what blocks of lower rank count; a bin a thread. All
// threads, which meet once; what is found is seen behind another barrier. Counts fit 16 bits: a row has fewer than 65536 competing pages.
template <int kCluster, class Memory>
__device__ __forceinline__ void cut_of(Memory& sm, const uint16_t (*histograms)[kShareBins], uint64_t* candidates, int rank, int need, int most) {
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, bin = kShareBins - 1 - tid;  // from the best down
  uint32_t in = 0, upto = 0;  // all blocks' pages, and those of lower rank in the upper half: of the bin; of it and those above
  if (tid < kShareBins) {
#pragma unroll
    for (int r = 0; r < kCluster; ++r) {
      const uint32_t count = histograms[r][bin];
      in += r < rank ? count * 0x10001u : count;
    }
    upto = in;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t other = __shfl_up_sync(reduce::kFullWarp, upto, step);
      upto += lane >= step ? other : 0u;
    }
    if (lane == 31) sm.of_cut[warp] = upto;
  }
  __syncthreads();
  if (tid < kShareBins) {
#pragma unroll
    for (int w = 0; w < kShareBins / 32 - 1; ++w) upto += w < warp ? sm.of_cut[w] : 0u;
    sm.lower[bin] = upto >> 16;
    if (tid == 0) sm.lower[kShareBins] = 0;
    const int count = in & 0xffff, before = (upto & 0xffff) - count;
    if (before < need && before + count >= need) {
      sm.cut = Cut{bin, need - before, count};
      // The other blocks' candidates may have landed already; the phase ends when all have.
      if (count > need - before && count <= most) mbarrier_expect(candidates, 8 * count);
    }
  }
}

// Waits for the histograms of all blocks, and finds the cut.
template <int kCluster, class Memory>
__device__ __forceinline__ void cut_by(Memory& sm, const uint16_t (*histograms)[kShareBins], uint32_t landed, uint64_t* candidates, int rank,
                                       int left, int most) {
  if (threadIdx.x < kShareBins) ptx::wait_cluster_barrier(landed, 0);
  cut_of<kCluster>(sm, histograms, candidates, rank, left, most);
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
  int width, pages;          // of a block's slice, of the row
  const uint16_t (*histograms)[kShareBins];  // of all blocks
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
// in this block's part, in `marks` by a bit a page, or below it is noted. All warps, which do not meet here.
template <int kThreads, class Memory, class Won>
__device__ __forceinline__ void rank_candidates(Memory& sm, const Part& part, const Cut& cut, uint32_t* marks, Won won) {
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
    if (wins && page >= part.begin && page < part.end) atomicOr(&marks[(page - part.begin) / 32], 1u << (page - part.begin) % 32);
    const uint32_t lower = __ballot_sync(reduce::kFullWarp, wins && page < part.begin);
    if (lane == 0 && lower != 0) atomicAdd(&sm.before, __popc(lower));
  }
}

template <int kThreads, class Memory, class Won>
__device__ __forceinline__ void rank_candidates(Memory& sm, const Part& part, const Cut& cut, Won won) {
  rank_candidates<kThreads>(sm, part, cut, sm.won, won);
}

// The same by one warp alone, of at most 32 candidates: a lane each, bit by bit from the first that differs, so that nothing waits for shared
// memory, which copies by other warps hold up. block_of is asked about each page before it is ranked, and won(rank, page, block) is told.
// notes: this warp is the one that notes for the block.
template <class Memory, class BlockOf, class Won>
__device__ __forceinline__ void rank_alone(Memory& sm, const Part& part, const Cut& cut, bool notes, BlockOf block_of, Won won) {
  const int lane = threadIdx.x % 32;
  const bool live = lane < cut.in_bin;
  const uint2 mine = live ? sm.candidates[lane] : make_uint2(0, 0);
  const int page = mine.y;
  const int block = live ? block_of(page) : 0;
  int better = 0;
  uint32_t same = (1u << (cut.in_bin - 1) << 1) - 1;  // lanes that are equal in the bits so far
  const uint32_t first = __shfl_sync(reduce::kFullWarp, mine.x, 0), differs = __reduce_or_sync(reduce::kFullWarp, live ? mine.x ^ first : 0u);
#pragma unroll 1
  for (uint32_t bit = differs == 0 ? 0u : 0x80000000u >> __clz(differs); bit != 0; bit >>= 1) {
    const bool has = mine.x & bit;
    const uint32_t with = __ballot_sync(reduce::kFullWarp, has);
    if (!has) better += __popc(same & with);
    same &= has ? with : ~with;
  }
  if (__any_sync(reduce::kFullWarp, live && (same & (same - 1)) != 0)) {  // equal shares: the lower page first
#pragma unroll 1
    for (int j = 0; j < cut.in_bin; ++j) {
      const int other = __shfl_sync(reduce::kFullWarp, page, j);
      better += (same >> j & 1) != 0 && other < page;
    }
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

// How many of a block's pages lie in bins from `first` on; one warp.
__device__ __forceinline__ int count_from(const uint16_t* histogram, int first) {
  const int lane = threadIdx.x % 32, skip = first - 8 * lane;  // of this lane's bins
  const uint4 c = *reinterpret_cast<const uint4*>(&histogram[8 * lane]);
  const uint32_t words[4] = {c.x, c.y, c.z, c.w};
  uint32_t sum = 0;
#pragma unroll
  for (int i = 0; i < 4; ++i) sum += (skip <= 2 * i ? words[i] & 0xffff : 0) + (skip <= 2 * i + 1 ? words[i] >> 16 : 0);
  return __reduce_add_sync(reduce::kFullWarp, sum);
}

// Pages of a block that are taken whatever their value.
__device__ __forceinline__ int forced_of(const Part& part, int block) {
  const int begin = block * part.width, end = min(begin + part.width, part.pages);
  return max(min(end, part.sinks) - begin, 0) + max(end - max(begin, part.recent), 0);
}

// Where the pages of a list go that the blocks of a cluster attend to, `share` of them each: first its own that no ranking decides, as many
// as there is room for. What blocks have beyond their room, in the order of blocks, and then what is ranked fills the room that is left,
// in the order of blocks too.
template <int kCluster>
struct Homes {
  int fill, share, surplus, vacant;  // of block `lane`: pages that stay, its room, and what lies before it of each

  __device__ __forceinline__ Homes(int sure, int slots) {
    const int lane = threadIdx.x % 32;
    share = lane < kCluster ? slots / kCluster + (lane < slots % kCluster) : 0;
    fill = min(lane < kCluster ? sure : 0, share);
    const int more = lane < kCluster ? sure - fill : 0;
    const int before = reduce::warp_exclusive_scan(more << 16 | (share - fill));
    surplus = before >> 16, vacant = before & 0xffff;
  }
  __device__ __forceinline__ int all_surplus() const { return __shfl_sync(reduce::kFullWarp, surplus, 31); }
  // The block that item `item` of the others goes to, and the place there. All lanes.
  __device__ __forceinline__ int2 of(int item) const {
    int block = 0;
#pragma unroll
    for (int b = 1; b < kCluster; ++b) block += item >= __shfl_sync(reduce::kFullWarp, vacant, b);
    return make_int2(block, item - __shfl_sync(reduce::kFullWarp, vacant - fill, block));
  }
};

// Chooses the pages of a list: out(position, page) takes those of this block, in order. Where Out::kEarly, they go where the blocks of the
// cluster attend to them (Homes), and the caller writes the list behind a barrier of the block: out.stays(place, page, turn) and
// out.leaves(block, place, page, turn) have this block's pages that no ranking decides. out.begin(fill, items, surplus) follows in every
// thread: places that are filled when it returns, the number of the first item that comes to the others, how many are not ranked. It is
// true in warps that need such places. Those rank what is left each alone into out.own, where it is little; else the block ranks it into
// out.ranked, and out.alone is false. out.block_of(page) is kept beside a page. What other blocks send is yet to be waited for.
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
  const int first_bin = cut.bin + 1;
  int lower_above = sm.lower[cut.bin + 1], lower_in_bin = sm.lower[cut.bin] - lower_above;
  bool whole = cut.in_bin == cut.left;  // the whole bin is taken: nothing to rank
  float least = bin_begin<HEADS>(max(cut.bin, 1)), above = bin_begin<HEADS>(cut.bin + 1);
  if (cut.bin <= 0) return false;
  const bool cut_again = !whole && cut.in_bin > kFewCandidates;
  if (cut_again) {
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
    const bool forced = page < end && (page < part.sinks || page >= part.recent), taken = v >= sure || forced;
    if (!__any_sync(reduce::kFullWarp, v >= least || forced)) {  // as of most pages
      if (lane == 0) sm.taken[i * kWarps + warp] = 0, sm.won[i * kWarps + warp] = 0;
      return;
    }
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
  if (tid == 0) sm.before = min(begin, part.sinks) + max(begin - part.recent, 0) + lower_above + (whole ? lower_in_bin : 0);
  if constexpr (Out::kEarly) {
    for (int b = warp; b < kCluster; b += kWarps) {
      int count = forced_of(part, b) + count_from(part.histograms[b], first_bin - (whole && !cut_again));
      if (cut_again) count += count_from(sm.of_bin[b], cut.bin + !whole);
      if (lane == 0) sm.sure[b] = count;
    }
  }
  __syncthreads();
  if constexpr (Out::kEarly) {
    const Homes<kCluster> homes(lane < kCluster ? sm.sure[lane] : 0, part.pages_wanted);
    const int fill = __shfl_sync(reduce::kFullWarp, homes.fill, part.rank), surplus = __shfl_sync(reduce::kFullWarp, homes.surplus, part.rank);
#pragma unroll 1
    for (int i = 0; i < part.turns; ++i) {
      const uint32_t word = sm.taken[i * kWarps + warp];
      if (word == 0) continue;
      const int place = bits_before(i * kWarps + warp, [&](int w) { return sm.taken[w]; }), page = begin + i * kThreads + tid;
      const bool mine = word >> lane & 1, leaves = mine && place >= fill;
      if (mine && !leaves) out.stays(place, page, i);
      if (__any_sync(reduce::kFullWarp, leaves)) {
        const int2 home = homes.of(surplus + place - fill);
        if (leaves) out.leaves(home.x, home.y, page, i);
      }
    }
    const bool needs = out.begin(fill, __shfl_sync(reduce::kFullWarp, homes.vacant, part.rank), homes.all_surplus());
    out.alone = whole || cut.in_bin <= 32;
    __syncthreads();  // the places that stay are filled
    if (!whole && (!out.alone || needs || warp == 0)) {
      ptx::wait_cluster_barrier(candidates_in, 0);
      if (out.alone)
        rank_alone(sm, part, cut, warp == 0, [&](int page) { return out.block_of(page); },
                   [&](int rank, int page, int block) { out.own[rank] = make_int2(page, block); });
      else
        rank_candidates<kThreads>(sm, part, cut, [&](int rank, int page) { out.ranked[rank] = make_int2(page, out.block_of(page)); });
    }
    if (!out.alone) __syncthreads();
    return true;
  } else if (!whole) {
    ptx::wait_cluster_barrier(candidates_in, 0);
    rank_candidates<kThreads>(sm, part, cut, [](int, int) {});
    __syncthreads();
  }
  if constexpr (!Out::kEarly) write_list<kThreads>(sm, part, out);
  return true;
}

constexpr int kFewRanked = 64;

// Ranks the candidates of the cut, at most kFewRanked: a warp some of them, each against all, two a lane. Winners are taken where they are
// this block's, and counted where they lie below it.
template <int kWarps, class Memory>
__device__ __forceinline__ void rank_few(Memory& sm, const Part& part, const Cut& cut) {
  constexpr int kOfWarp = kFewRanked / kWarps;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const auto key_of = [&](int i) {  // the better one is the larger
    uint2 c = make_uint2(0, ~0u);
    if (i < cut.in_bin) c = sm.candidates[i];
    return static_cast<uint64_t>(c.x) << 32 | ~c.y;
  };
  const uint64_t first = key_of(lane), second = key_of(lane + 32), ranked = lane < kOfWarp ? key_of(warp + lane * kWarps) : 0;
  int better = 0;  // than this lane's
#pragma unroll
  for (int i = 0; i < kOfWarp; ++i) {
    const uint64_t one = key_of(warp + i * kWarps);
    const int n = __popc(__ballot_sync(reduce::kFullWarp, first > one)) + __popc(__ballot_sync(reduce::kFullWarp, second > one));
    if (lane == i) better = n;
  }
  const int at = static_cast<int>(~static_cast<uint32_t>(ranked)) - part.begin;
  const bool wins = ranked != 0 && better < cut.left;
  if (wins && at >= 0 && at < part.end - part.begin) atomicOr(&sm.taken[at / 32], 1u << at % 32);
  const uint32_t lower = __ballot_sync(reduce::kFullWarp, wins && at < 0);
  if (lane == 0 && lower != 0) atomicAdd(&sm.before, __popc(lower));
}

// Writes the taken pages of this block, behind a barrier of the block: a thread has a word of 32 pages.
template <int kThreads, class Memory, class Out>
__device__ __forceinline__ void write_words(const Memory& sm, const Part& part, const Out& out) {
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, words = (part.end - part.begin + 31) / 32;
  if (warp * 32 >= words) return;
  uint32_t word = tid < words ? sm.taken[tid] : 0;
  int before = 0;
#pragma unroll 1
  for (int w = lane; w < warp * 32; w += 32) before += __popc(sm.taken[w]);
  int position = sm.before + __reduce_add_sync(reduce::kFullWarp, before) + reduce::warp_exclusive_scan(__popc(word));
  for (; word != 0; word &= word - 1) out(position++, part.begin + 32 * tid + __ffs(word) - 1);
}

// Words of shared memory that choose_quads needs: values and candidates of the block.
__host__ __device__ constexpr int quads_words(int threads, int quads) { return 4 * quads * threads + 2 * kMostCandidates; }

// The same choice of values in registers, four adjacent pages a thread and turn: value[4 q + i] is that of page begin + 4 (q kThreads + tid) +
// i; 0 where it does not compete. sm.taken is zeroed. `values` is this block's, with room for quads_words.
template <int HEADS, int kThreads, int kCluster, int kQuads, bool kCounted, class Memory, class Out>
__device__ __forceinline__ bool choose_quads(Memory& sm, const Part& part, const float (&value)[4 * kQuads], float* values, Out& out) {
  constexpr int kWarps = kThreads / 32;
  static_assert(4 * kQuads <= 32 && kWarps * kQuads * 4 <= kThreads, "a thread has a word of the pages that are taken");
  const int tid = threadIdx.x;
  const uint32_t counts_in = ptx::shared_address(part.counts), candidates_in = ptx::shared_address(part.candidates);
  if constexpr (!kCounted) {
    __syncthreads();
    send_histogram<kThreads, kCluster>(sm.histogram, sm.histograms[part.rank], counts_in);
  }
  float* const mine = values + 4 * tid;  // [kQuads], 4 kThreads apart; while counts are on their way
#pragma unroll
  for (int q = 0; q < kQuads; ++q)
    *reinterpret_cast<float4*>(mine + q * 4 * kThreads) = make_float4(value[4 * q], value[4 * q + 1], value[4 * q + 2], value[4 * q + 3]);
  if constexpr (!kCounted) cut_by<kCluster>(sm, sm.histograms, counts_in, part.candidates, part.rank, part.need, kFewCandidates);
  Cut cut = sm.cut;
  if (cut.bin <= 0) return false;
  int lower_above = sm.lower[cut.bin + 1], lower_in_bin = sm.lower[cut.bin] - lower_above;
  bool whole = cut.in_bin == cut.left;  // the whole bin is taken: nothing to rank
  float least = bin_begin<HEADS>(cut.bin), above = bin_begin<HEADS>(cut.bin + 1);
  if (!whole && cut.in_bin > kFewCandidates) {
    cut_bin_call<kThreads, kCluster>(sm, values + tid, part.turns, ptx::shared_address(part.bin), part.candidates, part.rank, least, above, cut.left);
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
  uint2* const own = reinterpret_cast<uint2*>(values + 4 * kQuads * kThreads);  // candidates of this block
  uint32_t hits = 0;
#pragma unroll
  for (int i = 0; i < 4 * kQuads; ++i) hits |= value[i] >= least ? 1u << i : 0u;
#pragma unroll 1
  for (; hits != 0; hits &= hits - 1) {  // of few threads
    const int i = __ffs(hits) - 1, of = i / 4 * (4 * kThreads) + i % 4;
    const float v = mine[of];
    const uint32_t at = 4 * tid + of;
    if (v >= sure)
      atomicOr(&sm.taken[at / 32], 1u << at % 32);
    else
      own[atomicAdd(&sm.sent, 1)] = make_uint2(__float_as_uint(v), part.begin + at);
  }
#pragma unroll 1
  for (int at = tid; at < min(part.end, part.sinks) - part.begin; at += kThreads) atomicOr(&sm.taken[at / 32], 1u << at % 32);
#pragma unroll 1
  for (int at = max(part.recent - part.begin, 0) + tid; at < part.end - part.begin; at += kThreads) atomicOr(&sm.taken[at / 32], 1u << at % 32);
  if (tid == 0) sm.before = min(part.begin, part.sinks) + max(part.begin - part.recent, 0) + lower_above + (whole ? lower_in_bin : 0);
  __syncthreads();
  if (!whole) {
    const uint32_t pieces = sm.sent * kCluster;
#pragma unroll 1
    for (uint32_t x = tid; x < pieces; x += kThreads) {
      const uint32_t to = x % kCluster;
      ptx::store_async(ptx::map_to_rank(ptx::shared_address(&sm.candidates[lower_in_bin + x / kCluster]), to), own[x / kCluster],
                       ptx::map_to_rank(candidates_in, to));
    }
    ptx::wait_cluster_barrier(candidates_in, 0);
    if (cut.in_bin <= kFewRanked)
      rank_few<kWarps>(sm, part, cut);
    else
      rank_candidates<kThreads>(sm, part, cut, sm.taken, [](int, int) {});
    __syncthreads();
  }
  write_words<kThreads>(sm, part, out);
  return true;
}

}  // namespace select

}  // namespace kvloom
