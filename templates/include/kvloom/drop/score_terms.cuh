// The terms of a token's score from products of a warpgroup: logits S and <a, v> D of a tile's tokens and N rows of the window.
//
// Lane l of a warp has registers 4 j + 2 h + e of S and D: row 8 j + 2 (l%4) + e of the window, token 16 (warp%4) + l/4 + 8 h of a tile.
#pragma once

#include "kvloom/drop/ring.cuh"
#include "kvloom/drop/rule.cuh"
#include "kvloom/ptx/approx.cuh"
#include "kvloom/ptx/exp2.cuh"

namespace kvloom::drop {

template <Rule RULE, int N, bool SOFTCAP, typename A>
struct ScoreTerms {
  static constexpr int kRegisters = N / 2, kColumns = N / 4;
  // Base-2 logits of kDropKV are held this much lower, so that the square of a weight below kSmallestWeight is below 2^-126 and flushed
  // to 0. Sums are to be multiplied by kUnit.
  static constexpr float kDown = RULE == Rule::kDropKV ? 3.0f : 0.0f, kUnit = RULE == Rule::kDropKV ? 64.0f : 1.0f;
  static constexpr float kHalf = -1.0f - kDown;  // of a weight of 1/2
  static_assert(kSmallestWeight == 0x1p-60f, "2^-63 squared is 2^-126");
  const RowStats* stats;  // [row]
  float scale, softcap, eps;

  __device__ __forceinline__ ScoreTerms(const RowStats* stats, float softmax_scale, float softcap, float eps)
      : stats(stats), scale(SOFTCAP ? softmax_scale / softcap : softmax_scale * kLog2E), softcap(softcap * kLog2E), eps(eps) {}

  // The row of register i, of those of its product.
  __device__ __forceinline__ static int column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }
  __device__ __forceinline__ static constexpr int half(int i) { return i / 2 % 2; }

  // What the terms need of a product's rows, by register: from shared memory at each use, or held in registers.
  struct Rows {
    const RowStats* stats;  // of the first row
    __device__ __forceinline__ float lse(int i) const { return fmaf(stats[column(i)].lse, kLog2E, kDown); }
    __device__ __forceinline__ float norm(int i) const { return stats[column(i)].norm; }
    __device__ __forceinline__ float unscale(int i) const { return stats[column(i)].unscale; }
  };
  template <bool kScaled>
  struct HeldRows {
    float lses[kColumns], norms[kColumns], unscales[kScaled ? kColumns : 1];
    __device__ __forceinline__ explicit HeldRows(const Rows& rows) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        const int i = c / 2 * 4 + c % 2;
        lses[c] = rows.lse(i), norms[c] = rows.norm(i);
        if (kScaled) unscales[c] = rows.unscale(i);
      }
    }
    __device__ __forceinline__ float lse(int i) const { return lses[i / 4 * 2 + i % 2]; }
    __device__ __forceinline__ float norm(int i) const { return norms[i / 4 * 2 + i % 2]; }
    __device__ __forceinline__ float unscale(int i) const { return kScaled ? unscales[i / 4 * 2 + i % 2] : -2.0f; }
  };

  // Base-2 logits minus log-sum-exps, kDown lower, in place of products; returns the largest.
  template <class R>
  __device__ __forceinline__ float shift(float (&s)[kRegisters], const R& rows) const {
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      s[i] = SOFTCAP ? fmaf(softcap, tanh_accurate(s[i] * scale), -rows.lse(i)) : fmaf(s[i], scale, -rows.lse(i));
      top = fmaxf(top, s[i]);
    }
    return top;
  }

  // Where every token is seen by every row and no weight is above 1/2: factors of the terms.
  __device__ __forceinline__ void weigh(float (&s)[kRegisters]) const {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float p = exp2_approx(s[i]);
      if constexpr (RULE == Rule::kDropKV) {
        const float weight = p * rcp_approx(fmaf(p, -8.0f, 1.0f + eps));
        s[i] = multiply_flushed(weight, weight);
      } else {
        s[i] = p < kSmallestWeight ? 0.0f : p;
      }
    }
  }
  // The same without a reciprocal, by the first two terms of the series of p / (1 + eps - p): factors of weights below 2^-6 are off by less
  // than 2^-11 of themselves. A token's factors that add up to no more than kSmall tell that its weights are that small.
  static constexpr float kSmall = 0x1p-12f / kUnit;
  __device__ __forceinline__ void weigh_small(const float (&s)[kRegisters], float (&factors)[kRegisters]) const {
    static_assert(RULE == Rule::kDropKV, "other rules have no reciprocal");
    const float first = rcp_approx(1.0f + eps), second = 8.0f * first * first;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float p = exp2_approx(s[i]), weight = p * fmaf(p, second, first);
      factors[i] = multiply_flushed(weight, weight);
    }
  }
  template <class R>
  __device__ __forceinline__ void add(const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2], const R& rows,
                                      float (&sum)[2]) const {
    float total[2] = {};
    add(s, d, v_norm, rows, sum, total);
  }
  // `total`: the sum of the factors alone.
  template <class R>
  __device__ __forceinline__ void add(const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2], const R& rows,
                                      float (&sum)[2], float (&total)[2]) const {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int h = half(i);
      total[h] += s[i];
      if constexpr (RULE == Rule::kDropKV) sum[h] = fmaf(s[i], fmaf(rows.unscale(i), d[i], rows.norm(i)), sum[h]);
    }
