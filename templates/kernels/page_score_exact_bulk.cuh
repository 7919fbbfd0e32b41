// page_score by exact_lse with keys that come by bulk copies (sm_90): each warp fills a ring of its own in shared memory, a step of 16
// tokens at a time, as far ahead of its arithmetic as the ring is deep, over the ends of tasks. What registers hold in page_score_exact.cuh
// is a step or two of a warp; a ring holds several, and asks for a page's rows by one copy where they follow each other.
#pragma once

#include "kernels/page_score_exact.cuh"
#include "kvloom/ptx/bulk_copy.cuh"

namespace kvloom {

// What a warp asks for: the steps of its tasks in order, without the pages that are still filling.
template <class S, int STAGES>
struct ExactRing {
  using Step = ExactStep<S>;
  using T = typename S::Element;
  using Tasks = TileTasks<S::kPage, Step::kTilePages>;
  static constexpr int kRowBytes = 2 * S::kHeadDim, kBytes = 16 * kRowBytes;  // of a step
  static constexpr int kRun = S::kPage < 16 ? S::kPage : 16;                 // tokens of a page in a step

  const PageScoreArgs& args;
  uint8_t* ring;   // [STAGES][16][kRowBytes], this warp's
  uint64_t* bars;  // [STAGES]
  Tasks tasks;
  TileTask task{}, then{};
  int block, next_block;  // of the task's pages, one a lane
  bool live, more = true;  // there is a task, and another
  int step = 0, into = 0;
  uint64_t policy = evict_first_policy();

  __device__ __forceinline__ ExactRing(const PageScoreArgs& args, const Tasks& all, uint8_t* ring, uint64_t* bars)
      : args(args), ring(ring), bars(bars), tasks(all) {
    look();
    advance();
  }

  // The task after the next, and its block ids: they are on their way while the next is asked for.
  __device__ __forceinline__ void look() {
    more = more && tasks.next(then);
    next_block = more ? Step::blocks(args, then) : -1;
  }
  __device__ __forceinline__ void advance() {
    do {
      task = then, block = next_block, live = more;
      look();
    } while (live && task.tile * Step::kTilePages >= task.pages);
  }

  // Starts the copies of the next step, where there is one. All lanes of the warp call together, when all have read what the stage held.
  __device__ __forceinline__ void issue() {
    if (!live) return;
    const int lane = threadIdx.x % 32, token = step * 16 + lane % 16;
    const int id = __shfl_sync(0xffffffffu, block, token / S::kPage);
    const uint32_t rows = __popc(__ballot_sync(0xffffffffu, lane < 16 && id >= 0));
    uint8_t* const to = ring + into * kBytes;
    const T* const from = static_cast<const T*>(args.cache.k) + id * args.cache.k_block_stride +
                          token % S::kPage * args.cache.k_token_stride + task.unit / S::kPasses * args.cache.k_head_stride;
    uint64_t* const bar = bars + into;
    if (elect_lane()) mbarrier_expect(bar, rows * kRowBytes);
    __syncwarp();
    const bool dense = args.cache.k_token_stride == S::kHeadDim;
    if (dense && kRun == 16) {
      if (lane == 0 && id >= 0) bulk_copy(to, from, kBytes, bar, policy);
    } else if (lane < 16 && id >= 0 && (!dense || lane % kRun == 0)) {
      bulk_copy(to + lane * kRowBytes, from, (dense ? kRun : 1) * kRowBytes, bar, policy);
    }
    into = into + 1 == STAGES ? 0 : into + 1;
    if (++step == Step::kSteps) step = 0, advance();
  }
};

// Grid: x blocks of WARPS warps, any number. Dynamic shared memory: WARPS * STAGES * 32 * HEAD_DIM bytes.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP, int WARPS, int STAGES>
__device__ __forceinline__ void page_score_exact_bulk(const PageScoreArgs& args) {
  using S = RowShape<T, HEAD_DIM, PAGE, GROUP, SOFTCAP>;
  using Step = ExactStep<S>;
  using Ring = ExactRing<S, STAGES>;
  extern __shared__ __align__(128) uint8_t rings[];  // [WARPS][STAGES][16][HEAD_DIM]
  __shared__ __align__(8) uint64_t bars[WARPS][STAGES];
  const uint32_t units = static_cast<uint32_t>(args.cache.kv_heads) * S::kPasses;
  const WarpShare share(WARPS, units);
  if (blockIdx.x == 0) reduce::leave_no_masses(args.masses, args.cache.kv_heads * S::kGroup, threadIdx.x, blockDim.x);
  if (share.idle()) return;
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  uint64_t* const own = bars[warp];
  if (lane < STAGES) mbarrier_init(own + lane, 1);
  mbarrier_init_fence();
  __syncwarp();
  typename Ring::Tasks tasks(args.cache.seq_lens, args.cache.batch, units, args.cache.max_pages, share.first, share.stride);
  Ring ring(args, tasks, rings + warp * (STAGES * Ring::kBytes), own);
#pragma unroll 1
  for (int i = 0; i < STAGES; i++) ring.issue();
  RowQuery<HEAD_DIM, S::kTiles> query;
  int loaded_request = -1, loaded_unit = -1, stage = 0;
  uint32_t parity = 0;
  TileTask now, then;
  if (!tasks.next(now)) return;
  int block = Step::blocks(args, now);
  for (bool more = true; more; now = then) {
    more = tasks.next(then);
    const int next_block = more ? Step::blocks(args, then) : -1;
    const int kv_head = now.unit / S::kPasses, pass = now.unit % S::kPasses, first = now.tile * Step::kTilePages;
    if (now.request != loaded_request || now.unit != loaded_unit) {
      load_rows<S>(args, now.request, kv_head, pass, query);
      loaded_request = now.request, loaded_unit = now.unit;
    }
    if (first >= now.pages) {
      score_tail<S>(args, now.request, kv_head, pass, now.pages, now.tail);
      block = next_block;
      continue;
    }
    const uint32_t mapped = __ballot_sync(0xffffffffu, block >= 0);
    LogSum2 total[S::kTiles][2];
    float kept[S::kTiles][2][2];
    // Rolled up: other warps fill a step's waits, and the ring's code is there once. Pages of 4 keep scores by the step's number.
#pragma unroll(PAGE == 4 ? Step::kSteps : 1)
    for (int s = 0; s < Step::kSteps; s++) {
      mbarrier_wait(own + stage, parity);
      Step step;
#pragma unroll
      for (int i = 0; i < 2; i++) {
        const int row = g + 8 * i;
        zero_row(step.rows[i]);
        if (mapped >> (s * 16 + row) / PAGE & 1)  // rows begin at the same bank, so that two lanes of eight meet
          load_row<HEAD_DIM>(SharedBytes{ring.ring + stage * Ring::kBytes + row * Ring::kRowBytes}, step.rows[i]);
      }
      __syncwarp();  // every lane has read the stage that the next copies overwrite
      ring.issue();
      stage++;
      if (stage == STAGES) stage = 0, parity ^= 1;
      float x[S::kTiles][2][2];
      step_logits<S>(args, step, query, x);
      sum_step<S>(x, s, total, kept);
    }
    store_kept<S>(args, now, mapped, kept);
    block = next_block;
  }
}

}  // namespace kvloom
