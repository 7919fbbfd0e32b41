// page_score on int8 tensor cores: the shape, and the ring that one warp fills by bulk copies (sm_90).
#pragma once

#include "kernels/page_score.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

constexpr int kImmaTile = 8;  // pages of a tile

template <typename T>
constexpr bool kIsFp16 = false;
template <>
constexpr bool kIsFp16<fp16> = true;

// Everything that follows from a shape and the tuner's choices. HEADS kv heads are copied together, SPLIT warps share the pages of a
// tile of one kv head, TOGETHER products of 16 columns of V are in flight in a warp. RUN tiles in a row belong to one block; with
// RUN 4 their scores are gathered in shared memory and leave as whole lines. ONES: tokens are summed by a product with ones. PRODUCERS
// warps take turns at filling the ring.
template <typename T, int HEAD_DIM, int PAGE, int RANK, int BITS, int GROUP, bool SOFTCAP, int HEADS, int CONSUMERS, int STAGES, int RUN,
          int SPLIT, int TOGETHER, bool ONES, bool PAD, bool HINT, int PRODUCERS, class FORM = PlainForm>
struct ImmaShape {
  static_assert(PAGE >= 4 && PAGE <= 128 && (PAGE & (PAGE - 1)) == 0, "tokens are n tiles of 8, a half-empty one for 4");
  static_assert(BITS <= 8 && (RANK & (RANK - 1)) == 0, "ranks fill a k step with whole pages");
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM <= 256, "16 * 8 * 2^15 * 256 dims fit 31 bits, and so do 127 * 2^15 * 256");
  static_assert(GROUP >= 1 && !SOFTCAP, "a cap bends each logit before the centroid can be taken out");
  // A kv head's query heads are passes of at most 16, each with its own warps.
  static constexpr int kPasses = (GROUP + 15) / 16, kPassHeads = (GROUP + kPasses - 1) / kPasses;
  static constexpr int kUnits = HEADS * kPasses;  // units of work of a tile: kv head and pass
  static_assert(HEADS >= 1 && CONSUMERS % (kUnits * SPLIT) == 0, "a warp keeps its kv head, its pass and its part of a tile");
  static_assert(RUN == 1 || RUN == 4, "scores leave by tile or by the line of 128 bytes");
  static_assert(SPLIT == 1 || SPLIT == 2, "a warp takes 8 pages or 4");
  static_assert(PRODUCERS >= 1, "someone fills the ring");
  // Copies land in any order. Were a stage to serve two groups, one could pass its barrier on the parity of the phase before the one
  // that the other still waits for.
  static_assert(STAGES % (CONSUMERS / (kUnits * SPLIT)) == 0, "a stage belongs to one group of warps for good");

  using Element = typename Compute<T>::type;  // of the query
  using Rec = Record<HEAD_DIM, PAGE, RANK, BITS, FORM>;
  static constexpr int kHeadDim = HEAD_DIM, kPage = PAGE, kRank = RANK, kGroup = GROUP, kBits = BITS;
  static constexpr int kHeads = HEADS, kConsumers = CONSUMERS, kStages = STAGES;
  static constexpr int kSplit = SPLIT, kTogether = TOGETHER, kRun = RUN, kProducers = PRODUCERS;
  static constexpr bool kOnes = ONES, kHint = HINT;
  static constexpr int kWarpGroups = CONSUMERS / (kUnits * SPLIT);  // each takes every kWarpGroups-th tile
  static constexpr int kWarpPages = kImmaTile / SPLIT;             // pages of a tile that a warp takes
  static constexpr int kQuarter = HEAD_DIM / 4;                     // dims that a lane holds of each row
  static constexpr int kWords = (kQuarter + 15) / 16 * 4;           // of a quarter as bytes, in the order of ImmaOrder, padded
  // Elements of fp16 have 11 significant bits: those a few powers of two below the head's largest need a third byte.
  static constexpr bool kThird = kIsFp16<Element>;
  // Tokens are taken 16 at a time, as two n tiles of the second product, or 8 or 4 in one.
  static constexpr int kTokenTiles = PAGE < 16 ? 1 : 2, kTokenBlocks = PAGE < 16 ? 1 : PAGE / 16;
  // Distance of two pages in shared memory. Copies are faster where both ends share their place in a line of 128 bytes: pages whose
  // records end there follow each other, unless PAD says that conflicts of banks cost more. Others keep the place in a sector of 32,
  // and reads of several pages meet different banks.
  static constexpr int kPageBytes = HEADS * Rec::kBytes;
  static constexpr int kDistance = kPageBytes % 128 == 0 && !PAD ? kPageBytes : (kPageBytes + 31) / 64 * 64 + 32;
  static constexpr int kStageBytes = kImmaTile * kDistance;
  // Scores on their way out: a slot for each run that can be under way, rows of 32 pages, 8 banks apart.
  static constexpr int kSlots = RUN == 1 ? 0 : STAGES / RUN + 1 < 2 ? 2 : STAGES / RUN + 1;
  static constexpr bool kShared = RUN > 1 && kWarpGroups * SPLIT > 1;  // several warps fill a slot's rows
  static constexpr int kRowFloats = 40;
  static constexpr int kSlotFloats = kPassHeads * kRowFloats;  // of one unit
  static constexpr int kOutFloats = RUN == 1 ? 0 : kSlots * kUnits * kSlotFloats;
};

