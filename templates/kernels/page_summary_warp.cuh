// page_summary for pages of 4, 8 and 16 tokens: a warp builds 64 / PAGE pages at a time.
//
// 64 token rows of keys lie in shared memory as four 16-row tiles. Gram matrices come from mma on keys less the page's first key
// (so nothing cancels when the centroid is far from 0), are centred as matrices, and are diagonalised in registers, PAGE / 2 lanes
// a page and two columns a lane. V = D^T u / sigma and C = sigma u (= D V) follow page by page; a tile whose pages are done
// is refilled with the next batch while the others are worked on.
#pragma once

#include "kernels/page_summary_common.cuh"
#include "kvloom/linalg/jacobi.cuh"

namespace kvloom {

// T: the cache's elements; Key: as shared memory holds them.
template <int HEAD_DIM, int PAGE, int RANK, int BITS, class T>
struct WarpBuild {
  using Key = typename Compute<T>::type;
  static_assert(PAGE == 4 || PAGE == 8 || PAGE == 16, "larger pages take a block each: page_summary_block.cuh");
  static_assert(HEAD_DIM % 16 == 0, "a row is whole mma steps");
  static_assert(RANK < PAGE && RANK < HEAD_DIM, "a page of n tokens has n - 1 directions around its centroid");

  using Layout = Record<HEAD_DIM, PAGE, RANK, BITS>;
  static constexpr int kRankPad = Layout::kRankPad;
  static constexpr int kTiles = 4, kPages = 64 / PAGE, kTilePages = 16 / PAGE;
  static constexpr int kRowBytes = 2 * HEAD_DIM + 16;  // an odd number of 16-byte units: ldmatrix meets every bank once
  static constexpr int kGramStride = 20;               // floats; rows stay 16-byte aligned
  static constexpr int kPairs = (HEAD_DIM / 2 + 31) / 32;  // pairs of dims a lane; the last may lie past the row

  // Sections of one warp's shared memory, bytes.
  static constexpr int kGram = 64 * kRowBytes;                             // f32 [4][16][kGramStride]
  static constexpr int kVectors = kGram + kTiles * 16 * kGramStride * 4;   // f32 [64][kRankPad] eigenvectors by token
  static constexpr int kInverse = kVectors + 64 * kRankPad * 4;            // f32 [kPages][kRankPad] 1 / sigma, 0: no such direction
  static constexpr int kPower = kInverse + kPages * kRankPad * 4;          // PageScale [kPages]
  static constexpr int kScales = kPower + kPages * 8;                      // Scale [RANK] of one page's columns
  static constexpr int kBasis = (kScales + RANK * 8 + 15) / 16 * 16;       // f32 [RANK][HEAD_DIM] of one page
  static constexpr int kRecord = kBasis + RANK * HEAD_DIM * 4;             // the record being made
  static constexpr int kWarpBytes = (kRecord + Layout::kBytes + 127) / 128 * 128;

  uint8_t* shared;
  int lane;

  __device__ __forceinline__ uint8_t* row(int r) const { return shared + r * kRowBytes; }
  __device__ __forceinline__ float* gram(int page) const {  // the page's block: rows kGramStride apart
    const int r = page * PAGE;
    return reinterpret_cast<float*>(shared + kGram) + r * kGramStride + r % 16;
  }
  __device__ __forceinline__ float* vectors(int page) const { return reinterpret_cast<float*>(shared + kVectors) + page * PAGE * kRankPad; }
  __device__ __forceinline__ float* inverse(int page) const { return reinterpret_cast<float*>(shared + kInverse) + page * kRankPad; }
  __device__ __forceinline__ PageScale* power() const { return reinterpret_cast<PageScale*>(shared + kPower); }

  // Starts loading one tile. item is this lane's page of the batch (lanes past kPages unused).
  __device__ __forceinline__ void fetch(const KvCache& cache, const BuildItem& item, int tile, bool aligned) const {
    constexpr int kChunks = HEAD_DIM / 8;
    const auto keys = static_cast<const typename KeyBits<T>::type*>(cache.k);
    const int64_t own = item.valid ? item.keys : -1;
    int64_t offset = PAGE == 16 ? __shfl_sync(~0u, own, tile) : 0;
#pragma unroll
    for (int i = 0; i < 16 * kChunks / 32; i++) {
      const int index = lane + 32 * i, r = tile * 16 + index / kChunks, chunk = index % kChunks;
      if (PAGE != 16) offset = __shfl_sync(~0u, own, r / PAGE);
      copy_keys(row(r) + chunk * 16, offset >= 0 ? keys + offset + r % PAGE * cache.k_token_stride + chunk * 8 : nullptr, aligned);
    }
  }

