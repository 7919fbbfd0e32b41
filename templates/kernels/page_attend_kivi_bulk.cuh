// page_attend over a KIVI cache with tiles that come by bulk copies: a record of a page of up to 16 tokens is one.
#pragma once

#include "kernels/page_attend_kivi.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

namespace attend {

// A warp's stages, each with a barrier: the warp's own, so its parity tells all.
template <class S>
struct KiviBulk {
  static constexpr bool kAhead = false;  // a stage is filled again when it has been read
  static constexpr int kMost = 8;
  using R = typename S::Record;
  const uint8_t* records;  // of the kv head
  int64_t stride;
  uint64_t* bars;
  uint64_t policy;
  uint32_t parity = 0;     // of the stages' phases, a bit each

  __device__ __forceinline__ KiviBulk(const KvCache& cache, int kv_head)
      : records(cache.store + kv_head * cache.store_head_stride), stride(cache.store_block_stride), policy(evict_first_policy()) {
    __shared__ __align__(8) uint64_t all[S::kBlockWarps][kMost];
    bars = all[threadIdx.x / 32];
    if (threadIdx.x % 32 < kMost) mbarrier_init(bars + threadIdx.x % 32, 1);
    mbarrier_init_fence();
    __syncwarp();
  }

  template <int PAGE>
  __device__ __forceinline__ void start(const KiviUnits<PAGE>&, int block, int part, uint8_t* stage, int at) {
    if (elect_lane()) {
      const uint8_t* record = records + block * stride;
      mbarrier_expect(bars + at, R::kHead + R::kTile);
      if (R::kTiles == 1) {
        bulk_copy(stage, record, R::kHead + R::kTile, bars + at, policy);
      } else {
        bulk_copy(stage, record, R::kHead, bars + at, policy);
        bulk_copy(stage + R::kHead, record + R::kHead + part * R::kTile, R::kTile, bars + at, policy);
      }
    }
    __syncwarp();
  }
  __device__ __forceinline__ void commit() {}
  template <int kStages>
  __device__ __forceinline__ void wait_any() {
    static_assert(kStages <= kMost, "a barrier a stage");
  }
  __device__ __forceinline__ void wait(int at) {
    mbarrier_wait(bars + at, parity >> at & 1);
    parity ^= 1u << at;
  }
  __device__ __forceinline__ void end() {}
};

template <typename T>
struct KiviBulkCopies;
template <int BITS, bool FEW>
struct KiviBulkCopies<KiviRow<BITS, FEW>> : KiviStream<BITS, FEW, KiviBulk> {};

}  // namespace attend

// Parameters as page_attend's; T is a KiviRow.
template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          bool kDependent>
__device__ __forceinline__ void page_attend_kivi_bulk(const PageAttendArgs& args) {
  page_attend_by<attend::KiviBulkCopies, HEAD_DIM, PAGE, HEADS, LISTS_PER_KV_HEAD, T, SOFTCAP, kWarps, kStages, kColumns, kDependent>(args);
}

}  // namespace kvloom
