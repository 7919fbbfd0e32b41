// drop_score on Hopper: the function of drop_score.cuh with wgmma, fed by a ring of tiles of 64 tokens in shared memory.
//
// Tokens are M of both products, K Q^T and V A^T, in registers; rows of the window are N, in chunks of at most 64 that lie in shared
// memory. A warp of each group only copies. Sums over rows stay inside a quad of lanes, in a fixed order: results repeat bit for bit.
#pragma once

#include "kvloom/drop/ring.cuh"
#include "kvloom/drop/row_matrix.cuh"
#include "kvloom/drop/score_terms.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/grid.cuh"
#include "kvloom/ptx/registers.cuh"

namespace kvloom {

namespace drop {

// Sizes that the kernel and its plan share. kRowTiles: tiles of 8 rows in one product; kGroups: warpgroups, each with a ring; kHeld: tiles
// of a group whose scores wait in shared memory, 0: none, each tile's are written at once.
template <Rule RULE, int HEAD_DIM, int WINDOW, int GROUP, int kGroups, int kStages, int kRowTiles, int kSplits, int kHeld>
struct WgmmaScoreShape {
  static constexpr int kRows = WINDOW * GROUP, kProduct = 8 * kRowTiles;
  static constexpr int kChunks = (kRows + kProduct - 1) / kProduct;
  static constexpr int kParts = RULE == Rule::kDropKV ? 1 + kSplits : 1;  // q, then the parts of a
  static constexpr int kMatrix = RowMatrix<HEAD_DIM, kProduct>::kBytes;
  static constexpr int kTileBytes = kRingTileBytes<HEAD_DIM>;
  static constexpr int kMatrixOffset = kGroups * kStages * kTileBytes;
  static constexpr int kStatsOffset = kMatrixOffset + kChunks * kParts * kMatrix;
  static constexpr int kStateOffset = kStatsOffset + kChunks * kProduct * static_cast<int>(sizeof(RowStats));
  // Rows of one product whose outputs are one part: what terms need of them lies apart, and a small weight needs no reciprocal.
  static constexpr bool kShort = RULE == Rule::kDropKV && kChunks == 1 && kSplits == 1;
  static constexpr int kShortOffset = kStateOffset + kGroups * static_cast<int>(sizeof(RingState<kStages>));
  static constexpr int kHeldOffset = kShortOffset + (kShort ? kProduct * 8 : 0);
  static constexpr int kBytes = kHeldOffset + kGroups * kHeld * kRingTokens * 4;
  // Three groups leave too few registers each, unless the copying warps are a warpgroup that gives back its own.
  static constexpr bool kTrades = kGroups > 2;
  static constexpr int kThreads = kGroups * 128 + (kTrades ? 128 : kGroups * 32);
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
  using Terms = ScoreTerms<RULE, S::kProduct, SOFTCAP, A>;
  Terms terms;

  // What terms need of rows where outputs are one part, whose unscale is -2: log-sum-exps as shift() takes them, then the norms, so that
  // those of two columns come by one load.
  struct ShortRows {
    const float* lses;  // [kProduct], [kProduct]
    __device__ __forceinline__ static float pick(const float* from, int i) {
      const float2 pair = *reinterpret_cast<const float2*>(from + Terms::column(i & ~1));
      return i % 2 ? pair.y : pair.x;
    }
    __device__ __forceinline__ float lse(int i) const { return pick(lses, i); }
    __device__ __forceinline__ float norm(int i) const { return pick(lses + kProduct, i); }
    __device__ __forceinline__ float unscale(int) const { return -2.0f; }
  };

  __device__ __forceinline__ WgmmaScorer(const DropScoreArgs& args, uint8_t* shared, int request, int kv_head)
      : args(args), shared(shared), stats(reinterpret_cast<RowStats*>(shared + S::kStatsOffset)),
        tokens(args.cache, request, length_of<PAGE>(args.cache, request)), v(values_of<T>(args.cache, kv_head)), request(request),
        kv_head(kv_head), matrices(Matrix::descriptor(shared_address(shared + S::kMatrixOffset))),
        terms(stats, args.softmax_scale, args.logit_softcap, args.eps) {}

