// page_attend: softmax attention of one query token over the listed pages, or over all pages (dense) when there is no list.
//
// Split over pages: each warp streams tiles of 16 tokens through its own ring of cp.async stages. Tokens are the M dimension of
// both products, S^T = K Q^T and O^T = V^T P^T, so that a group of up to 8 query heads fills one n tile of 8 columns and no row of
// an mma is padding. Warps merge in shared memory. Blocks merge in the workspace, where the last block of a list to finish adds the
// parts in split order, or, as a cluster, through distributed shared memory. Either way results repeat bit for bit.
#pragma once

#include "kernels/page_attend_merge.cuh"
#include "kernels/page_attend_state.cuh"
#include "kvloom/abi.cuh"
#include "kvloom/ptx/async_copy.cuh"
#include "kvloom/ptx/dependent_launch.cuh"

namespace kvloom {

namespace attend {

// A list of pages in units of min(PAGE, 16) tokens. Lane l of a warp holds unit l of a batch of 32.
template <int PAGE>
struct Units {
  static constexpr int kTokens = PAGE < kTile ? PAGE : kTile;
  static constexpr int kPerTile = kTile / kTokens, kPerPage = PAGE / kTokens;
  static constexpr int kTilesPerBatch = 32 / kPerTile;

  const int32_t* pages;   // this list's page indices, or null: all
  const int32_t* table;   // this request's blocks
  int count;              // pages of the list
  int max_pages;
  int length;             // tokens that exist
  const KvCache* cache;   // where they are, with the request and kv head
  int request, kv_head;

  // Tiles of so many pages.
  __device__ __forceinline__ static int tiles(int pages) {
    return PAGE >= kTile ? pages * (PAGE / kTile) : (pages + kTile / PAGE - 1) / (kTile / PAGE);
  }

  int block, tokens;      // of this lane's unit: physical block, -1 for none; tokens in it

  // Nothing waits here for the block's id: a batch loaded ahead arrives while tiles of the one before it are computed.
  __device__ __forceinline__ void load(int64_t unit) {
    const int64_t slot = unit / kPerPage;
    int page = -1;
    if (slot < count) page = pages ? pages[slot] : static_cast<int>(slot);
    const int64_t first = static_cast<int64_t>(page) * PAGE + unit % kPerPage * kTokens;
    const bool exists = page >= 0 && page < max_pages && first < length;
    block = -1;
    if (exists) block = table[page];
    tokens = exists ? static_cast<int>(min(length - first, static_cast<int64_t>(kTokens))) : 0;
  }

