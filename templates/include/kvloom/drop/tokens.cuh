// Where the tokens of one request and KV head lie, in a paged cache or, without a block table, in a contiguous one.
#pragma once

#include "kvloom/abi_drop.cuh"
#include "kvloom/pack.cuh"
#include "kvloom/quant/e4m3.cuh"

namespace kvloom::drop {

constexpr uint32_t kFullWarp = 0xffffffffu;

// A token's physical block and place in it. Both are 0 where it is not live: that address exists and is not to be used.
struct Place {
  int block, in_block;
  bool live;
};

template <int PAGE>
struct Tokens {
  static_assert((PAGE & (PAGE - 1)) == 0 && PAGE >= 4 && PAGE <= 128, "pages are 4 to 128 tokens, a power of two");
  const int32_t* table;   // this request's blocks, or null: contiguous
  int request;
  int length;             // tokens that exist

  __device__ __forceinline__ Tokens(const KvCache& cache, int request, int length)
      : table(cache.block_table ? cache.block_table + request * cache.table_stride : nullptr), request(request), length(length) {}

  __device__ __forceinline__ Place place(int token) const {
    if (token < 0 || token >= length) return {0, 0, false};
    if (!table) return {request, token, true};
    const int id = table[token / PAGE];
    return id < 0 ? Place{0, 0, false} : Place{id, token % PAGE, true};
  }
};

// The tokens of a request that the cache has room for.
template <int PAGE>
__device__ __forceinline__ int length_of(const KvCache& cache, int request) {
  const int64_t room = static_cast<int64_t>(cache.max_pages) * PAGE;
  const int64_t length = cache.seq_lens[request];
  return static_cast<int>(length < 0 ? 0 : length < room ? length : room);
}

// Rows of K or V of one KV head.
template <typename T>
struct HeadRows {
  const T* base;          // [block, token, dim] of one kv head, strides below, in elements
  int64_t block_stride, token_stride;

  __device__ __forceinline__ const T* row(const Place& p) const {
    return base + (p.live ? p.block * block_stride + p.in_block * token_stride : 0);
  }
};

template <typename T>
__device__ __forceinline__ HeadRows<T> keys_of(const KvCache& c, int head) {
  return {static_cast<const T*>(c.k) + head * c.k_head_stride, c.k_block_stride, c.k_token_stride};
}
template <typename T>
__device__ __forceinline__ HeadRows<T> values_of(const KvCache& c, int head) {
  return {static_cast<const T*>(c.v) + head * c.v_head_stride, c.v_block_stride, c.v_token_stride};
}

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(bf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(fp16 x) { return __half2float(x); }
__device__ __forceinline__ float to_float(fp8_e4m3 x) { return unpack2<fp16>(e4m3x2_to_f16x2(x.bits)).x; }  // without the cache's scale

template <typename T>
__device__ __forceinline__ T from_float(float x);
template <>
__device__ __forceinline__ float from_float<float>(float x) { return x; }
template <>
__device__ __forceinline__ bf16 from_float<bf16>(float x) { return __float2bfloat16_rn(x); }
template <>
__device__ __forceinline__ fp16 from_float<fp16>(float x) { return __float2half_rn(x); }

// A sum over the four lanes of a quad, the same in each.
__device__ __forceinline__ float quad_sum(float x) {
  x += __shfl_xor_sync(kFullWarp, x, 1);
  return x + __shfl_xor_sync(kFullWarp, x, 2);
}

// A sum over the warp in a fixed order, the same in every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) x += __shfl_xor_sync(kFullWarp, x, step);
  return x;
}

// a b, and ||a - unit b||^2, of two rows, by the whole warp.
template <int HEAD_DIM, typename A, typename B>
__device__ __forceinline__ float dot_product(const A* a, const B* b) {
  float sum = 0.0f;
  for (int d = threadIdx.x % 32; d < HEAD_DIM; d += 32) sum = fmaf(to_float(a[d]), to_float(b[d]), sum);
  return warp_sum(sum);
}
template <int HEAD_DIM, typename A, typename B>
__device__ __forceinline__ float squared_distance(const A* a, const B* b, float unit = 1.0f) {
  float sum = 0.0f;
  for (int d = threadIdx.x % 32; d < HEAD_DIM; d += 32) {
    const float difference = to_float(a[d]) - unit * to_float(b[d]);
    sum = fmaf(difference, difference, sum);
  }
  return warp_sum(sum);
}

}  // namespace kvloom::drop
