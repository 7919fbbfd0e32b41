// drop_score on Hopper: the function of drop_score.cuh with wgmma, fed by a ring of tiles of 64 tokens in shared memory.
//
// Tokens are M of both products, K Q^T and V A^T, in registers; rows of the window are N, in chunks of at most 64 that lie in shared
// memory. A warp of each group only copies. Sums over rows stay inside a quad of lanes, in a fixed order: results repeat bit for bit.
#pragma once

#include "kvloom/drop/ring.cuh"
#include "kvloom/drop/row_matrix.cuh"
#include "kvloom/drop/rule.cuh"
#include "kvloom/ptx/approx.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/exp2.cuh"

namespace kvloom {

namespace drop {

// Sizes that the kernel and its plan share. kRowTiles: tiles of 8 rows in one product; kGroups: warpgroups, each with a ring.
template <Rule RULE, int HEAD_DIM, int WINDOW, int GROUP, int kGroups, int kStages, int kRowTiles, int kSplits>
struct WgmmaScoreShape {
  static constexpr int kRows = WINDOW * GROUP, kProduct = 8 * kRowTiles;
  static constexpr int kChunks = (kRows + kProduct - 1) / kProduct;
  static constexpr int kParts = RULE == Rule::kDropKV ? 1 + kSplits : 1;  // q, then the parts of a
  static constexpr int kMatrix = RowMatrix<HEAD_DIM, kProduct>::kBytes;
  static constexpr int kTileBytes = kRingTileBytes<HEAD_DIM>;
  static constexpr int kMatrixOffset = kGroups * kStages * kTileBytes;
  static constexpr int kStatsOffset = kMatrixOffset + kChunks * kParts * kMatrix;
  static constexpr int kStateOffset = kStatsOffset + kChunks * kProduct * static_cast<int>(sizeof(RowStats));
  static constexpr int kBytes = kStateOffset + kGroups * static_cast<int>(sizeof(RingState<kStages>));
  static constexpr int kThreads = kGroups * 160;
};

// What the consumers of a block share.
template <class S, Rule RULE, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename A, bool SOFTCAP, int kGroups, int kSplits>
struct WgmmaScorer {
  static constexpr int kProduct = S::kProduct, kRegisters = kProduct / 2;
  static constexpr int kPairs = (HEAD_DIM + 63) / 64;  // pairs of dims of a row that a lane stages
  using Matrix = RowMatrix<HEAD_DIM, kProduct>;
  const DropScoreArgs& args;
  uint8_t* shared;
  RowStats* stats;        // [kChunks * kProduct]
  Tokens<PAGE> tokens;
  HeadRows<T> v;
  int request, kv_head;
  uint64_t matrices;      // descriptor of chunk 0's q

  __device__ __forceinline__ WgmmaScorer(const DropScoreArgs& args, uint8_t* shared, int request, int kv_head)
      : args(args), shared(shared), stats(reinterpret_cast<RowStats*>(shared + S::kStatsOffset)),
        tokens(args.cache, request, length_of<PAGE>(args.cache, request)), v(values_of<T>(args.cache, kv_head)), request(request),
        kv_head(kv_head), matrices(Matrix::descriptor(shared_address(shared + S::kMatrixOffset))) {}

  __device__ __forceinline__ const A* output_row(int row) const {
    return static_cast<const A*>(args.a) + request * args.a_batch_stride + (kv_head * GROUP + row / WINDOW) * args.a_head_stride +
           row % WINDOW * args.a_row_stride;
  }
  __device__ __forceinline__ uint64_t matrix(int chunk, int part) const { return matrices + (chunk * S::kParts + part) * (S::kMatrix >> 4); }

