// What both forms of page_summary share: which pages to build, keys to centred numbers, records, and the end of a launch.
//
// Arithmetic runs on keys times a power of two that brings the page's largest key to 1..2, so that no finite key overflows the
// Gram matrix. V does not depend on it; the scales of mu and C take it out again, exactly.
#pragma once

#include "kvloom/abi.cuh"
#include "kvloom/groups.cuh"
#include "kvloom/mma/m16n8k16.cuh"
#include "kvloom/ptx/async_copy.cuh"
#include "kvloom/ptx/ldmatrix.cuh"
#include "kvloom/quant/e4m3.cuh"
#include "kvloom/quant/symmetric.cuh"
#include "kvloom/record.cuh"

namespace kvloom {

// Singular directions with less than this share of the first one's energy are rounding, not data: bf16 hi + lo products leave a
// Gram matrix 2^-18 exact, so repeated keys show eigenvalues up to about 1e-6. They become zero columns.
inline constexpr float kRankTolerance = 1e-5f;

// The pages of one request that a launch builds. Items are (page, head) with the head fastest.
struct BuildRange {
  int first, items;
};

// PAGE tokens share a summary: those of a page, or of a Group of pages.
template <int PAGE, class Group = Groups<1>>
__device__ __forceinline__ int complete_pages(const KvCache& cache, int request) {
  return min(max(cache.seq_lens[request], 0) / PAGE, Group::of_table(cache.max_pages));
}

template <int PAGE, class Group = Groups<1>>
__device__ __forceinline__ BuildRange build_range(const PageSummaryArgs& args, int request) {
  const int first = max(args.built_lens[request], 0) / PAGE;
  return {first, max(complete_pages<PAGE, Group>(args.cache, request) - first, 0) * args.cache.kv_heads};
}

// A 16 x 16 tile of keys as the A operand of m16n8k16, row being the lane's row: registers 0 and 2 are the B operand of rows 0-7,
// 1 and 3 that of rows 8-15.
__device__ __forceinline__ void load_tile(uint32_t (&r)[4], const void* row) {
  const ptx::Matrices4 f = ptx::ldmatrix4(static_cast<uint32_t>(__cvta_generic_to_shared(row)));
#pragma unroll
  for (int i = 0; i < 4; i++) r[i] = f.m[i];
}

// Where one item's keys and record lie; valid is false past the range and for a block id of -1.
struct BuildItem {
  int64_t keys;    // elements from cache.k; of a group, of its head in block 0
  int64_t record;  // bytes from summaries
  bool valid;
  int head;
  const int32_t* table;  // of a group: its first page's entry
};

template <class Group = Groups<1>>
__device__ __forceinline__ BuildItem build_item(const PageSummaryArgs& args, int request, BuildRange range, int item) {
  if (item >= range.items) return {0, 0, false, 0, nullptr};
  const int page = range.first + item / args.cache.kv_heads, head = item % args.cache.kv_heads;
  if constexpr (Group::kPages > 1) {
    const int32_t* row = args.cache.block_table + request * args.cache.table_stride;
    const int64_t last = row[Group::column(page)];
    return {head * args.cache.k_head_stride, last * args.summary_block_stride + head * args.summary_head_stride, last >= 0, head, row + page * Group::kPages};
  }
  const int64_t at = request * args.cache.table_stride + page, block = args.cache.block_table[at];
  const int64_t rows = args.cache.row_table != nullptr ? args.cache.row_table[at] : block;
  return {rows * args.cache.k_block_stride + head * args.cache.k_head_stride,
          block * args.summary_block_stride + head * args.summary_head_stride, block >= 0 && rows >= 0, head, nullptr};
}

// How keys of T are addressed.
template <class T>
struct KeyBits {
  using type = uint16_t;
};
template <>
struct KeyBits<fp8_e4m3> {
  using type = fp8_e4m3;
};

// Whether every 8 keys can be copied at once. Other strides are read key by key.
template <class T = bf16>
__device__ __forceinline__ bool keys_aligned(const KvCache& cache) {
  const uint64_t at = reinterpret_cast<uint64_t>(cache.k), strides = cache.k_block_stride | cache.k_token_stride | cache.k_head_stride;
  return (at / sizeof(T) | strides) % 8 == 0 && at % sizeof(T) == 0;
}

// Copies 8 keys to shared memory, asynchronously where the addresses allow it; zeros for a null source.
__device__ __forceinline__ void copy_keys(void* shared, const uint16_t* global, bool aligned) {
  if (aligned) {
    ptx::copy16_or_zero(static_cast<uint32_t>(__cvta_generic_to_shared(shared)), global, global != nullptr);
    return;
  }
  uint32_t w[4] = {0, 0, 0, 0};
  if (global != nullptr) {
#pragma unroll
    for (int i = 0; i < 4; i++) w[i] = global[2 * i] | static_cast<uint32_t>(global[2 * i + 1]) << 16;
  }
  *static_cast<uint4*>(shared) = make_uint4(w[0], w[1], w[2], w[3]);
}

// The same of e4m3, which becomes bf16 on the way.
__device__ __forceinline__ void copy_keys(void* shared, const fp8_e4m3* global, bool aligned) {
  uint4 w = make_uint4(0, 0, 0, 0);
  if (global != nullptr && aligned) {
    w = load_eight(global);
  } else if (global != nullptr) {
    const auto pair = [&](int i) { return e4m3x2_to_bf16x2(global[i].bits | static_cast<uint32_t>(global[i + 1].bits) << 8); };
    w = make_uint4(pair(0), pair(2), pair(4), pair(6));
  }
  *static_cast<uint4*>(shared) = w;
}

__device__ __forceinline__ float2 unpack(uint32_t word, bf16) {
  return make_float2(__uint_as_float(word << 16), __uint_as_float(word & 0xffff0000u));
}

__device__ __forceinline__ float2 unpack(uint32_t word, fp16) {
  return make_float2(__half2float(__ushort_as_half(static_cast<uint16_t>(word))),
                     __half2float(__ushort_as_half(static_cast<uint16_t>(word >> 16))));
}

// The larger magnitude of two keys and top, as bits without sign: ordered as the values are, NaN above infinity above the rest.
__device__ __forceinline__ uint32_t larger_bits(uint32_t top, uint32_t word) {
  return max(top, max(word & 0x7fffu, word >> 16 & 0x7fffu));
}

// The power of two of a page: keys * down is within 1..2 in magnitude, * up brings results back. up is NaN when a key is not
// finite, and down 0 then.
struct PageScale {
  float down, up;
};

// biased is the exponent field of the largest key, infinite the field of infinities and NaN, bias that of 1.
__device__ __forceinline__ PageScale page_scale(int biased, int infinite, int bias) {
  if (biased == infinite) return {0.f, __uint_as_float(0x7fc00000u)};
  const int e = min(max(biased - bias, -120), 126);  // both powers stay normal numbers
  return {__uint_as_float(static_cast<uint32_t>(127 - e) << 23), __uint_as_float(static_cast<uint32_t>(127 + e) << 23)};
}

__device__ __forceinline__ PageScale page_scale(uint32_t top, bf16) { return page_scale(static_cast<int>(top >> 7), 255, 127); }

__device__ __forceinline__ PageScale page_scale(uint32_t top, fp16) { return page_scale(static_cast<int>(top >> 10), 31, 15); }

// The same with the cache's scale, which no step before the quantisation of mu and C knows.
template <class T>
__device__ __forceinline__ PageScale with_key_scale(PageScale p, const KvCache& cache) {
  p.up *= cache_scale<T>(cache.k_scale);
  return p;
}

// The scale of mu or of a token of C, whose largest element is top * up, and what a record stores of it. Where up is no power of two,
// the codes are made with the scale that is stored, in the caller's units. TOKEN: rounded up to 4 significant bits, as tokens' are.
struct KeyScale {
  Scale scale;
  float stored;
};

template <class T, bool TOKEN = false>
__device__ __forceinline__ KeyScale make_key_scale(float top, float q, float up) {
  const auto of = [q](float top) {
    Scale s = make_scale(top, q);
    if constexpr (TOKEN) s.value = four_bits(s.value), s.inverse = s.value > 0.f ? __frcp_rn(s.value) : 0.f;
    return s;
  };
  if constexpr (sizeof(T) == 2) {
    const Scale s = of(top);
    return {s, s.value * up};
  } else {
    const float power = __uint_as_float(__float_as_uint(up) & 0x7f800000u), rest = up / power;  // 1 to 2; NaN where up is
    const Scale s = of(top * rest);
    return {s.value > 0.f ? Scale{s.value / rest, s.inverse * rest} : Scale{0.f, 0.f}, s.value * power};
  }
}

// A pair of centred keys as two bf16 pairs, hi + lo, 16 significant bits together.
struct SplitPair {
  uint32_t hi, lo;
};

template <class Key>
__device__ __forceinline__ SplitPair split(uint32_t word, float down, float2 centre) {
  const float2 key = unpack(word, Key{});
  const float x = fmaf(key.x, down, -centre.x), y = fmaf(key.y, down, -centre.y);
  const __nv_bfloat162 hi = __floats2bfloat162_rn(x, y);
  const uint32_t bits = *reinterpret_cast<const uint32_t*>(&hi);
  const float2 rounded = unpack(bits, bf16{});
  const __nv_bfloat162 lo = __floats2bfloat162_rn(x - rounded.x, y - rounded.y);
  return {bits, *reinterpret_cast<const uint32_t*>(&lo)};
}

// acc += A B for split operands; lo times lo is below f32's last bits of the page's energy.
__device__ __forceinline__ void mma_split(float (&acc)[4], const SplitPair (&a)[4], SplitPair b0, SplitPair b1) {
  mma_m16n8k16(acc, a[0].hi, a[1].hi, a[2].hi, a[3].hi, b0.hi, b1.hi, bf16{});
  mma_m16n8k16(acc, a[0].lo, a[1].lo, a[2].lo, a[3].lo, b0.hi, b1.hi, bf16{});
  mma_m16n8k16(acc, a[0].hi, a[1].hi, a[2].hi, a[3].hi, b0.lo, b1.lo, bf16{});
}

// Writes the basis section of a record in shared memory from f32 rows, by `count` threads of which this is number `index`.
template <int HEAD_DIM, int PAGE, int RANK, int BITS>
__device__ __forceinline__ void pack_basis(uint8_t* record, const float* basis /* [RANK][HEAD_DIM] */, const Scale* scales /* [RANK] */,
                                           int index, int count) {
  using R = Record<HEAD_DIM, PAGE, RANK, BITS>;
  constexpr int kCodes = 32 / BITS, kWords = R::kQuarterBytes / 4;  // a word; words a quarter
#pragma unroll 1
  for (int i = index; i < RANK * 4 * kWords; i += count) {
    const int row = i / (4 * kWords), quarter = i / kWords % 4, first = i % kWords * kCodes;
    const float* x = basis + row * HEAD_DIM + quarter * R::kQuarterDims + first;
    const Scale scale = scales[row];
    uint32_t word = 0;
#pragma unroll
    for (int c = 0; c < kCodes; c += 2) {
      if (first + c >= R::kQuarterDims) break;
      const float2 pair = *reinterpret_cast<const float2*>(x + c);
      word |= (basis_code<BITS>(pair.x, scale) | basis_code<BITS>(pair.y, scale) << BITS) << (c * BITS);
    }
    *reinterpret_cast<uint32_t*>(record + R::kV + 4 * i) = word;
  }
}

// After the block's last read of built_lens: the last block of the launch moves built_lens to the complete tokens of each request
// and leaves the counter zero. A request that was cut back moves back, so that its pages are built anew when they fill again. Where a
// row of blocks is one, as in a decode step, it alone reads its requests' and moves them itself: nothing is counted or waited for.
template <int PAGE, class Group = Groups<1>>
__device__ __forceinline__ void finish_build(const PageSummaryArgs& args) {
  __shared__ bool last;
  __syncthreads();
  if (gridDim.x == 1) {
    for (int request = blockIdx.y + threadIdx.x * gridDim.y; request < args.cache.batch; request += blockDim.x * gridDim.y) {
      args.built_lens[request] = complete_pages<PAGE, Group>(args.cache, request) * PAGE;
    }
    return;
  }
  if (threadIdx.x == 0) {
    __threadfence();  // this block's reads come before its count,
    last = atomicAdd(args.workspace, 1u) == gridDim.x * gridDim.y - 1;
    __threadfence();  // and the writes below after everyone's
  }
  __syncthreads();
  if (!last) return;
  for (int request = threadIdx.x; request < args.cache.batch; request += blockDim.x) {
    args.built_lens[request] = complete_pages<PAGE, Group>(args.cache, request) * PAGE;
  }
  if (threadIdx.x == 0) *args.workspace = 0;
}

}  // namespace kvloom
