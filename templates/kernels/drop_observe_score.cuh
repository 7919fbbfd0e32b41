// drop_observe_score: the scores of drop_score from keys, values and queries alone, in one launch.
//
// The blocks of a head are resident together. Pass one adds up softmax(Q K^T) V over a block's tiles against a reference that all share,
// the largest logits of the head's first tile, so that partial sums add in L2; one barrier of the head's blocks; pass two scores the
// tiles from last to first, the last ones from L2. Base-2 logits of a block's first tiles stay in shared memory in 16 bits, in steps of
// 1/512, so that pass two reads of those V alone. Sums meet in L2 in any order: scores differ in last bits from run to run.
//
// A logit 2^31 above its reference shows after the barrier: all blocks of the head then take the true maximum and start again.
#pragma once

#include "kvloom/drop/score_terms.cuh"
#include "kvloom/drop/window_tiles.cuh"
#include "kvloom/mma/m16n8k16.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/grid.cuh"
#include "kvloom/ptx/registers.cuh"
#include "kvloom/drop/budget.cuh"

namespace kvloom {

namespace drop {

// Sizes that the kernel and its plan share. kKeep: tiles of a block whose logits are kept; kSquares: those whose values' squares are.
template <int HEAD_DIM, int WINDOW, int GROUP, int kStages, int kRowTiles, int kSplits, int kKeep, int kSquares>
struct FusedShape {
  static constexpr int kRows = WINDOW * GROUP, kProduct = 8 * kRowTiles, kGroups = 2;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 128;  // the third warpgroup copies
  static constexpr int kTileBytes = kRingTileBytes<HEAD_DIM>;
  static constexpr int kMatrix = RowMatrix<HEAD_DIM, kProduct>::kBytes;     // q, or a part of a
  static constexpr int kWeights = RowMatrix<kRingTokens, kProduct>::kBytes; // of a tile
  static constexpr int kKeptBytes = kRingTokens * kProduct * 2;             // of a tile
  static constexpr int kQueryOffset = kGroups * kStages * kTileBytes;
  static constexpr int kOutputOffset = kQueryOffset + kMatrix;              // weights in pass one, the parts of a in pass two
  static constexpr int kOutputBytes = kSplits * kMatrix > 2 * kGroups * kWeights ? kSplits * kMatrix : 2 * kGroups * kWeights;
  static constexpr int kKeptOffset = kOutputOffset + kOutputBytes;
  static constexpr int kSquaresOffset = kKeptOffset + kKeep * kKeptBytes;
  static constexpr int kStatsOffset = kSquaresOffset + kSquares * kRingTokens * 4;
  static constexpr int kReferenceOffset = kStatsOffset + kProduct * static_cast<int>(sizeof(RowStats));
  static constexpr int kStateOffset = kReferenceOffset + kProduct * 6 * 4;  // reference, log2 of the sum, a maximum of each of 4 warps
  static constexpr int kWordsOffset = kStateOffset + kGroups * static_cast<int>(sizeof(RingState<kStages>));
  static constexpr int kBytes = kWordsOffset + 32;
  // The workspace of a request and head, in words: counters, raised references, then sums of two rounds: [dim][row], and of weights.
  static constexpr int kHeadWords = 64, kSumWords = kProduct * (HEAD_DIM + 1);
  static constexpr int kWords = kHeadWords + 64 + 2 * kSumWords;
};

// What the threads of a block tell each other.
struct FusedWords {
  int ticket, raised, redo;  // raised: a logit of the block is too far above its reference; redo: one of the head is
  int fine;                  // products take both parts of outputs
  int left;                  // the bits of the largest square of what a row's first part leaves
};

// A float whose order is that of its key (budget.cuh); no key is 0.
__device__ __forceinline__ float float_of(uint32_t key) { return __uint_as_float(key & 0x80000000u ? key ^ 0x80000000u : ~key); }

// A squared distance to the first part of a in its place is off by 2 |left| / |a - v| of itself at most: by less than 2^-9 where it is
// this many times the square of what is left.
constexpr float kCoarse = 0x1p20f;
constexpr float kKeptStep = 512.0f, kKeptFloor = 96.0f;  // kept logits: [-96, 32), steps of 1/512
constexpr float kKeptMagic = 8388608.0f;                 // 2^23: whose last bit is 1

template <class S, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, bool SOFTCAP, int kStages, int kSplits, int kKeep,
          int kSquares>
struct Fused : WindowTiles<S, DropObserveScoreArgs, HEAD_DIM, PAGE, WINDOW, GROUP, T, SOFTCAP, kStages> {
  using Base = WindowTiles<S, DropObserveScoreArgs, HEAD_DIM, PAGE, WINDOW, GROUP, T, SOFTCAP, kStages>;
  using typename Base::Matrix;
  using typename Base::Weights;
  using Base::args, Base::at, Base::begin, Base::group, Base::k, Base::kv_head, Base::place, Base::query, Base::request, Base::shared, Base::state,
      Base::take, Base::tiles, Base::tokens, Base::v;
  static constexpr int N = S::kProduct, kRegisters = N / 2, kColumns = N / 4, kBlocks64 = HEAD_DIM / 64;
  // Where weights in T stay finite: a logit this far above its reference raises the reference.
  static constexpr float kOverflow = is_bf16<T> ? 31.0f : 15.0f;
  using Terms = ScoreTerms<Rule::kDropKV, N, SOFTCAP, T>;
  int blocks;             // of the head
  uint32_t* counters;     // [kWords] of the head
  float* reference;       // [N] base-2 logits
  float* log_sum;         // [N] base 2, less the reference
  RowStats* stats;        // [N]
  Terms terms;

