// page_summary_tridiagonal's careful way for single pages, by a whole warp: the Gram matrix of keys scaled and taken from the page's
// first key in f32, and V from the same numbers, written straight to the record. For pages whose keys' own products would lose what
// distinguishes them: keys that lie close together far from 0, very large or very small ones, and ones that are not finite.
#pragma once

#include "kernels/page_summary_common.cuh"

namespace kvloom {

// The same number, of which the compiler knows nothing: what follows from it is not worked out before the loop around a path that is
// rarely taken, where it would hold registers all the time.
__device__ __forceinline__ int opaque(int x) {
  int y;
  asm volatile("mov.b32 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

// A page of keys in shared memory: where 16-byte chunks of its rows lie.
template <int HEAD_DIM>
struct PageRows {
  // Rows of whole 128-byte lines exchange chunks by row; others are an odd number of chunks long. ldmatrix then meets all banks.
  static constexpr bool kSwizzled = HEAD_DIM % 64 == 0;
  static constexpr int kPitch = 2 * HEAD_DIM + (kSwizzled ? 0 : 16);
  static constexpr int kBytes = 16 * kPitch;

  static __device__ __forceinline__ int chunk(int row, int chunk) { return row * kPitch + ((kSwizzled ? chunk ^ (row & 7) : chunk) << 4); }

  // Chunk 2 k + lane / 16 of row lane % 16, what ldmatrix takes for 16 dims of a page: an offset of the lane and a constant.
  static __device__ __forceinline__ int tile(int lane, int k) {
    const int own = chunk(lane % 16, lane / 16);
    return kSwizzled ? (own ^ (2 * k & 7) << 4) + (2 * k & ~7) * 16 : own + 32 * k;
  }
};

// The places of vectors u, f32 [rows][16] with groups of four floats exchanged by row.
__device__ __forceinline__ int vector_place(int row, int token) { return row * 16 + (((token / 4) ^ (row / 2)) % 4) * 4 + token % 4; }

// Zeros between and behind the scales of a record of another form than the plain one, by `count` lanes of which this is number `index`.
template <class R>
__device__ __forceinline__ void pad_scales(uint8_t* record, int index, int count) {
  constexpr int kColumnEnd = R::kColumnScales + (R::kHasColumnScales ? 2 * R::kRankOf * R::kScaleGroups : 0), kEnd = R::kMuScale + 2 * R::kMuScales;
  for (int i = index; i < (R::kMuScale - kColumnEnd) / 2; i += count) reinterpret_cast<uint16_t*>(record + kColumnEnd)[i] = 0;
  for (int i = index; i < (R::kBytes - kEnd) / 2; i += count) reinterpret_cast<uint16_t*>(record + kEnd)[i] = 0;
}

template <int HEAD_DIM, int RANK, int BITS, class T, class FORM = PlainForm>
struct ExactPage {
  using Key = typename Compute<T>::type;
  using Layout = Record<HEAD_DIM, 16, RANK, BITS, FORM>;
  using Rows = PageRows<HEAD_DIM>;
  static constexpr int kHalf = HEAD_DIM / 2;            // pairs of dims
  static constexpr int kPairs = (kHalf + 31) / 32;      // a lane's
  static constexpr int kGramStride = 20;

  const uint8_t* keys;
  int lane;
  float key_scale;  // of the cache

  __device__ __forceinline__ uint32_t pair(int row, int pair) const {
    return *reinterpret_cast<const uint32_t*>(keys + Rows::chunk(row, pair / 4) + pair % 4 * 4);
  }

  static __device__ __forceinline__ float warp_top(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
  }

  __device__ __forceinline__ PageScale power() const {
    uint32_t top = 0;
    for (int i = lane; i < 16 * kHalf; i += 32) top = larger_bits(top, pair(i / kHalf, i % kHalf));
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) top = max(top, __shfl_xor_sync(~0u, top, mask));
    PageScale power = page_scale(top, Key{});
    power.up *= key_scale;
    return power;
  }

  // Writes the Gram matrix to g, f32 [16][kGramStride], and returns the power of 4 that brings it near 1, by the square root.
  // A page that is not finite counts as zeros.
  __device__ __forceinline__ float gram(float* g, PageScale power) const {
    const uint32_t keep = power.down > 0.f ? ~0u : 0u;
    float top = 0.f;
#pragma unroll 1
    for (int i = lane; i < 256; i += 32) {
      const int row = i / 16, column = i % 16;
      float sum = 0.f;
#pragma unroll 2
      for (int p = 0; p < kHalf; p++) {
        const float2 o = unpack(pair(0, p) & keep, Key{}), x = unpack(pair(row, p) & keep, Key{}), y = unpack(pair(column, p) & keep, Key{});
        const float ox = o.x * power.down, oy = o.y * power.down;
        sum = fmaf(fmaf(x.x, power.down, -ox), fmaf(y.x, power.down, -ox), sum);
        sum = fmaf(fmaf(x.y, power.down, -oy), fmaf(y.y, power.down, -oy), sum);
      }
      g[row * kGramStride + column] = sum;
      top = fmaxf(top, fabsf(sum));
    }
    top = warp_top(top);
    const int half = top > 0.f ? (static_cast<int>(__float_as_uint(top) >> 23) - 127) >> 1 : 0;
    return __uint_as_float(static_cast<uint32_t>(127 + half) << 23);
  }

  // Stores the codes of one pair of dims of a row of V, or of the centroid, whose quarters take kQuarterBytes. Two lanes share a byte of 2-bit codes.
  template <int kBits, int kQuarterBytes>
  __device__ __forceinline__ void store_pair(uint8_t* row, int pair, bool inside, float2 v, Scale scale) const {
    constexpr int kDims = HEAD_DIM / 4, kPadBytes = kQuarterBytes - kDims * kBits / 8;
    uint32_t code = basis_code<kBits>(v.x, scale) | basis_code<kBits>(v.y, scale) << kBits % 32;
    uint8_t* to = row + 2 * pair * kBits / 8 + 2 * pair / kDims * kPadBytes;
    if (kBits == 2) code |= __shfl_xor_sync(~0u, code, 1) << 4;
    if (!inside) return;
    if (kBits == 2 && pair % 2 == 0) *to = static_cast<uint8_t>(code);
    if (kBits == 4) *to = static_cast<uint8_t>(code);
    if (kBits == 8) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(code);
    if (kBits == 16) *reinterpret_cast<uint32_t*>(to) = code;
  }

  // A row of V (j below RANK) or the centroid of another form than the plain one: codes and scales. top is this lane's largest magnitude.
  __device__ __forceinline__ void store_form(uint8_t* record, int j, float2 (&v)[kPairs], float top, PageScale power, const float* centre) const {
    const bool centroid = j == RANK;
    const bool grouped = centroid ? FORM::kCentroidBits == 4 : FORM::kGrouped;
    if (centroid && centre != nullptr) {
#pragma unroll
      for (int m = 0; m < kPairs; m++) {
        const int p = min(lane + 32 * m, kHalf - 1);
        v[m].x = fmaf(-power.down, centre[2 * p], v[m].x), v[m].y = fmaf(-power.down, centre[2 * p + 1], v[m].y);
      }
    }
    const float most = warp_top(top);
    uint16_t* const scales = reinterpret_cast<uint16_t*>(record + (centroid ? Layout::kMuScale : Layout::kColumnScales + 2 * j * Layout::kScaleGroups));
#pragma unroll
    for (int m = 0; m < kPairs; m++) {
      const int p = lane + 32 * m;
      const bool inside = p < kHalf;
      float own = inside ? fmaxf(fabsf(v[m].x), fabsf(v[m].y)) : 0.f;  // of 16 dims, eight lanes
#pragma unroll
      for (int mask = 1; mask < 8; mask *= 2) own = fmaxf(own, __shfl_xor_sync(~0u, own, mask));
      const float of = grouped ? own : most;
      Scale scale;
      if (centroid) {
        scale = make_scale(of, largest_code<FORM::kCentroidBits>());
        const float stored = power.down > 0.f ? scale.value * power.up : power.up;  // NaN where the page is not finite
        store_pair<FORM::kCentroidBits, Layout::kMuQuarterBytes>(record + Layout::kMu, p, inside, v[m], scale);
        if (inside && (grouped ? lane % 8 == 0 : p == 0)) scales[grouped ? p / 8 : 0] = bf16_bits(stored);
      } else {
        scale = make_scale(of, largest_code<BITS == 16 ? 8 : BITS>());
        store_pair<BITS, Layout::kQuarterBytes>(record + j * Layout::kRowBytes, p, inside, v[m], scale);
        if (Layout::kHasColumnScales && inside && (grouped ? lane % 8 == 0 : p == 0)) scales[grouped ? p / 8 : 0] = bf16_bits(scale.value);
      }
    }
  }

  // Writes V, its scales, the centroid and its scale; everything else of the record is written elsewhere. sigma holds the singular
  // values of the scaled keys, 0 for no such direction; u the left vectors. Of weighted bases sigma becomes the lengths of D^T u.
  // centre is the head's mean key, which a 4-bit centroid is stored less, or null.
  template <bool kWeighted>
  __device__ __forceinline__ void basis(uint8_t* record, const float* u, float* sigma, const float* centre = nullptr) const {
    const PageScale power = this->power();
    const uint32_t keep = power.down > 0.f ? ~0u : 0u;
    if constexpr (Layout::kQuarterBytes * 8 != HEAD_DIM / 4 * BITS || Layout::kMuQuarterBytes * 8 != HEAD_DIM / 4 * FORM::kCentroidBits) {
      for (int i = lane; i < Layout::kC / 4; i += 32) reinterpret_cast<uint32_t*>(record)[i] = 0;
      __syncwarp();
    }
#pragma unroll 1
    for (int j = 0; j <= RANK; j++) {  // the last is the centroid, whose weights are alike
      const bool centroid = j == RANK;
      const bool kept = !centroid && sigma[j] > 0.f;
      const float inverse = centroid ? 1.f / 16 : !kept ? 0.f : kWeighted ? 1.f : 1.f / sigma[j];
      float2 v[kPairs];
      float top = 0.f;
#pragma unroll
      for (int m = 0; m < kPairs; m++) {
        const int p = min(lane + 32 * m, kHalf - 1);
        const float2 o = unpack(pair(0, p) & keep, Key{});
        const float ox = o.x * power.down, oy = o.y * power.down;
        float x = 0.f, y = 0.f;
#pragma unroll 2
        for (int t = 0; t < 16; t++) {
          const float2 key = unpack(pair(t, p) & keep, Key{});
          const float weight = centroid ? 1.f : u[vector_place(j, t)];
          x = fmaf(weight, fmaf(key.x, power.down, -ox), x);
          y = fmaf(weight, fmaf(key.y, power.down, -oy), y);
        }
        v[m] = centroid ? make_float2(fmaf(x, inverse, ox), fmaf(y, inverse, oy)) : make_float2(x * inverse, y * inverse);
        top = fmaxf(top, fmaxf(fabsf(v[m].x), fabsf(v[m].y)));
      }
      if constexpr (kWeighted) {
        float length = 0.f;
#pragma unroll
        for (int m = 0; m < kPairs; m++) {
          if (lane + 32 * m < kHalf) length = fmaf(v[m].x, v[m].x, fmaf(v[m].y, v[m].y, length));
        }
#pragma unroll
        for (int mask = 16; mask > 0; mask >>= 1) length += __shfl_xor_sync(~0u, length, mask);
        if (kept) {
          const float by = length > 0.f ? rsqrtf(length) : 0.f;
#pragma unroll
          for (int m = 0; m < kPairs; m++) v[m].x *= by, v[m].y *= by;
          top *= by;
          if (lane == 0) sigma[j] = sqrtf(length);
        }
      }
      if constexpr (!FORM::kPlain) {
        store_form(record, j, v, top, power, centre);
        continue;
      }
      const KeyScale mu_scale = make_key_scale<T>(warp_top(top), largest_code<8>(), power.up);
      const Scale scale = centroid ? mu_scale.scale : make_scale(warp_top(top), BITS == 16 ? largest_code<8>() : largest_code<BITS == 16 ? 8 : BITS>());
#pragma unroll
      for (int m = 0; m < kPairs; m++) {
        const int p = lane + 32 * m;
        if (centroid) store_pair<8, HEAD_DIM / 4>(record + Layout::kMu, p, p < kHalf, v[m], scale);
        else store_pair<BITS, Layout::kQuarterBytes>(record + j * Layout::kRowBytes, p, p < kHalf, v[m], scale);
      }
      if (lane == 0) {
        if (centroid) *reinterpret_cast<uint16_t*>(record + Layout::kMuScale) = bf16_bits(mu_scale.stored);
        else if (Layout::kHasColumnScales) reinterpret_cast<uint16_t*>(record + Layout::kColumnScales)[j] = bf16_bits(scale.value);
      }
    }
    if constexpr (!FORM::kPlain) {
      pad_scales<Layout>(record, lane, 32);
      return;
    }
    // Padding between and behind the scales.
    constexpr int kColumnEnd = Layout::kColumnScales + (Layout::kHasColumnScales ? 2 * RANK : 0);
    if (lane < (Layout::kMuScale - kColumnEnd) / 2) reinterpret_cast<uint16_t*>(record + kColumnEnd)[lane] = 0;
    if (lane < (Layout::kBytes - Layout::kMuScale - 2) / 2) reinterpret_cast<uint16_t*>(record + Layout::kMuScale + 2)[lane] = 0;
  }
};

}  // namespace kvloom
