// page_select, page_rerank and page_attend of one list in one launch: the cluster that has proposed the candidates scores them exactly,
// chooses among them and attends to what it chose. Between the three lie exchanges among the cluster's blocks alone. Candidates and chosen
// pages are written to memory too. Where selection is the radix kernel's, the blocks read the candidates there.
#pragma once

#include "kernels/page_rerank_attend.cuh"
#include "kernels/page_select_cluster.cuh"

namespace kvloom {

namespace rerank {

// Where a proposed page goes: to memory, and to the list of every block of the cluster.
template <int kCluster>
struct Proposed {
  static constexpr bool kEarly = false;  // nothing is done with a page before its place is known
  int32_t* pages;                        // [candidate slots]
  uint32_t list, barrier;                // shared addresses

  __device__ __forceinline__ void operator()(int position, int page) const {
#pragma unroll
    for (int to = 0; to < kCluster; ++to)
      ptx::store_async(ptx::map_to_rank(list + 4 * position, to), static_cast<uint32_t>(page), ptx::map_to_rank(barrier, to));
    pages[position] = page;
  }
};

}  // namespace rerank

// Grid: x clusters, a list each, y requests. The arguments' slots of selection are at most kMost. Parameters as page_rerank_attend's and page_select_cluster's. Dynamic shared memory: kBufferWords
// of selection, whose place the values then take, and kMemoryBytes.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, reduce::Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster,
          int kMost, int kMemoryBytes, int kBufferWords, int kPages, int SUMMARY_PAGES = 1>
__device__ __forceinline__ void page_select_rerank_attend(const PageSelectRerankAttendArgs& all) {
  using namespace rerank;
  using B = ListRerank<T, HEAD_DIM, PAGE, GROUP, HEADS, COMBINE, SOFTCAP, kNumWarps, kCluster, kMost, true, 0, SUMMARY_PAGES>;
  using Group = typename B::Group;
  static_assert(4 * kBufferWords >= kNumWarps * B::A::kRingBytes, "values take the place of what selection keeps");
  static_assert(sizeof(typename B::Memory) <= kMemoryBytes, "the plan reckons with what the blocks exchange");
  static_assert(kBufferWords % 32 == 0, "memory is aligned to 128 bytes");
  extern __shared__ __align__(128) uint8_t rings[];
  typename B::Memory& memory = *reinterpret_cast<typename B::Memory*>(rings + 4 * kBufferWords);
  __shared__ int32_t candidates[kMost];
  __shared__ __align__(8) uint64_t listed;
  const int width = min(all.select.slots, kMost / SUMMARY_PAGES);  // proposed groups
  B(memory, all.both.rerank, ptx::cluster_rank<kCluster>()).arm();
  if (threadIdx.x == 0) {
    mbarrier_init(&listed, 1);
    mbarrier_init_fence();
    mbarrier_expect(&listed, 4 * width);
  }
  int32_t* const pages = all.select.pages + blockIdx.y * all.select.pages_batch_stride + blockIdx.x / kCluster * all.select.pages_list_stride;
  Proposed<kCluster> out{pages, ptx::shared_address(candidates), ptx::shared_address(&listed)};
  const bool proposed = page_select_in_cluster<PAGE * SUMMARY_PAGES, HEADS, COMBINE, 32 * kNumWarps, kCluster, kBufferWords, true, kPages>(all.select, out);
  // From here on nothing is known that selection would have had to keep.
  const int list = blockIdx.x / kCluster, lists = gridDim.x / kCluster, request = blockIdx.y, lane = threadIdx.x % 32;
  const B both(memory, all.both.rerank, ptx::cluster_rank<kCluster>());
  const PageRerankArgs& args = all.both.rerank;
  List l;
  PageScoreArgs score;
  const int length = max(select::load_length(args.cache.seq_lens + request), 0);
  both.describe(l, request, list, length, score);
  l.candidates = candidates, l.proposed = all.select.slots;
  if (proposed) {
    ptx::wait_cluster_barrier(ptx::shared_address(&listed), 0);
  } else {
    ptx::cluster_sync<kCluster>();
    l.proposed = all.select.counts[static_cast<int64_t>(request) * lists + list];
    const int32_t* from = all.select.pages + request * all.select.pages_batch_stride + list * all.select.pages_list_stride;
    for (int i = threadIdx.x; i < l.proposed; i += 32 * kNumWarps) candidates[i] = from[i];
  }
  __syncthreads();  // the list is whole, and nobody looks at what selection kept any more
  l.count = pages_of<Group>(candidates, l.proposed, l.pages, args.recent_pages);
  const int page = lane < B::kEach && both.first() + lane < l.count ? page_of<Group>(l, both.first() + lane) : -1;
  typename B::Asked asked;
  both.ask(l, l.proposed, asked);
  typename B::Query query;
  both.load_query(score, l, query);
  both.template run<true>(rings, &all.both, l, lists, length, score, query, page, asked);
  if (threadIdx.x == 0) mbarrier_invalidate(&listed);
}

}  // namespace kvloom
