// page_attend over a KIVI cache: quantised pages from their records, the page that is still filling from its rows in bf16.
//
// Codes become operands of the mma by a mask. Of K, a field of four or two bits is an f16 subnormal as it stands, a code times 2^-24 and what
// its place in the word adds, which the stored scale takes out again; scales multiply the query, rounded to f16 with a second f16 for what
// that leaves, and zeros are a product of their own with the query, for all tokens of the tile at once. Of V, a field under the exponent of 128 is
// the bf16 128 + code; scales multiply the weights of tokens, a group of 32 channels at a time, and what zeros and the 128 add to a group's
// channels is summed beside the output, [group, head], until the end.
#pragma once

#include "kernels/page_attend.cuh"
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
  uint32_t zero_query[kGroups][2];  // where FEW: what the lane's column multiplies zeros by
  float z[kColumns][4];  // [group, head]: what is added to all dims of a group, relative to 2^peak; rows 0 to 7

  // Pairs of a lane's dims of a group, and where they stand among the operands of the group's steps: zeros of a whole group are then four
  // registers of one operand as they are loaded, pairs 0 and 2 of the upper rows, 1 and 3 of the lower.
  __host__ __device__ static constexpr int kPairs(int group) { return 2 * group + 1 < kSteps ? 4 : 2; }
  __host__ __device__ static constexpr int step_of(int group, int pair) { return kPairs(group) == 4 ? pair % 2 : 0; }
  __host__ __device__ static constexpr int half_of(int group, int pair) { return kPairs(group) == 4 ? pair / 2 : pair; }
  __host__ __device__ static constexpr int pair_of(int group, int step, int half) { return kPairs(group) == 4 ? step + 2 * half : half; }

  // Where a lane's dims of a group begin, four or eight of them.
  __device__ __forceinline__ static int first_dim(int group) {
    return 32 * group + threadIdx.x % 4 * (2 * group + 1 < kSteps ? 8 : 4);
  }

  // The words of a lane's dims of a group, the last two zero where the group has but 16 dims.
  template <class Bytes>
  __device__ __forceinline__ static void load_dims(const Bytes& row, int group, uint32_t (&w)[4]) {
    if (2 * group + 1 < kSteps) {
      const uint4 x = row.load16(2 * first_dim(group));
      w[0] = x.x, w[1] = x.y, w[2] = x.z, w[3] = x.w;
    } else {
      const uint2 x = row.load8(2 * first_dim(group));
      w[0] = x.x, w[1] = x.y, w[2] = 0, w[3] = 0;
    }
  }

  // Takes the query, bf16, as f16 times a power of two that brings a head's largest to 1..2.
  template <int kRowBytes>
  __device__ __forceinline__ void begin(const uint8_t* tile, float scale) {
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int n = 0; n < kColumns; ++n) {
      const SharedBytes row{tile + (8 * n + (FEW ? lane / 4 % 4 : lane / 4)) * kRowBytes};
      uint32_t top = 0;
#pragma unroll
      for (int c = 0; c < kGroups; ++c) {
        uint32_t w[4];
        load_dims(row, c, w);
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
#pragma unroll
        for (int c = 0; c < kGroups; ++c) {
          const bool whole = kPairs(c) == 4;
          zero_query[c][0] = second ? q[n][2 * c + whole][!whole] : q[n][2 * c][0];
          zero_query[c][1] = !whole ? 0u : second ? q[n][2 * c + whole][1] : q[n][2 * c][1];
        }
      }
      const float factor = __uint_as_float(biased << 23);
#pragma unroll
      for (int j = 0; j < 2; ++j) {
        unit[n][j] = scale * __shfl_sync(kAll, factor, 8 * (threadIdx.x % 4) + 4 * j);
        peak[n][j] = minus_infinity(), this->sum[n][j] = 0.0f;
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
        for (int j = 0; j < 2; ++j) z[n][j] *= weight(before[n][j], peak[n][j]);
    });
  }

  // Field `field` of a word of K's codes, as two f16 subnormals.
  __device__ __forceinline__ static uint32_t key_field(uint32_t word, int field) {
    constexpr int kPlaces = 8 / BITS;
    return (field < kPlaces ? word : word >> 8) & (static_cast<uint32_t>((1 << BITS) - 1) * 0x10001u) << field % kPlaces * BITS;
  }

  // Field `field` of a word of V's codes, as two bf16, 128 + code.
  __device__ __forceinline__ static uint32_t value_field(uint32_t word, int field) {
    uint32_t w;  // (a & b) | c in one instruction
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(w) : "r"(word >> field * BITS), "r"(static_cast<uint32_t>((1 << BITS) - 1) * 0x10001u), "r"(0x43004300u));
    return w;
  }

  // Loads a lane's words of a half from its vectors, `step` bytes apart.
  template <class R>
  __device__ __forceinline__ static void load_codes(const uint8_t* from, int step, uint32_t (&w)[R::kWords]) {
#pragma unroll
    for (int first = 0; first < R::kWords; first += R::kVector) {
      uint32_t v[R::kVector];
      load_words<R::kVector, 4 * R::kVector>(SharedBytes{from}, first / R::kVector * step, v);
#pragma unroll
      for (int i = 0; i < R::kVector; ++i) w[first + i] = v[i];
    }
  }

  // One tile of a quantised page, in shared memory: what its keys share, then the tile.
  template <bool SOFTCAP, class R>
  __device__ __forceinline__ void add_codes(const uint8_t* stage, float cap) {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const uint8_t* tile = stage + R::kHead;
    uint32_t low[R::kWords], high[R::kWords];
    load_codes<R>(tile + R::key_word(0, g % R::kRows, p), R::kRows * 16 * R::kVector, low);
    if (R::kHalves == 2) load_codes<R>(tile + R::kKeyHalf + R::key_word(0, g, p), R::kRows * 16 * R::kVector, high);
    float s[kColumns][4], rest[kColumns][4];  // of codes and of what f16 left of the query, in 2^-24
    float upper[kColumns][4], lower[kColumns][4];  // of zeros: of the first in rows g, of the second in rows g + 8; the same in all rows
    const uint32_t second = FEW && lane >= 16 ? 0xbc00bc00u : 0u;  // -1 in the columns of what f16 left
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int i = 0; i < 4; ++i) s[n][i] = rest[n][i] = upper[n][i] = lower[n][i] = 0.0f;
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      uint32_t scales[4], zeros[4];
      load_dims(SharedBytes{stage}, c, scales);
      load_dims(SharedBytes{stage + R::kKeyZeros}, c, zeros);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const int step = 2 * c + h, i = pair_of(c, h, 0), j = pair_of(c, h, 1);
        if (step >= kSteps) continue;
        const uint32_t a0 = key_field(low[c / R::kChunks], R::field(c, i)), a2 = key_field(low[c / R::kChunks], R::field(c, j));
        const uint32_t a1 = R::kHalves == 2 ? key_field(high[c / R::kChunks], R::field(c, i)) : 0u;
        const uint32_t a3 = R::kHalves == 2 ? key_field(high[c / R::kChunks], R::field(c, j)) : 0u;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) {
          const uint32_t b0 = multiply_f16(q[n][step][0], scales[i]), b1 = multiply_f16(q[n][step][1], scales[j]);
          if constexpr (FEW) {
            mma_m16n8k16(step % 2 ? rest[n] : s[n], a0, a1, a2, a3, fma_f16(q[n][step][0], scales[i], multiply_f16(b0, second)),
                         fma_f16(q[n][step][1], scales[j], multiply_f16(b1, second)), fp16());
            continue;
          }
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
    uint32_t weights[kColumns][2];
    settle<SOFTCAP>(s, (1u << R::kTokens) - 1, cap, weights);

    const int pair = p % R::kPairs;  // of tokens; those past the tile have weight 0
    load_codes<R>(tile + R::kValues + R::value_word(0, g, pair), R::kPairs * 32 * R::kVector, low);
    if (R::kHalves == 2) load_codes<R>(tile + R::kValues + R::kValueHalf + R::value_word(0, g, pair), R::kPairs * 32 * R::kVector, high);
    uint32_t scales[2][kGroups], zeros[2] = {0, 0};  // of a half's pair of tokens: of all groups; of group g
#pragma unroll
    for (int half = 0; half < R::kHalves; ++half) {
      const uint8_t* at = tile + R::kValueScales + half * R::kParamHalf + pair * kGroups * 4;
      load_words<kGroups, alignment_of(4 * kGroups)>(SharedBytes{at}, 0, scales[half]);
      if (g < kGroups) zeros[half] = SharedBytes{at + R::kValueZeros - R::kValueScales}.load4(4 * g);
    }
#pragma unroll
    for (int n = 0; n < kColumns; ++n) mma_m16n8k16(z[n], zeros[0], 0u, zeros[1], 0u, weights[n][0], weights[n][1], bf16());
    constexpr uint32_t kOffset = 0x80008000u | static_cast<uint32_t>(0x4300 + R::kMiddle) * 0x10001u;  // -(128 + kMiddle)
    uint32_t scaled[kColumns][2], before[2];
#pragma unroll
    for (int c = 0; c < kGroups; ++c) {
      before[0] = scaled[0][0], before[1] = scaled[0][1];
#pragma unroll
      for (int n = 0; n < kColumns; ++n) {
        scaled[n][0] = multiply_bf16(weights[n][0], scales[0][c]);
        scaled[n][1] = R::kHalves == 2 ? multiply_bf16(weights[n][1], scales[1][c]) : 0u;
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
        const uint32_t a0 = value_field(low[c / R::kChunks], R::field(c, i)), a1 = value_field(low[c / R::kChunks], R::field(c, i + 1));
        const uint32_t a2 = R::kHalves == 2 ? value_field(high[c / R::kChunks], R::field(c, i)) : 0u;
        const uint32_t a3 = R::kHalves == 2 ? value_field(high[c / R::kChunks], R::field(c, i + 1)) : 0u;
#pragma unroll
        for (int n = 0; n < kColumns; ++n) mma_m16n8k16(o[step][n], a0, a1, a2, a3, scaled[n][0], scaled[n][1], bf16());
      }
    }
  }

  // `tokens` rows in bf16 from global memory: the page that is still filling, once a list.
  template <bool SOFTCAP>
  __device__ __forceinline__ void add_rows(const uint16_t* k, int64_t k_stride, const uint16_t* v, int64_t v_stride, int tokens, float cap) {
    const int lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    float s[kColumns][4];
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
        if (token < tokens) load_dims(GlobalBytes{reinterpret_cast<const uint8_t*>(k + token * k_stride)}, c, a[half]);
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
    uint32_t weights[kColumns][2];
    settle<SOFTCAP>(s, (1u << tokens) - 1, cap, weights);
#pragma unroll
    for (int step = 0; step < kSteps; ++step) {
      uint32_t w[4];  // tokens 2p, 2p + 1, 2p + 8, 2p + 9, two dims each
#pragma unroll
      for (int t = 0; t < 4; ++t) {
        const int token = 2 * p + t % 2 + t / 2 * 8;
        w[t] = token < tokens ? GlobalBytes{reinterpret_cast<const uint8_t*>(v + token * v_stride)}.load4(2 * (16 * step + 2 * g)) : 0u;
      }
#pragma unroll
      for (int n = 0; n < kColumns; ++n)
        mma_m16n8k16(o[step][n], __byte_perm(w[0], w[1], 0x5410), __byte_perm(w[0], w[1], 0x7632), __byte_perm(w[2], w[3], 0x5410),
                     __byte_perm(w[2], w[3], 0x7632), weights[n][0], weights[n][1], bf16());
    }
  }

  // Gives every dim what its group has.
  __device__ __forceinline__ void end() {
#pragma unroll
    for (int n = 0; n < kColumns; ++n)
#pragma unroll
      for (int s = 0; s < kSteps; ++s)
#pragma unroll
        for (int j = 0; j < 2; ++j) {
          const float x = __shfl_sync(kAll, z[n][j], s / 2 * 4 + (threadIdx.x % 4 ^ (FEW && s / 2 % 2 ? 2 : 0)));
          o[s][n][j] += x, o[s][n][j + 2] += x;
        }
  }
};

