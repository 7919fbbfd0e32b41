// Codes of a summary to pairs of f16, exactly, in the k order that costs least for their width.
//
// A lane holds one quarter of a row. Its dims are taken in groups; a k step of m16n8k16 takes four dims of a lane, two pairs. In a
// group that starts at dim x, step j holds the pairs (x+2j, x+2j+P) and (x+2j+1, x+2j+1+P), where P is the pair distance:
// masking one 32-bit word gives two codes that lie 16 bits apart, which are P = 4 dims apart at 4 bits and 8 at 2 bits. Wider
// codes pair neighbours: (x, x+1) and (x+2, x+3).
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

__device__ __forceinline__ uint32_t f16x2_bits(__half2 h) { return *reinterpret_cast<uint32_t*>(&h); }
__device__ __forceinline__ __half2 f16x2(uint32_t bits) { return *reinterpret_cast<__half2*>(&bits); }
__device__ __forceinline__ __half2 f16x2_both(float x) { return __float2half2_rn(x); }

// (w & mask) | 0x64006400: two f16 of 1024 + field, the fields below bit 10 of each half.
// Spelt out, because the compiler makes two instructions of the expression: each can hold one of the two constants.
__device__ __forceinline__ __half2 f16x2_masked(uint32_t w, uint32_t mask) {
  uint32_t bits;
  asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(bits) : "r"(w), "r"(mask), "r"(0x64006400u));
  return f16x2(bits);
}

// Bytes 0, 1 (HIGH: 2, 3) of w, each biased by 128, as two f16 with the bias taken off.
template <bool HIGH>
__device__ __forceinline__ uint32_t f16x2_of_biased_bytes(uint32_t w) {
  const __half2 h = f16x2(__byte_perm(w, 0x64646464u, HIGH ? 0x4342 : 0x4140));
  return f16x2_bits(__hsub2(h, f16x2_both(1152.f)));
}

// How basis codes of one width are unpacked: a group of kDims dims lies in kWords words and fills kDims / 2 registers, the two
// pairs of step 0 first.
template <int BITS>
struct F16Codes;

template <>
struct F16Codes<4> {  // nibbles with a bias of 8
  static constexpr int kPair = 4, kDims = 8, kWords = 1;
  static constexpr float kScale = 1.f;  // value = unpacked * kScale * column scale
  __device__ __forceinline__ static void unpack(const uint32_t* w, uint32_t* out) {
    const __half2 low = f16x2_both(1032.f), sixteenth = f16x2_both(1.f / 16), high = f16x2_both(-72.f);
    const uint32_t u = w[0], v = w[0] >> 8;
    out[0] = f16x2_bits(__hsub2(f16x2_masked(u, 0x000f000fu), low));
    out[1] = f16x2_bits(__hfma2(f16x2_masked(u, 0x00f000f0u), sixteenth, high));
    out[2] = f16x2_bits(__hsub2(f16x2_masked(v, 0x000f000fu), low));
    out[3] = f16x2_bits(__hfma2(f16x2_masked(v, 0x00f000f0u), sixteenth, high));
  }
};

template <>
struct F16Codes<2> {  // 0, 1, 2, 3 mean -1.5, -0.5, 0.5, 1.5
  static constexpr int kPair = 8, kDims = 16, kWords = 1;
  static constexpr float kScale = 1.f;
  // A field at bit AT is 2^AT * code; 1024 / 2^AT + 1.5 fits 11 bits from bit 2 on, so bit 0 is never used.
  template <int AT>
  __device__ __forceinline__ static uint32_t pair(uint32_t w) {
    static_assert(AT >= 2 && AT <= 8, "the field must lie inside the mantissa and leave room for the half");
    const float unit = 1.f / (1 << AT);
    return f16x2_bits(__hfma2(f16x2_masked(w, 0x00030003u << AT), f16x2_both(unit), f16x2_both(-1024.f * unit - 1.5f)));
  }
  __device__ __forceinline__ static void unpack(const uint32_t* w, uint32_t* out) {
    const uint32_t u = w[0], v = w[0] >> 8;
    out[0] = pair<2>(u << 2);
    out[1] = pair<2>(u);
    out[2] = pair<4>(u);
    out[3] = pair<6>(u);
    out[4] = pair<8>(u);
    out[5] = pair<2>(v);
    out[6] = pair<4>(v);
    out[7] = pair<6>(v);
  }
};

template <>
struct F16Codes<8> {  // two's complement
  static constexpr int kPair = 1, kDims = 4, kWords = 1;
  static constexpr float kScale = 1.f;
  __device__ __forceinline__ static void unpack(const uint32_t* w, uint32_t* out) {
    const uint32_t u = w[0] ^ 0x80808080u;
    out[0] = f16x2_of_biased_bytes<false>(u);
    out[1] = f16x2_of_biased_bytes<true>(u);
  }
};

template <>
struct F16Codes<16> {  // bf16. A unit vector's elements are at most 1; scaled by 2^8, those down to 2^-22 stay exact in f16
  static constexpr int kPair = 1, kDims = 4, kWords = 2;
  static constexpr float kScale = 1.f / 256;
  __device__ __forceinline__ static uint32_t pair(uint32_t w) {
    const float lo = __uint_as_float(w << 16), hi = __uint_as_float(w & 0xffff0000u);
    return f16x2_bits(__floats2half2_rn(lo * 256.f, hi * 256.f));
  }
  __device__ __forceinline__ static void unpack(const uint32_t* w, uint32_t* out) {
    out[0] = pair(w[0]);
    out[1] = pair(w[1]);
  }
};

// int8 codes of the centroid in the k order of a pair distance: kDims dims in kDims / 4 words.
template <int PAIR>
struct F16Bytes {
  static_assert(PAIR == 1 || PAIR == 4 || PAIR == 8, "the pair distances of F16Codes");
  static constexpr int kDims = PAIR == 1 ? 4 : 2 * PAIR, kWords = kDims / 4;
  __device__ __forceinline__ static void unpack(const uint32_t* w, uint32_t* out) {
    if constexpr (PAIR == 1) {
      F16Codes<8>::unpack(w, out);
    } else {
#pragma unroll
      for (int i = 0; i < PAIR / 4; i++) {  // words i and i + PAIR/4 hold dims 4i.. and 4i+PAIR..
        const uint32_t a = w[i] ^ 0x80808080u, b = w[i + PAIR / 4] ^ 0x80808080u;
        const uint32_t first = __byte_perm(a, b, 0x5140), second = __byte_perm(a, b, 0x7362);
        out[4 * i] = f16x2_of_biased_bytes<false>(first);
        out[4 * i + 1] = f16x2_of_biased_bytes<true>(first);
        out[4 * i + 2] = f16x2_of_biased_bytes<false>(second);
        out[4 * i + 3] = f16x2_of_biased_bytes<true>(second);
      }
    }
  }
};

// Dim inside a lane's quarter of element e (0 to 3) of k step `step`: the order in which both operands are read.
template <int PAIR>
__host__ __device__ constexpr int dim_of_step(int step, int e) {
  if (PAIR == 1) return 4 * step + e;
  const int group = step / (PAIR / 2), j = step % (PAIR / 2);
  return group * 2 * PAIR + 2 * j + e / 2 + (e % 2) * PAIR;
}

}  // namespace kvloom
