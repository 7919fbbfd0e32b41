// kv_quantize: KIVI's quantisation of every page that became complete since quantized_lens: keys per channel over the page's tokens, values per
// token over groups of 32 channels (quant/kivi.cuh). A warp takes a page of one KV head: it finds the channels' and the groups' ranges, then
// codes the rows with the scales as they were rounded. Rows of up to 4096 elements wait in shared memory, others are read twice.
//
// With WRITE_BACK a page's keys become what their codes mean, rounded to bf16: a summary built from them afterwards is built from what
// attention will read.
#pragma once

#include "kvloom/abi.cuh"
#include "kvloom/pack.cuh"
#include "kvloom/ptx/load.cuh"
#include "kvloom/quant/kivi.cuh"

namespace kvloom {

namespace quantize {

constexpr uint32_t kNaN16 = 0x7fffu;  // of f16, and of bf16

// The smallest and the largest of finite numbers, and whether all were finite.
struct Range {
  float low, high;
  bool finite;

  __device__ __forceinline__ Range() : low(__uint_as_float(0x7f800000u)), high(-low), finite(true) {}
  __device__ __forceinline__ void add(float x) {
    low = fminf(low, x), high = fmaxf(high, x);
    finite = finite && fabsf(x) <= 3.4e38f;
  }
};

// A scale as it is stored and meant, and the zero.
struct Grid {
  float scale, zero;
  uint16_t scale_bits, zero_bits;
};

__device__ __forceinline__ uint16_t f16_bits(float x) { return __half_as_ushort(__float2half_rn(fminf(fmaxf(x, -65504.0f), 65504.0f))); }
__device__ __forceinline__ float f16_value(uint16_t bits) { return __half2float(__ushort_as_half(bits)); }
__device__ __forceinline__ uint16_t bf16_bits(float x) { return static_cast<uint16_t>(pack2<bf16>(x, 0.0f)); }
__device__ __forceinline__ float bf16_value(uint16_t bits) { return __uint_as_float(static_cast<uint32_t>(bits) << 16); }

// The grid of a channel of keys, whose scale is stored over factor: zero is the smallest key.
template <class R>
__device__ __forceinline__ Grid key_grid(const Range& r, int factor) {
  if (!r.finite) return {__uint_as_float(0x7fc00000u), __uint_as_float(0x7fc00000u), kNaN16, kNaN16};
  Grid grid;
  grid.zero_bits = f16_bits(r.low);
  grid.zero = f16_value(grid.zero_bits);
  grid.scale_bits = f16_bits(fmaxf(r.high - grid.zero, 0.0f) / static_cast<float>(R::kTop * factor));
  grid.scale = f16_value(grid.scale_bits) * static_cast<float>(factor);
  return grid;
}

// The grid of a group of values: zero is what the middle code means.
template <class R>
__device__ __forceinline__ Grid value_grid(const Range& r) {
  if (!r.finite) return {__uint_as_float(0x7fc00000u), __uint_as_float(0x7fc00000u), kNaN16, kNaN16};
  Grid grid;
  grid.scale_bits = bf16_bits(r.high / R::kTop - r.low / R::kTop);  // divided first: the difference may overflow
  grid.scale = bf16_value(grid.scale_bits);
  grid.zero_bits = bf16_bits(r.low + grid.scale * R::kMiddle);
  grid.zero = bf16_value(grid.zero_bits);
  return grid;
}

// The code of x under a grid; half of everything, for differences may overflow.
template <class R>
__device__ __forceinline__ uint32_t code_of(float x, float scale, float zero, int middle) {
  if (!(scale > 0.0f)) return middle;
  const float steps = __fdividef(0.5f * x - 0.5f * zero, 0.5f * scale) + static_cast<float>(middle);  // to two units of f32: ties may fall either way
  return static_cast<uint32_t>(__float2int_rn(fminf(fmaxf(steps, 0.0f), static_cast<float>(R::kTop))));
}

// What one warp works on: grids of a page, as floats, and the rows of its keys, then of its values, where they are small enough.
template <class R, int HEAD_DIM, int PAGE>
struct Grids {
  static constexpr bool kStaged = PAGE * HEAD_DIM <= 4096;
  static constexpr int kPitch = HEAD_DIM + 8;  // elements of a staged row
  alignas(16) uint16_t rows[kStaged ? PAGE * kPitch : 8];
  float2 keys[HEAD_DIM];               // scale, zero
  float2 values[PAGE * R::kGroups];
};

// A page's rows on their way to shared memory, 16 bytes at a time.
template <int HEAD_DIM, int PAGE, int PITCH>
struct Rows {
  static constexpr int kPieces = PAGE * HEAD_DIM / 8, kEach = (kPieces + 31) / 32;
  uint4 piece[kEach];