  // The power of two of the tile's pages: returns those of rows lane / 4 and lane / 4 + 8, and keeps all.
  __device__ __forceinline__ void powers(const KvCache& cache, int tile, PageScale& low, PageScale& high) const {
    uint32_t top_low = 0, top_high = 0;
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
      uint32_t r[4];
      load_tile(r, row(tile * 16 + lane % 16) + k * 32 + lane / 16 * 16);
      top_low = larger_bits(larger_bits(top_low, r[0]), r[2]);
      top_high = larger_bits(larger_bits(top_high, r[1]), r[3]);
    }
#pragma unroll
    for (int mask = 1; mask < (PAGE >= 8 ? 32 : 16); mask *= 2) {
      top_low = max(top_low, __shfl_xor_sync(~0u, top_low, mask));
      top_high = max(top_high, __shfl_xor_sync(~0u, top_high, mask));
    }
    if (PAGE == 16) top_low = top_high = max(top_low, top_high);
    low = with_key_scale<T>(page_scale(top_low, Key{}), cache);
    high = with_key_scale<T>(page_scale(top_high, Key{}), cache);
    const int g = lane / 4;
    if (lane % 4 == 0 && g % (PAGE < 8 ? PAGE : 8) == 0) {
      power()[(tile * 16 + g) / PAGE] = low;
      power()[(tile * 16 + g + 8) / PAGE] = high;  // for 16 the same page, the same value
    }
  }

  // Gram matrices of the tile's pages, of keys less the page's first key.
  __device__ __forceinline__ void form_gram(const KvCache& cache, int tile) const {
    PageScale low, high;
    powers(cache, tile, low, high);
    const int g = lane / 4, p = lane % 4;
    const uint8_t* first_low = row(tile * 16 + (PAGE == 16 ? 0 : g / PAGE * PAGE));
    const uint8_t* first_high = row(tile * 16 + (PAGE == 16 ? 0 : 8 + g / PAGE * PAGE));
    float left[4] = {0.f, 0.f, 0.f, 0.f}, right[4] = {0.f, 0.f, 0.f, 0.f};  // columns 0-7 and 8-15 of the 16 x 16 product
#pragma unroll
    for (int k = 0; k < HEAD_DIM / 16; k++) {
      uint32_t r[4];
      load_tile(r, row(tile * 16 + lane % 16) + k * 32 + lane / 16 * 16);
      SplitPair a[4];
#pragma unroll
      for (int half = 0; half < 2; half++) {
        const int at = k * 32 + half * 16 + p * 4;
        float2 centre = unpack(*reinterpret_cast<const uint32_t*>(first_low + at), Key{});
        a[2 * half] = split<Key>(r[2 * half], low.down, make_float2(centre.x * low.down, centre.y * low.down));
        if (PAGE != 16) centre = unpack(*reinterpret_cast<const uint32_t*>(first_high + at), Key{});
        a[2 * half + 1] = split<Key>(r[2 * half + 1], high.down, make_float2(centre.x * high.down, centre.y * high.down));
      }
      mma_split(left, a, a[0], a[2]);   // rows 0-7 as columns
      mma_split(right, a, a[1], a[3]);  // rows 8-15 as columns
    }
    float* out = reinterpret_cast<float*>(shared + kGram) + (tile * 16 + g) * kGramStride + 2 * p;
    *reinterpret_cast<float2*>(out) = make_float2(left[0], left[1]);
    *reinterpret_cast<float2*>(out + 8 * kGramStride + 8) = make_float2(right[2], right[3]);
    if (PAGE == 16) {
      *reinterpret_cast<float2*>(out + 8) = make_float2(right[0], right[1]);
      *reinterpret_cast<float2*>(out + 8 * kGramStride) = make_float2(left[2], left[3]);
    }
  }

  // Writes one column's eigenvector, unless RANK columns are longer.
  __device__ __forceinline__ void write_vector(int page, const float (&x)[PAGE], float length, int place, float longest) const {
    if (place >= RANK) return;
    const bool kept = length > kRankTolerance * longest;
    const float scale = kept ? 1.f / length : 0.f;
#pragma unroll
    for (int i = 0; i < PAGE; i++) vectors(page)[i * kRankPad + place] = x[i] * scale;
    inverse(page)[place] = kept ? rsqrtf(length) : 0.f;
  }

