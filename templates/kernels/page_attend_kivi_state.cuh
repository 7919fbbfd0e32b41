// What a warp of page_attend holds and does with a tile of a KIVI cache: a quantised page's codes, or rows in bf16 of the page that is still filling.
//
// Codes become operands of the mma by a mask. Of K, a field of four or two bits is an f16 subnormal as it stands, a code times 2^-24 and what
// its place in the word adds, which the stored scale takes out again; scales multiply the query, rounded to f16 with a second f16 for what
// that leaves, and zeros are a product of their own with the query, for all tokens of the tile at once. Of V, a field is a bf16 subnormal (or, in
// the highest bit, the next numbers in line), a code times 2^-133 and what its place adds; scales multiply the weights of tokens, with a power of
// two that keeps products normal, a group of 32 channels at a time. What zeros and the middle code add to a group's channels is summed beside the
// output, [group, head]; the end brings both together.
#pragma once

#include "kernels/page_attend_state.cuh"
#include "kvloom/ptx/load.cuh"
#include "kvloom/quant/kivi.cuh"

namespace kvloom {

namespace attend {

// Sizes of a warp's ring: a stage is a tile's codes and what the page's keys share.
template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns, int BITS>
struct KiviShape : Shape<HEAD_DIM, HEADS, kWarps, kStages, kColumns, 2> {
  using Record = KiviRecord<HEAD_DIM, PAGE, BITS>;
  static constexpr int kStageBytes = Record::kHead + Record::kTile;
  static constexpr int kRingBytes = larger(kStages * kStageBytes, 4 * KiviShape::kTileHeads * KiviShape::kOutStride);
};

// The dims of an accumulator of O^T: neighbours are rows g and g + 8 of a step.
template <int HEAD_DIM, int BITS, bool FEW>
struct Fragments<HEAD_DIM, KiviRow<BITS, FEW>> {
  static constexpr int kSteps = HEAD_DIM / 16;
  __device__ __forceinline__ static int dim(int step, int lower) { return step * 16 + threadIdx.x % 32 / 4 * 2 + lower; }
};

// A value of this lane, or one that the warp has in common, that the compiler keeps and does not compute again for every tile: registers are
// few where two blocks share an SM, but what it would take for them are instructions, which bound dense attention.
__device__ __forceinline__ uint32_t keep(uint32_t x) { return __shfl_sync(kAll, x, threadIdx.x % 32); }
__device__ __forceinline__ uint32_t keep_common(uint32_t x) { return __shfl_sync(kAll, x, 0); }
__device__ __forceinline__ const uint8_t* keep(const uint8_t* x) {
  const uint64_t w = reinterpret_cast<uint64_t>(x);
  return reinterpret_cast<const uint8_t*>(static_cast<uint64_t>(keep(static_cast<uint32_t>(w >> 32))) << 32 | keep(static_cast<uint32_t>(w)));
}

// Bytes in shared memory by their address there.
struct SharedWindow {
  uint32_t base;

