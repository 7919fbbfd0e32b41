// What a warp of page_attend holds and does with one tile of 16 tokens of K and V in shared memory: fragments, logits, the running softmax.
// Tokens are the M dimension of both products, S^T = K Q^T and O^T = V^T P^T.
#pragma once

#include "kvloom/mma/m16n8k16.cuh"
#include "kvloom/pack.cuh"
#include "kvloom/ptx/async_copy.cuh"
#include "kvloom/ptx/cluster.cuh"
#include "kvloom/ptx/exp2.cuh"
#include "kvloom/ptx/ldmatrix.cuh"
#include "kvloom/quant/e4m3.cuh"

namespace kvloom {

namespace attend {

constexpr int kTile = 16;       // tokens a warp takes at once
constexpr uint32_t kAll = 0xffffffffu;

// 2^8: how far logits may pass the running maximum before sums are rescaled. Sums stay far inside f32 and P inside f16.
constexpr float kSlack = 8.0f;

// The peak of an empty sum: below any logit that is a number, and itself one, so that exp2(x - peak) asks nothing of x, which may be -inf.
constexpr float kNoPeak = -3e38f;

// exp2(x - peak) where a peak of -inf gives 0, not NaN.
__device__ __forceinline__ float weight(float x, float peak) {
  return x == minus_infinity() ? 0.0f : exp2_approx(x - peak);
}

constexpr int larger(int a, int b) { return a > b ? a : b; }

// Sizes that the kernel and its plan share. kBytes: of an element of the cache; kPadded: rows of a stage keep apart.
template <int HEAD_DIM, int HEADS, int kWarps, int kStages, int kColumns, int kBytes, bool kPadded = true>
struct Shape {
  static constexpr int kBlockWarps = kWarps;
  static constexpr int kColumnHeads = 8 * kColumns;                              // query heads of a block's tile, padded
  static constexpr int kTileHeads = HEADS < kColumnHeads ? HEADS : kColumnHeads;  // stored
  static constexpr int kHeadTiles = (HEADS + kColumnHeads - 1) / kColumnHeads;
  static constexpr int kPieces = kBytes * HEAD_DIM / 16;  // 16-byte pieces of a row of K or V
  static constexpr int kRowBytes = 16 * (kPadded ? kPieces | 1 : kPieces);  // odd: ldmatrix rows meet every bank once
  static constexpr int kQueryRowBytes = 2 * HEAD_DIM + 16;
  static constexpr int kTensorBytes = kTile * kRowBytes;
  static constexpr int kStageBytes = 2 * kTensorBytes;  // K, then V
  static constexpr int kOutStride = HEAD_DIM + 4;      // floats between heads of a warp's result: lanes meet every bank once
  static constexpr int kRingBytes = larger(kStages * kStageBytes, 4 * kTileHeads * kOutStride);  // of one warp, then its result
  static constexpr int kPartFloats = kTileHeads * (HEAD_DIM + 2);  // one split's part: O, then peak and sum of each head
};

// The block's queries in shared memory: heads of the tile [kColumnHeads][kQueryRowBytes], zeros past `heads`. One copy serves the list and the
// streaming kernel of a launch.
template <class S>
__device__ __forceinline__ uint8_t* query_tile() {
  __shared__ __align__(16) uint8_t tile[S::kColumnHeads * S::kQueryRowBytes];
  return tile;
}

// Starts its copies, a group of their own, by all threads of the block.
template <int HEAD_DIM, class S, int kThreads, typename Q>
__device__ __forceinline__ void copy_query(const Q* q_rows, int64_t head_stride, int heads) {
  constexpr int kPieces = HEAD_DIM / 8, kCopies = S::kColumnHeads * kPieces;
#pragma unroll
  for (int turn = 0; turn < (kCopies + kThreads - 1) / kThreads; ++turn) {
    const int i = turn * kThreads + threadIdx.x, head = i / kPieces, at = i % kPieces;
    if (i >= kCopies) break;
    ptx::copy16_or_zero(ptx::shared_address(query_tile<S>()) + head * S::kQueryRowBytes + at * 16, q_rows + (head < heads ? head * head_stride + at * 8 : 0), head < heads);
  }
  ptx::commit_copies();
}

// How a warp reads its fragments from a tile of T in shared memory. Element is what the mma takes; each_key and each_value call
// f(step, a0, a1, a2, a3) with the A operand of every k step of K [token, dim] and of every 16 dims of V^T [dim, token].
template <int HEAD_DIM, typename T>
struct Fragments {
  using Element = T;
  static constexpr int kSteps = HEAD_DIM / 16;

