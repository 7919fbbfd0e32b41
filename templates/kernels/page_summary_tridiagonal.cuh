// page_summary for pages of 16 tokens and ranks up to 8: a warp builds four pages at a time, with the eigenproblem by a direct method
// in registers (linalg/leading16.cuh) and both passes over the keys on tensor cores.
//
// Keys stay in shared memory from the Gram matrix to V, and a page's place is refilled as soon as its V is in registers. The Gram
// matrix is that of the keys themselves: products are exact and the centroid is projected out of the matrix, which costs
// digits where the centroid is long beside the keys' spread, so such pages take page_summary_exact.cuh's way (kSpread). V and the centroid
// come out of one mma: rows 0-7 of A are u, rows 8-15 all 1/16; for ranks up to 4 two pages share a tile. u enters as hi + lo.
// C = sigma u goes straight to the record; V and the centroid lie in shared memory as the record has them, and are copied in 16 bytes.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_exact.cuh"
#include "kernels/page_summary_few.cuh"
#include "kernels/page_summary_quick.cuh"
#include "kernels/page_summary_weights.cuh"
#include "kvloom/linalg/leading16.cuh"
#include "kvloom/mma/m16n8k8.cuh"
#include "kvloom/ptx/async_copy16.cuh"

namespace kvloom {

// kWeighted: page_summary_weights.cuh; a warp's pages then are of one KV head, and sigma is a direction's length, not its singular value.
// kResidual: u enters V's mma as hi + lo, else as hi alone, with the centroid's share taken out of V again.
// T: the cache's elements; Key: as shared memory holds them.
template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, bool kWeighted = false, class FORM = PlainForm>
struct TridiagonalBuild {
  using Key = typename Compute<T>::type;
  static_assert(RANK >= 1 && RANK <= 8, "eight lanes a page find a vector each");
  static_assert(HEAD_DIM % 16 == 0, "a row is whole mma steps");
  static_assert(kResidual || BITS <= 4, "finer codes show what rounding does to u");

  using Layout = Record<HEAD_DIM, 16, RANK, BITS, FORM>;
  using Rows = PageRows<HEAD_DIM>;
  using Eigen = Leading16<RANK, (BITS >= 8)>;
  using Exact = ExactPage<HEAD_DIM, RANK, BITS, T, FORM>;
  static constexpr int kTiles = HEAD_DIM / 8;               // of 8 dims
  static constexpr int kStepPages = RANK <= 4 && HEAD_DIM <= 128 ? 2 : 1;  // pages that share a tile, registers permitting
  static constexpr int kSteps = 4 / kStepPages;
  static constexpr int kRows = 8 / kStepPages;              // rows of u a page, those past RANK zero
  static constexpr bool kTwice = kResidual;
  static constexpr int kGramStride = 20;
  static constexpr int kImage = Layout::kC;                 // V and mu as the record has them

  // A page goes the exact way when its keys' spread holds less than this share of their energy, or its centroid less than kCentroid:
  // truncation inside the mma leaves a Gram matrix about 2^-22 exact, and kRankTolerance has to stay above what that leaves.
  static constexpr float kSpread = 1.f / 64, kCentroid = 1e-5f;
  static constexpr float kWeightedSpread = 1e-6f;  // keys that are centred first lose to the centroid's own rounding alone
  // The energies that need no scaling: Householder's sums of squares of the matrix's elements stay far inside f32.
  static constexpr float kSmallest = 1e-6f, kLargest = 1e12f;

  // Sections of one warp's shared memory, bytes. The images of a step lie over the vectors of that step and the space before them.
  static constexpr int kScratch = 4 * Rows::kBytes;
  static constexpr int kStepVectors = kStepPages * kRows * 64;
  static constexpr int kLead = kStepPages * kImage > kStepVectors ? kStepPages * kImage - kStepVectors : 0;
  static constexpr int kVectors = kScratch + kLead;                   // f32 [4][kRows][16]
  static constexpr int kSigma = kVectors + kSteps * kStepVectors;     // f32 [4][kRows]
  static constexpr int kGrams = kScratch;                             // f32 [2][16][kGramStride]
  static constexpr int kGramsEnd = kGrams + 2 * 16 * kGramStride * 4, kSigmaEnd = kSigma + 4 * kRows * 4;
  static constexpr int kItems = kGramsEnd > kSigmaEnd ? kGramsEnd : kSigmaEnd;  // int64 [3][4]: records, the next batch's keys, its records
  static constexpr bool kCentred = FORM::kCentroidBits == 4;          // then also int32 [2][4]: heads, the next batch's
  static constexpr int kWarpBytes = (kItems + (kCentred ? 128 : 96) + 15) / 16 * 16;
  static constexpr int kStartBytes = Eigen::kStartFloats * 4;         // one for the block

  uint8_t* shared;
  const float* starts;
  int lane;
  const uint8_t* factor = nullptr;  // WeightFactor in shared memory
  int own_head = 0;                 // where weighted
  float key_scale = 1.f;            // of the cache

  __device__ __forceinline__ uint8_t* keys(int page) const { return shared + page * Rows::kBytes; }
  __device__ __forceinline__ float* vectors(int page) const { return reinterpret_cast<float*>(shared + kVectors) + page * kRows * 16; }
  __device__ __forceinline__ float* sigma(int page) const { return reinterpret_cast<float*>(shared + kSigma) + page * kRows; }
  __device__ __forceinline__ float* gram(int which) const { return reinterpret_cast<float*>(shared + kGrams) + which * 16 * kGramStride; }
  __device__ __forceinline__ int64_t* records() const { return reinterpret_cast<int64_t*>(shared + kItems); }  // -1: nothing to write
  __device__ __forceinline__ int64_t* next_keys() const { return records() + 4; }                                // -1: nothing to read
  __device__ __forceinline__ int64_t* next_records() const { return records() + 8; }

