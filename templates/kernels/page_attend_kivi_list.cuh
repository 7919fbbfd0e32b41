// page_attend_list over a KIVI cache.
#pragma once

#include "kernels/page_attend_kivi.cuh"
#include "kernels/page_attend_list.cuh"

namespace kvloom {

namespace attend {

// attend::Batch of tiles that are a page or a part of one.
template <int PAGE>
struct KiviBatch {
  using U = KiviUnits<PAGE>;
  int slot, page;  // of this lane's tile; page -1: none

  __device__ __forceinline__ void read(const int32_t* pages, int first, int last, int slots) {
    const int tile = first / U::kTilesPerBatch * U::kTilesPerBatch + threadIdx.x % 32;
    slot = tile / U::kPerPage;
    const bool inside = tile >= first && tile < last && slot < slots;
    page = inside ? slot : -1;
    if (inside && pages) page = pages[slot];
  }

  __device__ __forceinline__ void look_up(U& units, int first) const {
    const int part = (first / U::kTilesPerBatch * U::kTilesPerBatch + threadIdx.x % 32) % U::kPerPage;
    const int64_t begin = static_cast<int64_t>(page) * PAGE, rest = units.length - begin - part * U::kTokens;
    const bool whole = begin + PAGE <= units.length;
    const int32_t* table = whole ? units.table : units.cache->row_table + units.request * units.cache->table_stride;
    int id = -1;
    if (slot < units.count && page >= 0 && page < units.max_pages && rest > 0) id = table[page];
    units.block = max(id, 0);
    units.tokens = id < 0 ? 0 : static_cast<int>(min(rest, static_cast<int64_t>(U::kTokens)));
    if (!whole) units.tokens = -units.tokens;
  }
};

// attend::Ring of a list's tiles: records by copies, the page that is still filling by its rows.
template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, typename T>
struct KiviRing {
  using U = KiviUnits<PAGE>;
  using R = typename S::Record;
  const Rows<T>& k;
  const Rows<T>& v;
  uint32_t base;         // shared address of stage 0
  int rows_block = 0;    // of the page that is still filling
  int flight[kStages];   // tokens of the tiles in flight, negative where they are rows, the oldest first

  __device__ __forceinline__ KiviRing(const Rows<T>& k, const Rows<T>& v, uint8_t* base) : k(k), v(v), base(ptx::shared_address(base)) {}

  __device__ __forceinline__ int issue(const U& units, int tile, uint32_t stage) {
    const int tokens = __shfl_sync(kAll, units.tokens, tile % U::kTilesPerBatch), block = __shfl_sync(kAll, units.block, tile % U::kTilesPerBatch);
    if (tokens > 0) KiviLane<R>(*units.cache, units.kv_head).copy(*units.cache, block, tile % U::kPerPage, stage);
    if (tokens < 0) {
      rows_block = block;
      KiviRows<PAGE>(k, v, block, tile).template fetch<HEAD_DIM>(-tokens);
    }
    return tokens;
  }

  __device__ __forceinline__ void start(const U& units, int first, int last) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      flight[i] = first + i < last ? issue(units, first + i, base + i * S::kStageBytes) : 0;
      ptx::commit_copies();
    }
  }

  // As Ring's. A tile without tokens is left to run.
  __device__ __forceinline__ bool fills(int tiles) const { return tiles == kStages && flight[0] != 0 && flight[kStages - 1] != 0; }

  template <int kColumns>
  __device__ __forceinline__ void run_first(State<HEAD_DIM, kColumns, T>& state, int first, float cap) {
    float s[kStages][kColumns][4];
    uint32_t masks[kStages];
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (i + 1 < kStages) {
        ptx::wait_copies<1>();
      } else {
        ptx::wait_copies<0>();
      }
      __syncwarp();
      if (flight[i] < 0) {
        state.row_logits(KiviRows<PAGE>(k, v, rows_block, first + i), -flight[i], s[i]);
      } else {
        state.template logits<R>(base + i * S::kStageBytes, s[i]);
      }
      masks[i] = (1u << (flight[i] < 0 ? -flight[i] : R::kTokens)) - 1;
    }
    uint32_t weights[kStages][kColumns][2];
    state.template weigh_first<SOFTCAP, bf16>(s, masks, cap, weights);
#pragma unroll
    for (int i = 0; i < kStages; ++i) {
      if (flight[i] < 0) {
        state.row_values(KiviRows<PAGE>(k, v, rows_block, first + i), -flight[i], weights[i]);
      } else {
        state.template values<R>(base + i * S::kStageBytes, weights[i]);
      }
    }
    __syncwarp();
  }

  template <int kColumns>
  __device__ __forceinline__ void run(State<HEAD_DIM, kColumns, T>& state, const U& units, int first, int last, float cap) {
    uint32_t stage = base;
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      ptx::wait_copies<kStages - 1>();
      __syncwarp();
      if (flight[0] < 0) {
        state.template add_rows<SOFTCAP>(KiviRows<PAGE>(k, v, rows_block, tile), -flight[0], cap);
      } else if (flight[0] > 0) {
        state.template add_codes<SOFTCAP, R>(stage, cap);
      }
      __syncwarp();  // every lane has read the stage that the next copies overwrite
#pragma unroll
      for (int i = 0; i + 1 < kStages; ++i) flight[i] = flight[i + 1];
      flight[kStages - 1] = tile + kStages < last ? issue(units, tile + kStages, stage) : 0;
      ptx::commit_copies();
      stage = stage == base + (kStages - 1) * S::kStageBytes ? base : stage + S::kStageBytes;
    }
    ptx::wait_copies<0>();
    __syncwarp();
  }
};

template <int BITS, bool FEW>
struct ListForm<KiviRow<BITS, FEW>> {
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = KiviShape<HEAD_DIM, PAGE, HEADS, kWarps, kStages, kColumns, BITS>;
  template <int PAGE>
  using Walk = KiviUnits<PAGE>;
  template <int PAGE>
  using Slots = KiviBatch<PAGE>;
  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S>
  using Tiles = KiviRing<HEAD_DIM, PAGE, SOFTCAP, kStages, S, KiviRow<BITS, FEW>>;
  template <class State>
  __device__ __forceinline__ static void end(State& state) {
    state.end();
  }
};

}  // namespace attend

}  // namespace kvloom
