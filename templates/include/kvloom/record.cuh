// The layout "record" of one page summary, a mirror of specs.NewRecord (specs/record.go), which explains the sections and codes.
// page_summary writes it and page_score reads it; a test of gen/plan compares every offset with the Go side.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// One record belongs to one (physical block, kv head). All figures are bytes unless they say codes; offsets are multiples of 4
// and the size a multiple of 16.
template <int HEAD_DIM, int PAGE, int RANK, int BITS>
struct Record {
  static_assert(HEAD_DIM % 4 == 0, "a row of V is stored in four quarters");
  static_assert(BITS == 2 || BITS == 4 || BITS == 8 || BITS == 16, "basis codes are 2, 4, 8 or 16 bits");
  static_assert(RANK >= 1 && RANK <= 16, "rank is 1 to 16");

  static constexpr int round_up(int n, int to) { return (n + to - 1) / to * to; }
  static constexpr int rank_pad() {
    int n = 1;
    while (n < RANK) n *= 2;
    return n;
  }

  static constexpr int kQuarterDims = HEAD_DIM / 4;                               // codes of one quarter of a row of V
  static constexpr int kQuarterBytes = round_up((kQuarterDims * BITS + 7) / 8, 4);  // one quarter, padded with zero bytes
  static constexpr int kRowBytes = 4 * kQuarterBytes;                             // one row of V
  static constexpr int kRankPad = rank_pad();                                     // codes of one token row of C
  static constexpr bool kHasColumnScales = BITS != 16;

  static constexpr int kV = 0;                                                    // [RANK][4][kQuarterBytes]
  static constexpr int kMu = kV + RANK * kRowBytes;                               // int8 [HEAD_DIM]
  static constexpr int kC = kMu + HEAD_DIM;                                       // int8 [PAGE][kRankPad]
  static constexpr int kTokenScales = round_up(kC + PAGE * kRankPad, 4);          // bf16 [PAGE]
  static constexpr int kColumnScales = round_up(kTokenScales + 2 * PAGE, 4);      // bf16 [RANK], none at 16 bits
  static constexpr int kMuScale = kHasColumnScales ? round_up(kColumnScales + 2 * RANK, 4) : kColumnScales;  // bf16
  static constexpr int kBytes = round_up(kMuScale + 2, 16);
};

}  // namespace kvloom