  __device__ __forceinline__ void load(const uint16_t* from, int64_t stride, int lane) {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane + 32 * i;
      if (at < kPieces) piece[i] = *reinterpret_cast<const uint4*>(from + at / (HEAD_DIM / 8) * stride + at % (HEAD_DIM / 8) * 8);
    }
  }
  __device__ __forceinline__ void store(uint16_t* rows, int lane) const {
#pragma unroll
    for (int i = 0; i < kEach; ++i) {
      const int at = lane + 32 * i;
      if (at < kPieces) *reinterpret_cast<uint4*>(rows + at / (HEAD_DIM / 8) * PITCH + at % (HEAD_DIM / 8) * 8) = piece[i];
    }
  }
};

// One page of one head.
template <int HEAD_DIM, int PAGE, int BITS, bool WRITE_BACK>
struct Page {
  using R = KiviRecord<HEAD_DIM, PAGE, BITS>;
  const uint16_t* k;     // rows, strides in elements
  const uint16_t* v;
  int64_t k_stride, v_stride;
  uint16_t* written;     // where keys go back to
  int64_t written_stride;
  uint8_t* record;
  Grids<R, HEAD_DIM, PAGE>& grids;
  int lane;

  // The dims of a pair of a key's quarter.
  __device__ __forceinline__ static int key_dim(int group, int quarter, int pair) {
    return 32 * group + quarter * (2 * group + 1 < R::kSteps ? 8 : 4) + 2 * pair;
  }

  __device__ __forceinline__ void key_grids() const {
    for (int d = 2 * lane; d < HEAD_DIM; d += 64) {
      Range range[2];
#pragma unroll(PAGE < 16 ? PAGE : 16)
      for (int t = 0; t < PAGE; ++t) {
        const float2 x = unpack2<bf16>(*reinterpret_cast<const uint32_t*>(k + t * k_stride + d));
        range[0].add(x.x), range[1].add(x.y);
      }
      const int group = d / 32, width = 2 * group + 1 < R::kSteps ? 8 : 4;
      const int factor = R::factor(R::field(group, d % width / 2));
      const Grid a = key_grid<R>(range[0], factor), b = key_grid<R>(range[1], factor);
      *reinterpret_cast<uint32_t*>(record + 2 * d) = a.scale_bits | static_cast<uint32_t>(b.scale_bits) << 16;
      *reinterpret_cast<uint32_t*>(record + R::kKeyZeros + 2 * d) = a.zero_bits | static_cast<uint32_t>(b.zero_bits) << 16;
      grids.keys[d] = make_float2(a.scale, a.zero), grids.keys[d + 1] = make_float2(b.scale, b.zero);
    }
  }

