// page_score on int8 tensor cores: the shape, and the ring that one warp fills by bulk copies (sm_90).
#pragma once

#include "kernels/page_score.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

constexpr int kImmaTile = 8;            // pages of a tile
constexpr int kImmaRun = 32;            // most pages of a run: 4 tiles, and a line of memory of scores
constexpr int kImmaStagedRow = 40;      // floats between two query heads of a run in shared memory, 8 banks apart

// Everything that follows from a shape. HEADS kv heads are copied together.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int HEADS, int PARTS, int CONSUMERS, int STAGES>
struct ImmaShape {
  static_assert(PAGE == 16 && BITS == 4 && (RANK == 4 || RANK == 8), "C of 16 tokens fills two n tiles; ranks fill a k step with whole pages");
  static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "a quarter of a row is whole k steps; 16 * 15 * 2^15 * 256 dims fit 31 bits");
  static_assert(GROUP >= 1 && GROUP <= 16 && !SOFTCAP, "a cap bends each logit before the centroid can be taken out");
  static_assert(HEADS >= 1 && CONSUMERS % (HEADS * PARTS) == 0, "a warp keeps its kv head and its part of a tile");
  static_assert(PARTS == 1 || (PARTS == 2 && GROUP <= 4), "half a tile is worth a warp where the query is columns");
static_assert(STAGES >= 1, "a group of warps has a ring of its own");

  using Element = T;
  using Rec = Record<HEAD_DIM, PAGE, RANK, BITS>;
  static constexpr int kHeadDim = HEAD_DIM, kPage = PAGE, kRank = RANK, kGroup = GROUP;
  static constexpr int kHeads = HEADS, kConsumers = CONSUMERS, kStages = STAGES;
  static constexpr int kParts = PARTS;                       // warps that share a tile of a kv head
  static constexpr int kTeam = HEADS * PARTS;                // warps that share a tile
  static constexpr int kWarpGroups = CONSUMERS / kTeam;      // each has its runs and its ring of kStages tiles
  static constexpr int kQuarter = HEAD_DIM / 4;
  static constexpr int kWords = HEAD_DIM / 32;               // of a quarter of a row of V
  // Distance of two pages in shared memory: an odd multiple of 32, so that copies keep the alignment of sectors, which they are faster
  // with, and that reads of several pages meet different banks.
  static constexpr int kPageBytes = HEADS * Rec::kBytes;
  static constexpr int kDistance = (kPageBytes + 31) / 64 * 64 + 32;
  static constexpr int kStageBytes = kImmaTile * kDistance;
};

// What a consumer knows of a tile in the ring. request < 0 ends the list.
struct __align__(16) ImmaTile {
  int32_t request, chunk;  // chunk: HEADS kv heads
  int32_t first;           // page
  uint32_t pages;          // bits 0-7: which have a record; bits 8-11: how many are complete; bit 12: the last tile of its run;
                           // bits 13-14: which tile of its run
};

// The rings of a block in shared memory, one a group of warps. A stage is filled by one arrival and its bytes, and empty when its
// kTeam warps have read it.
template <class S>
struct ImmaRing {
  uint8_t* records;  // [group, stage][page]
  ImmaTile* entries;
  uint64_t *full, *empty;
};

// A run: up to 32 pages of one request and chunk; each lane holds the block id of one page. live 0: no more runs.
struct ImmaRunOf {
  int request, chunk, first, live, block;
};

__device__ __forceinline__ int imma_pages(int length, int page, int max_pages) { return length > 0 ? min(length / page, max_pages) : 0; }
__device__ __forceinline__ uint32_t imma_runs(int pages, int run) { return static_cast<uint32_t>(pages + run - 1) / run; }

// Pages of a run: the most whose rounding costs the busiest group of warps at most a sixteenth more tiles.
template <class S>
__device__ __forceinline__ int imma_run_pages(uint32_t tiles) {
  const uint32_t groups = gridDim.x * S::kWarpGroups, least = (tiles + groups - 1) / groups;
  auto dear = [&](uint32_t of) { return ((tiles + of - 1) / of + groups - 1) / groups * of * 16 > least * 17; };
  return !dear(4) ? 4 * kImmaTile : !dear(2) ? 2 * kImmaTile : kImmaTile;
}

