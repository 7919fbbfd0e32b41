// page_rerank: the exact log-sum-exp of every candidate page from its keys, for every head of a list; the exact scores take the place of
// the estimates inside the shares, and the best `slots` of the candidates are chosen.
//
// A list's candidates are dealt out to blocks, kPer to each. Each block also sums its part of the pages that are no candidates, whose
// estimates stay in the unit of the shares. The last block of a list to finish merges the units, combines, and selects by radix over
// integer keys, as page_select does. Every sum has a fixed order; nothing has a capacity that candidates could exceed.
//
// Workspace, 32-bit words: a counter a list (left zero); then for each list: masses [blocks][HEADS][2], exact scores [HEADS][candidate
// slots], keys [candidate slots].
#pragma once

#include "kernels/page_score_exact.cuh"
#include "kernels/page_select.cuh"
#include "kvloom/groups.cuh"

namespace kvloom {

namespace rerank {

using reduce::Combine;
using reduce::Mass;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / 32;
constexpr int kWindow = 4096;  // pages whose candidates are marked at once

// What the shapes share: S is RowShape with the list's heads as its group.
struct List {
  int request, list, kv_head;
  int length;    // tokens of the request
  int pages;     // of the request
  int complete;  // of them full
  int count;     // candidates
  int proposed;  // groups of pages that they are; count, where each page has a summary of its own
  const int32_t* candidates;  // [proposed] ascending groups
  const float* scores;        // [head][group] estimates, row stride below
  int64_t head_stride;
  float* masses;   // [blocks][HEADS][2]
  float* exact;    // [HEADS][slots of candidates]
  uint32_t* keys;  // [slots of candidates]
  int width;       // slots of candidates
};

// The i-th candidate.
template <class Group>
__device__ __forceinline__ int page_of(const List& l, int i) {
  if constexpr (Group::kPages == 1) return l.candidates[i];
  return l.candidates[i / Group::kPages] * Group::kPages + i % Group::kPages;
}

// Pages of so many ascending groups: of a request's last one, those that there are. That one is proposed where its pages are always kept.
template <class Group>
__device__ __forceinline__ int pages_of(const int32_t* groups, int proposed, int pages, int recent) {
  const int all = Group::of_pages(pages), missing = all * Group::kPages - pages;
  if (Group::kPages == 1 || proposed == 0 || missing == 0) return proposed * Group::kPages;
  return proposed * Group::kPages - (recent > 0 || groups[proposed - 1] == all - 1 ? missing : 0);
}

// Exact scores of candidates first to end - 1, by all warps of the block. A page that is still filling, or that has no block, keeps what
// page_score wrote, which is exact; not where scores are of groups.
template <class S, class Group>
__device__ __forceinline__ void score_candidates(const PageScoreArgs& args, const List& l, int first, int end) {
  using Step = ExactStep<S>;
  constexpr int kKept = S::kPage == 4 ? 2 : 1;
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll 1
  for (int pass = 0; pass < S::kPasses; pass++) {
    RowQuery<S::kHeadDim, S::kTiles> query;
    load_rows<S>(args, l.request, l.list, pass, query);
#pragma unroll 1
    for (int at = first + threadIdx.x / 32 * Step::kTilePages; at < end; at += kWarps * Step::kTilePages) {
      const bool mine = lane < Step::kTilePages && at + lane < end;
      const int page = mine ? page_of<Group>(l, at + lane) : 0;
      const int block = mine && page < (Group::kPages == 1 ? l.complete : l.pages) ? __ldg(args.cache.block_table + l.request * args.cache.table_stride + page) : -1;
      const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0);
      LogSum2 total[S::kTiles][2];
      float kept[S::kTiles][2][2];
      Step step[2];
      step[0].load(args, block, l.kv_head, 0);
#pragma unroll
      for (int s = 0; s < Step::kSteps; s++) {
        if (s + 1 < Step::kSteps) step[(s + 1) % 2].load(args, block, l.kv_head, s + 1);
        float x[S::kTiles][2][2];
        step_logits<S>(args, step[s % 2], query, x);
        if constexpr (Group::kPages > 1) {  // the page that is still filling too
#pragma unroll
          for (int i = 0; i < 2; i++) {
            const int token = s * 16 + g + 8 * i, of = __shfl_sync(0xffffffffu, page, token / S::kPage);
            const bool live = of * S::kPage + token % S::kPage < l.length;
#pragma unroll
            for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
              for (int h = 0; h < 2; h++) x[tile][i][h] = live ? x[tile][i][h] : -1e30f;
          }
        }
        sum_step<S>(x, s, total, kept);
      }
#pragma unroll
      for (int k = 0; k < kKept; k++) {
        const int n = g + 8 * k;
        const int of = __shfl_sync(0xffffffffu, page, n % 32);
        if (n >= Step::kTilePages || at + n >= end) continue;
#pragma unroll
        for (int tile = 0; tile < S::kTiles; tile++)
#pragma unroll
          for (int h = 0; h < 2; h++) {
            const int head = pass * S::kUnitHeads + tile * 8 + 2 * p + h;
            if (head < S::kGroup)
              l.exact[head * static_cast<int64_t>(l.width) + at + n] =
                  mapped >> n & 1 ? kept[tile][k][h] : Group::kPages == 1 ? l.scores[head * l.head_stride + of] : minus_infinity();
          }
      }
    }
  }
}

// The first index whose candidate is at least `page`.
template <class Group>
__device__ __forceinline__ int lower_bound(const List& l, int page) {
  int low = 0, high = l.count;
  while (low < high) {
    const int middle = (low + high) / 2;
    if (page_of<Group>(l, middle) < page)
      low = middle + 1;
    else
      high = middle;
  }
  return low;
}

// Marks the candidates among groups window to upto - 1; all threads, between two barriers.
__device__ __forceinline__ void mark(const List& l, int window, int upto, uint32_t (&marks)[kWindow / 32]) {
  for (int i = threadIdx.x; i < l.proposed; i += kThreads) {
    const int page = l.candidates[i];
    if (page >= window && page < upto) atomicOr(&marks[(page - window) / 32], 1u << (page - window) % 32);
  }
}

// Adds the mass b to a.
__device__ __forceinline__ void add_mass(Mass& a, const Mass& b) {
  const float peak = fmaxf(a.peak, b.peak);
  a.sum = (a.sum > 0.0f ? a.sum * reduce::exp_difference(a.peak, peak) : 0.0f) +
          (b.sum > 0.0f ? b.sum * reduce::exp_difference(b.peak, peak) : 0.0f);
  a.peak = peak;
}

// Peaks and masses of the estimates of unmarked pages window to upto - 1, by the warps from `from`, each its part.
template <int HEADS>
__device__ __forceinline__ void measure_others(const List& l, int window, int upto, int from, const uint32_t (&marks)[kWindow / 32],
                                               Mass (&of_warps)[HEADS][kWarps]) {
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  if (warp < from) return;
  const int each = ((upto - window + kWarps - from - 1) / (kWarps - from) + 31) / 32 * 32;
  const int begin = min(window + (warp - from) * each, upto), end = min(begin + each, upto);
#pragma unroll 1
  for (int h = 0; h < HEADS; h++) {
    const float* row = l.scores + h * l.head_stride;
    Mass m{-reduce::kInfinity, 0.0f};
#pragma unroll 4
    for (int page = begin + lane; page < end; page += 32)
      if (!(marks[(page - window) / 32] >> (page - window) % 32 & 1)) m.peak = fmaxf(m.peak, row[page]);  // fmaxf leaves NaN out
    if (m.peak > -reduce::kInfinity) {
#pragma unroll 4
      for (int page = begin + lane; page < end; page += 32)
        if (!(marks[(page - window) / 32] >> (page - window) % 32 & 1)) m.sum += reduce::exp_difference(row[page], m.peak);
    }
    m = reduce::warp_merge<32>(m);
    if (lane == 0) add_mass(of_warps[h][warp], m);
  }
}

// Scratch of the block that selects.
template <int HEADS>
struct Shared {
  uint32_t marks[kWindow / 32];
  Mass of_warps[HEADS][kWarps];
  float2 heads[HEADS];  // peak, 1 / mass
  uint32_t histogram[256];
  int scan[kWarps];
  int found[3];  // bin, keys above it, keys in it
  int2 counts[kWarps];
  bool last;
};

// The unit of each head: over the candidates' exact scores and what the blocks measured of the others.
template <int HEADS, Combine COMBINE>
__device__ __forceinline__ void unite(const List& l, int blocks, Shared<HEADS>& sm) {
  const int lane = threadIdx.x % 32;
  for (int h = threadIdx.x / 32; h < HEADS; h += kWarps) {
    const float* row = l.exact + h * static_cast<int64_t>(l.width);
    Mass m{-reduce::kInfinity, 0.0f};
    for (int i = lane; i < l.count; i += 32)
      if (COMBINE != Combine::kGroupMass || row[i] < reduce::kInfinity) m.peak = fmaxf(m.peak, row[i]);
    if (m.peak > -reduce::kInfinity)
      for (int i = lane; i < l.count; i += 32) m.sum += reduce::exp_difference(row[i], m.peak);
    if constexpr (reduce::is_share(COMBINE)) {
      for (int i = lane; i < blocks; i += 32) {
        const float* other = l.masses + (static_cast<int64_t>(i) * HEADS + h) * 2;
        add_mass(m, Mass{other[0], other[1]});
      }
    }
    m = reduce::warp_merge<32>(m);
    if (lane == 0) sm.heads[h] = make_float2(m.peak, COMBINE == Combine::kShareAverage ? 1.0f / m.sum : 1.0f);
  }
  __syncthreads();
}

// The key at which the `need` best of the open keys end, and how many keys equal to it are taken. Forced candidates have no key.
template <int HEADS, class Group>
__device__ __forceinline__ void threshold_of(const List& l, int sinks, int recent, int need, Shared<HEADS>& sm, uint32_t& key, int& ties) {
  const int tid = threadIdx.x;
  uint32_t prefix = 0;
#pragma unroll 1
  for (int shift = 24; shift >= 0; shift -= 8) {
    sm.histogram[tid] = 0;
    __syncthreads();
    for (int i = tid; i < l.count; i += kThreads) {
      const int page = page_of<Group>(l, i);
      const uint32_t k = l.keys[i];
      if (page >= sinks && page < recent && (shift == 24 || k >> (shift + 8) == prefix)) atomicAdd(&sm.histogram[k >> shift & 255], 1u);
    }
    __syncthreads();
    const int in = sm.histogram[255 - tid];
    const int above = reduce::block_exclusive_scan<kThreads>(in, sm.scan);
    if (above < need && above + in >= need) sm.found[0] = 255 - tid, sm.found[1] = above;
    __syncthreads();
    prefix = prefix << 8 | static_cast<uint32_t>(sm.found[0]);
    need -= sm.found[1];
    __syncthreads();
  }
  key = prefix;
  ties = need;
}

// Chooses and writes the list, by one block.
template <int HEADS, Combine COMBINE, class Group>
__device__ __forceinline__ void choose(const PageRerankArgs& args, const List& l, int blocks, int32_t* out, Shared<HEADS>& sm) {
  const int tid = threadIdx.x, lane = tid % 32, warp = tid / 32;
  const int sinks = min(args.sink_pages, l.pages), recent = max(l.pages - args.recent_pages, sinks);
  const int forced = lower_bound<Group>(l, sinks) + l.count - lower_bound<Group>(l, recent);
  const int need = max(args.slots - forced, 0);
  uint32_t threshold = 0xffffffffu;
  int ties = 0;
  if (need > 0) {
    unite<HEADS, COMBINE>(l, blocks, sm);
    float top = 0.0f;
    if constexpr (COMBINE == Combine::kGroupMass) top = select::largest_peak(sm.heads);
    const select::Row<HEADS> row{l.exact, l.width, nullptr, 0};
    for (int i = tid; i < l.count; i += kThreads) l.keys[i] = select::key_of<HEADS, COMBINE>(row, sm.heads, top, i, 0);
    __syncthreads();
    threshold_of<HEADS, Group>(l, sinks, recent, need, sm, threshold, ties);
  }
  int above_before = 0, equal_before = 0;
#pragma unroll 1
  for (int base = 0; base < l.count; base += kThreads) {
    const int i = base + tid;
    const bool live = i < l.count;
    const int page = live ? page_of<Group>(l, i) : 0;
    const bool kept = live && (page < sinks || page >= recent);
    const uint32_t key = live && need > 0 ? l.keys[i] : 0u;
    const uint32_t is_above = __ballot_sync(0xffffffffu, kept || (live && key > threshold));
    const uint32_t is_equal = __ballot_sync(0xffffffffu, live && !kept && key == threshold);
    if (lane == 0) sm.counts[warp] = make_int2(__popc(is_above), __popc(is_equal));
    __syncthreads();
    int above = above_before, equal = equal_before;
    for (int w = 0; w < kWarps; w++) {
      if (w < warp) above += sm.counts[w].x, equal += sm.counts[w].y;
      above_before += sm.counts[w].x, equal_before += sm.counts[w].y;
    }
    const uint32_t lower_lanes = (1u << lane) - 1;
    above += __popc(is_above & lower_lanes);
    equal += __popc(is_equal & lower_lanes);
    const bool taken = is_above >> lane & 1 || (is_equal >> lane & 1 && equal < ties);
    const int position = above + min(equal, ties);
    if (taken && position < args.slots) out[position] = page;
    __syncthreads();
  }
}

}  // namespace rerank