  // The dim of an accumulator of O^T: step, and whether it is one of the lower eight rows.
  __device__ __forceinline__ static int dim(int step, int lower) { return step * 16 + lower * 8 + threadIdx.x % 32 / 4; }

  template <int kRowBytes, class F>
  __device__ __forceinline__ static void each_key(uint32_t tile, F f) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = tile + (lane % 8 + (lane / 8 & 1) * 8) * kRowBytes + lane / 16 * 16;
#pragma unroll
    for (int d = 0; d < kSteps; ++d) {
      const ptx::Matrices4 a = ptx::ldmatrix4(row + d * 32);
      f(d, a.m[0], a.m[1], a.m[2], a.m[3]);
    }
  }

  template <int kRowBytes, class F>
  __device__ __forceinline__ static void each_value(uint32_t tile, F f) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = tile + (lane % 8 + lane / 16 * 8) * kRowBytes + (lane / 8 & 1) * 16;
#pragma unroll
    for (int d = 0; d < kSteps; ++d) {
      const ptx::Matrices4 a = ptx::ldmatrix4_transposed(row + d * 32);
      f(d, a.m[0], a.m[1], a.m[2], a.m[3]);
    }
  }

  // The B operand of Q^T [dim, head] of a tile of 8 heads, and the factor that makes logits of it.
  template <int kRowBytes>
  __device__ __forceinline__ static float query(uint32_t (&q)[kSteps][2], const uint8_t* tile) {
    const int lane = threadIdx.x % 32;
    const uint32_t row = ptx::shared_address(tile) + lane % 8 * kRowBytes;
#pragma unroll
    for (int s = 0; s < kSteps; s += 2) {
      const ptx::Matrices4 b = ptx::ldmatrix4(row + min(2 * s + lane / 8, 2 * kSteps - 1) * 16);
      q[s][0] = b.m[0], q[s][1] = b.m[1];
      if (s + 1 < kSteps) q[s + 1][0] = b.m[2], q[s + 1][1] = b.m[3];
    }
    return 1.0f;
  }
};

// e4m3 multiplies as f16, which holds it exactly. A matrix of ldmatrix is 16 dims of 8 tokens: the k order of a product is free, so a lane
// takes its four neighbouring dims (4p to 4p + 3, p = l % 4) as the pairs 2p and 2p + 8 of a step. Of V its two neighbouring dims become
// rows g and g + 8 of the tile. The query is bf16; times a power of two its largest is between 1 and 2, so that f16 holds what is above
// 2^-21 of it exactly.
template <int HEAD_DIM>
struct Fragments<HEAD_DIM, fp8_e4m3> {
  using Element = fp16;
  static constexpr int kSteps = HEAD_DIM / 16;

  __device__ __forceinline__ static int dim(int step, int lower) { return step * 16 + threadIdx.x % 32 / 4 * 2 + lower; }

  // The address of a lane's row of the matrices of two steps; where the second step does not exist, the first one's again.
  template <int kRowBytes>
  __device__ __forceinline__ static uint32_t matrix_row(uint32_t tile, int step) {
    const int lane = threadIdx.x % 32;
    const int half = step + 1 < kSteps ? lane / 16 * 16 : 0;
    return tile + (lane % 8 + (lane / 8 & 1) * 8) * kRowBytes + step * 16 + half;
  }

  template <int kRowBytes, class F>
  __device__ __forceinline__ static void each_key(uint32_t tile, F f) {
#pragma unroll
    for (int d = 0; d < kSteps; d += 2) {
      const ptx::Matrices4 a = ptx::ldmatrix4(matrix_row<kRowBytes>(tile, d));
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (d + h < kSteps)
          f(d + h, e4m3x2_to_f16x2(a.m[2 * h]), e4m3x2_to_f16x2(a.m[2 * h + 1]), e4m3x2_to_f16x2(a.m[2 * h] >> 16),
            e4m3x2_to_f16x2(a.m[2 * h + 1] >> 16));
    }
  }

  template <int kRowBytes, class F>
  __device__ __forceinline__ static void each_value(uint32_t tile, F f) {
#pragma unroll
    for (int d = 0; d < kSteps; d += 2) {
      const ptx::Matrices4 a = ptx::ldmatrix4_transposed(matrix_row<kRowBytes>(tile, d));
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (d + h < kSteps) {
          // A register holds two dims of two tokens, dims fastest: to two tokens of two dims.
          const uint32_t low = __byte_perm(a.m[2 * h], 0, 0x3120), high = __byte_perm(a.m[2 * h + 1], 0, 0x3120);
          f(d + h, e4m3x2_to_f16x2(low), e4m3x2_to_f16x2(low >> 16), e4m3x2_to_f16x2(high), e4m3x2_to_f16x2(high >> 16));
        }
    }
  }

