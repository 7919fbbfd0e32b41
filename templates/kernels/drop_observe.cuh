// drop_observe: full softmax attention of the last WINDOW queries of each request, causal inside the window: f32 log-sum-exp and
// output, for engines whose prefill does not hand them over.
//
// Rows of the window (group x window) are the M dimension, 16 a warp; up to kRowWarps warps share a tile of K and V in shared memory,
// and kGroups groups of such warps take parts of it. Splits over the prompt merge through distributed shared memory where they are one
// cluster, and in the workspace, where the last block of a head adds them in order, so results repeat bit for bit. P is split into kParts 16-bit parts, so that outputs have more digits than the cache.
#pragma once

#include "kvloom/drop/tile_rows.cuh"
#include "kvloom/ptx/async_copy.cuh"
#include "kvloom/ptx/cluster.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/exp2.cuh"
#include "kvloom/ptx/ldmatrix.cuh"

namespace kvloom {

namespace drop {

// Sizes that the kernel and its plan share.
template <int HEAD_DIM, int WINDOW, int GROUP, int kRowWarps, int kGroups, int kSlice, int kStages, int kCluster>
struct ObserveShape {
  static constexpr int kRows = WINDOW * GROUP;
  static constexpr int kBlockRows = 16 * kRowWarps;
  static constexpr int kRowBlocks = (kRows + kBlockRows - 1) / kBlockRows;  // times that K and V are read
  static constexpr int kThreads = 32 * kRowWarps * kGroups;
  static constexpr int kTokens = kGroups * kSlice;                           // of a tile
  static constexpr int kKeyBytes = (2 * HEAD_DIM + 63) / 128 * 128 + 64;     // 16-byte loads of a quarter warp meet each bank once
  static constexpr int kValueBytes = 2 * HEAD_DIM + 16;                      // so do the rows of an ldmatrix
  static constexpr int kStageBytes = kTokens * (kKeyBytes + kValueBytes);
  static constexpr int kWords = HEAD_DIM / 2 + 4;                            // of a lane's state
  static constexpr int kSlabBytes = kGroups > 1 || kCluster > 1 ? kRowWarps * kWords * 32 * 4 : 0;
  static constexpr int kBytes = kStages * kStageBytes > kSlabBytes ? kStages * kStageBytes : kSlabBytes;
  static constexpr int kPartFloats = kBlockRows * (HEAD_DIM + 2);            // of a split: O, then peak and sum of each row
};

// A warp's running softmax of 16 rows. Lane l has rows l/4 and l/4 + 8, and of 8 columns (tokens or dims) 2 (l%4) and the next.
template <int HEAD_DIM, typename T>
struct RowState {
  float o[HEAD_DIM / 8][4];
  float peak[2], sum[2];  // base-2 logits; the sum is this lane's share until the end

  __device__ __forceinline__ void begin() {
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) o[i][j] = 0.0f;
    peak[0] = peak[1] = minus_infinity();
    sum[0] = sum[1] = 0.0f;
  }

  // exp2(x - top) where a top of -inf gives 0, not NaN.
  __device__ __forceinline__ static float weight(float x, float top) { return top == minus_infinity() ? 0.0f : exp2_approx(x - top); }

  __device__ __forceinline__ void rescale(int r, float shrink) {
    sum[r] *= shrink;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i) o[i][2 * r] *= shrink, o[i][2 * r + 1] *= shrink;
  }

  // Adds kSlice tokens: base-2 logits s, -inf where masked; values at `v`, rows of kValueBytes.
  template <int kSlice, int kValueBytes, int kParts>
  __device__ __forceinline__ void add(float (&s)[kSlice / 8][4], uint32_t v) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      float top = minus_infinity();
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n) top = fmaxf(top, fmaxf(s[n][2 * r], s[n][2 * r + 1]));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 1));
      top = fmaxf(top, __shfl_xor_sync(kFullWarp, top, 2));
      if (__any_sync(kFullWarp, top > peak[r])) {
        const float raised = fmaxf(top, peak[r]);
        rescale(r, weight(peak[r], raised));
        peak[r] = raised;
      }
#pragma unroll
      for (int n = 0; n < kSlice / 8; ++n)
#pragma unroll
        for (int j = 2 * r; j < 2 * r + 2; ++j) {
          s[n][j] = weight(s[n][j], peak[r]);
          sum[r] += s[n][j];
        }
    }
#pragma unroll
    for (int step = 0; step < kSlice / 16; ++step) {
      uint32_t p[kParts][4];  // A fragments of P [row, token]
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        float2 x = make_float2(s[2 * step + i / 2][i % 2 * 2], s[2 * step + i / 2][i % 2 * 2 + 1]);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          p[part][i] = take_part<T>(x.x, x.y);
        }
      }
      const uint32_t row = v + (step * 16 + lane % 8 + (lane / 8 & 1) * 8) * kValueBytes + lane / 16 * 16;
