// Rows and coefficients of a record as numbers, whatever its form (record.cuh). S gives the shape: Rec, kRank, Basis (F16Codes), Centroid
// (F16Bytes), kBits, kQuarter, kDimGroups, kStepsPerGroup, kSteps.
//
// Codes of up to 4 bits times a bf16 scale have at most 11 significant bits, so f16 holds a code under its own group's scale exactly:
// grouped scales enter the fragments, and only what a whole row shares is left for afterwards.
#pragma once

#include "kvloom/ptx/load.cuh"
#include "kvloom/quant/f16_codes.cuh"
#include "kvloom/record.cuh"

namespace kvloom {

__device__ __forceinline__ float low_bf16(uint32_t w) { return __uint_as_float(w << 16); }
__device__ __forceinline__ float high_bf16(uint32_t w) { return __uint_as_float(w & 0xffff0000u); }

// Grouped scales of a column of V are at most 1/1.5, and those of the longest elements of a unit vector not far below: times 8 they and
// their products with codes are normal f16.
constexpr float kGroupedUnit = 8.f;

template <class S>
struct RecordRows {
  using R = typename S::Rec;
  static constexpr int kRegisters = 2 * S::kSteps;
  static_assert(!R::Form::kGrouped || S::kBits <= 4, "products of finer codes and their scales do not fit f16");

  // The scales of a row's groups, times `by`, multiplied into this lane's quarter. `at` is the first scale's byte.
  template <class Bytes>
  static __device__ __forceinline__ void multiply_scales(const Bytes& page, int at, float by, uint32_t (&a)[kRegisters]) {
    const int p = threadIdx.x % 4;
    if constexpr (S::kQuarter % kScaleDims == 0) {
      constexpr int kGroups = S::kQuarter / kScaleDims;
      uint32_t scale[kGroups];
#pragma unroll
      for (int i = 0; i < kGroups; i++) scale[i] = f16x2_bits(f16x2_both(low_bf16(page.load2(at + 2 * (p * kGroups + i))) * by));
#pragma unroll
      for (int i = 0; i < kRegisters; i++)
        a[i] = f16x2_bits(__hmul2(f16x2(a[i]), f16x2(scale[dim_of_step<S::Basis::kPair>(i / 2, i % 2 * 2) / kScaleDims])));
    } else {  // a group lies across two quarters; four neighbouring dims never do
#pragma unroll
      for (int i = 0; i < kRegisters; i++) {
        float both[2];
#pragma unroll
        for (int e = 0; e < 2; e++) {
          const int dim = min(dim_of_step<S::Basis::kPair>(i / 2, i % 2 * 2 + e), S::kQuarter - 1);
          both[e] = low_bf16(page.load2(at + 2 * ((p * S::kQuarter + dim) / kScaleDims))) * by;
        }
        a[i] = f16x2_bits(__hmul2(f16x2(a[i]), __floats2half2_rn(both[0], both[1])));
      }
    }
  }

  // This lane's quarter of column c of V in fragment order, times column_unit(c) and what column_scales() says.
  template <class Bytes>
  static __device__ __forceinline__ void basis(const Bytes& page, int c, uint32_t (&a)[kRegisters]) {
    constexpr int kWords = R::kQuarterBytes / 4;
    uint32_t w[kWords];
    load_words<kWords, alignment_of(R::kQuarterBytes)>(page, R::kV + c * R::kRowBytes + threadIdx.x % 4 * R::kQuarterBytes, w);
#pragma unroll
    for (int group = 0; group < S::kDimGroups; group++) S::Basis::unpack(w + group * S::Basis::kWords, a + group * 2 * S::kStepsPerGroup);
    if constexpr (R::Form::kGrouped) multiply_scales(page, R::kColumnScales + 2 * c * R::kScaleGroups, kGroupedUnit, a);
  }

  // What products with basis() have to be multiplied by, a number a column.
  template <class Bytes>
  static __device__ __forceinline__ void column_scales(const Bytes& page, float (&column)[S::kRank]) {
#pragma unroll
    for (int c = 0; c < S::kRank; c++) column[c] = R::Form::kGrouped ? S::Basis::kScale / kGroupedUnit : S::Basis::kScale;
    if constexpr (R::kHasColumnScales && !R::Form::kGrouped) {
      constexpr int kWords = (S::kRank + 1) / 2;  // an odd rank's last half word is padding or the centroid's scale
      uint32_t w[kWords];
      load_words<kWords, alignment_of(R::kColumnScales)>(page, R::kColumnScales, w);
#pragma unroll
      for (int c = 0; c < S::kRank; c++) column[c] *= c % 2 ? high_bf16(w[c / 2]) : low_bf16(w[c / 2]);
    }
  }

