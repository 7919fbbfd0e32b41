// page_score on int8 tensor cores: the shape, and the ring that one warp fills by bulk copies (sm_90).
#pragma once

#include "kernels/page_score.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

constexpr int kImmaTile = 8;  // pages of a tile

// Everything that follows from a shape. HEADS kv heads are copied together.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int HEADS, int CONSUMERS, int STAGES>
struct ImmaShape {
  static_assert(PAGE == 16 && BITS == 4 && (RANK == 4 || RANK == 8), "C of 16 tokens fills two n tiles; ranks fill a k step with whole pages");
  static_assert(HEAD_DIM % 64 == 0 && HEAD_DIM <= 256, "a quarter of a row is whole k steps; 16 * 15 * 2^15 * 256 dims fit 31 bits");
  static_assert(GROUP >= 1 && GROUP <= 16 && !SOFTCAP, "a cap bends each logit before the centroid can be taken out");
  static_assert(HEADS >= 1 && CONSUMERS % HEADS == 0, "a warp keeps its kv head");
  // Copies land in any order. Were a stage to serve two groups, one could pass its barrier on the parity of the phase before the one
  // that the other still waits for.
  static_assert(STAGES % (CONSUMERS / HEADS) == 0, "a stage belongs to one group of warps for good");

  using Element = T;
  using Rec = Record<HEAD_DIM, PAGE, RANK, BITS>;
  static constexpr int kHeadDim = HEAD_DIM, kPage = PAGE, kRank = RANK, kGroup = GROUP;
  static constexpr int kHeads = HEADS, kConsumers = CONSUMERS, kStages = STAGES;
  static constexpr int kWarpGroups = CONSUMERS / HEADS;      // each takes every kWarpGroups-th tile
  static constexpr int kQuarter = HEAD_DIM / 4;
  static constexpr int kWords = HEAD_DIM / 32;               // of a quarter of a row of V
  // Distance of two pages in shared memory. Copies are faster where both ends share their place in a line of 128 bytes: pages whose
  // records end there follow each other. Others keep the place in a sector of 32, and reads of several pages meet different banks.
  static constexpr int kPageBytes = HEADS * Rec::kBytes;
  static constexpr int kDistance = kPageBytes % 128 == 0 ? kPageBytes : (kPageBytes + 31) / 64 * 64 + 32;
  static constexpr int kStageBytes = kImmaTile * kDistance;
};

// What a consumer knows of a tile in the ring. request < 0 ends the list.
struct __align__(16) ImmaTile {
  int32_t request, chunk;  // chunk: HEADS kv heads
  int32_t first;           // page
  uint32_t pages;          // bits 0-7: which have a record; bits 8-11: how many are complete
};

