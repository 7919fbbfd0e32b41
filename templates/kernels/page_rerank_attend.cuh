// page_rerank and page_attend in one launch, a cluster a list: page_rerank_list.cuh.
#pragma once

#include "kernels/page_rerank_list.cuh"

namespace kvloom {

// Grid: x the cluster, y lists, z requests. HEADS is the number of query heads of one list: the group, or 1 for per_head. Dynamic shared
// memory: attend::Shape's kRingBytes a warp. kRing: pages of values that a warp holds, 0 for all of its candidates.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, reduce::Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster,
          int kMost, int kRing>
__device__ __forceinline__ void page_rerank_attend(const PageRerankAttendArgs& given) {
  using namespace rerank;
  using B = ListRerank<T, HEAD_DIM, PAGE, GROUP, HEADS, COMBINE, SOFTCAP, kNumWarps, kCluster, kMost, true, kRing>;
  extern __shared__ __align__(128) uint8_t rings[];  // [kNumWarps][kRingBytes]
  __shared__ typename B::Memory memory;
  const PageRerankArgs& args = given.rerank;
  const B all(memory, args, ptx::cluster_rank<kCluster>());
  all.arm();
  ptx::cluster_arrive<kCluster>();  // awaited before the first store into another block
  // The length, the table and the query stand since before the layer's first launch.
  const int length = max(args.cache.seq_lens[blockIdx.z], 0);
  List l;
  PageScoreArgs score;
  all.describe(l, blockIdx.z, blockIdx.y, length, score);
  typename B::Query query;
  load_rows<typename B::S>(score, l.request, l.list, 0, query);
  ptx::wait_for_dependencies();
  const int page = all.find(l, gridDim.y);
  all.template run<false>(rings, &given, l, gridDim.y, length, score, query, page);
}

}  // namespace kvloom
