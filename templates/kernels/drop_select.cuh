// drop_select: the tokens that each head keeps: pinned ones, then the best by value, exactly as many as its budget, ties to the lower
// token, NaN last, in ascending order.
//
// One block, or a cluster of blocks that share the head's tokens, serves a head, by radix selection over integer keys: nothing has a
// capacity that tokens could exceed, and results repeat.
#pragma once

#include "kvloom/drop/budget.cuh"
#include "kvloom/ptx/cluster.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/reduce/radix_digit.cuh"

namespace kvloom {

namespace drop {

// What the blocks of a cluster exchange, and scratch of one block.
template <int kThreads, int kCluster>
struct SelectShared {
  alignas(16) uint32_t histogram[reduce::kRadixDigits][reduce::kRadixBins];
  reduce::RadixScratch<kThreads> radix;
  int2 counts_of_ranks[kCluster];       // tokens above the threshold or pinned, tokens at it
  int2 counts_of_warps[kThreads / 32];
};

constexpr int kHeld = 16;  // keys of a thread in registers

// A head's tokens as this warp walks them: [begin, end) of the block's slice. Lane l has tokens begin + l and every 32nd after.
struct HeadSlice {
  const float* values;    // [token], or null
  uint32_t* keys;         // [block's slice] in shared memory, or null
  int block_begin, begin, end;
  bool holds;             // the lane's keys are all in `held`
  uint32_t held[kHeld];

  __device__ __forceinline__ uint32_t key(int token) const { return keys ? keys[token - block_begin] : key_of(values[token]); }

  // Calls f(first token of the warp's 32, the lane's key) for each 32 tokens in order, those past the end included.
  template <class F>
  __device__ __forceinline__ void each(bool with_keys, F f) const {
    if (holds) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i)
        if (begin + 32 * i < end) f(begin + 32 * i, held[i]);
    } else {
      for (int base = begin; base < end; base += 32) {
        const int token = base + static_cast<int>(threadIdx.x % 32);
        f(base, with_keys && token < end ? key(token) : 0u);
      }
    }
  }
};

// Counts one digit of the open keys that still compete.
template <int DIGIT>
__device__ __forceinline__ void count_digit(const HeadSlice& s, const Open& open, const reduce::Threshold& t, uint32_t* histogram) {
  if (t.done) return;
  s.each(true, [&](int base, uint32_t key) {
    const int token = base + static_cast<int>(threadIdx.x % 32);
    if (token >= open.sinks && token < min(s.end, open.end) && reduce::shares_prefix<DIGIT>(t, key))
      atomicAdd(histogram + reduce::radix_bin<DIGIT>(key), 1u);
  });
}

}  // namespace drop

