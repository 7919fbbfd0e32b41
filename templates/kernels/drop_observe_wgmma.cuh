// drop_observe on Hopper: the function of drop_observe.cuh with wgmma, fed by rings of tiles of 64 tokens, for windows of up to 64 rows.
//
// Tokens are M of Q K^T, and k of the transposed O = V^T P, whose weights pass through shared memory in two 16-bit parts. A group's
// reference exponent rises only when a logit is far above it. Groups and the blocks of a cluster merge in shared memory, clusters in the
// workspace, all in a fixed order: results repeat bit for bit.
#pragma once

#include "kvloom/drop/window_tiles.cuh"
#include "kvloom/ptx/cluster.cuh"
#include "kvloom/ptx/dependent_launch.cuh"
#include "kvloom/ptx/registers.cuh"

namespace kvloom {

namespace drop {

// Sizes that the kernel and its plan share.
template <int HEAD_DIM, int WINDOW, int GROUP, int kStages, int kRowTiles>
struct WgmmaObserveShape {
  static constexpr int kRows = WINDOW * GROUP, kProduct = 8 * kRowTiles, kGroups = 2;
  static constexpr int kConsumers = 128 * kGroups, kThreads = kConsumers + 128;  // the third warpgroup copies
  static constexpr int kTileBytes = kRingTileBytes<HEAD_DIM>;
  static constexpr int kWeights = RowMatrix<kRingTokens, kProduct>::kBytes;      // of a tile
  static constexpr int kQueryOffset = kGroups * kStages * kTileBytes;
  static constexpr int kWeightsOffset = kQueryOffset + RowMatrix<HEAD_DIM, kProduct>::kBytes;
  static constexpr int kPeakOffset = kWeightsOffset + 2 * kGroups * kWeights;
  static constexpr int kStateOffset = kPeakOffset + kGroups * 4 * kProduct * 4;  // a maximum of each warp and row
  static constexpr int kBytes = kStateOffset + kGroups * static_cast<int>(sizeof(RingState<kStages>));
  static constexpr int kWords = HEAD_DIM / 64 * (kProduct / 2) + kProduct / 2;   // of a thread's state, which merges through the rings
  static constexpr int kPartFloats = kProduct * (HEAD_DIM + 2);                  // of a cluster: O, then peak and sum of each row
  static_assert(kGroups * kWords * 128 * 4 <= kQueryOffset, "the state of a group fits its ring");
};

template <class S, int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, bool SOFTCAP, int kStages>
struct Observer : WindowTiles<S, DropObserveArgs, HEAD_DIM, PAGE, WINDOW, GROUP, T, SOFTCAP, kStages> {
  using Base = WindowTiles<S, DropObserveArgs, HEAD_DIM, PAGE, WINDOW, GROUP, T, SOFTCAP, kStages>;
  using typename Base::Weights;
  using Base::begin, Base::column, Base::group, Base::shared, Base::tiles;
  using Base::Base;
  static constexpr int N = S::kProduct, kRegisters = N / 2, kColumns = N / 4, kBlocks64 = HEAD_DIM / 64;
  static constexpr float kAbove = 8.0f;  // a logit so far above the reference raises it: weights of either type stay finite

  float o[kBlocks64][kRegisters];  // [dim first_dim(b) + l/4 + 8 h][row]
  float peak[kColumns], sum[kColumns];

  // Raises the reference of each row to the largest logit of the tile, where that is larger: the whole group.
  __device__ __forceinline__ void raise(const float (&s)[kRegisters]) {
    const int lane = threadIdx.x % 32;
    float* const largest = reinterpret_cast<float*>(shared + S::kPeakOffset) + group * 4 * N;  // [4 warps][N]
    this->store_largest(s, largest);
    ptx::named_barrier(2 + group, 128);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      float raised = peak[c];
#pragma unroll
      for (int w = 0; w < 4; ++w) raised = fmaxf(raised, largest[w * N + c / 2 * 8 + lane % 4 * 2 + c % 2]);
      const float shrink = exp2_approx(peak[c] - raised);
      peak[c] = raised;
      sum[c] *= shrink;
#pragma unroll
      for (int b = 0; b < kBlocks64; ++b) o[b][c / 2 * 4 + c % 2] *= shrink, o[b][c / 2 * 4 + 2 + c % 2] *= shrink;
    }
  }

