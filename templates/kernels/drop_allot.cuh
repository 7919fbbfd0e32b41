// drop_allot: how many tokens each head of a layer keeps under adaptive budgets (Ada-KV with a safeguard): a head's own best
// `sure` = floor(floor * free) tokens are sure, the rest of the layer's tokens goes to the best of all heads, ties to the lower head. A
// layer keeps exactly as many tokens as under a uniform budget.
//
// With C_h(x), the head's tokens of a key of at least x, head h keeps max(sure, C_h(x)) tokens of such keys, so that the layer's
// threshold is the largest x at which these add up to the layer's budget: no head needs a threshold of its own. All blocks of a request
// count the keys of an interval in BINS equal parts, add their counts in L2, meet, and each finds the part in which the threshold lies,
// until a part is one key. A sample says where to begin; where it misleads, the next interval is all that lies below, or above. Counts are integers, so
// results repeat. What a head keeps is then its best `budget` tokens: drop_select needs the number alone.
#pragma once

#include "kvloom/drop/budget.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/grid.cuh"
#include "kvloom/reduce/block_scan.cuh"

namespace kvloom {

namespace drop {

constexpr int kMaxHeads = 512;       // of a layer
constexpr int kAllotHeader = 64;     // words: of the launch, tickets and who left; of a request, arrivals
constexpr int kAllotTables = 3;      // of counts: one is added to while another is read and a third is cleared
constexpr int kAllotGroups = 4, kAllotEach = 4 * kAllotGroups;  // keys that a thread holds: groups of four neighbours
constexpr uint32_t kClosed = 0xffffffffu;  // no value's key: of tokens that do not compete

__host__ __device__ constexpr int bits_of(int n) { return n <= 1 ? 0 : 1 + bits_of(n / 2); }

template <int BINS, int kThreads>
struct AllotShared {
  alignas(16) uint32_t counts[BINS];  // of the block's tokens of a head
  int total[BINS + 1];                // what the layer keeps of keys of at least a part's lowest
  int above[kMaxHeads];               // a head's keys above the interval
  int2 kept[kMaxHeads];               // what a head keeps above the threshold, and with all that equal it
  uint2 samples_of_warps[kThreads / 32];
  int totals[kThreads / 32];
  int found, ticket, last;
};

// One part of a head's tokens. A thread's keys lie in four groups, so that eight loads of a warp are whole lines.
template <int kThreads>
struct Slice {
  const float* row;
  int begin, end;  // begin is a multiple of four, and may lie below the tokens that compete
  int sinks;
  bool by_four;

  __device__ __forceinline__ int chunks() const { return (end - begin + kAllotEach * kThreads - 1) / (kAllotEach * kThreads); }
  __device__ __forceinline__ void load(int chunk, uint32_t (&key)[kAllotEach]) const {
    const int first = begin + chunk * kAllotEach * kThreads + 4 * static_cast<int>(threadIdx.x);
    float v[kAllotEach];
#pragma unroll
    for (int g = 0; g < kAllotGroups; ++g) {
      const int token = first + 4 * g * kThreads;
      if (by_four && token + 4 <= end) {
        const float4 x = *reinterpret_cast<const float4*>(row + token);
        v[4 * g] = x.x, v[4 * g + 1] = x.y, v[4 * g + 2] = x.z, v[4 * g + 3] = x.w;
      } else {
#pragma unroll
        for (int j = 0; j < 4; ++j) v[4 * g + j] = token + j < end ? row[token + j] : 0.0f;
      }
    }
#pragma unroll
    for (int i = 0; i < kAllotEach; ++i) {
      const int token = first + i / 4 * 4 * kThreads + i % 4;
      key[i] = token >= sinks && token < end ? key_of(v[i]) : kClosed;
    }
  }
};

// A lane has four neighbouring parts of every 128: the i-th of its parts, and where a part's sum lies so that lanes meet every bank once.
__device__ __forceinline__ int part_of(int lane, int i) { return i / 4 * 128 + 4 * lane + i % 4; }
__device__ __forceinline__ int place_of(int part) { return part & ~127 | (part & 3) << 5 | part >> 2 & 31; }

// A head's counts, summed from the top: c[i] is its keys of at least the lowest of part_of(lane, i). By one warp.
template <int kOfLane>
__device__ __forceinline__ void sum_from_top(const uint32_t* counts, int above, int (&c)[kOfLane]) {
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < kOfLane; i += 4) {
    const uint4 x = __ldcg(reinterpret_cast<const uint4*>(counts + part_of(lane, i)));
    c[i + 3] = x.w;
    c[i + 2] = x.z + c[i + 3];
    c[i + 1] = x.y + c[i + 2];
    c[i] = x.x + c[i + 1];
  }
#pragma unroll
  for (int i = kOfLane - 4; i >= 0; i -= 4) {
    const int below = reduce::warp_exclusive_scan(c[i]);  // of lower lanes
    const int all = __shfl_sync(reduce::kFullWarp, below + c[i], 31), higher = above + all - below - c[i];
#pragma unroll
    for (int j = 0; j < 4; ++j) c[i + j] += higher;
    above += all;
  }
}

}  // namespace drop

