// The leading eigenvectors of one symmetric positive semidefinite N x N matrix in shared memory, by a whole block: Householder to
// tridiagonal form, multisection by Sturm counts, inverse iteration with orthogonalisation after each solve, back-transformation.
// A direct method: its time does not depend on the spectrum, and equal eigenvalues do no harm.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom {

__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
  for (int mask = 16; mask > 0; mask >>= 1) x = fmaxf(x, __shfl_xor_sync(~0u, x, mask));
  return x;
}

template <int N, int RANK, int THREADS>
struct Tridiagonal {
  static_assert(N % 32 == 0 && THREADS % N == 0 && THREADS / N <= 32, "one to 32 threads a row, whole warps");
  static_assert(RANK <= 16 && RANK < N, "a lane or more an eigenvalue");
  static constexpr int kStride = N + 4;           // floats a row: rows stay 16-byte aligned, and 8 rows' words fall on all banks
  static constexpr int kVectorStride = N + 1;     // odd: lanes with one vector each hit different banks
  static constexpr int kWarps = THREADS / 32;
  static constexpr int kThreadsPerRow = THREADS / N;
  static constexpr int kSolves = 3;

  // Floats in shared memory beside the matrix.
  float* diagonal;       // [N]
  float* off;            // [N], off[i] couples i and i + 1
  float* reflector;      // [N]
  float* product;        // [N]
  float* vectors;        // [RANK][kVectorStride]
  float* multipliers;    // [RANK][kVectorStride]
  float* pivots;         // [RANK][kVectorStride], reciprocals
  float* values;         // [16] eigenvalues, descending
  static constexpr int kFloats = 4 * N + 3 * RANK * kVectorStride + 16;

  __device__ __forceinline__ explicit Tridiagonal(float* shared)
      : diagonal(shared), off(shared + N), reflector(shared + 2 * N), product(shared + 3 * N), vectors(shared + 4 * N),
        multipliers(vectors + RANK * kVectorStride), pivots(multipliers + RANK * kVectorStride),
        values(pivots + RANK * kVectorStride) {}

  // Reduces matrix [N][kStride]; row k keeps reflector k right of its diagonal, H = I - v v^T.
  __device__ __forceinline__ void reduce(float* matrix) {
    const int tid = threadIdx.x, lane = tid % 32, row = tid / kThreadsPerRow, part = tid % kThreadsPerRow;
#pragma unroll 1
    for (int k = 0; k < N - 2; k++) {
      // Every warp finds the reflector by itself, which saves barriers.
      const float* mine = matrix + k * kStride;
      float rest = 0.f;
#pragma unroll
      for (int m = 0; m < N / 32; m++) {
        const int i = lane + 32 * m;
        const float x = i > k + 1 ? mine[i] : 0.f;
        rest = fmaf(x, x, rest);
      }
      rest = warp_sum(rest);
      const float first = mine[k + 1];
      const bool reflect = rest > 1e-36f;
      const float alpha = reflect ? -copysignf(sqrtf(fmaf(first, first, rest)), first) : first;
      const float v0 = first - alpha;
      const float norm = reflect ? sqrtf(2.f / fmaf(v0, v0, rest)) : 0.f;
      if (tid == 0) {
        diagonal[k] = mine[k];
        off[k] = alpha;
      }
      if (tid < N) reflector[tid] = tid <= k ? 0.f : (tid == k + 1 ? v0 : mine[tid]) * norm;
      __syncthreads();

      float* own = matrix + row * kStride;
      float sum = 0.f;
      if (row > k) {
#pragma unroll 4
        for (int j = (k + 1) / 4 + part; j < N / 4; j += kThreadsPerRow) {
          const float4 a = reinterpret_cast<const float4*>(own)[j], v = reinterpret_cast<const float4*>(reflector)[j];
          sum = fmaf(a.x, v.x, fmaf(a.y, v.y, fmaf(a.z, v.z, fmaf(a.w, v.w, sum))));
        }
      }
#pragma unroll
      for (int mask = kThreadsPerRow / 2; mask > 0; mask >>= 1) sum += __shfl_xor_sync(~0u, sum, mask);
      if (part == 0) product[row] = sum;  // 0 for rows up to k
      __syncthreads();

      float half = 0.f;
#pragma unroll
      for (int m = 0; m < N / 32; m++) half = fmaf(reflector[lane + 32 * m], product[lane + 32 * m], half);
      half = warp_sum(half);  // v.p; K = v.p / 2, so the row's second factor is p - 2 K v
      if (row > k) {
        const float c1 = reflector[row], c2 = fmaf(-half, c1, product[row]);
#pragma unroll 4
        for (int j = (k + 1) / 4 + part; j < N / 4; j += kThreadsPerRow) {
          float4 a = reinterpret_cast<const float4*>(own)[j];
          const float4 v = reinterpret_cast<const float4*>(reflector)[j], p = reinterpret_cast<const float4*>(product)[j];
          a.x -= fmaf(c1, p.x, c2 * v.x);
          a.y -= fmaf(c1, p.y, c2 * v.y);
          a.z -= fmaf(c1, p.z, c2 * v.z);
          a.w -= fmaf(c1, p.w, c2 * v.w);
          reinterpret_cast<float4*>(own)[j] = a;
        }
      }
      if (tid > k && tid < N) matrix[k * kStride + tid] = reflector[tid];
      __syncthreads();
    }
    if (tid == 0) {
      diagonal[N - 2] = matrix[(N - 2) * kStride + N - 2];
      diagonal[N - 1] = matrix[(N - 1) * kStride + N - 1];
      off[N - 2] = matrix[(N - 2) * kStride + N - 1];
      off[N - 1] = 0.f;
    }
    __syncthreads();
  }

