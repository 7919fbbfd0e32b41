// page_select for share_average in two launches, where page_score has left masses and a list is long or its group wide. The blocks of a
// cluster lie in one group of SMs and share its way to L2, so that a few clusters read all heads' scores slowly. The first launch is the
// whole GPU's: it makes one value a page, and counts values by bin for each block of the second. The second, a cluster a list, reads 4
// bytes a page and the counts, and chooses as the other forms do. Values and counts lie in the workspace; counts are left zeroed.
#pragma once

#include "kernels/page_select_cluster.cuh"

namespace kvloom {

namespace select {

constexpr int kShareSlots = 512;  // of a list that is chosen so
constexpr int kShareQuads = 2;  // turns of four pages whose values a thread of the second launch holds
constexpr int kMostRanks = 16;  // counts have room for so many blocks a list, so that they lie in one place for every kernel

// What the first launch leaves for the second, behind the keys of the radix kernel. One request.
struct Shares {
  uint16_t (*counts)[kShareBins];  // [rank] of a list: values by bin, of the pages of that block of the second launch
  uint32_t* made;                  // of a list: whether there are values
  float* values;                   // [page] of a list, 16-byte aligned; 0 where a page does not compete

  __device__ __forceinline__ Shares(const PageSelectArgs& args, int lists, int list) {
    const auto rounded = [](int64_t bytes) { return (bytes + 255) / 256 * 256; };
    uint8_t* const keys = reinterpret_cast<uint8_t*>(args.workspace);
    uint8_t* const all = keys + rounded(int64_t{4} * args.batch * lists * args.max_pages);
    counts = reinterpret_cast<uint16_t(*)[kShareBins]>(all) + list * kMostRanks;
    made = reinterpret_cast<uint32_t*>(all + int64_t{2} * kMostRanks * kShareBins * lists) + list;
    values = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(made - list) + rounded(4 * lists)) + list * int64_t{(args.max_pages + 3) / 4 * 4};
  }
};

// How both launches see a row, before and after they know its length: `limit` pages at most, `width` of them each block's.
template <int PAGE, int kCapacity>
struct SharedRow {
  int limit, width;