  __device__ __forceinline__ int32_t* heads() const { return reinterpret_cast<int32_t*>(records() + 12); }  // where kCentred

  // Offsets within a page are taken in 32 bits; longer strides are as rare as odd ones.
  static __device__ __forceinline__ bool aligned(const KvCache& cache) {
    return keys_aligned<T>(cache) && cache.k_token_stride >= 0 && cache.k_token_stride < 1 << 26;
  }

  // The block of the keys of the lane's page, by its place in the table. A KIVI cache has the record in another: how far away is noted.
  __device__ __forceinline__ int key_block(const PageSummaryArgs& args, int64_t at) const {
    const int block = args.cache.block_table[at];
    if (args.cache.row_table == nullptr) return block;
    const int rows = args.cache.row_table[at];
    next_records()[lane] += (block - rows) * args.summary_block_stride;
    return block < 0 ? -1 : rows;
  }

  // Looks up the four pages of a batch, one in each of lanes 0-3, and notes what its head adds to the offsets. Returns the block id,
  // which is not waited for before it is used; -1 where there is no page.
  __device__ __forceinline__ int look_up(const PageSummaryArgs& args, int request, BuildRange range, int batch) const {
    const int item = batch * 4 + lane;
    if (lane >= 4 || item >= range.items) return -1;
    const int page = kWeighted ? item : item / args.cache.kv_heads;
    const int head = kWeighted ? own_head : item - page * args.cache.kv_heads;
    if constexpr (kCentred) heads()[4 + lane] = head;
    next_keys()[lane] = head * args.cache.k_head_stride;
    next_records()[lane] = head * args.summary_head_stride;
    return key_block(args, request * args.cache.table_stride + range.first + page);
  }

  // Completes the offsets that the same lanes noted.
  __device__ __forceinline__ void note(const PageSummaryArgs& args, int block) const {
    if (lane < 4) {
      next_keys()[lane] = block < 0 ? -1 : next_keys()[lane] + block * args.cache.k_block_stride;
      next_records()[lane] = block < 0 ? -1 : next_records()[lane] + block * args.summary_block_stride;
    }
    __syncwarp();
  }

  // A page of e4m3, through registers: four loads a lane at a time.
  __device__ __forceinline__ void convert_keys(const KvCache& cache, int page, const fp8_e4m3* from) const {
    constexpr int kChunks = HEAD_DIM / 8, kTurns = kChunks / 2;
    static_assert(16 * kChunks == 32 * kTurns, "a lane a chunk in every turn");
#pragma unroll 1
    for (int turn = 0; turn < kTurns; turn += 4) {
      uint2 w[4];
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = (turn + i) * 32 + lane;
        if (turn + i < kTurns) w[i] = __ldg(reinterpret_cast<const uint2*>(from + at / kChunks * cache.k_token_stride + at % kChunks * 8));
      }
#pragma unroll
      for (int i = 0; i < 4; i++) {
        const int at = (turn + i) * 32 + lane;
        if (turn + i < kTurns)
          *reinterpret_cast<uint4*>(keys(page) + Rows::chunk(at / kChunks, at % kChunks)) =
              make_uint4(e4m3x2_to_bf16x2(w[i].x), e4m3x2_to_bf16x2(w[i].x >> 16), e4m3x2_to_bf16x2(w[i].y), e4m3x2_to_bf16x2(w[i].y >> 16));
      }
    }
  }

  // Starts loading a page of the next batch, zeros where there is none.
  __device__ __forceinline__ void fetch(const KvCache& cache, int page, bool aligned) const {
    constexpr int kChunks = HEAD_DIM / 8;
    const int64_t offset = next_keys()[page];
    const bool valid = offset >= 0;
    const auto from = static_cast<const typename KeyBits<T>::type*>(cache.k) + (valid ? offset : 0);
    if constexpr (sizeof(T) == 1) {
      if (aligned && valid) convert_keys(cache, page, from);
    }
    if (!aligned || !valid) {  // or a stride that is too long for 32 bits
#pragma unroll 1
      for (int i = opaque(lane); i < 16 * kChunks; i += 32) {
        const int row = i / kChunks, chunk = i % kChunks;
        copy_keys(keys(page) + Rows::chunk(row, chunk), valid ? from + row * cache.k_token_stride + chunk * 8 : nullptr, false);
      }
      return;
    }
    if (sizeof(T) == 1) return;
    const uint32_t to = static_cast<uint32_t>(__cvta_generic_to_shared(keys(page)));
    if constexpr (32 % kChunks == 0) {
      constexpr int kAtOnce = 32 / kChunks;
      const int row = lane / kChunks, chunk = lane % kChunks;
      const uint32_t stride = static_cast<uint32_t>(cache.k_token_stride) * 2;  // bytes
      const uint8_t* first = reinterpret_cast<const uint8_t*>(from) + row * stride + chunk * 16;
      const uint32_t place = to + row * Rows::kPitch;
#pragma unroll
      for (int i = 0; i < 16; i += kAtOnce) {  // row + i is row | i, so its chunk is exchanged by a constant more
        ptx::copy16(place + ((chunk ^ row ^ (i & 7)) << 4) + i * Rows::kPitch, first + static_cast<uint64_t>(stride) * i);
      }
    } else {  // two lanes a row, one address each
      const int row = lane / 2;
      const uint8_t* first = reinterpret_cast<const uint8_t*>(from) + row * (static_cast<uint32_t>(cache.k_token_stride) * 2);
#pragma unroll
      for (int chunk = lane % 2, i = 0; i < kChunks / 2; i++, chunk += 2) ptx::copy16(to + Rows::chunk(row, chunk), first + chunk * 16);
    }
  }

