// page_select for share_average on a cluster of blocks a list, where page_score has left masses: a share is then one exponential and one
// product, so that a score is read once and forgotten, in rows of any length that shared memory holds the values of.
#pragma once

#include "kernels/page_select_cut.cuh"
#include "kvloom/ptx/async_copy.cuh"
#include "kvloom/reduce/masses.cuh"

namespace kvloom {

namespace select {

// Volatile, so that all are asked for before the first is waited for.
__device__ __forceinline__ float2 load_part(const float2* p) {
  float2 v;
  asm volatile("ld.global.v2.f32 {%0, %1}, [%2];" : "=f"(v.x), "=f"(v.y) : "l"(p) : "memory");
  return v;
}

// Keeps the order of floats among integers; its own inverse.
__device__ __forceinline__ int ordered(int bits) { return bits ^ (bits >> 31 & 0x7fffffff); }

// The parts of one row, a warp's: all of them, or those that a usual launch of page_score writes.
template <bool kAll>
struct MassParts {
  static constexpr int kLoads = kAll ? reduce::kMassParts / 32 : 5;
  static_assert(reduce::kMassParts % 32 == 0, "a lane has as many parts as another");
  float2 part[kLoads];

  __device__ __forceinline__ void load(const float2* row) {
#pragma unroll
    for (int i = 0; i < kLoads; ++i) part[i] = load_part(row + 32 * i + threadIdx.x % 32);
  }
  // The largest shift of the parts that have a sum.
  __device__ __forceinline__ float top() {
    int top = static_cast<int>(0x80000000u);
#pragma unroll
    for (int i = 0; i < kLoads; ++i) {
      if (part[i].y == 0.0f) part[i].x = -reduce::kInfinity;
      top = max(top, ordered(__float_as_int(part[i].x)));
    }
    return __int_as_float(ordered(__reduce_max_sync(reduce::kFullWarp, top)));
  }
  // 2^-26 / the row's sum of 2^(s log2(e) - top), NaN where the row has no masses or they tell too little. Where a lane has but the usual parts,
  // the others are loaded unless the last one says that there are none.
  __device__ __forceinline__ float unit(float top, const float2* row) const {
    float all = 0.0f;
#pragma unroll
    for (int i = 0; i < kLoads; ++i) all = fmaf(part[i].y, exp2_approx(part[i].x - top), all);
    if constexpr (!kAll) {
      if (__builtin_expect(__shfl_sync(reduce::kFullWarp, part[kLoads - 1].x, 31) != -reduce::kInfinity, false)) {
#pragma unroll 1
        for (int i = kLoads; i < reduce::kMassParts / 32; ++i) {
          const float2 more = load_part(row + 32 * i + threadIdx.x % 32);
          if (more.y != 0.0f) all = fmaf(more.y, exp2_approx(more.x - top), all);
        }
      }
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) all += __shfl_xor_sync(reduce::kFullWarp, all, step);
    const bool tells = all >= 0.5f && all <= kLargestMass;
    return tells ? kShareUnit * rcp_approx(all) : __int_as_float(0x7fffffff);
  }
  // {-top, unit}
  __device__ __forceinline__ float2 sum(const float2* row = nullptr) {
    const float most = top();
    return make_float2(-most, unit(most, row));
  }
};

// All parts of a row, or the usual ones first.
struct RowParts : MassParts<true> {
  __device__ __forceinline__ void load_usual(const float2* row) {
#pragma unroll
    for (int i = 0; i < MassParts<false>::kLoads; ++i) part[i] = load_part(row + 32 * i + threadIdx.x % 32);
  }
  __device__ __forceinline__ float2 sum_usual(const float2* row) const {
    MassParts<false> usual;
#pragma unroll
    for (int i = 0; i < MassParts<false>::kLoads; ++i) usual.part[i] = part[i];
    return usual.sum(row);
  }
};

// 2^(s log2(e) - top) of four scores, in their place, and what they add to the sums of shares.
__device__ __forceinline__ void exponentials(float4& s, float minus_top) {
  s.x = exp2_approx(fmaf(s.x, kLog2E, minus_top)), s.y = exp2_approx(fmaf(s.y, kLog2E, minus_top));
  s.z = exp2_approx(fmaf(s.z, kLog2E, minus_top)), s.w = exp2_approx(fmaf(s.w, kLog2E, minus_top));
}

__device__ __forceinline__ void add_shares(float (&sum)[4], const float4& e, float unit) {
  sum[0] = fmaf(e.x, unit, sum[0]), sum[1] = fmaf(e.y, unit, sum[1]), sum[2] = fmaf(e.z, unit, sum[2]), sum[3] = fmaf(e.w, unit, sum[3]);
}

// A thread's pages on their way: kAhead turns of [HEADS][kThreads] scores in shared memory, each warp copying those of its own 32 pages.
template <int HEADS, int kThreads, int kAhead>
struct Incoming {
  float* stage;          // [kAhead][HEADS][kThreads]
  const float* scores;   // of the list's first head
  int64_t head_stride;
  int begin, limit;      // pages of the block
  bool whole;            // pieces of 16 bytes are aligned

