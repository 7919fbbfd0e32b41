// page_rerank by a cluster a list: page_rerank_list.cuh.
#pragma once

#include "kernels/page_rerank_list.cuh"

namespace kvloom {

// Grid: x the cluster, y lists, z requests. HEADS is the number of query heads of one list: the group, or 1 for per_head.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, reduce::Combine COMBINE, bool SOFTCAP, int kNumWarps, int kCluster,
          int kMost, int SUMMARY_PAGES = 1>
__device__ __forceinline__ void page_rerank_cluster(const PageRerankArgs& args) {
  using namespace rerank;
  using B = ListRerank<T, HEAD_DIM, PAGE, GROUP, HEADS, COMBINE, SOFTCAP, kNumWarps, kCluster, kMost, false, 0, SUMMARY_PAGES>;
  __shared__ typename B::Memory memory;
  serve<B>(memory, args, nullptr, nullptr);
}

}  // namespace kvloom
