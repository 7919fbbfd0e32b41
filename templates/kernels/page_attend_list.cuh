// page_attend over a page list, as a short chain of dependent steps: a cluster of blocks serves one list, and its warps share out the
// list's slots by number, so that a warp asks for its pages at once, beside the count and the length, and its keys and values follow
// one look into the block table later. Blocks merge by st.async stores that complete on the receiver's mbarrier, each block finishing
// a part of the output; no cluster barrier stands on the way. Without a list every page is a slot: right, but dense attention has the
// streaming kernel of its own (page_attend.cuh).
#pragma once

#include "kernels/page_attend.cuh"
#include "kvloom/ptx/cluster_async.cuh"

namespace kvloom {

namespace attend {

// The batch of 32 units of a list that tile `first` lies in. Pages are read on their own, before the count and the length are waited
// for: a slot past the count holds anything, and nothing is done with it. Lanes whose unit no tile of [first, last) wants read nothing.
template <int PAGE>
struct Batch {
  using U = Units<PAGE>;
  int slot, page;  // of this lane's unit; page -1: none

  // Without a list (null) the slots are the pages.
  __device__ __forceinline__ void read(const int32_t* pages, int first, int last, int slots) {
    const int lane = threadIdx.x % 32;
    const int tile = first / U::kTilesPerBatch * U::kTilesPerBatch + lane / U::kPerTile;
    slot = (first / U::kTilesPerBatch * 32 + lane) / U::kPerPage;
    const bool inside = tile >= first && tile < last && slot < slots;
    page = inside ? slot : -1;
    if (inside && pages) page = pages[slot];
  }

  __device__ __forceinline__ void look_up(Units<PAGE>& units, int first) const {
    const int lane = threadIdx.x % 32;
    const int64_t token = static_cast<int64_t>(page) * PAGE + (first / U::kTilesPerBatch * 32 + lane) % U::kPerPage * U::kTokens;
    const int64_t rest = units.length - token;
    // One predicated load: branches would keep the compiler from computing addresses while it is under way.
    int id = -1;
    if (slot < units.count && page >= 0 && page < units.max_pages && rest > 0) id = units.table[page];
    units.block = max(id, 0);
    units.tokens = id < 0 ? 0 : static_cast<int>(min(rest, static_cast<int64_t>(U::kTokens)));
  }
};

// Where a lane's copies begin, for tiles that lie in one page with rows that the lanes of a warp fill whole: its row of the first turn, in
// page 0 of the head. Known before any page is.
template <int HEAD_DIM, int PAGE, class S, typename T>
struct Lane {
  static constexpr bool kWhole = PAGE >= kTile && 32 % S::kPieces == 0;
  static constexpr int kRows = kWhole ? 32 / S::kPieces : 1;  // rows of a turn
  int row;
  uint32_t to;            // in a stage
  const T *k, *v;
  int64_t k_step, v_step;  // elements between the rows of two turns

  __device__ __forceinline__ Lane(const Rows<T>& from_k, const Rows<T>& from_v) {
    const int lane = threadIdx.x % 32, at = lane % S::kPieces;
    row = lane / S::kPieces;
    to = row * S::kRowBytes + at * 16;
    k = from_k.base + row * from_k.token_stride + at * (16 / sizeof(T));
    v = from_v.base + row * from_v.token_stride + at * (16 / sizeof(T));
    k_step = kRows * from_k.token_stride, v_step = kRows * from_v.token_stride;
  }

  // attend::issue by one address a tensor, which then only grows.
  __device__ __forceinline__ uint32_t issue(const Units<PAGE>& units, int tile, const Rows<T>& from_k, const Rows<T>& from_v, uint32_t stage) const {
    using U = Units<PAGE>;
    const int tokens = __shfl_sync(kAll, units.tokens, tile % U::kTilesPerBatch);
    const int64_t block = __shfl_sync(kAll, units.block, tile % U::kTilesPerBatch);
    const T* next_k = k + block * from_k.block_stride;
    const T* next_v = v + block * from_v.block_stride;
    if constexpr (U::kPerPage > 1) {
      next_k += tile % U::kPerPage * kTile * from_k.token_stride;
      next_v += tile % U::kPerPage * kTile * from_v.token_stride;
    }
    uint32_t next = stage + to;
#pragma unroll
    for (int i = 0; i < kTile / kRows; ++i) {
      const bool live = i * kRows + row < tokens;
      ptx::copy16_or_zero(next, next_k, live);  // a dead row lies in a page too, and is not read
      ptx::copy16_or_zero(next + S::kTensorBytes, next_v, live);
      next_k += k_step, next_v += v_step;
      next += kRows * S::kRowBytes;
    }
    return (1u << tokens) - 1;
  }
};

// A ring of tiles of one batch: the first kStages of [first, last) are on their way after start, the others follow as run takes them.
template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, typename T>
struct Ring {
  using L = Lane<HEAD_DIM, PAGE, S, T>;
  const Rows<T>& k;
  const Rows<T>& v;
  uint32_t base;            // shared address of stage 0
  L lane;
  uint32_t masks[kStages];  // of the tiles in flight, the oldest first

