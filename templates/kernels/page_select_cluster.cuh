// page_select for share_average on a cluster of blocks a list, made of as few dependent steps as an exact answer allows:
//   1. Each thread reads its pages' scores once, before it knows the row's length. exp(s - reference) with one reference a head for
//      the whole row (the larger of its first two pages) needs no maximum first, so the masses take one exchange and the shares one
//      multiplication. Where page_score has left masses, page_select_masses.cuh needs neither exchange nor reference.
//   2. A histogram of the shares is exchanged, then the pages of the bin in which the best end (page_select_cut.cuh).
// Pages of a row beyond those that the threads keep are read twice. Whatever does not fit (a row of 65536 pages and more, a peak far
// above the reference, NaN, many equal shares at the cut, zero shares among the chosen) is taken by the radix kernel page_select in the
// same launch, so nothing is ever approximate.
#pragma once

#include "kernels/page_select_masses.cuh"
#include "kvloom/ptx/async_copy.cuh"

namespace kvloom {

// The radix kernel as a call: inlined, its 50 KB of code would lie between the steps of the fast path, whose time is then spent on
// fetching instructions (a third of the stalls that ncu sampled on an H200).
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords>
__device__ __noinline__ void page_select_by_radix(const PageSelectArgs& args) {
  page_select<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, false>(args);
}

// Selection with masses of its own: true where it has chosen. kLong: rows may be longer than what threads keep.
template <int PAGE, int HEADS, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages, bool kLong, class Out>
__device__ __forceinline__ bool select_by_sums(const PageSelectArgs& args, Out& out) {
  using namespace select;
  static_assert(HEADS <= 16, "a thread keeps the references and masses of all heads in registers");
  static_assert(kThreads >= kShareBins && kCluster > 1, "a thread clears one bin; the blocks of a cluster exchange");
  constexpr int kWidth = padded(HEADS);
  constexpr int kWarps = kThreads / 32;
  constexpr int kCapacity = kCluster * kThreads * kPages;
  // Where few registers are left, a call would save some of them in local memory.
  constexpr bool kCalls = kThreads <= 512 && kCluster <= 8;
  using Memory = ClusterShared<kWidth, kThreads, kCluster, kPages>;
  constexpr int kKept = kPages * HEADS <= 48 ? kPages : 48 / HEADS;  // pages in registers
  __shared__ __align__(8) uint64_t barriers[4];
  extern __shared__ __align__(16) uint32_t buffer[];  // [kBufferWords] for the radix kernel; or Memory and the stash
  Memory& sm = *reinterpret_cast<Memory*>(buffer);
  float* const stash = reinterpret_cast<float*>(buffer + (sizeof(Memory) + 15) / 16 * 4) + threadIdx.x;  // [kPages - kKept, HEADS, kThreads]
  // Values of this thread's pages, where they do not stay in registers; they take the stash's place. Every thread has its own column.
  float* const values = stash;  // [kRows, kThreads]
  constexpr int kRoom = (kBufferWords - static_cast<int>(sizeof(Memory) + 15) / 16 * 4) / kThreads, kStashed = (kPages - kKept) * HEADS;
  constexpr int kRows = min_of(max_of(kRoom, kStashed), kPages + kMostExtra / kThreads);
  static_assert(kRows >= kPages, "a row for each page that a thread keeps");

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int rank = ptx::cluster_rank<kCluster>();
  const uint32_t masses_in = ptx::shared_address(&barriers[0]);
  Part part{rank, 0, 0, 0, 0, 0, 0, 0, 0, 0, sm.histograms, &barriers[1], &barriers[2], &barriers[3]};
  if (tid == 0) {
    mbarrier_init(&barriers[0], 1);
    prepare_choice<kCluster>(sm, part);
    mbarrier_expect(&barriers[0], kCluster * kWidth * 4);
  }
  ptx::cluster_arrive<kCluster>();  // awaited before a store into another block: its barriers stand by then
  if (tid < kShareBins) sm.histogram[tid] = 0;

  const int list = blockIdx.x / kCluster, request = blockIdx.y;
  const float* const scores = args.scores + request * args.score_batch_stride + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
  const auto pages_of = [&](int length) {
    return min(static_cast<int>((static_cast<int64_t>(max(length, 0)) + PAGE - 1) / PAGE), args.max_pages);
  };
  // Slices of the longest row that the launch may meet, so that loads need not wait for this row's length: a shorter row leaves the
  // last blocks idle. Scores past the row's end are read, for the buffer holds them, and nothing is done with them.
  int longest = args.max_pages;
  if (longest > kCapacity) longest = pages_of(load_length(args.seq_lens + request));
  const int width = ((longest + kCluster - 1) / kCluster + 31) / 32 * 32;
  const int begin = rank * width, limit = min(begin + width, longest);
  const int length = load_length(args.seq_lens + request);
  if constexpr (kDependent) ptx::wait_for_dependencies();  // the scores; lengths stand since before the layer's first launch
  const float* const row = scores + (lane % kWidth < HEADS ? lane % kWidth : 0) * args.score_head_stride;
  const float first = load_score(row, true), second = load_score(row + min(1, args.max_pages - 1), true);
  float kept[kKept][HEADS];
#pragma unroll
  for (int i = 0; i < kKept; ++i) {
    const int page = begin + i * kThreads + tid;
    const float* from = scores + page;
#pragma unroll
    for (int h = 0; h < HEADS; ++h, from += args.score_head_stride) kept[i][h] = load_score(from, page < limit);
  }
#pragma unroll
  for (int i = kKept; i < kPages; ++i) {
    const int page = begin + i * kThreads + tid;
    const float* from = scores + page;
    if (page < limit)
#pragma unroll
      for (int h = 0; h < HEADS; ++h, from += args.score_head_stride)
        ptx::copy4(ptx::shared_address(stash + ((i - kKept) * HEADS + h) * kThreads), from);
  }
  if constexpr (kPages > kKept) ptx::commit_copies();
  // Here, since the compiler would wait for the length between the loads; the barrier keeps it from that.
  ptx::cluster_wait<kCluster>();
  const int pages = pages_of(length);
  float shift[HEADS];
  {
    const float reference = -kLog2E * fmaxf(first, second);
#pragma unroll
    for (int h = 0; h < HEADS; ++h) shift[h] = __shfl_sync(reduce::kFullWarp, reference, h);
  }
  const int slots = args.slots;
  const int sinks = min(args.sink_pages, pages), recent = max(pages - args.recent_pages, sinks);
  const int need = slots - (sinks + pages - recent);  // pages that compete for what the forced ones leave
  const int end = min(limit, pages);
  bool fits = pages > slots && need > 0 && width <= kThreads * (kLong ? kRows : kPages) && recent - sinks < 65536;
  const int turns = (end - begin + kThreads - 1) / kThreads;
  part.begin = begin, part.end = end, part.turns = turns, part.sinks = sinks, part.recent = recent, part.need = need, part.pages_wanted = slots;
  if (fits) {
    // 2^(s log2 e - shift) in one rounding: the rounding of the shift is in the mass as well. Any NaN makes the mass NaN.
    const auto exponential = [&](float s, int h) { return exp2_approx(fmaf(s, kLog2E, shift[h])); };
    float mass[kWidth];
#pragma unroll
    for (int h = 0; h < kWidth; ++h) mass[h] = 0.0f;
#pragma unroll
    for (int i = 0; i < kKept; ++i) {
      if (begin + i * kThreads >= end) break;
#pragma unroll
      for (int h = 0; h < HEADS; ++h) {
        kept[i][h] = exponential(begin + i * kThreads + tid < end ? kept[i][h] : -reduce::kInfinity, h);
        mass[h] += kept[i][h];
      }
    }
    if constexpr (kPages > kKept) {
      ptx::wait_copies<0>();
#pragma unroll 1
      for (int i = kKept; i < kPages; ++i) {
        if (begin + i * kThreads + tid >= end) break;
#pragma unroll
        for (int h = 0; h < HEADS; ++h) {
          float& s = stash[((i - kKept) * HEADS + h) * kThreads];
          s = exponential(s, h);
          mass[h] += s;
        }
      }
      __syncwarp();
    }
    if constexpr (kLong) {
#pragma unroll 2
      for (int i = kPages; i < turns; ++i) {
        const int page = begin + i * kThreads + tid;
        const float* from = scores + page;
#pragma unroll
        for (int h = 0; h < HEADS; ++h, from += args.score_head_stride) mass[h] += exponential(load_score(from, page < end), h);
      }
    }
    {
      const float of_warp = warp_sums<kWidth>(mass);
      if (lane < kWidth) sm.of_warps[warp][lane] = of_warp;
    }
    __syncthreads();
    if (warp == 0) {
      const float of_block = column_sums<kWidth, kWarps>(sm.of_warps[0]);
      const uint32_t at = ptx::shared_address(&sm.of_ranks[rank][lane % kWidth]);
#pragma unroll
      for (int from = 0; from < kCluster * kWidth; from += 32) {
        const int to = (from + lane) / kWidth;
        if (to < kCluster) ptx::store_async(ptx::map_to_rank(at, to), __float_as_uint(of_block), ptx::map_to_rank(masses_in, to));
      }
    }
    ptx::wait_cluster_barrier(masses_in, 0);
    float unit[HEADS];
    {
      const float of_row = column_sums<kWidth, kCluster>(sm.of_ranks[0]);
      // The reference is a page of the row: its own term is 1 up to rounding.
      fits = __all_sync(reduce::kFullWarp, lane % kWidth >= HEADS || (of_row >= 0.5f && of_row <= kLargestMass));
      const float inverse = kShareUnit * rcp_approx(of_row);  // without the slow path of a division in the midst of the code
#pragma unroll
      for (int h = 0; h < HEADS; ++h) unit[h] = __shfl_sync(reduce::kFullWarp, inverse, h);
    }
    if (fits) {
      float value[kPages];  // of the pages that compete, else 0
#pragma unroll
      for (int i = 0; i < kPages; ++i) {
        value[i] = 0.0f;
        if (begin + i * kThreads >= end) continue;
        const int page = begin + i * kThreads + tid;
        if (page >= sinks && page < min(end, recent)) {
#pragma unroll
          for (int h = 0; h < HEADS; ++h)
            value[i] += flushed_share(i < kKept ? kept[i < kKept ? i : 0][h] : stash[((i - kKept) * HEADS + h) * kThreads], unit[h]);
          atomicAdd(&sm.histogram[share_bin<HEADS>(value[i])], 1u);
        }
      }
      if constexpr (kLong) {
        const float again = -kLog2E * fmaxf(load_score(row, true), load_score(row + min(1, args.max_pages - 1), true));
#pragma unroll
        for (int h = 0; h < HEADS; ++h) shift[h] = __shfl_sync(reduce::kFullWarp, again, h);  // read again: few registers are left
#pragma unroll 2
        for (int i = kPages; i < turns; ++i) {
          const int page = begin + i * kThreads + tid;
          const bool competes = page >= sinks && page < min(end, recent);
          const float* from = scores + page;
          float v = 0.0f;
#pragma unroll
          for (int h = 0; h < HEADS; ++h, from += args.score_head_stride)
            v += flushed_share(exponential(load_score(from, competes), h), unit[h]);
          values[i * kThreads] = v;
          if (competes) atomicAdd(&sm.histogram[share_bin<HEADS>(v)], 1u);
        }
      }
      if (choose<HEADS, kThreads, kCluster, kPages, kLong, kCalls>(sm, part, value, values, out)) return true;
    }
    __syncthreads();  // the radix kernel takes the buffer over
  } else {
    if constexpr (kPages > kKept) ptx::wait_copies<0>();
    __syncthreads();
  }
  return false;
}

// Where a list goes.
struct ListOut {
  static constexpr bool kEarly = false;
  int32_t* pages;  // [slots]
  __device__ __forceinline__ void operator()(int position, int page) const { pages[position] = page; }
};

template <int PAGE, int HEADS, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages>
__device__ __noinline__ bool select_long_by_sums(const PageSelectArgs& args, ListOut out) {
  return select_by_sums<PAGE, HEADS, kThreads, kCluster, kBufferWords, kDependent, kPages, true>(args, out);
}

template <int kCluster>
__device__ __forceinline__ int32_t* list_of(const PageSelectArgs& args) {
  return args.pages + blockIdx.y * args.pages_batch_stride + blockIdx.x / kCluster * args.pages_list_stride;
}

// The list is full: its count.
template <int kCluster>
__device__ __forceinline__ void write_count(const PageSelectArgs& args) {
  if (threadIdx.x == 0 && ptx::cluster_rank<kCluster>() == 0)
    args.counts[static_cast<int64_t>(blockIdx.y) * (gridDim.x / kCluster) + blockIdx.x / kCluster] = args.slots;
}

// Chooses the pages of this cluster's list without masses beside the scores. kPages is how many pages of the row a thread keeps, as many as
// registers allow there and the others in shared memory: rows of up to kCluster * kThreads * kPages pages are read once. Longer ones are
// read twice, by code of their own that does not lie in the way.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages>
__device__ __forceinline__ void page_select_without_masses(const PageSelectArgs& args) {
  static_assert(COMBINE == reduce::Combine::kShareAverage, "the other rules are the radix kernel's");
  constexpr bool kCalls = kThreads <= 512 && kCluster <= 8;  // where a call saves nothing in local memory
  ListOut out{list_of<kCluster>(args)};
  bool chosen;
  if constexpr (kCalls) {
    if (args.max_pages > kCluster * kThreads * kPages)
      chosen = select_long_by_sums<PAGE, HEADS, kThreads, kCluster, kBufferWords, kDependent, kPages>(args, out);
    else
      chosen = select_by_sums<PAGE, HEADS, kThreads, kCluster, kBufferWords, kDependent, kPages, false>(args, out);
  } else {
    chosen = select_by_sums<PAGE, HEADS, kThreads, kCluster, kBufferWords, kDependent, kPages, false>(args, out);
  }
  if (chosen)
    write_count<kCluster>(args);
  else if constexpr (kCalls)
    page_select_by_radix<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords>(args);
  else
    page_select<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, false>(args);
}

// Chooses the pages of this cluster's list, the count included. True where `out` had them, false where they were written to memory alone.
// `stage` has room for kAhead turns of scores; massed: masses are used where there are any.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages, int kAhead,
          class Out>
__device__ __forceinline__ bool page_select_staged(const PageSelectArgs& args, float* stage, bool massed, Out out) {
  if constexpr (kThreads <= 512) {  // 64 registers a thread hold neither form beside the other
    select::Part part;
    if (massed && select_by_masses<PAGE, HEADS, kThreads, kCluster, kBufferWords, kDependent, kPages, kAhead>(args, stage, part, out)) {
      write_count<kCluster>(args);
      return true;
    }
  }
  page_select_without_masses<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(args);
  return false;
}

// The same with one turn of scores on its way, in the last words of the buffer.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages, class Out>
__device__ __forceinline__ bool page_select_in_cluster(const PageSelectArgs& args, Out out) {
  extern __shared__ __align__(16) uint32_t buffer[];
  constexpr int kLeft = (kBufferWords - HEADS * kThreads) / 4 * 4;
  return page_select_staged<PAGE, HEADS, COMBINE, kThreads, kCluster, kLeft, kDependent, kPages, 1>(
      args, reinterpret_cast<float*>(buffer + kLeft), true, out);
}

// The same as a call, for what seldom runs.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages, int kAhead>
__device__ __noinline__ void page_select_staged_call(const PageSelectArgs& args, float* stage, bool massed, ListOut out) {
  page_select_staged<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages, kAhead>(args, stage, massed, out);
}

// Dynamic shared memory: kBufferWords, and kAhead turns of scores. Where masses would be waited for with scores in a stage, short rows are
// summed here all the same: what a thread has of them is in its registers, and one exchange costs no more than to read the parts.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages, int kAhead>
__device__ __forceinline__ void page_select_cluster(const PageSelectArgs& args) {
  extern __shared__ __align__(16) uint32_t buffer[];
  constexpr int kShortRow = kCluster * kThreads * (kPages < 16 / HEADS ? kPages : 16 / HEADS);
  constexpr int kQuads = quads_of(HEADS, kThreads, kPages);
  if constexpr (kQuads > 0) {
    using Memory = select::ClusterShared<select::padded(HEADS), kThreads, kCluster, kPages>;
    constexpr int kExchange = (sizeof(Memory) + 15) / 16 * 4;
    static_assert(kExchange + select::quads_words(kThreads, kQuads) <= kBufferWords, "values lie behind what the blocks exchange");
    const bool held = args.masses != nullptr && args.batch == 1 && args.max_pages <= 4 * kQuads * kThreads * kCluster;
    ListOut out{list_of<kCluster>(args)};
    if (held && select_by_quads<PAGE, HEADS, kThreads, kCluster, kDependent, kQuads>(args, *reinterpret_cast<Memory*>(buffer),
                                                                                  reinterpret_cast<float*>(buffer + kExchange), out)) {
      write_count<kCluster>(args);
      return;
    }
    if (held) __syncthreads();  // another form takes the buffer over
    page_select_staged_call<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages, kAhead>(
        args, reinterpret_cast<float*>(buffer + kBufferWords), !held && args.max_pages > kShortRow, out);
    return;
  }
  page_select_staged<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages, kAhead>(
      args, reinterpret_cast<float*>(buffer + kBufferWords), args.max_pages > kShortRow, ListOut{list_of<kCluster>(args)});
}

}  // namespace kvloom