  __device__ __forceinline__ static int pages_of(const PageSelectArgs& args, int length) {
    return min(static_cast<int>((static_cast<int64_t>(max(length, 0)) + PAGE - 1) / PAGE), args.max_pages);
  }
  __device__ __forceinline__ SharedRow(const PageSelectArgs& args, int blocks) : limit(args.max_pages) {
    if (limit > kCapacity) limit = pages_of(args, load_length(args.seq_lens));
    width = ((limit + blocks - 1) / blocks + 31) / 32 * 32;
  }
  // Fills the part in; whether its row is one that this form chooses from.
  __device__ __forceinline__ bool describe(const PageSelectArgs& args, int length, int blocks, Part& part) const {
    const int pages = pages_of(args, length);
    part.sinks = min(args.sink_pages, pages), part.recent = max(pages - args.recent_pages, part.sinks);
    part.need = args.slots - (part.sinks + pages - part.recent), part.pages_wanted = args.slots;
    part.end = min(min(part.begin + width, limit), pages), part.width = width, part.pages = min(limit, pages);
    return pages > args.slots && args.slots <= kShareSlots && part.need > 0 && width * blocks <= kCapacity && part.recent - part.sinks < 65536;
  }
};

// Counts are read by all blocks of a cluster and zeroed by one, behind a barrier that orders nothing: what is read has been used by then,
// so that these accesses need but be strong.
__device__ __forceinline__ uint4 load_counts(const uint4* p) {
  uint4 v;
  asm volatile("ld.relaxed.gpu.global.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w) : "l"(p) : "memory");
  return v;
}

__device__ __forceinline__ void zero_counts(uint4* p) {
  asm volatile("st.relaxed.gpu.global.v4.u32 [%0], {%1, %1, %1, %1};" ::"l"(p), "r"(0) : "memory");
}

__device__ __forceinline__ uint32_t load_word(const uint32_t* p) {
  uint32_t v;
  asm volatile("ld.global.u32 %0, [%1];" : "=r"(v) : "l"(p) : "memory");
  return v;
}

}  // namespace select

// The first launch. Grid: x lists of kCluster * kSlices blocks, each with a part of the pages of one block of the second launch, whose kCluster
// and kCapacity these are. kSplit parts of a warp share the heads of four adjacent pages a lane, and then those pages.
template <int PAGE, int HEADS, int kThreads, int kCluster, int kCapacity, int kSlices, int kSplit>
__device__ __forceinline__ void page_select_shares(const PageSelectArgs& args) {
  using namespace select;
  constexpr int kWarps = kThreads / 32, kRowsOfWarp = (HEADS + kWarps - 1) / kWarps;
  constexpr int kHeads = (HEADS + kSplit - 1) / kSplit, kLanes = 32 / kSplit, kPages = 4 / kSplit, kTurn = kThreads / kSplit * 4;
  static_assert(kThreads >= kShareBins && (kSplit == 1 || kSplit == 2 || kSplit == 4), "a thread has a bin; a part of a warp has pages");
  __shared__ uint32_t counts[kShareBins];
  __shared__ float tops[kHeads * kSplit], units[kHeads * kSplit];
  if (args.masses == nullptr || args.batch != 1) {
    ptx::wait_for_dependencies();  // all the same: the second launch waits for this one alone, and reads the scores itself
    return;
  }
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int list = blockIdx.x / (kCluster * kSlices), lists = gridDim.x / (kCluster * kSlices);
  const int of_list = blockIdx.x % (kCluster * kSlices), rank = of_list / kSlices, slice = of_list % kSlices;
  const SharedRow<PAGE, kCapacity> row(args, kCluster);
  const int each = ((row.width + kSlices - 1) / kSlices + 31) / 32 * 32;
  const int begin = rank * row.width + slice * each, limit = min(min(begin + each, (rank + 1) * row.width), row.limit);
  const int group = lane / kLanes * kHeads, live = HEADS - group;  // first head of this lane, and how many there are from it on
  const int64_t stride = args.score_head_stride;
  const float* const scores = args.scores + (static_cast<int64_t>(list) * HEADS + group) * stride;
  const float2* const masses = reinterpret_cast<const float2*>(args.masses) + static_cast<int64_t>(list) * HEADS * reduce::kMassParts;
  const bool aligned = (reinterpret_cast<uint64_t>(args.scores) | static_cast<uint64_t>(stride) * 4) % 16 == 0;
  if (tid < kShareBins) counts[tid] = 0;
  const int length = load_length(args.seq_lens);  // lengths stand since before the layer's first launch
  ptx::wait_for_dependencies();  // the scores and masses
  MassParts<false> rows[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i)
    if (warp + i * kWarps < HEADS) rows[i].load(masses + (warp + i * kWarps) * reduce::kMassParts);
  float4 held[1][kHeads];
  const int offset = 4 * (warp * kLanes + lane % kLanes);
  int page = begin + offset;
  load_quads<kMinusInfinity>(held, scores, stride, 0, page, limit, aligned, HEADS % kHeads == 0 ? kHeads : live);
  float top[kRowsOfWarp];
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    if (warp + i * kWarps < HEADS) {
      top[i] = rows[i].top();
      if (lane == 0) tops[warp + i * kWarps] = -top[i];
    }
  }
  if (HEADS < kHeads * kSplit && tid < kHeads * kSplit - HEADS) tops[HEADS + tid] = units[HEADS + tid] = 0.0f;
  Part part;
  part.begin = begin;
  bool tells = row.describe(args, length, kCluster, part);
  __syncthreads();
  // Exponentials of all scores need no sum: they are under way beside it.
#pragma unroll
  for (int i = 0; i < kRowsOfWarp; ++i) {
    if (warp + i * kWarps < HEADS) {
      const float unit = rows[i].unit(top[i], masses + (warp + i * kWarps) * reduce::kMassParts);
      tells = tells && unit == unit;
      if (lane == 0) units[warp + i * kWarps] = unit;
    }
  }
#pragma unroll
  for (int h = 0; h < kHeads; ++h) exponentials(held[0][h], tops[group + h]);
  const bool made = __syncthreads_and(tells);
  const Shares to(args, lists, list);
  if (of_list == 0 && tid == 0) *to.made = made;
  if (!made) return;
#pragma unroll 1
  for (;;) {
    float v[4] = {};
#pragma unroll
    for (int h = 0; h < kHeads; ++h) add_shares(v, held[0][h], units[group + h]);
    int own = page;  // first of the pages that this lane ends with
#pragma unroll
    for (int n = 2, step = 16; n >= kPages && kSplit > 1; n /= 2, step /= 2) {
      const bool upper = lane & step;
#pragma unroll
      for (int i = 0; i < n; ++i) {
        const float given = __shfl_xor_sync(reduce::kFullWarp, upper ? v[i] : v[i + n], step);
        v[i] = (upper ? v[i + n] : v[i]) + given;
      }
      own += upper ? n : 0;
    }
    if (page < limit) {
      const int stop = min(part.recent, limit);
#pragma unroll
      for (int i = 0; i < kPages; ++i) {
        if (own + i < part.sinks || own + i >= stop) v[i] = 0.0f;
        const int bin = share_bin<HEADS>(v[i]);
        if (bin > 0) atomicAdd(&counts[bin], 1u);
      }
      float* const at = to.values + own;
      if constexpr (kPages == 4) *reinterpret_cast<float4*>(at) = make_float4(v[0], v[1], v[2], v[3]);
      if constexpr (kPages == 2) *reinterpret_cast<float2*>(at) = make_float2(v[0], v[1]);
      if constexpr (kPages == 1) *at = v[0];
    }
    page += kTurn;
    if (page - offset >= limit) break;
    load_quads<kMinusInfinity>(held, scores, stride, 0, page, limit, aligned, HEADS % kHeads == 0 ? kHeads : live);
#pragma unroll
    for (int h = 0; h < kHeads; ++h) exponentials(held[0][h], tops[group + h]);
  }
  __syncthreads();
  if (tid < kShareBins / 2) {
    const uint32_t two = counts[2 * tid] | counts[2 * tid + 1] << 16;
    if (two != 0) atomicAdd(reinterpret_cast<uint32_t*>(to.counts[rank]) + tid, two);
  }
}

