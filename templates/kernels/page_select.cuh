// page_select: combines a group's page scores into one value a page and picks the best pages exactly, by radix selection over
// integer keys. One block, or a cluster of blocks that share the row through distributed shared memory, serves one list.
//
// Passes over a block's slice of the row: peak and mass of each head; values as keys and the first digit's histogram; two more
// digits among the candidates that are left; ordered output. Every sum has a fixed order, so results repeat bit for bit; nothing
// has a capacity that candidates could exceed.
#pragma once

#include "kvloom/abi.cuh"
#include "kvloom/ptx/cluster.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/reduce/block_scan.cuh"
#include "kvloom/reduce/page_value.cuh"

namespace kvloom {

namespace select {

using reduce::Combine;
using reduce::Mass;

constexpr int kDigits = 3;
constexpr int kBins = 2048;  // of the widest digit: 11 + 11 + 10 bits
__device__ constexpr int shift_of(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__device__ constexpr int bins_of(int digit) { return digit == 2 ? 1024 : 2048; }

// What the blocks of a cluster exchange, and scratch of one block.
template <int HEADS, int kThreads, int kCluster>
struct Shared {
  static constexpr int kWarps = kThreads / 32;
  alignas(16) uint32_t histogram[kDigits * kBins];  // flat, for it is cleared as one
  Mass of_warps[HEADS * kWarps];
  Mass of_ranks[kCluster][HEADS];
  float2 heads[HEADS];            // peak, 1 / mass
  int2 counts_of_ranks[kCluster];  // pages above the threshold or forced, pages at it
  int2 counts_of_warps[kWarps];
  int scan[kDigits][kWarps];
  int found[kDigits][3];          // digit, keys above it, keys in it
};

// The part of a row that this warp walks, 32 pages a step. Indices are pages of the row; pages are stored from `begin` of the block.
struct Slice {
  int pages;              // n of the row
  int block_begin;        // first page of the block's slice
  int block_pages;        // pages of the block's slice, the last slices of a short row empty
  int begin, end;         // of this warp
};

template <int kThreads, int kCluster>
__device__ __forceinline__ Slice slice_of(int pages, int rank, int width) {
  Slice s;
  s.pages = pages;
  s.block_begin = min(rank * width, pages);
  s.block_pages = min(width, pages - s.block_begin);
  const int each = (s.block_pages + kThreads - 1) / kThreads * 32;
  const int warp = threadIdx.x / 32;
  s.begin = s.block_begin + min(warp * each, s.block_pages);
  s.end = s.block_begin + min((warp + 1) * each, s.block_pages);
  return s;
}

// The row's scores: in shared memory when they fit (copied there by the first pass), else where page_score left them.
template <int HEADS>
struct Row {
  const float* scores;    // [HEADS][page] of this list, row stride below
  int64_t head_stride;
  float* staged;          // [HEADS][block_pages] or null
  int staged_stride;

  __device__ __forceinline__ float at(int head, int page, int block_begin) const {
    return staged ? staged[head * staged_stride + (page - block_begin)] : scores[head * head_stride + page];
  }
};

// Peak and mass of each head over this warp's pages. Copies the scores to shared memory on the way.
template <int HEADS, bool kMass, bool kFinitePeak>
__device__ __forceinline__ void measure(const Row<HEADS>& row, const Slice& s, Mass* of_warps, int warps) {
  constexpr int kHeadsAtOnce = HEADS < 4 ? HEADS : 4;
  constexpr int kSteps = 16 / kHeadsAtOnce < 8 ? 16 / kHeadsAtOnce : 8;  // independent loads in flight: up to 16
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const float kNaN = __int_as_float(0x7fffffff);
  for (int first = 0; first < HEADS; first += kHeadsAtOnce) {
    float peak[kHeadsAtOnce];
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) peak[h] = -reduce::kInfinity;
    for (int base = s.begin + lane; base < s.end; base += 32 * kSteps) {
      float v[kSteps][kHeadsAtOnce];
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          const bool live = base + 32 * i < s.end && first + h < HEADS;
          v[i][h] = live ? row.scores[(first + h) * row.head_stride + base + 32 * i] : kNaN;
        }
#pragma unroll
      for (int i = 0; i < kSteps; ++i)
#pragma unroll
        for (int h = 0; h < kHeadsAtOnce; ++h) {
          if (row.staged && base + 32 * i < s.end && first + h < HEADS)
            row.staged[(first + h) * row.staged_stride + base + 32 * i - s.block_begin] = v[i][h];
          const bool counts = !kFinitePeak || v[i][h] < reduce::kInfinity;
          if (counts) peak[h] = fmaxf(peak[h], v[i][h]);  // fmaxf leaves NaN out
        }
    }
#pragma unroll
    for (int h = 0; h < kHeadsAtOnce; ++h) {
      if (first + h >= HEADS) break;
#pragma unroll
      for (int step = 16; step > 0; step /= 2)
        peak[h] = fmaxf(peak[h], __shfl_xor_sync(reduce::kFullWarp, peak[h], step));
      Mass m{peak[h], 0.0f};
      if constexpr (kMass) {
        if (m.peak > -reduce::kInfinity) {
#pragma unroll 4
          for (int page = s.begin + lane; page < s.end; page += 32)
            m.sum += reduce::exp_difference(row.at(first + h, page, s.block_begin), m.peak);
        }
#pragma unroll
        for (int step = 16; step > 0; step /= 2) m.sum += __shfl_xor_sync(reduce::kFullWarp, m.sum, step);
      }
      if (lane == 0) of_warps[(first + h) * warps + warp] = m;
    }
  }
}

// The key of one page: larger is better, 0 for a page that is NaN for every head.
template <int HEADS, Combine COMBINE>
__device__ __forceinline__ uint32_t key_of(const Row<HEADS>& row, const float2* heads, float top, int page, int block_begin) {
  if constexpr (reduce::is_share(COMBINE)) {
    float sum = 0.0f;
    bool votes = false;
#pragma unroll 4
    for (int h = 0; h < HEADS; ++h) {
      const float s = row.at(h, page, block_begin);
      const float2 head = heads[h];
      float share = head.x > -reduce::kInfinity ? reduce::exp_difference(s, head.x) * head.y : 0.0f;
      if (share < reduce::kSmallestShare) share = 0.0f;
      sum += share;  // the sum over the group ranks as its mean does
      votes |= s == s;
    }
    return votes ? reduce::share_key(sum) : 0u;
  } else {
    float best = -reduce::kInfinity;
    bool votes = false;
#pragma unroll 4
    for (int h = 0; h < HEADS; ++h) {
      const float s = row.at(h, page, block_begin);
      best = fmaxf(best, s);
      votes |= s == s;
    }
    if (!votes) return 0u;
    if constexpr (COMBINE == Combine::kGroupMass) {
      // Relative to the group's largest finite score: near the top the value is near 0, where floats are dense.
      if (best > -reduce::kInfinity && best < reduce::kInfinity) {
        float sum = 0.0f;
#pragma unroll 4
        for (int h = 0; h < HEADS; ++h) sum += reduce::exp_difference(row.at(h, page, block_begin), best);
        const float d = best - top, b = d - best;
        best = d + (logf(sum) + ((best - (d - b)) + (-top - b)));
      }
    }
    return reduce::logarithm_key(best);
  }
}

// Finds the digit in which the `need` largest keys end: this block's histogram plus those of the other ranks.
template <int kThreads, int kCluster, int BINS>
__device__ __forceinline__ void find_digit(const uint32_t* histogram, int need, int (&scan)[kThreads / 32], int* found) {
  static_assert(BINS % (2 * kThreads) == 0 || BINS == kThreads, "a thread owns a pair of bins, or one");
  constexpr int kEach = BINS / kThreads;
  const int top = BINS - kEach - kEach * static_cast<int>(threadIdx.x);  // lowest of the thread's bins; threads go down
  uint32_t count[kEach] = {};
  if constexpr (kCluster == 1) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) count[i] = histogram[top + i];
  } else {
    const uint32_t address = ptx::shared_address(histogram + top);
#pragma unroll
    for (int r = 0; r < kCluster; ++r) {
      const uint32_t remote = ptx::map_to_rank(address, r);
      if constexpr (kEach == 1) {
        count[0] += ptx::load_cluster_word(remote);
      } else {
#pragma unroll
        for (int i = 0; i < kEach; i += 2) {
          const uint2 pair = ptx::load_cluster(remote + 4 * i);
          count[i] += pair.x;
          count[i + 1] += pair.y;
        }
      }
    }
  }
  int total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) total += count[i];
  int above = reduce::block_exclusive_scan<kThreads>(total, scan);
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
    const int in = count[i];
    if (above < need && above + in >= need) {
      found[0] = top + i;
      found[1] = above;
      found[2] = in;
    }
    above += in;
  }
  __syncthreads();
}