  __device__ __forceinline__ uint4 load16(int at) const { return ptx::load_shared16(base + at); }
  __device__ __forceinline__ uint2 load8(int at) const {
    uint2 v;
    asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(base + at) : "memory");
    return v;
  }
  __device__ __forceinline__ uint32_t load4(int at) const {
    uint32_t v;
    asm volatile("ld.shared.u32 %0, [%1];" : "=r"(v) : "r"(base + at) : "memory");
    return v;
  }
};

__device__ __forceinline__ uint32_t multiply_f16(uint32_t a, uint32_t b) {
  const __half2 d = __hmul2(*reinterpret_cast<const __half2*>(&a), *reinterpret_cast<const __half2*>(&b));
  return *reinterpret_cast<const uint32_t*>(&d);
}

__device__ __forceinline__ uint32_t fma_f16(uint32_t a, uint32_t b, uint32_t c) {
  uint32_t d;
  asm("fma.rn.f16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(a), "r"(b), "r"(c));
  return d;
}

// What rounding left of the product: a b - product, exact but for f16's smallest.
__device__ __forceinline__ uint32_t remainder_f16(uint32_t a, uint32_t b, uint32_t product) {
  uint32_t d;
  asm("{\n.reg .b32 n;\nneg.f16x2 n, %3;\nfma.rn.f16x2 %0, %1, %2, n;\n}\n" : "=r"(d) : "r"(a), "r"(b), "r"(product));
  return d;
}

__device__ __forceinline__ uint32_t multiply_bf16(uint32_t a, uint32_t b) {
  const __nv_bfloat162 d = __hmul2(*reinterpret_cast<const __nv_bfloat162*>(&a), *reinterpret_cast<const __nv_bfloat162*>(&b));
  return *reinterpret_cast<const uint32_t*>(&d);
}

// bf16 as f16, clamped to what that holds; NaN stays NaN.
__device__ __forceinline__ uint32_t bf16x2_to_f16x2(uint32_t w) {
  const auto clamped = [](float x) { return x > 65504.0f ? 65504.0f : x < -65504.0f ? -65504.0f : x; };
  const float2 x = unpack2<bf16>(w);
  return pack2<fp16>(clamped(x.x), clamped(x.y));
}

// FEW: a list has up to four heads. They stand in columns 0 to 3, and again in 4 to 7, where products of codes take what f16 left of the query,
// and products of zeros every second pair of dims: half the products of K.
template <int HEAD_DIM, int kColumns, int BITS, bool FEW>
struct State<HEAD_DIM, kColumns, KiviRow<BITS, FEW>> : State<HEAD_DIM, kColumns, bf16> {
  static_assert(!FEW || kColumns == 1, "four heads are one n tile");
  using Base = State<HEAD_DIM, kColumns, bf16>;
  using Base::kSteps;
  using Base::o;
  using Base::peak;
  using Base::q;  // f16: of step s of a group's two, dims of the pairs s and s + 2; of the only one, of pairs 0 and 1
  using Base::unit;
  static constexpr int kGroups = (HEAD_DIM + 31) / 32;
  static constexpr int kFields = 16 / BITS;
  uint32_t place;  // 16 times the lane
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ < 900
  static constexpr bool kLeft = FEW && HEAD_DIM < 128;  // registers for more are not left beside outputs
#else
  static constexpr bool kLeft = FEW && HEAD_DIM <= 128;
#endif
  uint32_t left[kLeft ? kSteps : 1][2];  // minus q in the columns of what f16 leaves of the query, else 0

  __device__ __forceinline__ uint32_t left_of(int step, int half) const {
    if constexpr (kLeft) return left[step][half];
    return place >= 256 ? q[0][step][half] ^ 0x80008000u : 0u;
  }
  uint32_t zero_query[kGroups][2];  // where FEW: what the lane's column multiplies zeros by
  float z[kColumns][4];  // [group, head]: what is added to all dims of a group, relative to 2^peak; rows 0 to 7

  // Weights of V's codes are times 2^kRaised, codes times 2^-133 and their field's factor: outputs are times 2^(kRaised - 133) and that factor.
  static constexpr int kRaised = 90;
  __host__ __device__ static constexpr int raised_by(int step, int lower) { return (step / 2 % (kFields / 4) * 4 + step % 2 * 2 + lower) % (8 / BITS) * BITS; }
  __device__ __forceinline__ static float code_unit(int step, int lower) { return __uint_as_float(static_cast<uint32_t>(127 + 133 - kRaised - raised_by(step, lower)) << 23); }
  __device__ __forceinline__ static float row_unit(int step, int lower) { return __uint_as_float(static_cast<uint32_t>(127 - 133 + kRaised + raised_by(step, lower)) << 23); }

  // Pairs of a lane's dims of a group, and where they stand among the operands of the group's steps: zeros of a whole group are then four
  // registers of one operand as they are loaded, pairs 0 and 2 of the upper rows, 1 and 3 of the lower.
  __host__ __device__ static constexpr int kPairs(int group) { return 2 * group + 1 < kSteps ? 4 : 2; }
  __host__ __device__ static constexpr int step_of(int group, int pair) { return kPairs(group) == 4 ? pair % 2 : 0; }
  __host__ __device__ static constexpr int half_of(int group, int pair) { return kPairs(group) == 4 ? pair / 2 : pair; }
  __host__ __device__ static constexpr int pair_of(int group, int step, int half) { return kPairs(group) == 4 ? step + 2 * half : half; }

  // Where a lane's dims of a group begin, four or eight of them.
  __device__ __forceinline__ static int first_dim(int group, int p) { return 32 * group + p * (2 * group + 1 < kSteps ? 8 : 4); }

  // The words of a lane's dims of a group, the last two zero where the group has but 16 dims.
  template <class Bytes>
  __device__ __forceinline__ static void load_dims(const Bytes& row, int group, uint32_t (&w)[4], int p) {
    if (2 * group + 1 < kSteps) {
      const uint4 x = row.load16(2 * first_dim(group, p));
      w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
    } else {
      const uint2 x = row.load8(2 * first_dim(group, p));
      w[0] = x.x, w[1] = x.y, w[2] = 0, w[3] = 0;
    }
  }

  // Takes the query, bf16, as f16 times a power of two that brings a head's largest to 1..2.
  template <int kRowBytes>
  __device__ __forceinline__ void begin(const uint8_t* tile, float scale) {
    const int lane = threadIdx.x % 32;
    place = keep(16 * lane);
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const SharedBytes row{tile + (8 * n + (FEW ? lane / 4 % 4 : lane / 4)) * kRowBytes};
      uint32_t top = 0;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        uint32_t w[4];
        load_dims(row, c, w, lane % 4);
#pragma unroll
        for (int i = 0; i < 4; ++i) {
          top = max(top, max(w[i] & 0x7fffu, w[i] >> 16 & 0x7fffu));
          if (i < kPairs(c)) q[n][2 * c + step_of(c, i)][half_of(c, i)] = w[i];
        }
      }
#pragma unroll
      for (int step = 1; step < 4; step *= 2) top = max(top, __shfl_xor_sync(kAll, top, step));
      const uint32_t biased = min(max(top >> 7, 1u), 253u);  // both powers are normal numbers
      const float down = __uint_as_float((254 - biased) << 23);
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const float2 x = unpack2<bf16>(q[n][s][half]);
          q[n][s][half] = pack2<fp16>(x.x * down, x.y * down);
        }
      if constexpr (FEW) {
        const bool second = lane >= 16;
        if constexpr (kLeft)
#pragma unroll
          for (int s = 0; s < kSteps; ++s)
#pragma unroll
            for (int half = 0; half < 2; ++half) left[s][half] = keep(second ? q[n][s][half] ^ 0x80008000u : 0u);
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          const bool whole = kPairs(c) == 4;
          zero_query[c][0] = second ? q[n][2 * c + whole][!whole] : q[n][2 * c][0];
          zero_query[c][1] = !whole ? 0u : second ? q[n][2 * c + whole][1] : q[n][2 * c][1];
          zero_query[c][0] = keep(zero_query[c][0]), zero_query[c][1] = keep(zero_query[c][1]);
        }
      }
      const float factor = __uint_as_float(biased << 23);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        unit[n][j] = scale * __shfl_sync(kAll, factor, 8 * (threadIdx.x % 4) + 4 * j);
        peak[n][j] = kNoPeak, this->sum[n][j] = 0.0f;
      }
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int i = 0; i < 4; ++i) o[s][n][i] = 0.0f;
#pragma unroll
      for (int i = 0; i < 4; ++i) z[n][i] = 0.0f;
    }
  }

  // Weights of a tile's tokens; what is summed follows the running maximum.
  template <bool SOFTCAP>
  __device__ __forceinline__ void settle(float (&s)[kColumns][4], uint32_t mask, float cap, uint32_t (&p)[kColumns][2]) {
    Base::template weigh<SOFTCAP, bf16>(s, mask, cap, p, [&](const auto& up) {
      float before[kColumns][2];
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) before[n][j] = peak[n][j];
      up();
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
#pragma unroll
        for (int j = 0; j < 2; ++j) z[n][j] *= exp2_approx(before[n][j] - peak[n][j]);
    });
  }

  // Field `field` of a word of codes as two numbers, R::factor(field) times what the lowest field would be: f16 of K, bf16 of V.
  __device__ __forceinline__ static uint32_t code_field(uint32_t word, int field) {
    constexpr int kPlaces = 8 / BITS;
    return (field < kPlaces ? word : word >> 8) & (static_cast<uint32_t>((1 << BITS) - 1) * 0x10001u) << field % kPlaces * BITS;
  }

  // Loads a lane's words of a half from its vectors, `step` bytes apart.
  template <class R>
  __device__ __forceinline__ static void load_codes(uint32_t from, int step, uint32_t (&w)[R::kWords]) {
#pragma unroll
    for (int first = 0; first < R::kWords; first += R::kVector) {
      uint32_t v[R::kVector];
      load_words<R::kVector, 4 * R::kVector>(SharedWindow{from}, first / R::kVector * step, v);
#pragma unroll
      for (int i = 0; i < R::kVector; ++i) w[first + i] = v[i];
    }
  }

  // Logits (or what tanh takes) of a tile of a quantised page in shared memory: what its keys share, then the tile.
  template <class R>
  __device__ __forceinline__ void logits(uint32_t stage, float (&s)[kColumns][4]) const {
    const int lane = place / 16, g = lane / 4, p = lane % 4;
    const uint32_t tile = stage + R::kHead;
    uint32_t low[R::kWords], high[R::kWords];
    const uint32_t keys = R::kRows == 8 && R::kVector == 4 ? place : R::key_word(0, g % R::kRows, p);
    load_codes<R>(tile + keys, R::kRows * 16 * R::kVector, low);
    if (R::kHalves == 2) load_codes<R>(tile + R::kKeyHalf + keys, R::kRows * 16 * R::kVector, high);
    float rest[kColumns][4];  // of what f16 left of the query, as s of codes in 2^-24
    float upper[kColumns][4], lower[kColumns][4];  // of zeros: of the first in rows g, of the second in rows g + 8; the same in all rows
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = rest[n][i] = upper[n][i] = lower[n][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      uint32_t scales[4], zeros[4];
      load_dims(SharedWindow{stage}, c, scales, p);
      load_dims(SharedWindow{stage + R::kKeyZeros}, c, zeros, p);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int step = 2 * c + h, i = pair_of(c, h, 0), j = pair_of(c, h, 1);
        if (step >= kSteps) continue;
        const uint32_t a0 = code_field(low[c / R::kChunks], R::field(c, i)), a2 = code_field(low[c / R::kChunks], R::field(c, j));
        const uint32_t a1 = R::kHalves == 2 ? code_field(high[c / R::kChunks], R::field(c, i)) : 0u;
        const uint32_t a3 = R::kHalves == 2 ? code_field(high[c / R::kChunks], R::field(c, j)) : 0u;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          if constexpr (FEW) {
            mma_m16n8k16(step % 2 ? rest[n] : s[n], a0, a1, a2, a3, fma_f16(q[n][step][0], scales[i], multiply_f16(left_of(step, 0), scales[i])),
                         fma_f16(q[n][step][1], scales[j], multiply_f16(left_of(step, 1), scales[j])), fp16());
            continue;
          }
          const uint32_t b0 = multiply_f16(q[n][step][0], scales[i]), b1 = multiply_f16(q[n][step][1], scales[j]);
          mma_m16n8k16(s[n], a0, a1, a2, a3, b0, b1, fp16());
          mma_m16n8k16(rest[n], a0, a1, a2, a3, remainder_f16(q[n][step][0], scales[i], b0), remainder_f16(q[n][step][1], scales[j], b1), fp16());
        }
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        const bool whole = kPairs(c) == 4;
        if constexpr (FEW) {
          mma_m16n8k16(upper[n], zeros[0], zeros[1], zeros[2], zeros[3], zero_query[c][0], zero_query[c][1], fp16());
          continue;
        }
        mma_m16n8k16(upper[n], zeros[0], zeros[1], zeros[2], zeros[3], q[n][2 * c][0], whole ? q[n][2 * c][1] : 0u, fp16());
        mma_m16n8k16(lower[n], zeros[0], zeros[1], zeros[2], zeros[3], q[n][2 * c + whole][!whole], whole ? q[n][2 * c + whole][1] : 0u, fp16());
      }
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        if constexpr (FEW) {
          s[n][i] = fmaf(s[n][i] + rest[n][i], 0x1p24f, p < 2 ? upper[n][i % 2] : upper[n][i % 2 + 2]);
          s[n][i] = (s[n][i] + __shfl_xor_sync(kAll, s[n][i], 2)) * unit[n][i % 2];
        } else {
          s[n][i] = fmaf(s[n][i] + rest[n][i], 0x1p24f, upper[n][i % 2] + lower[n][i % 2 + 2]) * unit[n][i % 2];
        }
      }
  }

  // Adds the tile's values by the weights of its tokens.
  template <class R>
  __device__ __forceinline__ void values(uint32_t stage, const uint32_t (&weights)[kColumns][2]) {
    const int lane = place / 16, g = lane / 4, p = lane % 4;
    const uint32_t tile = stage + R::kHead;
    uint32_t low[R::kWords], high[R::kWords];
    const int pair = p % R::kPairs;  // of tokens; those past the tile have weight 0
    const uint32_t words = R::kPairs == 4 && R::kVector == 4 ? place : R::value_word(0, g, pair);
    load_codes<R>(tile + R::kValues + words, R::kPairs * 32 * R::kVector, low);
    if (R::kHalves == 2) load_codes<R>(tile + R::kValues + R::kValueHalf + words, R::kPairs * 32 * R::kVector, high);
    uint32_t scales[2][kGroups], zeros[2] = {0, 0};  // of a half's pair of tokens: of all groups; of group g
#pragma unroll
    for (int half = 0; half < R::kHalves; ++half) {
      const uint32_t at = tile + R::kValueScales + half * R::kParamHalf + pair * kGroups * 4;
      load_words<kGroups, alignment_of(4 * kGroups)>(SharedWindow{at}, 0, scales[half]);
      if (g < kGroups) zeros[half] = SharedWindow{at + R::kValueZeros - R::kValueScales}.load4(4 * g);
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) mma_m16n8k16(z[n], zeros[0], 0u, zeros[1], 0u, weights[n][0], weights[n][1], bf16());
    constexpr uint32_t kOffset = static_cast<uint32_t>(0x8000 + (127 - kRaised + (BITS - 1)) * 128) * 0x10001u;  // -kMiddle over 2^kRaised
    static_assert(R::kMiddle == 1 << (BITS - 1), "kOffset is the middle code");
    constexpr uint32_t kRaise = static_cast<uint32_t>((127 + kRaised) * 128) * 0x10001u;
    uint32_t scaled[kColumns][2], before[2], raised[kColumns][2];
#pragma unroll
    for (int n = 0; n < kColumns; ++n) raised[n][0] = multiply_bf16(weights[n][0], kRaise), raised[n][1] = multiply_bf16(weights[n][1], kRaise);
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      before[0] = scaled[0][0], before[1] = scaled[0][1];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        scaled[n][0] = multiply_bf16(raised[n][0], scales[0][c]);
        scaled[n][1] = R::kHalves == 2 ? multiply_bf16(raised[n][1], scales[1][c]) : 0u;
      }
      if constexpr (FEW) {
        // Two groups at once: columns 0 to 3 are the first's, 4 to 7 the second's.
        if (c % 2 == 1 || c + 1 == kGroups) {
          const bool second = c % 2 == 0 || lane >= 16;
          const uint32_t offset = g / 2 == c / 2 ? kOffset : 0u;
          mma_m16n8k16(z[0], offset, 0u, offset, 0u, second ? scaled[0][0] : before[0], second ? scaled[0][1] : before[1], bf16());
        }
      } else {
        const uint32_t offset = g == c ? kOffset : 0u;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma_m16n8k16(z[n], offset, 0u, offset, 0u, scaled[n][0], scaled[n][1], bf16());
      }
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int step = 2 * c + h, i = 2 * h;
        if (step >= kSteps) continue;
        const uint32_t a0 = code_field(low[c / R::kChunks], R::field(c, i)), a1 = code_field(low[c / R::kChunks], R::field(c, i + 1));
        const uint32_t a2 = R::kHalves == 2 ? code_field(high[c / R::kChunks], R::field(c, i)) : 0u;
        const uint32_t a3 = R::kHalves == 2 ? code_field(high[c / R::kChunks], R::field(c, i + 1)) : 0u;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma_m16n8k16(o[step][n], a0, a1, a2, a3, scaled[n][0], scaled[n][1], bf16());
      }
    }
  }

  // One tile of a quantised page.
  template <bool SOFTCAP, class R>
  __device__ __forceinline__ void add_codes(uint32_t stage, float cap) {
    float s[kColumns][4];
    logits<R>(stage, s);
    uint32_t weights[kColumns][2];
    settle<SOFTCAP>(s, (1u << R::kTokens) - 1, cap, weights);
    values<R>(stage, weights);
  }

  // Logits of `tokens` rows in bf16 from global memory: the page that is still filling, once a list.
  template <class Rows>
  __device__ __forceinline__ void row_logits(const Rows& rows, int tokens, float (&s)[kColumns][4]) const {
    const int lane = place / 16, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      uint32_t a[2][4];
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int token = g + 8 * half;
        a[half][0] = a[half][1] = a[half][2] = a[half][3] = 0;
        if (token < tokens) load_dims(GlobalBytes{reinterpret_cast<const uint8_t*>(rows.k + token * rows.k_stride)}, c, a[half], p);
#pragma unroll
        for (int i = 0; i < 4; ++i) a[half][i] = bf16x2_to_f16x2(a[half][i]);
      }