// Walks this block's run of the list [request][chunk][tile], the tile fastest: runs, so that a block meets few queries. All lanes call
// together.
template <int PAGE>
class ImmaTiles {
 public:
  __device__ __forceinline__ ImmaTiles(const KvCache& cache, int chunks) : cache_(cache), chunks_(chunks) {
    uint32_t total = 0;
    for (int base = 0; base < cache.batch; base += 32) {
      uint32_t mine = tiles_of(pages_of(cache, base + static_cast<int>(threadIdx.x % 32))) * chunks;
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) mine += __shfl_xor_sync(0xffffffffu, mine, mask);
      total += mine;
    }
    const uint32_t each = total / gridDim.x, more = total % gridDim.x;  // the first `more` blocks take one more
    index_ = each * blockIdx.x + min(blockIdx.x, more);
    left_ = each + (blockIdx.x < more ? 1 : 0);
    scan();
  }

  static __device__ __forceinline__ int pages_of(int length, int max_pages) { return length > 0 ? min(length / PAGE, max_pages) : 0; }
  static __device__ __forceinline__ int pages_of(const KvCache& cache, int request) {
    return request < cache.batch ? pages_of(__ldg(cache.seq_lens + request), cache.max_pages) : 0;
  }
  static __device__ __forceinline__ uint32_t tiles_of(int pages) { return static_cast<uint32_t>(pages + kImmaTile - 1) / kImmaTile; }

  // The next tile: its request, chunk, first page and the complete pages of the request.
  __device__ __forceinline__ bool next(int& request, int& chunk, int& first, int& pages) {
    while (left_ != 0) {
      const uint32_t ahead = __ballot_sync(0xffffffffu, index_ < upto_);
      if (ahead != 0) {
        const int lane = __ffs(ahead) - 1;
        const uint32_t rest = index_ - __shfl_sync(0xffffffffu, before_, lane);
        pages = __shfl_sync(0xffffffffu, pages_, lane);
        request = base_ + lane;
        chunk = chunks_ == 1 ? 0 : static_cast<int>(rest / tiles_of(pages));
        first = static_cast<int>(rest - chunk * tiles_of(pages)) * kImmaTile;
        index_++, left_--;
        return true;
      }
      index_ -= __shfl_sync(0xffffffffu, upto_, 31);
      base_ += 32;
      if (base_ >= cache_.batch) break;
      scan();
    }
    left_ = 0;
    return false;
  }

 private:
  __device__ __forceinline__ void scan() {
    const int lane = threadIdx.x % 32;
    pages_ = pages_of(cache_, base_ + lane);
    const uint32_t mine = tiles_of(pages_) * chunks_;
    upto_ = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(0xffffffffu, upto_, step);
      if (lane >= step) upto_ += below;
    }
    before_ = upto_ - mine;
  }

  const KvCache& cache_;
  int chunks_;
  uint32_t index_, left_;
  int base_ = 0;  // request of lane 0
  int pages_;     // this lane's request
  uint32_t before_, upto_;
};

// What a producer's lane knows of the tile lane / 8 of a vector of four: the block id of page lane % 8.
struct ImmaLane {
  int request, chunk, first, live, block;  // request -1: no more tiles
};

// Deals out tiles, four at a time. A single request is dealt tile by tile to the blocks, so that a block's first tile does not depend
// on the length: its block ids are asked for together with it.
template <class S>
class ImmaDealer {
 public:
  // Only asks for what the first tiles need, and only in the warp that deals.
  __device__ __forceinline__ ImmaDealer(const KvCache& cache, bool deals) : cache_(cache) {
    const uint32_t lane = threadIdx.x % 32;
    index_ = blockIdx.x + lane / kImmaTile * gridDim.x;
    const uint32_t at = index_ * kImmaTile + lane % kImmaTile;
    guess_ = -1, length_ = 0;
    if (deals && cache.batch == 1) {
      // Entries of the table are within its columns, live or not.
      if (at < static_cast<uint32_t>(cache.max_pages)) guess_ = __ldg(cache.block_table + at);
      length_ = __ldg(cache.seq_lens);
    }
  }
  // The next four tiles of a single request. `first`: these are the guessed ones.
  __device__ __forceinline__ ImmaLane of_one(int chunks, bool first) {
    const int page = threadIdx.x % kImmaTile;
    const int pages = ImmaTiles<S::kPage>::pages_of(length_, cache_.max_pages);
    const uint32_t tiles = ImmaTiles<S::kPage>::tiles_of(pages);
    ImmaLane mine{-1, 0, 0, 0, -1};
    if (index_ < tiles * chunks) {
      mine.request = 0;
      mine.chunk = index_ < tiles ? 0 : static_cast<int>(index_ / tiles);
      mine.first = static_cast<int>(index_ - mine.chunk * tiles) * kImmaTile;
      mine.live = min(pages - mine.first, kImmaTile);
      if (page < mine.live) mine.block = first && mine.chunk == 0 ? guess_ : __ldg(cache_.block_table + mine.first + page);
    }
    index_ += 32 / kImmaTile * gridDim.x;
    return mine;
  }
  // The next four tiles of several requests.
  __device__ __forceinline__ ImmaLane of_many(ImmaTiles<S::kPage>& tiles) {
    const int slot = threadIdx.x % 32 / kImmaTile, page = threadIdx.x % kImmaTile;
    ImmaLane mine{-1, 0, 0, 0, -1};
    int pages = 0;
#pragma unroll
    for (int i = 0; i < 32 / kImmaTile; i++) {
      int request, chunk, first, of;
      if (tiles.next(request, chunk, first, of) && i == slot) mine.request = request, mine.chunk = chunk, mine.first = first, pages = of;
    }
    mine.live = min(pages - mine.first, kImmaTile);
    if (page < mine.live) mine.block = __ldg(cache_.block_table + mine.request * cache_.table_stride + mine.first + page);
    return mine;
  }

