// page_attend over a page list, as a short chain of dependent steps: a cluster of blocks serves one list, and its warps share out the
// list's slots by number, so that a warp asks for its pages at once, beside the count and the length, and its keys and values follow
// one look into the block table later. Blocks merge by st.async stores that complete on the receiver's mbarrier, each block finishing
// a part of the output; no cluster barrier stands on the way. Dense attention (no list) takes the streaming kernel in the same launch.
#pragma once

#include "kernels/page_attend.cuh"
#include "kvloom/ptx/cluster_async.cuh"

namespace kvloom {

namespace attend {

// The batch of 32 units of a list that tile `first` lies in. Pages are read before the count is known: a slot past the count holds
// anything, and nothing is done with it. Lanes whose unit no tile of [first, last) wants read nothing.
template <int PAGE>
__device__ __forceinline__ void load_units(Units<PAGE>& units, int first, int last, int slots) {
  using U = Units<PAGE>;
  const int lane = threadIdx.x % 32;
  const int tile = first / U::kTilesPerBatch * U::kTilesPerBatch + lane / U::kPerTile;
  const int64_t unit = static_cast<int64_t>(first / U::kTilesPerBatch) * 32 + lane;
  const int64_t slot = unit / U::kPerPage;
  units.block = 0, units.tokens = 0;
  if (tile < first || tile >= last || slot >= slots) return;
  const int page = units.pages[slot];
  if (slot >= units.count || page < 0 || page >= units.max_pages) return;
  const int64_t token = static_cast<int64_t>(page) * PAGE + (unit % U::kPerPage) * U::kTokens;
  if (token >= units.length) return;
  const int id = units.table[page];
  if (id < 0) return;
  units.block = id;
  units.tokens = static_cast<int>(min(static_cast<int64_t>(units.length) - token, static_cast<int64_t>(U::kTokens)));
}

// Streams tiles [first, last) of one batch through the warp's ring.
template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, int kColumns, typename T>
__device__ __forceinline__ void stream_batch(State<HEAD_DIM, kColumns, T>& state, const Units<PAGE>& units, const Rows<T>& k,
                                             const Rows<T>& v, int first, int last, uint32_t ring, float scale, float cap) {
  uint32_t masks[kStages];  // of the tiles in flight, the oldest first
#pragma unroll
  for (int i = 0; i < kStages; ++i) {
    masks[i] = first + i < last ? issue<HEAD_DIM, PAGE, S>(units, first + i, k, v, ring + i * S::kStageBytes) : 0u;
    ptx::commit_copies();
  }
  uint32_t stage = ring;
  for (int tile = first; tile < last; ++tile) {
    ptx::wait_copies<kStages - 1>();
    __syncwarp();
    state.template add<SOFTCAP, S::kRowBytes, S::kTensorBytes>(stage, masks[0], scale, cap);
    __syncwarp();  // every lane has read the stage that the next copies overwrite
#pragma unroll
    for (int i = 0; i + 1 < kStages; ++i) masks[i] = masks[i + 1];
    masks[kStages - 1] = tile + kStages < last ? issue<HEAD_DIM, PAGE, S>(units, tile + kStages, k, v, stage) : 0u;
    ptx::commit_copies();
    stage = stage == ring + (kStages - 1) * S::kStageBytes ? ring : stage + S::kStageBytes;
  }
  ptx::wait_copies<0>();
  __syncwarp();
}

// What a block receives: for each block of the cluster its share of O that this block finishes, and its peaks and sums.
template <int HEAD_DIM, int kTileHeads, int kCluster>
struct Parts {
  static constexpr int kPairs = (kTileHeads * HEAD_DIM / 2 + kCluster - 1) / kCluster;  // pairs of dims that a block finishes
  alignas(16) float2 out[kCluster][kPairs];
  alignas(16) float2 stats[kCluster][kTileHeads];
};

}  // namespace attend

// Parameters as page_attend's. The grid's first extent is a multiple of kCluster.
template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          int kCluster, bool kDependent>
__device__ __forceinline__ void page_attend_list(const PageAttendArgs& args) {
  using namespace attend;
  using S = Shape<HEAD_DIM, HEADS, kWarps, kStages, kColumns>;
  using Received = Parts<HEAD_DIM, S::kTileHeads, kCluster>;
  static_assert(kCluster > 1, "the blocks of a list are a cluster");
  static_assert(kWarps <= 32, "a lane holds one warp's weight");
  constexpr int kThreads = 32 * kWarps;
  extern __shared__ __align__(128) uint8_t rings[];  // [kWarps][kRingBytes]
  __shared__ float2 stats[kWarps][S::kTileHeads];    // peak and sum of each warp
  __shared__ float weights[kWarps][S::kTileHeads];
  __shared__ Received received;
  __shared__ __align__(8) uint64_t landed;
  if (!args.pages) {
    page_attend<HEAD_DIM, PAGE, HEADS, LISTS_PER_KV_HEAD, T, SOFTCAP, kWarps, kStages, kColumns, 1, kDependent>(args);
    return;
  }
  if (blockIdx.x >= kCluster) return;

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int rank = blockIdx.x, request = blockIdx.z;
  const int list = blockIdx.y / S::kHeadTiles, lists = gridDim.y / S::kHeadTiles;
  const int first_head = blockIdx.y % S::kHeadTiles * S::kColumnHeads;  // of the list's heads
  const int heads = min(HEADS - first_head, S::kColumnHeads);
  const int kv_head = list / LISTS_PER_KV_HEAD;
  const int64_t q_head = static_cast<int64_t>(list) * HEADS + first_head;
  const int pairs = heads * (HEAD_DIM / 2);
  const int own_begin = min(rank * Received::kPairs, pairs), own_end = min(own_begin + Received::kPairs, pairs);
  if (tid == 0) {
    mbarrier_init(&landed, 1);
    mbarrier_init_fence();
    mbarrier_expect(&landed, kCluster * 8 * (own_end - own_begin + heads));
  }
  ptx::cluster_arrive<kCluster>();  // awaited before the first store into another block: its barrier stands by then
  if constexpr (kDependent) ptx::wait_for_dependencies();

  const KvCache& cache = args.cache;
  Units<PAGE> units;
  units.length = max(cache.head_lens ? cache.head_lens[static_cast<int64_t>(request) * cache.kv_heads + kv_head] : cache.seq_lens[request], 0);
  units.pages = args.pages + request * args.pages_batch_stride + list * args.pages_list_stride;
  units.table = cache.block_table + request * cache.table_stride;
  units.max_pages = cache.max_pages;
  units.count = args.counts[static_cast<int64_t>(request) * lists + list];
  const int tiles = PAGE >= kTile ? args.slots * (PAGE / kTile) : (args.slots + kTile / PAGE - 1) / (kTile / PAGE);
  const int worker = rank * kWarps + warp;
  constexpr int kWorkers = kCluster * kWarps;
  const int first = static_cast<int>(static_cast<int64_t>(tiles) * worker / kWorkers);
  const int last = static_cast<int>(static_cast<int64_t>(tiles) * (worker + 1) / kWorkers);
  const Rows<T> k{static_cast<const T*>(cache.k) + kv_head * cache.k_head_stride, cache.k_block_stride, cache.k_token_stride};
  const Rows<T> v{static_cast<const T*>(cache.v) + kv_head * cache.v_head_stride, cache.v_block_stride, cache.v_token_stride};
  // Base-2 logits. With a cap, tanh takes the natural logit over the cap.
  const float scale = SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E;
  const uint32_t ring = static_cast<uint32_t>(__cvta_generic_to_shared(rings)) + warp * S::kRingBytes;
  State<HEAD_DIM, kColumns, T> state;
  state.begin(static_cast<const T*>(args.q) + request * args.q_batch_stride + q_head * args.q_head_stride, args.q_head_stride, heads);
  for (int from = first; from < last;) {
    constexpr int kBatch = Units<PAGE>::kTilesPerBatch;
    const int to = min(last, (from / kBatch + 1) * kBatch);
    load_units<PAGE>(units, from, to, args.slots);
    stream_batch<HEAD_DIM, PAGE, SOFTCAP, kStages, S>(state, units, k, v, from, to, ring, scale, args.logit_softcap * kLog2E);
    from = to;
  }
  store_state<S>(state, reinterpret_cast<float*>(rings + warp * S::kRingBytes), stats[warp]);
  __syncthreads();

  ptx::cluster_wait<kCluster>();
  const uint32_t landed_at = ptx::shared_address(&landed);
  // A warp a head: each warp's weight against the block's peak, and the block's peak and sum to every block of the cluster.
  for (int head = warp; head < heads; head += kWarps) {
    const float2 s = lane < kWarps ? stats[lane][head] : make_float2(minus_infinity(), 0.0f);
    float peak = s.x;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) peak = fmaxf(peak, __shfl_xor_sync(kAll, peak, step));
    const float w = weight(s.x, peak);
    if (lane < kWarps) weights[lane][head] = w;
    float sum = w * s.y;
#pragma unroll
    for (int step = 16; step > 0; step /= 2) sum += __shfl_xor_sync(kAll, sum, step);
    if (lane < kCluster)
      ptx::store_async(ptx::map_to_rank(ptx::shared_address(&received.stats[rank][head]), lane),
                       make_uint2(__float_as_uint(peak), __float_as_uint(sum)), ptx::map_to_rank(landed_at, lane));
  }
  __syncthreads();
  for (int pair = tid; pair < pairs; pair += kThreads) {
    const int head = pair / (HEAD_DIM / 2), dim = pair % (HEAD_DIM / 2) * 2;
    float2 sum = make_float2(0.0f, 0.0f);
#pragma unroll
    for (int w = 0; w < kWarps; ++w) {
      const float2 o = *reinterpret_cast<const float2*>(rings + w * S::kRingBytes + (head * S::kOutStride + dim) * 4);
      const float by = weights[w][head];
      sum.x += by * o.x;
      sum.y += by * o.y;
    }
    const int owner = pair / Received::kPairs;
    ptx::store_async(ptx::map_to_rank(ptx::shared_address(&received.out[rank][pair % Received::kPairs]), owner),
                     make_uint2(__float_as_uint(sum.x), __float_as_uint(sum.y)), ptx::map_to_rank(landed_at, owner));
  }
  ptx::wait_cluster_barrier(landed_at, 0);  // by every thread: no block leaves before all that was sent to it has landed
  for (int pair = own_begin + tid; pair < own_end; pair += kThreads) {
    const int head = pair / (HEAD_DIM / 2), dim = pair % (HEAD_DIM / 2) * 2;
    const Merged m = merge<kCluster>(kCluster, [&](int r) { return received.stats[r][head]; },
                                     [&](int r) { return received.out[r][pair - own_begin]; });
    const float unit = m.sum == 0.0f ? 0.0f : 1.0f / m.sum;
    T* out = static_cast<T*>(args.out) + request * args.out_batch_stride + (q_head + head) * args.out_head_stride;
    *reinterpret_cast<uint32_t*>(out + dim) = pack2<T>(m.o.x * unit, m.o.y * unit);
    if (dim == 0 && args.lse)
      args.lse[static_cast<int64_t>(request) * lists * HEADS + q_head + head] =
          m.sum == 0.0f ? minus_infinity() : (m.peak + log2f(m.sum)) * kLn2;
  }
}

}  // namespace kvloom