  // Centres the Gram matrices, puts them back, and leaves the leading eigenvectors of each.
  __device__ __forceinline__ void eigenvectors() const {
    constexpr int kLanes = PAGE / 2;
    const int page = lane / kLanes, l = lane % kLanes;
    using Eigen = Jacobi<PAGE, RANK, (BITS >= 8)>;
    typename Eigen::Column first, second;  // columns l and l + kLanes
    float (&a)[PAGE] = first.x, (&b)[PAGE] = second.x;
    float* row_a = gram(page) + l * kGramStride;
    float* row_b = row_a + kLanes * kGramStride;
    const bool finite = power()[page].down > 0.f;
    float mean_a = 0.f, mean_b = 0.f;
#pragma unroll
    for (int i = 0; i < PAGE; i += 4) {
      const float4 x = *reinterpret_cast<const float4*>(row_a + i), y = *reinterpret_cast<const float4*>(row_b + i);
      a[i] = x.x, a[i + 1] = x.y, a[i + 2] = x.z, a[i + 3] = x.w;
      b[i] = y.x, b[i + 1] = y.y, b[i + 2] = y.z, b[i + 3] = y.w;
    }
#pragma unroll
    for (int i = 0; i < PAGE; i++) {
      if (!finite) a[i] = b[i] = 0.f;
      mean_a += a[i];
      mean_b += b[i];
    }
    mean_a *= 1.f / PAGE;
    mean_b *= 1.f / PAGE;
    float mean = mean_a + mean_b;
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) mean += __shfl_xor_sync(~0u, mean, mask);
    mean *= 1.f / PAGE;
#pragma unroll
    for (int i = 0; i < PAGE; i++) {
      const float other = __shfl_sync(~0u, i < kLanes ? mean_a : mean_b, i % kLanes, kLanes) - mean;
      a[i] -= mean_a + other;
      b[i] -= mean_b + other;
    }
    __syncwarp();
#pragma unroll
    for (int i = 0; i < PAGE; i += 4) {
      *reinterpret_cast<float4*>(row_a + i) = make_float4(a[i], a[i + 1], a[i + 2], a[i + 3]);
      *reinterpret_cast<float4*>(row_b + i) = make_float4(b[i], b[i + 1], b[i + 2], b[i + 3]);
    }
    float trace = row_a[l] + row_b[l + kLanes];  // from memory: a register array has no index known only now
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) trace += __shfl_xor_sync(~0u, trace, mask);

    Eigen::run(first, second, lane, trace);

    int place_a, place_b;
    Eigen::rank(first, second, lane, place_a, place_b);
    const float length_a = sqrtf(first.square), length_b = sqrtf(second.square);
    float longest = fmaxf(length_a, length_b);
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) longest = fmaxf(longest, __shfl_xor_sync(~0u, longest, mask));
    write_vector(page, a, length_a, place_a, longest);
    write_vector(page, b, length_b, place_b, longest);
    __syncwarp();
    orthonormalise(vectors(page), l);
  }

  // Gram-Schmidt over a page's vectors, the longest direction's first; a lane has two tokens. Jacobi leaves short columns as far from
  // long ones as 1e-7 of their ratio, and D^T u would take in the long direction times that ratio's root.
  static __device__ __forceinline__ void orthonormalise(float* u, int l) {
    constexpr int kLanes = PAGE / 2;
    float* low = u + l * kRankPad;
    float* high = low + kLanes * kRankPad;
#pragma unroll 1
    for (int j = 0; j < RANK; j++) {
      float x = low[j], y = high[j];
#pragma unroll 1
      for (int i = 0; i < j; i++) {
        const float share = group_sum(fmaf(x, low[i], y * high[i]));
        x = fmaf(-share, low[i], x);
        y = fmaf(-share, high[i], y);
      }
      const float square = group_sum(fmaf(x, x, y * y));
      const float scale = square > 0.f ? rsqrtf(square) : 0.f;  // 0: no such direction
      low[j] = x * scale;
      high[j] = y * scale;
    }
  }

  static __device__ __forceinline__ float group_sum(float x) {
#pragma unroll
    for (int mask = 1; mask < PAGE / 2; mask *= 2) x += __shfl_xor_sync(~0u, x, mask);
    return x;
  }

  // V = D^T u / sigma and the centroid, all in registers, then both into the record being made.
  __device__ __forceinline__ void basis(int page) const {
    const PageScale power = this->power()[page];
    const uint32_t keep = power.down > 0.f ? ~0u : 0u;  // a page with a key that is not finite counts as zeros
    const float* u = vectors(page);
    float2 v[kPairs][RANK], mean[kPairs], origin[kPairs];
    float sum[RANK];
#pragma unroll
    for (int m = 0; m < kPairs; m++) {
      mean[m] = origin[m] = make_float2(0.f, 0.f);
#pragma unroll
      for (int j = 0; j < RANK; j++) v[m][j] = make_float2(0.f, 0.f);
    }
#pragma unroll
    for (int j = 0; j < RANK; j++) sum[j] = 0.f;
#pragma unroll(PAGE * kPairs * RANK <= 256 ? 4 : 1)
    for (int i = 0; i < PAGE; i++) {
      float weight[RANK];
#pragma unroll
      for (int j = 0; j < RANK; j++) {
        weight[j] = u[i * kRankPad + j];
        sum[j] += weight[j];
      }
#pragma unroll
      for (int m = 0; m < kPairs; m++) {
        const int pair = lane + 32 * m;
        if (HEAD_DIM / 2 % 32 != 0 && pair >= HEAD_DIM / 2) continue;
        const float2 key = unpack(*reinterpret_cast<const uint32_t*>(row(page * PAGE + i) + 4 * pair) & keep, Key{});
        if (i == 0) origin[m] = make_float2(key.x * power.down, key.y * power.down);
        const float x = fmaf(key.x, power.down, -origin[m].x), y = fmaf(key.y, power.down, -origin[m].y);
        mean[m].x += x;
        mean[m].y += y;
#pragma unroll
        for (int j = 0; j < RANK; j++) {
          v[m][j].x = fmaf(weight[j], x, v[m][j].x);
          v[m][j].y = fmaf(weight[j], y, v[m][j].y);
        }
      }
    }
    float top_mu = 0.f, top[RANK];
#pragma unroll
    for (int j = 0; j < RANK; j++) top[j] = 0.f;
#pragma unroll
    for (int m = 0; m < kPairs; m++) {
      const int pair = lane + 32 * m;
      if (HEAD_DIM / 2 % 32 != 0 && pair >= HEAD_DIM / 2) continue;
      mean[m].x *= 1.f / PAGE;
      mean[m].y *= 1.f / PAGE;
#pragma unroll
      for (int j = 0; j < RANK; j++) {
        // u is orthogonal to ones up to rounding; what is left must not carry the distance from the first key into V.
        const float inverse = this->inverse(page)[j];
        v[m][j].x = fmaf(-sum[j], mean[m].x, v[m][j].x) * inverse;
        v[m][j].y = fmaf(-sum[j], mean[m].y, v[m][j].y) * inverse;
        top[j] = fmaxf(top[j], fmaxf(fabsf(v[m][j].x), fabsf(v[m][j].y)));
        reinterpret_cast<float2*>(shared + kBasis)[j * (HEAD_DIM / 2) + pair] = v[m][j];
      }
      mean[m].x += origin[m].x;
      mean[m].y += origin[m].y;
      top_mu = fmaxf(top_mu, fmaxf(fabsf(mean[m].x), fabsf(mean[m].y)));
    }
    uint8_t* record = shared + kRecord;
    const KeyScale key_scale = make_key_scale<T>(warp_top(top_mu), largest_code<8>(), power.up);
    const Scale mu = key_scale.scale;
#pragma unroll
    for (int m = 0; m < kPairs; m++) {
      const int pair = lane + 32 * m;
      if (HEAD_DIM / 2 % 32 != 0 && pair >= HEAD_DIM / 2) continue;
      const uint32_t codes = (signed_code<8>(mean[m].x, mu) & 0xff) | (signed_code<8>(mean[m].y, mu) & 0xff) << 8;
      *reinterpret_cast<uint16_t*>(record + Layout::kMu + 2 * pair) = static_cast<uint16_t>(codes);
    }
    if (lane == 0) *reinterpret_cast<uint16_t*>(record + Layout::kMuScale) = bf16_bits(key_scale.stored);
    if constexpr (Layout::kHasColumnScales) {
#pragma unroll
      for (int j = 0; j < RANK; j++) {
        const Scale scale = make_scale(warp_top(top[j]), largest_code<BITS>());
        if (lane == 0) {
          reinterpret_cast<Scale*>(shared + kScales)[j] = scale;
          reinterpret_cast<uint16_t*>(record + Layout::kColumnScales)[j] = bf16_bits(scale.value);
        }
      }
    }
    __syncwarp();
    pack_basis<HEAD_DIM, PAGE, RANK, BITS>(record, reinterpret_cast<const float*>(shared + kBasis),
                                           reinterpret_cast<const Scale*>(shared + kScales), lane, 32);
  }

  static __device__ __forceinline__ float warp_top(float x) {
#pragma unroll
    for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
    return x;
  }

  // C = sigma u, one (token, column) a lane, and its scales: with V = D^T u / sigma their product is D's projection for any orthonormal
  // u, however near to eigenvectors.
  __device__ __forceinline__ void coefficients(int page) const {
    uint8_t* record = shared + kRecord;
    const float* u = vectors(page);
    const float up = power()[page].up;
#pragma unroll
    for (int base = 0; base < PAGE * kRankPad; base += 32) {
      const int index = base + lane, token = index / kRankPad, column = index % kRankPad;
      float c = 0.f;
      if (token < PAGE && column < RANK && inverse(page)[column] > 0.f) c = u[token * kRankPad + column] / inverse(page)[column];
      float top = fabsf(c);
#pragma unroll
      for (int mask = 1; mask < kRankPad; mask *= 2) top = fmaxf(top, __shfl_xor_sync(~0u, top, mask));
      const KeyScale key_scale = make_key_scale<T, true>(top, largest_code<8>(), up);
      if (token < PAGE) {
        record[Layout::kC + index] = static_cast<uint8_t>(signed_code<8>(c, key_scale.scale));
        if (column == 0) {
          reinterpret_cast<uint16_t*>(record + Layout::kTokenScales)[token] = bf16_bits(key_scale.scale.value > 0.f ? key_scale.stored : 0.f);
        }
      }
    }
  }

  __device__ __forceinline__ void store(uint8_t* global) const {
    const uint4* from = reinterpret_cast<const uint4*>(shared + kRecord);
    for (int i = lane; i < Layout::kBytes / 16; i += 32) reinterpret_cast<uint4*>(global)[i] = from[i];
  }

  // Builds this warp's share of one request's pages: batches first, first + step, ... of kPages items.
  __device__ __forceinline__ void build(const PageSummaryArgs& args, int request, BuildRange range, int64_t first, int64_t step,
                                        bool aligned) const {
    const int64_t batches = (range.items + kPages - 1) / kPages;
    if (first >= batches) return;
    const int own = lane % kPages;
    BuildItem next = build_item(args, request, range, static_cast<int>(first * kPages) + own);
    for (int tile = 0; tile < kTiles; tile++) fetch(args.cache, next, tile, aligned);
    ptx::commit_copies();
    for (int64_t batch = first; batch < batches; batch += step) {
      const BuildItem item = next;
      const bool more = batch + step < batches;
      if (more) next = build_item(args, request, range, static_cast<int>((batch + step) * kPages) + own);
      ptx::wait_copies<0>();
      __syncwarp();
#pragma unroll 1
      for (int tile = 0; tile < kTiles; tile++) form_gram(args.cache, tile);
      __syncwarp();
      eigenvectors();
      __syncwarp();
#pragma unroll 1
      for (int page = 0; page < kPages; page++) {
        basis(page);
        coefficients(page);
        __syncwarp();
        const int64_t offset = __shfl_sync(~0u, item.record, page);
        if (__shfl_sync(~0u, static_cast<int>(item.valid), page)) store(args.summaries + offset);
        __syncwarp();
        if (more && page % kTilePages == kTilePages - 1) fetch(args.cache, next, page / kTilePages, aligned);
      }
      ptx::commit_copies();
    }
  }
};