  // Scales the tridiagonal matrix to eigenvalues in [0, 1]; returns the scale that was taken out, 0 for a zero matrix.
  __device__ __forceinline__ float normalise() {
    const int tid = threadIdx.x, lane = tid % 32;
    float top = 0.f;
#pragma unroll
    for (int m = 0; m < N / 32; m++) {
      const int i = lane + 32 * m;
      top = fmaxf(top, diagonal[i] + fabsf(off[i]) + (i > 0 ? fabsf(off[i - 1]) : 0.f));
    }
    top = warp_max(top) * 1.0001f;
    const float inverse = top > 1e-30f ? 1.f / top : 0.f;
    __syncthreads();
    if (tid < N) {
      diagonal[tid] *= inverse;
      off[tid] *= inverse;
      const float e = fmaxf(fabsf(off[tid]), 1e-10f);  // never exactly split: the recurrence below must not reach 0, 0
      product[tid] = e * e;
    }
    __syncthreads();
    return inverse > 0.f ? top : 0.f;
  }

  // How many eigenvalues exceed x: sign agreements of the leading minors' recurrence, without divisions. product holds off^2.
  __device__ __forceinline__ int count(float x) const {
    float before = 1.f, now = diagonal[0] - x;
    int below = now < 0.f;
#pragma unroll 4
    for (int i = 1; i < N; i++) {
      const float next = fmaf(diagonal[i] - x, now, -(product[i - 1] * before));
      below += (next < 0.f) != (now < 0.f);
      before = now;
      now = next;
      if (i % 2 == 0) {
        const float f = fmaxf(fabsf(before), fabsf(now)) < 1e-10f ? 1e20f : 1.f;
        before *= f;
        now *= f;
      }
    }
    return N - below;
  }

  // Brackets the RANK largest eigenvalues, kLanes samples a round, to about 2^-25; writes midpoints to values.
  __device__ __forceinline__ void bisect() {
    constexpr int kPad = RANK <= 1 ? 1 : RANK <= 2 ? 2 : RANK <= 4 ? 4 : RANK <= 8 ? 8 : 16;
    constexpr int kLanes = THREADS / kPad < 32 ? THREADS / kPad : 32;
    constexpr int kRounds = kLanes >= 32 ? 5 : kLanes >= 16 ? 6 : kLanes >= 8 ? 8 : kLanes >= 4 ? 11 : 16;
    static_assert(kLanes >= 2, "two samples an eigenvalue");
    const int tid = threadIdx.x, which = min(tid / kLanes, RANK - 1), sample = tid % kLanes, lane = tid % 32;
    const uint32_t segment = (kLanes == 32 ? ~0u : (1u << kLanes) - 1u) << (lane / kLanes * kLanes);
    float low = 0.f, width = 1.f;
#pragma unroll 1
    for (int round = 0; round < kRounds; round++) {
      width *= 1.f / (kLanes + 1);
      const bool above = count(fmaf(width, static_cast<float>(sample + 1), low)) > which;
      low = fmaf(width, static_cast<float>(__popc(__ballot_sync(~0u, above) & segment)), low);
    }
    if (tid % kLanes == 0 && tid / kLanes < RANK) values[which] = fmaf(0.5f, width, low);
    __syncthreads();
  }