// What a consumer knows of a tile in the ring. request < 0 ends the list.
struct __align__(16) ImmaTile {
  int32_t request, chunk;  // chunk: HEADS kv heads
  int32_t first;           // page
  uint32_t pages;          // bits 0-7: which have a record; 8-11: how many are complete; 12-17: pages of its run; from 18: the run's slot
};

__device__ __forceinline__ ImmaTile load_tile(uint32_t at) {
  ImmaTile t;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(t.request), "=r"(t.chunk), "=r"(t.first), "=r"(t.pages) : "r"(at) : "memory");
  return t;
}

// Walks this block's part of the list [request][chunk][run], runs of RUN tiles fastest: a part, so that a block meets few queries. All
// lanes call together.
template <int PAGE, int RUN, class Group>
class ImmaTiles {
 public:
  // `length` is that of request threadIdx.x % 32, where there is one. A single request has no use for a list.
  __device__ __forceinline__ ImmaTiles(const KvCache& cache, int chunks, int length) : cache_(cache), chunks_(chunks) {
    if (cache.batch == 1) return;
    scan(pages_of(length, Group::of_table(cache.max_pages)));
    uint32_t total = 0;
    for (int base = 32; base < cache.batch; base += 32) total += tiles_of(pages_of(cache, base + lane())) * chunks;
    if (cache.batch > 32) {
#pragma unroll
      for (int mask = 1; mask < 32; mask *= 2) total += __shfl_xor_sync(0xffffffffu, total, mask);
    }
    total += __shfl_sync(0xffffffffu, upto_, 31);
    const uint32_t each = total / gridDim.x, more = total % gridDim.x;  // the first `more` blocks take one more
    index_ = each * blockIdx.x + min(blockIdx.x, more);
    left_ = each + (blockIdx.x < more ? 1 : 0);
  }

  static __device__ __forceinline__ int lane() { return threadIdx.x % 32; }
  // Of request threadIdx.x % 32, 0 where there is none.
  static __device__ __forceinline__ int first_length(const KvCache& cache) {
    return lane() < cache.batch ? __ldg(cache.seq_lens + lane()) : 0;
  }
  static __device__ __forceinline__ int pages_of(int length, int max_pages) { return length > 0 ? min(length / PAGE, max_pages) : 0; }
  static __device__ __forceinline__ int pages_of(const KvCache& cache, int request) {
    return request < cache.batch ? pages_of(__ldg(cache.seq_lens + request), Group::of_table(cache.max_pages)) : 0;
  }
  static __device__ __forceinline__ uint32_t tiles_of(int pages) {
    return static_cast<uint32_t>(pages + RUN * kImmaTile - 1) / (RUN * kImmaTile);
  }