// A list of pages in tiles of min(PAGE, 16) tokens: a page's, or a part of it. Lane l of a warp holds tile l of a batch of 32.
template <int PAGE>
struct KiviUnits {
  static constexpr int kTokens = PAGE < kTile ? PAGE : kTile, kPerPage = PAGE / kTokens, kTilesPerBatch = 32;

  const int32_t* pages;
  const int32_t* table;
  int count, max_pages, length;
  const KvCache* cache;
  int request, kv_head;

  int block;   // of this lane's tile: of the store, or of rows
  int tokens;  // in it; negative where they are rows

  __device__ __forceinline__ static int tiles(int pages) { return pages * kPerPage; }

  __device__ __forceinline__ void load(int64_t tile) {
    const int64_t slot = tile / kPerPage;
    int page = -1;
    if (slot < count) page = pages ? pages[slot] : static_cast<int>(slot);
    const int64_t first = static_cast<int64_t>(page) * PAGE + tile % kPerPage * kTokens;
    const bool exists = page >= 0 && page < max_pages && first < length;
    const bool whole = (static_cast<int64_t>(page) + 1) * PAGE <= length;
    block = -1;
    if (exists) block = (whole ? table : cache->row_table + request * cache->table_stride)[page];
    tokens = exists ? static_cast<int>(min(length - first, static_cast<int64_t>(kTokens))) : 0;
    if (!whole) tokens = -tokens;
  }