  // This lane's quarter of the centroid; returns what products have to be multiplied by, NaN for a page that is not finite. All lanes of
  // a quad call together.
  template <class Bytes>
  static __device__ __forceinline__ float centroid(const Bytes& page, uint32_t (&a)[kRegisters]) {
    constexpr int kWords = R::kMuQuarterBytes / 4, kPadded = S::kDimGroups * S::Centroid::kWords;
    static_assert(S::Centroid::kDims == S::Basis::kDims, "one k order for the basis and the centroid");
    uint32_t mu[kWords];
    load_words<kWords, alignment_of(R::kMuQuarterBytes)>(page, R::kMu + threadIdx.x % 4 * R::kMuQuarterBytes, mu);
    if constexpr (R::kCentroidBits == 4 && S::kBits == 4) {  // as a column of V
#pragma unroll
      for (int group = 0; group < S::kDimGroups; group++) S::Basis::unpack(mu + group, a + group * 2 * S::kStepsPerGroup);
    } else {
      uint32_t w[kPadded];
#pragma unroll
      for (int i = 0; i < kPadded; i++) {
        if constexpr (R::kCentroidBits == 8) {
          w[i] = i < kWords ? mu[i < kWords ? i : 0] : 0u;
          continue;
        }
        // Four dims are half a word of nibbles: bytes as 8-bit codes, the bias of 8 taken off
        const uint32_t nibbles = i / 2 < kWords ? mu[i / 2 < kWords ? i / 2 : 0] : 0x88888888u;
        const uint32_t even = nibbles & 0x0f0f0f0fu, odd = nibbles >> 4 & 0x0f0f0f0fu;
        w[i] = (__byte_perm(even, odd, i % 2 ? 0x7362 : 0x5140) + 0x78787878u) ^ 0x80808080u;
      }
#pragma unroll
      for (int group = 0; group < S::kDimGroups; group++) S::Centroid::unpack(w + group * S::Centroid::kWords, a + group * 2 * S::kStepsPerGroup);
    }
    if constexpr (R::kCentroidBits == 8) {
      return low_bf16(page.load2(R::kMuScale));
    } else {
      // The largest scale's power of two is taken out. As bits, NaN is the largest.
      uint32_t top = 0;
#pragma unroll
      for (int i = 0; i < R::kMuScales; i += 4) top = max(top, static_cast<uint32_t>(page.load2(R::kMuScale + 2 * min(i + static_cast<int>(threadIdx.x % 4), R::kMuScales - 1))));
      top = max(top, __shfl_xor_sync(0xffffffffu, top, 1));
      top = max(top, __shfl_xor_sync(0xffffffffu, top, 2));
      const uint32_t exponent = min(max(top >> 7, 1u), 253u);
      multiply_scales(page, R::kMuScale, __uint_as_float((254u - exponent) << 23), a);
      return top >= 0x7f80u ? __uint_as_float(0x7fc00000u) : __uint_as_float(exponent << 23);
    }
  }
};

// Codes of C as numbers: kCodes of them from whole words. Bytes in two's complement, nibbles with a bias of 8.
template <int BITS, int kCodes>
__device__ __forceinline__ void coefficient_codes(const uint32_t (&words)[kCodes * BITS / 32], float (&code)[kCodes]) {
  static_assert(kCodes * BITS % 32 == 0, "codes come in whole words");
  // A byte b under 0x4b0000: 2^23 + b.
#pragma unroll
  for (int w = 0; w < kCodes * BITS / 32; w++) {
    if constexpr (BITS == 8) {
      const uint32_t biased = words[w] ^ 0x80808080u;
#pragma unroll
      for (int i = 0; i < 4; i++) code[4 * w + i] = __uint_as_float(__byte_perm(biased, 0x4b000000u, 0x7540 + i)) - (8388608.f + 128.f);
    } else {
      const uint32_t even = words[w] & 0x0f0f0f0fu, odd = words[w] >> 4 & 0x0f0f0f0fu;
#pragma unroll
      for (int i = 0; i < 4; i++) {
        code[8 * w + 2 * i] = __uint_as_float(__byte_perm(even, 0x4b000000u, 0x7540 + i)) - (8388608.f + 8.f);
        code[8 * w + 2 * i + 1] = __uint_as_float(__byte_perm(odd, 0x4b000000u, 0x7540 + i)) - (8388608.f + 8.f);
      }
    }
  }
}

}  // namespace kvloom