  // The next run: its request, chunk, first page and the complete pages of the request.
  __device__ __forceinline__ bool next(int& request, int& chunk, int& first, int& pages) {
    while (left_ != 0) {
      const uint32_t ahead = __ballot_sync(0xffffffffu, index_ < upto_);
      if (ahead != 0) {
        const int lane = __ffs(ahead) - 1;
        const uint32_t rest = index_ - __shfl_sync(0xffffffffu, before_, lane);
        pages = __shfl_sync(0xffffffffu, pages_, lane);
        request = base_ + lane;
        chunk = chunks_ == 1 ? 0 : static_cast<int>(rest / tiles_of(pages));
        first = static_cast<int>(rest - chunk * tiles_of(pages)) * (RUN * kImmaTile);
        index_++, left_--;
        return true;
      }
      index_ -= __shfl_sync(0xffffffffu, upto_, 31);
      base_ += 32;
      if (base_ >= cache_.batch) break;
      scan(pages_of(cache_, base_ + lane()));
    }
    left_ = 0;
    return false;
  }

 private:
  // `pages` is this lane's request's.
  __device__ __forceinline__ void scan(int pages) {
    pages_ = pages;
    const uint32_t mine = tiles_of(pages_) * chunks_;
    upto_ = mine;
#pragma unroll
    for (int step = 1; step < 32; step *= 2) {
      const uint32_t below = __shfl_up_sync(0xffffffffu, upto_, step);
      if (lane() >= step) upto_ += below;
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
  int request, chunk, first, live, block;  // request -1: no tile
};

// Deals out tiles, four at a time: a run of four, or four runs of one. A single request is dealt run by run to the blocks, so that a
// block's first tile does not depend on the length: its block ids are asked for together with it.
template <class S>
class ImmaDealer {
 public:
  using Group = typename S::Rec::Group;
  using Tiles = ImmaTiles<S::kPage, S::kRun, Group>;

  // Only asks for what the first tiles need.
  __device__ __forceinline__ explicit ImmaDealer(const KvCache& cache, bool asks) : cache_(cache) {
    const uint32_t slot = threadIdx.x % 32 / kImmaTile;
    index_ = S::kRun == 1 ? blockIdx.x + slot * gridDim.x : blockIdx.x;
    const uint32_t at = (S::kRun == 1 ? index_ : index_ * S::kRun + slot) * kImmaTile + threadIdx.x % kImmaTile;
    guess_ = -1, length_ = 0;
    const bool one = cache.batch == 1;
    // Entries of the table are within its columns, live or not.
    if (asks && one && at < static_cast<uint32_t>(Group::of_table(cache.max_pages))) guess_ = load_now(cache.block_table + Group::column(at));
    const int request = one ? 0 : threadIdx.x % 32;
    if (asks && request < cache.batch) length_ = load_now(cache.seq_lens + request);
  }
  // Of several requests.
  __device__ __forceinline__ Tiles tiles(int chunks) const { return Tiles(cache_, chunks, length_); }
  // The next four tiles of a single request. `first`: these are the guessed ones.
  __device__ __forceinline__ ImmaLane of_one(int chunks, bool first) {
    const int pages = Tiles::pages_of(length_, Group::of_table(cache_.max_pages));
    const uint32_t runs = Tiles::tiles_of(pages);
    ImmaLane mine{-1, 0, 0, 0, -1};
    if (index_ < runs * chunks) {
      mine.chunk = index_ < runs ? 0 : static_cast<int>(index_ / runs);
      tile(mine, 0, static_cast<int>(index_ - mine.chunk * runs) * (S::kRun * kImmaTile), pages);
      if (page() < mine.live) mine.block = first && mine.chunk == 0 ? guess_ : __ldg(cache_.block_table + Group::column(mine.first + page()));
    }
    index_ += S::kRun == 1 ? 32 / kImmaTile * gridDim.x : gridDim.x;
    ahead(0, (index_ < runs ? index_ : index_ - mine.chunk * runs) * (S::kRun * kImmaTile) + (S::kRun == 1 ? 0 : slot() * kImmaTile));
    return mine;
  }
  // The next four tiles of several requests.
  __device__ __forceinline__ ImmaLane of_many(Tiles& tiles) {
    ImmaLane mine{-1, 0, 0, 0, -1};
    int request, chunk, first, pages;
    if constexpr (S::kRun == 1) {
#pragma unroll 1
      for (int i = 0; i < 32 / kImmaTile; i++)
        if (tiles.next(request, chunk, first, pages) && i == slot()) mine.chunk = chunk, tile(mine, request, first, pages);
    } else {
      if (tiles.next(request, chunk, first, pages)) mine.chunk = chunk, tile(mine, request, first, pages);
    }
    if (page() < mine.live) mine.block = __ldg(cache_.block_table + mine.request * cache_.table_stride + Group::column(mine.first + page()));
    if (mine.request >= 0) ahead(mine.request, mine.first + 32);
    return mine;
  }

  // Block id of this lane's page of the first four tiles of a single request, else -1.
  __device__ __forceinline__ int first_block() const {
    const int first = static_cast<int>(index_ * S::kRun + (S::kRun == 1 ? 0 : slot())) * kImmaTile;
    return first + page() < Tiles::pages_of(length_, Group::of_table(cache_.max_pages)) ? guess_ : -1;
  }

 private:
  static __device__ __forceinline__ int load_now(const int* from) {
    int value;
    asm volatile("ld.global.nc.b32 %0, [%1];" : "=r"(value) : "l"(from));
    return value;
  }
  // Asks L2 for the entries of a tile of the next vector, or of one that is likely: by then they would be waited for.
  __device__ __forceinline__ void ahead(int request, uint32_t first) const {
    if (page() < Group::kPages && first + page() * kImmaTile / Group::kPages < static_cast<uint32_t>(Group::of_table(cache_.max_pages)))
      prefetch_l2(cache_.block_table + request * cache_.table_stride + Group::column(first + page() * kImmaTile / Group::kPages));
  }
  static __device__ __forceinline__ int slot() { return threadIdx.x % 32 / kImmaTile; }
  static __device__ __forceinline__ int page() { return threadIdx.x % kImmaTile; }
  // This lane's tile of a run, where the run has so many.
  static __device__ __forceinline__ void tile(ImmaLane& mine, int request, int first, int pages) {
    mine.first = S::kRun == 1 ? first : first + slot() * kImmaTile;
    mine.live = min(pages - mine.first, kImmaTile);
    if (mine.live > 0) mine.request = request;
  }

  const KvCache& cache_;
  uint32_t index_;  // in [chunk][run], of this lane's next run
  int guess_, length_;
};

// The ring of a block in shared memory. A stage is filled by one arrival and its bytes, and empty when all warps of its group have read
// it.
template <class S>
struct ImmaRing {
  uint8_t* records;  // [stage][page]
  float* out;        // [slot][unit][query head][kRowFloats]
  ImmaTile* entries;
  uint32_t* arrived;  // [slot][unit]: tiles (or parts of tiles) whose scores are in a slot that several warps fill
  uint64_t *full, *empty, *written;  // written: a slot's scores have left
};

// What the copies of a vector of four tiles need, in shared memory: one thread issues them, and reads faster than it would shuffle.
struct __align__(16) ImmaVector {
  unsigned long long source[32];  // [tile][page]: address of the first kv head's record
  ImmaTile tile[32 / kImmaTile];
};

// Notes a vector. `run` goes with its tiles: bits 12 and up of ImmaTile::pages. `touch`: asks for the first line of each page. The copy
// engine waits for the address of one page after the other; lanes ask for all of them together, so that it finds them translated.
// All lanes of a producer call together.
template <class S>
__device__ __forceinline__ void imma_note(const PageScoreArgs& args, ImmaVector& vector, const ImmaLane& lanes, uint32_t run, bool touch) {
  const int lane = threadIdx.x % 32, from = lane / kImmaTile * kImmaTile;
  const uint32_t mapped = __ballot_sync(0xffffffffu, lanes.block >= 0) >> from & 0xffu;
  // A page without a record gets a neighbour's, and its result is dropped.
  const int any = __shfl_sync(0xffffffffu, lanes.block, mapped != 0 ? from + __ffs(mapped) - 1 : from);
  __syncwarp();  // the vector before has been issued
  const uint8_t* source = args.summaries + (lanes.block >= 0 ? lanes.block : any) * args.summary_block_stride +
                          static_cast<int64_t>(lanes.chunk) * S::kHeads * args.summary_head_stride;
  vector.source[lane] = reinterpret_cast<unsigned long long>(source);
  if (touch && lanes.block >= 0) prefetch_l2(source);
  if (lane == from)
    vector.tile[lane / kImmaTile] =
        ImmaTile{lanes.request, lanes.chunk, lanes.first, mapped | static_cast<uint32_t>(lanes.live & 15) << 8 | run};
  __syncwarp();
}

// Shared addresses of a ring, which the compiler would otherwise make anew for each use.
struct ImmaAddresses {
  uint32_t records, entries, full, empty;
  template <class S>
  __device__ __forceinline__ explicit ImmaAddresses(const ImmaRing<S>& ring)
      : records(kept_address(ring.records)),
        entries(kept_address(ring.entries)),
        full(kept_address(ring.full)),
        empty(kept_address(ring.empty)) {}
};

__device__ __forceinline__ void store_tile(uint32_t at, const ImmaTile& t) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(t.request), "r"(t.chunk), "r"(t.first), "r"(t.pages) : "memory");
}