  // The Gram matrix of a page's keys. Returns the centroid's energy where weighted.
  __device__ __forceinline__ float form_gram(int page, float* out) const {
    const int g = lane / 4, p = lane % 4;
    float left[4] = {0.f, 0.f, 0.f, 0.f}, right[4] = {0.f, 0.f, 0.f, 0.f};  // columns 0-7 and 8-15
    float centroid = 0.f;
    if constexpr (kWeighted) {
      centroid = weighted_gram<HEAD_DIM, Key>(left, right, keys(page), factor, lane, sixteenths(Key{}));
    } else {
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        uint32_t r[4];
        load_tile(r, keys(page) + Rows::tile(lane, k));
#pragma unroll
        for (int h = 0; h < 4; h += 2) {
          mma_m16n8k8(left, r[h], r[h + 1], r[h], Key{});
          mma_m16n8k8(right, r[h], r[h + 1], r[h + 1], Key{});
        }
      }
    }
    out += g * kGramStride + 2 * p;
    *reinterpret_cast<float2*>(out) = make_float2(left[0], left[1]);
    *reinterpret_cast<float2*>(out + 8) = make_float2(right[0], right[1]);
    *reinterpret_cast<float2*>(out + 8 * kGramStride) = make_float2(left[2], left[3]);
    *reinterpret_cast<float2*>(out + 8 * kGramStride + 8) = make_float2(right[2], right[3]);
    return centroid;
  }

  // Columns l and l + 8 of a Gram matrix.
  static __device__ __forceinline__ void load_columns(Eigen& eigen, const float* g, int l, float scale) {
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(g + l * kGramStride + i), y = *reinterpret_cast<const float4*>(g + (l + 8) * kGramStride + i);
      eigen.a[i] = x.x * scale, eigen.a[i + 1] = x.y * scale, eigen.a[i + 2] = x.z * scale, eigen.a[i + 3] = x.w * scale;
      eigen.b[i] = y.x * scale, eigen.b[i + 1] = y.y * scale, eigen.b[i + 2] = y.z * scale, eigen.b[i + 3] = y.w * scale;
    }
  }

  static __device__ __forceinline__ bool plain(float energy, float centroid) {
    return energy > kSmallest && energy < kLargest && energy - centroid > kSpread * energy && centroid > kCentroid * energy;
  }

  // From keys to vectors and singular values in shared memory. Returns the pages that took the exact way, a bit each; up is what
  // brings this lane's page's singular values to its keys' unit.
  __device__ __forceinline__ uint32_t decompose(float& up) const {
    const int page = lane / 8, l = lane % 8;
    Eigen eigen;
    float energy = 0.f, centre = 0.f;
    constexpr int kAtOnce = kWeighted ? 1 : 2;  // weighted matrices take the registers of two
#pragma unroll
    for (int half = 0; half < 2; half++) {
      if (half == 1) {
        ptx::wait_copies<0>();
        __syncwarp();
      }
#pragma unroll kAtOnce
      for (int q = 0; q < 2; q++) {
        const float c = form_gram(2 * half + q, gram(q));
        if (kWeighted && page == 2 * half + q) centre = c;
      }
      __syncwarp();
      if (page / 2 == half) {
        const float* g = gram(page % 2);
        load_columns(eigen, g, l, 1.f);
        energy = g[l * (kGramStride + 1)] + g[(l + 8) * (kGramStride + 1)];
      }
      __syncwarp();
    }
    energy = group_sum(energy);
    float2 sums = eigen.sums();
    const float centroid = group_sum(sums.x + sums.y) * (1.f / 16);  // 16 times the squared length of the centroid
    const bool ready = kWeighted ? energy > kSmallest && energy < kLargest && energy > kWeightedSpread * centre : plain(energy, centroid);
    const bool wanted = records()[page] >= 0;
    // A bit a lane to a bit a page, at bits 0, 8, 16 and 24.
    const uint32_t careful = __ballot_sync(~0u, wanted && !ready) & 0x01010101u;
    float root = 1.f;
    up = key_scale;
    if (careful != 0) {
#pragma unroll 1
      for (int p = 0; p < 4; p++) {
        if ((careful >> 8 * p & 1) == 0) continue;
        const Exact exact{keys(p), opaque(lane), key_scale};
        const PageScale power = exact.power();
        const float r = kWeighted ? weighted_gram_exact<HEAD_DIM, Key>(gram(0), keys(p), factor, power, opaque(lane)) : exact.gram(gram(0), power);
        __syncwarp();
        if (page == p) {
          const float inverse = 1.f / r;  // a power of two
          load_columns(eigen, gram(0), l, inverse * inverse);
          sums = eigen.sums();
          root = r;
          up = power.up;
        }
        __syncwarp();
      }
    }
    const float value = eigen.run(l, sums, starts);
    const float first = of_group(value, 0);
    const bool kept = l < RANK && value > kRankTolerance * first && value > 1e-30f;
    if (l < kRows) {
      float* u = vectors(page);
#pragma unroll
      for (int i = 0; i < 16; i += 4) {
        const float4 x = make_float4(eigen.x[i], eigen.x[i + 1], eigen.x[i + 2], eigen.x[i + 3]);
        *reinterpret_cast<float4*>(u + vector_place(l, i)) = kept ? x : make_float4(0.f, 0.f, 0.f, 0.f);
      }
      sigma(page)[l] = kept ? value * rsqrt_approx(value) * root : 0.f;
    }
    __syncwarp();
    return careful;
  }

  // C = sigma u of pages begin to end - 1, two tokens a lane, with its scales.
  __device__ __forceinline__ void coefficients(uint8_t* summaries, float up, int begin, int end) const {
    constexpr int kPad = Layout::kRankPad;
    const int page = lane / 8, l = lane % 8;
    if (page < begin || page >= end) return;
    const float* u = vectors(page);
    float c[2][kPad], top[2] = {0.f, 0.f};
#pragma unroll
    for (int j = 0; j < kPad; j++) {
      c[0][j] = c[1][j] = 0.f;
      if (j >= RANK) continue;
      const float2 x = *reinterpret_cast<const float2*>(u + vector_place(j, 2 * l));
      const float s = sigma(page)[j];
      c[0][j] = x.x * s, c[1][j] = x.y * s;
      top[0] = fmaxf(top[0], fabsf(c[0][j])), top[1] = fmaxf(top[1], fabsf(c[1][j]));
    }
    constexpr bool kNibbles = FORM::kCoefficientBits == 4;
    const KeyScale first_key = quick_key_scale<T, FORM::kCoefficientBits, true>(top[0], up);
    const KeyScale second_key = quick_key_scale<T, FORM::kCoefficientBits, true>(top[1], up);
    const Scale first = first_key.scale, second = second_key.scale;
    uint32_t code[2 * kPad];
#pragma unroll
    for (int j = 0; j < kPad; j++) {
      code[j] = round_bits(c[0][j], first.inverse, kNibbles ? 8 : 0);
      code[kPad + j] = round_bits(c[1][j], second.inverse, kNibbles ? 8 : 0);
      if (kNibbles && j >= RANK) code[j] = code[kPad + j] = 0;  // padding
    }
    const int64_t record = records()[page];
    if (record < 0) return;
    uint8_t* out = summaries + record;
    if constexpr (kNibbles) {
      uint32_t byte[kPad];
#pragma unroll
      for (int i = 0; i < kPad; i++) byte[i] = code[2 * i] & 15u | (code[2 * i + 1] & 15u) << 4;
      if constexpr (kPad == 1) out[Layout::kC + l] = static_cast<uint8_t>(byte[0]);
      else store_bytes<kPad>(out + Layout::kC + l * kPad, byte);
    } else {
      store_bytes<2 * kPad>(out + Layout::kC + l * 2 * kPad, code);
    }
    const float low = first.value > 0.f ? first_key.stored : 0.f, high = second.value > 0.f ? second_key.stored : 0.f;
    reinterpret_cast<uint32_t*>(out + Layout::kTokenScales)[l] = pack_pair(low, high, bf16{});
  }

  // The low bytes of COUNT words to consecutive addresses: 2, 4, 8 or 16, and aligned as the record's sections are.
  template <int COUNT>
  static __device__ __forceinline__ void store_bytes(uint8_t* to, const uint32_t (&x)[COUNT]) {
    if constexpr (COUNT == 2) {
      *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(x[0], x[1], 0x0040));
    } else {
      uint32_t w[COUNT / 4];
#pragma unroll
      for (int i = 0; i < COUNT / 4; i++) w[i] = __byte_perm(__byte_perm(x[4 * i], x[4 * i + 1], 0x0040), __byte_perm(x[4 * i + 2], x[4 * i + 3], 0x0040), 0x5410);
      if constexpr (COUNT == 16) *reinterpret_cast<uint4*>(to) = make_uint4(w[0], w[1], w[2], w[3]);  // kC is a multiple of 16
      else if constexpr (COUNT == 8) *reinterpret_cast<uint2*>(to) = make_uint2(w[0], w[1]);
      else *reinterpret_cast<uint32_t*>(to) = w[0];
    }
  }

  // Images are rows of 16-byte units, exchanged by row where rows would otherwise meet in the same banks.
  static constexpr int kUnits = Layout::kRowBytes / 16;
  static constexpr int kPadBytes = Layout::kQuarterBytes - Layout::kQuarterDims * BITS / 8;  // behind each quarter of a row
  static constexpr int kExchange = kPadBytes > 0 ? 0 : kUnits % 8 == 0 ? 7 : kUnits % 4 == 0 ? 3 : 0;
  static __device__ __forceinline__ int unit_exchange(int row) { return (kExchange == 7 ? row : row / 2) & kExchange; }

  // Byte of a dim in a row of V.
  static __host__ __device__ constexpr int place(int dim) { return dim * BITS / 8 + dim / Layout::kQuarterDims * kPadBytes; }

  // V, the centroid and their scales of one step's pages; refills the pages' places once they are in registers.
  __device__ __forceinline__ void basis(const PageSummaryArgs& args, int step, bool more, bool aligned, uint32_t careful, float up) const {
    const int g = lane / 4, p = lane % 4;
    const int part = kStepPages == 1 ? 0 : lane / 16;  // which page of the step this lane's row belongs to
    const int page = step * kStepPages + part, j = g % kRows;
    const float2 u0 = *reinterpret_cast<const float2*>(vectors(page) + vector_place(j, 2 * p));
    const float2 u1 = *reinterpret_cast<const float2*>(vectors(page) + vector_place(j, 2 * p + 8));
    float s = sigma(page)[j];
    const uint32_t hi0 = pack_pair(u0.x, u0.y, Key{}), hi1 = pack_pair(u1.x, u1.y, Key{});
    const float2 r0 = unpack(hi0, Key{}), r1 = unpack(hi1, Key{});
    uint32_t lo0 = 0, lo1 = 0;
    float uneven = 0.f;  // how much of the centroid u takes in, rounded
    if constexpr (kResidual) {
      lo0 = pack_pair(u0.x - r0.x, u0.y - r0.y, Key{}), lo1 = pack_pair(u1.x - r1.x, u1.y - r1.y, Key{});
    } else {
      uneven = r0.x + r0.y + (r1.x + r1.y);
      uneven += __shfl_xor_sync(~0u, uneven, 1);
      uneven += __shfl_xor_sync(~0u, uneven, 2);
    }

    float acc[kTiles][4];  // elements 0, 1: V of row j times sigma; 2, 3: the page's centroid, in each row of the page
#pragma unroll
    for (int q = 0; q < kStepPages; q++) {
      const bool on = q == part;
      const uint32_t h0 = on ? hi0 : 0u, h1 = on ? hi1 : 0u, l0 = on ? lo0 : 0u, l1 = on ? lo1 : 0u, ones = on ? sixteenths(Key{}) : 0u;
#pragma unroll
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        uint32_t r[4];
        load_tile_transposed(r, keys(step * kStepPages + q) + Rows::tile(lane, k));
        if (q == 0) {
          mma_m16n8k16_from_zero(acc[2 * k], h0, ones, h1, ones, r[0], r[1], Key{});
          mma_m16n8k16_from_zero(acc[2 * k + 1], h0, ones, h1, ones, r[2], r[3], Key{});
        } else {
          mma_m16n8k16(acc[2 * k], h0, ones, h1, ones, r[0], r[1], Key{});
          mma_m16n8k16(acc[2 * k + 1], h0, ones, h1, ones, r[2], r[3], Key{});
        }
        if constexpr (kResidual) {
          mma_m16n8k16(acc[2 * k], l0, 0u, l1, 0u, r[0], r[1], Key{});
          mma_m16n8k16(acc[2 * k + 1], l0, 0u, l1, 0u, r[2], r[3], Key{});
        }
      }
    }
    __syncwarp();  // vectors and keys of this step are read
    if (more) {
#pragma unroll
      for (int q = 0; q < kStepPages; q++) fetch(args.cache, step * kStepPages + q, aligned);
    }
    ptx::commit_copies();

    // The centroid's tiles are dealt to the page's rows: row j has tiles j, j + kRows, ...
    constexpr int kOwn = (kTiles + kRows - 1) / kRows;
    float2 mu[kOwn];
    float top_mu = 0.f;
