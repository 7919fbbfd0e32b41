// page_summary of the few pages that filled in a decode step: a warp builds two, with a basis that takes a fraction of the time of
// eigenvectors one after the other (linalg/power16.cuh). What page_summary_tridiagonal.cuh does with four pages a warp is made for
// prompts, where other warps hide a chain of some ten thousand cycles. Here nothing hides it.
//
// Everything else is that form's: its memory, of which places 2 and 3 are scratch, its V, its images, its careful way.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_exact.cuh"
#include "kernels/page_summary_quick.cuh"
#include "kvloom/linalg/power16.cuh"

namespace kvloom {

// Build: TridiagonalBuild.
template <class Build, int HEAD_DIM, int RANK, int BITS, class T>
struct FewPages {
  using Key = typename Compute<T>::type;
  using Layout = Record<HEAD_DIM, 16, RANK, BITS>;
  using Exact = ExactPage<HEAD_DIM, RANK, BITS, T>;
  using Power = Power16<RANK, 2>;
  // Scratch of a page is the place of another page's keys. Bases of 16 bits show that flat spectra lose 0.1 % of their energy, some
  // pages 1 %.
  static constexpr bool kFits = Power::kBytes <= PageRows<HEAD_DIM>::kBytes && BITS < 16;

  const Build& build;

  // The Gram matrix of a page's keys, in two chains.
  __device__ __forceinline__ Square16 gram(int page) const {
    Square16 even, odd;
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
      uint32_t r[4];
      load_tile(r, build.keys(page) + PageRows<HEAD_DIM>::tile(build.lane, k));
      Square16& acc = k % 2 ? odd : even;
      if (k < 2) {
        mma_m16n8k16_from_zero(acc.left, r[0], r[1], r[2], r[3], r[0], r[2], Key{});
        mma_m16n8k16_from_zero(acc.right, r[0], r[1], r[2], r[3], r[1], r[3], Key{});
      } else {
        mma_m16n8k16(acc.left, r[0], r[1], r[2], r[3], r[0], r[2], Key{});
        mma_m16n8k16(acc.right, r[0], r[1], r[2], r[3], r[1], r[3], Key{});
      }
    }
#pragma unroll
    for (int i = 0; i < 4; i++) even.left[i] += odd.left[i], even.right[i] += odd.right[i];
    return even;
  }

