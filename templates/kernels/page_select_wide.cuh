// page_select for share_average on the whole GPU: many blocks a list, each reading a part of a long row once.
//   1. Each block sums exp(s - reference) over its pages and leaves the masses in the workspace, words that are never 0. It then reads
//      those of all blocks of the list, in the same order everywhere.
//   2. With the masses of the row it knows the shares of its pages, and passes on those that could be among the best: no more than a
//      list takes, and what shares the last one's bin of a histogram.
//   3. The last block to arrive finds the cut among what all have passed on, and ranks its bin exactly.
// A block does not wait for ever: the others may not run, since another launch holds the GPU. After kPolls looks it leaves its part to
// the block that arrives last, which does the same arithmetic. So results do not depend on who waited, and no launch can hang.
// What the cluster form hands to the radix kernel (page_select_cluster.cuh), and more candidates than fit, is handed to it here too.
#pragma once

#include "kernels/page_select_cluster.cuh"
#include "kvloom/ptx/relaxed.cuh"

namespace kvloom {

namespace select {

constexpr int kMostBlocks = 128;        // of a list
constexpr int kWideCandidates = 12288;  // that the block which finishes holds in shared memory
constexpr uint32_t kOrphan = 0x80000000u;

// What a block leaves in the workspace. All of it is 0 between launches.
template <int kSlots>
struct WideRecord {
  uint32_t state;    // candidates + 1, or kOrphan
  uint32_t arrived;  // blocks of the list; in the first record alone
  uint32_t reserved0[14];
  uint32_t masses[16];  // with the sign bit set, so that 0 is a mass that is not here yet
  uint32_t reserved1[32];
  alignas(16) uint2 candidates[kSlots];  // share's bits, page; in page order
};

template <int WIDTH, int kThreads, int kPages>
struct WideShared {
  static constexpr int kWarps = kThreads / 32;
  alignas(16) uint32_t histogram[kShareBins];
  alignas(16) float of_warps[kWarps][WIDTH];       // masses of this block
  alignas(16) float of_blocks[kMostBlocks][WIDTH];  // masses of all blocks
  alignas(16) uint2 candidates[kWideCandidates];
  uint32_t words[kWideCandidates / 32];  // a bit a page of the block, later a bit a candidate
  int before[kWideCandidates / 32];      // bits of the words below
  int places[kMostBlocks];               // first candidate of a block
  int counts[kMostBlocks];
  int in_bin[kMostCandidates];           // candidates in the cut's bin
  int totals[2][kWarps];
  int sent;
  int last;  // 1: this block arrived last
  Cut cut;
};

// Counts of the eight bins from 248 - 8 l of one histogram: upto[i] is that of the bin and those above it. One warp.
__device__ __forceinline__ void sum_block_bins(const uint32_t* histogram, int (&upto)[8]) {
  const int first = kShareBins - 8 - 8 * (threadIdx.x % 32);
  const uint4 low = *reinterpret_cast<const uint4*>(histogram + first), high = *reinterpret_cast<const uint4*>(histogram + first + 4);
  const int count[8] = {static_cast<int>(low.x), static_cast<int>(low.y), static_cast<int>(low.z), static_cast<int>(low.w),
                        static_cast<int>(high.x), static_cast<int>(high.y), static_cast<int>(high.z), static_cast<int>(high.w)};
#pragma unroll
  for (int i = 7; i >= 0; --i) upto[i] = count[i] + (i < 7 ? upto[i + 1] : 0);
  const int before = reduce::warp_exclusive_scan(upto[0]);
#pragma unroll
  for (int i = 0; i < 8; ++i) upto[i] += before;
}

// Shares per unit mass of a row, from the masses of its blocks; false where they do not tell shares apart. A warp a call.
template <int HEADS, int WIDTH>
__device__ __forceinline__ bool units_of(const float (*of_blocks)[WIDTH], int blocks, float (&unit)[HEADS]) {
  const int lane = threadIdx.x % 32;
  float of_row = 0.0f;
  for (int b = lane / WIDTH; b < blocks; b += 32 / WIDTH) of_row += of_blocks[b][lane % WIDTH];
#pragma unroll
  for (int step = WIDTH; step < 32; step *= 2) of_row += __shfl_xor_sync(reduce::kFullWarp, of_row, step);
  const float inverse = kShareUnit * reciprocal_approx(of_row);
#pragma unroll
  for (int h = 0; h < HEADS; ++h) unit[h] = __shfl_sync(reduce::kFullWarp, inverse, h);
  return __all_sync(reduce::kFullWarp, lane % WIDTH >= HEADS || (of_row >= 0.5f && of_row <= kLargestMass));
}

// Leaves in the record those of a block's pages that can be among the `need` best of the row: values of the pages begin + i * kThreads +
// tid, 0 where a page does not compete. The histogram is clear before.
template <int HEADS, int WIDTH, int kThreads, int kPages>
__device__ __forceinline__ void pass_on(WideShared<WIDTH, kThreads, kPages>& sm, WideRecord<kThreads * kPages>& record,
                                        const float (&value)[kPages], int begin, int need) {
  constexpr int kWarps = kThreads / 32;
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
#pragma unroll
  for (int i = 0; i < kPages; ++i)
    if (value[i] > 0.0f) atomicAdd(&sm.histogram[share_bin<HEADS>(value[i])], 1u);
  __syncthreads();
  if (warp == 0) {
    int upto[8];
    sum_block_bins(sm.histogram, upto);
    if (lane == 0) sm.cut = Cut{1, 0, 0};  // fewer than needed: all that are not 0
    __syncwarp();
    find_cut(upto, need, sm.cut);
  }
  __syncthreads();
  const float least = bin_begin<HEADS>(max(sm.cut.bin, 1));
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const uint32_t word = __ballot_sync(reduce::kFullWarp, value[i] >= least);
    if (lane == 0) sm.words[i * kWarps + warp] = word;
  }
  __syncthreads();
  int all = 0;
  for (int w = lane; w < kPages * kWarps; w += 32) all += __popc(sm.words[w]);
  if (tid == 0) sm.sent = 0;
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const uint32_t word = sm.words[i * kWarps + warp];
    int before = 0;
    for (int w = lane; w < i * kWarps + warp; w += 32) before += __popc(sm.words[w]);
    before = __reduce_add_sync(reduce::kFullWarp, before);
    if (word >> lane & 1)
      record.candidates[before + __popc(word & ((1u << lane) - 1))] = make_uint2(__float_as_uint(value[i]), begin + i * kThreads + tid);
  }
  all = __reduce_add_sync(reduce::kFullWarp, all);
  if (tid == 0) record.state = all + 1;
}

}  // namespace select