  __device__ __forceinline__ static const A* output_row(const DropScoreArgs& args, int request, int kv_head, int row) {
    return static_cast<const A*>(args.a) + request * args.a_batch_stride + (kv_head * GROUP + row / WINDOW) * args.a_head_stride +
           row % WINDOW * args.a_row_stride;
  }
  __device__ __forceinline__ static const T* query_row(const DropScoreArgs& args, int request, int kv_head, int row) {
    return static_cast<const T*>(args.q) + request * args.q_batch_stride + (kv_head * GROUP + row / WINDOW) * args.q_head_stride +
           row % WINDOW * args.q_row_stride;
  }
  __device__ __forceinline__ const A* output_row(int row) const { return output_row(args, request, kv_head, row); }
  __device__ __forceinline__ const T* query_row(int row) const { return query_row(args, request, kv_head, row); }
  __device__ __forceinline__ uint64_t matrix(int chunk, int part) const { return matrices + (chunk * S::kParts + part) * (S::kMatrix >> 4); }

  // Rows of the window on their way to shared memory: a warp a row, kAtOnce rows of each warp; asked for before the length is known.
  static constexpr int kWarps = kGroups * 4, kTurns = (S::kChunks * kProduct + kWarps - 1) / kWarps;
  static constexpr int kAtOnce = kTurns < 8 ? kTurns : 8;  // code that runs once comes slowly: no more of it than rows need
  struct Staged {
    uint32_t q[kAtOnce][kPairs];
    float2 a[kAtOnce][kPairs];
    float lse[kAtOnce];
  };
  __device__ __forceinline__ static void load(Staged& x, const DropScoreArgs& args, int request, int kv_head, int base) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int row = base + u * kWarps;
      const bool exists = row < S::kRows;
      const int64_t head = kv_head * GROUP + row / WINDOW;
      const T* const from = query_row(args, request, kv_head, row);
      const A* const output = output_row(args, request, kv_head, row);
      x.lse[u] = exists ? args.lse[request * args.lse_batch_stride + head * args.lse_head_stride + row % WINDOW] : -minus_infinity();
#pragma unroll
      for (int i = 0; i < kPairs; ++i) {
        const int dim = 2 * (32 * i + lane);
        const bool inside = exists && dim < HEAD_DIM;
        x.q[u][i] = inside ? *reinterpret_cast<const uint32_t*>(from + dim) : 0u;
        if constexpr (RULE == Rule::kDropKV)
          x.a[u][i] = inside ? make_float2(to_float(output[dim]), to_float(output[dim + 1])) : make_float2(0.0f, 0.0f);
      }
    }
  }
  __device__ __forceinline__ void store(Staged& x, int base) const {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int u = 0; u < kAtOnce; ++u) {
      const int row = base + u * kWarps;
      if (row >= S::kChunks * kProduct) break;
      const int chunk = row / kProduct, at = row % kProduct;
      uint8_t* const to = shared + S::kMatrixOffset + chunk * S::kParts * S::kMatrix;
      const int limit = row < S::kRows ? max(tokens.length - WINDOW + row % WINDOW, -1) : -1;
      if (limit < 0) {  // no such token
        x.lse[u] = -minus_infinity();
#pragma unroll
        for (int i = 0; i < kPairs; ++i) x.q[u][i] = 0u, x.a[u][i] = make_float2(0.0f, 0.0f);
      }
      RowStats s{x.lse[u], 0.0f, -2.0f, limit};
#pragma unroll
      for (int i = 0; i < kPairs; ++i)
        if (const int dim = 2 * (32 * i + lane); dim < HEAD_DIM) *reinterpret_cast<uint32_t*>(to + Matrix::dim_offset(at, dim)) = x.q[u][i];
      if constexpr (RULE == Rule::kDropKV) split(x.a[u], to + S::kMatrix, at, s);
      if (lane == 0) stats[row] = s;
      if constexpr (S::kShort) {
        float* const lses = reinterpret_cast<float*>(shared + S::kShortOffset);
        if (lane == 0) lses[row] = fmaf(s.lse, kLog2E, Terms::kDown), lses[kProduct + row] = s.norm;
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
        const uint32_t word = take_part<T>(rest.x, rest.y);
        *reinterpret_cast<uint32_t*>(to + part * S::kMatrix + Matrix::dim_offset(row, dim)) = word;
      }
    }
  }

  __device__ __forceinline__ float distance(int row, int token) const {
    return squared_distance<HEAD_DIM>(output_row(row), v.row(tokens.place(token)));
  }

  // For ScoreTerms, with fewer roundings than the products of a tile: what is left of 1 - p is as exact as the logit.
  __device__ __forceinline__ float logit(int row, int token) const {
    const float sum = dot_product<HEAD_DIM>(query_row(row), keys_of<T>(args.cache, kv_head).row(tokens.place(token)));
    return SOFTCAP ? fmaf(args.logit_softcap, tanh_accurate(sum * terms.scale), -stats[row].lse) : fmaf(sum, args.softmax_scale, -stats[row].lse);
  }

  __device__ __forceinline__ typename Terms::Rows rows_of(int chunk) const { return {stats + chunk * kProduct}; }

  // The rows of the only product.
  __device__ __forceinline__ auto rows() const {
    if constexpr (S::kShort) {
      return ShortRows{reinterpret_cast<const float*>(shared + S::kShortOffset)};
    } else {
      return rows_of(0);
    }
  }

  // Terms::weigh() where weights are below 2^-10: p / (1 + eps - p) by the first two terms of its series, of which the third, p^2, would
  // change a factor by 2^-19.
  static constexpr float kSmall = -10.0f - Terms::kDown;
  __device__ __forceinline__ void weigh_small(float (&s)[kRegisters]) const {
    const float first = rcp_approx(1.0f + terms.eps), second = 8.0f * first * first;
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const float p = exp2_approx(s[i]), weight = p * fmaf(p, second, first);
      s[i] = multiply_flushed(weight, weight);
    }
  }

  // Whether every row sees every token of a tile: of the whole tile, so that a warp's lanes agree.
  __device__ __forceinline__ bool seen(int tile, uint2 live) const {
    return live.x == kFullWarp && live.y == kFullWarp && (tile + 1) * kRingTokens <= tokens.length - WINDOW;
  }

  // One tile after the other, for windows of several products and rules without distances. `take` fetches the ring's next tile,
  // `write` has a tile's sums.
  template <class Take, class Write>
  __device__ __forceinline__ void one_by_one(int tile, int end, Take take, Write write) const {
    const int place = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4;
    for (; tile < end; tile += kGroups) {
      TileRowsA<HEAD_DIM> key, value;
      const uint2 live = take(key, true);
      float v_norm[2] = {}, sum[2] = {};
#pragma unroll
      for (int chunk = 0; chunk < S::kChunks; ++chunk) {
        float s[kRegisters], d[kRegisters];
        wgmma::fence();
        Matrix::template multiply<T>(s, key.a, matrix(chunk, 0), false);
        wgmma::commit();
        if (chunk == 0 && RULE != Rule::kSnapKV) take(value, true);
        if (chunk == 0 && RULE == Rule::kValueNorm) value.template fold<T>(v_norm, [](float x) { return fabsf(x); });
        if constexpr (RULE == Rule::kDropKV) {
          multiply_outputs(d, value, chunk);
          if (chunk == 0) value.template fold<T>(v_norm, [](float x) { return x * x; });
          wgmma::wait<1>();
        } else {
          wgmma::wait<0>();
        }
        const float top = terms.shift(s, rows_of(chunk));
        const bool plain = seen(tile, live) && !__any_sync(kFullWarp, top > Terms::kHalf + 1e-4f);
        if (plain) terms.weigh(s);
        if constexpr (RULE == Rule::kDropKV) wgmma::wait<0>();
        finish(plain, s, d, v_norm, rows_of(chunk), chunk, tile * kRingTokens + place, sum);
      }
      write(tile, live, sum);
    }
  }

  // The same for one product, with the next tile's logits under way while this one's terms are summed. ptxas waits after each product
  // where one is in flight from an iteration to the next, or A is loaded under a condition: so none is, and the last tile's keys are
  // loaded again.
  template <class Take, class Write>
  __device__ __forceinline__ void overlapped(int tile, int end, Take take, Write write) const {
    const int place = 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4;
    TileRowsA<HEAD_DIM> key, value;
    uint2 live = take(key, true);
    float s[kRegisters], following[kRegisters], d[kRegisters];
    wgmma::fence();
    Matrix::template multiply<T>(s, key.a, matrix(0, 0), false);
    wgmma::commit();
    wgmma::wait<0>();
    for (; tile < end; tile += kGroups) {
      take(value, true);
      multiply_outputs(d, value, 0);
      float v_norm[2], sum[2] = {};
      value.template fold<T>(v_norm, [](float x) { return x * x; });
      const float top = terms.shift(s, rows());
      const bool whole = seen(tile, live), small = S::kShort && whole && !__any_sync(kFullWarp, top > kSmall);
      bool plain = small;
      if (small) {
        weigh_small(s);
      } else {
        plain = whole && !__any_sync(kFullWarp, top > Terms::kHalf + 1e-4f);
        if (plain) terms.weigh(s);
      }
      wgmma::wait<0>();
      const uint2 next = take(key, tile + kGroups < end);
      wgmma::fence();
      Matrix::template multiply<T>(following, key.a, matrix(0, 0), false);
      wgmma::commit();
      finish(plain, s, d, v_norm, rows(), 0, tile * kRingTokens + place, sum);
      write(tile, live, sum);
      live = next;
      wgmma::wait<0>();
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) s[i] = following[i];
    }
  }

  __device__ __forceinline__ void multiply_outputs(float (&d)[kRegisters], const TileRowsA<HEAD_DIM>& value, int chunk) const {
    wgmma::fence();
#pragma unroll
    for (int part = 0; part < kSplits; ++part) Matrix::template multiply<T>(d, value.a, matrix(chunk, 1 + part), part > 0);
    wgmma::commit();
  }
  template <class R>
  __device__ __forceinline__ void finish(bool plain, const float (&s)[kRegisters], const float (&d)[kRegisters], const float (&v_norm)[2],
                                         const R& rows, int chunk, int token, float (&sum)[2]) const {
    if (plain) {
      terms.add(s, d, v_norm, rows, sum);
    } else {
      terms.add_careful(s, d, v_norm, chunk * kProduct, token, sum, *this);
    }
  }
};

