// page_summary for pages of 32, 64 and 128 tokens, or of groups of pages with so many: a block builds one page, or group, of one head at a
// time.
//
// The page's keys and its Gram matrix lie in shared memory; the matrix is reduced to tridiagonal form and its leading eigenvectors
// found by the whole block (linalg/tridiagonal.cuh). The matrix's place then holds V in f32 and the record being made.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kernels/page_summary_weights.cuh"
#include "kvloom/linalg/powers.cuh"
#include "kvloom/linalg/tridiagonal.cuh"

namespace kvloom {

// T: the cache's elements; Key: as shared memory holds them. WEIGHTED: page_summary_weights.cuh; rows of keys times the head's factor lie
// beside the keys.
template <int HEAD_DIM, int PAGE, int RANK, int BITS, class T, int kNumWarps, class FORM = PlainForm, bool WEIGHTED = false>
struct BlockBuild {
  using Key = typename Compute<T>::type;
  using Group = Groups<FORM::kPages>;
  static_assert(FORM::kPlain, "the direct form alone makes smaller records");
  static_assert(PAGE == 32 || PAGE == 64 || PAGE == 128, "smaller pages share a warp: page_summary_warp.cuh");
  static_assert(HEAD_DIM % 16 == 0, "a row is whole mma steps");
  static_assert(RANK < PAGE && RANK < HEAD_DIM, "a page of n tokens has n - 1 directions around its centroid");

  using Layout = Record<HEAD_DIM, PAGE, RANK, BITS>;
  // Weighted coefficients are lengths times orthonormal vectors, whichever those are, so few of them need no direct method.
  static constexpr bool kPowers = WEIGHTED && RANK <= 2 && PAGE <= 64;
  template <bool POWERS, class = void>
  struct Solver {
    using type = Tridiagonal<PAGE, RANK, kNumWarps * 32>;
  };
  template <class V>
  struct Solver<true, V> {
    using type = Powers<PAGE, RANK, kNumWarps * 32>;
  };
  using Eigen = typename Solver<kPowers>::type;
  static constexpr int kThreads = kNumWarps * 32;
  static constexpr int kRankPad = Layout::kRankPad;
  static constexpr int kRowBytes = 2 * HEAD_DIM + 16;  // an odd number of 16-byte units: ldmatrix meets every bank once
  static constexpr int kGramStride = Eigen::kStride;

  // Sections of shared memory, bytes.
  static constexpr int kGram = PAGE * kRowBytes;                                   // f32 [PAGE][kGramStride]
  static constexpr int kBasis = kGram;                                             // f32 [RANK][HEAD_DIM], when the matrix is done with
  static constexpr int kRecord = kBasis + RANK * HEAD_DIM * 4;                     // the record being made, likewise
  static constexpr int kGramBytes = PAGE * kGramStride * 4;
  static constexpr int kOverlayBytes = RANK * HEAD_DIM * 4 + Layout::kBytes;
  static constexpr int kEigen = kGram + ((kGramBytes > kOverlayBytes ? kGramBytes : kOverlayBytes) + 15) / 16 * 16;
  static constexpr int kMu = (kEigen + Eigen::kFloats * 4 + 15) / 16 * 16;         // f32 [HEAD_DIM]
  static constexpr int kScales = kMu + HEAD_DIM * 4;                               // Scale [RANK + 1], the centroid's last
  static constexpr int kTops = kScales + (RANK + 1) * 8;                           // uint32 [kNumWarps]
  static constexpr int kWeighed = (kTops + kNumWarps * 4 + 15) / 16 * 16;          // bf16 [PAGE][kRowBytes]: centred keys times the factor
  static constexpr int kGramBytesAgain = kPowers ? PAGE * kGramStride * 4 : 0;     // powers take the rows' place
  static constexpr int kLengths = kWeighed + (PAGE * kRowBytes > kGramBytesAgain ? PAGE * kRowBytes : kGramBytesAgain);  // f32 [RANK]: of D^T u
  static constexpr int kBytes = WEIGHTED ? (kLengths + RANK * 4 + 15) / 16 * 16 : kWeighed;

