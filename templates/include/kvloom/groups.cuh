// Groups of neighbouring pages of a request that share a summary. A group's record lies at the block of its last page: blocks that requests
// share are those of a common prefix, so whoever has that block has all before it too.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// PAGES of a group; 1 where each page has a summary of its own. Tables have whole groups of columns.
template <int PAGES>
struct Groups {
  static_assert(PAGES >= 1 && PAGES <= 4 && PAGES != 3, "a summary serves 1, 2 or 4 pages");
  static constexpr int kPages = PAGES;

  // Groups of a table of so many columns.
  static __device__ __forceinline__ int of_table(int max_pages) { return max_pages / PAGES; }

  // Groups that so many pages occupy.
  static __device__ __forceinline__ int of_pages(int pages) { return (pages + PAGES - 1) / PAGES; }

  // The column of the block table that says where a group's record lies.
  template <typename Index>
  static __device__ __forceinline__ Index column(Index group) {
    return group * PAGES + (PAGES - 1);
  }
};

}  // namespace kvloom