// Deals out the runs of a single request, one by one to the blocks: the first runs of a block do not depend on the length, so that
// their block ids are asked for together with it.
template <class S>
class ImmaOneRequest {
 public:
  // Only asks for what the first runs need.
  __device__ __forceinline__ ImmaOneRequest(const KvCache& cache, int chunks) : cache_(cache), chunks_(chunks) {
    run_ = imma_run_pages<S>(imma_runs(cache.max_pages, kImmaTile) * chunks);  // the columns of the table stand for the length
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < S::kWarpGroups; i++) {
      const uint32_t at = (blockIdx.x + i * gridDim.x) * run_ + lane;
      // Entries of the table are within its columns, live or not.
      guess_[i] = cache.batch == 1 && lane < run_ && at < static_cast<uint32_t>(cache.max_pages) ? __ldg(cache.block_table + at) : -1;
    }
    length_ = cache.batch == 1 ? __ldg(cache.seq_lens) : 0;
  }
  __device__ __forceinline__ void start() {
    pages_ = imma_pages(length_, S::kPage, cache_.max_pages);
    runs_ = imma_runs(pages_, run_);
    all_ = runs_ * chunks_, index_ = blockIdx.x;
  }
  // `turn` counts the runs that were dealt up to kWarpGroups.
  __device__ __forceinline__ ImmaRunOf next(int turn) {
    ImmaRunOf run{0, 0, 0, 0, -1};
    if (index_ < all_) {
      run.chunk = index_ < runs_ ? 0 : static_cast<int>(index_ / runs_);
      run.first = static_cast<int>(index_ - run.chunk * runs_) * run_;
      run.live = min(pages_ - run.first, run_);
      const int lane = threadIdx.x % 32;
      if (lane < run.live)
        run.block = turn < S::kWarpGroups && run.chunk == 0 ? guess_[turn < S::kWarpGroups ? turn : 0]
                                                            : __ldg(cache_.block_table + run.first + lane);
    }
    index_ += gridDim.x;
    return run;
  }

 private:
  const KvCache& cache_;
  int chunks_, run_, guess_[S::kWarpGroups], length_, pages_;
  uint32_t runs_, all_, index_;  // of [chunk][run]
};

// Deals out the runs of several requests: each block takes a piece of the list [request][chunk][run], the run fastest, so that it
// meets few queries. All lanes call together.
template <class S>
class ImmaManyRequests {
 public:
  __device__ __forceinline__ ImmaManyRequests(const KvCache& cache, int chunks) : cache_(cache), chunks_(chunks) {
    run_ = kImmaTile;
    run_ = imma_run_pages<S>(count());
    const uint32_t total = count(), each = total / gridDim.x, more = total % gridDim.x;  // the first `more` blocks take one more
    index_ = each * blockIdx.x + min(blockIdx.x, more);
    left_ = each + (blockIdx.x < more ? 1 : 0);
    scan();
  }
  __device__ __forceinline__ ImmaRunOf next(int) {
    ImmaRunOf run{0, 0, 0, 0, -1};
    while (left_ != 0) {
      const uint32_t ahead = __ballot_sync(0xffffffffu, index_ < upto_);
      if (ahead != 0) {
        const int owner = __ffs(ahead) - 1, lane = threadIdx.x % 32;
        const uint32_t rest = index_ - __shfl_sync(0xffffffffu, before_, owner);
        const int pages = __shfl_sync(0xffffffffu, pages_, owner);
        run.request = base_ + owner;
        const uint32_t runs = imma_runs(pages, run_);
        run.chunk = chunks_ == 1 ? 0 : static_cast<int>(rest / runs);
        run.first = static_cast<int>(rest - run.chunk * runs) * run_;
        run.live = min(pages - run.first, run_);
        if (lane < run.live) run.block = __ldg(cache_.block_table + run.request * cache_.table_stride + run.first + lane);
        index_++, left_--;
        break;
      }
      index_ -= __shfl_sync(0xffffffffu, upto_, 31);
      base_ += 32;
      if (base_ >= cache_.batch) left_ = 0;
      else scan();
    }
    return run;
  }

 private:
  __device__ __forceinline__ int pages_of(int request) const {
    return request < cache_.batch ? imma_pages(__ldg(cache_.seq_lens + request), S::kPage, cache_.max_pages) : 0;
  }
  // Runs of all requests.
  __device__ __forceinline__ uint32_t count() const {
    uint32_t total = 0;
    for (int base = 0; base < cache_.batch; base += 32) {
      uint32_t mine = imma_runs(pages_of(base + static_cast<int>(threadIdx.x % 32)), run_) * chunks_;
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) mine += __shfl_xor_sync(0xffffffffu, mine, mask);
      total += mine;
    }
    return total;
  }
  __device__ __forceinline__ void scan() {
    const int lane = threadIdx.x % 32;
    pages_ = pages_of(base_ + lane);
    const uint32_t mine = imma_runs(pages_, run_) * chunks_;
    upto_ = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(0xffffffffu, upto_, step);
      if (lane >= step) upto_ += below;
    }
    before_ = upto_ - mine;
  }

  const KvCache& cache_;
  int chunks_, run_;
  uint32_t index_, left_;
  int base_ = 0;  // request of lane 0
  int pages_;     // this lane's request
  uint32_t before_, upto_;
};