  __device__ __forceinline__ Fused(const DropObserveScoreArgs& args, uint8_t* shared, int request, int kv_head, int group, int begin, int tiles,
                                   int blocks, uint32_t* counters)
      : Base(args, shared, request, kv_head, group, begin, tiles), blocks(blocks), counters(counters),
        reference(reinterpret_cast<float*>(shared + S::kReferenceOffset)), log_sum(reference + N),
        stats(reinterpret_cast<RowStats*>(shared + S::kStatsOffset)), terms(stats, args.softmax_scale, args.logit_softcap, args.eps) {}

  __device__ __forceinline__ float* sums(int round) const { return reinterpret_cast<float*>(counters + S::kHeadWords + 64) + round * S::kSumWords; }
  __device__ __forceinline__ float* rounded_norm() const { return log_sum + N; }  // [N] of first parts, where largest logits were
  // The largest logits of the head's first tile, of which group 0 has the keys.
  __device__ __forceinline__ void choose_reference() {
    float* const largest = log_sum + N;  // [4 warps][N]
    if (group == 0) {
      float s[kRegisters];
      this->logits(s, 0);
      this->store_largest(s, largest);
      ptx::named_barrier<2, 128>();
      if (threadIdx.x < N) {
        float top = largest[threadIdx.x];
#pragma unroll
        for (int w = 1; w < 4; ++w) top = fmaxf(top, largest[w * N + threadIdx.x]);
        reference[threadIdx.x] = top == minus_infinity() ? 0.0f : top;
      }
    }
    ptx::named_barrier<1, S::kConsumers>();
  }

