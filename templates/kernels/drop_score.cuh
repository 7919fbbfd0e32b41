// drop_score: what dropping each token of a prompt alone would do to the attention outputs of the window, from given log-sum-exp and
// outputs: the sum over the window and the mean over the group of (p/(1-p+eps))^2 ||a - v||^2 (dropkv), of p (snapkv), or of p
// ||v||_1 (value_norm); or minus the cosine to the mean key direction (keydiff).
//
// Tokens are the M dimension of both products, K Q^T and V A^T; rows of the window (group x window) are N. A warp loads 16 tokens
// straight into fragments: the order of a dot product's terms is free, so lane l takes the l%4-th 16 bytes of every 64 bytes of
// rows l/4 and l/4 + 8, and reads B fragments in the same order from rows that lie in shared memory as they are. K and V are read
// once; a is split into 16-bit parts that add up to f32, so ||a||^2 + ||v||^2 - 2<a,v> has f32's accuracy. Where p > 1/2 that form
// would lose everything, and 1 - p is -expm1, the distance summed directly: at most one token a row, by the whole warp.
#pragma once

#include "kvloom/drop/rule.cuh"
#include "kvloom/drop/tile_rows.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/exp2.cuh"

namespace kvloom {

namespace drop {

// Sizes that the kernel and its plan share. kRowTiles: tiles of 8 rows in shared memory at once.
template <Rule RULE, int HEAD_DIM, int WINDOW, int GROUP, int kWarps, int kRowTiles, int kSplits>
struct ScoreShape {
  static constexpr int kRows = WINDOW * GROUP;
  static constexpr int kTiles = (kRows + 7) / 8;
  static constexpr int kPasses = (kTiles + kRowTiles - 1) / kRowTiles;
  static constexpr int kRowBytes = (2 * HEAD_DIM + 63) / 128 * 128 + 64;  // rows g and g+1 of a quarter warp meet different banks
  static constexpr int kParts = RULE == Rule::kDropKV ? 1 + kSplits : 1;  // q, then the parts of a
  static constexpr int kPartBytes = kRowTiles * 8 * kRowBytes;
  static constexpr int kStatsOffset = kParts * kPartBytes;
  static constexpr int kSegmentTiles = 8;                                 // of a warp, between two passes
  static constexpr int kSumsOffset = kStatsOffset + kRowTiles * 8 * static_cast<int>(sizeof(RowStats));
  static constexpr int kBytes = kSumsOffset + (kPasses > 1 ? kWarps * kSegmentTiles * kTile * 4 : 0);
};

// Everything of one block that its warps share.
template <Rule RULE, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename A, bool SOFTCAP, int kWarps, int kRowTiles,
          int kSplits>
struct Scorer {
  using S = ScoreShape<RULE, HEAD_DIM, WINDOW, GROUP, kWarps, kRowTiles, kSplits>;
  using C = typename Compute<T>::type;
  const DropScoreArgs& args;
  uint8_t* shared;
  RowStats* stats;        // [kRowTiles * 8]
  Tokens<PAGE> tokens;
  HeadRows<T> k, v;
  int request, kv_head;
  float k_scale, v_scale;  // of an 8-bit cache, else 1

  __device__ __forceinline__ Scorer(const DropScoreArgs& args, uint8_t* shared, int request, int kv_head)
      : args(args), shared(shared), stats(reinterpret_cast<RowStats*>(shared + S::kStatsOffset)),
        tokens(args.cache, request, length_of<PAGE>(args.cache, request)), k(keys_of<T>(args.cache, kv_head)),
        v(values_of<T>(args.cache, kv_head)), request(request), kv_head(kv_head), k_scale(cache_scale<T>(args.cache.k_scale)),
        v_scale(cache_scale<T>(args.cache.v_scale)) {}

  __device__ __forceinline__ const A* output_row(int row) const {
    return static_cast<const A*>(args.a) + request * args.a_batch_stride + (kv_head * GROUP + row / WINDOW) * args.a_head_stride +
           row % WINDOW * args.a_row_stride;
  }

  // Brings rows [8 * first, 8 * (first + kRowTiles)) of the window into shared memory: a warp a row.
  __device__ __forceinline__ void stage(int first) {
    const int lane = threadIdx.x % 32;
    for (int r = threadIdx.x / 32; r < kRowTiles * 8; r += kWarps) {
      const int row = first * 8 + r;
      const int limit = row < S::kRows ? tokens.length - WINDOW + row % WINDOW : -1;
      uint8_t* const q_row = shared + r * S::kRowBytes;
      RowStats s{0.0f, 0.0f, -2.0f, limit};
      const int64_t head = kv_head * GROUP + row / WINDOW;
      if (limit >= 0) {
        const C* q = static_cast<const C*>(args.q) + request * args.q_batch_stride + head * args.q_head_stride + row % WINDOW * args.q_row_stride;
        if (lane < HEAD_DIM / 8) reinterpret_cast<uint4*>(q_row)[lane] = __ldg(reinterpret_cast<const uint4*>(q) + lane);
        s.lse = args.lse[request * args.lse_batch_stride + head * args.lse_head_stride + row % WINDOW];
      } else if (lane < HEAD_DIM / 8) {
        reinterpret_cast<uint4*>(q_row)[lane] = make_uint4(0, 0, 0, 0);
      }
      if constexpr (RULE == Rule::kDropKV) split(limit >= 0 ? output_row(row) : nullptr, q_row + S::kPartBytes, s);
      if (lane == 0) stats[r] = s;
    }
  }