  __device__ __forceinline__ Incoming(float* stage, const float* scores, int64_t head_stride, int begin, int limit)
      : stage(stage), scores(scores), head_stride(head_stride), begin(begin), limit(limit),
        whole((reinterpret_cast<uint64_t>(scores) | static_cast<uint64_t>(head_stride) * 4) % 16 == 0) {}

  // Turns past the last one copy nothing.
  __device__ __forceinline__ void issue(int turn) const {
    const int lane = threadIdx.x % 32, first = begin + turn * kThreads + threadIdx.x / 32 * 32;  // of the warp
    float* const to = stage + turn % kAhead * (HEADS * kThreads) + threadIdx.x / 32 * 32;
    if (first < limit) {
      if (whole) {
#pragma unroll
        for (int from = 0; from < HEADS * 8; from += 32) {
          const int head = (from + lane) / 8, at = (from + lane) % 8 * 4, left = limit - first - at;
          if ((HEADS * 8 % 32 == 0 || from + lane < HEADS * 8) && left > 0)
            ptx::copy16_part(ptx::shared_address(to + head * kThreads + at), scores + head * head_stride + first + at, min(4 * left, 16));
        }
      } else if (first + lane < limit) {
#pragma unroll 1
        for (int h = 0; h < HEADS; ++h) ptx::copy4(ptx::shared_address(to + h * kThreads + lane), scores + h * head_stride + first + lane);
      }
    }
    ptx::commit_copies();
  }