  // Four lanes a group of a token.
  __device__ __forceinline__ void value_grids() const {
    constexpr int kUnits = PAGE * R::kGroups;
    for (int base = 0; base < kUnits; base += 8) {
      const int unit = min(base + lane / 4, kUnits - 1), token = unit / R::kGroups, group = unit % R::kGroups;
      const bool whole = 2 * group + 1 < R::kSteps;
      Range range;
      const uint16_t* from = v + token * v_stride + 32 * group + lane % 4 * (whole ? 8 : 4);
      for (int i = 0; i < (whole ? 4 : 2); ++i) {
        const float2 x = unpack2<bf16>(reinterpret_cast<const uint32_t*>(from)[i]);
        range.add(x.x), range.add(x.y);
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) {
        range.low = fminf(range.low, __shfl_xor_sync(0xffffffffu, range.low, step));
        range.high = fmaxf(range.high, __shfl_xor_sync(0xffffffffu, range.high, step));
        range.finite &= __shfl_xor_sync(0xffffffffu, static_cast<int>(range.finite), step) != 0;
      }
      if (lane % 4 != 0 || base + lane / 4 >= kUnits) continue;
      const Grid grid = value_grid<R>(range);
      const int in_tile = token % R::kTokens, half = in_tile / 8, pair = in_tile % 8 / 2;
      uint8_t* at = record + R::kHead + token / R::kTokens * R::kTile + R::kValueScales + half * R::kParamHalf + (pair * R::kGroups + group) * 4 + in_tile % 2 * 2;
      *reinterpret_cast<uint16_t*>(at) = grid.scale_bits;
      *reinterpret_cast<uint16_t*>(at + R::kValueZeros - R::kValueScales) = grid.zero_bits;
      grids.values[unit] = make_float2(grid.scale, grid.zero);
    }
  }

  // A lane a word of one token: its quarter of kChunks groups.
  __device__ __forceinline__ void key_codes() const {
    for (int at = lane; at < PAGE * 4 * R::kWords; at += 32) {
      const int quarter = at % 4, token = at / 4 % PAGE, w = at / 4 / PAGE;
      uint32_t word = 0;
#pragma unroll
      for (int chunk = 0; chunk < R::kChunks; ++chunk) {
        const int group = w * R::kChunks + chunk;
        for (int pair = 0; pair < 4; ++pair) {
          if (2 * group + pair / 2 >= R::kSteps) continue;
          const int d = key_dim(group, quarter, pair);
          const float2 x = unpack2<bf16>(*reinterpret_cast<const uint32_t*>(k + token * k_stride + d));
          const float2 a = grids.keys[d], b = grids.keys[d + 1];
          const uint32_t low = code_of<R>(x.x, a.x, a.y, 0), high = code_of<R>(x.y, b.x, b.y, 0);
          word |= (low | high << 16) << R::field(group, pair) * BITS;
          if (WRITE_BACK)
            *reinterpret_cast<uint32_t*>(written + token * written_stride + d) = pack2<bf16>(fmaf(a.x, static_cast<float>(low), a.y), fmaf(b.x, static_cast<float>(high), b.y));
        }
      }
      const int in_tile = token % R::kTokens;
      *reinterpret_cast<uint32_t*>(record + R::kHead + token / R::kTokens * R::kTile + in_tile / 8 * R::kKeyHalf + R::key_word(w, in_tile % 8, quarter)) = word;
    }
  }

  // A lane a word of two tokens: row g of kChunks groups.
  __device__ __forceinline__ void value_codes() const {
    for (int at = lane; at < PAGE / 2 * 8 * R::kWords; at += 32) {
      const int g = at % 8, token = at / 8 % (PAGE / 2) * 2, w = at / 8 / (PAGE / 2);
      uint32_t word = 0;
#pragma unroll
      for (int chunk = 0; chunk < R::kChunks; ++chunk) {
        const int group = w * R::kChunks + chunk;
        for (int h = 0; h < 2; ++h) {
          if (2 * group + h >= R::kSteps) continue;
#pragma unroll
          for (int odd = 0; odd < 2; ++odd) {
            const float2 x = unpack2<bf16>(*reinterpret_cast<const uint32_t*>(v + (token + odd) * v_stride + 32 * group + 16 * h + 2 * g));
            const float2 grid = grids.values[(token + odd) * R::kGroups + group];
            const uint32_t low = code_of<R>(x.x, grid.x, grid.y, R::kMiddle), high = code_of<R>(x.y, grid.x, grid.y, R::kMiddle);
            word |= (low << R::field(group, 2 * h) * BITS | high << R::field(group, 2 * h + 1) * BITS) << 16 * odd;
          }
        }
      }
      const int in_tile = token % R::kTokens;
      *reinterpret_cast<uint32_t*>(record + R::kHead + token / R::kTokens * R::kTile + R::kValues + in_tile / 8 * R::kValueHalf +
                                   R::value_word(w, g, in_tile % 8 / 2)) = word;
    }
  }