  template <int kRowBytes>
  __device__ __forceinline__ static float query(uint32_t (&q)[kSteps][2], const uint8_t* tile) {
    const int lane = threadIdx.x % 32;
    const uint8_t* row = tile + lane / 4 * kRowBytes + lane % 4 * 8;
    uint32_t top = 0;
#pragma unroll
    for (int s = 0; s < kSteps; ++s) {
      const uint2 w = *reinterpret_cast<const uint2*>(row + s * 32);
      q[s][0] = w.x, q[s][1] = w.y;
      top = max(max(top, w.x & 0x7fffu), max(w.x >> 16 & 0x7fffu, max(w.y & 0x7fffu, w.y >> 16 & 0x7fffu)));
    }
#pragma unroll
    for (int step = 1; step < 4; step *= 2) top = max(top, __shfl_xor_sync(kAll, top, step));
    const uint32_t biased = min(max(top >> 7, 1u), 253u);  // both powers are normal numbers
    const float down = __uint_as_float((254 - biased) << 23);
#pragma unroll
    for (int s = 0; s < kSteps; ++s)
#pragma unroll
      for (int half = 0; half < 2; ++half)
        q[s][half] = pack2<fp16>(__uint_as_float(q[s][half] << 16) * down, __uint_as_float(q[s][half] & 0xffff0000u) * down);
    return __uint_as_float(biased << 23);
  }
};

// A warp's running softmax. Columns are query heads: lane l has columns 2 (l % 4) and the next of each n tile, at rows
// (tokens or dims) l / 4 and l / 4 + 8.
template <int HEAD_DIM, int kColumns, typename T>
struct State {
  using F = Fragments<HEAD_DIM, T>;
  using Element = typename F::Element;
  static constexpr int kSteps = HEAD_DIM / 16;
  uint32_t q[kColumns][kSteps][2];    // B fragments of Q^T [dim, head]
  float o[kSteps][kColumns][4];       // O^T [dim, head], relative to 2^peak
  float unit[kColumns][2];            // products times it are base-2 logits, or what tanh takes
  float peak[kColumns][2];            // running maximum, base-2 logits; the same in lanes of one column
  float sum[kColumns][2];             // this lane's share of the denominator

  // Takes the query from its tile in shared memory, which a barrier has made whole. scale: see unit.
  template <int kRowBytes>
  __device__ __forceinline__ void begin(const uint8_t* tile, float scale) {
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const float factor = F::template query<kRowBytes>(q[n], tile + 8 * n * kRowBytes);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        unit[n][j] = sizeof(T) == 1 ? scale * __shfl_sync(kAll, factor, 8 * (threadIdx.x % 4) + 4 * j) : scale;
        peak[n][j] = kNoPeak, sum[n][j] = 0.0f;
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[s][n][i] = 0.0f;
    }
  }

  // Raises the running maximum to this tile's logits and rescales what is summed.
  __device__ __forceinline__ void raise(const float (&s)[kColumns][4]) {
    bool sums = false;  // something is summed: not so at a warp's first tile, often its only one
#pragma unroll
    for (int n = 0; n < kColumns; ++n) sums |= fmaxf(peak[n][0], peak[n][1]) > kNoPeak;
    sums = __any_sync(kAll, sums);
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = fmaxf(s[n][j], s[n][j + 2]);
#pragma unroll
        for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, step));
        top = fmaxf(top, peak[n][j]);
        const float shrink = exp2_approx(peak[n][j] - top);
        peak[n][j] = top;
        if (!sums) continue;
        sum[n][j] *= shrink;
#pragma unroll
        for (int d = 0; d < kSteps; ++d) o[d][n][j] *= shrink, o[d][n][j + 2] *= shrink;
      }
  }

  // The weights of a tile's tokens from its logits (in base 2, or what tanh takes), as B fragments of P^T [token, head], and their sum.
  // around(up) calls up, which raises the running maximum, and rescales whatever else is summed.
  template <bool SOFTCAP, typename P, class Around>
  __device__ __forceinline__ void weigh(float (&s)[kColumns][4], uint32_t mask, float cap, uint32_t (&p)[kColumns][2], Around around) {
    const int lane = threadIdx.x % 32;
    const bool live[2] = {(mask >> (lane / 4) & 1) != 0, (mask >> (lane / 4 + 8) & 1) != 0};
    bool grows = false;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if (SOFTCAP) s[n][i] = cap * tanh_accurate(s[n][i]);
        if (!live[i / 2]) s[n][i] = minus_infinity();
        grows |= s[n][i] > peak[n][i % 2] + kSlack;
      }
    if (__any_sync(kAll, grows)) around([&] { raise(s); });
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        s[n][i] = exp2_approx(s[n][i] - peak[n][i % 2]);
        sum[n][i % 2] += s[n][i];
      }