  __device__ __forceinline__ float* kept_squares(int index) const {  // [token]
    return reinterpret_cast<float*>(shared + S::kSquaresOffset) + index * kRingTokens;
  }
  // Keeps a tile's logits less the reference, in 16 bits.
  __device__ __forceinline__ void keep(const float (&x)[kRegisters], int index) const {
    uint2* const to = reinterpret_cast<uint2*>(shared + S::kKeptOffset + index * S::kKeptBytes) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      uint32_t u[4];
#pragma unroll
      for (int i = 0; i < 4; ++i)
        u[i] = __float_as_uint(fmaxf(fmaf(x[4 * j + i], kKeptStep, kKeptMagic + kKeptFloor * kKeptStep), kKeptMagic));
      to[j * 128] = make_uint2(__byte_perm(u[0], u[1], 0x5410), __byte_perm(u[2], u[3], 0x5410));
    }
  }
  // The kept logits as Terms::shift() leaves them.
  template <class R>
  __device__ __forceinline__ void kept(float (&x)[kRegisters], int index, const R& rows) const {
    const uint2* const from = reinterpret_cast<const uint2*>(shared + S::kKeptOffset + index * S::kKeptBytes) + threadIdx.x % 128;
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      const uint2 word = from[j * 128];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const float u = __uint_as_float(__byte_perm(i < 2 ? word.x : word.y, 0x4b00u, i % 2 ? 0x5432 : 0x5410)) - (kKeptMagic + kKeptFloor * kKeptStep);
        x[4 * j + i] = fmaf(u, 1.0f / kKeptStep, -rows.lse(4 * j + i));
      }
    }
  }

  // Pass one over the group's tiles, then adds its sums to the head's.
  __device__ __forceinline__ void observe(int round, FusedWords& words) {
    const int lane = threadIdx.x % 32;
    float o[kBlocks64][kRegisters], ref[kColumns], sum[kColumns], top[kColumns];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      ref[c] = reference[c / 2 * 8 + lane % 4 * 2 + c % 2];
      sum[c] = 0.0f;
      top[c] = minus_infinity();
    }
#pragma unroll
    for (int b = 0; b < kBlocks64; ++b)
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) o[b][i] = 0.0f;
    const uint32_t weights = shared_address(shared + S::kOutputOffset + group * 2 * S::kWeights);  // two parts
    for (int i = group; i < tiles; i += S::kGroups) {
      float s[kRegisters];
      this->logits(s, begin + i);
#pragma unroll
      for (int c = 0; c < kColumns; ++c) {
        float& x = s[c / 2 * 4 + c % 2];
        float& y = s[c / 2 * 4 + 2 + c % 2];
        x -= ref[c], y -= ref[c];
        top[c] = fmaxf(top[c], fmaxf(x, y));
      }
      if (i < kKeep) keep(s, i);
#pragma unroll
      for (int j = 0; j < kRegisters; ++j) {
        s[j] = exp2_approx(s[j]);
        sum[j / 4 * 2 + j % 2] += s[j];
      }
      ptx::named_barrier(2 + group, 128);  // every warp is done with the weights of the tile before
      TileRowsA<HEAD_DIM> value;
      const bool keeps = i < kSquares;
      this->add_values(
          o, s, weights,
          [&](uint32_t from) {
            if (keeps) value.load(from);
          },
          [&] {
            if (!keeps) return;
            float square[2];
            value.template fold<T>(square, [](float x) { return x * x; });
            if (lane % 4 == 0) kept_squares(i)[place()] = square[0], kept_squares(i)[place() + 8] = square[1];
          });
    }
    float* const to = sums(round);
    const auto add = [&](int b, const float (&x)[kRegisters]) {
#pragma unroll
      for (int i = 0; i < kRegisters; i += 2)
        ptx::reduce_add2(to + (TileColumnsA<HEAD_DIM>::first_dim(b) + lane / 4 + 8 * Terms::half(i)) * N + Terms::column(i), x[i], x[i + 1]);
    };
    if constexpr (kBlocks64 == 2) {
      // The groups exchange a half each, which halves what is added in L2.
      float* const halves = reinterpret_cast<float*>(shared + S::kOutputOffset) + threadIdx.x % 128;  // [group][register][thread]
      ptx::named_barrier(2 + group, 128);
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) halves[(group * kRegisters + i) * 128] = group ? o[0][i] : o[1][i];
      ptx::named_barrier<1, S::kConsumers>();
      float x[kRegisters];
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) x[i] = (group ? o[1][i] : o[0][i]) + halves[((1 - group) * kRegisters + i) * 128];
      add(group, x);
    } else {
      add(0, o[0]);
    }
    this->fold_columns(sum, [](float x, float y) { return x + y; }, [&](int row, float x) { atomicAdd(to + HEAD_DIM * N + row, x); });
    float highest = top[0];