#pragma unroll
      for (int d = 0; d < HEAD_DIM / 16; ++d) {
        const ptx::Matrices4 b = ptx::ldmatrix4_transposed(row + d * 32);
#pragma unroll
        for (int part = 0; part < kParts; ++part) {
          mma_m16n8k16(o[2 * d], p[part][0], p[part][1], p[part][2], p[part][3], b.m[0], b.m[1], T());
          mma_m16n8k16(o[2 * d + 1], p[part][0], p[part][1], p[part][2], p[part][3], b.m[2], b.m[3], T());
        }
      }
    }
  }

  // Puts the state into a slab [word][lane]; adds one whose word a lane gets by its index.
  __device__ __forceinline__ void store(float* slab) const {
    float* const at = slab + threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < HEAD_DIM / 8; ++i)
#pragma unroll
      for (int j = 0; j < 4; ++j) at[(4 * i + j) * 32] = o[i][j];
#pragma unroll
    for (int r = 0; r < 2; ++r) at[(HEAD_DIM / 2 + r) * 32] = peak[r], at[(HEAD_DIM / 2 + 2 + r) * 32] = sum[r];
  }
  template <class Load>
  __device__ __forceinline__ void merge(Load word) {
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const float other = word(HEAD_DIM / 2 + r);
      const float top = fmaxf(peak[r], other);
      const float theirs = weight(other, top);
      rescale(r, weight(peak[r], top));
      peak[r] = top;
      sum[r] = fmaf(word(HEAD_DIM / 2 + 2 + r), theirs, sum[r]);
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 8; ++i)
#pragma unroll
        for (int j = 2 * r; j < 2 * r + 2; ++j) o[i][j] = fmaf(word(4 * i + j), theirs, o[i][j]);
    }
  }
};

// Starts the copies of one tile into a stage; tokens that do not exist become zeros. 8-bit elements are widened on the way, which takes
// loads and stores: they are there after the barrier that makes copies seen.
template <class S, int HEAD_DIM, int PAGE, typename T>
__device__ __forceinline__ void copy_tile(const Tokens<PAGE>& tokens, const HeadRows<T>& k, const HeadRows<T>& v, int first, uint32_t stage) {
  constexpr int kPieces = HEAD_DIM / 8;
  for (int i = threadIdx.x; i < S::kTokens * kPieces; i += S::kThreads) {
    const int row = i / kPieces, piece = i % kPieces;
    const Place at = tokens.place(first + row);
    if constexpr (sizeof(T) == 1) {
      uint8_t* const to = static_cast<uint8_t*>(__cvta_shared_to_generic(stage));
      const uint4 none = make_uint4(0, 0, 0, 0);
      *reinterpret_cast<uint4*>(to + row * S::kKeyBytes + piece * 16) = at.live ? load_eight(k.row(at) + piece * 8) : none;
      *reinterpret_cast<uint4*>(to + S::kTokens * S::kKeyBytes + row * S::kValueBytes + piece * 16) = at.live ? load_eight(v.row(at) + piece * 8) : none;
      continue;
    }
    ptx::copy16_or_zero(stage + row * S::kKeyBytes + piece * 16, k.row(at) + piece * 8, at.live);
    ptx::copy16_or_zero(stage + S::kTokens * S::kKeyBytes + row * S::kValueBytes + piece * 16, v.row(at) + piece * 8, at.live);
  }
}

}  // namespace drop

// O: the type of outputs: f32, or the cache's (fast). kSlice: tokens of a tile that a group takes, 16 or 32. kCluster: splits that
// merge before they go to the workspace.
template <int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename O, bool SOFTCAP, int kRowWarps, int kGroups, int kSlice,
          int kStages, int kParts, int kCluster, bool kDependent>