  // This thread's scores of a turn that has landed; -inf where it has no page.
  __device__ __forceinline__ void take(int turn, float (&score)[HEADS]) const {
    const bool live = begin + turn * kThreads + static_cast<int>(threadIdx.x) < limit;
#pragma unroll
    for (int h = 0; h < HEADS; ++h) {
      score[h] = -reduce::kInfinity;
      if (live) score[h] = stage[turn % kAhead * (HEADS * kThreads) + h * kThreads + threadIdx.x];
    }
  }
};

}  // namespace select

// Selection from page_score's masses: true where it has chosen, which it cannot without masses. `part` becomes this block's part.
// kAhead turns of scores are on their way at once; `stage` has room for them.
template <int PAGE, int HEADS, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages, int kAhead, class Out>
__device__ __forceinline__ bool select_by_masses(const PageSelectArgs& args, float* stage, select::Part& part, Out& out) {
  using namespace select;
  if (args.masses == nullptr || args.batch != 1) return false;
  constexpr bool kCalls = kThreads <= 512 && kCluster <= 8;
  constexpr int kWarps = kThreads / 32;
  constexpr int kRowsOfWarp = (HEADS + kWarps - 1) / kWarps;
  using Memory = ClusterShared<padded(HEADS), kThreads, kCluster, kPages>;
  __shared__ __align__(8) uint64_t barriers[3];
  __shared__ float2 heads[HEADS];
  extern __shared__ __align__(16) uint32_t buffer[];  // [kBufferWords]: Memory and the values
  Memory& sm = *reinterpret_cast<Memory*>(buffer);
  float* const values = reinterpret_cast<float*>(buffer + (sizeof(Memory) + 15) / 16 * 4) + threadIdx.x;  // [kRows, kThreads]
  constexpr int kRoom = (kBufferWords - static_cast<int>(sizeof(Memory) + 15) / 16 * 4) / kThreads;
  constexpr int kRows = min_of(kRoom, kPages + kMostExtra / kThreads);

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  part.rank = ptx::cluster_rank<kCluster>(), part.counts = &barriers[0], part.candidates = &barriers[1], part.bin = &barriers[2];
  if (tid == 0) prepare_choice<kCluster>(sm, part);
  ptx::cluster_arrive<kCluster>();  // awaited before a store into another block: its barriers stand by then
  if (tid < kShareBins) sm.histogram[tid] = 0;

  const int64_t list = blockIdx.x / kCluster;
  const float* const scores = args.scores + list * HEADS * args.score_head_stride;
  const float2* const masses = reinterpret_cast<const float2*>(args.masses) + list * HEADS * reduce::kMassParts;
  const auto pages_of = [&](int length) {
    return min(static_cast<int>((static_cast<int64_t>(max(length, 0)) + PAGE - 1) / PAGE), args.max_pages);
  };
  // As in select_by_sums: slices of the longest row that the launch may meet, so that loads need not wait for this row's length.
  int longest = args.max_pages;
  if (longest > kCluster * kThreads * kRows) longest = pages_of(load_length(args.seq_lens));
  const int width = ((longest + kCluster - 1) / kCluster + 31) / 32 * 32;
  const int begin = part.rank * width, limit = min(begin + width, longest);
  const int length = load_length(args.seq_lens);
  if constexpr (kDependent) ptx::wait_for_dependencies();  // the scores; lengths stand since before the layer's first launch
  RowParts rows[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int h = warp + i * kWarps;
    if (h < HEADS) rows[i].load(masses + h * reduce::kMassParts);
  }
  const Incoming<HEADS, kThreads, kAhead> incoming(stage, scores, args.score_head_stride, begin, limit);
#pragma unroll 1
  for (int turn = 0; turn < kAhead; ++turn) incoming.issue(turn);
  ptx::cluster_wait<kCluster>();
  const int pages = pages_of(length);
  part.sinks = min(args.sink_pages, pages), part.recent = max(pages - args.recent_pages, part.sinks);
  part.need = args.slots - (part.sinks + pages - part.recent), part.pages_wanted = args.slots;
  part.begin = begin, part.end = min(limit, pages), part.width = width, part.pages = min(pages, longest), part.histograms = sm.histograms;
  part.turns = (part.end - begin + kThreads - 1) / kThreads;
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    const int h = warp + i * kWarps;
    if (h < HEADS) {
      const float2 head = rows[i].sum();
      if (lane == 0) heads[h] = head;
    }
  }
  __syncthreads();
  float shift[HEADS], unit[HEADS];
  bool fits = pages > args.slots && part.need > 0 && width <= kThreads * kRows && part.recent - part.sinks < 65536;
#pragma unroll
  for (int h = 0; h < HEADS; ++h) {
    const float2 head = heads[h];
    shift[h] = head.x, unit[h] = head.y;
    fits = fits && head.y == head.y;
  }
  if (fits) {
    const auto value_of = [&](int turn) {
      float score[HEADS];
      incoming.take(turn, score);
      const int page = begin + turn * kThreads + tid;
      const bool competes = page >= part.sinks && page < min(part.end, part.recent);
      float value = 0.0f;
#pragma unroll
      for (int h = 0; h < HEADS; ++h) value += flushed_share(exp2_approx(fmaf(score[h], kLog2E, shift[h])), unit[h]);
      if (competes) atomicAdd(&sm.histogram[share_bin<HEADS>(value)], 1u);
      values[turn * kThreads] = competes ? value : 0.0f;
    };
    if (part.turns <= kAhead) {  // all are on their way
      ptx::wait_copies<0>();
      __syncwarp();
#pragma unroll 2
      for (int turn = 0; turn < part.turns; ++turn) value_of(turn);
    } else {
#pragma unroll 1
      for (int turn = 0; turn < part.turns; ++turn) {
        ptx::wait_copies<kAhead - 1>();
        __syncwarp();
        value_of(turn);
        __syncwarp();  // the stage is the next turn's
        incoming.issue(turn + kAhead);
      }
    }
    ptx::wait_copies<0>();  // turns past the row's end: the stage may be another's from here on
    const float none[1] = {0.0f};
    if (choose<HEADS, kThreads, kCluster, 0, true, kCalls>(sm, part, none, values, out)) return true;
  }
  ptx::wait_copies<0>();
  __syncthreads();  // another form takes the buffer over
  return false;
}

// How many turns of four adjacent pages a thread of select_by_quads has, of a kernel whose threads have kPages; 0: none, for registers do not
// hold so many scores.
__host__ __device__ constexpr int quads_of(int heads, int threads, int pages) {
  return threads <= 512 && threads >= select::kShareBins && pages % 4 == 0 && pages * heads <= 32 ? pages / 4 : 0;
}

