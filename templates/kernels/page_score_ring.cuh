// page_score, Hopper form: each warp keeps a ring of tiles in shared memory, filled by one bulk copy a record.
#pragma once

#include "kernels/page_score_direct.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

// Distance of two records of a tile in shared memory. A warp reads the quarters of rows of eight records at once: the distance
// spreads them over the banks. gen/plan computes the same.
template <class S>
struct RingTile {
  using R = typename S::Rec;
  static constexpr int kSkew = R::kQuarterBytes <= 16 ? 4 * R::kQuarterBytes : 16;
  static constexpr int kDistance = R::kBytes + ((kSkew - R::kBytes) % 128 + 128) % 128;
  static constexpr int kBytes = kScoreTile * kDistance;
};

// Grid: x blocks of WARPS warps, any number. Dynamic shared memory: WARPS * STAGES * RingTile::kBytes.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int WARPS, int STAGES>
__device__ __forceinline__ void page_score_ring(const PageScoreArgs& args) {
  using S = ScoreShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP>;
  using Tile = RingTile<S>;
  constexpr uint32_t kRecord = S::Rec::kBytes;
  extern __shared__ __align__(128) uint8_t ring_memory[];
  __shared__ __align__(8) uint64_t bars[WARPS][STAGES];
  __shared__ uint32_t masks[WARPS][STAGES];  // which pages of the tile have a record

  const int lane = threadIdx.x % 32, g = lane / 4;
  const int warp = __shfl_sync(0xffffffffu, threadIdx.x / 32, 0);
  const uint32_t units = static_cast<uint32_t>(args.cache.kv_heads) * S::kPasses;
  const WarpShare share(WARPS, units);
  if (share.idle()) return;
  uint8_t* ring = ring_memory + warp * (STAGES * Tile::kBytes);
  uint64_t* full = bars[warp];
  uint32_t* mask = masks[warp];
  if (lane < STAGES) mbarrier_init(full + lane, 1);
  mbarrier_init_fence();
  __syncwarp();
  const uint64_t policy = evict_first_policy();

  using Tasks = TileTasks<PAGE, kScoreTile>;
  Tasks tasks(args.cache.seq_lens, args.cache.batch, units, args.cache.max_pages, share.first, share.stride);
  Tasks ahead = tasks;  // the same list, STAGES tiles earlier; it has the block ids of its next tile in registers
  TileTask fetch;
  int block = -1;
  bool fetching = ahead.next(fetch);
  if (fetching) block = tile_block(args, fetch);
  // Starts the copies of the next tile into a stage that nobody reads, and asks for the block ids of the one after.
  auto issue = [&](int stage) {
    const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0) & 0xffffu;
    const uint8_t* head = args.summaries + (fetch.unit / S::kPasses) * args.summary_head_stride;
    int ids[kScoreTile];
#pragma unroll
    for (int i = 0; i < kScoreTile; i++) ids[i] = __shfl_sync(0xffffffffu, block, i);
    if (elect_lane()) {
      mask[stage] = mapped;
      mbarrier_expect(full + stage, __popc(mapped) * kRecord);
#pragma unroll
      for (int i = 0; i < kScoreTile; i++)
        if (ids[i] >= 0)
          bulk_copy(ring + stage * Tile::kBytes + i * Tile::kDistance, head + ids[i] * args.summary_block_stride, kRecord,
                    full + stage, policy);
    }
    __syncwarp();
    fetching = ahead.next(fetch);
    block = fetching ? tile_block(args, fetch) : -1;
  };
#pragma unroll 1
  for (int stage = 0; stage < STAGES && fetching; stage++) issue(stage);

  ScoreQuery<S> query;
  int loaded_request = -1, loaded_unit = -1, stage = 0;
  uint32_t parity = 0;
  TileTask t;
  while (tasks.next(t)) {
    const int kv_head = t.unit / S::kPasses, pass = t.unit % S::kPasses, first = t.tile * kScoreTile;
    if (first < t.pages && (t.request != loaded_request || t.unit != loaded_unit)) {
      load_query<S>(args, t.request, kv_head, pass, query);
      loaded_request = t.request, loaded_unit = t.unit;
    }
    mbarrier_wait(full + stage, parity);
    const uint32_t mapped = mask[stage];
    const int live = t.pages - first < kScoreTile ? t.pages - first : kScoreTile;
    if (first >= t.pages) {
      score_tail<S>(args, t.request, kv_head, pass, t.pages, t.tail);
    } else if (mapped != 0) {
      const int any = __ffs(mapped) - 1;
      SharedBytes page[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int n = g + 8 * i;
        page[i].base = ring + stage * Tile::kBytes + (mapped >> n & 1 ? n : any) * Tile::kDistance;
      }
      score_tile<S>(args, page, query, t.request, kv_head, pass, first, live, mapped);
    } else {
      fill_tile<S>(args, t.request, kv_head, pass, first, live);
    }
    __syncwarp();
    if (fetching) issue(stage);
    if (++stage == STAGES) stage = 0, parity ^= 1;
  }
}

}  // namespace kvloom