  // Splits a row of a into parts whose sum is a times a power of two: the row's largest becomes 1 to 2, so that fp16 parts keep
  // their digits.
  __device__ __forceinline__ void split(const A* a, uint8_t* to, RowStats& s) {
    const int lane = threadIdx.x % 32;
    float x[(HEAD_DIM + 31) / 32];
    float largest = 0.0f, norm = 0.0f;
#pragma unroll
    for (int i = 0; i < (HEAD_DIM + 31) / 32; ++i) {
      const int d = i * 32 + lane;
      x[i] = a && d < HEAD_DIM ? to_float(a[d]) : 0.0f;
      largest = fmaxf(largest, fabsf(x[i]));
      norm += x[i] * x[i];
    }
#pragma unroll
    for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
    s.norm = warp_sum(norm);
    const PowerOfTwo p(largest);
    s.unscale = -2.0f * v_scale * p.value;
    const float scale = p.inverse;
#pragma unroll
    for (int i = 0; i < (HEAD_DIM + 31) / 32; ++i) {
      const int d = i * 32 + lane;
      float rest = x[i] * scale;
      if (d < HEAD_DIM) {
#pragma unroll
        for (int part = 0; part < kSplits; ++part) {
          const C high = from_float<C>(rest);
          reinterpret_cast<C*>(to + part * S::kPartBytes)[d] = high;
          rest -= to_float(high);
        }
      }
    }
  }

  __device__ __forceinline__ float direct_distance(int row, int token) const {
    return squared_distance<HEAD_DIM>(output_row(row), v.row(tokens.place(token)), v_scale);
  }

  // Adds the terms of the staged rows to the scores of tokens `tile` * 16 + l/4 and that + 8.
  __device__ __forceinline__ void add(const TileRows<HEAD_DIM>& key, const TileRows<HEAD_DIM>& value, const float (&v_norm)[2], int first,
                                      int token, float (&sum)[2]) const {
    const int lane = threadIdx.x % 32;
    const float scale = k_scale * (SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale);
#pragma unroll 2
    for (int n = 0; n < kRowTiles; ++n) {
      if (8 * (first + n) >= S::kRows) break;
      const uint8_t* const rows = shared + (8 * n + lane / 4) * S::kRowBytes;
      float s[4] = {};
      key.template multiply<C>(s, rows);
      float d[4] = {};
      if constexpr (RULE == Rule::kDropKV) {
#pragma unroll
        for (int part = 0; part < kSplits; ++part) value.template multiply<C>(d, rows + (1 + part) * S::kPartBytes);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * n + lane % 4 * 2 + i % 2, at = token + i / 2 * 8;
        const RowStats row = stats[column];
        const bool visible = at <= row.limit;
        float x = SOFTCAP ? fmaf(args.logit_softcap, tanh_accurate(s[i] * scale), -row.lse) : fmaf(s[i], scale, -row.lse);
        x = x > 0.0f ? 0.0f : x;  // NaN stays
        float p = exp2_approx(x * kLog2E);
        p = p < kSmallestWeight ? 0.0f : p;
        float term = p;
        if constexpr (RULE == Rule::kValueNorm) term = p * v_norm[i / 2];
        if constexpr (RULE == Rule::kDropKV) {
          const bool dominant = visible && p > 0.5f;
          float rest = 1.0f - p;
          float distance = fmaf(row.unscale, d[i], row.norm + v_norm[i / 2]);
          distance = distance < 0.0f ? 0.0f : distance;
          uint32_t asking = __ballot_sync(kFullWarp, dominant);
          if (asking) {
            if (dominant) rest = -expm1f(x);
            do {
              const int who = __ffs(asking) - 1;
              asking &= asking - 1;
              const float found = direct_distance(8 * first + __shfl_sync(kFullWarp, column, who), __shfl_sync(kFullWarp, at, who));
              const float least = output_epsilon<A>() * output_epsilon<A>() * row.norm;
              if (who == lane) distance = found < least ? least : found;
            } while (asking);
          }
          const float weight = __fdividef(p, rest + args.eps);
          term = weight * weight * distance;
        }
        if (visible) sum[i / 2] += term;
      }
    }
  }

