// page_select and page_attend of one list in one launch: the cluster that has chosen the pages attends to them. What a second launch would
// wait for (the whole grid before it, the list's way through memory) is one exchange among the cluster's blocks, beside that of the pages
// that are still to be ranked. The list is written to memory too. Where selection is not by masses, or the list is longer than a block
// keeps, the blocks read it there.
#pragma once

#include "kernels/page_attend_list.cuh"
#include "kernels/page_select_cluster.cuh"
#include "kernels/page_select_shares.cuh"

namespace kvloom {

namespace select {

constexpr int kListSlots = 512;  // of the list that a block keeps
static_assert(kListSlots == kShareSlots, "what the first launch counts is chosen from by the second");

// Where the pages of a list go that the blocks of its cluster attend to, before the list is written to memory.
template <int kCluster, int kThreads, class Begin>
struct HomeOut {
  static constexpr bool kEarly = true;
  int2* kept;               // pages and blocks of this block's places, in shared memory
  int2* ranked;             // [kListSlots] where the block ranks
  int2* own;                // [32] of this warp, where it ranks alone
  uint32_t barrier;         // that of what other blocks send
  const int32_t* table;
  int max_pages;            // of the table
  const int32_t* known;     // [turns][kThreads], this thread's column: blocks of its pages; null where they were not read ahead
  Begin begin;
  bool alone;

