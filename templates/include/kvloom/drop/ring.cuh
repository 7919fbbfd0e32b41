// A ring of tiles of 64 tokens in shared memory that one warp fills and one warpgroup empties. Rows lie as they are in the cache, one
// behind the other, whatever pages they came from.
//
// Every warpgroup has its own ring: one that two share lets the faster pass a phase early.
#pragma once

#include "kvloom/drop/tokens.cuh"
#include "kvloom/mma/wgmma.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom::drop {

constexpr int kRingTokens = 64;

// Barriers and masks of one ring. The mask of a stage has a bit for each of its tokens that exists.
template <int kStages>
struct RingState {
  uint64_t full[kStages], empty[kStages];
  uint2 live[kStages];

  // By one thread, before anybody uses the ring.
  template <bool kBulk>
  __device__ __forceinline__ void init() {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], kBulk ? 1 : 33);  // copies of 16 bytes: each lane's, and the mask
      mbarrier_init(&empty[i], 4);              // a warp each
    }
  }
};

// Where in the ring somebody is.
template <int kStages>
struct RingPlace {
  int stage = 0;
  uint32_t parity = 0;
  __device__ __forceinline__ void next() {
    if (++stage == kStages) stage = 0, parity ^= 1;
  }
};

// The producer's side: one whole warp.
template <int HEAD_DIM, int PAGE, typename T, int kStages, bool kBulk>
struct RingWriter {
  static constexpr int kRowBytes = HEAD_DIM * static_cast<int>(sizeof(T)), kTileBytes = kRingTokens * kRowBytes;
  static constexpr int kPages = PAGE < kRingTokens ? kRingTokens / PAGE : 1;    // of a tile
  static constexpr int kRun = PAGE < kRingTokens ? PAGE : kRingTokens;          // tokens of a page in a tile
  const Tokens<PAGE>& tokens;
  RingState<kStages>& state;
  uint8_t* tiles;         // [kStages][kTileBytes]
  uint64_t policy;
  RingPlace<kStages> at;
  int first, live;        // the tile's first token and how many of its tokens the prompt has
  int block;              // of lane l: the block of page l of the tile, -1: none

  __device__ __forceinline__ RingWriter(const Tokens<PAGE>& tokens, RingState<kStages>& state, uint8_t* tiles, uint64_t policy)
      : tokens(tokens), state(state), tiles(tiles), policy(policy), first(0), live(0), block(-1) {}

  // Looks up the pages of the tile that is filled next.
  __device__ __forceinline__ void locate(int tile) {
    const int lane = threadIdx.x % 32;
    first = tile * kRingTokens;
    live = min(kRingTokens, tokens.length - first);
    block = tokens.request;
    if (tokens.table) block = lane < kPages && lane * kRun < live ? tokens.table[first / PAGE + lane] : -1;
  }

  // Fills the next stage with the tile's keys or values.
  __device__ __forceinline__ void fill(const HeadRows<T>& rows) {
    const int lane = threadIdx.x % 32;
    mbarrier_wait(&state.empty[at.stage], at.parity ^ 1);
    uint8_t* const to = tiles + at.stage * kTileBytes;
    uint64_t mask = live == kRingTokens ? ~0ull : (1ull << live) - 1;
    if (tokens.table) {
#pragma unroll
      for (int i = 0; i < kPages; ++i)
        if (__shfl_sync(kFullWarp, block, i) < 0) mask &= ~((kRun == 64 ? ~0ull : (1ull << kRun) - 1) << (i * kRun));
    }
    if constexpr (kBulk) {
      copy_runs(rows, to, mask);
    } else {
      copy_pieces(rows, to, mask);
    }
    at.next();
  }

  __device__ __forceinline__ void copy_runs(const HeadRows<T>& rows, uint8_t* to, uint64_t mask) {
    const int lane = threadIdx.x % 32;
    uint64_t* const full = &state.full[at.stage];
    if (mask != ~0ull) {  // nothing of an earlier tile, or of nobody, is left where no token is
      for (int i = lane; i < kTileBytes / 16; i += 32)
        if (!(mask >> (i * 16 / kRowBytes) & 1)) reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
      wgmma::proxy_fence();
      __syncwarp();
    }
    if (elect_lane()) {
      state.live[at.stage] = make_uint2(static_cast<uint32_t>(mask), static_cast<uint32_t>(mask >> 32));
      mbarrier_expect(full, __popcll(mask) * kRowBytes);
    }
    const bool packed = rows.token_stride == HEAD_DIM;
    const int pages = tokens.table ? kPages : 1, run = tokens.table ? kRun : kRingTokens;
    for (int i = 0; i < pages; ++i) {
      const int id = __shfl_sync(kFullWarp, block, i), count = min(run, live - i * run);
      if (id < 0 || count <= 0) continue;
      const int in_block = tokens.table ? (PAGE < kRingTokens ? 0 : first % PAGE) : first;
      const T* from = rows.base + id * rows.block_stride + in_block * rows.token_stride;
      uint8_t* const there = to + i * run * kRowBytes;
      if (elect_lane()) {
        if (packed) {
          bulk_copy(there, from, count * kRowBytes, full, policy);
        } else {
          for (int r = 0; r < count; ++r) bulk_copy(there + r * kRowBytes, from + r * rows.token_stride, kRowBytes, full, policy);
        }
      }
    }
  }

  __device__ __forceinline__ void copy_pieces(const HeadRows<T>& rows, uint8_t* to, uint64_t mask) {
    constexpr int kPieces = kRowBytes / 16, kCount = kTileBytes / 16 / 32;
    static_assert(kTileBytes % 512 == 0, "a warp copies 32 pieces at once");
    const int lane = threadIdx.x % 32;
    const uint32_t shared = shared_address(to) + lane * 16, full = shared_address(&state.full[at.stage]);
#pragma unroll 8
    for (int i = 0; i < kCount; ++i) {
      const int piece = i * 32 + lane, row = piece / kPieces;
      const int id = tokens.table ? __shfl_sync(kFullWarp, block, row / kRun) : block;
      const int in_block = tokens.table ? (PAGE < kRingTokens ? row % kRun : first % PAGE + row) : first + row;
      const bool exists = mask >> row & 1;
      const T* from = rows.base + (exists ? id * rows.block_stride + in_block * rows.token_stride + piece % kPieces * 8 : 0);
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared + i * 512), "l"(from),
                   "r"(exists ? 16 : 0), "l"(policy)
                   : "memory");
    }
    asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(full) : "memory");
    if (lane == 0) {
      state.live[at.stage] = make_uint2(static_cast<uint32_t>(mask), static_cast<uint32_t>(mask >> 32));
      mbarrier_arrive(&state.full[at.stage]);
    }
  }
};

}  // namespace kvloom::drop