#pragma unroll
      for (int half = 0; half < 2; ++half) p[n][half] = ptx::transpose8x8(pack2<P>(s[n][2 * half], s[n][2 * half + 1]));
    }
  }

  // The weights of a warp's first tiles together, while nothing is summed: weigh without its questions.
  template <bool SOFTCAP, typename P, int kTiles>
  __device__ __forceinline__ void weigh_first(float (&s)[kTiles][kColumns][4], const uint32_t (&mask)[kTiles], float cap, uint32_t (&p)[kTiles][kColumns][2]) {
    const int row = threadIdx.x % 32 / 4;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        float top = kNoPeak, all = 0.0f;
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int i = j; i < 4; i += 2) {
            if (SOFTCAP) s[t][n][i] = cap * tanh_accurate(s[t][n][i]);
            if ((mask[t] >> (row + i / 2 * 8) & 1) == 0) s[t][n][i] = minus_infinity();
            top = fmaxf(top, s[t][n][i]);
          }
#pragma unroll
        for (int step = 4; step < 32; step *= 2) top = fmaxf(top, __shfl_xor_sync(kAll, top, step));
#pragma unroll
        for (int t = 0; t < kTiles; ++t)
#pragma unroll
          for (int i = j; i < 4; i += 2) all += s[t][n][i] = exp2_approx(s[t][n][i] - top);
        peak[n][j] = top, sum[n][j] = all;
      }
#pragma unroll
    for (int t = 0; t < kTiles; ++t)
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int half = 0; half < 2; ++half) p[t][n][half] = ptx::transpose8x8(pack2<P>(s[t][n][2 * half], s[t][n][2 * half + 1]));
  }

  // Logits (or what tanh takes) of a tile whose K is at `stage`.
  template <class S>
  __device__ __forceinline__ void logits(uint32_t stage, float (&s)[kColumns][4]) const {
    float odd[kColumns][4];  // two chains of products
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = odd[n][i] = 0.0f;
    F::template each_key<S::kRowBytes>(stage, [&](int d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) mma_m16n8k16(d % 2 ? odd[n] : s[n], a0, a1, a2, a3, q[n][d][0], q[n][d][1], Element());
    });
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = (s[n][i] + odd[n][i]) * unit[n][i % 2];
  }

  // Adds a tile's values, which lie behind its K, by their weights.
  template <class S>
  __device__ __forceinline__ void values(uint32_t stage, const uint32_t (&p)[kColumns][2]) {
    F::template each_value<S::kRowBytes>(stage + S::kTensorBytes, [&](int d, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3) {
#pragma unroll
      for (int n = 0; n < kColumns; ++n) mma_m16n8k16(o[d][n], a0, a1, a2, a3, p[n][0], p[n][1], Element());
    });
  }

  // One tile of 16 tokens: K at `stage`, V behind it. cap: of the logits, where there is one.
  template <bool SOFTCAP, class S>
  __device__ __forceinline__ void add(uint32_t stage, uint32_t mask, float cap) {
    float s[kColumns][4];
    logits<S>(stage, s);
    uint32_t p[kColumns][2];  // B fragments of P^T [token, head]
    weigh<SOFTCAP, Element>(s, mask, cap, p, [](const auto& up) { up(); });
    values<S>(stage, p);
  }
};

// Writes the warp's O^T, peaks and sums to shared memory.
template <class S, int HEAD_DIM, int kColumns, typename T>
__device__ __forceinline__ void store_state(State<HEAD_DIM, kColumns, T>& state, float* out, float2* stats) {
  using F = Fragments<HEAD_DIM, T>;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int n = 0; n < kColumns; ++n)
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const int head = 8 * n + lane % 4 * 2 + j;
      float sum = state.sum[n][j];
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
      if (head < S::kTileHeads) {
        if (lane < 4) stats[head] = make_float2(state.peak[n][j], sum);
#pragma unroll
        for (int d = 0; d < F::kSteps; ++d) {
          out[head * S::kOutStride + F::dim(d, 0)] = state.o[d][n][j];
          out[head * S::kOutStride + F::dim(d, 1)] = state.o[d][n][j + 2];
        }
      }
    }
}

}  // namespace attend

}  // namespace kvloom