  __device__ __forceinline__ Ring(const Rows<T>& k, const Rows<T>& v, uint8_t* base) : k(k), v(v), base(ptx::shared_address(base)), lane(k, v) {}

  __device__ __forceinline__ uint32_t issue_tile(const Units<PAGE>& units, int tile, uint32_t stage) const {
    if constexpr (L::kWhole) {
      return lane.issue(units, tile, k, v, stage);
    } else {
      return issue<HEAD_DIM, PAGE, S>(units, tile, k, v, stage);
    }
  }

  __device__ __forceinline__ void start(const Units<PAGE>& units, int first, int last) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      masks[i] = first + i < last ? issue_tile(units, first + i, base + i * S::kStageBytes) : 0u;
      ptx::commit_copies();
    }
  }

  // Whether run_first does what run would.
  __device__ __forceinline__ bool fills(int tiles) const { return tiles == kStages; }

  // A warp's first tiles, one for each stage: keys as they land, then all weights and values together, for a list gives a warp few tiles and
  // its chain of dependent steps is what takes time.
  template <int kColumns>
  __device__ __forceinline__ void run_first(State<HEAD_DIM, kColumns, T>& state, int, float cap) {
    using Element = typename State<HEAD_DIM, kColumns, T>::Element;
    float s[kStages][kColumns][4];
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (i + 1 < kStages) {
        ptx::wait_copies<1>();
      } else {
        ptx::wait_copies<0>();
      }
      __syncwarp();
      state.template logits<S>(base + i * S::kStageBytes, s[i]);
    }
    uint32_t p[kStages][kColumns][2];
    state.template weigh_first<SOFTCAP, Element>(s, masks, cap, p);
#pragma unroll
    for (int i = 0; i < kStages; ++i) state.template values<S>(base + i * S::kStageBytes, p[i]);
    __syncwarp();
  }

  template <int kColumns>
  __device__ __forceinline__ void run(State<HEAD_DIM, kColumns, T>& state, const Units<PAGE>& units, int first, int last, float cap) {
    uint32_t stage = base;
    for (int tile = first; tile < last; ++tile) {
      ptx::wait_copies<kStages - 1>();
      __syncwarp();
      state.template add<SOFTCAP, S>(stage, masks[0], cap);
      __syncwarp();  // every lane has read the stage that the next copies overwrite
#pragma unroll
      for (int i = 0; i + 1 < kStages; ++i) masks[i] = masks[i + 1];
      masks[kStages - 1] = tile + kStages < last ? issue_tile(units, tile + kStages, stage) : 0u;
      ptx::commit_copies();
      stage = stage == base + (kStages - 1) * S::kStageBytes ? base : stage + S::kStageBytes;
    }
    ptx::wait_copies<0>();
    __syncwarp();
  }
};

// How lists of a cache of T are walked and read.
template <typename T>
struct ListForm {
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = Shape<HEAD_DIM, HEADS, kWarps, kStages, kColumns, sizeof(T)>;
  template <int PAGE>
  using Walk = Units<PAGE>;
  template <int PAGE>
  using Slots = Batch<PAGE>;
  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S>
  using Tiles = Ring<HEAD_DIM, PAGE, SOFTCAP, kStages, S, T>;
  template <class State>
  __device__ __forceinline__ static void end(State&) {}
};

// What a block receives: for each block of the cluster its share of O that this block finishes, and its peaks and sums.
template <int HEAD_DIM, int kTileHeads, int kCluster>
struct Parts {
  static constexpr int kQuads = (kTileHeads * HEAD_DIM / 4 + kCluster - 1) / kCluster;  // four dims each, that a block finishes
  alignas(16) float4 out[kCluster][kQuads];
  alignas(16) float2 stats[kCluster][kTileHeads];