  // Makes the batch that was loaded ahead the current one. A unit without a block has no tokens and is never followed.
  __device__ __forceinline__ void take(const Units& ahead) {
    tokens = ahead.block < 0 ? 0 : ahead.tokens;
    block = max(ahead.block, 0);
  }
};

// Where one KV head's rows begin, with strides in elements.
template <typename T>
struct Rows {
  const T* base;          // [block, token, dim] of one kv head, strides below
  int64_t block_stride, token_stride;
};

// Starts the copies of one tile into a stage and returns the mask of its tokens.
template <int HEAD_DIM, int PAGE, class S, typename T>
__device__ __forceinline__ uint32_t issue(const Units<PAGE>& units, int tile, const Rows<T>& k, const Rows<T>& v, uint32_t stage) {
  using U = Units<PAGE>;
  constexpr int kPieces = S::kPieces, kElements = 16 / sizeof(T);  // of a piece
  const int lane = threadIdx.x % 32;
  const int first = tile % U::kTilesPerBatch * U::kPerTile;             // lane of the tile's first unit
  const int token = PAGE > kTile ? tile % U::kPerPage * U::kTokens : 0;  // of the first unit in its page
  const int row_tokens = __shfl_sync(kAll, units.tokens, first + lane % kTile / U::kTokens);
  const uint32_t mask = __ballot_sync(kAll, lane % U::kTokens < row_tokens) & 0xffffu;
#pragma unroll
  for (int i = 0; i < (kTile * kPieces + 31) / 32; ++i) {
    const int piece = i * 32 + lane, row = piece / kPieces, at = piece % kPieces;
    const int block = __shfl_sync(kAll, units.block, (first + row / U::kTokens) % 32);
    if (kTile * kPieces % 32 != 0 && row >= kTile) continue;
    const bool live = mask >> row & 1;
    const int64_t in_page = token + row % U::kTokens;
    const T* from_k = k.base + (live ? block * k.block_stride + in_page * k.token_stride + at * kElements : 0);
    const T* from_v = v.base + (live ? block * v.block_stride + in_page * v.token_stride + at * kElements : 0);
    ptx::copy16_or_zero(stage + row * S::kRowBytes + at * 16, from_k, live);
    ptx::copy16_or_zero(stage + S::kTensorBytes + row * S::kRowBytes + at * 16, from_v, live);
  }
  return mask;
}

// Streams tiles [first, last) of a list through the warp's ring. The query's copies were started before.
template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, int kColumns, typename T>
__device__ __forceinline__ void stream(State<HEAD_DIM, kColumns, T>& state, Units<PAGE>& units, const Rows<T>& k, const Rows<T>& v,
                                       int first, int last, uint32_t ring, float scale, float cap) {
  using U = Units<PAGE>;
  const int lane = threadIdx.x % 32;
  // Batches are aligned to the list, so that a tile's lanes and its place in a page follow from its index.
  int next = first;            // tile to issue
  uint32_t into = 0, from = 0;  // stages
  uint64_t masks = 0;          // of the tiles in flight, 16 bits each, the oldest lowest
  Units<PAGE> ahead = units;   // the batch after the current one
  auto load_ahead = [&](int batch) {
    if (static_cast<int64_t>(batch) * U::kTilesPerBatch < last) ahead.load(static_cast<int64_t>(batch) * 32 + lane);
  };
  load_ahead(first / U::kTilesPerBatch);
  units.take(ahead);
  load_ahead(first / U::kTilesPerBatch + 1);
  auto issue_next = [&]() -> uint32_t {
    uint32_t mask = 0;
    if (next < last) {
      mask = issue<HEAD_DIM, PAGE, S>(units, next, k, v, ring + into * S::kStageBytes);
      into = into + 1 == kStages ? 0 : into + 1;
      if (++next % U::kTilesPerBatch == 0) {
        units.take(ahead);
        load_ahead(next / U::kTilesPerBatch + 1);
      }
    }
    ptx::commit_copies();
    return mask;
  };
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) masks |= static_cast<uint64_t>(issue_next()) << 16 * i;
  ptx::wait_copies<kStages - 1>();
  __syncthreads();
  state.template begin<S::kQueryRowBytes>(query_tile<S>(), scale);
  for (int tile = first; tile < last; ++tile) {
    masks |= static_cast<uint64_t>(issue_next()) << 16 * (kStages - 1);
    ptx::wait_copies<kStages - 1>();
    __syncwarp();
    state.template add<SOFTCAP, S>(ring + from * S::kStageBytes, static_cast<uint32_t>(masks) & 0xffffu, cap);
    masks >>= 16;
    from = from + 1 == kStages ? 0 : from + 1;
    __syncwarp();  // every lane has read the stage that the next copies overwrite
  }
  ptx::wait_copies<0>();
  __syncwarp();
}

// How the streaming kernel reads: cp.async of every lane. Tile: how Fragments reads what it leaves.
template <typename T>
struct LaneCopies {
  using Tile = T;
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = Shape<HEAD_DIM, HEADS, kWarps, kStages, kColumns, sizeof(T)>;
  template <int PAGE>
  using Walk = Units<PAGE>;

  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, int kColumns>
  __device__ __forceinline__ static void run(State<HEAD_DIM, kColumns, Tile>& state, Units<PAGE>& units, const Rows<T>& k, const Rows<T>& v,
                                             int first, int last, uint8_t* ring, float scale, float cap) {
    stream<HEAD_DIM, PAGE, SOFTCAP, kStages, S>(state, units, k, v, first, last, ptx::shared_address(ring), scale, cap);
  }
};

// Where the parts of a list's splits meet in the workspace: counters, the parts, and where there are more than kFlat, the results of groups
// of them. One block adding 66 parts took 20 us of a launch of 160; groups of eight are added side by side, and then their results.
struct Meeting {
  static constexpr int kCounterWords = 64, kFlat = 16, kGroup = 8;
  int splits, size, groups;  // size: splits of a group