// Starts the copies of a block's first tiles, as many as the ring holds: memory is idle until then, so little stands between block ids and
// copies. Returns how many; it stops at one whose pages are not all there, or at once where heads do not touch. All producers call.
template <class S>
__device__ __forceinline__ int imma_begin(const PageScoreArgs& args, const ImmaAddresses& ring, const ImmaDealer<S>& dealer, int producer,
                                          uint64_t policy) {
  using R = typename S::Rec;
  // Of several warps that fill, one begins with one tile: the others deal out meanwhile.
  constexpr int kMost = S::kRun > 1 ? 0 : S::kProducers > 1 ? 1 : S::kStages < 32 / kImmaTile ? S::kStages : 32 / kImmaTile;
  const uint32_t bytes = min(S::kHeads, args.cache.kv_heads) * R::kBytes;
  const int block = dealer.first_block();
  const uint8_t* const mine = args.summaries + block * args.summary_block_stride;
  if (producer == 0 && block >= 0) prefetch_l2(mine);  // as imma_note does of later pages
  if (args.summary_head_stride != R::kBytes) return 0;
  const uint32_t there = __ballot_sync(0xffffffffu, block >= 0);
  int begun = 0;
#pragma unroll 1
  for (; begun < kMost && (~there >> begun * kImmaTile & 0xffu) == 0; begun++) {
    if (producer != 0) continue;
    unsigned long long source[kImmaTile];
#pragma unroll
    for (int x = 0; x < kImmaTile; x++)
      source[x] = __shfl_sync(0xffffffffu, reinterpret_cast<unsigned long long>(mine), begun * kImmaTile + x);
    if (elect_lane()) {
      const uint32_t full = ring.full + 8 * begun, to = ring.records + begun * S::kStageBytes;
      store_tile(ring.entries + 16 * begun,
                 ImmaTile{0, 0, static_cast<int>(blockIdx.x + begun * gridDim.x) * kImmaTile, 0xffu | kImmaTile << 8});
      mbarrier_expect(full, kImmaTile * bytes);
#pragma unroll
      for (int x = 0; x < kImmaTile; x++)
        bulk_copy(to + x * S::kDistance, reinterpret_cast<const void*>(source[x]), bytes, full, policy);
    }
    __syncwarp();
  }
  return begun;
}