// Waits for a stage and starts the copies of tile `slot` of a run.
template <class S>
__device__ __forceinline__ void imma_issue(const PageScoreArgs& args, const ImmaRing<S>& ring, int stage, uint32_t parity,
                                           const ImmaRunOf& run, int slot, uint64_t policy) {
  using R = typename S::Rec;
  const int from = slot * kImmaTile;
  const uint32_t mapped = __ballot_sync(0xffffffffu, run.block >= 0) >> from & 0xffu;
  // A page without a record gets a neighbour's, and its result is dropped.
  const int any = __shfl_sync(0xffffffffu, run.block, mapped != 0 ? from + __ffs(mapped) - 1 : from);
  const uint8_t* source = args.summaries + (run.block >= 0 ? run.block : any) * args.summary_block_stride +
                          static_cast<int64_t>(run.chunk) * S::kHeads * args.summary_head_stride;
  const uint8_t* record[kImmaTile];
#pragma unroll
  for (int x = 0; x < kImmaTile; x++)
    record[x] = reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(source), from + x));
  mbarrier_wait(ring.empty + stage, parity);
  if (elect_lane()) {
    const int left = run.live - from;
    const uint32_t live = left < kImmaTile ? left : kImmaTile;
    ring.entries[stage] = ImmaTile{run.request, run.chunk, run.first + from, mapped | live << 8 | (left <= kImmaTile ? 1u << 12 : 0u) | static_cast<uint32_t>(slot) << 13};
    const int heads = min(S::kHeads, args.cache.kv_heads - run.chunk * S::kHeads);
    uint64_t* full = ring.full + stage;
    uint8_t* to = ring.records + stage * S::kStageBytes;
    if (mapped == 0) {
      mbarrier_arrive(full);
    } else {
      mbarrier_expect(full, kImmaTile * heads * R::kBytes);
      if (args.summary_head_stride == R::kBytes) {
#pragma unroll
        for (int x = 0; x < kImmaTile; x++) bulk_copy(to + x * S::kDistance, record[x], heads * R::kBytes, full, policy);
      } else {
#pragma unroll 1
        for (int h = 0; h < heads; h++)
#pragma unroll
          for (int x = 0; x < kImmaTile; x++)
            bulk_copy(to + x * S::kDistance + h * R::kBytes, record[x] + h * args.summary_head_stride, R::kBytes, full, policy);
      }
    }
  }
  __syncwarp();
}

// The warp that fills the rings: a run for each group of warps, tile by tile in turn. A tile without a request ends each group's list.
template <class S, class Dealer>
__device__ __forceinline__ void imma_produce(const PageScoreArgs& args, const ImmaRing<S>& ring, Dealer& dealer) {
  const uint64_t policy = evict_first_policy();
  ImmaRunOf now[S::kWarpGroups], then[S::kWarpGroups];
  int stage[S::kWarpGroups];
  uint32_t parity[S::kWarpGroups];
#pragma unroll
  for (int i = 0; i < S::kWarpGroups; i++) {
    now[i] = dealer.next(i);
    stage[i] = i * S::kStages, parity[i] = 1;  // the first round finds every stage empty
  }
  while (now[0].live > 0) {  // runs are dealt in order
#pragma unroll 1
    for (int slot = 0; slot < kImmaRun / kImmaTile; slot++) {
#pragma unroll
      for (int i = 0; i < S::kWarpGroups; i++) {
        if (slot * kImmaTile < now[i].live) {
          imma_issue<S>(args, ring, stage[i], parity[i], now[i], slot, policy);
          if (++stage[i] == (i + 1) * S::kStages) stage[i] = i * S::kStages, parity[i] ^= 1;
        }
      }
      if (slot == 0) {  // block ids arrive while these tiles do
#pragma unroll
        for (int i = 0; i < S::kWarpGroups; i++) then[i] = dealer.next(S::kWarpGroups);
      }
    }
#pragma unroll
    for (int i = 0; i < S::kWarpGroups; i++) now[i] = then[i];
  }
#pragma unroll
  for (int i = 0; i < S::kWarpGroups; i++) {
    mbarrier_wait(ring.empty + stage[i], parity[i]);
    if (elect_lane()) {
      ring.entries[stage[i]] = ImmaTile{-1, 0, 0, 0};
      mbarrier_arrive(ring.full + stage[i]);
    }
    __syncwarp();
  }
}

}  // namespace kvloom