  __device__ __forceinline__ explicit Meeting(int splits) : splits(splits) {
    size = splits <= kFlat ? splits : larger(kGroup, (splits + kCounterWords - 2) / (kCounterWords - 1));
    groups = (splits + size - 1) / size;
  }
  __device__ __forceinline__ int parts() const { return splits + (groups > 1 ? groups : 0); }
};

// Counts the calling block, whose writes before are seen by the one that is told true: the last of `all`, which leaves the counter zero.
__device__ __forceinline__ bool last_to_come(uint32_t* counter, int all) {
  __shared__ bool last;
  __syncthreads();
  if (threadIdx.x == 0) {
    uint32_t before;  // one thread orders what the block wrote, by the barrier before
    asm volatile("atom.add.acq_rel.gpu.global.u32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
    last = before == static_cast<uint32_t>(all - 1);
    if (last) *counter = 0;
  }
  __syncthreads();
  return last;
}

// The whole workspace is left zeroed, not the counters alone: whatever launch uses it next, of any shape, finds it clean.
__device__ __forceinline__ void clear_parts(float* parts, int floats, int threads) {
  __syncthreads();
  for (int i = threadIdx.x; i < floats / 2; i += threads) reinterpret_cast<float2*>(parts)[i] = make_float2(0.0f, 0.0f);
}

}  // namespace attend

// HEADS: query heads of one list (the group, or 1 for per_head); LISTS_PER_KV_HEAD: 1, or the group for per_head.
// kColumns: n tiles of 8 query heads that a warp carries.
template <template <typename> class Stream, int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps,
          int kStages, int kColumns, bool kDependent>
__device__ __forceinline__ void page_attend_by(const PageAttendArgs& args) {
  using namespace attend;
  using S = typename Stream<T>::template Sizes<HEAD_DIM, PAGE, HEADS, kWarps, kStages, kColumns>;
  using Q = typename Compute<T>::type;
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "head dims are whole k steps");
  static_assert((PAGE & (PAGE - 1)) == 0 && PAGE >= 4 && PAGE <= 128, "pages are 4 to 128 tokens, a power of two");
  static_assert(kStages >= 1 && kStages <= 4, "masks of the tiles in flight share one 64-bit word");
  static_assert(sizeof(T) <= 2, "bf16, fp16 and e4m3 caches");
  constexpr int kThreads = 32 * kWarps;
  extern __shared__ __align__(128) uint8_t rings[];  // [kWarps][kRingBytes]
  __shared__ float2 stats[kWarps][S::kTileHeads];    // peak and sum of each warp
  if constexpr (kDependent) ptx::wait_for_dependencies();

  const KvCache& cache = args.cache;
  const int warp = __shfl_sync(kAll, threadIdx.x / 32, 0);  // known to be the same in a warp: else every exchange in it asks first
  const int split = blockIdx.x, request = blockIdx.z;
  const int list = blockIdx.y / S::kHeadTiles, lists = gridDim.y / S::kHeadTiles;
  const int first_head = blockIdx.y % S::kHeadTiles * S::kColumnHeads;  // of the list's heads
  const int heads = min(HEADS - first_head, S::kColumnHeads);
  const int kv_head = list / LISTS_PER_KV_HEAD;
  const int64_t q_head = static_cast<int64_t>(list) * HEADS + first_head;

  typename Stream<T>::template Walk<PAGE> units;
  units.cache = &cache, units.request = request, units.kv_head = kv_head;
  units.length = max(cache.head_lens ? cache.head_lens[static_cast<int64_t>(request) * cache.kv_heads + kv_head] : cache.seq_lens[request], 0);
  units.pages = args.pages ? args.pages + request * args.pages_batch_stride + list * args.pages_list_stride : nullptr;
  units.table = cache.block_table + request * cache.table_stride;
  units.max_pages = cache.max_pages;
  const int all = min(units.length / PAGE + (units.length % PAGE != 0), cache.max_pages);
  units.count = args.pages ? min(max(args.counts[static_cast<int64_t>(request) * lists + list], 0), args.slots) : all;
  const int tiles = units.tiles(units.count);
  // No more splits than give every warp a tile: a graph captured for long contexts stays cheap at short ones.
  const int splits = min(static_cast<int>(gridDim.x), max((tiles + kWarps - 1) / kWarps, 1));
  if (split >= splits) return;

  const int64_t worker = split * kWarps + warp, workers = static_cast<int64_t>(splits) * kWarps;
  const int first = static_cast<int>(tiles * worker / workers), last = static_cast<int>(tiles * (worker + 1) / workers);
  const Rows<T> k{static_cast<const T*>(cache.k) + kv_head * cache.k_head_stride, cache.k_block_stride, cache.k_token_stride};
  const Rows<T> v{static_cast<const T*>(cache.v) + kv_head * cache.v_head_stride, cache.v_block_stride, cache.v_token_stride};
  // Base-2 logits. With a cap, tanh takes the natural logit over the cap.
  const float scale = (SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E) * cache_scale<T>(cache.k_scale);
  copy_query<HEAD_DIM, S, kThreads>(static_cast<const Q*>(args.q) + request * args.q_batch_stride + q_head * args.q_head_stride,
                                    args.q_head_stride, heads);
  State<HEAD_DIM, kColumns, typename Stream<T>::Tile> state;
  Stream<T>::template run<HEAD_DIM, PAGE, SOFTCAP, kStages, S>(state, units, k, v, first, last, rings + warp * S::kRingBytes, scale,
                                                               args.logit_softcap * kLog2E);
  store_state<S>(state, reinterpret_cast<float*>(rings + warp * S::kRingBytes), stats[warp]);
  __syncthreads();