  // Centres a Gram matrix. Returns its trace before that, and 16 times the centroid's squared length.
  __device__ __forceinline__ float2 centre(Square16& m) const {
    const int p = build.lane % 4;
    float energy = Power::diagonal(m, build.lane), low = m.left[0] + m.left[1] + (m.right[0] + m.right[1]), high = m.left[2] + m.left[3] + (m.right[2] + m.right[3]);
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) {
      energy += __shfl_xor_sync(~0u, energy, mask);
      low += __shfl_xor_sync(~0u, low, mask);
      high += __shfl_xor_sync(~0u, high, mask);
    }
    float total = low + high;
#pragma unroll
    for (int mask = 4; mask < 32; mask *= 2) {
      energy += __shfl_xor_sync(~0u, energy, mask);
      total += __shfl_xor_sync(~0u, total, mask);
    }
    const float centroid = total * (1.f / 16), mean = total * (1.f / 256);
    low *= 1.f / 16, high *= 1.f / 16;
#pragma unroll
    for (int i = 0; i < 2; i++) {  // columns 2 p + i are row sums of lanes 4 (2 p + i)
      const float left = __shfl_sync(~0u, low, 8 * p + 4 * i) - mean, right = __shfl_sync(~0u, high, 8 * p + 4 * i) - mean;
      m.left[i] -= low + left, m.left[2 + i] -= high + left;
      m.right[i] -= low + right, m.right[2 + i] -= high + right;
    }
    return make_float2(energy, centroid);
  }

  // From keys to vectors and singular values in shared memory, and C to the records. Returns the pages that took the careful way, at
  // bits 0 and 8.
  __device__ __forceinline__ uint32_t decompose(uint8_t* summaries) const {
    Power power;
    power.lane = build.lane;
    Square16 m[2];
    float trace[2], root[2] = {1.f, 1.f}, up[2] = {build.key_scale, build.key_scale};
    uint32_t careful = 0;
#pragma unroll
    for (int q = 0; q < 2; q++) m[q] = gram(q);
#pragma unroll
    for (int q = 0; q < 2; q++) {
      const float2 e = centre(m[q]);
      const bool wanted = build.records()[q] >= 0;
      trace[q] = wanted ? e.x - e.y : 0.f;
      if (wanted && !Build::plain(e.x, e.y)) careful |= 1u << 8 * q;
      power.work[q] = build.gram(q);
      power.kept[q] = reinterpret_cast<float*>(build.keys(2 + q));
    }
    if (__builtin_expect(careful != 0, 0)) {
#pragma unroll 1
      for (int p = 0; p < 2; p++) {
        if ((careful >> 8 * p & 1) == 0) continue;
        const Exact exact{build.keys(p), opaque(build.lane), build.key_scale};
        const PageScale scale = exact.power();
        const float r = exact.gram(build.gram(p), scale);
        (p == 0 ? root[0] : root[1]) = r;
        (p == 0 ? up[0] : up[1]) = scale.up;
      }
      __syncwarp();
#pragma unroll
      for (int q = 0; q < 2; q++) {
        if ((careful >> 8 * q & 1) == 0) continue;
        const float inverse = 1.f / root[q];  // a power of two
        m[q] = power.load(build.gram(q), inverse * inverse);
        const float2 e = centre(m[q]);
        trace[q] = e.x - e.y;
      }
      __syncwarp();
    }
    power.run(m, trace);
    __syncwarp();
#pragma unroll
    for (int q = 0; q < 2; q++) leave(power, q, root[q], up[q], summaries);
    __syncwarp();
    return careful;
  }

  // u and sigma of a page to shared memory, C to its record.
  __device__ __forceinline__ void leave(Power& power, int q, float root, float up, uint8_t* summaries) const {
    constexpr int kPad = Layout::kRankPad;
    const int t = build.lane % 16;
    // What the powers' rounding left of the vector of ones would take the centroid into V. Where u is rounded to bf16 alone, V's mma
    // sees to it.
    if constexpr (Build::kTwice) {
#pragma unroll
      for (int j = 0; j < RANK; j++) {
        float sum = power.x[q][j];
#pragma unroll
        for (int mask = 1; mask < 16; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
        power.x[q][j] -= sum * (1.f / 16);
      }
    }
    float over[RANK];
#pragma unroll
    for (int j = 0; j < RANK; j++) over[j] = power.energy[q][j] > 0.f ? rsqrt_approx(power.energy[q][j]) : 0.f;
    if (build.lane < 16) {
      float* u = build.vectors(q);
#pragma unroll
      for (int j = 0; j < Build::kRows; j++) {
        const int own = j < RANK ? j : 0;
        const bool kept = j < RANK && over[own] > 0.f;
        u[vector_place(j, t)] = kept ? power.x[q][own] : 0.f;
        if (t == 0) build.sigma(q)[j] = kept ? power.energy[q][own] * over[own] * root : 0.f;
      }
      return;
    }
    float c[kPad], top = 0.f;
#pragma unroll
    for (int j = 0; j < kPad; j++) {
      const int own = j < RANK ? j : 0;
      c[j] = j < RANK ? power.x[q][own] * (over[own] * root) : 0.f;
      top = fmaxf(top, fabsf(c[j]));
    }
    const KeyScale key = quick_key_scale<T>(top, up);
    uint32_t code[kPad];
#pragma unroll
    for (int j = 0; j < kPad; j++) code[j] = round_bits(c[j], key.scale.inverse, 0);
    const int64_t record = build.records()[q];
    if (record < 0) return;
    uint8_t* out = summaries + record;
    if constexpr (kPad == 1) out[Layout::kC + t] = static_cast<uint8_t>(code[0]);
    else Build::template store_bytes<kPad>(out + Layout::kC + t * kPad, code);
    reinterpret_cast<uint16_t*>(out + Layout::kTokenScales)[t] = bf16_bits(key.scale.value > 0.f ? key.stored : 0.f);
  }

  // Where the two items of a batch lie, one in each of lanes 0 and 1, nothing in the others. Known before the request's range is.
  struct Place {
    int item, page;  // of the request's new ones
  };
  __device__ __forceinline__ Place place(const PageSummaryArgs& args, int batch) const {
    const int item = batch * 2 + min(build.lane, 1), page = item / args.cache.kv_heads, head = item - page * args.cache.kv_heads;
    if (build.lane < 2) {
      build.next_keys()[build.lane] = head * args.cache.k_head_stride;
      build.next_records()[build.lane] = head * args.summary_head_stride;
    }
    return {build.lane < 2 ? item : 1 << 30, page};
  }

  __device__ __forceinline__ void start(const PageSummaryArgs& args, int request, BuildRange range, Place at, bool aligned) const {
    build.note(args, at.item < range.items ? build.key_block(args, request * args.cache.table_stride + range.first + at.page) : -1);
    if (build.lane < 4) build.records()[build.lane] = build.next_records()[build.lane];
#pragma unroll
    for (int page = 0; page < 2; page++) build.fetch(args.cache, page, aligned);
    ptx::commit_copies();
  }

  __device__ __forceinline__ void finish(const PageSummaryArgs& args, bool aligned) const {
    ptx::wait_copies<0>();
    __syncwarp();
    const uint32_t careful = decompose(args.summaries);
    if (__builtin_expect(careful != 0, 0)) build.careful_bases(args.summaries, careful);
#pragma unroll
    for (int s = 0; s < 2 / Build::kStepPages; s++) build.basis(args, s, false, aligned, careful, build.key_scale);
    __syncwarp();
  }

  // The whole launch, of blocks of kNumWarps warps. Any grid is right.
  template <int kNumWarps>
  static __device__ __forceinline__ void run(const PageSummaryArgs& args, uint8_t* shared) {
    const int thread = opaque(threadIdx.x);
    Build build{shared + thread / 32 * Build::kWarpBytes, nullptr, thread % 32};
    build.key_scale = cache_scale<T>(args.cache.k_scale);
    const FewPages few{build};
    const bool aligned = Build::aligned(args.cache);
    constexpr unsigned kMost = (1u << 29) / kNumWarps;
    const int own = static_cast<int>(min(blockIdx.x, kMost)) * kNumWarps + thread / 32, step = static_cast<int>(min(gridDim.x, kMost)) * kNumWarps;
    const bool early = gridDim.y >= args.cache.batch;  // as page_summary_tridiagonal
#pragma unroll 1
    for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
      int batch = own;
      const Place first = few.place(args, batch);
      const BuildRange range = build_range<16>(args, request);
      if (2 * batch < range.items) few.start(args, request, range, first, aligned);
      if (early) finish_build<16>(args);  // there is one request
#pragma unroll 1
      while (2 * batch < range.items) {
        const int again = opaque(thread);  // nothing is worked out before a loop that goes round once
        build.shared = shared + again / 32 * Build::kWarpBytes, build.lane = again % 32;
        few.finish(args, aligned);
        batch += step;
        if (2 * batch < range.items) few.start(args, request, range, few.place(args, batch), aligned);
      }
    }
    if (!early || blockIdx.y >= args.cache.batch) finish_build<16>(args);
  }
};

}  // namespace kvloom