// The same for rows whose scores a thread holds in registers: they are asked for before the masses are, without a stage between.
template <int PAGE, int HEADS, int kThreads, int kCluster, bool kDependent, int kQuads, class Memory, class Out>
__device__ __forceinline__ bool select_by_quads(const PageSelectArgs& args, Memory& sm, float* values, Out& out) {
  using namespace select;
  constexpr int kWarps = kThreads / 32, kRowsOfWarp = (HEADS + kWarps - 1) / kWarps, kTurn = 4 * kThreads;
  __shared__ __align__(8) uint64_t barriers[3];
  __shared__ float tops[HEADS], units[HEADS];
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  Part part;
  part.rank = ptx::cluster_rank<kCluster>(), part.counts = &barriers[0], part.candidates = &barriers[1], part.bin = &barriers[2];
  part.histograms = sm.histograms;
  if (tid == 0) prepare_choice<kCluster>(sm, part);
  ptx::cluster_arrive<kCluster>();  // awaited before a store into another block: its barriers stand by then
  if (tid < kShareBins) sm.histogram[tid] = 0;
  if (tid < 4 * kQuads * kWarps) sm.taken[tid] = 0;
  const int list = blockIdx.x / kCluster, longest = args.max_pages;
  const float* const scores = args.scores + static_cast<int64_t>(list) * HEADS * args.score_head_stride;
  const float2* const masses = reinterpret_cast<const float2*>(args.masses) + static_cast<int64_t>(list) * HEADS * reduce::kMassParts;
  part.width = ((longest + kCluster - 1) / kCluster + 31) / 32 * 32;
  part.begin = part.rank * part.width;
  const int limit = min(part.begin + part.width, longest), page = part.begin + 4 * tid;
  const bool whole = (reinterpret_cast<uint64_t>(args.scores) | static_cast<uint64_t>(args.score_head_stride) * 4) % 16 == 0;
  const int length = load_length(args.seq_lens);
  if constexpr (kDependent) ptx::wait_for_dependencies();  // the scores; lengths stand since before the layer's first launch
  RowParts rows[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    if (warp + i * kWarps < HEADS) rows[i].load(masses + (warp + i * kWarps) * reduce::kMassParts);
  float4 score[kQuads][HEADS];
  load_quads<kMinusInfinity>(score, scores, args.score_head_stride, kTurn, page, limit, whole);
  const int pages = min(static_cast<int>((static_cast<uint32_t>(max(length, 0)) + PAGE - 1) / PAGE), args.max_pages);
  part.sinks = min(args.sink_pages, pages), part.recent = max(pages - args.recent_pages, part.sinks);
  part.need = args.slots - (part.sinks + pages - part.recent), part.pages_wanted = args.slots;
  part.end = min(limit, pages), part.pages = pages;
  part.turns = (part.end - part.begin + kThreads - 1) / kThreads;
  bool tells = pages > args.slots && part.need > 0 && part.recent - part.sinks < 65536;
  float top[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    if (warp + i * kWarps < HEADS) {
      top[i] = rows[i].top();
      if (lane == 0) tops[warp + i * kWarps] = -top[i];
    }
  }
  __syncthreads();
  // Exponentials of all scores need no sum: they are under way beside it.
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    if (warp + i * kWarps < HEADS) {
      const float unit = rows[i].unit(top[i], nullptr);
      tells = tells && unit == unit;
      if (lane == 0) units[warp + i * kWarps] = unit;
    }
  }
#pragma unroll
  for (int h = 0; h < HEADS; ++h)
#pragma unroll
    for (int q = 0; q < kQuads; ++q) exponentials(score[q][h], tops[h]);
  if (!__syncthreads_and(tells)) {
    ptx::cluster_wait<kCluster>();
    return false;
  }
  const int stop = min(part.end, part.recent);
  float value[4 * kQuads];
#pragma unroll
  for (int i = 0; i < 4 * kQuads; ++i) value[i] = 0.0f;
#pragma unroll
  for (int h = 0; h < HEADS; ++h)
#pragma unroll
    for (int q = 0; q < kQuads; ++q) add_shares(reinterpret_cast<float(&)[4]>(value[4 * q]), score[q][h], units[h]);
  if (page < part.sinks || page + (kQuads - 1) * kTurn + 4 > stop)
#pragma unroll
    for (int i = 0; i < 4 * kQuads; ++i) {
      const int of = page + i / 4 * kTurn + i % 4;
      if (of < part.sinks || of >= stop) value[i] = 0.0f;
    }
#pragma unroll
  for (int i = 0; i < 4 * kQuads; ++i) {
    const int bin = share_bin<HEADS>(value[i]);
    if (bin > 0) atomicAdd(&sm.histogram[bin], 1u);
  }
  ptx::cluster_wait<kCluster>();
  return choose_quads<HEADS, kThreads, kCluster, kQuads, false>(sm, part, value, values, out);
}

}  // namespace kvloom