  // Sends four dims of a head to the block that finishes them, and the head's peak and sum to every block, where they land at a barrier.
  __device__ __forceinline__ void send(int rank, int quad, const MergedQuad& m, uint32_t landed_at) {
    const int head = quad / (HEAD_DIM / 4), at = quad % (HEAD_DIM / 4), owner = quad / kQuads;
    ptx::store_async(ptx::map_to_rank(ptx::shared_address(&out[rank][quad % kQuads]), owner),
                     make_uint4(__float_as_uint(m.o.x), __float_as_uint(m.o.y), __float_as_uint(m.o.z), __float_as_uint(m.o.w)),
                     ptx::map_to_rank(landed_at, owner));
    if (at < kCluster)
      ptx::store_async(ptx::map_to_rank(ptx::shared_address(&stats[rank][head]), at),
                       make_uint2(__float_as_uint(m.peak), __float_as_uint(m.sum)), ptx::map_to_rank(landed_at, at));
  }

  // Adds up and stores this block's share of the outputs, quads from begin to end, and the log-sum-exps of heads that begin in it, which lie
  // from lse_at on. All parts have landed.
  template <int kThreads, typename T>
  __device__ __forceinline__ void store(const PageAttendArgs& args, int begin, int end, int64_t request, int64_t q_head, int64_t lse_at) const {
    using Q = typename Compute<T>::type;
    constexpr int kHeadQuads = HEAD_DIM / 4;
    for (int quad = begin + static_cast<int>(threadIdx.x); quad < end; quad += kThreads) {
      const int head = quad / kHeadQuads, at = quad % kHeadQuads;
      const MergedQuad m = merge_quad<kCluster>([&](int r) { return stats[r][head]; }, [&](int r) { return out[r][quad - begin]; });
      const float unit = m.sum == 0.0f ? 0.0f : cache_scale<T>(args.cache.v_scale) / m.sum;
      Q* to = static_cast<Q*>(args.out) + request * args.out_batch_stride + (q_head + head) * args.out_head_stride;
      *reinterpret_cast<uint2*>(to + 4 * at) = make_uint2(pack2<Q>(m.o.x * unit, m.o.y * unit), pack2<Q>(m.o.z * unit, m.o.w * unit));
      if (at == 0 && args.lse) args.lse[lse_at + head] = m.sum == 0.0f ? minus_infinity() : (m.peak + log2f(m.sum)) * kLn2;
    }
  }
};

}  // namespace attend

