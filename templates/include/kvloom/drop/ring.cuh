// A ring of tiles of 64 tokens in shared memory that one warp fills and one warpgroup empties.
//
// A tile is eight runs of eight tokens. Rows of a run lie one behind the other as they do in the cache; each run starts four banks after
// the one before, so that eight rows of a matrix, one from each run, meet every bank once, transposed or not. Row m of products over a
// tile is token 8 (m % 8) + m / 8.
//
// Every warpgroup has its own ring: one that two share lets the faster pass a phase early.
#pragma once

#include "kvloom/drop/tokens.cuh"
#include "kvloom/mma/wgmma.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom::drop {

constexpr int kRingTokens = 64;

constexpr int kRun = 8;           // tokens of a run

// How tiles come: 16 bytes a lane, or bulk copies of as many rows as lie together.
enum class Copy { kPieces, kRuns };

template <int HEAD_DIM>
constexpr int kRunBytes = kRun * 2 * HEAD_DIM + 16;
template <int HEAD_DIM>
constexpr int kRingTileBytes = kRingTokens / kRun * kRunBytes<HEAD_DIM>;

// Barriers and masks of one ring. The mask of a stage has a bit for each of its tokens that exists.
template <int kStages>
struct RingState {
  uint64_t full[kStages], empty[kStages];
  uint2 live[kStages];

  // By one thread, before anybody uses the ring.
  template <Copy COPY>
  __device__ __forceinline__ void init() {
    for (int i = 0; i < kStages; ++i) {
      mbarrier_init(&full[i], COPY == Copy::kPieces ? 33 : 1);  // pieces: each lane's, and the mask
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
template <int HEAD_DIM, int PAGE, typename T, int kStages, Copy COPY>
struct RingWriter {
  static_assert(sizeof(T) == 2, "rows are of 16-bit floats");
  static constexpr int kRowBytes = 2 * HEAD_DIM, kTileBytes = kRingTileBytes<HEAD_DIM>;
  static constexpr int kPages = PAGE < kRingTokens ? kRingTokens / PAGE : 1;    // of a tile
  static constexpr int kPageTokens = PAGE < kRingTokens ? PAGE : kRingTokens;   // of a page in a tile
  static constexpr int kTogether = kPageTokens < kRun ? kPageTokens : kRun;     // of a run in one page
  const Tokens<PAGE>& tokens;
  RingState<kStages>& state;
  uint8_t* tiles;         // [kStages][kTileBytes]
  RingPlace<kStages> at;
  int first, live;        // the tile's first token and how many of its tokens the prompt has
  int block;              // of lane l: the block of page l of the tile, -1: none

  __device__ __forceinline__ RingWriter(const Tokens<PAGE>& tokens, RingState<kStages>& state, uint8_t* tiles)
      : tokens(tokens), state(state), tiles(tiles), first(0), live(0), block(-1) {}

  // Looks up the pages of the tile that is filled next.
  __device__ __forceinline__ void locate(int tile) {
    const int lane = threadIdx.x % 32;
    first = tile * kRingTokens;
    live = min(kRingTokens, tokens.length - first);
    block = tokens.request;
    if (tokens.table) block = lane < kPages && lane * kPageTokens < live ? tokens.table[first / PAGE + lane] : -1;
  }

  // Fills the next stage with the tile's keys or values, under an L2 policy.
  __device__ __forceinline__ void fill(const HeadRows<T>& rows, uint64_t policy) {
    mbarrier_wait(&state.empty[at.stage], at.parity ^ 1);
    uint8_t* const to = tiles + at.stage * kTileBytes;
    uint64_t mask = live == kRingTokens ? ~0ull : (1ull << live) - 1;
    if (tokens.table) {
#pragma unroll
      for (int i = 0; i < kPages; ++i)
        if (__shfl_sync(kFullWarp, block, i) < 0) mask &= ~((kPages == 1 ? ~0ull : (1ull << kPageTokens) - 1) << (i * kPageTokens));
    }
    if constexpr (COPY == Copy::kPieces) {
      copy_pieces(rows, to, mask, policy);
    } else {
      copy_runs(rows, to, mask, policy);
    }
    at.next();
  }

  // The first element of the tile's token; `id` is its block.
  __device__ __forceinline__ const T* row(const HeadRows<T>& rows, int id, int token) const {
    const int in_block = tokens.table ? (PAGE < kRingTokens ? token % PAGE : first % PAGE + token) : first + token;
    return rows.base + id * rows.block_stride + in_block * rows.token_stride;
  }
  __device__ __forceinline__ static int offset(int token) { return token / kRun * kRunBytes<HEAD_DIM> + token % kRun * kRowBytes; }

  __device__ __forceinline__ void copy_runs(const HeadRows<T>& rows, uint8_t* to, uint64_t mask, uint64_t policy) {
    const int lane = threadIdx.x % 32;
    uint64_t* const full = &state.full[at.stage];
    if (mask != ~0ull) {  // nothing of an earlier tile, or of nobody, is left where no token is
      for (int i = lane; i < kRingTokens * (kRowBytes / 16); i += 32)
        if (const int token = i / (kRowBytes / 16); !(mask >> token & 1))
          *reinterpret_cast<uint4*>(to + offset(token) + i % (kRowBytes / 16) * 16) = make_uint4(0, 0, 0, 0);
      wgmma::proxy_fence();
      __syncwarp();
    }
    if (elect_lane()) {
      state.live[at.stage] = make_uint2(static_cast<uint32_t>(mask), static_cast<uint32_t>(mask >> 32));
      mbarrier_expect(full, __popcll(mask) * kRowBytes);
    }
    const bool packed = rows.token_stride == HEAD_DIM;
#pragma unroll 1
    for (int token = 0; token < live; token += kTogether) {
      const int id = tokens.table ? __shfl_sync(kFullWarp, block, token / kPageTokens) : block, count = min(kTogether, live - token);
      if (id < 0) continue;
      const T* const from = row(rows, id, token);
      uint8_t* const there = to + offset(token);
      if (elect_lane()) {
        if (packed) {
          bulk_copy(there, from, count * kRowBytes, full, policy);
        } else {
          for (int r = 0; r < count; ++r) bulk_copy(there + r * kRowBytes, from + r * rows.token_stride, kRowBytes, full, policy);
        }
      }
    }
  }

  __device__ __forceinline__ void copy_pieces(const HeadRows<T>& rows, uint8_t* to, uint64_t mask, uint64_t policy) {
    constexpr int kPieces = kRowBytes / 16;
    const int lane = threadIdx.x % 32;
    const uint32_t shared = shared_address(to), full = shared_address(&state.full[at.stage]);
#pragma unroll 8
    for (int i = 0; i < kRingTokens * kPieces / 32; ++i) {
      const int piece = i * 32 + lane, token = piece / kPieces;
      const int id = tokens.table ? __shfl_sync(kFullWarp, block, token / kPageTokens) : block;
      const bool exists = mask >> token & 1;
      const T* const from = exists ? row(rows, id, token) + piece % kPieces * 8 : rows.base;
      asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(shared + offset(token) + piece % kPieces * 16),
                   "l"(from), "r"(exists ? 16 : 0), "l"(policy)
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