  __device__ __forceinline__ void take(const KiviUnits& ahead) {
    tokens = ahead.block < 0 ? 0 : ahead.tokens;
    block = max(ahead.block, 0);
  }
};

// Starts the copies of a tile of a quantised page, by all lanes: a commit closes their group.
template <class R>
__device__ __forceinline__ void copy_tile(const KvCache& cache, int kv_head, int block, int part, uint32_t stage) {
  constexpr int kPieces = (R::kHead + R::kTile) / 16;
  const uint8_t* record = cache.store + block * cache.store_block_stride + kv_head * cache.store_head_stride;
  const int lane = threadIdx.x % 32;
#pragma unroll
  for (int i = 0; i < (kPieces + 31) / 32; ++i) {
    const int piece = i * 32 + lane;
    if (kPieces % 32 != 0 && piece >= kPieces) continue;
    const int skip = R::kTiles > 1 && piece >= R::kHead / 16 ? part * R::kTile : 0;
    ptx::copy16_or_zero(stage + piece * 16, record + piece * 16 + skip, true);
  }
}

template <typename T>
struct KiviCopies;

// How the streaming kernel reads.
template <int BITS, bool FEW>
struct KiviCopies<KiviRow<BITS, FEW>> {
  using Tile = KiviRow<BITS, FEW>;
  template <int HEAD_DIM, int PAGE, int HEADS, int kWarps, int kStages, int kColumns>
  using Sizes = KiviShape<HEAD_DIM, PAGE, HEADS, kWarps, kStages, kColumns, BITS>;
  template <int PAGE>
  using Walk = KiviUnits<PAGE>;

