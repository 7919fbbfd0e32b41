// page_attend with tiles that come by bulk copies: one for K and one for V where rows follow each other, else one a row. Rows lie in shared
// memory as they do in the page, without padding, so fragments are read by 16-byte loads whose places are exchanged between lanes to
// meet different banks; the orders of dims are free and the query is read to match.
#pragma once

#include "kernels/page_attend.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

namespace attend {

// An element of a tile without padding.
template <typename T>
struct Flat {
  T element;
};

__device__ __forceinline__ uint4 load_shared16(uint32_t address) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(address) : "memory");
  return x;
}

__device__ __forceinline__ void exchange(uint4& a, uint4& b, bool on) {
  const uint4 x = a, y = b;
  a = make_uint4(on ? y.x : x.x, on ? y.y : x.y, on ? y.z : x.z, on ? y.w : x.w);
  b = make_uint4(on ? x.x : y.x, on ? x.y : y.y, on ? x.z : y.z, on ? x.w : y.w);
}

// Lane l, with g = l / 4 and c = l % 4. Of K it takes the c-th 16 bytes of every 64 of rows g and g + 8, which feed two k steps. Of V the
// tokens 2c, 2c + 1, 2c + 8, 2c + 9: the pieces 2g and 2g + 1 of 256 bytes are rows g and g + 8 of eight tiles of V^T, an element each.
template <int HEAD_DIM, typename T>
struct Fragments<HEAD_DIM, Flat<T>> {
  static_assert(HEAD_DIM % 128 == 0 && sizeof(T) == 2, "16 pieces of a row are the rows of a tile of V^T");
  using Element = T;
  static constexpr int kSteps = HEAD_DIM / 16;

  __device__ __forceinline__ static int dim(int step, int lower) {
    return (step / 8 * 16 + threadIdx.x % 32 / 4 * 2 + lower) * 8 + step % 8;
  }

  template <int kRowBytes, class F>
  __device__ __forceinline__ static void each_key(uint32_t tile, F f) {
    const int lane = threadIdx.x % 32, g = lane / 4, odd = g % 2;
    const uint32_t row = tile + g * kRowBytes + lane % 4 * 16;
#pragma unroll
    for (int x = 0; x < HEAD_DIM / 32; x += 2) {
      // Odd rows take the second 64 bytes first: all rows begin at the same bank.
      uint4 low[2], high[2];
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        low[i] = load_shared16(row + (x + (i ^ odd)) * 64);
        high[i] = load_shared16(row + 8 * kRowBytes + (x + (i ^ odd)) * 64);
      }
      exchange(low[0], low[1], odd);
      exchange(high[0], high[1], odd);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        f(2 * (x + i), low[i].x, high[i].x, low[i].y, high[i].y);
        f(2 * (x + i) + 1, low[i].z, high[i].z, low[i].w, high[i].w);
      }
    }
  }

  template <int kRowBytes, class F>
  __device__ __forceinline__ static void each_value(uint32_t tile, F f) {
    const int lane = threadIdx.x % 32, c = lane % 4, odd = c % 2;
    const uint32_t row = tile + 2 * c * kRowBytes + lane / 4 * 32;
#pragma unroll
    for (int group = 0; group < HEAD_DIM / 128; ++group) {
      uint4 piece[4][2];  // of tokens 2c, 2c + 1, 2c + 8, 2c + 9
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const uint32_t at = row + (t % 2 + t / 2 * 8) * kRowBytes + group * 256;
        piece[t][0] = load_shared16(at + odd * 16);
        piece[t][1] = load_shared16(at + (odd ^ 1) * 16);
        exchange(piece[t][0], piece[t][1], odd);
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        const auto pair = [&](int first, int half) {
          const uint4 a = piece[first][half], b = piece[first + 1][half];
          const uint32_t x = j / 2 == 0 ? a.x : j / 2 == 1 ? a.y : j / 2 == 2 ? a.z : a.w;
          const uint32_t y = j / 2 == 0 ? b.x : j / 2 == 1 ? b.y : j / 2 == 2 ? b.z : b.w;
          return __byte_perm(x, y, j % 2 ? 0x7632 : 0x5410);
        };
        f(group * 8 + j, pair(0, 0), pair(0, 1), pair(2, 0), pair(2, 1));
      }
    }
  }

  template <int kRowBytes>
  __device__ __forceinline__ static float query(uint32_t (&q)[kSteps][2], const uint8_t* tile) {
    const int lane = threadIdx.x % 32;
    const uint8_t* row = tile + lane / 4 * kRowBytes + lane % 4 * 16;
#pragma unroll
    for (int x = 0; x < HEAD_DIM / 32; ++x) {
      const uint4 w = *reinterpret_cast<const uint4*>(row + x * 64);
      q[2 * x][0] = w.x, q[2 * x][1] = w.y, q[2 * x + 1][0] = w.z, q[2 * x + 1][1] = w.w;
    }
    return 1.0f;
  }
};