  __device__ __forceinline__ int block_of(int page) const { return page < max_pages ? table[page] : -1; }
  __device__ __forceinline__ int2 entry(int page, int turn) const { return make_int2(page, known ? known[turn * kThreads] : block_of(page)); }
  __device__ __forceinline__ void stays(int place, int page, int turn) const { kept[place] = entry(page, turn); }
  __device__ __forceinline__ void leaves(int block, int place, int page, int turn) const {
    const int2 e = entry(page, turn);
    ptx::store_async(ptx::map_to_rank(ptx::shared_address(kept + place), block), make_uint2(e.x, e.y), ptx::map_to_rank(barrier, block));
  }
};

}  // namespace select

namespace attend {

// The batch of units that tile `first` lies in, of pages whose blocks are known: entry(slot) is {page, block}.
template <int PAGE, class Entry>
__device__ __forceinline__ void take_known(Units<PAGE>& units, int first, int last, int slots, Entry entry) {
  using U = Units<PAGE>;
  const int lane = threadIdx.x % 32, unit = first / U::kTilesPerBatch * 32 + lane;
  const int tile = first / U::kTilesPerBatch * U::kTilesPerBatch + lane / U::kPerTile, slot = unit / U::kPerPage;
  units.block = 0, units.tokens = 0;
  if (tile >= first && tile < last && slot < slots) {
    const int2 known = entry(slot);
    const int64_t rest = units.length - (static_cast<int64_t>(known.x) * PAGE + unit % U::kPerPage * U::kTokens);
    units.block = max(known.y, 0);
    units.tokens = known.y < 0 ? 0 : static_cast<int>(max(min(rest, static_cast<int64_t>(U::kTokens)), static_cast<int64_t>(0)));
  }
}

}  // namespace attend

// As a call: neither its code nor what it keeps in registers lies between the steps of what nearly always runs.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages>
__device__ __noinline__ void select_without_masses(const PageSelectArgs& args) {
  page_select_without_masses<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(args);
}

// Parameters as page_select_cluster's and page_attend_list's. kKnown: blocks of as many pages are read ahead by a thread, where those are all
// of its row. A block computes all heads of its list, a warp 8 * kColumns of them: where there are more, each half of the warps has its
// own, and reads keys and values for itself. kShareCapacity: that of page_select_shares where it was launched before, else 0.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int HEAD_DIM, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          int kCluster, int kBufferWords, int kPages, int kAhead, int kKnown, bool kDependent, int kShareCapacity = 0>
__device__ __forceinline__ void page_select_attend(const PageSelectAttendArgs& all) {
  using namespace attend;
  constexpr int kHalves = (HEADS + 8 * kColumns - 1) / (8 * kColumns);
  using Form = ListForm<T>;
  using S = typename Form::template Sizes<HEAD_DIM, PAGE, (HEADS < 8 * kColumns ? HEADS : 8 * kColumns), kWarps, kStages, kColumns>;
  using Queries = typename Form::template Sizes<HEAD_DIM, PAGE, HEADS, kWarps, kStages, kHalves * kColumns>;
  using Q = typename Compute<T>::type;
  using Received = Parts<HEAD_DIM, HEADS, kCluster>;
  static_assert(kCluster > 1, "the blocks of a list are a cluster");
  static_assert(kHalves <= 2 && kWarps % kHalves == 0, "a half of the warps for a half of the heads");
  static_assert(HEAD_DIM / 4 >= kCluster, "one thread of a head for each block that receives its peak and sum");
  static_assert(kBufferWords % 32 == 0, "rings are aligned to 128 bytes");
  constexpr int kThreads = 32 * kWarps;
  using Selection = select::ClusterShared<select::padded(HEADS), kThreads, kCluster, kPages, kShareCapacity == 0>;
  static_assert(sizeof(Selection) <= 4 * kBufferWords, "the plan reckons with what the blocks exchange");
  static_assert(4 * kAhead * HEADS * kThreads <= kWarps * S::kRingBytes, "scores on their way lie where keys and values will");
  constexpr int kBlockSlots = (select::kListSlots + kCluster - 1) / kCluster;
  // [4 * kBufferWords] of selection, [kWarps][kRingBytes], int2 [kBlockSlots], [kListSlots], [kWarps][32], int32 [kKnown][kThreads]
  extern __shared__ __align__(128) uint8_t memory[];
  uint8_t* const rings = memory + 4 * kBufferWords;
  int2* const kept = reinterpret_cast<int2*>(rings + kWarps * S::kRingBytes);
  int2* const ranked = kept + kBlockSlots;
  int32_t* const known = reinterpret_cast<int32_t*>(ranked + select::kListSlots + 32 * kWarps) + threadIdx.x;
  __shared__ float2 stats[kWarps][S::kTileHeads];     // peak and sum of each warp
  __shared__ Received received;
  __shared__ __align__(8) uint64_t landed, listed;
  const PageAttendArgs& args = all.attend;
  const KvCache& cache = args.cache;
  const int tid = threadIdx.x, warp = tid / 32;
  const int rank = ptx::cluster_rank<kCluster>(), request = blockIdx.y;
  const int list = blockIdx.x / kCluster, lists = gridDim.x / kCluster;
  const int64_t q_head = static_cast<int64_t>(list) * HEADS;
  constexpr int kHeadQuads = HEAD_DIM / 4, kQuads = HEADS * kHeadQuads;
  const auto own_begin = [](int rank) { return min(rank * Received::kQuads, kQuads); };  // quads that a block finishes, up to the next one's
  const int slots = args.slots;
  if (tid == 0) {
    mbarrier_init(&landed, 1);
    mbarrier_init(&listed, 1);
    mbarrier_init_fence();
    mbarrier_expect(&landed, kCluster * (16 * (own_begin(rank + 1) - own_begin(rank)) + 8 * HEADS));
  }
  // The length, the table and the query stand since before the layer's first launch.
  copy_query<HEAD_DIM, Queries, kThreads>(static_cast<const Q*>(args.q) + request * args.q_batch_stride + q_head * args.q_head_stride,
                                    args.q_head_stride, HEADS);
  Units<PAGE> units;
  units.length = max(cache.head_lens ? cache.head_lens[static_cast<int64_t>(request) * cache.kv_heads + list] : cache.seq_lens[request], 0);
  units.table = cache.block_table + request * cache.table_stride;
  units.max_pages = cache.max_pages;
  units.count = slots;

  // A block has `share` of the slots, those from `offset` on where the list is read from memory. Its first places go to its last warps: the
  // first ones rank, for what wins.
  const int share = slots / kCluster + (rank < slots % kCluster), offset = slots / kCluster * rank + min(rank, slots % kCluster);
  constexpr int kHalfWarps = kWarps / kHalves, kBatch = Units<PAGE>::kTilesPerBatch;
  const int half = warp / kHalfWarps, worker = kHalfWarps - 1 - warp % kHalfWarps;
  const int tiles = Units<PAGE>::tiles(share), each = tiles / kHalfWarps, more = tiles % kHalfWarps;  // the first `more` have one tile more
  const int first = each * worker + min(worker, more), last = first + each + (worker < more);
  int to = min(last, (first / kBatch + 1) * kBatch);
  const Rows<T> k{static_cast<const T*>(cache.k) + list * cache.k_head_stride, cache.k_block_stride, cache.k_token_stride};
  const Rows<T> v{static_cast<const T*>(cache.v) + list * cache.v_head_stride, cache.v_block_stride, cache.v_token_stride};
  typename Form::template Tiles<HEAD_DIM, PAGE, SOFTCAP, kStages, S> ring(k, v, rings + warp * S::kRingBytes);
  State<HEAD_DIM, kColumns, T> state;
  int2* const own = ranked + select::kListSlots + 32 * warp;
  select::Part part;
  bool chosen = false, alone = true, late = false;  // late: this warp has places from `fill` on
  int fill = 0, vacant = 0, surplus = 0;  // as choose told: places from `fill` on have items `vacant` and on, of which `surplus` are not ranked
  const auto look_up = [&](int from) {
    if (chosen) {
      take_known(units, from, to, share, [&](int slot) {
        const int item = vacant + slot - fill;
        return slot < fill || item < surplus ? kept[slot] : alone ? own[item - surplus] : ranked[item - surplus];
      });
    } else {
      Batch<PAGE> batch;
      batch.read(list_of<kCluster>(all.select) + offset, from, to, share);
      batch.look_up(units, from);
    }
  };
  const uint32_t listed_at = ptx::shared_address(&listed);
  if (slots <= select::kListSlots) {
    // Where this block's pages lie, in select_by_masses' slices of a row that it holds: known before any page is chosen.
    const int row = all.select.max_pages, width = ((row + kCluster - 1) / kCluster + 31) / 32 * 32;
    const bool ahead = width <= kThreads * kKnown && row <= cache.max_pages;
    if (ahead) {
      const int begin = rank * width, end = min(begin + width, row);
#pragma unroll 1
      for (int i = 0; begin + i * kThreads + tid < end; ++i)
        ptx::copy4(ptx::shared_address(known + i * kThreads), units.table + begin + i * kThreads + tid);
      ptx::commit_copies();
    }
    const auto begin = [&](int filled, int items, int sent) {
      fill = filled, vacant = items, surplus = sent;
      if (tid == 0) mbarrier_expect(&listed, 8 * min(max(surplus - vacant, 0), share - fill));
      late = (PAGE >= kTile ? (last + PAGE / kTile - 1) / (PAGE / kTile) : min(last * (kTile / PAGE), share)) > fill;
      return late;
    };
    select::HomeOut<kCluster, kThreads, decltype(begin)> out{kept,       ranked,          own,                     listed_at,
                                                           units.table, cache.max_pages, ahead ? known : nullptr, begin, true};
    static_assert(kShareCapacity == 0 || kCluster * kThreads * kKnown <= kShareCapacity, "rows whose blocks are known are cut in slices alike");
    constexpr int kCounts = 2 * select::kShareBins * kCluster;
    static_assert(kShareCapacity == 0 || kCounts + 4 * (kShareCapacity / kCluster) <= kWarps * S::kRingBytes,
                  "counts and shares lie where keys and values will");
    if constexpr (kShareCapacity > 0)
      chosen = select_by_shares<PAGE, kThreads, kCluster, kShareCapacity, kDependent, kPages, HEADS>(
          all.select, *reinterpret_cast<Selection*>(memory), reinterpret_cast<float*>(rings + kCounts),
          reinterpret_cast<uint16_t(*)[select::kShareBins]>(rings), part, out);
    else
      chosen = select_by_masses<PAGE, HEADS, kThreads, kCluster, kBufferWords, kDependent, kPages, kAhead>(
          all.select, reinterpret_cast<float*>(rings), part, out);
    alone = out.alone;
  }
  if (chosen) {
    if (late) ptx::wait_cluster_barrier(listed_at, 0);
  } else {
    if constexpr (kShareCapacity > 0) {
      if constexpr (kDependent) ptx::wait_for_dependencies();
      page_select_by_radix<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords + kWarps * S::kRingBytes / 4>(all.select);
    } else {
      select_without_masses<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(all.select);
    }
    ptx::cluster_sync<kCluster>();
    units.count = all.select.counts[static_cast<int64_t>(request) * lists + list] - offset;
    ptx::wait_copies<0>();
    __syncthreads();  // the query is whole, as where selection has met meanwhile
  }
  // Base-2 logits. With a cap, tanh takes the natural logit over the cap.
  const float scale = (SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E) * cache_scale<T>(cache.k_scale);
  // Keys and values of this warp's tiles, the warps' sums, and what each block finishes of the sums of all.
  state.template begin<S::kQueryRowBytes>(query_tile<Queries>() + half * (8 * kColumns * S::kQueryRowBytes), scale);
  for (int from = first;;) {
    look_up(from);
    ring.start(units, from, to);
    if (from == first && chosen) {  // the list in its order, while keys are on their way
      __syncthreads();  // all is noted
      int32_t* const pages = list_of<kCluster>(all.select);
      select::write_list<kThreads>(*reinterpret_cast<const Selection*>(memory), part, [&](int position, int page) { pages[position] = page; });
      write_count<kCluster>(all.select);
    }
    ring.run(state, units, from, to, args.logit_softcap * kLog2E);
    from = to;
    if (from >= last) break;
    to = min(last, from + kBatch);
  }
  store_state<S>(state, reinterpret_cast<float*>(rings + warp * S::kRingBytes), stats[warp]);
  __syncthreads();
  const uint32_t landed_at = ptx::shared_address(&landed);
  for (int quad = tid; quad < kQuads; quad += kThreads) {
    const int head = quad / kHeadQuads, at = quad % kHeadQuads;
    const int from = head / (8 * kColumns) * kHalfWarps, of_warp = head % (8 * kColumns);
    const MergedQuad m = merge_quad<kHalfWarps>(
        [&](int w) { return stats[from + w][of_warp]; },
        [&](int w) {
          return *reinterpret_cast<const float4*>(rings + (from + w) * S::kRingBytes + (of_warp * S::kOutStride + 4 * at) * 4);
        });
    received.send(rank, quad, m, landed_at);
  }
  if constexpr (kShareCapacity > 0)
    if (chosen) leave_counts<kCluster>(all.select);
  const int again = ptx::cluster_rank<kCluster>();  // and not kept all the time
  ptx::wait_cluster_barrier(landed_at, 0);  // by every thread: no block leaves before all that was sent to it has landed
  received.template store<kThreads, T>(args, own_begin(again), own_begin(again + 1), request, q_head,
                                       static_cast<int64_t>(request) * lists * HEADS + q_head);
  __syncthreads();  // nobody looks at the barriers any more
  if (tid == 0) {  // their memory is the next block's
    mbarrier_invalidate(&landed);
    mbarrier_invalidate(&listed);
  }
}

}  // namespace kvloom