// Parameters as page_attend's. The grid's first extent is kCluster. kTogether: a warp's first tiles are weighed together.
template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          int kCluster, bool kTogether, bool kDependent>
__device__ __forceinline__ void page_attend_list(const PageAttendArgs& args) {
  using namespace attend;
  using Form = ListForm<T>;
  using S = typename Form::template Sizes<HEAD_DIM, PAGE, HEADS, kWarps, kStages, kColumns>;
  using Walk = typename Form::template Walk<PAGE>;
  using Q = typename Compute<T>::type;
  using Received = Parts<HEAD_DIM, S::kTileHeads, kCluster>;
  static_assert(kCluster > 1, "the blocks of a list are a cluster");
  static_assert(!kTogether || kStages <= 2, "two tiles at most are weighed together");
  static_assert(HEAD_DIM / 4 >= kCluster, "one thread of a head for each block that receives its peak and sum");
  constexpr int kThreads = 32 * kWarps;
  extern __shared__ __align__(128) uint8_t rings[];  // [kWarps][kRingBytes]
  __shared__ float2 stats[kWarps][S::kTileHeads];    // peak and sum of each warp
  __shared__ Received received;
  __shared__ __align__(8) uint64_t landed;
  // In wide clusters, and where tiles are weighed together, the compiler knows that a warp stays together, else every exchange in it asks
  // first. Elsewhere that took 0.2 us more: copies start later.
  const int tid = threadIdx.x, warp = kTogether || kCluster > 8 ? __shfl_sync(kAll, tid / 32, 0) : tid / 32;
  const int rank = blockIdx.x, request = blockIdx.z;
  const int list = blockIdx.y / S::kHeadTiles, lists = gridDim.y / S::kHeadTiles;
  const int first_head = blockIdx.y % S::kHeadTiles * S::kColumnHeads;  // of the list's heads
  const int heads = min(HEADS - first_head, S::kColumnHeads);
  const int kv_head = list / LISTS_PER_KV_HEAD;
  const int64_t q_head = static_cast<int64_t>(list) * HEADS + first_head;
  constexpr int kHeadQuads = HEAD_DIM / 4;
  const int quads = heads * kHeadQuads;
  const int own_begin = min(rank * Received::kQuads, quads), own_end = min(own_begin + Received::kQuads, quads);
  if (tid == 0) {
    mbarrier_init(&landed, 1);
    mbarrier_init_fence();
    mbarrier_expect(&landed, kCluster * (16 * (own_end - own_begin) + 8 * heads));
  }
  ptx::cluster_arrive<kCluster>();  // awaited long before the first store into another block, whose barrier stands by then
  // The length, the table and the query stand since before the layer's first launch: only the page list is waited for.
  const KvCache& cache = args.cache;
  const int length = cache.head_lens ? cache.head_lens[static_cast<int64_t>(request) * cache.kv_heads + kv_head] : cache.seq_lens[request];
  if constexpr (kDependent) ptx::wait_for_dependencies();

  int slots = args.slots;  // of a list: dealt out before the length is here
  if (!args.pages) slots = min(max(length, 0) / PAGE + (length % PAGE > 0), cache.max_pages);
  const int tiles = Walk::tiles(slots);
  const int worker = rank * kWarps + warp;
  constexpr int kWorkers = kCluster * kWarps, kBatch = Walk::kTilesPerBatch;
  const int each = tiles / kWorkers, more = tiles % kWorkers;  // the first `more` have one tile more
  const int first = each * worker + min(worker, more), last = first + each + (worker < more);
  int to = min(last, (first / kBatch + 1) * kBatch);
  Walk units;
  units.cache = &cache, units.request = request, units.kv_head = kv_head;
  units.pages = args.pages ? args.pages + request * args.pages_batch_stride + list * args.pages_list_stride : nullptr;
  typename Form::template Slots<PAGE> batch;
  batch.read(units.pages, first, to, slots);
  units.count = args.pages ? args.counts[static_cast<int64_t>(request) * lists + list] : slots;
  // The query follows while the list is under way.
  copy_query<HEAD_DIM, S, kThreads>(static_cast<const Q*>(args.q) + request * args.q_batch_stride + q_head * args.q_head_stride,
                                    args.q_head_stride, heads);
  units.length = max(length, 0);
  units.table = cache.block_table + request * cache.table_stride;
  units.max_pages = cache.max_pages;
  const Rows<T> k{static_cast<const T*>(cache.k) + kv_head * cache.k_head_stride, cache.k_block_stride, cache.k_token_stride};
  const Rows<T> v{static_cast<const T*>(cache.v) + kv_head * cache.v_head_stride, cache.v_block_stride, cache.v_token_stride};
  // Base-2 logits. With a cap, tanh takes the natural logit over the cap.
  const float scale = (SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E) * cache_scale<T>(cache.k_scale);
  typename Form::template Tiles<HEAD_DIM, PAGE, SOFTCAP, kStages, S> ring(k, v, rings + warp * S::kRingBytes);
  batch.look_up(units, first);
  ptx::cluster_wait<kCluster>();  // beside the look into the table, not behind the sums
  ring.start(units, first, to);
  ptx::wait_copies<kStages>();
  __syncthreads();  // the query is whole; the first keys are on their way
  State<HEAD_DIM, kColumns, T> state;
  state.template begin<S::kQueryRowBytes>(query_tile<S>(), scale);
  for (int from = first;;) {
    bool together = false;
    if constexpr (kTogether) together = from == first && ring.fills(to - from);
    if (together) {
      ring.run_first(state, first, args.logit_softcap * kLog2E);
    } else {
      ring.run(state, units, from, to, args.logit_softcap * kLog2E);
    }
    from = to;
    if (from >= last) break;
    to = min(last, from + kBatch);
    batch.read(units.pages, from, to, slots);
    batch.look_up(units, from);
    ring.start(units, from, to);
  }
  Form::end(state);
  store_state<S>(state, reinterpret_cast<float*>(rings + warp * S::kRingBytes), stats[warp]);
  __syncthreads();

  const uint32_t landed_at = ptx::shared_address(&landed);
  for (int quad = tid; quad < quads; quad += kThreads) {
    const int head = quad / kHeadQuads, at = quad % kHeadQuads;
    const MergedQuad m = merge_quad<kWarps>(
        [&](int w) { return stats[w][head]; },
        [&](int w) {
          return *reinterpret_cast<const float4*>(rings + w * S::kRingBytes + (head * S::kOutStride + 4 * at) * 4);
        });
    received.send(rank, quad, m, landed_at);
  }
  ptx::wait_cluster_barrier(landed_at, 0);  // by every thread: no block leaves before all that was sent to it has landed
  received.template store<kThreads, T>(args, own_begin, own_end, request, q_head, static_cast<int64_t>(request) * lists * HEADS + q_head);
  __syncthreads();  // nobody looks at the barrier any more
  if (tid == 0) mbarrier_invalidate(&landed);  // its memory is the next block's
}

}  // namespace kvloom