// The threshold as far as it is known: `left` of the keys that share the prefix are still to be taken.
struct Threshold {
  uint32_t prefix;  // the digits found so far
  int left;
  uint32_t key;
  bool done;
};

// Counts the next digit of the keys that share the prefix.
template <int DIGIT, int HEADS, int kThreads, int kCluster>
__device__ __forceinline__ void count_digit(Shared<HEADS, kThreads, kCluster>& sm, const Threshold& t, const uint32_t* keys,
                                            const Slice& s, int sinks, int recent) {
  if (t.done) return;
  for (int page = s.begin + threadIdx.x % 32; page < s.end; page += 32) {
    const uint32_t key = keys[page - s.block_begin];
    if (key >> shift_of(DIGIT - 1) == t.prefix && page >= sinks && page < recent)
      atomicAdd(&sm.histogram[DIGIT * kBins + (key >> shift_of(DIGIT)) % bins_of(DIGIT)], 1u);
  }
}

// Fixes one digit of the threshold, alike in every block of the cluster.
template <int DIGIT, int HEADS, int kThreads, int kCluster>
__device__ __forceinline__ void refine(Shared<HEADS, kThreads, kCluster>& sm, Threshold& t) {
  if (t.done) return;
  ptx::cluster_sync<kCluster>();
  find_digit<kThreads, kCluster, bins_of(DIGIT)>(sm.histogram + DIGIT * kBins, t.left, sm.scan[DIGIT], sm.found[DIGIT]);
  t.prefix = t.prefix * bins_of(DIGIT) + sm.found[DIGIT][0];
  t.left -= sm.found[DIGIT][1];
  t.key = t.prefix << shift_of(DIGIT);
  if (t.left == sm.found[DIGIT][2] && t.key > 0) {  // the whole bin is taken: every key from its lowest up, no ties to settle
    t.key -= 1;
    t.left = 0;
    t.done = true;
  }
}

