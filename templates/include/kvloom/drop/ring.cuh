// A ring of tiles of 64 tokens in shared memory that one thread fills and one warpgroup empties.
//
// The rows of a tile lie one behind the other, without padding: bytes keep their place in 128-byte lines on their way from the cache.
//
// Every warpgroup has its own ring: one that two share lets the faster pass a phase early.
#pragma once

#include "kvloom/drop/tokens.cuh"
#include "kvloom/mma/wgmma.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom::drop {

constexpr int kRingTokens = 64;

template <int HEAD_DIM>
constexpr int kRingTileBytes = kRingTokens * 2 * HEAD_DIM;

// Barriers and masks of one ring. The mask of a stage has a bit for each of its tokens that exists.
template <int kStages>
struct RingState {
  uint64_t full[kStages], empty[kStages];
  uint2 live[kStages];

  // By one thread, before anybody uses the ring.
  __device__ __forceinline__ void init() {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], 1);
      mbarrier_init(&empty[i], 4);  // a warp each
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

// The producer's side of bulk copies: one thread, so that copies issue back to back.
template <int HEAD_DIM, int PAGE, typename T, int kStages>
struct RingWriter {
  static_assert(sizeof(T) == 2, "rows are of 16-bit floats");
  static constexpr int kRowBytes = 2 * HEAD_DIM, kTileBytes = kRingTileBytes<HEAD_DIM>;
  static constexpr int kPages = PAGE < kRingTokens ? kRingTokens / PAGE : 1;    // of a tile
  static constexpr int kPageTokens = PAGE < kRingTokens ? PAGE : kRingTokens;   // of a page in a tile
  const Tokens<PAGE> tokens;
  RingState<kStages>& state;
  uint8_t* tiles;         // [kStages][kTileBytes]
  RingPlace<kStages> at;
  static constexpr bool kHolds = kPages <= 4;  // more blocks than that are looked up again for each copy
  int first;              // the tile's first token
  uint64_t mask;          // a bit for each of its tokens that exists
  int block[kHolds ? kPages : 1];

  __device__ __forceinline__ RingWriter(const Tokens<PAGE>& tokens, RingState<kStages>& state, uint8_t* tiles)
      : tokens(tokens), state(state), tiles(tiles), first(0), mask(0) {}

  // Looks up the pages of the tile that is filled next.
  __device__ __forceinline__ void locate(int tile) {
    first = tile * kRingTokens;
    const int live = min(kRingTokens, tokens.length - first);
    mask = live == kRingTokens ? ~0ull : (1ull << live) - 1;
    block[0] = tokens.request;
    if (!tokens.table) return;
    const int32_t* const ids = tokens.table + first / PAGE;
    if constexpr (kHolds) {
#pragma unroll
      for (int i = 0; i < kPages; ++i) block[i] = i * kPageTokens < live ? ids[i] : -1;
    } else {
#pragma unroll 1
      for (int i = 0; i < kPages; ++i) hide(i, i * kPageTokens < live ? ids[i] : -1);
    }
  }
  __device__ __forceinline__ void hide(int page, int id) {
    if (id < 0) mask &= ~((kPages == 1 ? ~0ull : (1ull << kPageTokens % 64) - 1) << page * kPageTokens % 64);
  }

  // Fills the next stage with the tile's keys or values, under an L2 policy.
  __device__ __forceinline__ void fill(const HeadRows<T>& rows, uint64_t policy) {
    uint64_t* const full = &state.full[at.stage];
    uint8_t* const to = tiles + at.stage * kTileBytes;
    mbarrier_wait(&state.empty[at.stage], at.parity ^ 1);
    if (kHolds && tokens.table) {  // the first look at the blocks: they were on their way while the stage was not free
#pragma unroll
      for (int i = 0; i < kPages; ++i) hide(i, block[kHolds ? i : 0]);
    }
    state.live[at.stage] = make_uint2(static_cast<uint32_t>(mask), static_cast<uint32_t>(mask >> 32));
    if (mask != 0) {
      mbarrier_expect(full, kRingTokens * kRowBytes);
      if (mask != ~0ull) {
        copy_some(rows, to, full, policy);
      } else if (rows.token_stride == HEAD_DIM) {
        copy_whole(rows, to, full, policy);
      } else {
        copy_rows(rows, to, full, policy);
      }
    } else {
      for (int i = 0; i < kTileBytes / 16; ++i) reinterpret_cast<uint4*>(to)[i] = make_uint4(0, 0, 0, 0);
      wgmma::proxy_fence();
      mbarrier_arrive(full);
    }
    at.next();
  }