  // Brings the window's rows into shared memory: a warp a row, the loads of kAtOnce rows before the first is used.
  __device__ __forceinline__ void stage() {
    constexpr int kWarps = kGroups * 4, kAtOnce = 4;
    const int lane = threadIdx.x % 32;
    for (int base = threadIdx.x / 32; base < S::kChunks * kProduct; base += kWarps * kAtOnce) {
      uint32_t q[kAtOnce][kPairs];
      float2 a[kAtOnce][kPairs];
      float lse[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int row = base + u * kWarps;
        const bool exists = row < S::kRows && tokens.length - WINDOW + row % WINDOW >= 0;
        const int64_t head = kv_head * GROUP + row / WINDOW;
        const T* const from = static_cast<const T*>(args.q) + request * args.q_batch_stride + head * args.q_head_stride + row % WINDOW * args.q_row_stride;
        lse[u] = exists ? args.lse[request * args.lse_batch_stride + head * args.lse_head_stride + row % WINDOW] : -minus_infinity();
#pragma unroll
        for (int i = 0; i < kPairs; ++i) {
          const int dim = 2 * (32 * i + lane);
          const bool inside = exists && dim < HEAD_DIM;
          q[u][i] = inside ? *reinterpret_cast<const uint32_t*>(from + dim) : 0u;
          if constexpr (RULE == Rule::kDropKV)
            a[u][i] = inside ? make_float2(to_float(output_row(row)[dim]), to_float(output_row(row)[dim + 1])) : make_float2(0.0f, 0.0f);
        }
      }
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const int row = base + u * kWarps;
        if (row >= S::kChunks * kProduct) break;
        const int chunk = row / kProduct, at = row % kProduct;
        uint8_t* const to = shared + S::kMatrixOffset + chunk * S::kParts * S::kMatrix;
        const int limit = row < S::kRows ? max(tokens.length - WINDOW + row % WINDOW, -1) : -1;
        RowStats s{lse[u], 0.0f, -2.0f, limit};
#pragma unroll
        for (int i = 0; i < kPairs; ++i)
          if (const int dim = 2 * (32 * i + lane); dim < HEAD_DIM) *reinterpret_cast<uint32_t*>(to + Matrix::offset(at, dim)) = q[u][i];
        if constexpr (RULE == Rule::kDropKV) split(a[u], to + S::kMatrix, at, s);
        if (lane == 0) stats[row] = s;
      }
    }
  }

  // Splits a row of a into 16-bit parts whose sum is a times a power of two, so that fp16 parts keep their digits; bf16 has f32's
  // exponents.
  __device__ __forceinline__ void split(const float2 (&a)[kPairs], uint8_t* to, int row, RowStats& s) const {
    const int lane = threadIdx.x % 32;
    float largest = 0.0f, norm = 0.0f;
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      largest = fmaxf(largest, fmaxf(fabsf(a[i].x), fabsf(a[i].y)));
      norm = fmaf(a[i].x, a[i].x, fmaf(a[i].y, a[i].y, norm));
    }
    s.norm = warp_sum(norm);
    float scale = 1.0f;
    if constexpr (sizeof(A) == 4) {
#pragma unroll
      for (int step = 16; step > 0; step /= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
      const PowerOfTwo p(largest);
      s.unscale = -2.0f * p.value;
      scale = p.inverse;
    }
#pragma unroll
    for (int i = 0; i < kPairs; ++i) {
      const int dim = 2 * (32 * i + lane);
      float2 rest = make_float2(a[i].x * scale, a[i].y * scale);
      if (dim >= HEAD_DIM) break;
#pragma unroll
      for (int part = 0; part < kSplits; ++part) {
        const uint32_t word = pack2<T>(rest.x, rest.y);
        const float2 high = unpack2<T>(word);
        *reinterpret_cast<uint32_t*>(to + part * S::kMatrix + Matrix::offset(row, dim)) = word;
        rest.x -= high.x, rest.y -= high.y;
      }
    }
  }

  // ||a - v||^2 of one row and token, by the whole warp.
  __device__ __forceinline__ float direct_distance(int row, int token) const {
    const A* a = output_row(row);
    const T* value = v.row(tokens.place(token));
    float sum = 0.0f;
    for (int d = threadIdx.x % 32; d < HEAD_DIM; d += 32) {
      const float difference = to_float(a[d]) - to_float(value[d]);
      sum = fmaf(difference, difference, sum);
    }
    return warp_sum(sum);
  }

  // Logits minus log-sum-exps of the lane's 2 tokens and 2 of every 8 rows, in place of their products; returns the largest.
  __device__ __forceinline__ float shift(float (&s)[kRegisters], int chunk) const {
    const float scale = SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale;
    float top = minus_infinity();
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float lse = stats[chunk * kProduct + column(i)].lse;
      s[i] = SOFTCAP ? fmaf(args.logit_softcap, tanh_accurate(s[i] * scale), -lse) : fmaf(s[i], scale, -lse);
      top = fmaxf(top, s[i]);
    }
    return top;
  }
  __device__ __forceinline__ static int column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