// Starts the copies of a noted tile into a stage, once that is empty.
template <class S>
__device__ __forceinline__ void imma_issue(const PageScoreArgs& args, const ImmaAddresses& ring, int stage, uint32_t parity,
                                           const ImmaVector& vector, int slot, uint64_t policy) {
  using R = typename S::Rec;
  mbarrier_wait(ring.empty + 8 * stage, parity);
  if (elect_lane()) {
    const ImmaTile t = vector.tile[slot];
    store_tile(ring.entries + 16 * stage, t);
    const int heads = min(S::kHeads, args.cache.kv_heads - t.chunk * S::kHeads);
    const uint32_t full = ring.full + 8 * stage, to = ring.records + stage * S::kStageBytes;
    if ((t.pages & 0xffu) == 0) {
      mbarrier_arrive(full);
    } else {
      const uint8_t* record[kImmaTile];
#pragma unroll
      for (int x = 0; x < kImmaTile; x += 2) {
        const ulonglong2 two = *reinterpret_cast<const ulonglong2*>(vector.source + slot * kImmaTile + x);
        record[x] = reinterpret_cast<const uint8_t*>(two.x), record[x + 1] = reinterpret_cast<const uint8_t*>(two.y);
      }
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

// A warp that fills the ring: all walk the same list and each issues every kProducers-th tile. The list ends with a tile without a request
// for each group of warps.
template <class S>
__device__ __forceinline__ void imma_produce(const PageScoreArgs& args, const ImmaRing<S>& ring, ImmaDealer<S>& dealer, ImmaVector& vector,
                                             int producer) {
  const int chunks = (args.cache.kv_heads + S::kHeads - 1) / S::kHeads;
  const uint64_t policy = S::kHint ? evict_first_policy() : evict_normal_policy();
  int stage = 0, turn = producer, out = 0;
  uint32_t parity = 1, out_parity = 1;  // the first round finds every stage and slot empty
  const ImmaAddresses addresses(ring);
  auto next = [&] {
    if (S::kProducers > 1) turn = turn == 0 ? S::kProducers - 1 : turn - 1;
    if (++stage == S::kStages) stage = 0, parity ^= 1;
  };
  auto put = [&](int slot) {
    if (S::kProducers == 1 || turn == 0) imma_issue<S>(args, addresses, stage, parity, vector, slot, policy);
    next();
  };
  const uint32_t begun = imma_begin<S>(args, addresses, dealer, producer, policy);
  uint32_t slot = 0;  // of the vector, next
#pragma unroll 1
  for (; slot < begun; slot++) next();
  bool touched = args.cache.batch == 1;  // the pages of the first vector
  typename ImmaDealer<S>::Tiles list = dealer.tiles(chunks);
  auto deal = [&](bool first) { return args.cache.batch == 1 ? dealer.of_one(chunks, first) : dealer.of_many(list); };
  ImmaLane now = deal(true), then = now;
  while (true) {
    uint32_t tiles = __popc(__ballot_sync(0xffffffffu, now.request >= 0)) / kImmaTile;  // the first of the vector
    const bool end = tiles == 0;
    const uint32_t pages = __popc(__ballot_sync(0xffffffffu, static_cast<int>(threadIdx.x) % kImmaTile < now.live));
    imma_note<S>(args, vector, now, pages << 12 | static_cast<uint32_t>(out) << 18, producer == 0 && !touched);
    touched = false;
    if (end) tiles = S::kWarpGroups;
    if (S::kShared && !end) mbarrier_wait(ring.written + out, out_parity);
    bool dealt = end;
#pragma unroll 1
    while (slot < tiles || !dealt) {
      if (slot > 0 && !dealt) then = deal(false), dealt = true;  // its block ids arrive while these tiles do
      if (slot < tiles) put(end ? 0 : slot), slot++;
    }
    slot = 0;
    if (end) break;
    if (S::kRun > 1 && ++out == S::kSlots) out = 0, out_parity ^= 1;
    now = then;
  }
}

}  // namespace kvloom