template <int BINS, int kThreads, bool kDependent>
__device__ __forceinline__ void drop_allot(const DropAllotArgs& args) {
  using namespace drop;
  static_assert(kThreads % 32 == 0 && kThreads >= 256 && kThreads <= 1024, "a block is 8 to 32 warps");
  static_assert(BINS % 128 == 0 && (BINS & (BINS - 1)) == 0, "a lane reads four counts at once, and a shift finds a key's part");
  constexpr int kBits = bits_of(BINS), kWarps = kThreads / 32, kOfLane = BINS / 32;
  __shared__ AllotShared<BINS, kThreads> sm;
  if constexpr (kDependent) {
    ptx::launch_dependents();  // by then every block has its SM
    ptx::wait_for_dependencies();
  }
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  // There are as many blocks a request as the GPU has SMs. Those of several requests take the requests in order, as they start: so those
  // of one request always meet.
  uint32_t* const tickets = args.workspace;
  int request = 0, rank = blockIdx.x;
  if (gridDim.y > 1) {
    if (tid == 0) sm.ticket = static_cast<int>(atomicAdd(tickets, 1u));
    __syncthreads();
    request = sm.ticket / gridDim.x;
    rank = sm.ticket % gridDim.x;
  }
  const auto leave = [&] {  // by one thread, after all that the block does
    if (gridDim.y > 1 && ptx::arrive_grid(tickets + 1) == gridDim.x * gridDim.y - 1) tickets[0] = tickets[1] = 0;
  };
  const int heads = args.kv_heads, n = min(max(args.seq_lens[request], 0), args.max_tokens);
  const int keep = uniform_budget(args.budget, n);
  const Open open(args.budget, n, keep);
  const int competing = open.end - open.sinks;
  const int sure = static_cast<int>(floor(__dmul_rn(__dmul_rn(args.budget.floor, static_cast<double>(open.need)), 1.0 + 1e-12)));
  int32_t* const budgets = args.budgets + static_cast<int64_t>(request) * heads;
  // As many blocks as have 4 tokens a thread, and whole slices of heads where there are enough of them.
  const int useful = static_cast<int>(min(static_cast<int64_t>(gridDim.x), (static_cast<int64_t>(heads) * competing + 4 * kThreads - 1) / (4 * kThreads)));
  const int slices = max(useful / heads, 1), blocks = max(min(useful, slices * heads), 1);
  const bool divides = open.need > 0 && open.need < competing && sure < open.need;
  if (rank >= blocks || !divides) {  // nothing to do, or nothing to divide
    if (rank == 0)
      for (int head = tid; head < heads; head += kThreads) budgets[head] = keep;
    __syncthreads();
    if (tid == 0) leave();
    return;
  }
  uint32_t* const arrivals = args.workspace + kAllotHeader + request * (kAllotHeader + static_cast<int64_t>(kAllotTables) * heads * BINS);
  uint32_t* const tables = arrivals + kAllotHeader;  // [table][head][part]
  const float* const values = args.values + request * args.value_batch_stride;
  const int total = heads * open.need;  // tokens of a layer are counted in 32 bits

  const int width = ((open.end + slices - 1) / slices + 127) / 128 * 128;  // whole lines
  const auto slice = [&](int item) {
    const float* const row = values + (item / slices) * args.value_head_stride;
    const int begin = min(item % slices * width, open.end);
    return Slice<kThreads>{row, begin, min(begin + width, open.end), open.sinks, reinterpret_cast<uint64_t>(row) % 16 == 0};
  };
  const bool holds = blocks == slices * heads && width <= kAllotEach * kThreads;
  uint32_t key[kAllotEach];
  if (holds) slice(rank).load(0, key);  // on its way meanwhile

  // The threshold lies in [from, from + last]. First by a sample of all heads, the same in every block: from what nearly always is below
  // the threshold to an octave above the largest; the last part has all that is above.
  uint32_t from, last;
  {
    const int each = max(kThreads / heads, 1), index = tid % min(each * heads, kThreads);  // samples of a head
    const float* const row = values + (index / each) * args.value_head_stride;
    const int at = (open.sinks + static_cast<int>(static_cast<int64_t>(competing) * (index % each) / each)) / 4 * 4;
    uint32_t best;
    if (reinterpret_cast<uint64_t>(row) % 16 == 0 && at >= open.sinks && at + 4 <= open.end) {
      const float4 v = *reinterpret_cast<const float4*>(row + at);
      best = max(max(key_of(v.x), key_of(v.y)), max(key_of(v.z), key_of(v.w)));
    } else {
      best = key_of(row[max(at, open.sinks)]);
    }
    const uint32_t largest = __reduce_max_sync(reduce::kFullWarp, best);
    if (open.need <= competing / 4) best = max(best, __shfl_xor_sync(reduce::kFullWarp, best, 1));
    if (open.need <= competing / 10) best = max(best, __shfl_xor_sync(reduce::kFullWarp, best, 2));
    const uint32_t least = __reduce_min_sync(reduce::kFullWarp, open.need <= competing / 2 ? best : 0u);
    if (lane == 0) sm.samples_of_warps[warp] = make_uint2(least, largest);
    for (int head = tid; head < heads; head += kThreads) sm.above[head] = 0;
    __syncthreads();
    const uint2 e = lane < kWarps ? sm.samples_of_warps[lane] : make_uint2(kClosed, 0);
    from = __reduce_min_sync(reduce::kFullWarp, e.x);
    last = max(min(__reduce_max_sync(reduce::kFullWarp, e.y), kClosed - 1 - (1u << 23)) + (1u << 23), from) - from;
  }

  int round = 0, kept_above = 0;  // by the layer, of keys above the part
  for (;; ++round) {
    const int shift = max(32 - __clz(last) - kBits, 0);
    uint32_t* const table = tables + round % kAllotTables * heads * BINS;
    for (int item = rank; item < slices * heads; item += blocks) {
      for (int i = tid; i < BINS; i += kThreads) sm.counts[i] = 0;
      __syncthreads();
      const Slice<kThreads> part = slice(item);
      for (int chunk = 0; chunk < part.chunks(); ++chunk) {
        if (!holds) part.load(chunk, key);
#pragma unroll
        for (int i = 0; i < kAllotEach; ++i) {
          const uint32_t offset = key[i] - from;
          if (round == 0 ? offset < kClosed - from : offset <= last) atomicAdd(sm.counts + min(offset >> shift, BINS - 1u), 1u);
        }
      }
      __syncthreads();
      for (int i = tid; i < BINS; i += kThreads)
        if (sm.counts[i]) atomicAdd(table + item / slices * BINS + i, sm.counts[i]);
      __syncthreads();
    }
    for (int i = tid; i <= BINS; i += kThreads) sm.total[i] = 0;
    if (tid == 0) {
      sm.found = -1;
      ptx::arrive_grid(arrivals);
      ptx::wait_grid(arrivals, static_cast<uint32_t>((round + 1) * blocks));
    }
    __syncthreads();
    if (round > 0) {  // everybody has read the table before this one
      uint4* const old = reinterpret_cast<uint4*>(tables + (round - 1) % kAllotTables * heads * BINS);
      for (int i = rank * kThreads + tid; i < heads * BINS / 4; i += blocks * kThreads) old[i] = make_uint4(0, 0, 0, 0);
    }
    int c[kOfLane];
    for (int head = warp; head < heads; head += kWarps) {
      sum_from_top(table + head * BINS, sm.above[head], c);
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) atomicAdd(sm.total + place_of(part_of(lane, i)), max(c[i], sure));
      if (lane == 0) atomicAdd(sm.total + BINS, max(sm.above[head], sure));
    }
    __syncthreads();
    const auto total_of = [&](int part) { return sm.total[part < BINS ? place_of(part) : BINS]; };
    for (int i = tid; i < BINS; i += kThreads)
      if (total_of(i) >= total && total_of(i + 1) < total) sm.found = i;
    __syncthreads();
    const int found = sm.found;
    const bool settled = found >= 0 && (total_of(found) == total || (shift == 0 && !(round == 0 && found == BINS - 1)));
    // What heads have above the part, and with it; without one, above what lies below the interval.
    for (int head = warp; head < heads; head += kWarps) {
      const int above = sm.above[head];
      if (heads > kWarps) sum_from_top(table + head * BINS, above, c);
      __syncwarp();
      int in = c[0], over = above;
#pragma unroll
      for (int i = 0; i < kOfLane; ++i) {
        if (part_of(lane, i) == found) in = c[i];
        if (part_of(lane, i) == found + 1) over = c[i];
      }
      in = __shfl_sync(reduce::kFullWarp, in, found >> 2 & 31);
      over = __shfl_sync(reduce::kFullWarp, over, found + 1 >> 2 & 31);
      if (lane == 0) {
        sm.above[head] = over;
        sm.kept[head] = make_int2(max(over, sure), max(in, sure));
      }
    }
    __syncthreads();
    kept_above = total_of(found + 1);
    if (settled) break;
    if (found < 0) {  // only after the sample; something is below, for not all tokens that compete are kept
      last = from - 1;
      from = 0;
      continue;
    }
    const uint32_t offset = static_cast<uint32_t>(found) << shift;
    from += offset;
    last = round == 0 && found == BINS - 1 ? kClosed - 1 - from : min((1u << shift) - 1, last - offset);  // the last part may be shorter
  }

  if (rank == 0) {
    int rest = total - kept_above;  // of those that equal the threshold, or lie in a part that all are kept of
    for (int base = 0; base < heads; base += kThreads) {
      const int head = base + tid;
      const int2 kept = head < heads ? sm.kept[head] : make_int2(0, 0);
      const int tied = kept.y - kept.x, before = reduce::block_exclusive_scan<kThreads>(tied, sm.totals);
      if (head < heads) budgets[head] = n - open.end + open.sinks + kept.x + min(max(rest - before, 0), tied);
      __syncthreads();
      if (tid == kThreads - 1) sm.last = before + tied;
      __syncthreads();
      rest -= sm.last;
    }
  }
  // Who is last leaves the workspace zeroed.
  __syncthreads();
  if (tid == 0) sm.last = ptx::arrive_grid(arrivals) % blocks == static_cast<uint32_t>(blocks) - 1;
  __syncthreads();
  if (sm.last) {
    uint4* const read = reinterpret_cast<uint4*>(tables + round % kAllotTables * heads * BINS);
    for (int i = tid; i < heads * BINS / 4; i += kThreads) read[i] = make_uint4(0, 0, 0, 0);
    if (tid == 0) *arrivals = 0;
  }
  __syncthreads();
  if (tid == 0) leave();
}

}  // namespace kvloom
