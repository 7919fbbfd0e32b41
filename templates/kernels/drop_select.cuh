// drop_select: the tokens that each head keeps: pinned ones, then the best by value, exactly as many as its budget, ties to the lower
// token, NaN last, in ascending order.
//
// One block, or a cluster of blocks that share the head's tokens, serves a head. A sample of the values says where the threshold may
// lie; rounds of BINS equal parts narrow that interval down to it, or go to what lies below or above where the sample misled. Nothing
// has a capacity that tokens could exceed, and results repeat. A block's keys stay in shared memory; slices that do not fit make them again from the values.
#pragma once

#include "kvloom/drop/budget.cuh"
#include "kvloom/drop/pooling.cuh"
#include "kvloom/ptx/cluster_async.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/reduce/block_scan.cuh"

namespace kvloom {

namespace drop {

constexpr int kGroups = 4, kEach = 4 * kGroups;  // keys that a thread has at once: groups of four neighbours
constexpr uint32_t kPinned = 0xffffffffu;  // no value's key, and above all: of tokens that do not compete

__host__ __device__ constexpr int log2_of(int n) { return n <= 1 ? 0 : 1 + log2_of(n / 2); }

// Where the best keys end, in one round: the bin, and how many keys of it and above it there are, in all and in blocks of lower rank.
// Bin -1: below all bins.
struct Found {
  int bin, above, in, lower_above, lower_in;
};

// gen/plan's dropSelectShared has its size.
template <int BINS, int kThreads, int kCluster>
struct SelectShared {
  static constexpr int kBits = log2_of(BINS), kRounds = 1 + (32 + kBits - 1) / kBits, kWarps = kThreads / 32;
  alignas(8) uint64_t barriers[kRounds];
  alignas(16) uint32_t counts[kRounds][BINS + 4];  // of this block; behind the bins what does not count
  alignas(16) uint32_t of_ranks[kCluster > 1 ? kRounds : 1][kCluster][kCluster > 1 ? BINS : 4];  // of all blocks
  uint2 samples_of_warps[kWarps];              // where the interval begins, the largest key
  int2 scan[BINS / 32];
  Found found;
  int before[kGroups * kWarps + 1];            // of each group and warp: sure tokens, and in the upper half tied ones, of those before
};

}  // namespace drop

// kBufferWords: keys in dynamic shared memory, of kSharedBytes. KIND and WIDTH: how values are pooled on the way; kNone where they are already.
template <int BINS, drop::Pool KIND, int WIDTH, int kThreads, int kCluster, int kBufferWords, int kSharedBytes, bool kDependent>
__device__ __forceinline__ void drop_select(const DropSelectArgs& args) {
  using namespace drop;
  using Memory = SelectShared<BINS, kThreads, kCluster>;
  static_assert(kThreads % 256 == 0 && kThreads <= 1024, "a block is 8 to 32 warps, and its tokens fit 16 bits");
  static_assert(BINS % 32 == 0 && BINS <= kThreads && BINS <= 1024, "a thread sums one bin");
  using Pools = Pooling<KIND, WIDTH>;
  constexpr int kWarps = Memory::kWarps, kRounds = Memory::kRounds, kChunk = kEach * kThreads;
  extern __shared__ __align__(16) uint32_t buffer[];  // [kBufferWords], then what blocks exchange, then values to pool
  Memory& sm = *reinterpret_cast<Memory*>(buffer + kBufferWords);
  constexpr int kMemory = (sizeof(Memory) + 15) / 16 * 16, kStaged = Pools::kHalf > 0 ? 4 * (kChunk + 2 * Pools::kPad) : 0;
  static_assert(4 * kBufferWords + kMemory + kStaged <= kSharedBytes, "the plan gives a block its keys, what blocks exchange, and values to pool");
  float* const staged = reinterpret_cast<float*>(reinterpret_cast<uint8_t*>(&sm) + kMemory);  // [kChunk + 2 kPad]
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32, rank = ptx::cluster_rank<kCluster>();
  if constexpr (kDependent) ptx::launch_dependents();
  for (int i = tid; i < kRounds * (BINS + 4); i += kThreads) (&sm.counts[0][0])[i] = 0;
  if constexpr (kDependent) ptx::wait_for_dependencies();

  const int kv_head = blockIdx.x / kCluster, request = blockIdx.y;
  const int n = min(max(args.seq_lens[request], 0), args.max_tokens);
  int keep = uniform_budget(args.budget, n);
  if (args.budgets) keep = min(n, max(args.budgets[request * args.budget_batch_stride + kv_head], max(args.budget.window, 1)));
  keep = min(keep, args.slots);
  const Open open(args.budget, n, keep);
  int32_t* const out = args.indices + request * args.index_batch_stride + kv_head * args.index_head_stride;  // [slots]
  if (rank == 0 && tid == 0) args.counts[static_cast<int64_t>(request) * args.kv_heads + kv_head] = keep;
#pragma unroll 1
  for (int i = keep + rank * kThreads + tid; i < args.slots; i += kCluster * kThreads) out[i] = -1;
  if (args.values == nullptr || open.need == 0 || keep == n) {  // sinks and the most recent; no block of the cluster goes on
#pragma unroll 1
    for (int i = rank * kThreads + tid; i < keep; i += kCluster * kThreads) out[i] = i < open.sinks ? i : n - keep + i;
    return;
  }

  if constexpr (kCluster > 1) {
    if (tid == 0) {
      for (int i = 0; i < kRounds; ++i) mbarrier_init(&sm.barriers[i], 1);
      mbarrier_init_fence();
    }
    ptx::cluster_arrive<kCluster>();  // awaited before a store into another block: its barriers stand by then
  }
  const int width = ((n + kCluster - 1) / kCluster + 127) / 128 * 128;  // a warp reads 128 tokens at once
  const int begin = min(rank * width, n), stop = min(begin + width, n), chunks = max((stop - begin + kChunk - 1) / kChunk, 1);
  const bool holds = chunks * kChunk <= kBufferWords;
  const float* const row = args.values + request * args.value_batch_stride + kv_head * args.value_head_stride;  // [token]
  const bool aligned = reinterpret_cast<uint64_t>(row) % 16 == 0, by_four = aligned && args.max_tokens % 4 == 0;
  const int limit = min(open.end, stop), reach = min(open.end, stop + Pools::kPad);  // what competes, and its neighbours
  uint32_t key[kEach];
  // Asks for this thread's values of a chunk. All loads first: nothing of one may wait for another. Some of the last group may be behind
  // `limit`, inside the row.
  const auto fetch = [&](int chunk) {
    const int first = begin + chunk * kChunk + 4 * tid;
    if (by_four) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        uint4 v = make_uint4(0, 0, 0, 0);
        if (first + 4 * g * kThreads < reach) v = *reinterpret_cast<const uint4*>(row + first + 4 * g * kThreads);
        key[4 * g] = v.x, key[4 * g + 1] = v.y, key[4 * g + 2] = v.z, key[4 * g + 3] = v.w;
      }
    } else {
#pragma unroll
      for (int i = 0; i < kEach; ++i) {
        const int token = first + i / 4 * 4 * kThreads + i % 4;
        key[i] = token < reach ? __float_as_uint(row[token]) : 0u;
      }
    }
  };
  // Brings them to shared memory with the neighbours that pooling asks for, as NaN where there are none.
  [[maybe_unused]] const auto stage = [&](int chunk) {
    const float kNone = __int_as_float(0x7fffffff);
    const int first = begin + chunk * kChunk;
    __syncthreads();  // nobody reads the chunk before it any more
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int at = 4 * (g * kThreads + tid);
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __uint_as_float(key[4 * g + j]);
      if (first + at + 4 > open.end) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (first + at + j >= open.end) v[j] = kNone;
      }
      *reinterpret_cast<float4*>(staged + Pools::kPad + at) = make_float4(v[0], v[1], v[2], v[3]);
    }
    if (tid < 2 * Pools::kPad) {
      const int at = tid < Pools::kPad ? tid : kChunk + tid, token = first + at - Pools::kPad;
      staged[at] = token >= 0 && token < open.end ? row[token] : kNone;
    }
    __syncthreads();
  };
  // Makes keys of them, and keeps them where there is room.
  const auto convert = [&](int chunk) {
    const int first = begin + chunk * kChunk + 4 * tid;
    uint4* const kept = reinterpret_cast<uint4*>(buffer) + chunk * kGroups * kThreads + tid;
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int token = first + 4 * g * kThreads;
      float v[4];
#pragma unroll
      for (int j = 0; j < 4; ++j) v[j] = __uint_as_float(key[4 * g + j]);
      if constexpr (Pools::kHalf > 0) {
        Pools::four(row, staged + Pools::kPad + 4 * (g * kThreads + tid), token, open.end, v);
      }
#pragma unroll
      for (int j = 0; j < 4; ++j) key[4 * g + j] = key_of(v[j]);
      if (token < open.sinks || token + 4 > limit) {
#pragma unroll
        for (int j = 0; j < 4; ++j)
          if (token + j < open.sinks || token + j >= limit) key[4 * g + j] = kPinned;
      }
      if (holds) kept[g * kThreads] = make_uint4(key[4 * g], key[4 * g + 1], key[4 * g + 2], key[4 * g + 3]);
    }
  };
  // This thread's keys of a chunk in a later pass.
  const auto load = [&](int chunk) {
    if (holds) {
      const uint4* const kept = reinterpret_cast<const uint4*>(buffer) + chunk * kGroups * kThreads + tid;
#pragma unroll
      for (int g = 0; g < kGroups; ++g) {
        const uint4 k = kept[g * kThreads];
        key[4 * g] = k.x, key[4 * g + 1] = k.y, key[4 * g + 2] = k.z, key[4 * g + 3] = k.w;
      }
    } else {
      fetch(chunk);
      if constexpr (Pools::kHalf > 0) stage(chunk);
      convert(chunk);
    }
  };

  int left = open.need, before = min(begin, open.sinks) + max(begin - open.end, 0), tied_before = 0;  // of the blocks of lower rank
  uint32_t threshold = 0;  // keys above it are taken, and the first `left` of those that equal it
  // Writes the chunk's kept tokens behind those before it.
  const auto emit = [&](int chunk) {
    const int first = begin + chunk * kChunk + 4 * tid;
    uint32_t sure = 0, tied = 0;  // a bit a key
#pragma unroll
    for (int i = 0; i < kEach; ++i)
      if (key[i] > threshold) sure |= 1u << i;
    if (left > 0) {
#pragma unroll
      for (int i = 0; i < kEach; ++i)
        if (key[i] == threshold) tied |= 1u << i;
    }
    uint32_t sure_counts = 0, tied_counts = 0;  // a byte a group; a warp has at most 128 of one
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int live = min(max(stop - (first + 4 * g * kThreads), 0), 4);  // what is past the slice has a pinned token's key
      sure &= ~((0xfu << live & 0xfu) << 4 * g);
      sure_counts |= __popc(sure >> 4 * g & 0xfu) << 8 * g;
      tied_counts |= __popc(tied >> 4 * g & 0xfu) << 8 * g;
    }
    const uint32_t sure_below = reduce::warp_exclusive_scan(sure_counts);
    const uint32_t tied_below = left > 0 ? reduce::warp_exclusive_scan(tied_counts) : 0u;
    if (lane == 31) {
#pragma unroll
      for (int g = 0; g < kGroups; ++g)
        sm.before[g * kWarps + warp] = ((sure_below + sure_counts) >> 8 * g & 0xff) | ((tied_below + tied_counts) >> 8 * g & 0xff) << 16;
    }
    __syncthreads();
    if (warp == 0) {
      constexpr int kOfLane = kGroups * kWarps / 32;
      int of_lane[kOfLane], sum = 0;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) sum += of_lane[i] = sm.before[lane * kOfLane + i];
      int at = reduce::warp_exclusive_scan(sum);
      __syncwarp();
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) sm.before[lane * kOfLane + i] = at, at += of_lane[i];
      if (lane == 31) sm.before[kGroups * kWarps] = at;
    }
    __syncthreads();