  __device__ __forceinline__ void observe() {
    constexpr float kNone = -1e30f;  // finite, so that no -inf minus -inf arises
#pragma unroll
    for (int c = 0; c < kColumns; ++c) peak[c] = kNone, sum[c] = 0.0f;
#pragma unroll
    for (int b = 0; b < kBlocks64; ++b)
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) o[b][i] = 0.0f;
    const uint32_t weights = shared_address(shared + S::kWeightsOffset + group * 2 * S::kWeights);  // two parts
    for (int i = group; i < tiles; i += S::kGroups) {
      float s[kRegisters];
      this->logits(s, begin + i);
      bool above = false;
#pragma unroll
      for (int j = 0; j < kRegisters; ++j) above |= s[j] - peak[j / 4 * 2 + j % 2] > kAbove;
      // Also: every warp is done with the weights of the tile before.
      if (ptx::any_of_group(2 + group, above)) raise(s);
#pragma unroll
      for (int j = 0; j < kRegisters; ++j) {
        s[j] = exp2_approx(s[j] - peak[j / 4 * 2 + j % 2]);
        sum[j / 4 * 2 + j % 2] += s[j];
      }
      this->add_values(o, s, weights, [](uint32_t) {}, [] {});
    }
    // A row's sum is of its own lane's tokens until here.
    float* const totals = reinterpret_cast<float*>(shared + S::kPeakOffset) + group * 4 * N;  // [4 warps][N]
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32 % 4;
    ptx::named_barrier(2 + group, 128);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
#pragma unroll
      for (int step = 4; step < 32; step *= 2) sum[c] += __shfl_xor_sync(kFullWarp, sum[c], step);
      if (lane < 4) totals[warp * N + c / 2 * 8 + lane * 2 + c % 2] = sum[c];
    }
    ptx::named_barrier(2 + group, 128);
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const int row = c / 2 * 8 + lane % 4 * 2 + c % 2;
      sum[c] = (totals[row] + totals[N + row]) + (totals[2 * N + row] + totals[3 * N + row]);
    }
  }

  // The state in words of the thread, 128 threads apart; and adding one whose word is got by its index.
  __device__ __forceinline__ void store(float* slab) const {
#pragma unroll
    for (int b = 0; b < kBlocks64; ++b)
#pragma unroll
      for (int i = 0; i < kRegisters; ++i) slab[(b * kRegisters + i) * 128] = o[b][i];
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      slab[(kBlocks64 * kRegisters + c) * 128] = peak[c];
      slab[(kBlocks64 * kRegisters + kColumns + c) * 128] = sum[c];
    }
  }
  template <class Word>
  __device__ __forceinline__ void merge(Word word) {
#pragma unroll
    for (int c = 0; c < kColumns; ++c) {
      const float other = word(kBlocks64 * kRegisters + c), top = fmaxf(peak[c], other);
      const float mine = exp2_approx(peak[c] - top), theirs = exp2_approx(other - top);
      peak[c] = top;
      sum[c] = fmaf(word(kBlocks64 * kRegisters + kColumns + c), theirs, sum[c] * mine);
#pragma unroll
      for (int b = 0; b < kBlocks64; ++b)
#pragma unroll
        for (int h = 0; h < 2; ++h) {
          const int i = c / 2 * 4 + 2 * h + c % 2;
          o[b][i] = fmaf(word(b * kRegisters + i), theirs, o[b][i] * mine);
        }
    }
  }
};

}  // namespace drop

// O: the type of outputs: f32, or the cache's (fast). kCluster: splits that merge before they go to the workspace. kSlots: parts of a
// head there; more clusters than that take turns at a slot.
template <int HEAD_DIM, int PAGE, int WINDOW, int GROUP, typename T, typename O, bool SOFTCAP, int kStages, int kRowTiles, int kCluster,
          int kSlots, bool kDependent>