  template <int HEAD_DIM, int PAGE, bool SOFTCAP, int kStages, class S, int kColumns>
  __device__ __forceinline__ static void run(State<HEAD_DIM, kColumns, Tile>& state, KiviUnits<PAGE>& units, const Rows<Tile>& k,
                                             const Rows<Tile>& v, int first, int last, uint8_t* ring, float scale, float cap) {
    using U = KiviUnits<PAGE>;
    using R = typename S::Record;
    const int lane = threadIdx.x % 32;
    int next = first;             // tile to issue
    int into = 0, from = 0;       // stages
    uint32_t flight = 0;          // a byte a tile in flight, the oldest lowest: its tokens, 0x80 where they are rows
    int rows_block = 0;           // of the page that is still filling
    U ahead = units;              // the batch after the current one
    const auto load_ahead = [&](int batch) {
      if (static_cast<int64_t>(batch) * U::kTilesPerBatch < last) ahead.load(static_cast<int64_t>(batch) * U::kTilesPerBatch + lane);
    };
    load_ahead(first / U::kTilesPerBatch);
    units.take(ahead);
    load_ahead(first / U::kTilesPerBatch + 1);
    const auto issue_next = [&]() -> uint32_t {
      uint32_t what = 0;
      if (next < last) {
        const int tokens = __shfl_sync(kAll, units.tokens, next % U::kTilesPerBatch), block = __shfl_sync(kAll, units.block, next % U::kTilesPerBatch);
        what = tokens < 0 ? 0x80 - tokens : tokens;
        if (tokens > 0) copy_tile<R>(*units.cache, units.kv_head, block, next % U::kPerPage, ptx::shared_address(ring) + into * S::kStageBytes);
        if (tokens < 0) rows_block = block;
        into = into + 1 == kStages ? 0 : into + 1;
        if (++next % U::kTilesPerBatch == 0) {
          units.take(ahead);
          load_ahead(next / U::kTilesPerBatch + 1);
        }
      }
      ptx::commit_copies();
      return what;
    };
#pragma unroll
    for (int i = 0; i < kStages - 1; ++i) flight |= issue_next() << 8 * i;
    ptx::wait_copies<kStages - 1>();
    __syncthreads();
    state.template begin<S::kQueryRowBytes>(query_tile<S>(), scale);
#pragma unroll 1
    for (int tile = first; tile < last; ++tile) {
      flight |= issue_next() << 8 * (kStages - 1);
      ptx::wait_copies<kStages - 1>();
      __syncwarp();
      const int what = static_cast<int>(flight & 0xff);
      if (what >= 0x80) {
        const int64_t in_page = tile % U::kPerPage * U::kTokens;
        state.template add_rows<SOFTCAP>(&k.base->bits + rows_block * k.block_stride + in_page * k.token_stride, k.token_stride,
                                         &v.base->bits + rows_block * v.block_stride + in_page * v.token_stride, v.token_stride, what - 0x80, cap);
      } else if (what > 0) {
        state.template add_codes<SOFTCAP, R>(ring + from * S::kStageBytes, cap);
      }
      flight >>= 8;
      from = from + 1 == kStages ? 0 : from + 1;
      __syncwarp();  // every lane has read the stage that the next copies overwrite
    }
    ptx::wait_copies<0>();
    state.end();
    __syncwarp();
  }
};

}  // namespace attend

// Parameters as page_attend's; T is a KiviRow.
template <int HEAD_DIM, int PAGE, int HEADS, int LISTS_PER_KV_HEAD, typename T, bool SOFTCAP, int kWarps, int kStages, int kColumns,
          bool kDependent>
__device__ __forceinline__ void page_attend_kivi(const PageAttendArgs& args) {
  page_attend_by<attend::KiviCopies, HEAD_DIM, PAGE, HEADS, LISTS_PER_KV_HEAD, T, SOFTCAP, kWarps, kStages, kColumns, kDependent>(args);
}

}  // namespace kvloom
