// One-sided Jacobi (Hestenes) for small symmetric positive semidefinite matrices, two columns a lane in registers.
//
// Rotations from the right make the columns of G orthogonal: G W = [lambda_j w_j]. So a column's length is an eigenvalue and its
// direction the eigenvector: W itself is never formed, and dot products stay inside a lane.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

// N x N matrices, one for each group of N / 2 consecutive lanes.
template <int N>
struct Jacobi {
  static_assert(N == 4 || N == 8 || N == 16, "two columns a lane must fit registers, and groups of lanes a warp");
  static constexpr int kLanes = N / 2;
  static constexpr int kMaxSweeps = 9;

  // Pairs whose cosine was below this in a whole sweep are orthogonal to about its square after it: 1e-4, an energy error of 1e-8.
  static constexpr float kCosine2 = 1e-4f;
  // Columns shorter than this times the trace become zero columns of the basis (see kRankTolerance): their angles do not matter.
  static constexpr float kFloor = 4e-6f;

  static __device__ __forceinline__ float dot(const float (&x)[N], const float (&y)[N]) {
    float even = 0.f, odd = 0.f;
#pragma unroll
    for (int i = 0; i < N; i += 2) {
      even = fmaf(x[i], y[i], even);
      odd = fmaf(x[i + 1], y[i + 1], odd);
    }
    return even + odd;
  }

  // Makes a and b orthogonal. Returns whether they were far from it and both matter.
  static __device__ __forceinline__ bool rotate(float (&a)[N], float (&b)[N], float floor2) {
    const float aa = dot(a, a), bb = dot(b, b), ab = dot(a, b);
    const float difference = bb - aa, twice = 2.f * ab;
    const float square = fmaf(difference, difference, twice * twice);
    const float length = square * rsqrtf(square + 1e-37f);
    const float t = __fdividef(copysignf(1.f, difference) * twice, fabsf(difference) + length + 1e-37f);
    const float c = rsqrtf(fmaf(t, t, 1.f)), s = c * t;
#pragma unroll
    for (int i = 0; i < N; i++) {
      const float x = a[i], y = b[i];
      a[i] = fmaf(c, x, -(s * y));
      b[i] = fmaf(s, x, c * y);
    }
    return fminf(aa, bb) > floor2 && ab * ab > kCosine2 * aa * bb;
  }

  // Rotates all pairs of one column from a and one from b within segments of M lanes, then splits each segment into the a's and
  // the b's and does the same inside: N - 1 rounds that meet every pair once, one column moved a round.
  template <int M>
  static __device__ __forceinline__ bool level(float (&a)[N], float (&b)[N], int lane, float floor2) {
    bool far = false;
#pragma unroll 1
    for (int k = 0; k < M; k++) {
      far |= rotate(a, b, floor2);
      if (k + 1 < M) {
        const int mask = (k + 1) & -(k + 1);  // Gray code: after round k every b has met another a
#pragma unroll
        for (int i = 0; i < N; i++) b[i] = __shfl_xor_sync(~0u, b[i], mask);
      }
    }
    if constexpr (M > 1) {
      const bool upper = lane & (M / 2);
#pragma unroll
      for (int i = 0; i < N; i++) {
        const float got = __shfl_xor_sync(~0u, upper ? a[i] : b[i], M / 2);
        if (upper) a[i] = got;
        else b[i] = got;
      }
      far |= level<M / 2>(a, b, lane, floor2);
    }
    return far;
  }

  // Orthogonalises the columns of the warp's matrices. trace is that of the lane's own matrix. The whole warp takes part.
  static __device__ __forceinline__ void run(float (&a)[N], float (&b)[N], int lane, float trace) {
    const float floor2 = kFloor * trace * (kFloor * trace);
#pragma unroll 1
    for (int sweep = 0; sweep < kMaxSweeps; sweep++) {
      if (!__any_sync(~0u, level<kLanes>(a, b, lane, floor2))) break;
    }
  }
};

}  // namespace kvloom
