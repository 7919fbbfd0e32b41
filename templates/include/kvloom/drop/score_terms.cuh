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
  static constexpr int kRegisters = N / 2;
  const RowStats* stats;  // [row]
  float scale, softcap, eps;

  __device__ __forceinline__ ScoreTerms(const RowStats* stats, float softmax_scale, float softcap, float eps)
      : stats(stats), scale(SOFTCAP ? softmax_scale / softcap : softmax_scale), softcap(softcap), eps(eps) {}

  // The row of register i, of those of its product.
  __device__ __forceinline__ static int column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }
  __device__ __forceinline__ static constexpr int half(int i) { return i / 2 % 2; }

  // Natural logits minus log-sum-exps in place of products; returns the largest.
  __device__ __forceinline__ float shift(float (&s)[kRegisters], int first_row) const {
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float lse = stats[first_row + column(i)].lse;
      s[i] = SOFTCAP ? fmaf(softcap, tanh_accurate(s[i] * scale), -lse) : fmaf(s[i], scale, -lse);
      top = fmaxf(top, s[i]);
    }
    return top;
  }

  // Where every token is seen by every row and no weight is above 1/2: factors of the terms.
  __device__ __forceinline__ void weigh(float (&s)[kRegisters]) const {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float p = exp2_approx(s[i] * kLog2E);
      float factor = p;
      if constexpr (RULE == Rule::kDropKV) {
        const float weight = p * rcp_approx((1.0f + eps) - p);
        factor = weight * weight;
      }
      s[i] = p < kSmallestWeight ? 0.0f : factor;
    }
  }
  __device__ __forceinline__ void add(const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2], int first_row,
                                      float (&sum)[2]) const {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int h = half(i);
      if constexpr (RULE == Rule::kDropKV) {
        const RowStats row = stats[first_row + column(i)];
        sum[h] = fmaf(s[i], max_nan(fmaf(row.unscale, d[i], row.norm + v_norm[h]), 0.0f), sum[h]);
      } else {
        sum[h] = RULE == Rule::kValueNorm ? fmaf(s[i], v_norm[h], sum[h]) : sum[h] + s[i];
      }
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
      const float x = s[i] > 0.0f ? 0.0f : s[i];  // NaN stays
      float p = exp2_approx(x * kLog2E);
      p = p < kSmallestWeight ? 0.0f : p;
      float term = p;
      if constexpr (RULE == Rule::kValueNorm) term = p * v_norm[h];
      if constexpr (RULE == Rule::kDropKV) {
        const float weight = __fdividef(p, 1.0f - p + eps);
        term = weight * weight * max_nan(fmaf(row.unscale, d[i], row.norm + v_norm[h]), 0.0f);
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
        const float term = weight * weight * (found < least ? least : found);
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