// Merges the warps' peaks and masses over the block and the cluster into sm.heads.
template <bool kMass, int HEADS, int kThreads, int kCluster>
__device__ __forceinline__ void merge_heads(Shared<HEADS, kThreads, kCluster>& sm, int rank) {
  constexpr int kWarps = kThreads / 32;
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  const Mass none{-reduce::kInfinity, 0.0f};
  for (int h = warp; h < HEADS; h += kWarps) {
    const Mass m = reduce::warp_merge<kWarps>(lane < kWarps ? sm.of_warps[h * kWarps + lane] : none);
    if constexpr (kCluster == 1) {
      if (lane == 0) sm.heads[h] = make_float2(m.peak, kMass ? 1.0f / m.sum : 1.0f);
    } else if (lane < kCluster) {
      ptx::store_cluster(ptx::map_to_rank(ptx::shared_address(&sm.of_ranks[rank][h]), lane), __float_as_uint(m.peak),
                         __float_as_uint(m.sum));
    }
  }
  if constexpr (kCluster > 1) {
    ptx::cluster_sync<kCluster>();
    for (int h = warp; h < HEADS; h += kWarps) {
      const Mass m = reduce::warp_merge<kCluster>(lane < kCluster ? sm.of_ranks[lane][h] : none);
      if (lane == 0) sm.heads[h] = make_float2(m.peak, kMass ? 1.0f / m.sum : 1.0f);
    }
  }
  __syncthreads();
}