  uint8_t* shared;

  __device__ __forceinline__ uint8_t* row(int r) const { return shared + r * kRowBytes; }
  __device__ __forceinline__ float* gram() const { return reinterpret_cast<float*>(shared + kGram); }
  __device__ __forceinline__ float* mu() const { return reinterpret_cast<float*>(shared + kMu); }
  __device__ __forceinline__ Scale* scales() const { return reinterpret_cast<Scale*>(shared + kScales); }
  __device__ __forceinline__ uint32_t key_pair(int token, int pair) const { return *reinterpret_cast<const uint32_t*>(row(token) + 4 * pair); }

  // Of a group: `table` is its first page's entry. Keys of a page without a block are not finite, and nor is the summary then.
  __device__ __forceinline__ void load(const KvCache& cache, int64_t offset, const int32_t* table, bool aligned) const {
    constexpr int kChunks = HEAD_DIM / 8, kPageTokens = PAGE / Group::kPages;
    const auto keys = static_cast<const typename KeyBits<T>::type*>(cache.k) + offset;
    for (int i = threadIdx.x; i < PAGE * kChunks; i += kThreads) {
      const int r = i / kChunks, chunk = i % kChunks;
      if constexpr (Group::kPages > 1) {
        const int block = __ldg(table + r / kPageTokens);
        const auto from = keys + block * cache.k_block_stride + r % kPageTokens * cache.k_token_stride + chunk * 8;
        if (block >= 0)
          copy_keys(row(r) + chunk * 16, from, aligned);
        else
          *reinterpret_cast<uint4*>(row(r) + chunk * 16) = make_uint4(~0u, ~0u, ~0u, ~0u);
      } else {
        copy_keys(row(r) + chunk * 16, keys + r * cache.k_token_stride + chunk * 8, aligned);
      }
    }
    ptx::commit_copies();
    ptx::wait_copies<0>();
    __syncthreads();
  }

  // The page's power of two, the same in every thread.
  __device__ __forceinline__ PageScale power(const KvCache& cache) const {
    uint32_t* tops = reinterpret_cast<uint32_t*>(shared + kTops);
    uint32_t top = 0;
    for (int i = threadIdx.x; i < PAGE * (HEAD_DIM / 2); i += kThreads) top = larger_bits(top, key_pair(i / (HEAD_DIM / 2), i % (HEAD_DIM / 2)));
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) top = max(top, __shfl_xor_sync(~0u, top, mask));
    if (threadIdx.x % 32 == 0) tops[threadIdx.x / 32] = top;
    __syncthreads();
    for (int w = 0; w < kNumWarps; w++) top = max(top, tops[w]);
    return with_key_scale<T>(page_scale(top, Key{}), cache);
  }

  // The centroid, scaled. Sums run on distances from the first key, so that they are exact for equal keys and never cancel.
  __device__ __forceinline__ void centroid(float down) const {
    for (int pair = threadIdx.x; pair < HEAD_DIM / 2; pair += kThreads) {
      const float2 first = unpack(key_pair(0, pair), Key{});
      const float ox = first.x * down, oy = first.y * down;
      float x = 0.f, y = 0.f;
#pragma unroll 8
      for (int t = 1; t < PAGE; t++) {
        const float2 key = unpack(key_pair(t, pair), Key{});
        x += fmaf(key.x, down, -ox);
        y += fmaf(key.y, down, -oy);
      }
      mu()[2 * pair] = fmaf(x, 1.f / PAGE, ox);
      mu()[2 * pair + 1] = fmaf(y, 1.f / PAGE, oy);
    }
    __syncthreads();
  }

