// What page_summary_tridiagonal.cuh's warps do with four pages: keys on their way in, the Gram matrix and its eigenproblem, and the order of
// it all. The codes are page_summary_tridiagonal_codes.cuh's.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_exact.cuh"
#include "kernels/page_summary_image.cuh"
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
  using Image = BasisImage<HEAD_DIM, RANK, BITS, FORM>;
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
  __device__ __forceinline__ void coefficients(uint8_t* summaries, float up, int begin, int end) const;


  // V, the centroid and their scales of one step's pages; refills the pages' places once they are in registers.
  __device__ __forceinline__ void basis(const PageSummaryArgs& args, int step, bool more, bool aligned, uint32_t careful, float up) const;

  // What basis() does with V and the centroid of a row of lanes, for other forms than the plain one: codes to the image, scales to the
  // record. mu are the row's tiles j, j + kRows, ... of the centroid; s, top and top_mu are basis()'s.
  template <int kOwn>
  __device__ __forceinline__ void write_forms(const PageSummaryArgs& args, uint8_t* image, int page, float (&acc)[kTiles][4], float2 (&mu)[kOwn],
                                              float s, float top, float top_mu, uint32_t careful) const;

  // V and the centroid of pages that take the careful way, a bit each.
  __device__ __forceinline__ void careful_bases(uint8_t* summaries, uint32_t careful, const float* centre = nullptr) const;

  __device__ __forceinline__ void copy_images(uint8_t* summaries, int step, uint32_t careful) const;

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

}  // namespace kvloom