// The pages of a block that did not wait for the masses of the others.
template <int HEADS, int WIDTH, int kThreads, int kPages>
__device__ __noinline__ void page_select_orphan(const PageSelectArgs& args, select::WideShared<WIDTH, kThreads, kPages>& sm,
                                                select::WideRecord<kThreads * kPages>* records, int block, int list, int request,
                                                int blocks, int pages) {
  using namespace select;
  const int tid = threadIdx.x, begin = block * kThreads * kPages;
  const int sinks = min(args.sink_pages, pages), recent = max(pages - args.recent_pages, sinks);
  const float* const scores = args.scores + request * args.score_batch_stride + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
  if (tid < kShareBins) sm.histogram[tid] = 0;
  for (int w = tid; w < blocks * WIDTH; w += kThreads)
    sm.of_blocks[w / WIDTH][w % WIDTH] = __uint_as_float(ptx::load_relaxed(&records[w / WIDTH].masses[w % WIDTH]) & ~kOrphan);
  __syncthreads();
  float unit[HEADS], value[kPages];
  const bool fits = units_of<HEADS>(sm.of_blocks, blocks, unit);
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const int page = begin + i * kThreads + tid;
    value[i] = 0.0f;
    if (fits && page >= sinks && page < recent) {
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        const float* row = scores + h * args.score_head_stride;
        const float shift = -kLog2E * fmaxf(row[0], row[min(1, args.max_pages - 1)]);
        value[i] += multiply_flushed(exp2_approx(fmaf(row[page], kLog2E, shift)), unit[h]);
      }
    }
  }
  pass_on<HEADS>(sm, records[block], value, begin, args.slots - (sinks + pages - recent));
  __syncthreads();
}

template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kBufferWords>
__device__ __noinline__ void page_select_alone(const PageSelectArgs& args, int list, int lists, int request) {
  page_select_list<PAGE, HEADS, COMBINE, kThreads, 1, kBufferWords>(args, list, lists, request, 0);
}

