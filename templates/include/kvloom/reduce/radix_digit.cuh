// One step of an exact radix selection: the digit in which the `need` largest keys end, from a histogram in shared memory, or from
// those of all blocks of a cluster.
#pragma once

#include "kvloom/ptx/cluster.cuh"
#include "kvloom/reduce/block_scan.cuh"

namespace kvloom::reduce {

constexpr int kRadixDigits = 3;
constexpr int kRadixBins = 2048;  // of the widest digit: 11 + 11 + 10 bits
__device__ constexpr int radix_shift(int digit) { return digit == 0 ? 21 : digit == 1 ? 10 : 0; }
__device__ constexpr int radix_bins(int digit) { return digit == 2 ? 1024 : 2048; }

// Scratch of one selection.
template <int kThreads>
struct RadixScratch {
  int scan[kRadixDigits][kThreads / 32];
  int found[kRadixDigits][3];  // digit, keys above it, keys in it
};

// The threshold as far as it is known. In the end keys above `key` are taken, and `left` of those that equal it.
struct Threshold {
  uint32_t prefix;  // the digits found so far
  int left;         // of the keys that share the prefix, still to be taken
  uint32_t key;
  bool done;
};

__device__ __forceinline__ Threshold radix_begin(int need) { return {0, need, 0, false}; }

// Whether a key still competes at `digit`, and the bin it counts in.
template <int DIGIT>
__device__ __forceinline__ bool shares_prefix(const Threshold& t, uint32_t key) {
  if constexpr (DIGIT == 0) return true;
  return key >> radix_shift(DIGIT > 0 ? DIGIT - 1 : 0) == t.prefix;
}
template <int DIGIT>
__device__ __forceinline__ int radix_bin(uint32_t key) {
  return static_cast<int>((key >> radix_shift(DIGIT)) % radix_bins(DIGIT));
}

// Fixes one digit, alike in every block of the cluster. histogram: this block's, [radix_bins(DIGIT)], complete after the barrier
// that this call begins with, and read by other blocks until the next one.
template <int DIGIT, int kThreads, int kCluster>
__device__ __forceinline__ void radix_refine(Threshold& t, const uint32_t* histogram, RadixScratch<kThreads>& scratch) {
  constexpr int BINS = radix_bins(DIGIT), kEach = BINS / kThreads;
  static_assert(BINS % kThreads == 0, "a thread owns whole bins");
  if (t.done) return;
  ptx::cluster_sync<kCluster>();
  const int lowest = BINS - kEach - kEach * static_cast<int>(threadIdx.x);  // of the thread's bins; threads go down
  uint32_t count[kEach] = {};
#pragma unroll
  for (int r = 0; r < kCluster; ++r) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      if constexpr (kCluster == 1) {
        count[i] = histogram[lowest + i];
      } else {
        count[i] += ptx::load_cluster_word(ptx::map_to_rank(ptx::shared_address(histogram + lowest + i), r));
      }
    }
  }
  int total = 0;
#pragma unroll
  for (int i = 0; i < kEach; ++i) total += count[i];
  int above = block_exclusive_scan<kThreads>(total, scratch.scan[DIGIT]);
#pragma unroll
  for (int i = kEach - 1; i >= 0; --i) {
    const int in = count[i];
    if (above < t.left && above + in >= t.left) {
      scratch.found[DIGIT][0] = lowest + i;
      scratch.found[DIGIT][1] = above;
      scratch.found[DIGIT][2] = in;
    }
    above += in;
  }
  __syncthreads();
  t.prefix = t.prefix * BINS + scratch.found[DIGIT][0];
  t.left -= scratch.found[DIGIT][1];
  t.key = t.prefix << radix_shift(DIGIT);
  if (t.left == scratch.found[DIGIT][2] && t.key > 0) {  // the whole bin is taken: every key from its lowest up, no ties to settle
    t.key -= 1;
    t.left = 0;
    t.done = true;
  }
}

}  // namespace kvloom::reduce