#pragma unroll
    for (int m = 0; m < kOwn; m++) {
      mu[m] = own_tile<kRows>(acc, m * kRows, j);
      top_mu = fmaxf(top_mu, fmaxf(fabsf(mu[m].x), fabsf(mu[m].y)));
    }
    float top = 0.f;
#pragma unroll
    for (int n = 0; n < kTiles; n++) top = fmaxf(top, fmaxf(fabsf(acc[n][0]), fabsf(acc[n][1])));
#pragma unroll
    for (int mask = 1; mask < 4; mask *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
#pragma unroll
    for (int mask = 1; mask < 4 * kRows; mask *= 2) top_mu = fmaxf(top_mu, __shfl_xor_sync(~0u, top_mu, mask));
    if constexpr (!kResidual) {
      if (__any_sync(~0u, fabsf(uneven) * top_mu > 0.002f * top)) {
        top = 0.f;
#pragma unroll
        for (int n = 0; n < kTiles; n++) {
          acc[n][0] = fmaf(-uneven, acc[n][2], acc[n][0]), acc[n][1] = fmaf(-uneven, acc[n][3], acc[n][1]);
          top = fmaxf(top, fmaxf(fabsf(acc[n][0]), fabsf(acc[n][1])));
        }
#pragma unroll
        for (int mask = 1; mask < 4; mask *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
      }
    }

    if constexpr (kWeighted) {  // lengths, and with them C, before images lie over u
      float length = 0.f, odd = 0.f;
#pragma unroll
      for (int n = 0; n < kTiles; n++) length = fmaf(acc[n][0], acc[n][0], length), odd = fmaf(acc[n][1], acc[n][1], odd);
      length += odd;
      length += __shfl_xor_sync(~0u, length, 1);
      length += __shfl_xor_sync(~0u, length, 2);
      if (s > 0.f && (careful >> 8 * page & 1) == 0) {
        s = length * rsqrt_approx(length + 1e-36f);
        if (p == 0) sigma(page)[j] = s;
      }
      __syncwarp();
      coefficients(args.summaries, up, step * kStepPages, (step + 1) * kStepPages);
      __syncwarp();
    }
    uint8_t* image = shared + kScratch + step * kStepVectors + part * kImage;
    if constexpr (!FORM::kPlain) {
      write_forms(args, image, page, acc, mu, s, top, top_mu, careful);
      __syncwarp();  // the images are whole
      copy_images(args.summaries, step, careful);
      return;
    }
    const float over = s > 0.f ? rcp_approx(s) : 0.f;
    const Scale scale = quick_scale(top * over, 1.f / largest_code<BITS == 16 ? 8 : BITS>());
    write_row(image + j * Layout::kRowBytes, j, acc, BITS == 16 ? over : over * scale.inverse);
    const KeyScale mu_key = quick_key_scale<T>(top_mu, key_scale);
    const Scale mu_scale = mu_key.scale;
#pragma unroll
    for (int m = 0; m < kOwn; m++) {
      const int n = m * kRows + j;
      const uint32_t x = round_bits(mu[m].x, mu_scale.inverse, 0), y = round_bits(mu[m].y, mu_scale.inverse, 0);
      if (kTiles % kRows == 0 || n < kTiles) *reinterpret_cast<uint16_t*>(image + Layout::kMu + 8 * n + 2 * p) = static_cast<uint16_t>(__byte_perm(x, y, 0x0040));
    }
    write_padding(image);

    // The scales at the record's end: lane i of the page's writes the i-th of their 16-bit words, zeros between and behind.
    constexpr int kFirst = Layout::kColumnScales, kWords = (Layout::kBytes - kFirst) / 2, kMuWord = (Layout::kMuScale - kFirst) / 2;
    static_assert(!FORM::kPlain || kWords <= 4 * kRows, "a lane a word");
    const int word = lane % (4 * kRows);
    float value = __shfl_sync(~0u, scale.value, part * 16 + word % kRows * 4);
    if (word >= RANK || !Layout::kHasColumnScales) value = 0.f;
    if (word == kMuWord) value = mu_key.stored;
    const int64_t record = records()[page];
    const bool write = record >= 0 && (careful >> 8 * page & 1) == 0;
    if (write && word < kWords) reinterpret_cast<uint16_t*>(args.summaries + record + kFirst)[word] = bf16_bits(value);
    __syncwarp();  // the images are whole
    copy_images(args.summaries, step, careful);
  }

  // What basis() does with V and the centroid of a row of lanes, for other forms than the plain one: codes to the image, scales to the
  // record. mu are the row's tiles j, j + kRows, ... of the centroid; s, top and top_mu are basis()'s.
  template <int kOwn>
  __device__ __forceinline__ void write_forms(const PageSummaryArgs& args, uint8_t* image, int page, float (&acc)[kTiles][4], float2 (&mu)[kOwn],
                                              float s, float top, float top_mu, uint32_t careful) const {
    const int lane = opaque(this->lane), p = lane % 4, j = lane / 4 % kRows;
    const int64_t record = records()[page];
    const bool write = record >= 0 && (careful >> 8 * page & 1) == 0;
    uint8_t* const out = args.summaries + record;
    uint16_t* const columns = reinterpret_cast<uint16_t*>(out + Layout::kColumnScales);
    uint16_t* const centroids = reinterpret_cast<uint16_t*>(out + Layout::kMuScale);
    const float over = s > 0.f ? rcp_approx(s) : 0.f;
    constexpr float kOverLargest = 1.f / largest_code<BITS == 16 ? 8 : BITS>();
    if constexpr (FORM::kGrouped) {
#pragma unroll
      for (int m = 0; m < kTiles; m += 2) {
        float most = fmaxf(fmaxf(fabsf(acc[m][0]), fabsf(acc[m][1])), fmaxf(fabsf(acc[m + 1][0]), fabsf(acc[m + 1][1])));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 1));
        most = fmaxf(most, __shfl_xor_sync(~0u, most, 2));
        const Scale scale = quick_scale(most * over, kOverLargest);
        const float by = over * scale.inverse;
        acc[m][0] *= by, acc[m][1] *= by, acc[m + 1][0] *= by, acc[m + 1][1] *= by;
        if (write && p == 0 && j < RANK) columns[j * Layout::kScaleGroups + m / 2] = bf16_bits(scale.value);
      }
      write_row(image + j * Layout::kRowBytes, j, acc, 1.f);
    } else {
      const Scale scale = quick_scale(top * over, kOverLargest);
      write_row(image + j * Layout::kRowBytes, j, acc, BITS == 16 ? over : over * scale.inverse);
      if (Layout::kHasColumnScales && write && p == 0 && j < RANK) columns[j] = bf16_bits(scale.value);
    }
    if constexpr (kCentred) {
      const float* const centre = args.centre == nullptr || record < 0 ? nullptr  // a place without a page has no head
                                     : args.centre + static_cast<int64_t>(heads()[page]) * HEAD_DIM + 2 * p;
#pragma unroll
      for (int m = 0; m < kOwn; m++) {
        const int n = min(m * kRows + j, kTiles - 1);
        if (centre != nullptr) mu[m].x -= centre[8 * n], mu[m].y -= centre[8 * n + 1];
        float most = fmaxf(fabsf(mu[m].x), fabsf(mu[m].y));
#pragma unroll
        for (int mask = 1; mask < 8; mask *= 2) most = fmaxf(most, __shfl_xor_sync(~0u, most, mask));  // of 16 dims: a tile is a row of lanes
        const Scale scale = quick_scale(most, 1.f / largest_code<4>());
        const uint32_t code = round_bits(mu[m].x, scale.inverse, 8) + (round_bits(mu[m].y, scale.inverse, 8) << 4);
        // A quarter can end in the middle of a tile, and its padding begins there.
        const int dim = 8 * n + 2 * p, quarter = dim / Layout::kQuarterDims;
        if (kTiles % kRows == 0 || m * kRows + j < kTiles) {
          image[Layout::kMu + quarter * Layout::kMuQuarterBytes + (dim - quarter * Layout::kQuarterDims) / 2] = static_cast<uint8_t>(code);
          if (write && p == 0 && j % 2 == 0) centroids[n / 2] = bf16_bits(scale.value);
        }
      }
      constexpr int kPad = Layout::kMuQuarterBytes - Layout::kQuarterDims / 2;
      for (int i = lane % (4 * kRows); i < 4 * kPad; i += 4 * kRows)
        image[Layout::kMu + (i / (kPad > 0 ? kPad : 1) + 1) * Layout::kMuQuarterBytes - kPad + i % (kPad > 0 ? kPad : 1)] = 0;
    } else {
      const Scale scale = quick_scale(top_mu, 1.f / largest_code<8>());
#pragma unroll
      for (int m = 0; m < kOwn; m++) {
        const int n = m * kRows + j;
        const uint32_t x = round_bits(mu[m].x, scale.inverse, 0), y = round_bits(mu[m].y, scale.inverse, 0);
        if (kTiles % kRows == 0 || n < kTiles) *reinterpret_cast<uint16_t*>(image + Layout::kMu + 8 * n + 2 * p) = static_cast<uint16_t>(__byte_perm(x, y, 0x0040));
      }
      if (write && p == 0 && j == 0) centroids[0] = bf16_bits(scale.value);
    }
    write_padding(image);
    if (write) pad_scales<Layout>(out, lane % (4 * kRows), 4 * kRows);
  }

  // The centroid's elements of tile `first` + j: a choice among registers, for arrays have no index known only now.
  template <int kChoices>
  static __device__ __forceinline__ float2 own_tile(const float (&acc)[kTiles][4], int first, int j) {
    float2 x[kChoices];
#pragma unroll
    for (int i = 0; i < kChoices; i++) x[i] = first + i < kTiles ? make_float2(acc[first + i][2], acc[first + i][3]) : make_float2(0.f, 0.f);
#pragma unroll
    for (int bit = 1; bit < kChoices; bit *= 2) {
      const bool set = j & bit;
#pragma unroll
      for (int i = 0; i < kChoices; i += 2 * bit) x[i] = make_float2(set ? x[i + bit].x : x[i].x, set ? x[i + bit].y : x[i].y);
    }
    return x[0];
  }

  // V and the centroid of pages that take the careful way, a bit each.
  __device__ __forceinline__ void careful_bases(uint8_t* summaries, uint32_t careful, const float* centre = nullptr) const {
#pragma unroll 1
    for (int page = 0; page < 4; page++) {
      if ((careful >> 8 * page & 1) == 0) continue;
      const float* own = nullptr;
      if constexpr (kCentred) own = centre == nullptr ? nullptr : centre + static_cast<int64_t>(heads()[page]) * HEAD_DIM;
      Exact{keys(page), opaque(lane), key_scale}.template basis<kWeighted>(summaries + records()[page], vectors(page), sigma(page), own);
      __syncwarp();
      // Its keys would reach the page that shares its tile: 0 times what is not finite is not 0.
      for (int i = opaque(lane); i < Rows::kBytes / 16; i += 32) reinterpret_cast<uint4*>(keys(page))[i] = make_uint4(0, 0, 0, 0);
    }
    __syncwarp();
  }

  // One row of V into its image, this lane's dims 8 n + 2 p and the next of each tile n.
  __device__ __forceinline__ void write_row(uint8_t* row, int j, const float (&acc)[kTiles][4], float inverse) const {
    const int p = lane % 4, exchange = unit_exchange(j);
    const bool inside = RANK == kRows || j < RANK;
#pragma unroll
    for (int n = 0; n < kTiles; n++) {
      // A quarter of a row can end in the middle of a tile, and its padding begins there.
      constexpr bool kWhole = Layout::kQuarterDims % 8 == 0;
      int at = kWhole || p < 2 ? place(8 * n) : place(8 * n + 4) - BITS / 2;
      if (kExchange > 0) at = ((at / 16 ^ exchange) << 4) + at % 16;
      uint8_t* to = row + at + p * BITS / 4;
      put_pair(to, acc[n][0], acc[n][1], inverse, inside);
    }
  }

  // The codes of two neighbouring dims of a row of V, of lanes whose row is inside; two lanes share a byte of 2-bit codes.
  static __device__ __forceinline__ void put_pair(uint8_t* to, float x, float y, float inverse, bool inside) {
    if constexpr (BITS == 2) {
      const uint32_t code = __float_as_uint(fmaf(x, inverse, 1.5f) + 12582912.f) & 3u | (__float_as_uint(fmaf(y, inverse, 1.5f) + 12582912.f) & 3u) << 2;
      const uint32_t other = __shfl_xor_sync(~0u, code, 1);
      if (inside && threadIdx.x % 2 == 0) *to = static_cast<uint8_t>(code | other << 4);
    } else if constexpr (BITS == 4) {
      if (inside) *to = static_cast<uint8_t>(round_bits(x, inverse, 8) + (round_bits(y, inverse, 8) << 4));
    } else if constexpr (BITS == 8) {
      if (inside) *reinterpret_cast<uint16_t*>(to) = static_cast<uint16_t>(__byte_perm(round_bits(x, inverse, 0), round_bits(y, inverse, 0), 0x0040));
    } else {
      if (inside) *reinterpret_cast<uint32_t*>(to) = pack_pair(x * inverse, y * inverse, bf16{});
    }
  }

  // Zeros behind the quarters that are no whole number of words.
  __device__ __forceinline__ void write_padding(uint8_t* image) const {
    if constexpr (kPadBytes > 0) {
      for (int i = lane % (4 * kRows); i < RANK * 4 * kPadBytes; i += 4 * kRows) {
        image[(i / kPadBytes + 1) * Layout::kQuarterBytes - kPadBytes + i % kPadBytes] = 0;
      }
    }
  }

  __device__ __forceinline__ void copy_images(uint8_t* summaries, int step, uint32_t careful) const {
#pragma unroll
    for (int q = 0; q < kStepPages; q++) {
      const int page = step * kStepPages + q;
      const int64_t record = records()[page];
      if (record < 0 || (careful >> 8 * page & 1) != 0) continue;
      const uint4* from = reinterpret_cast<const uint4*>(shared + kScratch + step * kStepVectors + q * kImage);
      uint4* to = reinterpret_cast<uint4*>(summaries + record);
#pragma unroll
      for (int i = 0; i < (kImage / 16 + 31) / 32; i++) {
        const int unit = lane + 32 * i;
        if (unit < kImage / 16) to[unit] = from[unit < RANK * kUnits ? unit ^ unit_exchange(unit / kUnits) : unit];
      }
    }
  }

  static __device__ __forceinline__ int batches(BuildRange range) { return (range.items + 3) / 4; }

  // Starts loading the first batch of this warp's share of one request.
  __device__ __forceinline__ void start(const PageSummaryArgs& args, int request, BuildRange range, int first, bool aligned) const {
    if (first >= batches(range)) return;
    note(args, look_up(args, request, range, first));
#pragma unroll 1
    for (int s = 0; s < kSteps; s++) {
      for (int q = 0; q < kStepPages; q++) fetch(args.cache, s * kStepPages + q, aligned);
      ptx::commit_copies();
    }
  }

  // Builds this warp's share: batches first, first + step, ... of 4 items.
  __device__ __forceinline__ void run(const PageSummaryArgs& args, int request, BuildRange range, int first, int step, bool aligned) const {
    if (first >= batches(range)) return;
    for (int batch = first; batch < batches(range); batch += step) {
      const bool more = batch + step < batches(range);
      if (lane < 4) records()[lane] = next_records()[lane];
      if constexpr (kCentred) {
        if (lane < 4) heads()[lane] = heads()[4 + lane];
      }
      __syncwarp();
      const int next = look_up(args, request, range, batch + step);
      ptx::wait_copies<kSteps / 2>();  // pages 0 and 1 are there
      __syncwarp();
      float up;
      const uint32_t careful = decompose(up);
      note(args, next);
      if constexpr (!kWeighted) coefficients(args.summaries, up, 0, 4);
      if (careful != 0) careful_bases(args.summaries, careful, args.centre);
      // Addresses are worked out once a batch, and not before the loop, where they would hold registers beside the eigenproblem.
      TridiagonalBuild fresh = *this;
      fresh.lane = opaque(lane);
#pragma unroll 1
      for (int s = 0; s < kSteps; s++) fresh.basis(args, s, more, aligned, careful, up);
      __syncwarp();
    }
    ptx::wait_copies<0>();
  }
};

