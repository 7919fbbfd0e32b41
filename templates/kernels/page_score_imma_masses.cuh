// page_score on int8 tensor cores: what a warp adds up of the scores that it writes, and how a block leaves it for page_select.
#pragma once

#include "kernels/page_score_imma_query.cuh"
#include "kvloom/reduce/masses.cuh"

namespace kvloom {

// Whether this launch leaves masses: where a warp keeps its query heads, and every block has a part.
template <class S>
__device__ __forceinline__ bool leaves_masses(const PageScoreArgs& args) {
  return args.masses != nullptr && args.cache.batch == 1 && args.cache.kv_heads <= S::kHeads && gridDim.x < reduce::kMassParts;
}

// The lanes that hold results of one head: kOf of them, kStep apart.
template <class Query>
struct HeadLanes {
  static constexpr int kStep = 1, kOf = Query::kValues == 1 ? 8 : 4;
};

// Sums of 2^(s log2(e) - shift) over a warp's pages. The shift of a head is its largest score in the first tile that has one, so that no
// maximum is looked for later; a row whose scores rise by 69 nats and more above it overflows, and page_select sums it itself.
template <class S, class Query>
struct ImmaMasses {
  static constexpr int kSets = Query::kValues == 1 ? 1 : Query::kValues / 2;  // heads of a lane
  static constexpr int kStep = HeadLanes<Query>::kStep, kEnd = kStep * HeadLanes<Query>::kOf;
  float shift[kSets], sum[kSets];
  bool begun = false;

  __device__ __forceinline__ ImmaMasses() {
#pragma unroll
    for (int i = 0; i < kSets; i++) shift[i] = 0.f, sum[i] = 0.f;
  }

  // A tile's scores; those that are no pages are -inf.
  __device__ __forceinline__ void add(const float (&score)[Query::kValues], uint32_t mapped) {
    if (!begun) {
      if ((mapped & ((1u << S::kWarpPages) - 1)) == 0) return;
      begun = true;
#pragma unroll
      for (int i = 0; i < kSets; i++) {
        float top = Query::kValues == 1 ? score[0] : fmaxf(score[2 * i], score[(2 * i + 1) % Query::kValues]);
#pragma unroll
        for (int step = kStep; step < kEnd; step *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffffu, top, step));
        shift[i] = top * kLog2E;
      }
    }
#pragma unroll
    for (int i = 0; i < Query::kValues; i++) sum[i / 2] += exp2_approx(fmaf(score[i], kLog2E, -shift[i / 2]));
  }

  // A tile whose scores were made in another way: the row is not summed.
  __device__ __forceinline__ void spoil() {
#pragma unroll
    for (int i = 0; i < kSets; i++) sum[i] = __int_as_float(0x7fffffff);
  }

  // Adds the lanes of each head up. `to(head, part)` takes the heads of the pass.
  template <class Store>
  __device__ __forceinline__ void finish(Store to) {
#pragma unroll
    for (int i = 0; i < kSets; i++) {
      float all = Query::owner() ? sum[i] : 0.f;
#pragma unroll
      for (int step = kStep; step < kEnd; step *= 2) all += __shfl_xor_sync(0xffffffffu, all, step);
      if (Query::owner() && threadIdx.x % kEnd / kStep == 0) to(Query::head(2 * i % Query::kValues), make_float2(shift[i], all));
    }
  }
};

// Leaves the block's part of every query head, from those of the warps that share a head. `parts` is [warps][heads of a pass].
template <class S, class Masses>
__device__ __forceinline__ void write_masses(const PageScoreArgs& args, Masses& masses, float2 (*parts)[S::kPassHeads], int warp) {
  constexpr int kShare = S::kConsumers / S::kUnits;  // warps of a unit
  float2* const rows = reinterpret_cast<float2*>(args.masses) + 1 + blockIdx.x;
  const auto leave = [&](int unit, int head, float2 part) {
    const int kv_head = unit / S::kPasses, of_group = unit % S::kPasses * S::kPassHeads + head;
    if (kv_head < args.cache.kv_heads && head < S::kPassHeads && of_group < S::kGroup)
      rows[(static_cast<int64_t>(kv_head) * S::kGroup + of_group) * reduce::kMassParts] = part;
  };
  const int unit = warp / S::kSplit % S::kUnits;
  if constexpr (kShare == 1) {
    masses.finish([&](int head, float2 part) { leave(unit, head, part); });
  } else {
    masses.finish([&](int head, float2 part) {
      if (head < S::kPassHeads) parts[warp][head] = part;
    });
    asm volatile("bar.sync 1, %0;" ::"n"(32 * S::kConsumers) : "memory");  // of the warps that compute alone
    for (int i = threadIdx.x; i < S::kUnits * S::kPassHeads; i += 32 * S::kConsumers) {
      const int of = i / S::kPassHeads, head = i % S::kPassHeads;
      float2 all = make_float2(minus_infinity(), 0.f);
#pragma unroll
      for (int pass = 0; pass < 2; pass++) {
#pragma unroll
        for (int n = 0; n < kShare; n++) {
          const float2 part = parts[(n / S::kSplit * S::kUnits + of) * S::kSplit + n % S::kSplit][head];
          if (part.y == 0.f) continue;
          if (pass == 0)
            all.x = fmaxf(all.x, part.x);
          else
            all.y += part.y * exp2_approx(part.x - all.x);
        }
      }
      leave(of, head, all.y == 0.f ? make_float2(0.f, 0.f) : all);
    }
  }
}

// Parts that no block writes are empty, and the last page's, still filling, is its score. One warp of each block.
template <class S>
__device__ __forceinline__ void write_other_masses(const PageScoreArgs& args) {
  const int lane = threadIdx.x % 32, rows = args.cache.kv_heads * S::kGroup;
  float2* const masses = reinterpret_cast<float2*>(args.masses);
  for (int part = 1 + blockIdx.x + gridDim.x; part < reduce::kMassParts; part += gridDim.x)
    for (int row = lane; row < rows; row += 32) masses[static_cast<int64_t>(row) * reduce::kMassParts + part] = make_float2(minus_infinity(), 0.f);
}

// The part of the page that is still filling: heads of one kv head, whose scores this warp has just written; page -1: none.
template <class S>
__device__ __forceinline__ void write_tail_mass(const PageScoreArgs& args, int kv_head, int page) {
  __syncwarp();
  for (int head = threadIdx.x % 32; head < S::kGroup; head += 32) {
    const int64_t row = static_cast<int64_t>(kv_head) * S::kGroup + head;
    const float score = page < 0 ? minus_infinity() : args.scores[row * args.score_head_stride + page];
    float2 part = make_float2(score * kLog2E, 1.f);
    if (score == minus_infinity()) part = make_float2(0.f, 0.f);
    if (score != score) part = make_float2(0.f, score);
    reinterpret_cast<float2*>(args.masses)[row * reduce::kMassParts] = part;
  }
}

}  // namespace kvloom