template <int HEADS>
__device__ __forceinline__ float largest_peak(const float2 (&heads)[HEADS]) {
  float top = -reduce::kInfinity;
  for (int h = 0; h < HEADS; ++h) top = fmaxf(top, heads[h].x);
  return top;
}

}  // namespace select

// HEADS is the number of query heads of one list: the group, or 1 for per_head. kBufferWords is dynamic shared memory, in words.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent>
__device__ __forceinline__ void page_select(const PageSelectArgs& args) {
  using namespace select;
  static_assert(kThreads % 32 == 0 && kThreads >= 256 && kThreads <= 1024, "a block is 8 to 32 warps");
  static_assert(HEADS >= 1 && HEADS <= 64, "a group is 1 to 64 query heads");
  static_assert(COMBINE != Combine::kPerHead || HEADS == 1, "a per_head list is one query head's");
  constexpr int kWarps = kThreads / 32;
  constexpr bool kNeedsMass = COMBINE == Combine::kShareAverage;
  constexpr bool kNeedsPeak = reduce::is_share(COMBINE) || COMBINE == Combine::kGroupMass;
  __shared__ Shared<HEADS, kThreads, kCluster> sm;
  extern __shared__ __align__(16) uint32_t buffer[];  // [kBufferWords]
  if constexpr (kDependent) ptx::wait_for_dependencies();

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int rank = ptx::cluster_rank<kCluster>();
  const int list = blockIdx.x / kCluster, lists = gridDim.x / kCluster, request = blockIdx.y;
  const int length = max(args.seq_lens[request], 0);
  const int pages = min(static_cast<int>((static_cast<int64_t>(length) + PAGE - 1) / PAGE), args.max_pages);
  const int slots = args.slots, chosen = min(slots, pages);
  int32_t* const out = args.pages + request * args.pages_batch_stride + list * args.pages_list_stride;  // [slots]
  if (rank == 0) {
    if (tid == 0) args.counts[static_cast<int64_t>(request) * lists + list] = chosen;
    for (int i = chosen + tid; i < slots; i += kThreads) out[i] = -1;
  }
  if (pages <= slots) {  // every page; no block of the cluster goes on
    for (int i = rank * kThreads + tid; i < pages; i += kCluster * kThreads) out[i] = i;
    return;
  }

  const int sinks = min(args.sink_pages, pages), recent = max(pages - args.recent_pages, sinks);
  const int need = max(slots - (sinks + pages - recent), 0);  // pages that compete for what the forced ones leave
  const int width = ((pages + kCluster - 1) / kCluster + 31) / 32 * 32;
  const Slice s = slice_of<kThreads, kCluster>(pages, rank, width);
  Row<HEADS> row;
  row.scores = args.scores + request * args.score_batch_stride + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
  row.head_stride = args.score_head_stride;
  row.staged_stride = width;
  row.staged = kNeedsPeak && width <= kBufferWords / HEADS ? reinterpret_cast<float*>(buffer) : nullptr;
  // Keys take the place of the first head's staged scores: a page's key is made and kept by the thread that read its scores.
  const bool spilled = width > kBufferWords;
  uint32_t* const keys = spilled ? args.workspace + (static_cast<int64_t>(request) * lists + list) * args.max_pages + s.block_begin
                                 : buffer;  // [block_pages]

  uint32_t threshold = 0xffffffffu;  // keys above it are taken, and the first `ties` keys equal to it
  int ties = 0;
  ptx::cluster_arrive<kCluster>();  // awaited before the first store into another block: that block runs by then
  if (need > 0) {
    for (int i = tid; i < kDigits * kBins; i += kThreads) sm.histogram[i] = 0;
    if constexpr (kNeedsPeak)
      measure<HEADS, kNeedsMass, COMBINE == Combine::kGroupMass>(row, s, sm.of_warps, kWarps);
    __syncthreads();
  }
  ptx::cluster_wait<kCluster>();
  if (need > 0) {
    if constexpr (kNeedsPeak) merge_heads<kNeedsMass>(sm, rank);
    const float top = COMBINE == Combine::kGroupMass ? largest_peak(sm.heads) : 0.0f;
    for (int page = s.begin + lane; page < s.end; page += 32) {
      const uint32_t key = key_of<HEADS, COMBINE>(row, sm.heads, top, page, s.block_begin);
      keys[page - s.block_begin] = key;
      if (page >= sinks && page < recent) atomicAdd(&sm.histogram[key >> shift_of(0)], 1u);
    }
    Threshold t{0, need, 0, false};
    refine<0>(sm, t);
    count_digit<1>(sm, t, keys, s, sinks, recent);
    refine<1>(sm, t);
    count_digit<2>(sm, t, keys, s, sinks, recent);
    refine<2>(sm, t);
    threshold = t.key;
    ties = t.left;
  }

  int above = 0, equal = 0;
  for (int page = s.begin + lane; page < s.end; page += 32) {
    const bool forced = page < sinks || page >= recent;
    const uint32_t key = need > 0 ? keys[page - s.block_begin] : 0u;
    above += forced || key > threshold;
    equal += !forced && key == threshold;
  }
  above = reduce::warp_sum(above);
  equal = reduce::warp_sum(equal);
  if (lane == 0) sm.counts_of_warps[warp] = make_int2(above, equal);
  __syncthreads();
  int2 before;  // of the block's warps below this one, then of all pages before this warp's
  {
    const int2 c = lane < kWarps ? sm.counts_of_warps[lane] : make_int2(0, 0);
    const int2 below = make_int2(reduce::warp_exclusive_scan(c.x), reduce::warp_exclusive_scan(c.y));
    before = make_int2(__shfl_sync(reduce::kFullWarp, below.x, warp), __shfl_sync(reduce::kFullWarp, below.y, warp));
    if constexpr (kCluster > 1) {
      const int2 all = make_int2(__shfl_sync(reduce::kFullWarp, below.x + c.x, 31), __shfl_sync(reduce::kFullWarp, below.y + c.y, 31));
      if (warp == 0 && lane < kCluster)
        ptx::store_cluster(ptx::map_to_rank(ptx::shared_address(&sm.counts_of_ranks[rank]), lane), all.x, all.y);
      ptx::cluster_sync<kCluster>();  // also: nobody reads another block's shared memory after this, so blocks may leave
      for (int r = 0; r < rank; ++r) {
        before.x += sm.counts_of_ranks[r].x;
        before.y += sm.counts_of_ranks[r].y;
      }
    }
  }
  const uint32_t lower_lanes = (1u << lane) - 1;
  for (int base = s.begin; base < s.end; base += 32) {
    const int page = base + lane;
    const bool live = page < s.end, forced = live && (page < sinks || page >= recent);
    const uint32_t key = live && need > 0 ? keys[page - s.block_begin] : 0u;
    const uint32_t is_above = __ballot_sync(reduce::kFullWarp, forced || (live && key > threshold));
    const uint32_t is_equal = __ballot_sync(reduce::kFullWarp, live && !forced && key == threshold);
    const int equal_before = before.y + __popc(is_equal & lower_lanes);
    const bool taken = is_above >> lane & 1 || (is_equal >> lane & 1 && equal_before < ties);
    const int position = before.x + __popc(is_above & lower_lanes) + min(equal_before, ties);
    if (taken && position < slots) out[position] = page;
    if (spilled && live) keys[page - s.block_begin] = 0;  // the workspace is left as it was found
    before.x += __popc(is_above);
    before.y += __popc(is_equal);
  }
}

}  // namespace kvloom