// Leaves this block's counts zeroed, when all blocks of the cluster have read them.
template <int kCluster>
__device__ __forceinline__ void leave_counts(const PageSelectArgs& args) {
  ptx::cluster_wait<kCluster>();
  const select::Shares shares(args, gridDim.x / kCluster, blockIdx.x / kCluster);
  constexpr int kPieces = select::kShareBins * 2 / 16;
  if (threadIdx.x < kPieces) select::zero_counts(reinterpret_cast<uint4*>(shares.counts[ptx::cluster_rank<kCluster>()]) + threadIdx.x);
}

// Selection from the first launch's values: true where it has chosen; then leave_counts is still to be called. `part` becomes this block's part.
// `own` has room for the values of kCapacity / kCluster pages, `counts` for those of all blocks.
template <int PAGE, int kThreads, int kCluster, int kCapacity, bool kDependent, int kPages, int HEADS, class Memory, class Out>
__device__ __forceinline__ bool select_by_shares(const PageSelectArgs& args, Memory& sm, float* own, uint16_t (*counts)[select::kShareBins],
                                                 select::Part& part, Out& out) {
  using namespace select;
  if (args.masses == nullptr || args.batch != 1) return false;
  constexpr int kAtOnce = 8;  // values of a thread on their way
  constexpr int kPieces = kCluster * kShareBins / 8, kOfThread = (kPieces + kThreads - 1) / kThreads;  // counts, eight a piece
  __shared__ __align__(8) uint64_t barriers[3];
  static_assert(kCapacity <= (kPages + kMostExtra / kThreads) * kThreads * kCluster, "a bit for each page of a block");
  // Four adjacent pages a thread and turn stay in registers, where those are all of the row.
  constexpr int kQuads = Out::kEarly ? 0 : kShareQuads;
  float* const values = own + threadIdx.x;  // [turns, kThreads]
  const int tid = threadIdx.x;
  part.rank = ptx::cluster_rank<kCluster>(), part.counts = &barriers[0], part.candidates = &barriers[1], part.bin = &barriers[2];
  if (tid == 0) prepare_choice<kCluster>(sm, part);
  ptx::cluster_arrive<kCluster>();  // awaited before a store into another block: its barriers stand by then
  const SharedRow<PAGE, kCapacity> row(args, kCluster);
  const Shares shares(args, gridDim.x / kCluster, blockIdx.x / kCluster);
  part.begin = part.rank * row.width;
  const int limit = min(part.begin + row.width, row.limit);
  const bool fits = row.describe(args, load_length(args.seq_lens), kCluster, part);
  part.turns = (part.end - part.begin + kThreads - 1) / kThreads;
  if constexpr (kDependent) ptx::wait_for_dependencies();  // the first launch, and so the scores
  const uint32_t made = load_word(shares.made);
  uint4 piece[kOfThread];
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (kPieces % kThreads == 0 || i * kThreads + tid < kPieces) piece[i] = load_counts(reinterpret_cast<const uint4*>(shares.counts) + i * kThreads + tid);
  float some[kAtOnce];
  const auto ask = [&](int turn) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i) {
      const int page = part.begin + (turn + i) * kThreads + tid;
      some[i] = load_or<0>(shares.values + page, page < limit);
    }
  };
  const auto keep = [&](int turn) {
#pragma unroll
    for (int i = 0; i < kAtOnce; ++i)
      if (turn + i < part.turns) values[(turn + i) * kThreads] = some[i];
  };
  const bool quads = kQuads > 0 && row.width <= 4 * kQuads * kThreads;
  float4 held[max_of(kQuads, 1)][1];
  if (quads) {
    load_quads<0>(held, shares.values, 0, 4 * kThreads, part.begin + 4 * tid, limit, true);
    if (tid < 4 * kQuads * kThreads / 32) sm.taken[tid] = 0;
  } else {
    ask(0);
  }
  ptx::cluster_wait<kCluster>();
  if (!fits || made == 0) return false;