// kBufferWords: keys in dynamic shared memory; a longer slice makes them again from the values.
template <int kThreads, int kCluster, int kBufferWords, bool kDependent>
__device__ __forceinline__ void drop_select(const DropSelectArgs& args) {
  using namespace drop;
  static_assert(kThreads % 32 == 0 && kThreads >= 256 && kThreads <= 1024, "a block is 8 to 32 warps");
  constexpr int kWarps = kThreads / 32;
  __shared__ SelectShared<kThreads, kCluster> sm;
  extern __shared__ __align__(16) uint32_t buffer[];  // [kBufferWords]
  if constexpr (kDependent) ptx::wait_for_dependencies();

  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = ptx::cluster_rank<kCluster>();
  const int kv_head = blockIdx.x / kCluster, request = blockIdx.y;
  const int n = min(max(args.seq_lens[request], 0), args.max_tokens);
  int keep = uniform_budget(args.budget, n);
  if (args.budgets) keep = min(n, max(args.budgets[request * args.budget_batch_stride + kv_head], max(args.budget.window, 1)));
  keep = min(keep, args.slots);
  const Open open(args.budget, n, keep);
  int32_t* const out = args.indices + request * args.index_batch_stride + kv_head * args.index_head_stride;  // [slots]
  if (rank == 0) {
    if (tid == 0) args.counts[static_cast<int64_t>(request) * args.kv_heads + kv_head] = keep;
    for (int i = keep + tid; i < args.slots; i += kThreads) out[i] = -1;
  }
  if (keep == n) {  // every token; no block of the cluster goes on
    for (int i = rank * kThreads + tid; i < n; i += kCluster * kThreads) out[i] = i;
    return;
  }
  // Tokens that are kept whatever their value. Only when slots are fewer than the window are some of it left out: the oldest.
  const int pinned = max(open.end, n - keep);
  const bool ranks_by_value = args.values != nullptr && open.need > 0;

  HeadSlice s;
  const int width = ((n + kCluster - 1) / kCluster + 31) / 32 * 32;
  s.block_begin = min(rank * width, n);
  const int block_tokens = min(width, n - s.block_begin), each = (block_tokens + kThreads - 1) / kThreads * 32;
  s.begin = s.block_begin + min(warp * each, block_tokens);
  s.end = s.block_begin + min((warp + 1) * each, block_tokens);
  s.values = args.values ? args.values + request * args.value_batch_stride + kv_head * args.value_head_stride : nullptr;
  s.keys = nullptr;
  s.holds = ranks_by_value && width <= kThreads * kHeld;
  uint32_t threshold = 0xffffffffu;
  int ties = 0;
  if (ranks_by_value) {
    // Scores crowd into few bins of the first digit: with all keys in registers, each lane of four counts in a histogram of its own.
    constexpr int kCopies = kBufferWords >= 3 * reduce::kRadixBins ? 4 : 1;
    if (s.holds) {
#pragma unroll
      for (int i = 0; i < kHeld; ++i) {
        const int token = s.begin + 32 * i + lane;
        s.held[i] = token < s.end ? key_of(s.values[token]) : 0u;
      }
      for (int i = tid; i < (kCopies - 1) * reduce::kRadixBins; i += kThreads) buffer[i] = 0;
    } else if (width <= kBufferWords) {
      for (int token = s.begin + lane; token < s.end; token += 32) buffer[token - s.block_begin] = key_of(s.values[token]);
      s.keys = buffer;
    }
    for (int i = tid; i < reduce::kRadixDigits * reduce::kRadixBins; i += kThreads) (&sm.histogram[0][0])[i] = 0;
    __syncthreads();
    reduce::Threshold t = reduce::radix_begin(open.need);
    const int copy = s.holds ? lane % kCopies : 0;
    count_digit<0>(s, open, t, copy == 0 ? sm.histogram[0] : buffer + (copy - 1) * reduce::kRadixBins);
    if (s.holds && kCopies > 1) {
      __syncthreads();
      for (int i = tid; i < reduce::kRadixBins; i += kThreads)
#pragma unroll
        for (int c = 1; c < kCopies; ++c) sm.histogram[0][i] += buffer[(c - 1) * reduce::kRadixBins + i];
    }
    reduce::radix_refine<0, kThreads, kCluster>(t, sm.histogram[0], sm.radix);
    count_digit<1>(s, open, t, sm.histogram[1]);
    reduce::radix_refine<1, kThreads, kCluster>(t, sm.histogram[1], sm.radix);
    count_digit<2>(s, open, t, sm.histogram[2]);
    reduce::radix_refine<2, kThreads, kCluster>(t, sm.histogram[2], sm.radix);
    threshold = t.key;
    ties = t.left;
  }
  // 2: taken, 1: taken while ties are left, 0: not.
  const auto standing = [&](int token, uint32_t key) -> int {
    if (token >= s.end) return 0;
    if (token < open.sinks || token >= pinned) return 2;
    if (token >= open.end || open.need == 0) return 0;
    if (!ranks_by_value) return token >= open.end - open.need ? 2 : 0;
    return key > threshold ? 2 : key == threshold ? 1 : 0;
  };
  int2 mine = make_int2(0, 0);
  s.each(ranks_by_value, [&](int base, uint32_t key) {
    const int how = standing(base + lane, key);
    mine.x += how == 2;
    mine.y += how == 1;
  });
  mine = make_int2(reduce::warp_sum(mine.x), reduce::warp_sum(mine.y));
  if (lane == 0) sm.counts_of_warps[warp] = mine;
  __syncthreads();
  const int2 c = lane < kWarps ? sm.counts_of_warps[lane] : make_int2(0, 0);
  const int2 below = make_int2(reduce::warp_exclusive_scan(c.x), reduce::warp_exclusive_scan(c.y));
  int2 before = make_int2(__shfl_sync(reduce::kFullWarp, below.x, warp), __shfl_sync(reduce::kFullWarp, below.y, warp));
  if constexpr (kCluster > 1) {
    const int2 all = make_int2(__shfl_sync(reduce::kFullWarp, below.x + c.x, 31), __shfl_sync(reduce::kFullWarp, below.y + c.y, 31));
    if (!ranks_by_value) ptx::cluster_sync<kCluster>();  // every block runs: counting digits has told so already
    if (warp == 0 && lane < kCluster)
      ptx::store_cluster(ptx::map_to_rank(ptx::shared_address(&sm.counts_of_ranks[rank]), lane), all.x, all.y);
    ptx::cluster_sync<kCluster>();  // also: nobody reads another block's shared memory after this, so blocks may leave
    for (int r = 0; r < rank; ++r) {
      before.x += sm.counts_of_ranks[r].x;
      before.y += sm.counts_of_ranks[r].y;
    }
  }
  const uint32_t lower_lanes = (1u << lane) - 1;
  s.each(ranks_by_value, [&](int base, uint32_t key) {
    const int how = standing(base + lane, key);
    const uint32_t sure = __ballot_sync(reduce::kFullWarp, how == 2), tied = __ballot_sync(reduce::kFullWarp, how == 1);
    const int ties_before = before.y + __popc(tied & lower_lanes);
    const bool taken = how == 2 || (how == 1 && ties_before < ties);
    const int position = before.x + __popc(sure & lower_lanes) + min(ties_before, ties);
    if (taken) out[position] = base + lane;
    before.x += __popc(sure);
    before.y += __popc(tied);
  });
}

}  // namespace kvloom
