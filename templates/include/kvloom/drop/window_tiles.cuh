// Tiles of a prompt against the window's queries, for kernels that sum softmax(Q K^T) V on warpgroups.
//
// S has sizes: kProduct rows, kQueryOffset and kStateOffset in shared memory, kTileBytes of a ring's stage, kWeights of an operand of
// weights, kRows and kConsumers.
#pragma once

#include "kvloom/drop/row_matrix.cuh"
#include "kvloom/ptx/exp2.cuh"
#include "kvloom/ptx/grid.cuh"

namespace kvloom::drop {

template <typename T>
constexpr bool is_bf16 = false;
template <>
constexpr bool is_bf16<bf16> = true;

template <class S, class Args, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, bool SOFTCAP, int kStages>
struct WindowTiles {
  static constexpr int N = S::kProduct, kRegisters = N / 2;
  using Matrix = RowMatrix<HEAD_DIM, N>;
  using Weights = RowMatrix<kRingTokens, N>;
  const Args& args;
  uint8_t* shared;
  Tokens<PAGE> tokens;
  HeadRows<T> k, v;
  int request, kv_head, group, begin, tiles;  // the block's tiles, of which a group takes every kGroups-th
  RingState<kStages>& state;
  RingPlace<kStages> at;
  float scale, cap;       // base-2 logits

  __device__ __forceinline__ WindowTiles(const Args& args, uint8_t* shared, int request, int kv_head, int group, int begin, int tiles)
      : args(args), shared(shared), tokens(args.cache, request, length_of<PAGE>(args.cache, request)), k(keys_of<T>(args.cache, kv_head)),
        v(values_of<T>(args.cache, kv_head)), request(request), kv_head(kv_head), group(group), begin(begin), tiles(tiles),
        state(reinterpret_cast<RingState<kStages>*>(shared + S::kStateOffset)[group]),
        scale(SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E), cap(args.logit_softcap * kLog2E) {}

  __device__ __forceinline__ uint32_t ring() const { return shared_address(shared) + (group * kStages + at.stage) * S::kTileBytes; }
  __device__ __forceinline__ int place() const { return 16 * (threadIdx.x / 32 % 4) + threadIdx.x % 32 / 4; }
  __device__ __forceinline__ static const T* query(const Args& args, int request, int kv_head, int row) {
    return static_cast<const T*>(args.q) + request * args.q_batch_stride + (kv_head * GROUP + row / WINDOW) * args.q_head_stride +
           row % WINDOW * args.q_row_stride;
  }
  __device__ __forceinline__ const T* query(int row) const { return query(args, request, kv_head, row); }
  __device__ __forceinline__ int limit_of(int row) const { return row < S::kRows ? max(tokens.length - WINDOW + row % WINDOW, -1) : -1; }

  // Loads from the stage that comes next, and frees it.
  template <class Load>
  __device__ __forceinline__ uint2 take(Load load) {
    mbarrier_wait(&state.full[at.stage], at.parity);
    load(ring());
    const uint2 live = state.live[at.stage];
    __syncwarp();
    if (threadIdx.x % 32 == 0) mbarrier_arrive(&state.empty[at.stage]);
    at.next();
    return live;
  }

  // The window's queries on their way to shared memory: asked for before the length is known and before the tiles, behind which they
  // would wait. Rows without a token become 0.
  struct Queries {
    static constexpr int kEach = (N * (HEAD_DIM / 8) + S::kConsumers - 1) / S::kConsumers;
    uint4 x[kEach];
  };
  __device__ __forceinline__ static void load(Queries& q, const Args& args, int request, int kv_head) {
#pragma unroll
    for (int u = 0; u < Queries::kEach; ++u) {
      const int i = threadIdx.x + u * S::kConsumers, row = i / (HEAD_DIM / 8);
      q.x[u] = make_uint4(0, 0, 0, 0);
      if (row < S::kRows) q.x[u] = __ldg(reinterpret_cast<const uint4*>(query(args, request, kv_head, row)) + i % (HEAD_DIM / 8));
    }
  }
  __device__ __forceinline__ void store(const Queries& q) const {
#pragma unroll
    for (int u = 0; u < Queries::kEach; ++u) {
      const int i = threadIdx.x + u * S::kConsumers, row = i / (HEAD_DIM / 8);
      if (row >= N) continue;
      const bool exists = limit_of(row) >= 0;
#pragma unroll
      for (int w = 0; w < 4; ++w)
        *reinterpret_cast<uint32_t*>(shared + S::kQueryOffset + Matrix::dim_offset(row, i % (HEAD_DIM / 8) * 8 + 2 * w)) = exists ? (&q.x[u].x)[w] : 0u;
    }
  }

  // Whether every row sees every token of a tile: of the whole tile, so that a warp's lanes agree.
  __device__ __forceinline__ bool seen(int tile, uint2 live) const {
    return live.x == kFullWarp && live.y == kFullWarp && (tile + 1) * kRingTokens <= tokens.length - WINDOW;
  }

  // Takes a tile of keys; its product with the queries is under way.
  __device__ __forceinline__ uint2 multiply_keys(float (&s)[kRegisters], TileRowsA<HEAD_DIM>& key) {
    const uint2 live = take([&](uint32_t from) { key.load(from); });
    wgmma::fence();
    Matrix::template multiply<T>(s, key.a, Matrix::descriptor(shared_address(shared + S::kQueryOffset)), false);
    wgmma::commit();
    return live;
  }