#pragma unroll
    for (int h = 0; h < 2; ++h) {
      if constexpr (RULE == Rule::kDropKV) sum[h] = max_nan(fmaf(total[h], v_norm[h], sum[h]), 0.0f);
      if constexpr (RULE == Rule::kValueNorm) sum[h] = fmaf(total[h], v_norm[h], sum[h]);
      if constexpr (RULE == Rule::kSnapKV) sum[h] += total[h];
    }
  }

  // Any tile, from shifted logits: masks, and weights above 1/2, which the whole warp takes one after the other. `direct` gives it their
  // logit less the log-sum-exp, and their distance, from the tensors themselves.
  template <class Direct>
  __device__ __forceinline__ void add_careful(const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2],
                                              int first_row, int token, float (&sum)[2], const Direct& direct) const {
    const int lane = threadIdx.x % 32;
    uint32_t dominant = 0;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int h = half(i);
      const RowStats row = stats[first_row + column(i)];
      const float x = s[i] > -kDown ? 0.0f : s[i] + kDown;  // NaN stays
      float p = exp2_approx(x);
      p = p < kSmallestWeight ? 0.0f : p;
      float term = p;
      if constexpr (RULE == Rule::kValueNorm) term = p * v_norm[h];
      if constexpr (RULE == Rule::kDropKV) {
        const float weight = __fdividef(p, 1.0f - p + eps);
        term = weight * weight * (1.0f / kUnit) * max_nan(fmaf(row.unscale, d[i], row.norm + v_norm[h]), 0.0f);
      }
      const bool visible = token + 8 * h <= row.limit;
      const bool apart = RULE == Rule::kDropKV && visible && p > 0.5f;
      if (apart) dominant |= 1u << i;
      if (visible && !apart) sum[h] += term;
    }
    if constexpr (RULE == Rule::kDropKV) {
      uint32_t asking;
      while ((asking = __ballot_sync(kFullWarp, dominant != 0)) != 0) {
        const int who = __ffs(asking) - 1, i = __shfl_sync(kFullWarp, __ffs(dominant) - 1, who), h = half(i);
        const int row = first_row + i / 4 * 8 + who % 4 * 2 + i % 2, at = __shfl_sync(kFullWarp, token, who) + 8 * h;
        const float found = direct.distance(row, at), least = output_epsilon<A>() * output_epsilon<A>() * stats[row].norm;
        float x = direct.logit(row, at);
        x = x > 0.0f ? 0.0f : x;
        const float weight = __fdividef(exp2_approx(x * kLog2E), eps - expm1f(x));
        const float term = weight * weight * (1.0f / kUnit) * (found < least ? least : found);
        if (lane == who) {
          dominant &= dominant - 1;
          sum[0] += h ? 0.0f : term;
          sum[1] += h ? term : 0.0f;
        }
      }
    }
  }
};

// Writes the scores of a warp's 16 tokens, two lanes of each quad one each; a token that does not exist gets NaN. `policy` is
// L2's: pooling reads what is written.
__device__ __forceinline__ void write_scores(float* scores, float (&sum)[2], float unit, int token, int length, uint2 live, uint64_t policy) {
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);
  const int r = threadIdx.x % 4, mine = token + 8 * r;
  if (r > 1 || mine >= length) return;
  const int bit = mine % kRingTokens;
  const bool exists = (bit < 32 ? live.x : live.y) >> bit % 32 & 1;
  const float score = exists ? (r ? sum[1] : sum[0]) * unit : __int_as_float(0x7fffffff);
  asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(scores + mine), "f"(score), "l"(policy) : "memory");
}

}  // namespace kvloom::drop
