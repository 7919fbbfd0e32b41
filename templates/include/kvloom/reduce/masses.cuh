// Masses of score rows in parts: page_score leaves them beside the scores, so that page_select need not read a row twice. A part is
// {shift, sum}: sum of 2^(s log2(e) - shift) over its pages; a sum of 0 is no part, NaN says that the row has no masses here. A shift of
// -inf says that neither this part nor those behind it are any block's. Parts belong to one request: with more, both kernels leave them
// alone.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::reduce {

// Parts of a row: 0 is of the page that is still filling, 1 + b of block b of page_score.
constexpr int kMassParts = 288;

// For a launch of page_score that leaves no masses: says so in each row, by some threads of one block.
__device__ __forceinline__ void leave_no_masses(float* masses, int rows, int thread, int threads) {
  if (masses == nullptr) return;
  for (int row = thread; row < rows; row += threads)
    reinterpret_cast<float2*>(masses)[static_cast<int64_t>(row) * kMassParts] = make_float2(0.0f, __int_as_float(0x7fffffff));
}

}  // namespace kvloom::reduce