#pragma unroll
      for (int h = 0; h < 2; ++h)
        if (2 * c + h < kSteps)
#pragma unroll
          for (int n = 0; n < kColumns; ++n)
            mma_m16n8k16(s[n], a[0][pair_of(c, h, 0)], a[1][pair_of(c, h, 0)], a[0][pair_of(c, h, 1)], a[1][pair_of(c, h, 1)], q[n][2 * c + h][0], q[n][2 * c + h][1],
                         fp16());
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] *= unit[n][i % 2];
  }

  // Adds their values.
  template <class Rows>
  __device__ __forceinline__ void row_values(const Rows& rows, int tokens, const uint32_t (&weights)[kColumns][2]) {
    const int lane = place / 16, g = lane / 4, p = lane % 4;
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t w[4];  // tokens 2p, 2p + 1, 2p + 8, 2p + 9, two dims each
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int token = 2 * p + t % 2 + t / 2 * 8;
        w[t] = token < tokens ? GlobalBytes{reinterpret_cast<const uint8_t*>(rows.v + token * rows.v_stride)}.load4(2 * (16 * step + 2 * g)) : 0u;
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        float add[4] = {0.0f, 0.0f, 0.0f, 0.0f};
        mma_m16n8k16(add, __byte_perm(w[0], w[1], 0x5410), __byte_perm(w[0], w[1], 0x7632), __byte_perm(w[2], w[3], 0x5410),
                     __byte_perm(w[2], w[3], 0x7632), weights[n][0], weights[n][1], bf16());
#pragma unroll
        for (int i = 0; i < 4; ++i) o[step][n][i] = fmaf(add[i], row_unit(step, i / 2), o[step][n][i]);
      }
    }
  }

  template <bool SOFTCAP, class Rows>
  __device__ __forceinline__ void add_rows(const Rows& rows, int tokens, float cap) {
    float s[kColumns][4];
    row_logits(rows, tokens, s);
    uint32_t weights[kColumns][2];
    settle<SOFTCAP>(s, (1u << tokens) - 1, cap, weights);
    row_values(rows, tokens, weights);
  }

  // Makes outputs of sums of codes, and gives every dim what its group has.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          // Where FEW, columns 0 to 3 have what the middle code takes from groups of even numbers, 4 to 7 from those of odd ones.
          const int column = FEW ? threadIdx.x % 2 + s / 2 % 2 * 2 : threadIdx.x % 4;
          const float x = __shfl_sync(kAll, z[n][j], s / 2 * 4 + column);
          o[s][n][j] = fmaf(o[s][n][j], code_unit(s, 0), x), o[s][n][j + 2] = fmaf(o[s][n][j + 2], code_unit(s, 1), x);
        }
  }
};