#pragma unroll
  for (int i = 0; i < kOfThread; ++i)
    if (kPieces % kThreads == 0 || i * kThreads + tid < kPieces) reinterpret_cast<uint4*>(counts)[i * kThreads + tid] = piece[i];
  __syncthreads();
  ptx::cluster_arrive<kCluster>();  // this block has read the counts
  part.histograms = counts;
  cut_of<kCluster>(sm, counts, part.candidates, part.rank, part.need, kFewCandidates);
  if (quads) {
    ptx::wait_copies<0>();  // the caller's
    __syncthreads();
    if constexpr (kQuads > 0) {
      float value[4 * kQuads];
#pragma unroll
      for (int q = 0; q < kQuads; ++q) value[4 * q] = held[q][0].x, value[4 * q + 1] = held[q][0].y, value[4 * q + 2] = held[q][0].z, value[4 * q + 3] = held[q][0].w;
      if (choose_quads<HEADS, kThreads, kCluster, kQuads, true>(sm, part, value, own, out)) return true;
    }
    leave_counts<kCluster>(args);
    __syncthreads();
    return false;
  }
  keep(0);
#pragma unroll 1
  for (int turn = kAtOnce; turn < part.turns; turn += kAtOnce) {
    ask(turn);
    keep(turn);
  }
  ptx::wait_copies<0>();  // the caller's
  __syncthreads();
  const float none[1] = {0.0f};
  if (choose<HEADS, kThreads, kCluster, 0, true, true, true>(sm, part, none, values, out)) return true;
  leave_counts<kCluster>(args);
  __syncthreads();  // another form takes the buffer over
  return false;
}

// What is not chosen from shares, as a call: its code does not lie in the way.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages>
__device__ __noinline__ void page_select_without_shares(const PageSelectArgs& args) {
  page_select_without_masses<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(args);
}

// The second launch, which chooses alone. Dynamic shared memory: kBufferWords.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages,
          int kCapacity>
__device__ __forceinline__ void page_select_from_shares(const PageSelectArgs& args) {
  select::Part part;
  ListOut out{list_of<kCluster>(args)};
  extern __shared__ __align__(16) uint32_t buffer[];
  using Memory = select::ClusterShared<select::padded(HEADS), kThreads, kCluster, kPages>;
  Memory& sm = *reinterpret_cast<Memory*>(buffer);
  constexpr int kExchange = (sizeof(Memory) + 15) / 16 * 4;
  static_assert(kCapacity / kCluster <= kBufferWords - kExchange, "values lie behind what the blocks exchange");
  static_assert(select::quads_words(kThreads, select::kShareQuads) <= kCapacity / kCluster, "room of a longer row's values holds candidates too");
  float* const own = reinterpret_cast<float*>(buffer + kExchange);
  if (select_by_shares<PAGE, kThreads, kCluster, kCapacity, kDependent, kPages, HEADS>(args, sm, own, sm.histograms, part, out)) {
    write_count<kCluster>(args);
    leave_counts<kCluster>(args);
  } else {
    page_select_without_shares<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(args);
  }
}

}  // namespace kvloom