#pragma unroll
    for (int c = 1; c < kColumns; ++c) highest = fmaxf(highest, top[c]);
    if (highest > kOverflow) {
      words.raised = 1;
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        if (top[c] > kOverflow) atomicMax(counters + S::kHeadWords + c / 2 * 8 + lane % 4 * 2 + c % 2, key_of(ref[c] + top[c]));
    }
  }

  // Waits for the head's sums. False: some logits were too far above their reference; there are new ones. That a block has such logits
  // comes with its arrival: no second trip to L2 to ask.
  __device__ __forceinline__ bool meet(int round, FusedWords& words) {
    constexpr uint32_t kRaised = 0x10000u;
    ptx::named_barrier<1, S::kConsumers>();
    if (threadIdx.x == 0) {
      ptx::add_release(counters + round, words.raised ? 1 + kRaised : 1u);
      const uint32_t arrived = ptx::wait_grid(counters + round, blocks, kRaised - 1);
      if (round == 0 && arrived >= kRaised) words.redo = 1;
    }
    ptx::named_barrier<1, S::kConsumers>();
    if (round > 0 || !words.redo) return true;
    for (int i = threadIdx.x; i < N; i += S::kConsumers)
      if (const uint32_t key = __ldcg(counters + S::kHeadWords + i); key != 0) reference[i] = float_of(key);
    ptx::named_barrier<1, S::kConsumers>();
    return false;
  }

  // Outputs of the window from the head's sums: parts as an operand, and what the terms need of each row, in one trip to L2. A warp takes N / 8
  // rows, several lanes each.
  __device__ __forceinline__ void conclude(int round, FusedWords& words) const {
    constexpr int kEach = N / (S::kConsumers / 32), kWide = kEach > 4 ? 8 : kEach > 2 ? 4 : kEach;  // rows of a warp
    constexpr int kLanes = 32 / kWide, kPairs = HEAD_DIM / kLanes / 2;                              // a row's lanes and their dims
    const int lane = threadIdx.x % 32, slice = lane / kWide, row = threadIdx.x / 32 * kEach + min(lane % kWide, kEach - 1);
    // Addresses of a lane's first pair and constants: code that runs once comes slowly.
    const float* const from = sums(round) + row;
    const float* const first = from + 2 * slice * N;
    uint8_t* const to = shared + S::kOutputOffset + Matrix::dim_offset(row, 2 * slice);
    const float all = __ldcg(from + HEAD_DIM * N);
    float2 a[kPairs];
#pragma unroll
    for (int u = 0; u < kPairs; ++u) {
      const int dim = 2 * u * kLanes;
      a[u] = make_float2(__ldcg(first + dim * N), __ldcg(first + (dim + 1) * N));
    }
    float unit = all == 0.0f ? 0.0f : 1.0f / all, unscale = 1.0f;
    if constexpr (!is_bf16<T>) {  // bf16 has f32's exponents, fp16 has not
      float largest = 0.0f;
#pragma unroll
      for (int u = 0; u < kPairs; ++u) largest = fmaxf(largest, fmaxf(fabsf(a[u].x), fabsf(a[u].y)));
#pragma unroll
      for (int step = kWide; step < 32; step *= 2) largest = fmaxf(largest, __shfl_xor_sync(kFullWarp, largest, step));
      const PowerOfTwo p(largest * unit);
      unscale = p.value, unit *= p.inverse;
    }
    float norm = 0.0f, rounded = 0.0f, left = 0.0f;  // squares of a, its first part, the rest
    const bool mine = lane % kWide < kEach;
#pragma unroll
    for (int u = 0; u < kPairs; ++u) {
      float2 rest = make_float2(a[u].x * unit, a[u].y * unit);
      norm = fmaf(rest.x, rest.x, fmaf(rest.y, rest.y, norm));
#pragma unroll
      for (int part = 0; part < kSplits; ++part) {
        const uint32_t word = take_part<T>(rest.x, rest.y);
        if (part == 0) {
          const float2 taken = unpack2<T>(word);
          rounded = fmaf(taken.x, taken.x, fmaf(taken.y, taken.y, rounded));
          left = fmaf(rest.x, rest.x, fmaf(rest.y, rest.y, left));
        }
        if (mine) *reinterpret_cast<uint32_t*>(to + part * S::kMatrix + Matrix::dim_offset(0, 2 * u * kLanes)) = word;
      }
    }
#pragma unroll
    for (int step = kWide; step < 32; step *= 2) {
      norm += __shfl_xor_sync(kFullWarp, norm, step);
      rounded += __shfl_xor_sync(kFullWarp, rounded, step);
      left += __shfl_xor_sync(kFullWarp, left, step);
    }
    left *= unscale * unscale, norm *= unscale * unscale, rounded *= unscale * unscale;
    // Where a is not much shorter than values, of which those of the block's first tile tell, first parts would rarely do.
    bool fine = kSquares == 0;
    if constexpr (kSquares > 0) {
      const float square = warp_sum(kept_squares(0)[lane] + kept_squares(0)[lane + 32]) * (1.0f / kRingTokens);
      fine = !(4.0f * norm <= square && 4.0f * kCoarse * left <= square);
    }
    if (fine) words.fine = 1;
    if (slice != 0 || !mine) return;
    const int limit = this->limit_of(row);
    const float log2_sum = log2f(all);
    log_sum[row] = limit >= 0 ? log2_sum : -minus_infinity();
    stats[row] = {limit >= 0 ? (reference[row] + log2_sum) * kLn2 : -minus_infinity(), norm, -2.0f * unscale, limit};
    rounded_norm()[row] = rounded;
    if (left > 0.0f) atomicMax(&words.left, __float_as_int(left));
  }

  // For ScoreTerms: logit and distance of one row and token, by the whole warp, from the tensors themselves.
  __device__ __forceinline__ float logit(int row, int token) const {
    const float sum = dot_product<HEAD_DIM>(query(row), k.row(tokens.place(token)));
    return SOFTCAP ? fmaf(args.logit_softcap, tanh_accurate(sum * terms.scale), -stats[row].lse) : fmaf(sum, args.softmax_scale, -stats[row].lse);
  }
  __device__ __forceinline__ float distance(int row, int token) const {
    const T* const value = v.row(tokens.place(token));
    const float back = -0.5f * stats[row].unscale;
    float sum = 0.0f;
    for (int d = threadIdx.x % 32; d < HEAD_DIM; d += 32) {
      float a = 0.0f;
#pragma unroll
      for (int part = 0; part < kSplits; ++part)
        a += to_float(*reinterpret_cast<const T*>(shared + S::kOutputOffset + part * S::kMatrix + Matrix::dim_offset(row, d)));
      const float difference = fmaf(a, back, -to_float(value[d]));
      sum = fmaf(difference, difference, sum);
    }
    return warp_sum(sum);
  }

  // Takes a tile of values; their product with the outputs is under way.
  __device__ __forceinline__ uint2 multiply_outputs(float (&d)[kRegisters], TileRowsA<HEAD_DIM>& value, bool fine) {
    const uint2 live = take([&](uint32_t from) { value.load(from); });
    wgmma::fence();
    const uint32_t outputs = shared_address(shared + S::kOutputOffset);
    Matrix::template multiply<T>(d, value.a, Matrix::descriptor(outputs), false);
    if (fine) Matrix::template multiply<T>(d, value.a, Matrix::descriptor(outputs + S::kMatrix), true);
    wgmma::commit();
    return live;
  }
  // Adds the products with what first parts leave, by one warp.
  __device__ __forceinline__ void refine(float (&d)[kRegisters], const TileRowsA<HEAD_DIM>& value) const {
    const int lane = threadIdx.x % 32;
    const uint8_t* const from = shared + S::kOutputOffset + S::kMatrix + Matrix::offset(lane / 4, lane % 4 * 2);
#pragma unroll
    for (int j = 0; j < N / 8; ++j) {
      float x[4] = {d[4 * j], d[4 * j + 1], d[4 * j + 2], d[4 * j + 3]};
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 16; ++i) {
        const uint32_t low = *reinterpret_cast<const uint32_t*>(from + Matrix::offset(8 * j, 16 * i));
        const uint32_t high = *reinterpret_cast<const uint32_t*>(from + Matrix::offset(8 * j, 16 * i + 8));
        mma_m16n8k16(x, value.a[i].m[0], value.a[i].m[1], value.a[i].m[2], value.a[i].m[3], low, high, T());
      }
#pragma unroll
      for (int r = 0; r < 4; ++r) d[4 * j + r] = x[r];
    }
  }
  // Scores a tile from shifted logits, when the product with outputs is done.
  template <class R>
  __device__ __forceinline__ void finish(int tile, uint2 live, float (&s)[kRegisters], float (&d)[kRegisters],
                                         const float (&v_norm)[2], const R& rows, const TileRowsA<HEAD_DIM>& value, bool fine, float coarse) const {
    const uint64_t stay = evict_normal_policy();  // scores outlive the tiles, and do not push out those that pass two reads again
    float* const scores = args.scores + request * args.score_batch_stride + kv_head * args.score_head_stride;
    const int token = tile * kRingTokens + place();
    float factors[kRegisters], sum[2] = {}, total[2] = {};
    terms.weigh_small(s, factors);
    wgmma::wait<0>();
    terms.add(factors, d, v_norm, rows, sum, total);
    // One vote: weights are small, and so are the errors of a token's distances, each at most 2 |left| times it, which add up to no more than
    // that times the root of sum and total.
    const bool whole = this->seen(tile, live);
    const bool good = sum[0] >= coarse * total[0] && sum[1] >= coarse * total[1] && fmaxf(total[0], total[1]) <= Terms::kSmall;
    if (__builtin_expect(!whole || !__all_sync(kFullWarp, good), 0)) {
      if (!fine) refine(d, value);
      float top = s[0];
#pragma unroll
      for (int i = 1; i < kRegisters; ++i) top = fmaxf(top, s[i]);
      sum[0] = sum[1] = 0.0f;
      if (whole && !__any_sync(kFullWarp, top > Terms::kHalf + 0.005f)) {
        terms.weigh(s);
        terms.add(s, d, v_norm, typename Terms::Rows{stats}, sum);
      } else {
        terms.add_careful(s, d, v_norm, 0, token, sum, *this);
      }
    }
    write_scores(scores, sum, Terms::kUnit / GROUP, token, tokens.length, live, stay);
  }

  // Pass two over the group's tiles, from the last: those whose logits were not kept, then the others.
  __device__ __forceinline__ void score(const FusedWords& words) {
    const bool fine = __shfl_sync(kFullWarp, words.fine, 0);
    int i = group + ((tiles - group + S::kGroups - 1) / S::kGroups - 1) * S::kGroups;
    typename Terms::template HeldRows<!is_bf16<T>> rows(typename Terms::Rows{stats});
    const float coarse = fine ? -1.0f : kCoarse * __int_as_float(words.left);
    if (!fine) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) rows.norms[c] = rounded_norm()[Terms::column(c / 2 * 4 + c % 2)];
    }
    float s[kRegisters], d[kRegisters], v_norm[2];
    TileRowsA<HEAD_DIM> key, value;
    for (; i >= kKeep; i -= S::kGroups) {
      this->multiply_keys(s, key);
      wgmma::wait<0>();
      const uint2 live = multiply_outputs(d, value, fine);
      if (i < kSquares) {
        v_norm[0] = kept_squares(i)[place()], v_norm[1] = kept_squares(i)[place() + 8];
      } else {
        value.template fold<T>(v_norm, [](float x) { return x * x; });
      }
      terms.shift(s, rows);
      finish(begin + i, live, s, d, v_norm, rows, value, fine, coarse);
    }
    if constexpr (kKeep > 0) {
#pragma unroll
      for (int c = 0; c < kColumns; ++c) rows.lses[c] = log_sum[Terms::column(c / 2 * 4 + c % 2)] + Terms::kDown;
      for (; i >= 0; i -= S::kGroups) {
        const uint2 live = multiply_outputs(d, value, fine);
        v_norm[0] = kept_squares(i)[place()], v_norm[1] = kept_squares(i)[place() + 8];
        kept(s, i, rows);
        finish(begin + i, live, s, d, v_norm, rows, value, fine, coarse);
      }
    }
  }

  // Takes the stages of pass two without a look, after new references.
  __device__ __forceinline__ void pass_over() {
    for (int i = group; i < tiles; i += S::kGroups) {
      if (i >= kKeep) take([](uint32_t) {});
      take([](uint32_t) {});
    }
  }

  // The producer's part: the same tiles in the same order.
  __device__ __forceinline__ void fill(int round, int warm) {
    RingWriter<HEAD_DIM, PAGE, T, kStages> writer(tokens, state, shared + group * kStages * S::kTileBytes);
    writer.at = at;
    const uint64_t once = evict_first_policy(), stay = evict_normal_policy();
    // L2 holds more beside it where pass two reads V alone: 12 tiles of it for 16 of both were best at 32 tiles a block.
    const int stays = tiles > kKeep ? warm : warm * 3 / 4;
    if (round == 0 && group == 0) {
      writer.locate(0);
      writer.fill(k, stay);
    }
    for (int i = group; i < tiles; i += S::kGroups) {
      writer.locate(begin + i);
      const bool soon = i >= tiles - stays;  // pass two begins here
      writer.fill(k, soon && i >= kKeep ? stay : once);
      writer.fill(v, soon ? stay : once);
    }
    const int mine = (tiles - group + S::kGroups - 1) / S::kGroups;
    for (int i = group + (mine - 1) * S::kGroups; i >= 0; i -= S::kGroups) {
      writer.locate(begin + i);
      if (i >= kKeep) writer.fill(k, once);
      writer.fill(v, once);
    }
    at = writer.at;
  }
};

}  // namespace drop

