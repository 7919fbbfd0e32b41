// drop_allot: how many tokens each head of a layer keeps under adaptive budgets (Ada-KV with a safeguard): a head's own best
// floor(floor * free) tokens are sure, the rest of the layer's tokens goes to the best of all heads, ties to the lower head. A layer
// keeps exactly as many tokens as under a uniform budget.
//
// One block, or a cluster of blocks that take turns at the heads, serves a request. What a head keeps is then its best `budget`
// tokens, so drop_select needs the number alone.
#pragma once

#include "kvloom/drop/budget.cuh"
#include "kvloom/ptx/cluster.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/reduce/radix_digit.cuh"

namespace kvloom {

namespace drop {

constexpr int kMaxHeads = 512;  // of a block

// One head of a block: the threshold of its sure tokens, then what is left of it against the layer's threshold.
struct HeadState {
  uint32_t key;           // keys above it are sure, and `ties` of those that equal it
  int ties;
  int above, equal;
};

template <int kThreads>
struct AllotShared {
  alignas(16) uint32_t histogram[reduce::kRadixDigits][reduce::kRadixBins];
  HeadState heads[kMaxHeads];
  reduce::RadixScratch<kThreads> radix;
};

template <int kThreads>
__device__ __forceinline__ void clear_histograms(AllotShared<kThreads>& sm) {
  __syncthreads();
  for (int i = threadIdx.x; i < reduce::kRadixDigits * reduce::kRadixBins; i += kThreads) (&sm.histogram[0][0])[i] = 0;
  __syncthreads();
}

// Calls f(key) for a head's tokens that compete. Sixteen loads of a thread are on their way at once.
template <int kThreads, class F>
__device__ __forceinline__ void each_key(const float* row, const Open& open, F f) {
  const bool aligned = reinterpret_cast<uint64_t>(row) % 16 == 0;
  constexpr int kGroups = 4;
  for (int base = open.sinks / 4 * 4; base < open.end; base += 4 * kGroups * kThreads) {
    const int first = base + 4 * static_cast<int>(threadIdx.x);
    float v[kGroups][4];
    if (aligned && base + 4 * kGroups * kThreads <= open.end) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const float4 x = *reinterpret_cast<const float4*>(row + first + 4 * g * kThreads);
        v[g][0] = x.x, v[g][1] = x.y, v[g][2] = x.z, v[g][3] = x.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < 4 * kGroups; ++i) {
        const int token = first + i / 4 * 4 * kThreads + i % 4;
        v[i / 4][i % 4] = token < open.end ? row[token] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < 4 * kGroups; ++i) {
      const int token = first + i / 4 * 4 * kThreads + i % 4;
      if (token >= open.sinks && token < open.end) f(key_of(v[i / 4][i % 4]));
    }
  }
}

// Counts one digit of a head's keys.
template <int DIGIT, int kThreads>
__device__ __forceinline__ void count_all(const float* values, const Open& open, const reduce::Threshold& t, uint32_t* histogram) {
  if (t.done) return;
  each_key<kThreads>(values, open, [&](uint32_t key) {
    if (reduce::shares_prefix<DIGIT>(t, key)) atomicAdd(histogram + reduce::radix_bin<DIGIT>(key), 1u);
  });
}

// Counts one digit of the keys that are not sure, of the block's heads, and takes those at a head's threshold that are sure out again.
template <int DIGIT, int kThreads, int kCluster>
__device__ __forceinline__ void count_rest(const DropAllotArgs& args, const float* values, int rank, const Open& open,
                                           const reduce::Threshold& t, AllotShared<kThreads>& sm) {
  if (t.done) return;
  uint32_t* const histogram = sm.histogram[DIGIT];
  for (int head = rank; head < args.kv_heads; head += kCluster) {
    const HeadState& own = sm.heads[head / kCluster];
    each_key<kThreads>(values + head * args.value_head_stride, open, [&](uint32_t key) {
      if (key <= own.key && reduce::shares_prefix<DIGIT>(t, key)) atomicAdd(histogram + reduce::radix_bin<DIGIT>(key), 1u);
    });
    if (threadIdx.x == 0 && own.ties > 0 && reduce::shares_prefix<DIGIT>(t, own.key))
      atomicSub(histogram + reduce::radix_bin<DIGIT>(own.key), static_cast<uint32_t>(own.ties));
  }
}

}  // namespace drop