  // Rows that lie together.
  __device__ __forceinline__ void copy_whole(const HeadRows<T>& rows, uint8_t* to, uint64_t* full, uint64_t policy) const {
    if (tokens.table && PAGE < kRingTokens) {
#pragma unroll (kHolds ? kPages : 1)
      for (int i = 0; i < kPages; ++i) {
        const T* const page = rows.base + (kHolds ? block[kHolds ? i : 0] : tokens.table[first / PAGE + i]) * rows.block_stride;
        bulk_copy(to + i * kPageTokens * kRowBytes, page, kPageTokens * kRowBytes, full, policy);
      }
    } else {
      const T* const start = rows.base + block[0] * rows.block_stride + static_cast<int64_t>(tokens.table ? first % PAGE : first) * HEAD_DIM;
      bulk_copy(to, start, kRingTokens * kRowBytes, full, policy);
    }
  }

  // Rows that lie apart, as where heads lie inside a token.
  __device__ __forceinline__ void copy_rows(const HeadRows<T>& rows, uint8_t* to, uint64_t* full, uint64_t policy) const {
    if (tokens.table && PAGE < kRingTokens) {
#pragma unroll (kHolds ? kPages : 1)
      for (int i = 0; i < kPages; ++i) {
        const T* from = rows.base + (kHolds ? block[kHolds ? i : 0] : tokens.table[first / PAGE + i]) * rows.block_stride;
#pragma unroll 4
        for (int r = 0; r < kPageTokens; ++r, from += rows.token_stride)
          bulk_copy(to + (i * kPageTokens + r) * kRowBytes, from, kRowBytes, full, policy);
      }
    } else {
      const T* from = rows.base + block[0] * rows.block_stride + static_cast<int64_t>(tokens.table ? first % PAGE : first) * rows.token_stride;
#pragma unroll 4
      for (int r = 0; r < kRingTokens; ++r, from += rows.token_stride) bulk_copy(to + r * kRowBytes, from, kRowBytes, full, policy);
    }
  }

  // Where some tokens do not exist. Such a token gets the row of one that does, so that what is masked is no less finite than the rest.
  __device__ __forceinline__ void copy_some(const HeadRows<T>& rows, uint8_t* to, uint64_t* full, uint64_t policy) const {
    const T* const spare = rows.row(tokens.place(first + __ffsll(static_cast<long long>(mask)) - 1));
    const auto copy = [&](int token, const T* from) {
      bulk_copy(to + token * kRowBytes, mask >> token & 1 ? from : spare, kRowBytes, full, policy);
    };
    if (tokens.table && PAGE < kRingTokens) {
#pragma unroll (kHolds ? kPages : 1)
      for (int i = 0; i < kPages; ++i) {
        int id = 0;
        if constexpr (kHolds) {
          id = block[i];
        } else if (mask >> i * kPageTokens & 1) {
          id = tokens.table[first / PAGE + i];
        }
        const T* const page = rows.base + id * rows.block_stride;
#pragma unroll 1
        for (int r = 0; r < kPageTokens; ++r) copy(i * kPageTokens + r, page + r * rows.token_stride);
      }
    } else {
      const T* const start = rows.base + block[0] * rows.block_stride + static_cast<int64_t>(tokens.table ? first % PAGE : first) * rows.token_stride;
#pragma unroll 1
      for (int r = 0; r < kRingTokens; ++r) copy(r, start + r * rows.token_stride);
    }
  }
};

}  // namespace kvloom::drop
