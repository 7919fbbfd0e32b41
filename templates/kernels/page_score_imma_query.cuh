// page_score on int8 tensor cores: what both arrangements share. A query head is an int16 vector times a power of two, split in signed
// bytes, high and low. A lane holds a quarter of a row; word j of its nibbles are dims 8j .. 8j + 7 of the quarter, the even ones in the
// low nibbles, so that one mask gives four codes: k runs over the even dims, then over the odd ones.
#pragma once

#include "kernels/page_score_imma_ring.cuh"
#include "kvloom/mma/m16n8k32.cuh"
#include "kvloom/mma/m16n8k8_tf32.cuh"
#include "kvloom/ptx/ldmatrix.cuh"

namespace kvloom {

// A quarter of a query head in f32, and what brings the head to integers: x * factor rounds to at most 32639, so that the high byte,
// rounded up for a negative low byte, stays below 128. Elements that are not far below the largest (2^-7 in bf16, 2^-4 in fp16) are
// exact; the others have an error of 2^-16 of it.
template <class S>
struct ImmaQuarter {
  float x[S::kQuarter];
  float factor, inverse;  // inverse is NaN where an element is not finite
  float top;              // the head's largest magnitude, 0 where it is not finite

  // Quarter p of a head, p the lane's place in its quad, which shares the head. Rows of q must be 8-byte aligned.
  __device__ __forceinline__ ImmaQuarter(const PageScoreArgs& args, int request, int kv_head, int head) {
    using T = typename S::Element;
#pragma unroll
    for (int i = 0; i < S::kQuarter; i++) x[i] = 0.f;
    if (head < S::kGroup) {
      const T* row = static_cast<const T*>(args.q) + request * args.q_batch_stride +
                     (static_cast<int64_t>(kv_head) * S::kGroup + head) * args.q_head_stride + threadIdx.x % 4 * S::kQuarter;
#pragma unroll
      for (int i = 0; i < S::kQuarter; i += 4) {
        const uint2 w = __ldg(reinterpret_cast<const uint2*>(row + i));
        const T* four = reinterpret_cast<const T*>(&w);
#pragma unroll
        for (int e = 0; e < 4; e++) x[i + e] = static_cast<float>(four[e]);
      }
    }
    uint32_t bits = 0;  // as bits, so that a NaN is the largest
#pragma unroll
    for (int i = 0; i < S::kQuarter; i++) bits = max(bits, __float_as_uint(x[i]) & 0x7fffffffu);
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, 1));
    bits = max(bits, __shfl_xor_sync(0xffffffffu, bits, 2));
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
  // High or low bytes of dims 8j + {0, 2, 4, 6} + odd.
  __device__ __forceinline__ uint32_t bytes(int j, int odd, bool high) const {
    // Adding 1.5 * 2^23 leaves round(x * factor) in the low 16 bits.
    const float magic = high ? 12582912.f + 128.f : 12582912.f;
    const uint32_t pick = high ? 0x51 : 0x40;
    uint32_t a[4];
#pragma unroll
    for (int i = 0; i < 4; i++) a[i] = __float_as_uint(fmaf(x[8 * j + 2 * i + odd], factor, magic));
    return __byte_perm(__byte_perm(a[0], a[1], pick), __byte_perm(a[2], a[3], pick), 0x5410);
  }
};

__device__ __forceinline__ int sum_bytes(uint32_t bytes, int sum) { return __dp4a(static_cast<int>(bytes), 0x01010101, sum); }

// X = V^T q times 2^-t, which brings it into the range of f16, and the codes of C times 2^t: f16 pairs 2^t and -1152 * 2^t. A column
// of V has norm 1: |X| <= 16 * most for up to 256 dims, most the largest |q| in base-2 logits. 2^-t brings that to about 2^14.
struct ImmaRange {
  float down;
  uint32_t up, up_bias;
  __device__ __forceinline__ void set(float most) {
    const int exponent = static_cast<int>(__float_as_uint(most) >> 23 & 0xff) - 127 + 4;
    const int t = min(max(exponent - 14, -14), 5);
    down = __uint_as_float(static_cast<uint32_t>(127 - t) << 23);
    const float f = __uint_as_float(static_cast<uint32_t>(127 + t) << 23);
    up = f16x2_bits(f16x2_both(f)), up_bias = f16x2_bits(f16x2_both(-1152.f * f));
  }
  // Two of the biased bytes of a word as f16, times 2^t.
  __device__ __forceinline__ uint32_t codes(uint32_t biased, uint32_t pick) const {
    return f16x2_bits(__hfma2(f16x2(__byte_perm(biased, 0x64646464u, pick)), f16x2(up), f16x2(up_bias)));
  }
};

__device__ __forceinline__ float shared_bf16(const SharedBytes& bytes, int at) {
  return __uint_as_float(static_cast<uint32_t>(bytes.load2(at)) << 16);
}

// Scales of the tokens 4p .. 4p + 3 of a page.
template <class S>
__device__ __forceinline__ void load_token_scales(const SharedBytes& page, float (&scale)[4]) {
  const uint2 w = page.load8(S::Rec::kTokenScales + 8 * (threadIdx.x % 4));
  scale[0] = low_bf16(w.x), scale[1] = high_bf16(w.x), scale[2] = low_bf16(w.y), scale[3] = high_bf16(w.y);
}

// 2^x of four tokens: products of tokens 4p, 4p + 2 in a, of 4p + 1, 4p + 3 in b.
struct FourTokens {
  float a0, a1, b0, b1;
  __device__ __forceinline__ FourTokens(float x0, float x1, float y0, float y1, const float (&scale)[4])
      : a0(exp2_approx(x0 * scale[0])), a1(exp2_approx(x1 * scale[2])), b0(exp2_approx(y0 * scale[1])), b1(exp2_approx(y1 * scale[3])) {}
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

// The centroid's words of this lane's quarter in the order of the query's: word j of the even dims, word j of the odd ones.
template <class S>
__device__ __forceinline__ void load_centroid(const SharedBytes& page, uint32_t (&even)[S::kWords], uint32_t (&odd)[S::kWords]) {
  uint32_t mu[2 * S::kWords];
  load_words<2 * S::kWords, alignment_of(S::kQuarter)>(page, S::Rec::kMu + threadIdx.x % 4 * S::kQuarter, mu);
#pragma unroll
  for (int j = 0; j < S::kWords; j++) {
    even[j] = __byte_perm(mu[2 * j], mu[2 * j + 1], 0x6420);
    odd[j] = __byte_perm(mu[2 * j], mu[2 * j + 1], 0x7531);
  }
}

}  // namespace kvloom
