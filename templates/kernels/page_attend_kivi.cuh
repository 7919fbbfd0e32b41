// page_attend over a KIVI cache: quantised pages from their records, the page that is still filling from its rows in bf16
// (page_attend_kivi_state.cuh).
#pragma once

#include "kernels/page_attend.cuh"
#include "kernels/page_attend_kivi_state.cuh"

namespace kvloom {

namespace attend {

// A list of pages in tiles of min(PAGE, 16) tokens: a page's, or a part of it. Lane l of a warp holds tile l of a batch of 32.
template <int PAGE>
struct KiviUnits {
  static constexpr int kTokens = PAGE < kTile ? PAGE : kTile, kPerPage = PAGE / kTokens, kTilesPerBatch = 32;

  const int32_t* pages;
  const int32_t* table;
  int count, max_pages, length;
  const KvCache* cache;
  int request, kv_head;

  int block;   // of this lane's tile: of the store, or of rows
  int tokens;  // in it; negative where they are rows

  __device__ __forceinline__ static int tiles(int pages) { return pages * kPerPage; }

  __device__ __forceinline__ void load(int64_t tile) {
    const int64_t slot = tile / kPerPage;
    int page = -1;
    if (slot < count) page = pages ? pages[slot] : static_cast<int>(slot);
    const int64_t first = static_cast<int64_t>(page) * PAGE + tile % kPerPage * kTokens;
    const bool exists = page >= 0 && page < max_pages && first < length;
    const bool whole = (static_cast<int64_t>(page) + 1) * PAGE <= length;
    block = -1;
    if (exists) block = (whole ? table : cache->row_table + request * cache->table_stride)[page];
    tokens = exists ? static_cast<int>(min(length - first, static_cast<int64_t>(kTokens))) : 0;
    if (!whole) tokens = -tokens;
  }

  __device__ __forceinline__ void take(const KiviUnits& ahead) {
    tokens = ahead.block < 0 ? 0 : ahead.tokens;
    block = max(ahead.block, 0);
  }
};

// A lane's share of the copies of tiles of quantised pages.
template <class R>
struct KiviLane {
  const uint8_t* from;  // its first piece in block 0 of the store
  uint32_t skip;        // 16 times the lane

  __device__ __forceinline__ KiviLane(const KvCache& cache, int kv_head) : skip(16 * (threadIdx.x % 32)) {
    from = keep(cache.store + kv_head * cache.store_head_stride + skip);
    skip = keep(skip);
  }

  // Starts the copies of a tile, by all lanes: a commit closes their group.
  __device__ __forceinline__ void copy(const KvCache& cache, int block, int part, uint32_t stage) const {
    constexpr int kPieces = (R::kHead + R::kTile) / 16;
    const uint8_t* piece = from + block * cache.store_block_stride;
    const uint32_t to = stage + skip;
#pragma unroll
    for (int i = 0; i < (kPieces + 31) / 32; ++i) {
      if (32 * i + 32 > kPieces && skip >= 16 * (kPieces - 32 * i)) continue;
      // Of the page's later tiles the first pieces are what the page's keys share, too.
      const int before = R::kTiles > 1 && 512 * i + skip >= R::kHead ? part * R::kTile : 0;
      ptx::copy16_or_zero(to + 512 * i, piece + 512 * i + before, true);
    }
  }
};

// Where the rows of a tile of the page that is still filling begin, with strides in elements.
template <int PAGE>
struct KiviRows {
  const uint16_t *k, *v;
  int64_t k_stride, v_stride;

  template <typename T>
  __device__ __forceinline__ KiviRows(const Rows<T>& from_k, const Rows<T>& from_v, int block, int tile) {
    const int64_t in_page = tile % KiviUnits<PAGE>::kPerPage * KiviUnits<PAGE>::kTokens;
    k_stride = from_k.token_stride, v_stride = from_v.token_stride;
    k = &from_k.base->bits + block * from_k.block_stride + in_page * k_stride;
    v = &from_v.base->bits + block * from_v.block_stride + in_page * v_stride;
  }

