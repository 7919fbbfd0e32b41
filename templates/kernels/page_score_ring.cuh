// page_score through shared memory: each warp keeps a ring of tiles, filled by one bulk copy a record (sm_90) or by 16-byte copies
// of all lanes (sm_80). The two differ in issue slots and in what they ask of the GPU, not in results.
#pragma once

#include "kernels/page_score_direct.cuh"
#include "kvloom/ptx/async_copy.cuh"
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

// What a warp knows of a tile in its ring: the task, and which of its pages have a record.
struct __align__(16) RingEntry {
  TileTask task;
  uint32_t mapped;
  int32_t reserved[2];
};

// Fills a stage by bulk copies, one a record, completed on the stage's mbarrier (sm_90).
template <class S, int STAGES>
struct BulkFill {
  using Tile = RingTile<S>;
  uint64_t* full;
  uint64_t policy;
  uint32_t parity = 0;

  // `full` are this warp's barriers. All lanes call together.
  __device__ __forceinline__ explicit BulkFill(uint64_t* bars) : full(bars), policy(evict_first_policy()) {
    const int lane = threadIdx.x % 32;
    if (lane < STAGES) mbarrier_init(full + lane, 1);
    mbarrier_init_fence();
    __syncwarp();
  }
  // `block` is the block id of page lane % 16, `head` the kv head's first record.
  __device__ __forceinline__ void start(uint8_t* to, int stage, const uint8_t* head, int64_t block_stride, int block, uint32_t mapped) {
    const uint8_t* from = head + block * block_stride;
    const uint8_t* record[kScoreTile];
#pragma unroll
    for (int i = 0; i < kScoreTile; i++)
      record[i] = reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(from), i));
    if (elect_lane()) {
      mbarrier_expect(full + stage, __popc(mapped) * S::Rec::kBytes);
#pragma unroll
      for (int i = 0; i < kScoreTile; i++)
        if (mapped >> i & 1) bulk_copy(to + i * Tile::kDistance, record[i], S::Rec::kBytes, full + stage, policy);
    }
  }
  __device__ __forceinline__ void skip() {}
  __device__ __forceinline__ void wait(int stage) { mbarrier_wait(full + stage, parity); }
  __device__ __forceinline__ void wrap() { parity ^= 1; }
};

// Fills a stage by 16-byte copies of all lanes (sm_80).
template <class S, int STAGES>
struct LaneFill {
  using Tile = RingTile<S>;
  __device__ __forceinline__ explicit LaneFill(uint64_t*) {}
  __device__ __forceinline__ void start(uint8_t* to, int, const uint8_t* head, int64_t block_stride, int block, uint32_t mapped) {
    constexpr int kPieces = S::Rec::kBytes / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t shared = shared_address(to) + lane * 16;
    const uint8_t* from = head + block * block_stride;
#pragma unroll
    for (int i = 0; i < kScoreTile; i++) {
      const uint8_t* record =
          reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(from), i)) + lane * 16;
      if (mapped >> i & 1) {
#pragma unroll
        for (int piece = 0; piece < kPieces; piece += 32)
          if (piece + lane < kPieces)
            ptx::copy16_or_zero(shared + i * Tile::kDistance + piece * 16, record + piece * 16, true);
      }
    }
    ptx::commit_copies();
  }
  // Every turn closes one group, so that the groups outstanding count the stages.
  __device__ __forceinline__ void skip() { ptx::commit_copies(); }
  __device__ __forceinline__ void wait(int) {
    ptx::wait_copies<STAGES - 1>();
    __syncwarp();
  }
  __device__ __forceinline__ void wrap() {}
};

// Grid: x blocks of WARPS warps, any number. Dynamic shared memory: WARPS * STAGES * RingTile::kBytes.
template <template <class, int> class Fill, typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP,
          int WARPS, int STAGES, class FORM>