  // Y = D L: each warp takes strips of 16 rows, and as many blocks of 16 columns as registers hold or warps leave it. L is zero above the
  // diagonal.
  __device__ __forceinline__ void weigh(const uint8_t* factor, float down) const {
    using Factor = WeightFactor<HEAD_DIM>;
    constexpr int kSteps = HEAD_DIM / 16, kStrips = PAGE / 16;
    constexpr int kShare = kNumWarps > kStrips ? (kSteps + 1) / 2 : kSteps, kColumns = kShare < 8 ? kShare : 8;
    constexpr int kParts = (kSteps + kColumns - 1) / kColumns;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const uint4* blocks = reinterpret_cast<const uint4*>(factor) + lane;
#pragma unroll 1
    for (int job = warp; job < kStrips * kParts; job += kNumWarps) {
      const int strip = job / kParts * 16, first = job % kParts * kColumns;
      float y[kColumns][2][4] = {};
#pragma unroll 1
      for (int k = first; k < kSteps; k++) {
        const float2 centre[2] = {*reinterpret_cast<const float2*>(mu() + 16 * k + 2 * p),
                                  *reinterpret_cast<const float2*>(mu() + 16 * k + 8 + 2 * p)};
        uint32_t r[4], a[4];
        load_tile(r, row(strip + lane % 16) + k * 32 + lane / 16 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) {
          const float2 key = unpack(r[i], Key{});
          a[i] = bf16_pair(fmaf(key.x, down, -centre[i / 2].x), fmaf(key.y, down, -centre[i / 2].y));
        }
#pragma unroll
        for (int n = 0; n < kColumns; n++) {
          if (first + n > k || first + n >= kSteps) continue;  // above the diagonal
          const uint4 b = __ldg(blocks + Factor::block(k, first + n) * 32);
          mma_m16n8k16(y[n][0], a[0], a[1], a[2], a[3], b.x, b.y, bf16{});
          mma_m16n8k16(y[n][1], a[0], a[1], a[2], a[3], b.z, b.w, bf16{});
        }
      }
      uint8_t* to = shared + kWeighed + (strip + g) * kRowBytes + first * 32 + 4 * p;
#pragma unroll
      for (int n = 0; n < kColumns; n++) {
        if (first + n >= kSteps) continue;
#pragma unroll
        for (int half = 0; half < 2; half++) {
          *reinterpret_cast<uint32_t*>(to + n * 32 + 16 * half) = bf16_pair(y[n][half][0], y[n][half][1]);
          *reinterpret_cast<uint32_t*>(to + n * 32 + 16 * half + 8 * kRowBytes) = bf16_pair(y[n][half][2], y[n][half][3]);
        }
      }
    }
    __syncthreads();
  }