// A warp's ring of tiles by bulk copies. Each stage is the warp's own, so its barrier's parity tells all.
template <typename T>
struct BulkCopies {
  using Tile = Flat<T>;
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = Shape<HEAD_DIM, HEADS, kWarps, kStages, kColumns, sizeof(T), false>;
  template <int PAGE>
  using Walk = Units<PAGE>;

  // The copies of `tokens` rows of one unit.
  template <int HEAD_DIM>
  __device__ __forceinline__ static void copy_rows(uint8_t* to, const T* from, int64_t stride, int tokens, uint64_t* bar, uint64_t policy) {
    constexpr int kRow = HEAD_DIM * sizeof(T);
    if (stride == HEAD_DIM) {
      bulk_copy(to, from, tokens * kRow, bar, policy);
    } else {
      for (int t = 0; t < tokens; ++t) bulk_copy(to + t * kRow, from + t * stride, kRow, bar, policy);
    }
  }

  // Starts the copies of one tile and returns the mask of its tokens; the rows of the others are left as they are.
  template <int HEAD_DIM, int PAGE, class S>
  __device__ __forceinline__ static uint32_t issue(const Units<PAGE>& units, int tile, const Rows<T>& k, const Rows<T>& v, uint8_t* stage,
                                                   uint64_t* bar, uint64_t policy) {
    using U = Units<PAGE>;
    const int lane = threadIdx.x % 32;
    const int first = tile % U::kTilesPerBatch * U::kPerTile;             // lane of the tile's first unit
    const int token = PAGE > kTile ? tile % U::kPerPage * U::kTokens : 0;  // of the first unit in its page
    const int row_tokens = __shfl_sync(kAll, units.tokens, first + lane % kTile / U::kTokens);
    const uint32_t mask = __ballot_sync(kAll, lane % U::kTokens < row_tokens) & 0xffffu;
    const bool chosen = elect_lane();
    if (chosen) mbarrier_expect(bar, __popc(mask) * 2 * S::kRowBytes);
#pragma unroll
    for (int u = 0; u < U::kPerTile; ++u) {
      const int tokens = __shfl_sync(kAll, units.tokens, first + u);
      const int64_t block = __shfl_sync(kAll, units.block, first + u);
      if (!chosen || tokens == 0) continue;
      uint8_t* to = stage + u * U::kTokens * S::kRowBytes;
      copy_rows<HEAD_DIM>(to, k.base + block * k.block_stride + token * k.token_stride, k.token_stride, tokens, bar, policy);
      copy_rows<HEAD_DIM>(to + S::kTensorBytes, v.base + block * v.block_stride + token * v.token_stride, v.token_stride, tokens, bar, policy);
    }
    __syncwarp();
    return mask;
  }

