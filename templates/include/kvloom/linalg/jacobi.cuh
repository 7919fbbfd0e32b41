// One-sided Jacobi (Hestenes) for small symmetric positive semidefinite matrices, two columns a lane in registers.
//
// Rotations from the right make the columns of G orthogonal: G W = [lambda_j w_j]. So a column's length is an eigenvalue and its
// direction the eigenvector: W itself is never formed, and dot products stay inside a lane.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// N x N matrices, one for each group of N / 2 consecutive lanes, of which the RANK leading eigenvectors are wanted. kFine: nearer to
// eigenvectors, which codes of 8 and 16 bits show.
template <int N, int RANK, bool kFine>
struct Jacobi {
  static_assert(RANK >= 1 && RANK < N, "a centred page of n tokens has n - 1 directions");
  static_assert(N == 4 || N == 8 || N == 16, "two columns a lane must fit registers, and groups of lanes a warp");
  static constexpr int kLanes = N / 2;
  static constexpr int kMaxSweeps = 9;

  // Pairs whose cosine stayed below 0.2 in a whole sweep are nearly orthogonal after it. On 22 pages each of several kinds (N 16, ranks 4
  // and 8, emulated on a CPU) the bf16 basis then lost at most 6e-6 of the exact energy. A cap of 4 sweeps lost 1.3e-3 on real pages.
  static constexpr float kCosine2 = kFine ? 1e-4f : 4e-2f;
  // Columns shorter than this times the trace hold too little energy for their angles to matter; large ones turn by next to
  // nothing against them.
  static constexpr float kFloor = 1e-4f;

  // A column is scale times x. Rotations leave their cosine to scale, which halves the multiplications (fast Givens).
  struct Column {
    float x[N];
    float scale, square;  // square: its squared length, carried along and renewed every sweep
  };

  static __device__ __forceinline__ float dot(const float (&x)[N], const float (&y)[N]) {
    float even = 0.f, odd = 0.f;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      even = fmaf(x[i], y[i], even);
      odd = fmaf(x[i + 1], y[i + 1], odd);
    }
    return even + odd;
  }

  // Multiplies the scale into x.
  static __device__ __forceinline__ void renew(Column& a) {
#pragma unroll
    for (int i = 0; i < N; i++) a.x[i] *= a.scale;
    a.scale = 1.f;
    a.square = dot(a.x, a.x);
  }

  // The places of the lane's two columns among the matrix's, longest first; equal ones by lane.
  static __device__ __forceinline__ void rank(const Column& a, const Column& b, int lane, int& place_a, int& place_b) {
    place_a = b.square > a.square;
    place_b = 1 - place_a;
#pragma unroll
    for (int m = 1; m < kLanes; m++) {
      const float other_a = __shfl_xor_sync(~0u, a.square, m), other_b = __shfl_xor_sync(~0u, b.square, m);
      const bool lower = (lane ^ m) < lane;
      place_a += (lower ? other_a >= a.square : other_a > a.square) + (lower ? other_b >= a.square : other_b > a.square);
      place_b += (lower ? other_a >= b.square : other_a > b.square) + (lower ? other_b >= b.square : other_b > b.square);
    }
  }

  // What must be orthogonal: pairs with a column among the RANK longest, both long enough to matter.
  struct Relevant {
    float shorter, longer;  // squared lengths
  };

  static __device__ __forceinline__ Relevant relevant(const Column& a, const Column& b, int lane, float trace) {
    int place_a, place_b;
    rank(a, b, lane, place_a, place_b);
    float last = place_a == RANK - 1 ? a.square : place_b == RANK - 1 ? b.square : 0.f;
#pragma unroll
    for (int mask = 1; mask < kLanes; mask *= 2) last = fmaxf(last, __shfl_xor_sync(~0u, last, mask));
    return {kFloor * trace * (kFloor * trace), 0.8f * last};  // those just behind may still overtake
  }

  // Makes a and b orthogonal. Returns whether they were far from it and are relevant.
  static __device__ __forceinline__ bool rotate(Column& a, Column& b, Relevant r) {
    const float ab = a.scale * b.scale * dot(a.x, b.x);
    const float difference = b.square - a.square, twice = 2.f * ab;
    const float sum = fmaf(difference, difference, twice * twice);
    const float t = __fdividef(copysignf(1.f, difference) * twice, fabsf(difference) + sum * rsqrtf(sum + 1e-37f) + 1e-37f);
    const bool far = fminf(a.square, b.square) > r.shorter && fmaxf(a.square, b.square) > r.longer && ab * ab > kCosine2 * a.square * b.square;
    const float c = rsqrtf(fmaf(t, t, 1.f));
    const float from_b = t * __fdividef(b.scale, a.scale), from_a = t * __fdividef(a.scale, b.scale);
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float x = a.x[i];
      a.x[i] = fmaf(-from_b, b.x[i], x);
      b.x[i] = fmaf(from_a, x, b.x[i]);
    }
    a.scale *= c;
    b.scale *= c;
    a.square = fmaf(-t, ab, a.square);
    b.square = fmaf(t, ab, b.square);
    return far;
  }

  // Rotates all pairs of one column from a and one from b within segments of M lanes, then splits each segment into the a's and
  // the b's and does the same inside: N - 1 rounds that meet every pair once, one column moved a round.
  template <int M>
  static __device__ __forceinline__ bool level(Column& a, Column& b, int lane, Relevant r) {
    bool far = false;
#pragma unroll 1
    for (int k = 0; k < M; k++) {
      far |= rotate(a, b, r);
      if (k + 1 < M) {
        const int mask = (k + 1) & -(k + 1);  // Gray code: after round k every b has met another a
#pragma unroll
        for (int i = 0; i < N; i++) b.x[i] = __shfl_xor_sync(~0u, b.x[i], mask);
        b.scale = __shfl_xor_sync(~0u, b.scale, mask);
        b.square = __shfl_xor_sync(~0u, b.square, mask);
      }
    }
    if constexpr (M > 1) {
      const bool upper = lane & (M / 2);
#pragma unroll
      for (int i = 0; i < N; i++) trade(a.x[i], b.x[i], upper, M / 2);
      trade(a.scale, b.scale, upper, M / 2);
      trade(a.square, b.square, upper, M / 2);
      far |= level<M / 2>(a, b, lane, r);
    }
    return far;
  }

  // Lower lanes give b for the partner's a, upper lanes a for the partner's b.
  static __device__ __forceinline__ void trade(float& a, float& b, bool upper, int mask) {
    const float got = __shfl_xor_sync(~0u, upper ? a : b, mask);
    if (upper) a = got;
    else b = got;
  }

  // Orthogonalises the columns of the warp's matrices. trace is that of the lane's own matrix. The whole warp takes part. Leaves
  // the columns with scale 1.
  static __device__ __forceinline__ void run(Column& a, Column& b, int lane, float trace) {
    a.scale = b.scale = 1.f;
    renew(a);
    renew(b);
#pragma unroll 1
    for (int sweep = 0; sweep < kMaxSweeps; sweep++) {
      const bool far = level<kLanes>(a, b, lane, relevant(a, b, lane, trace));
      renew(a);
      renew(b);
      if (!__any_sync(~0u, far)) break;
    }
  }
};

}  // namespace kvloom