// The last block's part: the cut among all candidates. False where it is the radix kernel's.
template <int HEADS, int WIDTH, int kThreads, int kPages>
__device__ __forceinline__ bool page_select_cut(const PageSelectArgs& args, select::WideShared<WIDTH, kThreads, kPages>& sm,
                                                select::WideRecord<kThreads * kPages>* records, int blocks, int sinks, int need,
                                                int32_t* out) {
  using namespace select;
  constexpr int kWarps = kThreads / 32;
  static_assert(kThreads >= kMostBlocks && kThreads >= kWideCandidates / 32, "a thread a block, and a thread a word of candidates");
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int count = tid < blocks ? static_cast<int>(ptx::load_relaxed(&records[tid].state)) - 1 : 0;
  // Pairs, of 16 bytes: what follows an odd count is 0, and a share of 0 is no candidate.
  const int padded_count = (count + 1) / 2 * 2;
  const int place = reduce::block_exclusive_scan<kThreads>(padded_count, sm.totals[0]);
  if (tid < blocks) sm.places[tid] = place, sm.counts[tid] = count;
  if (tid == kThreads - 1) sm.last = place;  // of all, for those past the last block are 0
  if (tid < kShareBins) sm.histogram[tid] = 0;
  if (tid == 0) sm.sent = 0, sm.cut = Cut{0, 0, 0};
  __syncthreads();
  const int all = sm.last;
  if (all > kWideCandidates) return false;
  for (int b = warp; b < blocks; b += kWarps) {
    const uint32_t to = ptx::shared_address(&sm.candidates[sm.places[b]]);
    for (int i = lane; 2 * i < sm.counts[b]; i += 32) ptx::copy16_or_zero(to + 16 * i, &records[b].candidates[2 * i], true);
  }
  ptx::commit_copies();
  ptx::wait_copies<0>();
  __syncthreads();
  for (int j = tid; j < all; j += kThreads) {
    const float value = __uint_as_float(sm.candidates[j].x);
    if (value > 0.0f) atomicAdd(&sm.histogram[share_bin<HEADS>(value)], 1u);
  }
  __syncthreads();
  if (warp == 0) {
    int upto[8];
    sum_block_bins(sm.histogram, upto);
    find_cut(upto, need, sm.cut);
  }
  __syncthreads();
  const Cut cut = sm.cut;
  const bool whole = cut.in_bin == cut.left;
  if (cut.bin == 0 || (!whole && cut.in_bin > kMostCandidates)) return false;
  const float least = bin_begin<HEADS>(cut.bin), sure = whole ? least : bin_begin<HEADS>(cut.bin + 1);
  const int turns = (all + kThreads - 1) / kThreads;
  for (int i = 0; i < turns; ++i) {
    const int j = i * kThreads + tid;
    const float value = j < all ? __uint_as_float(sm.candidates[j].x) : 0.0f;
    const uint32_t word = __ballot_sync(reduce::kFullWarp, value >= sure);
    if (lane == 0) sm.words[i * kWarps + warp] = word;
    if (value >= least && value < sure) sm.in_bin[atomicAdd(&sm.sent, 1)] = j;
  }
  __syncthreads();
  if (!whole) {
    for (int first = 0; first < cut.in_bin; first += kThreads / 4) {  // four lanes a candidate count those that rank above it
      const int i = first + tid / 4;
      const bool live = i < cut.in_bin;
      if (!__any_sync(reduce::kFullWarp, live)) break;
      const int mine = live ? sm.in_bin[i] : 0;
      const uint32_t value = sm.candidates[mine].x;
      int better = 0;
#pragma unroll 4
      for (int k = tid % 4; k < cut.in_bin; k += 4) {
        const int other = sm.in_bin[k];
        const uint32_t of_other = sm.candidates[other].x;
        better += of_other > value || (of_other == value && other < mine);
      }
      better += __shfl_xor_sync(reduce::kFullWarp, better, 1);
      better += __shfl_xor_sync(reduce::kFullWarp, better, 2);
      if (live && tid % 4 == 0 && better < cut.left) atomicOr(&sm.words[mine / 32], 1u << mine % 32);
    }
    __syncthreads();
  }
  {
    const int bits = tid < turns * kWarps ? __popc(sm.words[tid]) : 0;
    const int below = reduce::block_exclusive_scan<kThreads>(bits, sm.totals[1]);
    if (tid < kWideCandidates / 32) sm.before[tid] = below;
  }
  __syncthreads();
  for (int i = 0; i < turns; ++i) {
    const uint32_t word = sm.words[i * kWarps + warp];
    if (word >> lane & 1)
      out[sinks + sm.before[i * kWarps + warp] + __popc(word & ((1u << lane) - 1))] = static_cast<int32_t>(sm.candidates[i * kThreads + tid].y);
  }
  return true;
}