// HEADS is the number of query heads of one list: the group, or 1 for per_head. Grid: x blocks of kPer candidates, y lists, z requests. Scores
// and what is proposed are of groups of SUMMARY_PAGES pages.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, int HEADS, reduce::Combine COMBINE, bool SOFTCAP, int kPer, int SUMMARY_PAGES = 1>
__device__ __forceinline__ void page_rerank(const PageRerankArgs& args) {
  using namespace rerank;
  using S = RowShape<T, HEAD_DIM, PAGE, HEADS, SOFTCAP>;
  using Group = Groups<SUMMARY_PAGES>;
  __shared__ Shared<HEADS> sm;
  const int tid = threadIdx.x, lists = gridDim.y, blocks = gridDim.x, width = args.candidate_slots * SUMMARY_PAGES;
  List l;
  l.request = blockIdx.z, l.list = blockIdx.y, l.kv_head = l.list * HEADS / GROUP;
  const int64_t index = static_cast<int64_t>(l.request) * lists + l.list;
  l.length = max(args.cache.seq_lens[l.request], 0);
  l.pages = min(static_cast<int>((static_cast<int64_t>(l.length) + PAGE - 1) / PAGE), args.cache.max_pages);
  l.complete = min(l.length / PAGE, args.cache.max_pages);
  l.proposed = min(args.candidate_counts[index], args.candidate_slots);
  l.candidates = args.candidates + l.request * args.candidates_batch_stride + l.list * args.candidates_list_stride;
  l.count = pages_of<Group>(l.candidates, l.proposed, l.pages, args.recent_pages);
  int32_t* const out = args.pages + l.request * args.pages_batch_stride + l.list * args.pages_list_stride;  // [slots]
  const int chosen = min(args.slots, l.count);
  if (blockIdx.x == 0) {
    if (tid == 0) args.counts[index] = chosen;
    for (int i = chosen + tid; i < args.slots; i += kThreads) out[i] = -1;
  }
  if (l.count <= args.slots) {  // nothing to choose
    if (blockIdx.x == 0)
      for (int i = tid; i < l.count; i += kThreads) out[i] = page_of<Group>(l, i);
    return;
  }
  l.scores = args.scores + l.request * args.score_batch_stride + static_cast<int64_t>(l.list) * HEADS * args.score_head_stride;
  l.head_stride = args.score_head_stride;
  l.width = width;
  const int64_t each = static_cast<int64_t>(blocks) * HEADS * 2 + (HEADS + 1) * static_cast<int64_t>(width);
  uint32_t* const space = args.workspace + static_cast<int64_t>(gridDim.z) * lists + index * each;
  l.masses = reinterpret_cast<float*>(space);
  l.exact = l.masses + static_cast<int64_t>(blocks) * HEADS * 2;
  l.keys = reinterpret_cast<uint32_t*>(l.exact + HEADS * static_cast<int64_t>(width));

  PageScoreArgs score;
  score.cache = args.cache;
  score.q = args.q;
  score.q_batch_stride = args.q_batch_stride, score.q_head_stride = args.q_head_stride;
  score.softmax_scale = args.softmax_scale, score.logit_softcap = args.logit_softcap;
  // Warps that have no candidates measure the other pages meanwhile; where all have some, all measure afterwards.
  constexpr bool kShare = reduce::is_share(COMBINE);
  constexpr int kBusy = (kPer + ExactStep<S>::kTilePages - 1) / ExactStep<S>::kTilePages, kFrom = kBusy < kWarps ? kBusy : 0;
  const int groups = Group::of_pages(l.pages), part = (groups + blocks - 1) / blocks;
  const int begin = min(static_cast<int>(blockIdx.x) * part, groups), end = min(begin + part, groups);
  if constexpr (kShare) {
    for (int i = tid; i < HEADS * kWarps; i += kThreads) sm.of_warps[i / kWarps][i % kWarps] = Mass{-reduce::kInfinity, 0.0f};
    for (int i = tid; i < kWindow / 32; i += kThreads) sm.marks[i] = 0;
    __syncthreads();
    mark(l, begin, min(begin + kWindow, end), sm.marks);
    __syncthreads();
  }
  const int first = blockIdx.x * kPer;
  if (first < l.count && (kFrom == 0 || tid / 32 < kFrom)) score_candidates<S, Group>(score, l, first, min(first + kPer, l.count));
  if constexpr (kShare) {
    for (int window = begin; window < end; window += kWindow) {
      const int upto = min(window + kWindow, end);
      if (window > begin) {  // rows of more than kWindow pages a block
        __syncthreads();
        for (int i = tid; i < kWindow / 32; i += kThreads) sm.marks[i] = 0;
        __syncthreads();
        mark(l, window, upto, sm.marks);
        __syncthreads();
      }
      measure_others<HEADS>(l, window, upto, kFrom, sm.marks, sm.of_warps);
    }
    __syncthreads();
    for (int h = tid; h < HEADS; h += kThreads) {
      Mass all{-reduce::kInfinity, 0.0f};
      for (int w = kFrom; w < kWarps; w++) add_mass(all, sm.of_warps[h][w]);
      float* to = l.masses + (static_cast<int64_t>(blockIdx.x) * HEADS + h) * 2;
      to[0] = all.peak, to[1] = all.sum;
    }
  }
  __threadfence();  // this block's results come before its count
  __syncthreads();
  if (tid == 0) sm.last = atomicAdd(args.workspace + index, 1u) == static_cast<uint32_t>(blocks) - 1;
  __syncthreads();
  if (!sm.last) return;
  __threadfence();  // and those of the others after theirs
  choose<HEADS, COMBINE, Group>(args, l, blocks, out, sm);
  if (tid == 0) args.workspace[index] = 0;
}

}  // namespace kvloom