__device__ __forceinline__ void drop_observe(const DropObserveArgs& args) {
  using namespace drop;
  using S = ObserveShape<HEAD_DIM, WINDOW, GROUP, kRowWarps, kGroups, kSlice, kStages, kCluster>;
  static_assert(HEAD_DIM % 16 == 0 && HEAD_DIM >= 64 && HEAD_DIM <= 256, "head dims are whole k steps");
  static_assert(WINDOW >= 1 && WINDOW <= 64 && GROUP >= 1 && GROUP <= 64, "windows and groups are 1 to 64");
  static_assert(kSlice == 16 || kSlice == 32, "a lane of a warp knows of each token of its slice whether it exists");
  using C = typename Compute<T>::type;
  extern __shared__ __align__(128) uint8_t shared[];
  __shared__ int is_last;
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int lane = threadIdx.x % 32, warp = threadIdx.x / 32, row_warp = warp % kRowWarps, group = warp / kRowWarps;
  const int kv_head = blockIdx.y / S::kRowBlocks, kv_heads = gridDim.y / S::kRowBlocks, request = blockIdx.z;
  const int first_row = blockIdx.y % S::kRowBlocks * S::kBlockRows;
  const Tokens<PAGE> tokens(args.cache, request, length_of<PAGE>(args.cache, request));
  const HeadRows<T> k = keys_of<T>(args.cache, kv_head), v = values_of<T>(args.cache, kv_head);
  const int tiles = tokens.length / S::kTokens + (tokens.length % S::kTokens != 0);
  // Whole clusters: those without a tile leave together.
  const int blocks = min(static_cast<int>(gridDim.x), (max(tiles, 1) + kCluster - 1) / kCluster * kCluster);
  if (static_cast<int>(blockIdx.x) >= blocks) return;
  const int begin = static_cast<int>(static_cast<int64_t>(tiles) * blockIdx.x / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(tiles) * (blockIdx.x + 1) / blocks);

  int limit[2];  // last token that the lane's rows see; -1: no such row
  TileRows<HEAD_DIM> q;
  {
    const C* rows[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = first_row + row_warp * 16 + lane / 4 + 8 * r;
      limit[r] = row < S::kRows ? max(tokens.length - WINDOW + row % WINDOW, -1) : -1;
      rows[r] = static_cast<const C*>(args.q) + request * args.q_batch_stride + (kv_head * GROUP + row / WINDOW) * args.q_head_stride +
                row % WINDOW * args.q_row_stride;
    }
    q.load(rows[0], limit[0] >= 0, rows[1], limit[1] >= 0);
  }
  RowState<HEAD_DIM, C> state;
  state.begin();
  const float scale = cache_scale<T>(args.cache.k_scale) * (SOFTCAP ? args.softmax_scale / args.logit_softcap : args.softmax_scale * kLog2E);
  const float cap = args.logit_softcap * kLog2E;
  const uint32_t stages = static_cast<uint32_t>(__cvta_generic_to_shared(shared));
#pragma unroll
  for (int i = 0; i < kStages - 1; ++i) {
    if (begin + i < end) copy_tile<S, HEAD_DIM>(tokens, k, v, (begin + i) * S::kTokens, stages + i * S::kStageBytes);
    ptx::commit_copies();
  }
  for (int tile = begin; tile < end; ++tile) {
    const int stage = (tile - begin) % kStages, next = tile + kStages - 1;
    if constexpr (kStages > 1) {
      ptx::wait_copies<(kStages > 1 ? kStages - 2 : 0)>();
      __syncthreads();  // every warp has the tile, and has left the stage that is filled next
      if (next < end) copy_tile<S, HEAD_DIM>(tokens, k, v, next * S::kTokens, stages + (next - begin) % kStages * S::kStageBytes);
      ptx::commit_copies();
    } else {
      __syncthreads();
      copy_tile<S, HEAD_DIM>(tokens, k, v, tile * S::kTokens, stages);
      ptx::commit_copies();
      ptx::wait_copies<0>();
      __syncthreads();
    }
    const int first = tile * S::kTokens + group * kSlice;
    const uint32_t exist = __ballot_sync(kFullWarp, lane < kSlice && tokens.place(first + lane).live);
    const uint8_t* const keys = shared + stage * S::kStageBytes + group * kSlice * S::kKeyBytes;
    float s[kSlice / 8][4];
#pragma unroll
    for (int n = 0; n < kSlice / 8; ++n) {
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
      q.template multiply<C>(s[n], keys + (8 * n + lane / 4) * S::kKeyBytes);
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int column = 8 * n + lane % 4 * 2 + i % 2;
        const float x = SOFTCAP ? cap * tanh_accurate(s[n][i] * scale) : s[n][i] * scale;
        s[n][i] = (exist >> column & 1) && first + column <= limit[i / 2] ? x : minus_infinity();
      }
    }
    state.template add<kSlice, S::kValueBytes, kParts>(
        s, stages + stage * S::kStageBytes + S::kTokens * S::kKeyBytes + group * kSlice * S::kValueBytes);
  }
  state.sum[0] = quad_sum(state.sum[0]);
  state.sum[1] = quad_sum(state.sum[1]);
  if constexpr (kGroups > 1) {
    ptx::wait_copies<0>();
    float* const slab = reinterpret_cast<float*>(shared) + row_warp * S::kWords * 32;
    for (int other = 1; other < kGroups; ++other) {
      __syncthreads();
      if (group == other) state.store(slab);
      __syncthreads();
      if (group == 0) state.merge([&](int i) { return slab[i * 32 + lane]; });
    }
  }
  if constexpr (kCluster > 1) {
    ptx::wait_copies<0>();
    __syncthreads();
    float* const slab = reinterpret_cast<float*>(shared) + row_warp * S::kWords * 32;
    const uint32_t rank = ptx::cluster_rank<kCluster>();
    if (group == 0 && rank > 0) state.store(slab);
    ptx::cluster_sync<kCluster>();
    if (group == 0 && rank == 0) {
      for (int r = 1; r < kCluster; ++r) {
        const uint32_t theirs = ptx::map_to_rank(ptx::shared_address(slab + lane), r);
        state.merge([&](int i) { return __uint_as_float(ptx::load_cluster_word(theirs + i * 128)); });
      }
    }
    ptx::cluster_sync<kCluster>();  // no block leaves while another reads its shared memory
    if (rank > 0) return;
  }
  const int part_index = blockIdx.x / kCluster, parts_used = blocks / kCluster;

  const auto finish = [&](int row, int dim, float2 o, float peak, float sum) {  // row of the block
    const int of = first_row + row;
    if (of >= S::kRows) return;
    const float unit = sum == 0.0f ? 0.0f : cache_scale<T>(args.cache.v_scale) / sum;
    const int64_t at = (static_cast<int64_t>(request) * kv_heads + kv_head) * S::kRows + of;
    O* const out = static_cast<O*>(args.out) + at * HEAD_DIM + dim;
    out[0] = from_float<O>(o.x * unit);
    out[1] = from_float<O>(o.y * unit);
    if (dim == 0) args.lse[at] = sum == 0.0f ? minus_infinity() : (peak + log2f(sum)) * kLn2;
  };
  constexpr int kCounterWords = 64;
  uint32_t* const counter = args.workspace + (static_cast<int64_t>(request) * gridDim.y + blockIdx.y) *
                                                 (kCounterWords + static_cast<int64_t>(gridDim.x / kCluster) * S::kPartFloats);
  float* const parts = reinterpret_cast<float*>(counter + kCounterWords);  // [split][kPartFloats]
  if (group == 0) {
    float* const part = parts + static_cast<int64_t>(part_index) * S::kPartFloats;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
      const int row = row_warp * 16 + lane / 4 + 8 * r;
#pragma unroll
      for (int i = 0; i < HEAD_DIM / 8; ++i) {
        const int dim = 8 * i + lane % 4 * 2;
        const float2 o = make_float2(state.o[i][2 * r], state.o[i][2 * r + 1]);
        if (parts_used == 1) {
          finish(row, dim, o, state.peak[r], state.sum[r]);
        } else {
          *reinterpret_cast<float2*>(part + row * HEAD_DIM + dim) = o;
        }
      }
      if (parts_used > 1 && lane % 4 == 0)
        *reinterpret_cast<float2*>(part + S::kBlockRows * HEAD_DIM + 2 * row) = make_float2(state.peak[r], state.sum[r]);
    }
  }
  if (parts_used == 1) return;

  __threadfence();
  __syncthreads();
  if (threadIdx.x == 0) is_last = atomicAdd(counter, 1u) == static_cast<uint32_t>(parts_used - 1);
  __syncthreads();
  if (!is_last) return;
  __threadfence();
  for (int pair = threadIdx.x; pair < S::kBlockRows * (HEAD_DIM / 2); pair += S::kThreads) {
    const int row = pair / (HEAD_DIM / 2), dim = pair % (HEAD_DIM / 2) * 2;
    const auto stats = [&](int i) {
      return __ldcg(reinterpret_cast<const float2*>(parts + static_cast<int64_t>(i) * S::kPartFloats + S::kBlockRows * HEAD_DIM + 2 * row));
    };
    float peak = minus_infinity(), sum = 0.0f;
    float2 o = make_float2(0.0f, 0.0f);
#pragma unroll 8
    for (int i = 0; i < parts_used; ++i) peak = fmaxf(peak, stats(i).x);
#pragma unroll 8
    for (int i = 0; i < parts_used; ++i) {
      const float2 theirs = stats(i);
      const float w = RowState<HEAD_DIM, C>::weight(theirs.x, peak);
      const float2 x = __ldcg(reinterpret_cast<const float2*>(parts + static_cast<int64_t>(i) * S::kPartFloats + row * HEAD_DIM + dim));
      sum = fmaf(w, theirs.y, sum);
      o.x = fmaf(w, x.x, o.x);
      o.y = fmaf(w, x.y, o.y);
    }
    finish(row, dim, o, peak, sum);
  }
  __syncthreads();  // the workspace is left zeroed
  for (int64_t i = threadIdx.x; i < static_cast<int64_t>(parts_used) * S::kPartFloats / 2; i += S::kThreads)
    reinterpret_cast<float2*>(parts)[i] = make_float2(0.0f, 0.0f);
  if (threadIdx.x == 0) *counter = 0;
}

}  // namespace kvloom
