// The layout "record" of one page summary, a mirror of specs.NewRecord (specs/record.go), which explains the sections and codes.
// page_summary writes it and page_score reads it; a test of gen/plan compares every offset with the Go side.
#pragma once

#include "kvloom/groups.cuh"
#include "kvloom/types.cuh"

namespace kvloom {

// How a record holds C, the centroid and V's scales: specs.RecordForm; and the pages that it serves, whose tokens are those of PAGE below.
template <int COEFFICIENT_BITS, int CENTROID_BITS, bool GROUPED, int PAGES = 1>
struct RecordForm {
  static_assert(COEFFICIENT_BITS == 4 || COEFFICIENT_BITS == 8, "coefficients are 4 or 8 bits");
  static_assert(CENTROID_BITS == 4 || CENTROID_BITS == 8, "centroids are 4 or 8 bits");
  static constexpr int kCoefficientBits = COEFFICIENT_BITS, kCentroidBits = CENTROID_BITS;
  static constexpr bool kPlain = COEFFICIENT_BITS == 8 && CENTROID_BITS == 8 && !GROUPED;
  static constexpr int kPages = PAGES;       // of the cache
  static constexpr bool kGrouped = GROUPED;  // a scale for every kScaleDims dims of a column, else one
};
using PlainForm = RecordForm<8, 8, false>;

constexpr int kScaleDims = 16;  // dims that share a scale where scales are grouped

// One record belongs to one (physical block, kv head). All figures are bytes unless they say codes; offsets are multiples of 4
// and the size a multiple of 16.
template <int HEAD_DIM, int PAGE, int RANK, int BITS, class FORM = PlainForm>
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

  using Form = FORM;
  using Group = Groups<FORM::kPages>;
  static constexpr int kRankOf = RANK;
  static constexpr int kCoefficientBits = FORM::kCoefficientBits, kCentroidBits = FORM::kCentroidBits;
  static constexpr int kScaleGroups = FORM::kGrouped ? HEAD_DIM / kScaleDims : 1; // scales of one column of V
  static constexpr int kMuScales = kCentroidBits == 4 ? HEAD_DIM / kScaleDims : 1;
  // A 4-bit centroid is stored in quarters, as a row of V of 4 bits.
  static constexpr int kMuQuarterBytes = kCentroidBits == 4 ? round_up(kQuarterDims / 2, 4) : kQuarterDims;

  static constexpr int kV = 0;                                                    // [RANK][4][kQuarterBytes]
  static constexpr int kMu = kV + RANK * kRowBytes;                               // [4][kMuQuarterBytes]
  static constexpr int kC = kMu + 4 * kMuQuarterBytes;                            // codes [PAGE][kRankPad]
  static constexpr int kCodeBytes = PAGE * kRankPad * kCoefficientBits / 8;
  static constexpr int kTokenScales = round_up(kC + kCodeBytes, 4);               // bf16 [PAGE]
  static constexpr int kColumnScales = round_up(kTokenScales + 2 * PAGE, 4);      // bf16 [RANK][kScaleGroups], none at 16 bits
  static constexpr int kMuScale = kHasColumnScales ? round_up(kColumnScales + 2 * RANK * kScaleGroups, 4) : kColumnScales;  // bf16 [kMuScales]
  static constexpr int kBytes = round_up(kMuScale + 2 * kMuScales, 16);
};

}  // namespace kvloom