  // Y Y^T, as form_gram shares it out.
  __device__ __forceinline__ void form_weighted_gram() const {
    constexpr int kGroup = 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
    const uint8_t* rows = shared + kWeighed + lane % 16 * kRowBytes + lane / 16 * 16;
#pragma unroll 1
    for (int job = warp; job < PAGE / 16 * (PAGE / kGroup); job += kNumWarps) {
      const int strip = job / (PAGE / kGroup) * 16, left = job % (PAGE / kGroup) * kGroup;
      float acc[kGroup / 8][4] = {};
#pragma unroll 2
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        uint32_t a[4], b[4];
        load_tile(a, rows + strip * kRowBytes + k * 32);
#pragma unroll
        for (int n = 0; n < kGroup / 8; n += 2) {
          load_tile(b, rows + (left + 8 * n) * kRowBytes + k * 32);
          mma_m16n8k16(acc[n], a[0], a[1], a[2], a[3], b[0], b[2], bf16{});
          mma_m16n8k16(acc[n + 1], a[0], a[1], a[2], a[3], b[1], b[3], bf16{});
        }
      }
#pragma unroll
      for (int n = 0; n < kGroup / 8; n++) {
        float* out = gram() + (strip + g) * kGramStride + left + 8 * n + 2 * p;
        *reinterpret_cast<float2*>(out) = make_float2(acc[n][0], acc[n][1]);
        *reinterpret_cast<float2*>(out + 8 * kGramStride) = make_float2(acc[n][2], acc[n][3]);
      }
    }
    __syncthreads();
  }

  // D D^T: each warp takes strips of 16 rows and groups of 32 columns.
  __device__ __forceinline__ void form_gram(float down) const {
    constexpr int kGroup = 32;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, p = lane % 4;
#pragma unroll 1
    for (int job = warp; job < PAGE / 16 * (PAGE / kGroup); job += kNumWarps) {
      const int strip = job / (PAGE / kGroup) * 16, left = job % (PAGE / kGroup) * kGroup;
      float acc[kGroup / 8][4];
#pragma unroll
      for (int n = 0; n < kGroup / 8; n++) acc[n][0] = acc[n][1] = acc[n][2] = acc[n][3] = 0.f;
#pragma unroll 1
      for (int k = 0; k < HEAD_DIM / 16; k++) {
        const float2 centre[2] = {*reinterpret_cast<const float2*>(mu() + 16 * k + 2 * p),
                                  *reinterpret_cast<const float2*>(mu() + 16 * k + 8 + 2 * p)};
        uint32_t r[4];
        SplitPair a[4];
        load_tile(r, row(strip + lane % 16) + k * 32 + lane / 16 * 16);
#pragma unroll
        for (int i = 0; i < 4; i++) a[i] = split<Key>(r[i], down, centre[i / 2]);
#pragma unroll
        for (int n = 0; n < kGroup / 8; n += 2) {
          SplitPair b[4];
          load_tile(r, row(left + 8 * n + lane % 16) + k * 32 + lane / 16 * 16);
#pragma unroll
          for (int i = 0; i < 4; i++) b[i] = split<Key>(r[i], down, centre[i / 2]);
          mma_split(acc[n], a, b[0], b[2]);
          mma_split(acc[n + 1], a, b[1], b[3]);
        }
      }
#pragma unroll
      for (int n = 0; n < kGroup / 8; n++) {
        float* out = gram() + (strip + g) * kGramStride + left + 8 * n + 2 * p;
        *reinterpret_cast<float2*>(out) = make_float2(acc[n][0], acc[n][1]);
        *reinterpret_cast<float2*>(out + 8 * kGramStride) = make_float2(acc[n][2], acc[n][3]);
      }
    }
    __syncthreads();
  }

  // V = D^T u / sigma into f32 rows: a thread takes a pair of dims and up to four columns.
  __device__ __forceinline__ void basis(const Eigen& eigen, float down) const {
    constexpr int kColumns = RANK < 4 ? RANK : 4, kGroups = (RANK + kColumns - 1) / kColumns;
    const float longest = eigen.values[0];
    float* out = reinterpret_cast<float*>(shared + kBasis);
    for (int i = threadIdx.x; i < HEAD_DIM / 2 * kGroups; i += kThreads) {
      const int pair = i % (HEAD_DIM / 2), first = i / (HEAD_DIM / 2) * kColumns;
      const float2 centre = *reinterpret_cast<const float2*>(mu() + 2 * pair);
      float2 v[kColumns];
#pragma unroll
      for (int j = 0; j < kColumns; j++) v[j] = make_float2(0.f, 0.f);
#pragma unroll 4
      for (int t = 0; t < PAGE; t++) {
        const float2 key = unpack(key_pair(t, pair), Key{});
        const float x = fmaf(key.x, down, -centre.x), y = fmaf(key.y, down, -centre.y);
#pragma unroll
        for (int j = 0; j < kColumns; j++) {
          const float u = eigen.vectors[min(first + j, RANK - 1) * Eigen::kVectorStride + t];
          v[j].x = fmaf(u, x, v[j].x);
          v[j].y = fmaf(u, y, v[j].y);
        }
      }
#pragma unroll
      for (int j = 0; j < kColumns; j++) {
        if (first + j >= RANK) break;
        const float lambda = eigen.values[first + j];
        const float inverse = lambda > kRankTolerance * longest && longest > 0.f ? (WEIGHTED ? 1.f : rsqrtf(lambda)) : 0.f;
        *reinterpret_cast<float2*>(out + (first + j) * HEAD_DIM + 2 * pair) = make_float2(v[j].x * inverse, v[j].y * inverse);
      }
    }
  }

  static __device__ __forceinline__ float warp_top(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
  }

  __device__ __forceinline__ float* lengths() const { return reinterpret_cast<float*>(shared + kLengths); }

  // Brings D^T u to length 1, a warp a column, and keeps the length.
  __device__ __forceinline__ void normalise() const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    for (int j = warp; j < RANK; j += kNumWarps) {
      float* x = reinterpret_cast<float*>(shared + kBasis) + j * HEAD_DIM;
      float sum = 0.f;
      for (int i = lane; i < HEAD_DIM; i += 32) sum = fmaf(x[i], x[i], sum);
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
      const float inverse = sum > 0.f ? rsqrtf(sum) : 0.f;
      for (int i = lane; i < HEAD_DIM; i += 32) x[i] *= inverse;
      if (lane == 0) lengths()[j] = sum * inverse;
    }
    __syncthreads();
  }

  // Scales of V's columns and of the centroid, a warp each.
  __device__ __forceinline__ void find_scales(float up) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    uint8_t* record = shared + kRecord;
    for (int j = warp; j <= RANK; j += kNumWarps) {
      const float* x = j < RANK ? reinterpret_cast<const float*>(shared + kBasis) + j * HEAD_DIM : mu();
      float top = 0.f;
      for (int i = lane; i < HEAD_DIM; i += 32) top = fmaxf(top, fabsf(x[i]));
      const KeyScale mu_scale = make_key_scale<T>(warp_top(top), largest_code<8>(), up);
      const Scale scale = j < RANK ? make_scale(warp_top(top), largest_code<BITS == 16 ? 8 : BITS>()) : mu_scale.scale;
      if (lane == 0) {
        scales()[j] = scale;
        if (j == RANK) *reinterpret_cast<uint16_t*>(record + Layout::kMuScale) = bf16_bits(mu_scale.stored);
        else if (Layout::kHasColumnScales) reinterpret_cast<uint16_t*>(record + Layout::kColumnScales)[j] = bf16_bits(scale.value);
      }
    }
  }

  // C of a weighted basis: u times the lengths of D^T u, a thread a token.
  __device__ __forceinline__ void weighted_coefficients(const Eigen& eigen, PageScale power) const {
    uint8_t* record = shared + kRecord;
    for (int t = threadIdx.x; t < PAGE; t += kThreads) {
      float c[RANK], top = 0.f;
#pragma unroll
      for (int j = 0; j < RANK; j++) c[j] = eigen.vectors[j * Eigen::kVectorStride + t] * lengths()[j], top = fmaxf(top, fabsf(c[j]));
      const KeyScale key_scale = make_key_scale<T, true>(top, largest_code<8>(), power.up);
#pragma unroll
      for (int j = 0; j < RANK; j++) record[Layout::kC + t * kRankPad + j] = static_cast<uint8_t>(signed_code<8>(c[j], key_scale.scale));
      reinterpret_cast<uint16_t*>(record + Layout::kTokenScales)[t] = bf16_bits(key_scale.stored);
    }
  }

  // C = D V, a warp a token, with its codes and scale.
  __device__ __forceinline__ void coefficients(PageScale power) const {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float* basis = reinterpret_cast<const float*>(shared + kBasis);
    uint8_t* record = shared + kRecord;
#pragma unroll 1
    for (int t = warp; t < PAGE; t += kNumWarps) {
      float c[RANK], mine = 0.f;
#pragma unroll
      for (int j = 0; j < RANK; j++) c[j] = 0.f;
      for (int pair = lane; pair < HEAD_DIM / 2; pair += 32) {
        const float2 key = unpack(key_pair(t, pair), Key{}), centre = *reinterpret_cast<const float2*>(mu() + 2 * pair);
        const float x = fmaf(key.x, power.down, -centre.x), y = fmaf(key.y, power.down, -centre.y);
#pragma unroll
        for (int j = 0; j < RANK; j++) {
          const float2 v = *reinterpret_cast<const float2*>(basis + j * HEAD_DIM + 2 * pair);
          c[j] = fmaf(x, v.x, fmaf(y, v.y, c[j]));
        }
      }
#pragma unroll
      for (int j = 0; j < RANK; j++) {
        const float sum = warp_sum(c[j]);
        if (lane == j) mine = sum;
      }
      const KeyScale key_scale = make_key_scale<T, true>(warp_top(fabsf(mine)), largest_code<8>(), power.up);
      const Scale scale = key_scale.scale;
      if (lane < kRankPad) record[Layout::kC + t * kRankPad + lane] = static_cast<uint8_t>(signed_code<8>(mine, scale));
      if (lane == 0) reinterpret_cast<uint16_t*>(record + Layout::kTokenScales)[t] = bf16_bits(key_scale.stored);
    }
  }

  __device__ __forceinline__ void clear(int offset, int bytes) const {
    for (int i = threadIdx.x; i < bytes / 4; i += kThreads) reinterpret_cast<uint32_t*>(shared + offset)[i] = 0;
  }

  __device__ __forceinline__ Eigen eigen() const {
    if constexpr (kPowers)
      return Eigen(reinterpret_cast<float*>(shared + kEigen), reinterpret_cast<float*>(shared + kWeighed));
    else
      return Eigen(reinterpret_cast<float*>(shared + kEigen));
  }

  __device__ __forceinline__ void build(const PageSummaryArgs& args, const BuildItem& item, bool aligned) const {
    if (!item.valid) return;
    load(args.cache, item.keys, item.table, aligned);
    const PageScale power = this->power(args.cache);
    const bool finite = power.down > 0.f;
    Eigen eigen = this->eigen();
    if (finite) {
      centroid(power.down);
      if constexpr (WEIGHTED) {
        weigh(static_cast<const uint8_t*>(args.weights) + static_cast<int64_t>(item.head) * WeightFactor<HEAD_DIM>::kBytes, power.down);
        form_weighted_gram();
      } else {
        form_gram(power.down);
      }
      eigen.run(gram());
      clear(kRecord, Layout::kBytes);
      basis(eigen, power.down);
    } else {  // every code zero, the centroid's scale NaN: scores of this page are NaN
      clear(kRecord, Layout::kBytes);
      clear(kBasis, RANK * HEAD_DIM * 4);
      clear(kMu, HEAD_DIM * 4);
    }
    __syncthreads();
    if constexpr (WEIGHTED) normalise();
    find_scales(power.up);
    if constexpr (WEIGHTED) {
      if (finite) weighted_coefficients(eigen, power);
    } else {
      if (finite) coefficients(power);
    }
    __syncthreads();
    uint8_t* record = shared + kRecord;
    pack_basis<HEAD_DIM, PAGE, RANK, BITS>(record, reinterpret_cast<const float*>(shared + kBasis), scales(), threadIdx.x, kThreads);
    for (int i = threadIdx.x; i < HEAD_DIM; i += kThreads) record[Layout::kMu + i] = static_cast<uint8_t>(signed_code<8>(mu()[i], scales()[RANK]));
    __syncthreads();
    uint4* out = reinterpret_cast<uint4*>(args.summaries + item.record);
    for (int i = threadIdx.x; i < Layout::kBytes / 16; i += kThreads) out[i] = reinterpret_cast<const uint4*>(record)[i];
    __syncthreads();
  }
};

// Grid: x shares the (page, head) items of one request, y the requests. Any grid is right.
template <int HEAD_DIM, int PAGE, int RANK, int BITS, class T, int kNumWarps, int kSharedBytes, class FORM = PlainForm,
          bool WEIGHTED = false>
__device__ __forceinline__ void page_summary_block(const PageSummaryArgs& args) {
  using Build = BlockBuild<HEAD_DIM, PAGE, RANK, BITS, T, kNumWarps, FORM, WEIGHTED>;
  using Group = typename Build::Group;
  static_assert(Build::kBytes == kSharedBytes, "the launch geometry gives the block exactly what it lays out");
  extern __shared__ __align__(128) uint8_t shared[];
  const Build build{shared};
  const bool aligned = keys_aligned<T>(args.cache);
  for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
    const BuildRange range = build_range<PAGE, Group>(args, request);
    for (int item = blockIdx.x; item < range.items; item += gridDim.x) {
      build.build(args, build_item<Group>(args, request, range, item), aligned);
    }
  }
  finish_build<PAGE, Group>(args);
}

}  // namespace kvloom
