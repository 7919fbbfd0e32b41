// The codes of page_summary_tridiagonal.cuh: from vectors and singular values to V, the centroid and C in the record.
#pragma once

#include "kernels/page_summary_tridiagonal_build.cuh"

namespace kvloom {

template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, bool kWeighted, class FORM>
__device__ __forceinline__ void TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, kWeighted, FORM>::coefficients(
    uint8_t* summaries, float up, int begin, int end) const {
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
    else Image::template store_bytes<kPad>(out + Layout::kC + l * kPad, byte);
  } else {
    Image::template store_bytes<2 * kPad>(out + Layout::kC + l * 2 * kPad, code);
  }
  const float low = first.value > 0.f ? first_key.stored : 0.f, high = second.value > 0.f ? second_key.stored : 0.f;
  reinterpret_cast<uint32_t*>(out + Layout::kTokenScales)[l] = pack_pair(low, high, bf16{});
}

template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, bool kWeighted, class FORM>
__device__ __forceinline__ void TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, kWeighted, FORM>::basis(
    const PageSummaryArgs& args, int step, bool more, bool aligned, uint32_t careful, float up) const {
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
    mu[m] = Image::template own_tile<kRows>(acc, m * kRows, j);
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
  Image::template write_row<kRows>(image + j * Layout::kRowBytes, j, this->lane, acc, BITS == 16 ? over : over * scale.inverse);
  const KeyScale mu_key = quick_key_scale<T>(top_mu, key_scale);
  const Scale mu_scale = mu_key.scale;
#pragma unroll
  for (int m = 0; m < kOwn; m++) {
    const int n = m * kRows + j;
    const uint32_t x = round_bits(mu[m].x, mu_scale.inverse, 0), y = round_bits(mu[m].y, mu_scale.inverse, 0);
    if (kTiles % kRows == 0 || n < kTiles) *reinterpret_cast<uint16_t*>(image + Layout::kMu + 8 * n + 2 * p) = static_cast<uint16_t>(__byte_perm(x, y, 0x0040));
  }
  Image::template write_padding<kRows>(image, this->lane);

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

template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, bool kWeighted, class FORM>
template <int kOwn>
__device__ __forceinline__ void TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, kWeighted, FORM>::write_forms(
    const PageSummaryArgs& args, uint8_t* image, int page, float (&acc)[kTiles][4], float2 (&mu)[kOwn], float s, float top, float top_mu, uint32_t
    careful) const {
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
    Image::template write_row<kRows>(image + j * Layout::kRowBytes, j, this->lane, acc, 1.f);
  } else {
    const Scale scale = quick_scale(top * over, kOverLargest);
    Image::template write_row<kRows>(image + j * Layout::kRowBytes, j, this->lane, acc, BITS == 16 ? over : over * scale.inverse);
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
  Image::template write_padding<kRows>(image, this->lane);
  if (write) pad_scales<Layout>(out, lane % (4 * kRows), 4 * kRows);
}

template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, bool kWeighted, class FORM>
__device__ __forceinline__ void TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, kWeighted, FORM>::careful_bases(
    uint8_t* summaries, uint32_t careful, const float* centre) const {
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

template <int HEAD_DIM, int RANK, int BITS, class T, bool kResidual, bool kWeighted, class FORM>
__device__ __forceinline__ void TridiagonalBuild<HEAD_DIM, RANK, BITS, T, kResidual, kWeighted, FORM>::copy_images(
    uint8_t* summaries, int step, uint32_t careful) const {
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
      if (unit < kImage / 16) to[unit] = from[unit < RANK * Image::kUnits ? unit ^ Image::unit_exchange(unit / Image::kUnits) : unit];
    }
  }
}

}  // namespace kvloom