template <int kThreads, int kCluster, bool kDependent>
__device__ __forceinline__ void drop_allot(const DropAllotArgs& args) {
  using namespace drop;
  static_assert(kThreads % 32 == 0 && kThreads >= 256 && kThreads <= 1024, "a block is 8 to 32 warps");
  __shared__ AllotShared<kThreads> sm;
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int tid = threadIdx.x, rank = ptx::cluster_rank<kCluster>(), request = blockIdx.y;
  const int n = min(max(args.seq_lens[request], 0), args.max_tokens);
  const int keep = uniform_budget(args.budget, n);
  const Open open(args.budget, n, keep);
  int32_t* const budgets = args.budgets + static_cast<int64_t>(request) * args.kv_heads;
  if (open.need == 0 || open.need == open.end - open.sinks) {  // nothing to divide; no block of the cluster goes on
    for (int head = rank * kThreads + tid; head < args.kv_heads; head += kCluster * kThreads) budgets[head] = keep;
    return;
  }
  const float* const values = args.values + request * args.value_batch_stride;
  const int sure = static_cast<int>(floor(__dmul_rn(__dmul_rn(args.budget.floor, static_cast<double>(open.need)), 1.0 + 1e-12)));
  for (int head = rank; head < args.kv_heads; head += kCluster) {
    reduce::Threshold t{0, 0, 0xffffffffu, true};  // no key is as large
    if (sure > 0) {
      const float* const row = values + head * args.value_head_stride;
      clear_histograms(sm);
      t = reduce::radix_begin(sure);
      count_all<0, kThreads>(row, open, t, sm.histogram[0]);
      reduce::radix_refine<0, kThreads, 1>(t, sm.histogram[0], sm.radix);
      count_all<1, kThreads>(row, open, t, sm.histogram[1]);
      reduce::radix_refine<1, kThreads, 1>(t, sm.histogram[1], sm.radix);
      count_all<2, kThreads>(row, open, t, sm.histogram[2]);
      reduce::radix_refine<2, kThreads, 1>(t, sm.histogram[2], sm.radix);
    }
    if (tid == 0) sm.heads[head / kCluster] = {t.key, t.left, 0, 0};
  }
  // Of the layer: what sure tokens leave. A share of all is below 2^31, for a prompt's open tokens of all heads are counted in 32 bits.
  const int left = args.kv_heads * (open.need - sure);
  reduce::Threshold t = reduce::radix_begin(left);
  clear_histograms(sm);
  if (left > 0) {
    count_rest<0, kThreads, kCluster>(args, values, rank, open, t, sm);
    reduce::radix_refine<0, kThreads, kCluster>(t, sm.histogram[0], sm.radix);
    count_rest<1, kThreads, kCluster>(args, values, rank, open, t, sm);
    reduce::radix_refine<1, kThreads, kCluster>(t, sm.histogram[1], sm.radix);
    count_rest<2, kThreads, kCluster>(args, values, rank, open, t, sm);
    reduce::radix_refine<2, kThreads, kCluster>(t, sm.histogram[2], sm.radix);
  } else {
    t.key = 0xffffffffu;
  }
  for (int head = rank; head < args.kv_heads; head += kCluster) {
    HeadState& own = sm.heads[head / kCluster];
    int above = 0, equal = 0;
    each_key<kThreads>(values + head * args.value_head_stride, open, [&](uint32_t key) {
      above += key <= own.key && key > t.key;
      equal += key <= own.key && key == t.key;
    });
    above = reduce::warp_sum(above);
    equal = reduce::warp_sum(equal);
    if (tid % 32 == 0) {
      if (above) atomicAdd(&own.above, above);
      if (equal) atomicAdd(&own.equal, equal);
    }
  }
  ptx::cluster_sync<kCluster>();
  if (rank == 0 && tid == 0) {
    int ties = t.left;
    for (int head = 0; head < args.kv_heads; ++head) {
      HeadState h;
      if constexpr (kCluster == 1) {
        h = sm.heads[head];
      } else {
        const uint32_t at = ptx::map_to_rank(ptx::shared_address(&sm.heads[head / kCluster]), head % kCluster);
        const uint2 lower = ptx::load_cluster(at), upper = ptx::load_cluster(at + 8);
        h = {lower.x, static_cast<int>(lower.y), static_cast<int>(upper.x), static_cast<int>(upper.y)};
      }
      if (h.key > t.key) h.above -= h.ties;
      if (h.key == t.key) h.equal -= h.ties;
      const int tied = min(h.equal, ties);
      ties -= tied;
      budgets[head] = n - open.end + open.sinks + sure + h.above + tied;
    }
  }
  ptx::cluster_sync<kCluster>();  // no block leaves while rank 0 reads its shared memory
}

}  // namespace kvloom