// Grid: x shares the pages of one request, y the requests. Any grid is right. An SM's blocks after the first begin kStagger ns later
// each, of the first request, which are those that begin together: those before them then have their keys while others' are on their way.
template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, int kStagger, int kNumWarps, int kNumBlocks, int kSharedBytes,
          class FORM = PlainForm>
__device__ __forceinline__ void page_summary_tridiagonal(const PageSummaryArgs& args) {
  using Build = TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, false, FORM>;
  static_assert(kNumWarps * Build::kWarpBytes + Build::kStartBytes == kSharedBytes, "the launch geometry gives each warp exactly what it lays out");
  extern __shared__ __align__(128) uint8_t shared[];
  // A grid of blocks along z: one that the host sized for a page a request, in a decode step.
  if constexpr (FORM::kPlain) {
    using Few = FewPages<Build, HEAD_DIM, RANK, BITS, T, kNumWarps>;
    if (Few::kFits && gridDim.z > 1) return Few::run(args, shared);
  }
  if (blockIdx.z > 0) return;
  const int warp = threadIdx.x / 32;
  float* starts = reinterpret_cast<float*>(shared + kNumWarps * Build::kWarpBytes);
  const bool aligned = Build::aligned(args.cache);
  Build build{shared + warp * Build::kWarpBytes, starts, static_cast<int>(threadIdx.x % 32)};
  build.key_scale = cache_scale<T>(args.cache.k_scale);
  // A request has fewer than 2^29 batches, so blocks past 2^29 have none and need no own place.
  constexpr unsigned kMost = (1u << 29) / kNumWarps;
  const int own = static_cast<int>(min(blockIdx.x, kMost)) * kNumWarps + warp, step = static_cast<int>(min(gridDim.x, kMost)) * kNumWarps;
  // Where each block has one request, its only read of built_lens is soon behind it: who moves built_lens is settled while keys are
  // on their way, and not after the last store.
  const bool early = gridDim.y >= args.cache.batch;
#pragma unroll 1
  for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
    const BuildRange range = build_range<16>(args, request);
    if constexpr (kStagger > 0) {
      if (request == 0 && own + step < Build::batches(range)) __nanosleep(blockIdx.x * kNumBlocks / gridDim.x * kStagger);
    }
    build.start(args, request, range, own, aligned);
    if (request == blockIdx.y) {
      Build::Eigen::make_starts(starts, threadIdx.x, kNumWarps * 32);
      if (early) finish_build<16>(args);
      else __syncthreads();
    }
    build.run(args, request, range, own, step, aligned);
  }
  if (!early || blockIdx.y >= args.cache.batch) finish_build<16>(args);  // every block is counted once
}

}  // namespace kvloom
