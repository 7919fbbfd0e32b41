// V and the centroid of a page as its record has them, in shared memory: what page_summary's forms for pages of 16 write there before they
// copy it in 16 bytes.
#pragma once

#include "kernels/page_summary_quick.cuh"

namespace kvloom {

template <int HEAD_DIM, int RANK, int BITS, class FORM>
struct BasisImage {
  using Layout = Record<HEAD_DIM, 16, RANK, BITS, FORM>;
  static constexpr int kTiles = HEAD_DIM / 8;  // of 8 dims

  // Images are rows of 16-byte units, exchanged by row where rows would otherwise meet in the same banks.
  static constexpr int kUnits = Layout::kRowBytes / 16;
  static constexpr int kPadBytes = Layout::kQuarterBytes - Layout::kQuarterDims * BITS / 8;  // behind each quarter of a row
  static constexpr int kExchange = kPadBytes > 0 ? 0 : kUnits % 8 == 0 ? 7 : kUnits % 4 == 0 ? 3 : 0;
  static __device__ __forceinline__ int unit_exchange(int row) { return (kExchange == 7 ? row : row / 2) & kExchange; }

  // Byte of a dim in a row of V.
  static __host__ __device__ constexpr int place(int dim) { return dim * BITS / 8 + dim / Layout::kQuarterDims * kPadBytes; }

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

  // Row j of V into its image, where lanes have kRows: the lane's dims 8 n + 2 p and the next of each tile n.
  template <int kRows>
  static __device__ __forceinline__ void write_row(uint8_t* row, int j, int lane, const float (&acc)[kTiles][4], float inverse) {
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

  // Zeros behind the quarters that are no whole number of words, by the lanes of kRows rows.
  template <int kRows>
  static __device__ __forceinline__ void write_padding(uint8_t* image, int lane) {
    if constexpr (kPadBytes > 0) {
      for (int i = lane % (4 * kRows); i < RANK * 4 * kPadBytes; i += 4 * kRows) {
        image[(i / kPadBytes + 1) * Layout::kQuarterBytes - kPadBytes + i % kPadBytes] = 0;
      }
    }
  }
};

}  // namespace kvloom
