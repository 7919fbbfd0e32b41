// page_attend_list with tiles that come by bulk copies: two instructions of one lane for a tile, and no traffic in the path by which a block
// reads its own shared memory, which copies of 16 bytes a lane hold up.
#pragma once

#include "kernels/page_attend_bulk.cuh"
#include "kernels/page_attend_list.cuh"

namespace kvloom {

namespace attend {

// attend::Ring by bulk copies. A stage belongs to one warp and has a barrier, whose parity tells which tile has landed.
template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, typename T>
struct BulkRing {
  using Copies = BulkCopies<T>;
  static constexpr int kGroups = 0;  // of copies that the block's wait for its query must leave out
  Rows<T> k, v;
  uint8_t* base;
  uint64_t* bars;           // [kStages] of this warp
  uint32_t parity = 0;      // of the stages' phases, a bit each
  uint32_t masks[kStages];  // of the tiles in flight, the oldest first

  __device__ __forceinline__ BulkRing(const Rows<Flat<T>>& of_k, const Rows<Flat<T>>& of_v, uint8_t* base)
      : k{reinterpret_cast<const T*>(of_k.base), of_k.block_stride, of_k.token_stride},
        v{reinterpret_cast<const T*>(of_v.base), of_v.block_stride, of_v.token_stride}, base(base) {
    __shared__ __align__(8) uint64_t all[S::kBlockWarps][kStages];
    bars = all[threadIdx.x / 32];
    if (threadIdx.x % 32 < kStages) mbarrier_init(bars + threadIdx.x % 32, 1);
    mbarrier_init_fence();
    __syncwarp();
  }

  // Orders what threads did with the memory before what copies do with it.
  __device__ __forceinline__ void take_over() const { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }

  __device__ __forceinline__ uint32_t issue_tile(const Units<PAGE>& units, int tile, int stage) const {
    return Copies::template issue<HEAD_DIM, PAGE, S>(units, tile, k, v, base + stage * S::kStageBytes, bars + stage, NoPolicy{});
  }

  __device__ __forceinline__ void start(const Units<PAGE>& units, int first, int last) {
#pragma unroll
    for (int i = 0; i < kStages; ++i) masks[i] = first + i < last ? issue_tile(units, first + i, i) : 0u;
  }

  template <int kColumns>
  __device__ __forceinline__ void run(State<HEAD_DIM, kColumns, Flat<T>>& state, const Units<PAGE>& units, int first, int last, float cap) {
    int stage = 0;
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      uint8_t* const at = base + stage * S::kStageBytes;
      mbarrier_wait(bars + stage, parity >> stage & 1);
      parity ^= 1u << stage;
      if (masks[0] != 0xffffu) Copies::template clear_dead<S>(at, masks[0]);
      state.template add<SOFTCAP, S>(ptx::shared_address(at), masks[0], cap);
      __syncwarp();  // every lane has read the stage that the next copies overwrite
#pragma unroll
      for (int i = 0; i + 1 < kStages; ++i) masks[i] = masks[i + 1];
      masks[kStages - 1] = tile + kStages < last ? issue_tile(units, tile + kStages, stage) : 0u;
      stage = stage + 1 == kStages ? 0 : stage + 1;
    }
  }
};

template <typename T>
struct ListForm<Flat<T>> {
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = Shape<HEAD_DIM, HEADS, kWarps, kStages, kColumns, sizeof(T), false>;
  template <int PAGE>
  using Walk = Units<PAGE>;
  template <int PAGE>
  using Slots = Batch<PAGE>;
  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S>
  using Tiles = BulkRing<HEAD_DIM, PAGE, SOFTCAP, kStages, S, T>;
  template <class State>
  __device__ __forceinline__ static void end(State&) {}
};

}  // namespace attend

}  // namespace kvloom