// kPages is how many pages a thread keeps. Grid: x as many blocks as hold max_pages, y lists, z requests.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages,
          int kPolls>
__device__ __forceinline__ void page_select_wide(const PageSelectArgs& args) {
  using namespace select;
  static_assert(COMBINE == Combine::kShareAverage, "the other rules are the radix kernel's");
  static_assert(HEADS <= 16 && kPages * HEADS <= 48, "a thread keeps its scores in registers");
  static_assert(kThreads >= kShareBins && kCluster == 1, "a thread clears one bin");
  constexpr int kWidth = padded(HEADS), kWarps = kThreads / 32, kSlots = kThreads * kPages;
  static_assert(kWideCandidates / 32 >= kPages * kWarps, "a word of pages for each warp and page of a thread");
  extern __shared__ __align__(16) uint32_t buffer[];  // [kBufferWords] for the radix kernel; or WideShared
  using Memory = WideShared<kWidth, kThreads, kPages>;
  Memory& sm = *reinterpret_cast<Memory*>(buffer);
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int block = blockIdx.x, list = blockIdx.y, lists = gridDim.y, request = blockIdx.z;
  if (tid < kShareBins) sm.histogram[tid] = 0;
  const float* const scores = args.scores + request * args.score_batch_stride + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
  const int length = load_length(args.seq_lens + request);
  if constexpr (kDependent) ptx::wait_for_dependencies();  // the scores; lengths stand since before the layer's first launch

  // Scores past the row's end are read, for the buffer holds them, and nothing is done with them.
  const int begin = block * kSlots;
  const float* const row = scores + (lane % kWidth < HEADS ? lane % kWidth : 0) * args.score_head_stride;
  const float first = load_score(row, true), second = load_score(row + min(1, args.max_pages - 1), true);
  float kept[kPages][HEADS];
#pragma unroll
  for (int i = 0; i < kPages; ++i) {
    const int page = begin + i * kThreads + tid;
    const float* from = scores + page;
#pragma unroll
    for (int h = 0; h < HEADS; ++h, from += args.score_head_stride) kept[i][h] = load_score(from, page < args.max_pages);
  }
  __syncthreads();  // the compiler would wait for the length between the loads
  const int pages = min(static_cast<int>((static_cast<int64_t>(max(length, 0)) + PAGE - 1) / PAGE), args.max_pages);
  const int slots = args.slots, chosen = min(slots, pages);
  const int sinks = min(args.sink_pages, pages), recent = max(pages - args.recent_pages, sinks);
  const int need = slots - (sinks + pages - recent);  // pages that compete for what the forced ones leave
  int32_t* const out = args.pages + request * args.pages_batch_stride + list * args.pages_list_stride;  // [slots]
  const int blocks = (pages + kSlots - 1) / kSlots;  // that have pages
  if (pages <= slots || need <= 0 || blocks > kMostBlocks) {
    if (pages > slots) {
      if (block == 0) page_select_alone<PAGE, HEADS, COMBINE, kThreads, kBufferWords>(args, list, lists, request);
      return;
    }
    if (block == 0 && tid == 0) args.counts[static_cast<int64_t>(request) * lists + list] = chosen;
    if (block == 0)
      for (int i = chosen + tid; i < slots; i += kThreads) out[i] = -1;
    for (int page = begin + tid; page < min(begin + kSlots, pages); page += kThreads) out[page] = page;
    return;
  }
  if (block >= blocks) return;
  // After the radix kernel's keys.
  const int64_t keys = (static_cast<int64_t>(gridDim.z) * lists * args.max_pages + 63) / 64 * 64;
  using Record = WideRecord<kSlots>;
  Record* const records = reinterpret_cast<Record*>(args.workspace + keys) + (static_cast<int64_t>(request) * lists + list) * gridDim.x;

  float mass[kWidth];
  {
    const float reference = -kLog2E * fmaxf(first, second);
#pragma unroll
    for (int h = 0; h < kWidth; ++h) mass[h] = 0.0f;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      const float shift = __shfl_sync(reduce::kFullWarp, reference, h);
#pragma unroll
      for (int i = 0; i < kPages; ++i) {
        kept[i][h] = exp2_approx(fmaf(begin + i * kThreads + tid < pages ? kept[i][h] : -reduce::kInfinity, kLog2E, shift));
        mass[h] += kept[i][h];
      }
    }
    const float of_warp = warp_sums<kWidth>(mass);
    if (lane < kWidth) sm.of_warps[warp][lane] = of_warp;
  }
  __syncthreads();
  if (warp == 0) {
    const float of_block = column_sums<kWidth, kWarps>(sm.of_warps[0]);
    if (lane < kWidth) ptx::store_relaxed(&records[block].masses[lane], __float_as_uint(of_block) | kOrphan);
  }
  bool here = false;
  {
    constexpr int kWords = (kMostBlocks * kWidth + kThreads - 1) / kThreads;
    uint32_t word[kWords];
#pragma unroll 1
    for (int poll = 0; poll < kPolls && !here; ++poll) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int w = k * kThreads + tid;
        word[k] = w < blocks * kWidth ? ptx::load_relaxed(&records[w / kWidth].masses[w % kWidth]) : kOrphan;
      }
      here = true;
