// page_score on int8 tensor cores: what both arrangements share. A query head is an int16 vector times a power of two, split in signed
// bytes, high and low. A lane holds a quarter of a row as words of four bytes. The order of k is free, and is the one in which codes of V
// become bytes by a mask (ImmaOrder): a mask of a word of nibbles gives every second dim, of a word of 2-bit codes every fourth.
#pragma once

#include "kernels/page_score_imma_ring.cuh"
#include "kvloom/mma/m16n8k32.cuh"
#include "kvloom/mma/m16n8k8_tf32.cuh"
#include "kvloom/ptx/ldmatrix.cuh"

namespace kvloom {

// Dim of byte i of word k: classes of every kStride-th dim one after the other, in each class kPart words.
template <class S>
struct ImmaOrder {
  static constexpr int kStride = S::kBits == 2 ? 4 : 2, kPart = S::kWords / kStride;
  static __device__ __forceinline__ constexpr int dim(int k, int i) { return k % kPart * 4 * kStride + i * kStride + k / kPart; }
};

// The larger of both unsigned halves of two words.
__device__ __forceinline__ uint32_t larger_halves(uint32_t a, uint32_t b) {
  uint32_t d;
  asm("max.u16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
  return d;
}

// A quarter of a query head in f32, and what brings the head to integers: x * factor rounds to at most 32639, so that the high byte,
// rounded up for a negative low byte, stays below 128. Elements that are not far below the largest (2^-7 in bf16, 2^-4 in fp16) are
// exact; the others have an error of 2^-16 of it, which a third byte takes down by 2^7.
template <class S>
struct ImmaQuarter {
  float x[4 * S::kWords];
  float factor, inverse;  // inverse is NaN where an element is not finite
  float top;              // the head's largest magnitude, 0 where it is not finite

  // Quarter p of a head, p the lane's place in its quad, which shares the head. Rows of q must be 8-byte aligned.
  __device__ __forceinline__ ImmaQuarter(const PageScoreArgs& args, int request, int kv_head, int head) {
    using T = typename S::Element;
#pragma unroll
    for (int i = 0; i < 4 * S::kWords; i++) x[i] = 0.f;
    uint32_t pair = 0;  // largest magnitudes of even and odd dims as bits, so that a NaN is the largest
    if (head < S::kGroup) {
      const T* row = static_cast<const T*>(args.q) + request * args.q_batch_stride +
                     (static_cast<int64_t>(kv_head) * S::kGroup + head) * args.q_head_stride + threadIdx.x % 4 * S::kQuarter;
#pragma unroll
      for (int i = 0; i < S::kQuarter; i += 4) {
        const uint2 w = __ldg(reinterpret_cast<const uint2*>(row + i));
        const T* four = reinterpret_cast<const T*>(&w);
#pragma unroll
        for (int e = 0; e < 4; e++) x[i + e] = static_cast<float>(four[e]);
        pair = larger_halves(larger_halves(pair, w.x & 0x7fff7fffu), w.y & 0x7fff7fffu);
      }
    }
    pair = larger_halves(pair, __shfl_xor_sync(0xffffffffu, pair, 1));
    pair = larger_halves(pair, __shfl_xor_sync(0xffffffffu, pair, 2));
    const uint16_t largest = static_cast<uint16_t>(max(pair & 0xffffu, pair >> 16));
    const uint32_t bits = __float_as_uint(static_cast<float>(*reinterpret_cast<const T*>(&largest)));
    const bool finite = bits < 0x7f800000u;
    const int exponent = min(max(static_cast<int>(bits >> 23), 27), 254) + ((bits & 0x7fffffu) >= 0x7f0000u ? 1 : 0);
    factor = __uint_as_float(static_cast<uint32_t>(268 - exponent) << 23);
    inverse = finite ? __uint_as_float(static_cast<uint32_t>(exponent - 14) << 23) : __uint_as_float(0x7fc00000u);
    top = finite ? __uint_as_float(bits) : 0.f;
    if (!finite) {
#pragma unroll
      for (int i = 0; i < S::kQuarter; i++) x[i] = 0.f;
    }
  }
  // High or low bytes of word k.
  __device__ __forceinline__ uint32_t bytes(int k, bool high) const {
    return four_bytes([&](int i) { return x[ImmaOrder<S>::dim(k, i)]; }, high);
  }
  // The same of dims 4 k and the next three: bytes as they lie.
  __device__ __forceinline__ uint32_t plain_bytes(int k, bool high) const {
    return four_bytes([&](int i) { return x[4 * k + i]; }, high);
  }
  // Third bytes of word k: 128 times what rounding left.
  __device__ __forceinline__ uint32_t third(int k) const {
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float scaled = x[ImmaOrder<S>::dim(k, i)] * factor;  // exact
      a[i] = __float_as_uint(fmaf(scaled - rintf(scaled), 128.f, 12582912.f));
    }
    return __byte_perm(__byte_perm(a[0], a[1], 0x40), __byte_perm(a[2], a[3], 0x40), 0x5410);
  }

 private:
  template <class Of>
  __device__ __forceinline__ uint32_t four_bytes(Of of, bool high) const {
    // Adding 1.5 * 2^23 leaves round(x * factor) in the low 16 bits.
    const float magic = high ? 12582912.f + 128.f : 12582912.f;
    const uint32_t pick = high ? 0x51 : 0x40;
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = __float_as_uint(fmaf(of(i), factor, magic));
    return __byte_perm(__byte_perm(a[0], a[1], pick), __byte_perm(a[2], a[3], pick), 0x5410);
  }
};

constexpr float kThirdUnit = 1.f / 128;

__device__ __forceinline__ int sum_bytes(uint32_t bytes, int sum) { return __dp4a(static_cast<int>(bytes), 0x01010101, sum); }

__device__ __forceinline__ float shared_bf16(const SharedBytes& bytes, int at) {
  return __uint_as_float(static_cast<uint32_t>(bytes.load2(at)) << 16);
}

// 2^x of a lane's tokens in a block: a0, a1 in n tile 0, b0, b1 in n tile 1. `at` is the row's place in the accumulators: 0 for row g,
// 2 for row g + 8.
template <class S>
struct TokenSums {
  float a0, a1, b0 = 0.f, b1 = 0.f;
  __device__ __forceinline__ TokenSums(const float (&y)[S::kTokenTiles][4], int at) : a0(exp2_approx(y[0][at])), a1(exp2_approx(y[0][at + 1])) {
    if constexpr (S::kTokenTiles == 2) b0 = exp2_approx(y[S::kTokenTiles - 1][at]), b1 = exp2_approx(y[S::kTokenTiles - 1][at + 1]);
    if constexpr (S::kPage == 4)
      if (threadIdx.x % 4 >= 2) a0 = a1 = 0.f;
  }
  __device__ __forceinline__ float sum() const { return (a0 + a1) + (b0 + b1); }
};

// Lane p of a quad gets the sum of the four lanes' part[p].
__device__ __forceinline__ float sum_quad_scatter(const float (&part)[4]) {
  const int p = threadIdx.x % 4;
  float two[2];
#pragma unroll
  for (int i = 0; i < 2; i++) {
    const float keep = p % 2 == 0 ? part[2 * i] : part[2 * i + 1], send = p % 2 == 0 ? part[2 * i + 1] : part[2 * i];
    two[i] = keep + __shfl_xor_sync(0xffffffffu, send, 1);
  }
  const float keep = p / 2 == 0 ? two[0] : two[1], send = p / 2 == 0 ? two[1] : two[0];
  return keep + __shfl_xor_sync(0xffffffffu, send, 2);
}

// Bytes of this lane's quarter of a row, at `at`, in the order of the query's.
template <class S>
__device__ __forceinline__ void load_quarter_bytes(const SharedBytes& page, int at, uint32_t (&words)[S::kWords]) {
  constexpr int kLoaded = S::kQuarter / 4, kPart = ImmaOrder<S>::kPart;
  uint32_t w[kLoaded], all[S::kWords];
  load_words<kLoaded, alignment_of(S::kQuarter)>(page, at, w);
#pragma unroll
  for (int j = 0; j < S::kWords; j++) all[j] = j < kLoaded ? w[j < kLoaded ? j : 0] : 0u;
#pragma unroll
  for (int j = 0; j < kPart; j++) {
    if constexpr (S::kBits == 2) {  // a 4 x 4 transpose of bytes
      uint32_t low[2], high[2];     // bytes 0, 1 and bytes 2, 3 of two neighbouring words, alternating
#pragma unroll
      for (int i = 0; i < 2; i++) {
        low[i] = __byte_perm(all[4 * j + 2 * i], all[4 * j + 2 * i + 1], 0x5140);
        high[i] = __byte_perm(all[4 * j + 2 * i], all[4 * j + 2 * i + 1], 0x7362);
      }
      words[j] = __byte_perm(low[0], low[1], 0x5410), words[kPart + j] = __byte_perm(low[0], low[1], 0x7632);
      words[2 * kPart % S::kWords + j] = __byte_perm(high[0], high[1], 0x5410);
      words[3 * kPart % S::kWords + j] = __byte_perm(high[0], high[1], 0x7632);
    } else {
      words[j] = __byte_perm(all[2 * j], all[2 * j + 1], 0x6420);
      words[kPart + j] = __byte_perm(all[2 * j], all[2 * j + 1], 0x7531);
    }
  }
}

template <class S>
__device__ __forceinline__ void load_bytes(const SharedBytes& page, int row, uint32_t (&words)[S::kWords]) {
  load_quarter_bytes<S>(page, row + threadIdx.x % 4 * S::kQuarter, words);
}

// (w ^ 0x80808080) & 0xf0f0f0f0 in one instruction, which the compiler makes two of.
__device__ __forceinline__ uint32_t signed_high_nibbles(uint32_t w) {
  uint32_t d;
  asm("lop3.b32 %0, %1, 0x80808080, 0xf0f0f0f0, 0x28;" : "=r"(d) : "r"(w));
  return d;
}

// A lane's quarter of a row of V as words of the first product. Nibbles: AS_THEY_LIE masks them, so that codes are 8 too high, and 16
// times theirs at odd dims; otherwise all are 16 times the signed code, for a shift more a word of even ones. Two-bit codes are 1.5 too
// high.
template <class S, bool AS_THEY_LIE>
struct BasisRow {
  uint32_t words[S::kWords];
  __device__ __forceinline__ void load(const SharedBytes& page, int row) {
    load_quarter(page, row * S::Rec::kRowBytes + threadIdx.x % 4 * S::Rec::kQuarterBytes);
  }
  // `at` is the quarter's place behind that of V.
  __device__ __forceinline__ void load_quarter(const SharedBytes& page, int at) {
    using R = typename S::Rec;
    if constexpr (S::kBits == 8) {
      load_quarter_bytes<S>(page, R::kV + at, words);
    } else {
      constexpr int kLoaded = R::kQuarterBytes / 4, kPart = ImmaOrder<S>::kPart;
      uint32_t w[kLoaded];
      load_words<kLoaded, alignment_of(R::kQuarterBytes)>(page, R::kV + at, w);
#pragma unroll
      for (int j = 0; j < kPart; j++) {
        const uint32_t word = j < kLoaded ? w[j < kLoaded ? j : 0] : 0u;
        if constexpr (S::kBits == 2) {
#pragma unroll
          for (int c = 0; c < 4; c++) words[c * kPart + j] = word >> 2 * c & 0x03030303u;
        } else {
          words[j] = AS_THEY_LIE ? word & 0x0f0f0f0fu : signed_high_nibbles(word << 4);
          words[kPart + j] = AS_THEY_LIE ? word & 0xf0f0f0f0u : signed_high_nibbles(word);
        }
      }
    }
  }
};

}  // namespace kvloom