  __device__ __forceinline__ void run() {
    // Keys to the end before values begin: where rows are read twice from memory, what all warps read between must fit the L2.
    using G = Grids<R, HEAD_DIM, PAGE>;
    if constexpr (G::kStaged) {
      Rows<HEAD_DIM, PAGE, G::kPitch> keys, values;
      keys.load(k, k_stride, lane);
      values.load(v, v_stride, lane);
      keys.store(grids.rows, lane);
      __syncwarp();
      k = v = grids.rows;
      k_stride = v_stride = G::kPitch;
      key_grids();
      __syncwarp();
      key_codes();
      __syncwarp();
      values.store(grids.rows, lane);
      __syncwarp();
    } else {
      key_grids();
      __syncwarp();
      key_codes();
    }
    value_grids();
    __syncwarp();
    value_codes();
    // The padding behind the parameters of an odd number of groups is written too: records of equal pages are equal.
    if (R::kHalves * R::kParamHalf < R::kParams)
      for (int i = lane; i < R::kTiles * 2 * (R::kParams - R::kHalves * R::kParamHalf) / 4; i += 32) {
        constexpr int kWordsEach = (R::kParams - R::kHalves * R::kParamHalf) / 4 > 0 ? (R::kParams - R::kHalves * R::kParamHalf) / 4 : 1;
        const int which = i / kWordsEach;
        *reinterpret_cast<uint32_t*>(record + R::kHead + which / 2 * R::kTile + R::kValueScales + which % 2 * R::kParams + R::kHalves * R::kParamHalf +
                                     i % kWordsEach * 4) = 0;
      }
    __syncwarp();
  }
};

template <int PAGE>
__device__ __forceinline__ int complete(const KvCache& cache, int request) {
  return min(max(cache.seq_lens[request], 0) / PAGE, cache.max_pages);
}

}  // namespace quantize

template <int HEAD_DIM, int PAGE, int BITS, bool WRITE_BACK, int kWarps>
__device__ __forceinline__ void kv_quantize(const KvQuantizeArgs& args) {
  using namespace quantize;
  using P = Page<HEAD_DIM, PAGE, BITS, WRITE_BACK>;
  static_assert(kWarps * sizeof(Grids<typename P::R, HEAD_DIM, PAGE>) <= 48 << 10, "the grids of a block's pages fit static shared memory");
  __shared__ Grids<typename P::R, HEAD_DIM, PAGE> grids[kWarps];
  __shared__ bool last;
  const KvCache& cache = args.cache;
  const int warp = threadIdx.x / 32, request = blockIdx.y;
  const int first = max(args.quantized_lens[request], 0) / PAGE;
  const int items = max(complete<PAGE>(cache, request) - first, 0) * cache.kv_heads;
  for (int item = blockIdx.x * kWarps + warp; item < items; item += gridDim.x * kWarps) {
    const int page = first + item / cache.kv_heads, head = item % cache.kv_heads;
    const int64_t at = request * cache.table_stride + page, block = cache.block_table[at], rows = cache.row_table[at];
    if (block < 0 || rows < 0) continue;
    const uint16_t* const keys = static_cast<const uint16_t*>(cache.k) + rows * cache.k_block_stride + head * cache.k_head_stride;
    P work{keys, static_cast<const uint16_t*>(cache.v) + rows * cache.v_block_stride + head * cache.v_head_stride,
                 cache.k_token_stride, cache.v_token_stride, const_cast<uint16_t*>(keys), cache.k_token_stride,
                 cache.store + block * cache.store_block_stride + head * cache.store_head_stride, grids[warp], static_cast<int>(threadIdx.x % 32)};
    work.run();
  }
  // The last block to come moves quantized_lens, which all have read by then.
  __syncthreads();
  if (threadIdx.x == 0) {
    __threadfence();
    last = atomicAdd(args.workspace, 1u) == gridDim.x * gridDim.y - 1;
    __threadfence();
  }
  __syncthreads();
  if (!last) return;
  for (int i = threadIdx.x; i < cache.batch; i += blockDim.x) args.quantized_lens[i] = complete<PAGE>(cache, i) * PAGE;
  if (threadIdx.x == 0) *args.workspace = 0;
}

}  // namespace kvloom
