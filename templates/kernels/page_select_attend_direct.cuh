// page_select_attend without keys and values in shared memory: a warp loads a tile of 16 tokens straight into its registers, as fragments of
// both products, and sends its sums to the blocks that finish them; these add all tiles of the list at once. So ranking, the one step that
// needs shared memory while keys and values are on their way, is not held up by them, and no block adds up its warps first. What the blocks
// choose is dealt out by places (page_select_places.cuh), one exchange behind the histograms. Where selection is not by masses, or the
// list is longer than a block keeps, the blocks read the list in memory.
#pragma once

#include "kernels/page_attend_list.cuh"
#include "kernels/page_attend_tile.cuh"
#include "kernels/page_select_places.cuh"
#include "kernels/page_select_masses.cuh"
#include "kernels/page_select_shares.cuh"

namespace kvloom {

template <int PAGE, int HEADS, reduce::Combine COMBINE, int kThreads, int kCluster, int kBufferWords, bool kDependent, int kPages>
__device__ __noinline__ void select_to_memory(const PageSelectArgs& args) {
  page_select_without_masses<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(args);
}

// Parameters as page_select_attend's. A thread holds the scores, or shares, of kTurns times kVec adjacent pages in registers. kActive: warps
// that attend, as many as a block of the spec's lists has tiles. kShareCapacity: that of page_select_shares where it was launched before,
// else 0.
template <int PAGE, int HEADS, reduce::Combine COMBINE, int HEAD_DIM, typename T, bool SOFTCAP, int kWarps, int kCluster, int kBufferWords,
          int kPages, int kVec, int kTurns, int kActive, bool kDependent, int kShareCapacity = 0>
__device__ __forceinline__ void page_select_attend_direct(const PageSelectAttendArgs& all) {
  using namespace attend;
  static_assert(sizeof(T) == 2 && PAGE % kTile == 0, "a tile is 16 tokens of one page, as they lie in memory");
  constexpr int kColumns = (HEADS + 7) / 8, kPerPage = PAGE / kTile, kThreads = 32 * kWarps;
  static_assert(kColumns <= 2 && kCluster > 1 && kActive <= kWarps, "the blocks of a list are a cluster, a warp has all heads");
  using Queries = Shape<HEAD_DIM, HEADS, kWarps, 1, kColumns, sizeof(T)>;
  using Sums = TileSums<HEAD_DIM, HEADS, kActive>;
  using Received = Parts<HEAD_DIM, HEADS, kCluster>;
  using Selection = select::ClusterShared<select::padded(HEADS), kThreads, kCluster, kPages, kShareCapacity == 0>;
  static_assert(sizeof(Selection) <= 4 * kBufferWords && kBufferWords % 32 == 0, "the plan reckons with what the blocks exchange");
  constexpr int kCounts = 2 * select::kShareBins * kCluster;
  constexpr int kScoreBytes = kShareCapacity > 0 ? kCounts + 4 * (kShareCapacity / kCluster) : 4 * kVec * kTurns * kThreads;
  constexpr int kStageBytes = kScoreBytes > static_cast<int>(sizeof(Sums)) ? kScoreBytes : (static_cast<int>(sizeof(Sums)) + 15) / 16 * 16;
  static_assert(kShareCapacity == 0 || kCluster * kThreads * kVec * kTurns <= kShareCapacity, "rows whose blocks are known are cut in slices alike");
  constexpr int kListSlots = 512, kBlockSlots = (kListSlots + kCluster - 1) / kCluster;
  // [4 * kBufferWords] of selection, [kStageBytes] of values, or of counts and shares, and then of sums, int2 [kBlockSlots], [kListSlots],
  // [kWarps][32], int32 [kMostCandidates], [kVec * kTurns * kThreads]
  extern __shared__ __align__(128) uint8_t memory[];
  uint8_t* const stage = memory + 4 * kBufferWords;
  Sums& sums = *reinterpret_cast<Sums*>(stage);
  int2* const kept = reinterpret_cast<int2*>(stage + kStageBytes);
  int2* const ranked = kept + kBlockSlots;
  int32_t* const blocks = reinterpret_cast<int32_t*>(ranked + kListSlots + 32 * kWarps);
  __shared__ Received received;
  __shared__ __align__(8) uint64_t landed, listed;
  const PageAttendArgs& args = all.attend;
  const KvCache& cache = args.cache;
  const int tid = threadIdx.x, warp = tid / 32;
  const int request = blockIdx.y, list = blockIdx.x / kCluster, lists = gridDim.x / kCluster;
  const int slots = args.slots;
  constexpr int kQuads = HEADS * HEAD_DIM / 4;
  const auto own_begin = [](int rank) { return min(rank * Received::kQuads, kQuads); };  // quads that a block finishes, up to the next one's
  // This warp's tiles: warp, warp + kActive and so on.
  const int item = warp / kPerPage, tiles = select::places_of<kCluster>(slots, ptx::cluster_rank<kCluster>()) * kPerPage;
  const int last = warp < min(tiles, kActive) ? ((tiles - 1 - warp) / kActive * kActive + warp) / kPerPage : -1;
  select::PlacesOut<kCluster> out{kept, ranked, ranked + kListSlots + 32 * warp, blocks, &listed, nullptr, cache.max_pages, nullptr, 0, item, last};
  select::Part part;
  bool chosen = false;
  {
    const int rank = ptx::cluster_rank<kCluster>(), row = all.select.max_pages, width = ((row + kCluster - 1) / kCluster + 31) / 32 * 32;
    // Where this block's pages lie, of a row that the blocks hold: known before any page is chosen.
    int32_t* const known = blocks + select::kMostCandidates;
    const bool ahead = slots <= kListSlots && width <= kThreads * kVec * kTurns && row <= cache.max_pages;
    out.table = cache.block_table + request * cache.table_stride, out.known = ahead ? known : nullptr, out.begin_page = rank * width;
    // What else stands since before the layer's first launch: the table and the query.
    const auto prepare = [&] {
      if (tid == 0) {
        mbarrier_init(&landed, 1);
        mbarrier_init(&listed, 1);
        mbarrier_init_fence();
        mbarrier_expect(&landed, kCluster * (16 * (own_begin(rank + 1) - own_begin(rank)) + 8 * HEADS));
      }
      const int64_t q_head = static_cast<int64_t>(list) * HEADS;
      copy_query<HEAD_DIM, Queries, kThreads>(static_cast<const T*>(args.q) + request * args.q_batch_stride + q_head * args.q_head_stride,
                                              args.q_head_stride, HEADS);
      if (ahead) {
#pragma unroll 1
        for (int at = tid; at < min(width, row - rank * width); at += kThreads)
          ptx::copy4(ptx::shared_address(known + at), out.table + rank * width + at);
        ptx::commit_copies();
      }
    };
    Selection& selection = *reinterpret_cast<Selection*>(memory);
    if (slots > kListSlots) {
      prepare();
    } else if constexpr (kShareCapacity > 0) {
      prepare();
      chosen = select_by_shares<PAGE, kThreads, kCluster, kShareCapacity, kDependent, kPages, HEADS>(
          all.select, selection, reinterpret_cast<float*>(stage + kCounts), reinterpret_cast<uint16_t(*)[select::kShareBins]>(stage), part, out);
    } else {
      chosen = select_held<PAGE, HEADS, kThreads, kCluster, kDependent, kVec, kTurns>(all.select, selection, reinterpret_cast<float*>(stage), part,
                                                                                      out, prepare);
    }
  }
  if (!chosen) {
    if constexpr (kShareCapacity > 0) {
      if constexpr (kDependent) ptx::wait_for_dependencies();
      page_select_by_radix<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords + kStageBytes / 4>(all.select);
    } else {
      select_to_memory<PAGE, HEADS, COMBINE, kThreads, kCluster, kBufferWords, kDependent, kPages>(all.select);
    }
    ptx::cluster_sync<kCluster>();
    ptx::wait_copies<0>();
    __syncthreads();  // the query is whole, as where selection has met meanwhile
  }
  const int rank = ptx::cluster_rank<kCluster>();  // and not kept all the time
  const int length = max(cache.head_lens ? cache.head_lens[static_cast<int64_t>(request) * cache.kv_heads + list] : cache.seq_lens[request], 0);
  const auto entry = [&](int item) {  // page and block of this block's place
    if (chosen) return out.entry(reinterpret_cast<const Selection*>(memory)->cut, item, rank, slots);
    const int place = item * kCluster + rank;
    if (place >= all.select.counts[static_cast<int64_t>(request) * lists + list]) return make_int2(0, -1);
    const int page = list_of<kCluster>(all.select)[place];
    return make_int2(page, page < cache.max_pages ? (cache.block_table + request * cache.table_stride)[page] : -1);
  };
  const auto load = [&](Tile<HEAD_DIM>& tile, int index, int2 at) {  // of this block's tiles; the tokens of it that exist
    const int token = index % kPerPage * kTile;
    const int64_t rest = length - (static_cast<int64_t>(at.x) * PAGE + token);
    const int tokens = at.y < 0 ? 0 : static_cast<int>(max(min(rest, static_cast<int64_t>(kTile)), static_cast<int64_t>(0)));
    const int64_t block = max(at.y, 0);
    tile.load(static_cast<const T*>(cache.k) + list * cache.k_head_stride + block * cache.k_block_stride + token * cache.k_token_stride,
              cache.k_token_stride,
              static_cast<const T*>(cache.v) + list * cache.v_head_stride + block * cache.v_block_stride + token * cache.v_token_stride,
              cache.v_token_stride, tokens);
    return tokens;
  };
  int index = warp < kActive ? warp : tiles;
  {
    Tile<HEAD_DIM> tile;
    int tokens = 0;
    if (index < tiles) tokens = load(tile, index, chosen ? out.first : entry(index / kPerPage));
    if (chosen && warp == kWarps - 1) {  // the list in its order, while keys are on their way
      int32_t* const pages = list_of<kCluster>(all.select);
      select::write_marked(*reinterpret_cast<const Selection*>(memory), part, out.before, [&](int position, int page) { pages[position] = page; });
    }
    if (chosen) write_count<kCluster>(all.select);
#pragma unroll 1
    while (index < tiles) {
      // Base-2 logits. With a cap, tanh takes the natural logit over the cap.
      const float scale = (SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E) * cache_scale<T>(cache.k_scale);
      TileWeights<HEAD_DIM, kColumns> weights;
      weights.template make<SOFTCAP, Queries::kQueryRowBytes, T>(tile, ptx::shared_address(query_tile<Queries>()), tokens, scale,
                                                                 args.logit_softcap * kLog2E);
      sums.template add<T>(warp, index < kActive, tile, weights);
      index += kActive;
      if (index < tiles) tokens = load(tile, index, entry(index / kPerPage));
    }
  }
  __syncthreads();
  const int rows = min(tiles, kActive);
  const uint32_t landed_at = ptx::shared_address(&landed);
  for (int quad = tid; quad < kQuads; quad += kThreads) {
    const int head = quad / (HEAD_DIM / 4), at = quad % (HEAD_DIM / 4);
    const MergedQuad m = merge_quad<kActive>(
        [&](int w) { return w < rows ? sums.stats[w][head] : make_float2(minus_infinity(), 0.0f); },
        [&](int w) { return w < rows ? *reinterpret_cast<const float4*>(&sums.out[w][head][4 * at]) : make_float4(0.0f, 0.0f, 0.0f, 0.0f); });
    received.send(rank, quad, m, landed_at);
  }
  if constexpr (kShareCapacity > 0)
    if (chosen) leave_counts<kCluster>(all.select);
  ptx::wait_cluster_barrier(landed_at, 0);  // by every thread: no block leaves before all that was sent to it has landed
  const int again = ptx::cluster_rank<kCluster>();
  received.template store<kThreads, T>(args, own_begin(again), own_begin(again + 1), request, static_cast<int64_t>(list) * HEADS,
                                       (static_cast<int64_t>(request) * lists + list) * HEADS);
  __syncthreads();
  if (tid == 0) {  // nobody looks at the barriers any more; their memory is the next block's
    mbarrier_invalidate(&landed);
    mbarrier_invalidate(&listed);
  }
}

}  // namespace kvloom