  // Zeros in the rows that no token has: what lay there before in V could be no number. Later copies come after these stores.
  template <class S>
  __device__ __forceinline__ static void clear_dead(uint8_t* stage, uint32_t mask) {
    const int lane = threadIdx.x % 32;
    for (int i = lane; i < 2 * kTile * S::kPieces; i += 32) {  // K's rows, then V's
      const int row = i / S::kPieces;
      if ((mask >> row % kTile & 1) == 0) *reinterpret_cast<uint4*>(stage + row * S::kRowBytes + i % S::kPieces * 16) = make_uint4(0, 0, 0, 0);
    }
    asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
    __syncwarp();
  }

  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, int kColumns>
  __device__ __forceinline__ static void run(State<HEAD_DIM, kColumns, Tile>& state, Units<PAGE>& units, const Rows<T>& k, const Rows<T>& v,
                                             int first, int last, uint8_t* ring, float scale, float cap) {
    using U = Units<PAGE>;
    __shared__ __align__(8) uint64_t bars[S::kBlockWarps][kStages];
    const int lane = threadIdx.x % 32;
    uint64_t* const own = bars[threadIdx.x / 32];
    if (lane < kStages) mbarrier_init(own + lane, 1);
    mbarrier_init_fence();
    __syncwarp();
    const uint64_t policy = evict_first_policy();

    int next = first;             // tile to issue
    int into = 0, from = 0;       // stages
    uint32_t parity = 0;          // of the stages' phases, a bit each
    uint64_t masks = 0;           // of the tiles in flight, 16 bits each, the oldest lowest
    Units<PAGE> ahead = units;    // the batch after the current one
    const auto load_ahead = [&](int batch) {
      if (static_cast<int64_t>(batch) * U::kTilesPerBatch < last) ahead.load(static_cast<int64_t>(batch) * 32 + lane);
    };
    load_ahead(first / U::kTilesPerBatch);
    units.take(ahead);
    load_ahead(first / U::kTilesPerBatch + 1);
    const auto issue_next = [&]() -> uint32_t {
      if (next >= last) return 0;
      const uint32_t mask = issue<HEAD_DIM, PAGE, S>(units, next, k, v, ring + into * S::kStageBytes, own + into, policy);
      into = into + 1 == kStages ? 0 : into + 1;
      if (++next % U::kTilesPerBatch == 0) {
        units.take(ahead);
        load_ahead(next / U::kTilesPerBatch + 1);
      }
      return mask;
    };
#pragma unroll
    for (int i = 0; i < kStages; ++i) masks |= static_cast<uint64_t>(issue_next()) << 16 * i;
    ptx::wait_copies<0>();
    __syncthreads();
    state.template begin<S::kQueryRowBytes>(query_tile<S>(), scale);
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      uint8_t* const stage = ring + from * S::kStageBytes;
      const uint32_t mask = static_cast<uint32_t>(masks) & 0xffffu;
      mbarrier_wait(own + from, parity >> from & 1);
      parity ^= 1u << from;
      if (mask != 0xffffu) clear_dead<S>(stage, mask);
      state.template add<SOFTCAP, S>(ptx::shared_address(stage), mask, cap);
      __syncwarp();  // every lane has read the stage that the next copies overwrite
      masks = masks >> 16 | static_cast<uint64_t>(issue_next()) << 16 * (kStages - 1);
      from = from + 1 == kStages ? 0 : from + 1;
    }
    __syncwarp();
  }
};

}  // namespace attend

// What a cache of Flat tiles computes in.
template <typename T>
struct Compute<attend::Flat<T>> {
  using type = T;
};

// Parameters as page_attend's.
template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          bool kDependent>
__device__ __forceinline__ void page_attend_bulk(const PageAttendArgs& args) {
  page_attend_by<attend::BulkCopies, HEAD_DIM, PAGE, HEADS, LISTS_PER_KV_HEAD, T, SOFTCAP, kWarps, kStages, kColumns, kDependent>(args);
}

}  // namespace kvloom
