// KIVI caches: keys quantised per channel over the tokens of a page, values per token over groups of 32 channels, asymmetrically, in 4 or 2
// bits. A record holds one page of one KV head; specs/kivi.go describes it and internal/reference packs it. The page that is still filling
// stays in 16 bits, in blocks of its own (KvCache::row_table).
//
//   scales, zeros of K   [dim] f16: key = zero + scale * code; a scale is stored over factor(pair) (below)
//   for each tile of 16 tokens (of the page's, where it is shorter):
//     codes of K         [half][words of a vector][token % 8][quarter][vector]
//     codes of V         [half][words of a vector][row][token pair][vector]
//     scales, zeros of V [half][token pair][group] pairs of bf16, each padded to 16 bytes: value = zero + scale * (code - kMiddle)
//
// A half is 8 tokens. A word holds codes as mma wants its operands: field i of the low and of the high half-word are a pair. Of K, the
// quarter p of a row has dims 8p to 8p + 7 of every 32, dims 2i and 2i + 1 of those a pair (of the last 16 dims, 4p to 4p + 3). Of V, row g
// has dims 16s + 2g and 16s + 2g + 1 of every step s of 16 dims, one after the other, and two neighbouring tokens are a pair.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// A row of the page that is still filling: bf16, beside records of BITS bits. FEW: page_attend's lists have up to four heads.
template <int BITS, bool FEW>
struct KiviRow {
  uint16_t bits;
};

template <int BITS, bool FEW>
struct Compute<KiviRow<BITS, FEW>> {
  using type = bf16;
};

template <int HEAD_DIM, int PAGE, int BITS>
struct KiviRecord {
  static_assert(BITS == 4 || BITS == 2, "records are built for 4 and 2 bits");
  static_assert(HEAD_DIM % 16 == 0, "head dims are whole k steps");
  static constexpr int kSteps = HEAD_DIM / 16;                      // of 16 dims
  static constexpr int kGroups = (HEAD_DIM + 31) / 32;              // of 32 dims, the last perhaps of 16
  static constexpr int kFields = 16 / BITS;                         // codes of a half-word
  static constexpr int kChunks = kFields / 4;                       // groups that a word covers
  static constexpr int kWords = (kGroups + kChunks - 1) / kChunks;  // of a lane and half
  static constexpr int kVector = kWords % 4 == 0 ? 4 : kWords % 2 == 0 ? 2 : 1;
  static constexpr int kMiddle = 1 << (BITS - 1);
  static constexpr uint32_t kMask = ((1 << BITS) - 1) * 0x10001u;
  static constexpr int kTop = (1 << BITS) - 1;

  static constexpr int kTokens = PAGE < 16 ? PAGE : 16;  // of a tile
  static constexpr int kHalves = kTokens > 8 ? 2 : 1;
  static constexpr int kRows = kTokens < 8 ? kTokens : 8;  // tokens of a half
  static constexpr int kPairs = kRows / 2;
  static constexpr int kTiles = PAGE / kTokens;

  static constexpr int kKeyZeros = 2 * HEAD_DIM, kHead = 4 * HEAD_DIM;
  static constexpr int kKeyHalf = kRows * 16 * kWords, kValueHalf = 8 * kPairs * 4 * kWords;  // bytes of a half's codes
  static constexpr int kParamHalf = kPairs * kGroups * 4;
  static constexpr int kParams = (kHalves * kParamHalf + 15) / 16 * 16;
  static constexpr int kValues = kHalves * kKeyHalf;  // offsets in a tile
  static constexpr int kValueScales = kValues + kHalves * kValueHalf;
  static constexpr int kValueZeros = kValueScales + kParams;
  static constexpr int kTile = kValueZeros + kParams;
  static constexpr int kBytes = kHead + kTiles * kTile;

  // Where word w of token row `row` and quarter, and of row g and token pair, lie in their half.
  __host__ __device__ static constexpr int key_word(int w, int row, int quarter) {
    return (w / kVector * kRows * 4 + row * 4 + quarter) * 4 * kVector + w % kVector * 4;
  }
  __host__ __device__ static constexpr int value_word(int w, int row, int pair) {
    return (w / kVector * 8 * kPairs + row * kPairs + pair) * 4 * kVector + w % kVector * 4;
  }

  // The place of a field in its half-word: fields are read as f16 subnormals by a mask alone, two positions of four bits or four of two before a
  // shift by eight. factor is what a field's position multiplies its code by.
  __host__ __device__ static constexpr int factor(int field) { return 1 << (field % (8 / BITS) * BITS); }

  // Field of a word that holds pair i (0 to 3) of group c.
  __host__ __device__ static constexpr int field(int group, int pair) { return group % kChunks * 4 + pair; }
};

}  // namespace kvloom