  // Takes a tile of keys: base-2 logits of the lane's two tokens, -inf where masked.
  __device__ __forceinline__ void logits(float (&s)[kRegisters], int tile) {
    TileRowsA<HEAD_DIM> key;
    const uint2 live = multiply_keys(s, key);
    wgmma::wait<0>();
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) s[i] = SOFTCAP ? cap * tanh_accurate(s[i] * scale) : s[i] * scale;
    if (seen(tile, live)) return;
    const int bit = place();
#pragma unroll
    for (int i = 0; i < kRegisters; ++i) {
      const int mine = bit + i / 2 % 2 * 8, row = column(i);
      const bool exists = (mine < 32 ? live.x : live.y) >> mine % 32 & 1;
      if (!exists || (row < S::kRows && tile * kRingTokens + mine > tokens.length - WINDOW + row % WINDOW)) s[i] = minus_infinity();
    }
  }

  // The row of register i of a product.
  __device__ __forceinline__ static int column(int i) { return i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2; }

  // Puts a tile's weights into shared memory as an operand [row][token], in two 16-bit parts, so that outputs have more digits than T.
  __device__ __forceinline__ void store_weights(float (&x)[kRegisters], uint32_t weights) const {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    const int k = 8 * (2 * warp + lane / 8 % 2);  // matrices: the first, then the second 8 of the warp's tokens, of 8 rows, then of the next 8
#pragma unroll
    for (int j = 0; j < kRegisters / 4; j += 2) {
#pragma unroll
      for (int part = 0; part < 2; ++part) {
        uint32_t w[4];
#pragma unroll
        for (int u = 0; u < 4; ++u) {
          if (j + u / 2 >= kRegisters / 4) break;
          float* const pair = x + 4 * j + 2 * u;
          w[u] = take_part<T>(pair[0], pair[1]);
        }
        const uint32_t to = weights + part * S::kWeights;
        if (j + 1 < kRegisters / 4) {
          ptx::stmatrix4_transposed(to + Weights::offset(8 * (j + lane / 16) + lane % 8, k), w);
        } else {
          ptx::stmatrix2_transposed(to + Weights::offset(8 * j + lane % 8, k), w[0], w[1]);
        }
      }
    }
  }

  // Adds a tile's weights times its values to o, of dims TileColumnsA::first_dim(b) and on: takes the tile of values; x is used up. The
  // group's warps must be done with the weights of the tile before. `look` sees the tile, `meanwhile` runs beside the products.
  template <int kBlocks64, class Look, class Meanwhile>
  __device__ __forceinline__ void add_values(float (&o)[kBlocks64][kRegisters], float (&x)[kRegisters], uint32_t weights, Look look,
                                             Meanwhile meanwhile) {
    store_weights(x, weights);
    wgmma::proxy_fence();
    ptx::named_barrier(2 + group, 128);
    TileColumnsA<HEAD_DIM> value;
    take([&](uint32_t from) {
      value.load(from);
      look(from);
    });
    wgmma::fence();
#pragma unroll
    for (int part = 0; part < 2; ++part)
#pragma unroll
      for (int b = 0; b < kBlocks64; ++b)
        Weights::template multiply<T>(o[b], value.a[b], Weights::descriptor(weights + part * S::kWeights), true);
    wgmma::commit();
    meanwhile();
    wgmma::wait<0>();
  }

  // Folds each of a lane's columns over the lanes of a warp that share it, halving what a lane has at each step; gives every row's result
  // to one lane.
  template <class Fold, class Take>
  __device__ __forceinline__ static void fold_columns(const float (&columns)[N / 4], Fold fold, Take take) {
    constexpr int C = N / 4, P = C > 8 ? 16 : C > 4 ? 8 : C > 2 ? 4 : 2;
    const int lane = threadIdx.x % 32;
    float x[P];
#pragma unroll
    for (int c = 0; c < P; ++c) x[c] = columns[c < C ? c : C - 1];
    int count = P, first = 0;
    bool whole = true;  // of lanes with the same result, the first
#pragma unroll
    for (int bit = 16; bit >= 4; bit /= 2) {
      const bool upper = lane & bit;
      if (count > 1) {
        count /= 2;
#pragma unroll
        for (int i = 0; i < P / 2; ++i) {
          if (i >= count) break;
          const float theirs = __shfl_xor_sync(kFullWarp, upper ? x[i] : x[i + count], bit);
          x[i] = fold(upper ? x[i + count] : x[i], theirs);
        }
        first += upper ? count : 0;
      } else {
        x[0] = fold(x[0], __shfl_xor_sync(kFullWarp, x[0], bit));
        whole = whole && !upper;
      }
    }
#pragma unroll
    for (int i = 0; i < (P > 8 ? P / 8 : 1); ++i)
      if (const int c = first + i; whole && c < C) take(c / 2 * 8 + lane % 4 * 2 + c % 2, x[i]);
  }

  // Each row's largest logit of a warp's tokens, to largest[warp of the group][row].
  __device__ __forceinline__ static void store_largest(const float (&s)[kRegisters], float* largest) {
    const int warp = threadIdx.x / 32 % 4;
    float top[N / 4];
#pragma unroll
    for (int c = 0; c < N / 4; ++c) top[c] = fmaxf(s[c / 2 * 4 + c % 2], s[c / 2 * 4 + 2 + c % 2]);
    fold_columns(top, [](float x, float y) { return fmaxf(x, y); }, [&](int row, float x) { largest[warp * N + row] = x; });
  }
};

}  // namespace kvloom::drop