// attend::store_state of lists of up to four heads: lanes of columns 4 to 7 have the same outputs and store every second step, two dims at once.
template <class S, int HEAD_DIM, int BITS>
__device__ __forceinline__ void store_state(State<HEAD_DIM, 1, KiviRow<BITS, true>>& state, float* out, float2* stats) {
  constexpr int kSteps = HEAD_DIM / 16;
  const int lane = threadIdx.x % 32, g = lane / 4, odd = lane / 2 % 2;
#pragma unroll
  for (int j = 0; j < 2; ++j) {
    const int head = lane % 2 * 2 + j;
    float sum = state.sum[0][j];
#pragma unroll
    for (int step = 4; step < 32; step *= 2) sum += __shfl_xor_sync(kAll, sum, step);
    if (head >= S::kTileHeads) continue;
    if (lane < 2) stats[head] = make_float2(state.peak[0][j], sum);
#pragma unroll
    for (int s = 0; s < kSteps; s += 2) {
      float2 x = make_float2(state.o[s][0][j], state.o[s][0][j + 2]);
      if (odd) {
        if (s + 1 == kSteps) continue;
        x = make_float2(state.o[s + 1 < kSteps ? s + 1 : s][0][j], state.o[s + 1 < kSteps ? s + 1 : s][0][j + 2]);
      }
      *reinterpret_cast<float2*>(out + head * S::kOutStride + 16 * (s + odd) + 2 * g) = x;
    }
  }
}

}  // namespace attend

}  // namespace kvloom