// Keeps a warp's 16 scores of a tile as write_scores() would write them; `to` is the tile's.
__device__ __forceinline__ void hold_scores(float* to, float (&sum)[2], float unit, int place, uint2 live) {
  sum[0] = quad_sum(sum[0]);
  sum[1] = quad_sum(sum[1]);
  const int r = threadIdx.x % 4, mine = place + 8 * r;
  if (r > 1) return;
  const bool exists = (mine < 32 ? live.x : live.y) >> mine % 32 & 1;
  to[mine] = exists ? (r ? sum[1] : sum[0]) * unit : __int_as_float(0x7fffffff);
}

}  // namespace drop

// A and kSplits as in drop_score.
template <drop::Rule RULE, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename A, bool SOFTCAP, int kGroups, int kStages,
          int kRowTiles, int kSplits, bool kDependent, int kHeld = 0>
__device__ __forceinline__ void drop_score_wgmma(const DropScoreArgs& args) {
  using namespace drop;
  using S = WgmmaScoreShape<RULE, HEAD_DIM, WINDOW, GROUP, kGroups, kStages, kRowTiles, kSplits, kHeld>;
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM >= 64 && HEAD_DIM <= 128, "a lane holds 16 tokens' keys and values in registers");
  static_assert(WINDOW >= 1 && WINDOW <= 64, "a window is 1 to 64 queries");
  static_assert(GROUP >= 1 && GROUP <= 64, "a group is 1 to 64 query heads");
  static_assert(sizeof(T) == 2, "bf16 and fp16 caches");
  extern __shared__ __align__(128) uint8_t shared[];
  if constexpr (kDependent) ptx::launch_dependents(), ptx::wait_for_dependencies();
  const int kv_head = blockIdx.y, request = blockIdx.z, lane = threadIdx.x % 32;
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);  // known to be the same in a warp
  using Scorer = WgmmaScorer<S, RULE, HEAD_DIM, PAGE, WINDOW, GROUP, T, A, SOFTCAP, kGroups, kSplits>;
  const bool producer = warp >= 4 * kGroups;
  typename Scorer::Staged staged;
  if (!producer) Scorer::load(staged, args, request, kv_head, warp);
  Scorer scorer(args, shared, request, kv_head);
  const int tiles = (scorer.tokens.length + kRingTokens - 1) / kRingTokens;
  // No more blocks than have a tile for every group: a graph captured for long prompts stays cheap at short ones.
  const int blocks = min(static_cast<int>(gridDim.x), max((tiles + kGroups - 1) / kGroups, 1));
  if (static_cast<int>(blockIdx.x) >= blocks || tiles == 0) return;
  const int begin = static_cast<int>(static_cast<int64_t>(tiles) * blockIdx.x / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(tiles) * (blockIdx.x + 1) / blocks);
  RingState<kStages>* const states = reinterpret_cast<RingState<kStages>*>(shared + S::kStateOffset);  // [kGroups]
  if (threadIdx.x < kGroups) {
    states[threadIdx.x].init();
    mbarrier_init_fence();
  }
  __syncthreads();
  const int group = producer ? warp - 4 * kGroups : warp / 4;
  RingState<kStages>& state = states[min(group, kGroups - 1)];
  uint8_t* const ring = shared + group * kStages * S::kTileBytes;
  if (producer) {
    if constexpr (S::kTrades) ptx::release_registers<32>();
    if (group >= kGroups || !elect_lane()) return;
    RingWriter<HEAD_DIM, PAGE, T, kStages> writer(scorer.tokens, state, ring);
    const uint64_t once = evict_first_policy();
    const HeadRows<T> k = keys_of<T>(args.cache, kv_head);
    for (int i = begin + group; i < end; i += kGroups) {
      writer.locate(i);
      writer.fill(k, once);
      if constexpr (RULE != Rule::kSnapKV) writer.fill(scorer.v, once);
    }
    return;
  }
  if constexpr (S::kTrades) ptx::take_registers<160>();
  scorer.store(staged, warp);
  for (int row = warp + Scorer::kWarps * Scorer::kAtOnce; row < S::kChunks * S::kProduct;
       row += Scorer::kWarps * Scorer::kAtOnce) {
    Scorer::load(staged, args, request, kv_head, row);
    scorer.store(staged, row);
  }
  wgmma::proxy_fence();
  asm volatile("bar.sync 1, %0;" ::"n"(128 * kGroups) : "memory");
  RingPlace<kStages> at;
  // Scores leave L2 first: those that stay for long leave it one by one between tiles that are read, and each costs more time than a line
  // of a tile. Tiles make room for one another sooner than for scores: where the next launch writes the same ones, all are still there.
  const uint64_t soon = evict_first_policy();
  float* const scores = args.scores + request * args.score_batch_stride + kv_head * args.score_head_stride;
  // Takes the next tile of the ring into registers; without `more`, the last one again, which nothing will overwrite.
  int last = 0;
  const auto take = [&](TileRowsA<HEAD_DIM>& rows, bool more) {
    if (more) {
      mbarrier_wait(&state.full[at.stage], at.parity);
      last = at.stage;
    }
    rows.load(shared_address(ring) + last * S::kTileBytes);
    const uint2 live = state.live[last];
    __syncwarp();
    if (more && lane == 0) mbarrier_arrive(&state.empty[last]);
    at.next();
    return live;
  };
  // Held ones are written when there is no room for more, and after the last tile: neighbours together, while nothing is read.
  float* const held = reinterpret_cast<float*>(shared + S::kHeldOffset) + group * kHeld * kRingTokens;  // [kHeld][kRingTokens]
  int count = 0, first = begin + group;  // tiles held, and the first of them
  const auto release = [&] {
    ptx::named_barrier(2 + group, 128);
    for (int i = threadIdx.x % 128; i < count * kRingTokens; i += 128) {
      const int token = (first + i / kRingTokens * kGroups) * kRingTokens + i % kRingTokens;
      if (token < scorer.tokens.length)
        asm volatile("st.global.L2::cache_hint.f32 [%0], %1, %2;" ::"l"(scores + token), "f"(held[i]), "l"(soon) : "memory");
    }
  };
  const auto write = [&](int tile, uint2 live, float (&sum)[2]) {
    const int place = 16 * (warp % 4) + lane / 4;
    constexpr float unit = Scorer::Terms::kUnit / GROUP;
    if constexpr (kHeld == 0) {
      write_scores(scores, sum, unit, tile * kRingTokens + place, scorer.tokens.length, live, soon);
    } else {
      hold_scores(held + count * kRingTokens, sum, unit, place, live);
      if (++count < kHeld) return;
      release();
      ptx::named_barrier(2 + group, 128);
      count = 0, first = tile + kGroups;
    }
  };
  if (begin + group >= end) return;
  if constexpr (RULE == Rule::kDropKV && S::kChunks == 1) {
    scorer.overlapped(begin + group, end, take, write);
  } else {
    scorer.one_by_one(begin + group, end, take, write);
  }
  if constexpr (kHeld > 0) release();
}

}  // namespace kvloom