  // Makes the vectors orthonormal in order. Vanished ones become zero.
  __device__ __forceinline__ void orthonormalise() {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int j = 0; j < RANK; j++) {
      float* base = vectors + j * kVectorStride;
      if (j % kWarps == warp) {
        // The second pass removes what rounding left of the vectors before: clusters come out of a solve nearly parallel.
        float top = 0.f;
#pragma unroll
        for (int m = 0; m < N / 32; m++) top = fmaxf(top, fabsf(base[lane + 32 * m]));
        top = warp_max(top);
        const float shrink = top > 0.f && top < 3e38f ? 1.f / top : 0.f;
        float norm = 0.f;
#pragma unroll
        for (int m = 0; m < N / 32; m++) {
          base[lane + 32 * m] *= shrink;
          norm = fmaf(base[lane + 32 * m], base[lane + 32 * m], norm);
        }
        norm = warp_sum(norm);
        const float inverse = norm > 0.f ? rsqrtf(norm) : 0.f;
#pragma unroll
        for (int m = 0; m < N / 32; m++) base[lane + 32 * m] *= inverse;
      }
      __syncthreads();
#pragma unroll 1
      for (int i = j + 1; i < RANK; i++) {
        if (i % kWarps != warp) continue;
        float* other = vectors + i * kVectorStride;
        float dot = 0.f;
#pragma unroll
        for (int m = 0; m < N / 32; m++) dot = fmaf(base[lane + 32 * m], other[lane + 32 * m], dot);
        dot = warp_sum(dot);
#pragma unroll
        for (int m = 0; m < N / 32; m++) other[lane + 32 * m] = fmaf(-dot, base[lane + 32 * m], other[lane + 32 * m]);
      }
    }
    __syncthreads();
  }

  // Eigenvectors of the tridiagonal matrix by inverse iteration, one lane a vector, from fixed pseudo-random starts.
  __device__ __forceinline__ void solve() {
    const int tid = threadIdx.x;
    const bool active = tid < RANK;
    float* x = vectors + (active ? tid : 0) * kVectorStride;
    float* lf = multipliers + (active ? tid : 0) * kVectorStride;
    float* rq = pivots + (active ? tid : 0) * kVectorStride;
    if (active) {
      const float lambda = values[tid];
      float carried = 0.f;
#pragma unroll 1
      for (int i = 0; i < N; i++) {
        float q = diagonal[i] - lambda - carried;
        q += copysignf(1e-7f, q);
        rq[i] = __fdividef(1.f, q);
        lf[i] = off[i] * rq[i];
        carried = off[i] * lf[i];
        uint32_t u = static_cast<uint32_t>(tid * N + i) * 0x9E3779B1u + 0x7F4A7C15u;
        u ^= u >> 15, u *= 0x2C1B3C6Du, u ^= u >> 12, u *= 0x297A2D39u, u ^= u >> 15;
        x[i] = static_cast<float>(static_cast<int>(u >> 8) - (1 << 23)) * (1.f / (1 << 23));
      }
    }
    __syncthreads();
#pragma unroll 1
    for (int s = 0; s < kSolves; s++) {
      if (active) {
        float y = 0.f;
#pragma unroll 4
        for (int i = 0; i < N; i++) {
          y = fmaf(i > 0 ? -lf[i - 1] : 0.f, y, x[i]);
          x[i] = y;
        }
        y = 0.f;
#pragma unroll 4
        for (int i = N - 1; i >= 0; i--) {
          y = fmaf(-lf[i], y, x[i] * rq[i]);
          x[i] = y;
        }
      }
      __syncthreads();
      orthonormalise();
    }
  }

  // Rayleigh quotients times scale into values, then the reflectors of reduce in reverse: vectors of the matrix itself.
  __device__ __forceinline__ void back(const float* matrix, float scale) {
    const int lane = threadIdx.x % 32, warp = threadIdx.x / 32;
#pragma unroll 1
    for (int j = warp; j < RANK; j += kWarps) {
      float* base = vectors + j * kVectorStride;
      float x[N / 32], quotient = 0.f;
#pragma unroll
      for (int m = 0; m < N / 32; m++) {
        const int i = lane + 32 * m;
        x[m] = base[i];
        const float next = i + 1 < N ? base[i + 1] : 0.f;
        quotient = fmaf(x[m], fmaf(diagonal[i], x[m], 2.f * off[i] * next), quotient);
      }
      quotient = warp_sum(quotient);
      __syncwarp();  // all have read their neighbour's element before any is overwritten below
      if (lane == 0) values[j] = quotient * scale;
#pragma unroll 1
      for (int k = N - 3; k >= 0; k--) {
        const float* v = matrix + k * kStride;
        float h[N / 32], dot = 0.f;
#pragma unroll
        for (int m = 0; m < N / 32; m++) {
          const int i = lane + 32 * m;
          h[m] = i > k ? v[i] : 0.f;
          dot = fmaf(h[m], x[m], dot);
        }
        dot = warp_sum(dot);
#pragma unroll
        for (int m = 0; m < N / 32; m++) x[m] = fmaf(-dot, h[m], x[m]);
      }
#pragma unroll
      for (int m = 0; m < N / 32; m++) base[lane + 32 * m] = x[m];
    }
    __syncthreads();
  }

  // Leaves the RANK leading eigenvectors in vectors and their eigenvalues, descending up to rounding, in values. Destroys matrix.
  // The block has synchronised after writing matrix.
  __device__ __forceinline__ void run(float* matrix) {
    reduce(matrix);
    const float scale = normalise();
    bisect();
    solve();
    back(matrix, scale);
  }
};

}  // namespace kvloom