#pragma unroll
    for (int g = 0; g < kGroups; ++g) {
      const int of_group = sm.before[g * kWarps + warp];
      const int ties = tied_before + static_cast<int>(static_cast<uint32_t>(of_group) >> 16) + (tied_below >> 8 * g & 0xff);
      uint32_t taken = sure >> 4 * g & 0xf, ties_here = tied >> 4 * g & 0xf;
      int32_t* to = out + (before + (of_group & 0xffff) + (sure_below >> 8 * g & 0xff) + min(ties, left));
      for (int room = left - ties; ties_here != 0 && room > 0; --room) {  // the lowest first
        taken |= ties_here & -ties_here;
        ties_here &= ties_here - 1;
      }
#pragma unroll
      for (int j = 0; j < 4; ++j)
        if (taken >> j & 1) *to++ = first + 4 * g * kThreads + j;
    }
    const uint32_t all = sm.before[kGroups * kWarps];
    before += all & 0xffff;
    tied_before += all >> 16;
  };

  // The threshold lies in [from, from + last]; `left` keys of the interval are still to be taken. First by a sample, four neighbours a
  // thread, the same in every block: from what nearly always is below the threshold to an octave above the largest, and beyond.
  uint32_t from, last;
  fetch(0);  // on its way meanwhile
  {
    const int competing = open.end - open.sinks, at = open.sinks + static_cast<int>(static_cast<int64_t>(competing) * tid / kThreads);
    uint32_t best = 0;
    if (by_four && at / 4 * 4 >= open.sinks && at / 4 * 4 + 4 <= open.end) {
      float v[4];
      load_four(row + at / 4 * 4, v);
      best = max(max(key_of(v[0]), key_of(v[1])), max(key_of(v[2]), key_of(v[3])));
    } else {
      best = key_of(row[at]);
    }
    const uint32_t largest = __reduce_max_sync(reduce::kFullWarp, best);
    // The least of the maxima of so many samples that one of them is unlikely to be kept where all samples of a group are not.
    if (open.need <= competing / 4) best = max(best, __shfl_xor_sync(reduce::kFullWarp, best, 1));
    if (open.need <= competing / 10) best = max(best, __shfl_xor_sync(reduce::kFullWarp, best, 2));
    const uint32_t least = __reduce_min_sync(reduce::kFullWarp, open.need <= competing / 2 ? best : 0u);
    if (lane == 0) sm.samples_of_warps[warp] = make_uint2(least, largest);
    __syncthreads();
    const uint2 e = lane < kWarps ? sm.samples_of_warps[lane] : make_uint2(kPinned, 0);
    // Of the widest bin's size: below it, should the sample mislead, bins end where the interval does and hold nothing counted in it.
    from = __reduce_min_sync(reduce::kFullWarp, e.x) & ~((1u << (32 - Memory::kBits)) - 1);
    last = min(__reduce_max_sync(reduce::kFullWarp, e.y), kPinned - 1 - (1u << 23)) + (1u << 23) - from;
  }
  if constexpr (kCluster > 1) ptx::cluster_wait<kCluster>();

  bool settled = false;
  for (int round = 0;; ++round) {
    const int shift = max(32 - __clz(last) - Memory::kBits, 0);
    uint32_t* const counts = sm.counts[min(round, kRounds - 1)];
    for (int chunk = 0; chunk < chunks; ++chunk) {
      if (round > 0) {
        load(chunk);
      } else {
        if (chunk > 0) fetch(chunk);
        if constexpr (Pools::kHalf > 0) stage(chunk);
        convert(chunk);
      }
      if (round == 0) {  // most keys count, the largest in the last bin, and what does not has a place of its own: no branches
#pragma unroll
        for (int i = 0; i < kEach; ++i) {
          const uint32_t offset = key[i] - from;
          atomicAdd(counts + (offset < kPinned - from ? min(offset >> shift, BINS - 1u) : BINS), 1u);
        }
      } else if (!settled) {  // few groups have a key that counts
#pragma unroll
        for (int g = 0; g < kGroups; ++g) {
          const uint32_t* const k = key + 4 * g;
          if (min(min(k[0] - from, k[1] - from), min(k[2] - from, k[3] - from)) <= last) {
#pragma unroll
            for (int j = 0; j < 4; ++j)
              if (k[j] - from <= last) atomicAdd(counts + ((k[j] - from) >> shift), 1u);
          }
        }
      } else {
        emit(chunk);
        if (chunk + 1 < chunks) __syncthreads();
      }
    }
    if (settled) return;
    __syncthreads();
    if constexpr (kCluster > 1) {
      const uint32_t barrier = ptx::shared_address(&sm.barriers[round]);
      if (tid == 0) mbarrier_expect(&sm.barriers[round], kCluster * 4 * BINS);  // others' counts may have landed; all are waited for
      for (int i = tid; i < kCluster * BINS / 4; i += kThreads) {
        const int piece = i % (BINS / 4) * 4, to = i / (BINS / 4);
        ptx::store_async(ptx::map_to_rank(ptx::shared_address(&sm.of_ranks[round][rank][piece]), to),
                         *reinterpret_cast<const uint4*>(counts + piece), ptx::map_to_rank(barrier, to));
      }
      if (tid < BINS) ptx::wait_cluster_barrier(barrier, 0);
    }
    const int bin = BINS - 1 - tid;  // threads go down
    int2 own = make_int2(0, 0);      // keys of the bin, and those of blocks of lower rank
    if (tid < BINS) {
      if constexpr (kCluster > 1) {
#pragma unroll
        for (int r = 0; r < kCluster; ++r) {
          const int count = sm.of_ranks[round][r][bin];
          own.x += count;
          if (r < rank) own.y += count;
        }
      } else {
        own.x = counts[bin];
      }
    }
    int2 above = make_int2(0, 0);
    if (tid < BINS) {
      above = make_int2(reduce::warp_exclusive_scan(own.x), reduce::warp_exclusive_scan(own.y));
      if (lane == 31) sm.scan[warp] = make_int2(above.x + own.x, above.y + own.y);
    }
    __syncthreads();
    if (tid < BINS) {
      const int2 of_warp = lane < warp ? sm.scan[lane] : make_int2(0, 0);
      above.x += __reduce_add_sync(reduce::kFullWarp, of_warp.x);
      above.y += __reduce_add_sync(reduce::kFullWarp, of_warp.y);
      if (above.x < left && above.x + own.x >= left) sm.found = Found{bin, above.x, own.x, above.y, own.y};
      if (bin == 0 && above.x + own.x < left) sm.found = Found{-1, above.x + own.x, 0, above.y + own.y, 0};
    }
    __syncthreads();
    const Found found = sm.found;
    left -= found.above;
    before += found.lower_above;
    if (found.bin < 0) {  // only after the sample; something is below, for as many tokens as are needed compete
      last = from - 1;
      from = 0;
      continue;
    }
    from += static_cast<uint32_t>(found.bin) << shift;
    threshold = from;
    tied_before = found.lower_in;
    if (left == found.in) {  // the whole bin is taken, so that no key is tied; its lowest is not 0, or all tokens would be kept
      threshold = from - 1;
      before += found.lower_in;
      left = tied_before = 0;
    }
    const bool open_ended = round == 0 && found.bin == BINS - 1;
    settled = left == 0 || (shift == 0 && !open_ended);
    last = open_ended ? kPinned - 1 - from : min((1u << shift) - 1, kPinned - 1 - from);  // what is pinned never lies in it
  }
}

}  // namespace kvloom