  // Writes the scores of a tile: the lanes of a quad have parts of the same two tokens.
  __device__ __forceinline__ void write(float (&sum)[2], int token, const Place (&at)[2]) const {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      sum[r] = quad_sum(sum[r]);
      if (threadIdx.x % 4 == 0 && token + 8 * r < tokens.length)
        args.scores[request * args.score_batch_stride + kv_head * args.score_head_stride + token + 8 * r] =
            at[r].live ? sum[r] * (1.0f / GROUP) : __int_as_float(0x7fffffff);
    }
  }

  // One tile of 16 tokens over the staged rows.
  __device__ __forceinline__ void tile(int index, int first, float (&sum)[2], Place (&at)[2]) const {
    const int token = index * kTile + threadIdx.x % 32 / 4;
    at[0] = tokens.place(token);
    at[1] = tokens.place(token + 8);
    TileRows<HEAD_DIM> key, value;
    float v_norm[2] = {};
    key.load(k.row(at[0]), at[0].live, k.row(at[1]), at[1].live);
    if constexpr (RULE != Rule::kSnapKV) {
      value.load(v.row(at[0]), at[0].live, v.row(at[1]), at[1].live);
      if constexpr (RULE == Rule::kDropKV) value.template fold<C>(v_norm, [this](float x) { return v_scale * x * (v_scale * x); });
      if constexpr (RULE == Rule::kValueNorm) value.template fold<C>(v_norm, [this](float x) { return fabsf(v_scale * x); });
    }
    add(key, value, v_norm, first, token, sum);
  }
};

}  // namespace drop

// A: the type of a: f32 (exact) or the cache's (fast). kSplits: 16-bit parts of a: 3 for f32 in bf16, 2 in fp16, 1 for its own type.
template <drop::Rule RULE, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename A, bool SOFTCAP, int kWarps, int kRowTiles,
          int kSplits, bool kDependent>
__device__ __forceinline__ void drop_score(const DropScoreArgs& args) {
  using namespace drop;
  using S = ScoreShape<RULE, HEAD_DIM, WINDOW, GROUP, kWarps, kRowTiles, kSplits>;
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM >= 64 && HEAD_DIM <= 256, "head dims are whole k steps");
  static_assert(WINDOW >= 1 && WINDOW <= 64, "a window is 1 to 64 queries");
  static_assert(GROUP >= 1 && GROUP <= 64, "a group is 1 to 64 query heads");
  extern __shared__ __align__(128) uint8_t shared[];
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int kv_head = blockIdx.y, request = blockIdx.z, warp = threadIdx.x / 32;
  Scorer<RULE, HEAD_DIM, PAGE, WINDOW, GROUP, T, A, SOFTCAP, kWarps, kRowTiles, kSplits> scorer(args, shared, request, kv_head);
  const int tiles = scorer.tokens.length / kTile + (scorer.tokens.length % kTile != 0);
  // No more blocks than have a tile for every warp: a graph captured for long prompts stays cheap at short ones.
  const int blocks = min(static_cast<int>(gridDim.x), max((tiles + kWarps - 1) / kWarps, 1));
  if (static_cast<int>(blockIdx.x) >= blocks || tiles == 0) return;
  const int begin = static_cast<int>(static_cast<int64_t>(tiles) * blockIdx.x / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(tiles) * (blockIdx.x + 1) / blocks);
  Place at[2];
  if constexpr (S::kPasses == 1) {
    scorer.stage(0);
    __syncthreads();
    for (int i = begin + warp; i < end; i += kWarps) {
      float sum[2] = {};
      scorer.tile(i, 0, sum, at);
      scorer.write(sum, i * kTile + threadIdx.x % 32 / 4, at);
    }
  } else {
    // Rows that do not fit take turns over a segment of tokens that stays in L2.
    float2* const sums = reinterpret_cast<float2*>(shared + S::kSumsOffset);  // [warp][kSegmentTiles][8]: a quad's two tokens
    for (int segment = begin; segment < end; segment += kWarps * S::kSegmentTiles) {
      for (int pass = 0; pass < S::kPasses; ++pass) {
        __syncthreads();
        scorer.stage(pass * kRowTiles);
        __syncthreads();
        for (int j = 0; j < S::kSegmentTiles; ++j) {
          const int i = segment + j * kWarps + warp;
          if (i >= end) break;
          float sum[2] = {};
          scorer.tile(i, pass * kRowTiles, sum, at);
          sum[0] = quad_sum(sum[0]);
          sum[1] = quad_sum(sum[1]);
          float2* const mine = sums + (warp * S::kSegmentTiles + j) * 8 + threadIdx.x % 32 / 4;
          if (threadIdx.x % 4 == 0) {
            const float2 before = pass > 0 ? *mine : make_float2(0.0f, 0.0f);
            *mine = make_float2(before.x + sum[0], before.y + sum[1]);
          }
          __syncwarp();
          if (pass == S::kPasses - 1) {
            float all[2] = {0.0f, 0.0f};
            if (threadIdx.x % 4 == 0) all[0] = mine->x, all[1] = mine->y;
            scorer.write(all, i * kTile + threadIdx.x % 32 / 4, at);
          }
        }
      }
    }
  }
}

}  // namespace kvloom