  const auto finish = [&](int head, int at, const MergedQuad& m) {
    const float unit = m.sum == 0.0f ? 0.0f : cache_scale<T>(cache.v_scale) / m.sum;
    Q* out = static_cast<Q*>(args.out) + request * args.out_batch_stride + (q_head + head) * args.out_head_stride;
    *reinterpret_cast<uint2*>(out + 4 * at) = make_uint2(pack2<Q>(m.o.x * unit, m.o.y * unit), pack2<Q>(m.o.z * unit, m.o.w * unit));
    if (at == 0 && args.lse)
      args.lse[static_cast<int64_t>(request) * lists * HEADS + q_head + head] =
          m.sum == 0.0f ? minus_infinity() : (m.peak + log2f(m.sum)) * kLn2;
  };
  constexpr int kHeadQuads = HEAD_DIM / 4;
  // A part, or a group's result: O [head, dim], then peak and sum of each head.
  const auto write_part = [&](float* part, int head, int at, const MergedQuad& m) {
    *reinterpret_cast<float2*>(part + head * HEAD_DIM + 4 * at) = make_float2(m.o.x, m.o.y);
    *reinterpret_cast<float2*>(part + head * HEAD_DIM + 4 * at + 2) = make_float2(m.o.z, m.o.w);
    if (at == 0) *reinterpret_cast<float2*>(part + S::kTileHeads * HEAD_DIM + 2 * head) = make_float2(m.peak, m.sum);
  };
  // Adds `count` parts in their order for every quad of dims, and hands the sums to f.
  const auto add_parts = [&](const float* parts, int count, auto f) {
    for (int quad = threadIdx.x; quad < heads * kHeadQuads; quad += kThreads) {
      const int head = quad / kHeadQuads, at = quad % kHeadQuads;
      const auto load = [&](int i, int offset) {
        return __ldcg(reinterpret_cast<const float2*>(parts + static_cast<int64_t>(i) * S::kPartFloats + offset));
      };
      f(head, at, merge<Meeting::kFlat>(
                      count, [&](int i) { return load(i, S::kTileHeads * HEAD_DIM + 2 * head); },
                      [&](int i) {
                        const float2 x = load(i, head * HEAD_DIM + 4 * at), y = load(i, head * HEAD_DIM + 4 * at + 2);
                        return make_float4(x.x, x.y, y.x, y.y);
                      }));
    }
  };

  // One record a list and head tile, its place independent of the batch and of the lengths.
  const Meeting most(gridDim.x), meeting(splits);
  const int64_t record = (static_cast<int64_t>(request) * gridDim.y + blockIdx.y) *
                         (Meeting::kCounterWords + (static_cast<int64_t>(most.parts()) * S::kPartFloats + 63) / 64 * 64);
  uint32_t* const counters = args.workspace + record;
  float* const parts = reinterpret_cast<float*>(counters + Meeting::kCounterWords);  // [split][kPartFloats]
  float* const results = parts + static_cast<int64_t>(splits) * S::kPartFloats;      // [group][kPartFloats]

  for (int quad = threadIdx.x; quad < heads * kHeadQuads; quad += kThreads) {
    const int head = quad / kHeadQuads, at = quad % kHeadQuads;
    const MergedQuad m = merge_quad<kWarps>(
        [&](int w) { return stats[w][head]; },
        [&](int w) { return *reinterpret_cast<const float4*>(rings + w * S::kRingBytes + (head * S::kOutStride + 4 * at) * 4); });
    if (splits == 1) {
      finish(head, at, m);
    } else {
      write_part(parts + static_cast<int64_t>(split) * S::kPartFloats, head, at, m);
    }
  }
  if (splits == 1) return;

  const int group = split / meeting.size, first_part = group * meeting.size, members = min(meeting.size, splits - first_part);
  float* const own = parts + static_cast<int64_t>(first_part) * S::kPartFloats;
  if (!last_to_come(counters + group, members)) return;
  if (meeting.groups == 1) {
    add_parts(own, members, finish);
    clear_parts(own, members * S::kPartFloats, kThreads);
    return;
  }
  add_parts(own, members, [&](int head, int at, const MergedQuad& m) {
    write_part(results + static_cast<int64_t>(group) * S::kPartFloats, head, at, m);
  });
  clear_parts(own, members * S::kPartFloats, kThreads);
  if (!last_to_come(counters + Meeting::kCounterWords - 1, meeting.groups)) return;
  add_parts(results, meeting.groups, finish);
  clear_parts(results, meeting.groups * S::kPartFloats, kThreads);
}

template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          bool kDependent>
__device__ __forceinline__ void page_attend(const PageAttendArgs& args) {
  page_attend_by<attend::LaneCopies, HEAD_DIM, PAGE, HEADS, LISTS_PER_KV_HEAD, T, SOFTCAP, kWarps, kStages, kColumns, kDependent>(args);
}

}  // namespace kvloom