// Grid: x shares the pages of one request, y the requests. Any grid is right.
template <int HEAD_DIM, int PAGE, int RANK, int BITS, class T, int kNumWarps, int kSharedBytes>
__device__ __forceinline__ void page_summary_warp(const PageSummaryArgs& args) {
  using Build = WarpBuild<HEAD_DIM, PAGE, RANK, BITS, T>;
  static_assert(kNumWarps * Build::kWarpBytes == kSharedBytes, "the launch geometry gives each warp exactly what it lays out");
  extern __shared__ __align__(128) uint8_t shared[];
  const int warp = threadIdx.x / 32;
  const Build build{shared + warp * Build::kWarpBytes, static_cast<int>(threadIdx.x % 32)};
  // Padding between a record's sections is zero and nothing writes it later.
  for (int i = build.lane; i < Build::Layout::kBytes / 4; i += 32) reinterpret_cast<uint32_t*>(build.shared + Build::kRecord)[i] = 0;
  __syncwarp();
  const bool aligned = keys_aligned<T>(args.cache);
  for (int request = blockIdx.y; request < args.cache.batch; request += gridDim.y) {
    build.build(args, request, build_range<PAGE>(args, request), static_cast<int64_t>(blockIdx.x) * kNumWarps + warp,
                static_cast<int64_t>(gridDim.x) * kNumWarps, aligned);
  }
  finish_build<PAGE>(args);
}

}  // namespace kvloom
