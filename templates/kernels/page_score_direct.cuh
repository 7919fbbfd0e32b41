// page_score, portable form: persistent warps, each reading the records of its tile straight into registers in fragment order.
#pragma once

#include "kernels/page_score.cuh"

namespace kvloom {

// This warp's place in the list of tasks. Consecutive tasks go to different SMs, so that a short list spreads over the chip; the
// stride is a multiple of the units where there are enough warps, so that a warp keeps its unit and its query.
struct WarpShare {
  uint32_t first, stride;
  __device__ __forceinline__ WarpShare(uint32_t warps_per_block, uint32_t units) {
    const uint32_t warps = warps_per_block * gridDim.x;
    first = threadIdx.x / 32 * gridDim.x + blockIdx.x;
    stride = warps >= units ? warps - warps % units : warps;
  }
  __device__ __forceinline__ bool idle() const { return first >= stride; }
};

// Block ids of a tile, one a lane (lane and lane + 16 alike): -1 past the complete pages and where the table says so.
template <class S>
__device__ __forceinline__ int tile_block(const PageScoreArgs& args, const TileTask& t) {
  const int n = t.tile * kScoreTile + threadIdx.x % kScoreTile;
  return n < t.pages ? __ldg(args.cache.block_table + t.request * args.cache.table_stride + S::Rec::Group::column(n)) : -1;
}

// Asks L2 for what a single request's first tile needs, so that the length, the table and the query come at the same time: without
// it each waits for the one before. Entries of the table are within its columns, live or not.
template <class S>
__device__ __forceinline__ void prefetch_first(const PageScoreArgs& args, uint32_t first, uint32_t units) {
  if (args.cache.batch != 1) return;
  const int lane = threadIdx.x % 32, unit = first % units, kv_head = unit / S::kPasses, pass = unit % S::kPasses;
  const int page = static_cast<int>(first / units) * kScoreTile;
  if (lane == 31 && page < S::Rec::Group::of_table(args.cache.max_pages)) prefetch_l2(args.cache.block_table + S::Rec::Group::column(page));
  constexpr int kRowLines = (S::kHeadDim * 2 + 127) / 128, kRows = S::kGroup < S::kUnitHeads ? S::kGroup : S::kUnitHeads;
  const int head = pass * S::kUnitHeads + lane / kRowLines;
  if (lane < kRows * kRowLines && lane < 31 && head < S::kGroup)
    prefetch_l2(static_cast<const typename S::Element*>(args.q) + (static_cast<int64_t>(kv_head) * S::kGroup + head) * args.q_head_stride +
                lane % kRowLines * 64);
}

// Walks the list of tiles. load(request, kv_head, pass, query) makes the query of a unit; score(page, query, request, kv_head, pass, first,
// live, mapped) scores a tile that has a record, page[i] being that of pages g + 8 i.
template <class S, class Query, int WARPS, class Load, class Score>
__device__ __forceinline__ void walk_tiles(const PageScoreArgs& args, Load load, Score score) {
  const int lane = threadIdx.x % 32, g = lane / 4;
  const uint32_t units = static_cast<uint32_t>(args.cache.kv_heads) * S::kPasses;
  const WarpShare share(WARPS, units);
  if (blockIdx.x == 0) reduce::leave_no_masses(args.masses, args.cache.kv_heads * S::kGroup, threadIdx.x, blockDim.x);
  if (share.idle()) return;
  prefetch_first<S>(args, share.first, units);
  TileTasks<S::kPage, kScoreTile> tasks(args.cache.seq_lens, args.cache.batch, units, S::Rec::Group::of_table(args.cache.max_pages), share.first, share.stride);
  TileTask now, then;
  bool more = tasks.next(now);
  if (!more) return;
  int block = tile_block<S>(args, now);
  Query query;
  int loaded_request = -1, loaded_unit = -1;
  while (more) {
    more = tasks.next(then);
    const int next_block = more ? tile_block<S>(args, then) : -1;  // on its way while this tile is computed
    const int kv_head = now.unit / S::kPasses, pass = now.unit % S::kPasses;
    const int first = now.tile * kScoreTile, live = now.pages - first < kScoreTile ? now.pages - first : kScoreTile;
    const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0) & 0xffffu;
    if (first >= now.pages) {
      score_tail<S>(args, now.request, kv_head, pass, now.pages, now.tail);
    } else if (mapped == 0) {
      fill_tile<S>(args, now.request, kv_head, pass, first, live);
    } else {
      if (now.request != loaded_request || now.unit != loaded_unit) {
        load(now.request, kv_head, pass, query);
        loaded_request = now.request, loaded_unit = now.unit;
      }
      // A page without a record reads a neighbour's and drops the result.
      const int any = __shfl_sync(0xffffffffu, block, __ffs(mapped) - 1);
      GlobalBytes page[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        int id = __shfl_sync(0xffffffffu, block, g + 8 * i);
        id = id >= 0 ? id : any;
        page[i].base = args.summaries + id * args.summary_block_stride + kv_head * args.summary_head_stride;
      }
      score(page, query, now.request, kv_head, pass, first, live, mapped);
    }
    now = then;
    block = next_block;
  }
}

// Grid: x blocks of WARPS warps, any number. No shared memory.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int WARPS, class FORM = PlainForm>
__device__ __forceinline__ void page_score_direct(const PageScoreArgs& args) {
  using S = ScoreShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, FORM>;
  walk_tiles<S, ScoreQuery<S>, WARPS>(
      args,
      [&](int request, int kv_head, int pass, ScoreQuery<S>& query) { load_query<S>(args, request, kv_head, pass, query); },
      [&](const GlobalBytes(&page)[2], const ScoreQuery<S>& query, int request, int kv_head, int pass, int first, int live, uint32_t mapped) {
        score_tile<S>(args, page, query, request, kv_head, pass, first, live, mapped);
      });
}

}  // namespace kvloom