  // Where every token is seen by every row and no weight is above 1/2: weights, then terms.
  __device__ __forceinline__ void weigh(float (&s)[kRegisters]) const {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float p = exp2_approx(s[i] * kLog2E);
      if constexpr (RULE == Rule::kDropKV) {
        const float weight = p * rcp_approx((1.0f + args.eps) - p);
        s[i] = p < kSmallestWeight ? 0.0f : weight * weight;
      } else {
        s[i] = p < kSmallestWeight ? 0.0f : p;
      }
    }
  }
  __device__ __forceinline__ void add(const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2], int chunk, float (&sum)[2]) const {
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int half = i / 2 % 2;
      if constexpr (RULE == Rule::kDropKV) {
        const RowStats row = stats[chunk * kProduct + column(i)];
        sum[half] = fmaf(s[i], max_nan(fmaf(row.unscale, d[i], row.norm + v_norm[half]), 0.0f), sum[half]);
      } else {
        sum[half] = RULE == Rule::kValueNorm ? fmaf(s[i], v_norm[half], sum[half]) : sum[half] + s[i];
      }
    }
  }

  // Any tile: masks, and weights above 1/2, whose distance is summed directly by the whole warp, one after the other.
  __device__ __forceinline__ void add_careful(const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2], int chunk, int token,
                                              float (&sum)[2]) const {
    const int lane = threadIdx.x % 32;
    uint32_t dominant = 0;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int half = i / 2 % 2;
      const RowStats row = stats[chunk * kProduct + column(i)];
      const float x = s[i] > 0.0f ? 0.0f : s[i];  // NaN stays
      float p = exp2_approx(x * kLog2E);
      p = p < kSmallestWeight ? 0.0f : p;
      float term = p;
      if constexpr (RULE == Rule::kValueNorm) term = p * v_norm[half];
      if constexpr (RULE == Rule::kDropKV) {
        const float weight = __fdividef(p, 1.0f - p + args.eps);
        term = weight * weight * max_nan(fmaf(row.unscale, d[i], row.norm + v_norm[half]), 0.0f);
      }
      const bool visible = token + half <= row.limit;
      const bool apart = RULE == Rule::kDropKV && visible && p > 0.5f;
      if (apart) dominant |= 1u << i;
      if (visible && !apart) sum[half] += term;
    }
    if constexpr (RULE == Rule::kDropKV) {
      uint32_t asking;
      while ((asking = __ballot_sync(kFullWarp, dominant != 0)) != 0) {
        const int who = __ffs(asking) - 1, mine = __ffs(dominant) - 1;
        const int i = __shfl_sync(kFullWarp, mine, who), half = i / 2 % 2;
        const int row = chunk * kProduct + i / 4 * 8 + who % 4 * 2 + i % 2;
        const float found = direct_distance(row, __shfl_sync(kFullWarp, token, who) + half);
        const float least = output_epsilon<A>() * output_epsilon<A>() * stats[row].norm;
        float x = 0.0f;
#pragma unroll
        for (int j = 0; j < kRegisters; ++j) x = j == i ? s[j] : x;
        x = x > 0.0f ? 0.0f : x;
        const float weight = __fdividef(exp2_approx(x * kLog2E), args.eps - expm1f(x));
        const float term = weight * weight * (found < least ? least : found);
        if (lane == who) {
          dominant &= dominant - 1;
          sum[0] += half ? 0.0f : term;
          sum[1] += half ? term : 0.0f;
        }
      }
    }
  }

  // One tile whose rows of K and V this lane has: adds the terms of every row of the window.
  template <class Values>
  __device__ __forceinline__ void tile(const TileRowsA<HEAD_DIM>& key, Values values, int token, uint2 live, float (&sum)[2]) const {
    TileRowsA<HEAD_DIM> value;
    float v_norm[2] = {};
#pragma unroll
    for (int chunk = 0; chunk < S::kChunks; ++chunk) {
      float s[kRegisters], d[kRegisters];
      wgmma::fence();
      Matrix::template multiply<T>(s, key.a, matrix(chunk, 0), false);
      wgmma::commit();
      if (chunk == 0) values(value, v_norm);
      if constexpr (RULE == Rule::kDropKV) {
        wgmma::fence();
#pragma unroll
        for (int part = 0; part < kSplits; ++part) Matrix::template multiply<T>(d, value.a, matrix(chunk, 1 + part), part > 0);
        wgmma::commit();
        wgmma::wait<1>();
      } else {
        wgmma::wait<0>();
      }
      const float top = shift(s, chunk);
      // Of the whole tile, so that a warp's lanes agree.
      const bool visible = live.x == kFullWarp && live.y == kFullWarp && token / kRingTokens * kRingTokens + kRingTokens <= tokens.length - WINDOW;
      const bool plain = visible && !__any_sync(kFullWarp, top > -0.6931f);
      if (plain) weigh(s);
      if constexpr (RULE == Rule::kDropKV) wgmma::wait<0>();
      if (plain) {
        add(s, d, v_norm, chunk, sum);
      } else {
        add_careful(s, d, v_norm, chunk, token, sum);
      }
    }
  }

  // Writes the scores of a warp's 16 tokens: two lanes of each quad one each. The line stays in L2, where pooling reads it.
  __device__ __forceinline__ void write(float (&sum)[2], int token, uint2 live, uint64_t policy) const {
    sum[0] = quad_sum(sum[0]);
    sum[1] = quad_sum(sum[1]);
    const int r = threadIdx.x % 4;
    if (r > 1 || token + r >= tokens.length) return;
    const int bit = token % kRingTokens + r;
    const bool exists = (bit < 32 ? live.x : live.y) >> bit % 32 & 1;
    float* const to = args.scores + request * args.score_batch_stride + kv_head * args.score_head_stride + token + r;
    const float score = exists ? (r ? sum[1] : sum[0]) * (1.0f / GROUP) : __int_as_float(0x7fffffff);
    asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(to), "f"(score), "l"(policy) : "memory");
  }
};

}  // namespace drop

