// page_score by quest and by mean_key: one dot product a page and head, from a record of 16-bit extrema or of an int8 mean.
//
//   quest     sum over dims of max(q min, q max) = q- . min + q+ . max, q- and q+ being q with the other sign's elements zero: a
//             dot product of 2 HEAD_DIM elements, a bound on the page's largest logit
//   mean_key  q . mu + log PAGE
//
// A tile of 16 pages is the m of m16n8k16, as in page_score.cuh. Softcap, where there is one, is of the logit.
#pragma once

#include "kernels/page_score_exact.cuh"

namespace kvloom {

// Records of quest: [2][HEAD_DIM] of the cache's type, minima first.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP>
struct Quest : ScoreShape<T, HEAD_DIM, PAGE, 1, 16, GROUP, SOFTCAP> {
  static constexpr int kTiles = 1, kPasses = (GROUP + 7) / 8, kUnitHeads = 8;
  using Query = RowQuery<2 * HEAD_DIM, 1>;

  // A word of two elements with those of the other sign zero. A NaN stays in both.
  __device__ static __forceinline__ uint32_t signed_part(uint32_t w, bool negative) {
    const uint32_t low = w & 0xffffu, high = w >> 16;
    const uint32_t infinite = sizeof(T) == 2 && is_bf16() ? 0x7f80u : 0x7c00u;
    const bool keep_low = (low >> 15 != 0) == negative || (low & 0x7fffu) > infinite;
    const bool keep_high = (high >> 15 != 0) == negative || (high & 0x7fffu) > infinite;
    return (keep_low ? low : 0u) | (keep_high ? high << 16 : 0u);
  }
  __device__ static __forceinline__ constexpr bool is_bf16() { return Same<T, bf16>::value; }
  template <typename A, typename B>
  struct Same {
    static constexpr bool value = false;
  };
  template <typename A>
  struct Same<A, A> {
    static constexpr bool value = true;
  };

  // The lane's dims of a record are those of a row of 2 HEAD_DIM elements; a block of 32 may hold both halves.
  __device__ static __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int pass, Query& query) {
    const uint8_t* row = query_row<Quest>(args, request, kv_head, pass, 0);
    const int p = threadIdx.x % 4;
    zero_row(query.b[0]);
    if (row == nullptr) return;
    const GlobalBytes bytes{row};
#pragma unroll
    for (int w = 0; w < 2 * HEAD_DIM / 8; w++) {
      const int dim = w / 4 * 32 + p * 8 + w % 4 * 2;
      const bool maxima = dim >= HEAD_DIM;
      query.b[0][w] = signed_part(bytes.load4(2 * (maxima ? dim - HEAD_DIM : dim)), !maxima);
    }
  }

  __device__ static __forceinline__ void dots(const PageScoreArgs& args, const GlobalBytes (&page)[2], const Query& query, float (&acc)[4]) {
    uint32_t rows[2][2 * HEAD_DIM / 8];
#pragma unroll
    for (int i = 0; i < 2; i++) load_row<2 * HEAD_DIM>(page[i], rows[i]);
    float sum[1][4] = {{0.f, 0.f, 0.f, 0.f}};
    multiply_rows<T, 2 * HEAD_DIM, 1>(rows[0], rows[1], query, sum);
#pragma unroll
    for (int i = 0; i < 4; i++) acc[i] = sum[0][i] * args.softmax_scale;
  }
  static constexpr float kOffset = 0.f;
};

// The natural logarithm of a power of two.
__device__ __forceinline__ constexpr float log_of_power(int n) { return n <= 1 ? 0.f : kLn2 + log_of_power(n / 2); }

// Records of mean_key: HEAD_DIM int8 codes, then their bf16 scale.
template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP>
struct MeanKey : ScoreShape<T, HEAD_DIM, PAGE, 1, 8, GROUP, false> {
  using Base = ScoreShape<T, HEAD_DIM, PAGE, 1, 8, GROUP, false>;
  static constexpr bool kSoftcap = SOFTCAP;
  static constexpr int kTiles = 1, kPasses = (GROUP + 7) / 8, kUnitHeads = 8;
  static constexpr int kHeadColumns = 8, kLaneHeads = 2;
  using Query = ScoreQuery<MeanKey>;

  __device__ static __forceinline__ void load(const PageScoreArgs& args, int request, int kv_head, int pass, Query& query) {
    load_query<MeanKey>(args, request, kv_head, pass, query);
    const float cap = SOFTCAP ? args.logit_softcap : kLn2;  // back to nats
#pragma unroll
    for (int h = 0; h < 2; h++) query.scale[0][h] *= cap;
  }

  __device__ static __forceinline__ void dots(const PageScoreArgs& args, const GlobalBytes (&page)[2], const Query& query, float (&acc)[4]) {
    constexpr int kWords = Base::kQuarter / 4, kPadded = Base::kDimGroups * Base::Centroid::kWords;
    const int p = threadIdx.x % 4;
    uint32_t words[2][kPadded];
    float scale[2], sum[1][4] = {{0.f, 0.f, 0.f, 0.f}};
#pragma unroll
    for (int i = 0; i < 2; i++) {
      uint32_t mu[kWords];
      load_words<kWords, alignment_of(Base::kQuarter)>(page[i], p * Base::kQuarter, mu);
      scale[i] = low_bf16(page[i].load2(HEAD_DIM));
#pragma unroll
      for (int w = 0; w < kPadded; w++) words[i][w] = w < kWords ? mu[w < kWords ? w : 0] : 0u;
    }
    multiply_row<MeanKey, typename Base::Centroid>(words, query, sum);
#pragma unroll
    for (int i = 0; i < 4; i++) acc[i] = sum[0][i] * (scale[i / 2] * query.scale[0][i % 2]);
  }
  static constexpr float kOffset = log_of_power(PAGE);
};

// Grid: x blocks of WARPS warps, any number. No shared memory.
template <class S, int WARPS>
__device__ __forceinline__ void score_plain(const PageScoreArgs& args) {
  using Query = typename S::Query;
  const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
  walk_tiles<S, Query, WARPS>(
      args, [&](int request, int kv_head, int pass, Query& query) { S::load(args, request, kv_head, pass, query); },
      [&](const GlobalBytes(&page)[2], const Query& query, int request, int kv_head, int pass, int first, int live, uint32_t mapped) {
        float acc[4];
        S::dots(args, page, query, acc);
        float* scores = args.scores + request * args.score_batch_stride + first;
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const int n = g + i / 2 * 8, head = pass * S::kUnitHeads + 2 * p + i % 2;
          if (n >= live || head >= S::kGroup) continue;
          const float logit = S::kSoftcap ? args.logit_softcap * tanh_accurate(acc[i] / args.logit_softcap) : acc[i];
          scores[(static_cast<int64_t>(kv_head) * S::kGroup + head) * args.score_head_stride + n] =
              mapped >> n & 1 ? logit + S::kOffset : minus_infinity();
        }
      });
}

template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP, int WARPS>
__device__ __forceinline__ void page_score_quest(const PageScoreArgs& args) {
  score_plain<Quest<T, HEAD_DIM, PAGE, GROUP, SOFTCAP>, WARPS>(args);
}

template <typename T, int HEAD_DIM, int PAGE, int GROUP, bool SOFTCAP, int WARPS>
__device__ __forceinline__ void page_score_mean(const PageScoreArgs& args) {
  score_plain<MeanKey<T, HEAD_DIM, PAGE, GROUP, SOFTCAP>, WARPS>(args);
}

}  // namespace kvloom