__device__ __forceinline__ void page_score_through_ring(const PageScoreArgs& args) {
  using S = ScoreShape<T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, FORM>;
  using Tile = RingTile<S>;
  extern __shared__ __align__(128) uint8_t ring_memory[];
  __shared__ __align__(16) RingEntry entries[WARPS][STAGES];
  __shared__ __align__(8) uint64_t bars[WARPS][STAGES];

  const int lane = threadIdx.x % 32, g = lane / 4;
  const int warp = __shfl_sync(0xffffffffu, static_cast<int>(threadIdx.x / 32), 0);
  const uint32_t units = static_cast<uint32_t>(args.cache.kv_heads) * S::kPasses;
  const WarpShare share(WARPS, units);
  if (blockIdx.x == 0) reduce::leave_no_masses(args.masses, args.cache.kv_heads * S::kGroup, threadIdx.x, blockDim.x);
  if (share.idle()) return;
  prefetch_first<S>(args, share.first, units);
  uint8_t* ring = ring_memory + warp * (STAGES * Tile::kBytes);
  RingEntry* entry = entries[warp];
  Fill<S, STAGES> fill(bars[warp]);

  TileTasks<PAGE, kScoreTile> tasks(args.cache.seq_lens, args.cache.batch, units, S::Rec::Group::of_table(args.cache.max_pages), share.first, share.stride);
  TileTask ahead;  // the next task to fetch; its block ids are on their way
  int block = -1, filled = 0;
  bool more = tasks.next(ahead);
  if (more) block = tile_block<S>(args, ahead);
  // Starts the copies of the next tile into a stage that nobody reads, and asks for the block ids of the one after.
  auto issue = [&](int stage) {
    if (more) {
      const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0) & 0xffffu;
      if (lane == 0) entry[stage] = RingEntry{ahead, mapped, {0, 0}};
      fill.start(ring + stage * Tile::kBytes, stage, args.summaries + (ahead.unit / S::kPasses) * args.summary_head_stride,
                 args.summary_block_stride, block, mapped);
      __syncwarp();
      filled++;
      more = tasks.next(ahead);
      if (more) block = tile_block<S>(args, ahead);
    } else {
      fill.skip();
    }
  };
#pragma unroll 1
  for (int stage = 0; stage < STAGES; stage++) issue(stage);

  ScoreQuery<S> query;
  int loaded_request = -1, loaded_unit = -1, stage = 0;
#pragma unroll 1
  for (int done = 0; done < filled; done++) {
    const RingEntry now = entry[stage];
    const TileTask& t = now.task;
    const int kv_head = t.unit / S::kPasses, pass = t.unit % S::kPasses, first = t.tile * kScoreTile;
    if (first < t.pages && (t.request != loaded_request || t.unit != loaded_unit)) {
      load_query<S>(args, t.request, kv_head, pass, query);
      loaded_request = t.request, loaded_unit = t.unit;
    }
    fill.wait(stage);
    const int live = t.pages - first < kScoreTile ? t.pages - first : kScoreTile;
    if (first >= t.pages) {
      score_tail<S>(args, t.request, kv_head, pass, t.pages, t.tail);
    } else if (now.mapped != 0) {
      const int any = __ffs(now.mapped) - 1;
      SharedBytes page[2];
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int n = g + 8 * i;
        page[i].base = ring + stage * Tile::kBytes + (now.mapped >> n & 1 ? n : any) * Tile::kDistance;
      }
      score_tile<S>(args, page, query, t.request, kv_head, pass, first, live, now.mapped);
    } else {
      fill_tile<S>(args, t.request, kv_head, pass, first, live);
    }
    __syncwarp();
    issue(stage);
    if (++stage == STAGES) {
      stage = 0;
      fill.wrap();
    }
  }
}

template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int WARPS, int STAGES, class FORM = PlainForm>
__device__ __forceinline__ void page_score_ring(const PageScoreArgs& args) {
  page_score_through_ring<BulkFill, T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, WARPS, STAGES, FORM>(args);
}

template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int WARPS, int STAGES, class FORM = PlainForm>
__device__ __forceinline__ void page_score_lane_ring(const PageScoreArgs& args) {
  page_score_through_ring<LaneFill, T, HEAD_DIM, PAGE, RANK, BITS, GROUP, SOFTCAP, WARPS, STAGES, FORM>(args);
}

}  // namespace kvloom