__device__ __forceinline__ void drop_observe_wgmma(const DropObserveArgs& args) {
  using namespace drop;
  using S = WgmmaObserveShape<HEAD_DIM, WINDOW, GROUP, kStages, kRowTiles>;
  static_assert(HEAD_DIM == 64 || HEAD_DIM == 128, "outputs are whole products of 64 dims");
  static_assert(S::kRows <= S::kProduct, "the window's rows are one product");
  static_assert(sizeof(T) == 2, "bf16 and fp16 caches");
  constexpr int kColumns = S::kProduct / 4, kCounterWords = 64;
  static_assert(kSlots < kCounterWords, "a word counts the turns of a slot");
  extern __shared__ __align__(128) uint8_t shared[];
  if constexpr (kDependent) ptx::wait_for_dependencies();
  const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, kv_head = blockIdx.y, kv_heads = gridDim.y, request = blockIdx.z;
  using Watching = Observer<S, HEAD_DIM, PAGE, WINDOW, GROUP, T, SOFTCAP, kStages>;
  const bool producer = warp >= 4 * S::kGroups;
  typename Watching::Base::Queries queries;
  if (!producer) Watching::Base::load(queries, args, request, kv_head);
  const int length = length_of<PAGE>(args.cache, request), tiles = (length + kRingTokens - 1) / kRingTokens;
  // Whole clusters: those without a tile for each group leave together.
  const int wanted = (max((tiles + S::kGroups - 1) / S::kGroups, 1) + kCluster - 1) / kCluster * kCluster;
  const int blocks = min(static_cast<int>(gridDim.x), wanted);
  if (static_cast<int>(blockIdx.x) >= blocks) return;
  const int begin = static_cast<int>(static_cast<int64_t>(tiles) * blockIdx.x / blocks);
  const int end = static_cast<int>(static_cast<int64_t>(tiles) * (blockIdx.x + 1) / blocks);
  if (threadIdx.x < S::kGroups) {
    reinterpret_cast<RingState<kStages>*>(shared + S::kStateOffset)[threadIdx.x].init();
    mbarrier_init_fence();
  }
  const int group = producer ? warp - 4 * S::kGroups : warp / 4;  // two of the producers copy
  Watching observer(args, shared, request, kv_head, group, begin, end - begin);
  __syncthreads();
  if (producer) {
    ptx::release_registers<72>();
    if (group < S::kGroups && elect_lane()) {
      const Tokens<PAGE> tokens(args.cache, request, length);
      RingWriter<HEAD_DIM, PAGE, T, kStages> writer(tokens, reinterpret_cast<RingState<kStages>*>(shared + S::kStateOffset)[group],
                                                    shared + group * kStages * S::kTileBytes);
      const HeadRows<T> k = keys_of<T>(args.cache, kv_head), v = values_of<T>(args.cache, kv_head);
      const uint64_t once = evict_first_policy();
      for (int i = begin + group; i < end; i += S::kGroups) {
        writer.locate(i);
        writer.fill(k, once);
        writer.fill(v, once);
      }
    }
    __syncwarp();
    if constexpr (kCluster > 1) {  // every thread of a cluster meets twice
      ptx::cluster_sync<kCluster>();
      ptx::cluster_sync<kCluster>();
    }
    return;
  }
  ptx::take_registers<216>();
  static_cast<const typename decltype(observer)::Base&>(observer).store(queries);
  wgmma::proxy_fence();
  ptx::named_barrier<1, S::kConsumers>();
  observer.observe();

  // Groups, then blocks of the cluster, in order; the rings are empty.
  const uint32_t rank = ptx::cluster_rank<kCluster>();
  float* const slabs = reinterpret_cast<float*>(shared) + threadIdx.x % 128;  // [group][word][thread]
  ptx::named_barrier<1, S::kConsumers>();
  if (group > 0 || rank > 0) observer.store(slabs + group * S::kWords * 128);
  if constexpr (kCluster > 1) {
    ptx::cluster_sync<kCluster>();
  } else {
    ptx::named_barrier<1, S::kConsumers>();
  }
  if (group == 0 && rank == 0) {
    observer.merge([&](int i) { return slabs[(S::kWords + i) * 128]; });
    if constexpr (kCluster > 1) {
      for (int r = 1; r < kCluster; ++r)
        for (int g = 0; g < S::kGroups; ++g) {
          const uint32_t theirs = ptx::map_to_rank(ptx::shared_address(slabs + g * S::kWords * 128), r);
          observer.merge([&](int i) { return __uint_as_float(ptx::load_cluster_word(theirs + i * 512)); });
        }
    }
  }
  if constexpr (kCluster > 1) ptx::cluster_sync<kCluster>();  // no block leaves while another reads its shared memory
  if (rank > 0) return;
  const int clusters = blocks / kCluster, cluster = blockIdx.x / kCluster, slot = cluster % kSlots, parts_used = min(clusters, kSlots);

  const auto finish = [&](int row, int dim, float o, float peak, float sum) {
    if (row >= S::kRows) return;
    const int64_t at = (static_cast<int64_t>(request) * kv_heads + kv_head) * S::kRows + row;
    static_cast<O*>(args.out)[at * HEAD_DIM + dim] = from_float<O>(sum == 0.0f ? 0.0f : o / sum);
    if (dim == 0) args.lse[at] = sum == 0.0f ? minus_infinity() : (peak + log2f(sum)) * kLn2;
  };
  uint32_t* const counter = args.workspace + (static_cast<int64_t>(request) * kv_heads + kv_head) *
                                                 (kCounterWords + static_cast<int64_t>(kSlots) * S::kPartFloats);
  float* const parts = reinterpret_cast<float*>(counter + kCounterWords);  // [kSlots][kPartFloats]
  float* const part = parts + static_cast<int64_t>(slot) * S::kPartFloats;
  const auto row_of = [&](int i) { return observer.column(i); };
  const auto dim_of = [&](int b, int i) { return TileColumnsA<HEAD_DIM>::first_dim(b) + lane / 4 + i / 2 % 2 * 8; };
  if (group == 0) {
    if (cluster >= kSlots) {  // blocks with lower numbers started before
      if (threadIdx.x == 0) ptx::wait_grid(counter + 1 + slot, cluster / kSlots);
      ptx::named_barrier(2, 128);
      observer.merge([&](int word) {
        constexpr int kOutputs = HEAD_DIM / 64 * (S::kProduct / 2);
        if (word < kOutputs) {
          const int b = word / (S::kProduct / 2), i = word % (S::kProduct / 2);
          return __ldcg(part + row_of(i) * HEAD_DIM + dim_of(b, i));
        }
        const int c = (word - kOutputs) % kColumns, row = c / 2 * 8 + lane % 4 * 2 + c % 2;
        return __ldcg(part + S::kProduct * HEAD_DIM + 2 * row + (word - kOutputs) / kColumns);
      });
      ptx::named_barrier(2, 128);  // every warp has read the rows' peaks and sums
    }
#pragma unroll
    for (int b = 0; b < HEAD_DIM / 64; ++b)
#pragma unroll
      for (int i = 0; i < S::kProduct / 2; ++i) {
        const int row = row_of(i), dim = dim_of(b, i), c = i / 4 * 2 + i % 2;
        if (clusters == 1) {
          finish(row, dim, observer.o[b][i], observer.peak[c], observer.sum[c]);
        } else {
          part[row * HEAD_DIM + dim] = observer.o[b][i];
        }
      }
    if (clusters > 1 && threadIdx.x < 4)
#pragma unroll
      for (int c = 0; c < kColumns; ++c)
        *reinterpret_cast<float2*>(part + S::kProduct * HEAD_DIM + 2 * (c / 2 * 8 + lane * 2 + c % 2)) = make_float2(observer.peak[c], observer.sum[c]);
  }
  if (clusters == 1) return;
  ptx::named_barrier<1, S::kConsumers>();
  bool is_last = false;
  if (threadIdx.x == 0) {
    if (cluster + kSlots < clusters) ptx::arrive_grid(counter + 1 + slot);
    is_last = ptx::arrive_grid(counter) == static_cast<uint32_t>(clusters) - 1;
  }
  if (!ptx::any_of_group(1, is_last, S::kConsumers)) return;
  // Four dims of a row a thread: all parts of them, and their peaks, are asked for before the first is used.
  constexpr int kAtOnce = 8;
  for (int quad = threadIdx.x; quad < S::kProduct * (HEAD_DIM / 4); quad += S::kConsumers) {
    const int row = quad / (HEAD_DIM / 4), dim = quad % (HEAD_DIM / 4) * 4;
    float peak = -1e30f, sum = 0.0f;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    for (int first = 0; first < parts_used; first += kAtOnce) {
      float2 stats[kAtOnce];
      float4 x[kAtOnce];
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float* const theirs = parts + static_cast<int64_t>(min(first + u, parts_used - 1)) * S::kPartFloats;
        stats[u] = __ldcg(reinterpret_cast<const float2*>(theirs + S::kProduct * HEAD_DIM + 2 * row));
        x[u] = __ldcg(reinterpret_cast<const float4*>(theirs + row * HEAD_DIM + dim));
      }
      float top = peak;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) top = fmaxf(top, stats[u].x);
      const float shrink = exp2_approx(peak - top);
      peak = top;
      sum *= shrink, o.x *= shrink, o.y *= shrink, o.z *= shrink, o.w *= shrink;
#pragma unroll
      for (int u = 0; u < kAtOnce; ++u) {
        const float w = first + u < parts_used ? exp2_approx(stats[u].x - peak) : 0.0f;
        sum = fmaf(w, stats[u].y, sum);
        o.x = fmaf(w, x[u].x, o.x), o.y = fmaf(w, x[u].y, o.y), o.z = fmaf(w, x[u].z, o.z), o.w = fmaf(w, x[u].w, o.w);
      }
    }
    finish(row, dim, o.x, peak, sum);
    finish(row, dim + 1, o.y, peak, sum);
    finish(row, dim + 2, o.z, peak, sum);
    finish(row, dim + 3, o.w, peak, sum);
  }
  ptx::named_barrier<1, S::kConsumers>();  // the workspace is left zeroed
  for (int64_t i = threadIdx.x; i < static_cast<int64_t>(parts_used) * S::kPartFloats / 4; i += S::kConsumers)
    reinterpret_cast<float4*>(parts)[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
  if (threadIdx.x <= kSlots) counter[threadIdx.x] = 0;
}

}  // namespace kvloom