  // Asks for them ahead, by all lanes: they are read where nothing else is left to wait for, values behind keys.
  template <int HEAD_DIM>
  __device__ __forceinline__ void fetch(int tokens) const {
    constexpr int kLines = (2 * HEAD_DIM + 127) / 128;  // of a row
    constexpr int kTurns = (2 * kLines * (KiviUnits<PAGE>::kTokens - 1) + 31) / 32;
#pragma unroll
    for (int turn = 0; turn < kTurns; ++turn) {
      const int i = 32 * turn + threadIdx.x % 32, token = i / (2 * kLines), at = i % kLines * 64;
      if (token < tokens) prefetch_l2(i / kLines % 2 ? v + token * v_stride + at : k + token * k_stride + at);
    }
  }
};

template <typename T>
struct KiviCopies;

// How the streaming kernel reads.
template <int BITS, bool FEW>
struct KiviCopies<KiviRow<BITS, FEW>> {
  using Tile = KiviRow<BITS, FEW>;
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = KiviShape<HEAD_DIM, PAGE, HEADS, kWarps, kStages, kColumns, BITS>;
  template <int PAGE>
  using Walk = KiviUnits<PAGE>;

  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, int kColumns>
  __device__ __forceinline__ static void run(State<HEAD_DIM, kColumns, Tile>& state, KiviUnits<PAGE>& units, const Rows<Tile>& k,
                                             const Rows<Tile>& v, int first, int last, uint8_t* ring, float scale, float cap) {
    using U = KiviUnits<PAGE>;
    using R = typename S::Record;
    const int lane = threadIdx.x % 32;
    const KiviLane<R> copies(*units.cache, units.kv_head);
    const uint32_t base = keep_common(ptx::shared_address(ring));
    int next = first;             // tile to issue
    int into = 0, from = 0;       // stages
    uint32_t flight = 0;          // a byte a tile in flight, the oldest lowest: its tokens, 0x80 where they are rows
    int rows_block = 0;           // of the page that is still filling
    U ahead = units;              // the batch after the current one
    const auto load_ahead = [&](int batch) {
      if (static_cast<int64_t>(batch) * U::kTilesPerBatch < last) ahead.load(static_cast<int64_t>(batch) * U::kTilesPerBatch + lane);
    };
    load_ahead(first / U::kTilesPerBatch);
    units.take(ahead);
    load_ahead(first / U::kTilesPerBatch + 1);
    const auto issue_next = [&]() -> uint32_t {
      uint32_t what = 0;
      if (next < last) {
        const int tokens = __shfl_sync(kAll, units.tokens, next % U::kTilesPerBatch), block = __shfl_sync(kAll, units.block, next % U::kTilesPerBatch);
        what = tokens < 0 ? 0x80 - tokens : tokens;
        if (tokens > 0) copies.copy(*units.cache, block, next % U::kPerPage, base + into * S::kStageBytes);
        if (tokens < 0) {
          rows_block = block;
          KiviRows<PAGE>(k, v, block, next).template fetch<HEAD_DIM>(-tokens);
        }
        into = into + 1 == kStages ? 0 : into + 1;
        if (++next % U::kTilesPerBatch == 0) {
          units.take(ahead);
          load_ahead(next / U::kTilesPerBatch + 1);
        }
      }
      ptx::commit_copies();
      return what;
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) flight |= issue_next() << 8 * i;
    ptx::wait_copies<kStages - 1>();
    __syncthreads();
    state.template begin<S::kQueryRowBytes>(query_tile<S>(), scale);
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      flight |= issue_next() << 8 * (kStages - 1);
      ptx::wait_copies<kStages - 1>();
      __syncwarp();
      const int what = static_cast<int>(flight & 0xff);
      if (what >= 0x80) {
        state.template add_rows<SOFTCAP>(KiviRows<PAGE>(k, v, rows_block, tile), what - 0x80, cap);
      } else if (what > 0) {
        state.template add_codes<SOFTCAP, R>(base + from * S::kStageBytes, cap);
      }
      flight >>= 8;
      from = from + 1 == kStages ? 0 : from + 1;
      __syncwarp();  // every lane has read the stage that the next copies overwrite
    }
    ptx::wait_copies<0>();
    state.end();
    __syncwarp();
  }
};

}  // namespace attend

// Parameters as page_attend's; T is a KiviRow.
template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          bool kDependent>
__device__ __forceinline__ void page_attend_kivi(const PageAttendArgs& args) {
  page_attend_by<attend::KiviCopies, HEAD_DIM, PAGE, HEADS, LISTS_PER_KV_HEAD, T, SOFTCAP, kWarps, kStages, kColumns, kDependent>(args);
}

}  // namespace kvloom