// kKeep: tiles of a block whose logits are kept; kSquares: those whose values' squares are, no fewer; kWarm: its last tiles, which are left in L2 for pass two.
template <int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, bool SOFTCAP, int kStages, int kRowTiles, int kSplits, int kKeep,
          int kSquares, int kWarm, bool kDependent>
__device__ __forceinline__ void drop_observe_score(const DropObserveScoreArgs& args) {
  using namespace drop;
  using S = FusedShape<HEAD_DIM, WINDOW, GROUP, kStages, kRowTiles, kSplits, kKeep, kSquares>;
  static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "outputs are whole products of 64 dims");
  static_assert(kSquares >= kKeep, "a tile whose logits are kept needs its values alone");
  static_assert(kSplits == 2, "a part that is rounded to T, and what that leaves");
  static_assert(S::kRows <= S::kProduct, "the window's rows are one product");
  static_assert(sizeof(T) == 2, "bf16 and fp16 caches");
  extern __shared__ __align__(128) uint8_t shared[];
  if constexpr (kDependent) ptx::launch_dependents(), ptx::wait_for_dependencies();
  const int warp = __shfl_sync(kFullWarp, threadIdx.x / 32, 0);  // known to be the same in a warp: else ptxas takes products one by one
  FusedWords& words = *reinterpret_cast<FusedWords*>(shared + S::kWordsOffset);
  // Where not all blocks fit at once, those that run take the heads in order, so that a head's blocks meet.
  const int heads = gridDim.y * gridDim.z, all = gridDim.x * heads;
  uint32_t nsm;
  asm("mov.u32 %0, %%nsmid;" : "=r"(nsm));
  const bool by_ticket = all > static_cast<int>(nsm);
  int work = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  uint32_t* const tickets = args.workspace;
  if (by_ticket) {
    if (threadIdx.x == 0) words.ticket = static_cast<int>(atomicAdd(tickets, 1u));
    __syncthreads();
    work = words.ticket;
  }
  const auto leave = [&] {  // by one thread, when the block has its ticket
    if (by_ticket && ptx::arrive_grid(tickets + 1) == static_cast<uint32_t>(all) - 1) tickets[0] = tickets[1] = 0;
  };
  const int block = work % gridDim.x, kv_head = work / gridDim.x % gridDim.y, request = work / (gridDim.x * gridDim.y);
  using Fusing = Fused<S, HEAD_DIM, PAGE, WINDOW, GROUP, T, SOFTCAP, kStages, kSplits, kKeep, kSquares>;
  const bool producer = warp >= 4 * S::kGroups;
  typename Fusing::Base::Queries queries;
  if (!producer) Fusing::Base::load(queries, args, request, kv_head);
  const int length = length_of<PAGE>(args.cache, request), tiles = (length + kRingTokens - 1) / kRingTokens;
  const int blocks = min(static_cast<int>(gridDim.x), (tiles + S::kGroups - 1) / S::kGroups);
  if (block >= blocks) {
    if (threadIdx.x == 0) leave();
    return;
  }
  const int begin = static_cast<int>(static_cast<int64_t>(tiles) * block / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(tiles) * (block + 1) / blocks);
  if (threadIdx.x < S::kGroups) {
    reinterpret_cast<RingState<kStages>*>(shared + S::kStateOffset)[threadIdx.x].init();
    mbarrier_init_fence();
  }
  const int group = producer ? warp - 4 * S::kGroups : warp / 4;  // two of the producers copy, one clears the workspace
  uint32_t* const counters = args.workspace + 64 + static_cast<int64_t>(request * gridDim.y + kv_head) * S::kWords;
  Fusing fused(args, shared, request, kv_head, group, begin, end - begin, blocks, counters);
  __syncthreads();
  if (producer) {
    ptx::release_registers<72>();
    if (group > S::kGroups) return;
    if (group == S::kGroups) {
      // When every thread of the block has read the sums. Who is last of the head leaves the workspace zeroed.
      ptx::named_barrier<6, S::kConsumers + 32>();
      const int lane = threadIdx.x % 32;
      const bool last = lane == 0 && ptx::arrive_grid(counters + 2) == static_cast<uint32_t>(blocks) - 1;
      if (__any_sync(kFullWarp, last))
        for (int i = lane; i < S::kWords / 4; i += 32) reinterpret_cast<uint4*>(counters)[i] = make_uint4(0, 0, 0, 0);
      if (lane == 0) leave();
      return;
    }
    const bool chosen = elect_lane();
    for (int round = 0;; ++round) {
      if (chosen) fused.fill(round, kWarm);
      __syncwarp();
      ptx::named_barrier(4 + group, 160);
      if (round > 0 || words.redo == 0) return;
    }
  }
  ptx::take_registers<216>();
  fused.store(queries);
  if (threadIdx.x == 0) words = {};
  wgmma::proxy_fence();
  ptx::named_barrier<1, S::kConsumers>();
  fused.choose_reference();
  int round = 0;
  for (;; ++round) {
    fused.observe(round, words);
    if (fused.meet(round, words)) break;
    fused.pass_over();
    ptx::named_barrier(4 + group, 160);
  }
  fused.conclude(round, words);
  wgmma::proxy_fence();
  ptx::named_barrier<6, S::kConsumers + 32>();
  fused.score(words);
  ptx::named_barrier(4 + group, 160);
}

}  // namespace kvloom