// A and kSplits as in drop_score.
template <drop::Rule RULE, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename A, bool SOFTCAP, int kGroups, int kStages,
          int kRowTiles, int kSplits, drop::Copy COPY, bool kDependent>
__device__ __forceinline__ void drop_score_wgmma(const DropScoreArgs& args) {
  using namespace drop;
  using S = WgmmaScoreShape<RULE, HEAD_DIM, WINDOW, GROUP, kGroups, kStages, kRowTiles, kSplits>;
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM >= 64 && HEAD_DIM <= 128, "a lane holds 16 tokens' keys and values in registers");
  static_assert(WINDOW >= 1 && WINDOW <= 64, "a window is 1 to 64 queries");
  static_assert(GROUP >= 1 && GROUP <= 64, "a group is 1 to 64 query heads");
  static_assert(sizeof(T) == 2, "bf16 and fp16 caches");
  extern __shared__ __align__(128) uint8_t shared[];
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int kv_head = blockIdx.y, request = blockIdx.z, lane = threadIdx.x % 32, warp = threadIdx.x / 32;
  WgmmaScorer<S, RULE, HEAD_DIM, PAGE, WINDOW, GROUP, T, A, SOFTCAP, kGroups, kSplits> scorer(args, shared, request, kv_head);
  const int tiles = (scorer.tokens.length + kRingTokens - 1) / kRingTokens;
  // No more blocks than have a tile for every group: a graph captured for long prompts stays cheap at short ones.
  const int blocks = min(static_cast<int>(gridDim.x), max((tiles + kGroups - 1) / kGroups, 1));
  if (static_cast<int>(blockIdx.x) >= blocks || tiles == 0) return;
  const int begin = static_cast<int>(static_cast<int64_t>(tiles) * blockIdx.x / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(tiles) * (blockIdx.x + 1) / blocks);
  RingState<kStages>* const states = reinterpret_cast<RingState<kStages>*>(shared + S::kStateOffset);  // [kGroups]
  if (threadIdx.x < kGroups) {
    states[threadIdx.x].template init<COPY>();
    mbarrier_init_fence();
  }
  __syncthreads();
  const bool producer = warp >= 4 * kGroups;
  const int group = producer ? warp - 4 * kGroups : warp / 4;
  RingState<kStages>& state = states[group];
  uint8_t* const ring = shared + group * kStages * S::kTileBytes;
  if (producer) {
    RingWriter<HEAD_DIM, PAGE, T, kStages, COPY> writer(scorer.tokens, state, ring);
    const uint64_t once = evict_first_policy();
    const HeadRows<T> k = keys_of<T>(args.cache, kv_head);
    for (int i = begin + group; i < end; i += kGroups) {
      writer.locate(i);
      writer.fill(k, once);
      if constexpr (RULE != Rule::kSnapKV) writer.fill(scorer.v, once);
    }
    if constexpr (COPY == Copy::kPieces) asm volatile("cp.async.wait_all;" ::: "memory");
    return;
  }
  scorer.stage();
  wgmma::proxy_fence();
  asm volatile("bar.sync 1, %0;" ::"n"(128 * kGroups) : "memory");
  RingPlace<kStages> at;
  const uint64_t keep = evict_last_policy();
  const int place = lane / 4 * kRun + 2 * (warp % 4);  // of the lane's two tokens in a tile
  // Takes the next tile of the ring into registers.
  const auto take = [&](TileRowsA<HEAD_DIM>& rows) {
    mbarrier_wait(&state.full[at.stage], at.parity);
    rows.load(shared_address(ring) + at.stage * S::kTileBytes);
    const uint2 live = state.live[at.stage];
    __syncwarp();
    if (lane == 0) mbarrier_arrive(&state.empty[at.stage]);
    at.next();
    return live;
  };
  for (int i = begin + group; i < end; i += kGroups) {
    const int token = i * kRingTokens + place;
    TileRowsA<HEAD_DIM> key;
    const uint2 live = take(key);
    float sum[2] = {};
    scorer.tile(key, [&](TileRowsA<HEAD_DIM>& value, float (&v_norm)[2]) {
      if constexpr (RULE != Rule::kSnapKV) take(value);
      if constexpr (RULE == Rule::kDropKV) value.template fold<T>(v_norm, [](float x) { return x * x; });
      if constexpr (RULE == Rule::kValueNorm) value.template fold<T>(v_norm, [](float x) { return fabsf(x); });
    }, token, live, sum);
    scorer.write(sum, token, live, keep);
  }
}

}  // namespace kvloom