 private:
  const KvCache& cache_;
  uint32_t index_;  // in [chunk][tile], of this lane's next tile
  int guess_, length_;
};

// The ring of a block in shared memory. A stage is filled by one arrival and its bytes, and empty when HEADS warps have read it.
template <class S>
struct ImmaRing {
  uint8_t* records;  // [stage][page]
  ImmaTile* entries;
  uint64_t *full, *empty;
};

// Starts the copies of tile `slot` of a vector into a stage that is empty.
template <class S>
__device__ __forceinline__ void imma_issue(const PageScoreArgs& args, const ImmaRing<S>& ring, int stage, uint32_t parity,
                                           const ImmaLane& lanes, int slot, uint64_t policy) {
  using R = typename S::Rec;
  const int from = slot * kImmaTile;
  const int request = __shfl_sync(0xffffffffu, lanes.request, from), chunk = __shfl_sync(0xffffffffu, lanes.chunk, from);
  const int first = __shfl_sync(0xffffffffu, lanes.first, from), live = __shfl_sync(0xffffffffu, lanes.live, from);
  const uint32_t mapped = __ballot_sync(0xffffffffu, lanes.block >= 0) >> from & 0xffu;
  // A page without a record gets a neighbour's, and its result is dropped.
  const int any = __shfl_sync(0xffffffffu, lanes.block, mapped != 0 ? from + __ffs(mapped) - 1 : from);
  const uint8_t* source = args.summaries + (lanes.block >= 0 ? lanes.block : any) * args.summary_block_stride +
                          static_cast<int64_t>(chunk) * S::kHeads * args.summary_head_stride;
  const uint8_t* record[kImmaTile];
#pragma unroll
  for (int x = 0; x < kImmaTile; x++)
    record[x] = reinterpret_cast<const uint8_t*>(__shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(source), from + x));
  mbarrier_wait(ring.empty + stage, parity);
  if (elect_lane()) {
    ring.entries[stage] = ImmaTile{request, chunk, first, mapped | static_cast<uint32_t>(live) << 8};
    const int heads = min(S::kHeads, args.cache.kv_heads - chunk * S::kHeads);
    uint64_t* full = ring.full + stage;
    uint8_t* to = ring.records + stage * S::kStageBytes;
    if (request < 0 || mapped == 0) {
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

// The warp that fills the ring. The list ends with a tile without a request for each group of warps.
template <class S>
__device__ __forceinline__ void imma_produce(const PageScoreArgs& args, const ImmaRing<S>& ring, ImmaDealer<S>& dealer) {
  const int chunks = (args.cache.kv_heads + S::kHeads - 1) / S::kHeads;
  const uint64_t policy = evict_first_policy();
  int stage = 0, ends = 0;
  uint32_t parity = 1;  // the first round finds every stage empty
  auto fill = [&](auto deal) {
    ImmaLane now = deal(true), then = now;
#pragma unroll 1
    while (ends < S::kWarpGroups) {
#pragma unroll 1
      for (int slot = 0; slot < 32 / kImmaTile && ends < S::kWarpGroups; slot++) {
        imma_issue<S>(args, ring, stage, parity, now, slot, policy);
        if (slot == 0) then = deal(false);  // its block ids arrive while these tiles do
        if (__shfl_sync(0xffffffffu, now.request, slot * kImmaTile) < 0) ends++;
        if (++stage == S::kStages) stage = 0, parity ^= 1;
      }
      now = then;
    }
  };
  if (args.cache.batch == 1) {
    fill([&](bool first) { return dealer.of_one(chunks, first); });
  } else {
    ImmaTiles<S::kPage> tiles(args.cache, chunks);
    fill([&](bool) { return dealer.of_many(tiles); });
  }
}

}  // namespace kvloom