#pragma unroll
      for (int k = 0; k < kWords; ++k) here = here && word[k] != 0;
    }
    if (here) {
#pragma unroll
      for (int k = 0; k < kWords; ++k) {
        const int w = k * kThreads + tid;
        if (w < blocks * kWidth) sm.of_blocks[w / kWidth][w % kWidth] = __uint_as_float(word[k] & ~kOrphan);
      }
    }
  }
  here = __syncthreads_and(here);
  bool fits = true;
  if (here) {
    float unit[HEADS], value[kPages];
    fits = units_of<HEADS>(sm.of_blocks, blocks, unit);
#pragma unroll
    for (int i = 0; i < kPages; ++i) {
      const int page = begin + i * kThreads + tid;
      value[i] = 0.0f;
      if (fits && page >= sinks && page < recent) {
#pragma unroll
        for (int h = 0; h < HEADS; ++h) value[i] += multiply_flushed(kept[i][h], unit[h]);
      }
    }
    pass_on<HEADS>(sm, records[block], value, begin, need);
  } else if (tid == 0) {
    records[block].state = kOrphan;
  }

  __syncthreads();
  if (tid == 0) {
    __threadfence();
    sm.last = atomicAdd(&records[0].arrived, 1u) == static_cast<uint32_t>(blocks - 1);
  }
  __syncthreads();
  if (!sm.last) return;
  __threadfence();
  const bool orphan = tid < blocks && ptx::load_relaxed(&records[tid].state) == kOrphan;
  if (__syncthreads_or(orphan)) {
    for (int b = 0; b < blocks; ++b)
      if (ptx::load_relaxed(&records[b].state) == kOrphan)
        page_select_orphan<HEADS>(args, sm, records, b, list, request, blocks, pages);
    __threadfence();
    __syncthreads();
  }
  const bool done = page_select_cut<HEADS>(args, sm, records, blocks, sinks, need, out);
  if (done) {
    if (tid == 0) args.counts[static_cast<int64_t>(request) * lists + list] = slots;
    for (int i = tid; i < sinks; i += kThreads) out[i] = i;
    for (int i = tid; i < pages - recent; i += kThreads) out[slots - (pages - recent) + i] = recent + i;
  }
  for (int b = warp; b < blocks; b += kWarps) {  // the workspace is left as it was found
    for (int i = lane; 2 * i < sm.counts[b]; i += 32) reinterpret_cast<uint4*>(records[b].candidates)[i] = make_uint4(0, 0, 0, 0);
    if (lane < kWidth) records[b].masses[lane] = 0;
    if (lane == 0) records[b].state = 0, records[b].arrived = 0;
  }
  if (done) return;
  __syncthreads();  // the radix kernel takes the buffer over
  page_select_alone<PAGE, HEADS, COMBINE, kThreads, kBufferWords>(args, list, lists, request);
}

}  // namespace kvloom
