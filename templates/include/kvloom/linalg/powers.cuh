// One or two leading eigenvectors of a symmetric positive semidefinite N x N matrix in shared memory, by a whole block: the matrix over its
// trace is squared three times, the column of the power with the largest diagonal is multiplied by it three times more and by the
// matrix twice, and what is found is taken out before the next. Vectors hold nearly all of the leading energy and are not the
// eigenvectors one by one where several are alike. Far fewer instructions than a direct method (linalg/tridiagonal.cuh) takes.
#pragma once

#include "kvloom/linalg/tridiagonal.cuh"
#include "kvloom/mma/m16n8k8_tf32.cuh"

namespace kvloom {

template <int N, int RANK, int THREADS>
struct Powers {
  static_assert(N % 32 == 0 && N <= 64 && THREADS % N == 0 && N % (THREADS / N) == 0, "one thread or more a row, whole warps");
  static_assert(RANK <= 2, "each vector costs three products of the matrix with itself");
  static constexpr int kStride = N + 4;        // floats a row, as Tridiagonal's
  static constexpr int kVectorStride = N + 1;
  static constexpr int kPer = THREADS / N, kColumns = N / kPer;  // threads a row, columns a thread
  static_assert(kColumns % 4 == 0, "whole words of four");
  static constexpr int kSquarings = 3, kTimesPower = 3, kTimesMatrix = 2;

  float* power;    // [N][kStride]
  float* vectors;  // [RANK][kVectorStride], of length 1 or 0
  float* values;   // [16] x^T G x, descending but for rounding
  float* x;        // [N]
  float* parts;    // [kPer][N]
  static constexpr int kFloats = RANK * kVectorStride + 16 + N + THREADS;

  // `power` is 16-byte aligned, as `shared` is.
  __device__ __forceinline__ Powers(float* shared, float* power)
      : power(power), vectors(shared + THREADS + N), values(vectors + RANK * kVectorStride), x(shared), parts(shared + N) {}

  static __device__ __forceinline__ int row() { return threadIdx.x % N; }
  static __device__ __forceinline__ int column() { return threadIdx.x / N * kColumns; }

  // to = (scale * from)^2, by tensor cores: 11 bits of each factor do for a power, for vectors are made better by the matrix itself. The
  // matrix is symmetric, so its rows serve as columns.
  __device__ __forceinline__ void square(const float* from, float* to, float scale) const {
    constexpr int kWarps = THREADS / 32, kJobs = N / 8, kMine = (kJobs + kWarps - 1) / kWarps, kTiles = N / 16;  // jobs of 16 rows, half of the columns
    const int warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, p = threadIdx.x % 4;
    float sum[kMine][kTiles][4] = {};
#pragma unroll
    for (int m = 0; m < kMine; m++) {
      const int job = warp + m * kWarps;
      if (job >= kJobs) continue;
      const float* rows = from + (job / 2 * 16 + g) * kStride + p;
      const float* columns = from + (job % 2 * (N / 2) + g) * kStride + p;
#pragma unroll 2
      for (int k = 0; k < N; k += 8) {
        const float a0 = rows[k], a1 = rows[8 * kStride + k], a2 = rows[k + 4], a3 = rows[8 * kStride + k + 4];
#pragma unroll
        for (int n = 0; n < kTiles; n++)
          mma_row_sums_tf32(sum[m][n], a0, a1, a2, a3, columns[8 * n * kStride + k], columns[8 * n * kStride + k + 4]);
      }
    }
    __syncthreads();
#pragma unroll
    for (int m = 0; m < kMine; m++) {
      const int job = warp + m * kWarps;
      if (job >= kJobs) continue;
#pragma unroll
      for (int n = 0; n < kTiles; n++) {
        float* at = to + (job / 2 * 16 + g) * kStride + job % 2 * (N / 2) + 8 * n + 2 * p;
        *reinterpret_cast<float2*>(at) = make_float2(sum[m][n][0] * scale * scale, sum[m][n][1] * scale * scale);
        *reinterpret_cast<float2*>(at + 8 * kStride) = make_float2(sum[m][n][2] * scale * scale, sum[m][n][3] * scale * scale);
      }
    }
    __syncthreads();
  }

  // Sum over a vector's elements, of which a lane gives those at lane, lane + 32, ...: the same in every warp.
  template <class F>
  static __device__ __forceinline__ float over(F of) {
    float sum = 0.f;
#pragma unroll
    for (int i = 0; i < N; i += 32) sum += of(static_cast<int>(i + threadIdx.x % 32));
    return warp_sum(sum);
  }

  // x = m x, brought to length 1, without its part along the vectors before. Returns x^T m x of the x before.
  __device__ __forceinline__ float multiply(const float* m, int before) const {
    float sum = 0.f;
#pragma unroll
    for (int c = 0; c < kColumns; c += 4) {
      const float4 a = *reinterpret_cast<const float4*>(m + row() * kStride + column() + c), b = *reinterpret_cast<const float4*>(x + column() + c);
      sum = fmaf(a.x, b.x, fmaf(a.y, b.y, fmaf(a.z, b.z, fmaf(a.w, b.w, sum))));
    }
    parts[threadIdx.x / N * N + row()] = sum;
    __syncthreads();
    const auto product = [&](int i) {
      float y = 0.f;
#pragma unroll
      for (int p = 0; p < kPer; p++) y += parts[p * N + i];
      return y;
    };
    const float value = over([&](int i) { return product(i) * x[i]; });
    const float along = before > 0 ? over([&](int i) { return product(i) * vectors[i]; }) : 0.f;
    const auto rest = [&](int i) { return before > 0 ? fmaf(-along, vectors[i], product(i)) : product(i); };
    const float length = over([&](int i) { return rest(i) * rest(i); });
    const float inverse = length > 0.f ? rsqrtf(length) : 0.f;
    const float mine = threadIdx.x < N ? rest(threadIdx.x) * inverse : 0.f;
    __syncthreads();
    if (threadIdx.x < N) x[threadIdx.x] = mine;
    __syncthreads();
    return value;
  }

  // Takes the matrix apart.
  __device__ __forceinline__ void run(float* matrix) const {
    float all = 0.f;
#pragma unroll 1
    for (int j = 0; j < RANK; j++) {
      const float trace = over([&](int i) { return matrix[i * kStride + i]; });
      if (j == 0) all = trace;
      // What is left of a matrix of lower rank is rounding.
      square(matrix, power, trace > 1e-7f * all ? 1.f / trace : 0.f);
#pragma unroll 1
      for (int n = 1; n < kSquarings; n++) square(power, power, 1.f);
      float top = -1.f;
      int best = 0;
#pragma unroll
      for (int i = 0; i < N; i += 32) {
        const int at = i + threadIdx.x % 32;
        const float d = power[at * kStride + at];
        if (d > top) top = d, best = at;
      }
#pragma unroll
      for (int mask = 16; mask > 0; mask >>= 1) {
        const float other = __shfl_xor_sync(~0u, top, mask);
        const int at = __shfl_xor_sync(~0u, best, mask);
        if (other > top || other == top && at < best) top = other, best = at;
      }
      const float scale = top > 0.f ? 1.f / top : 0.f;
      if (threadIdx.x < N) x[threadIdx.x] = power[best * kStride + threadIdx.x] * scale;
      __syncthreads();
#pragma unroll 1
      for (int n = 0; n < kTimesPower; n++) multiply(power, j);
      float value = 0.f;
#pragma unroll 1
      for (int n = 0; n < kTimesMatrix; n++) value = multiply(matrix, j);
      if (threadIdx.x < N) vectors[j * kVectorStride + threadIdx.x] = x[threadIdx.x];
      if (threadIdx.x == 0) values[j] = value;
      if (j + 1 < RANK) {
        const float own = value * x[row()];
#pragma unroll
        for (int c = 0; c < kColumns; c++) matrix[row() * kStride + column() + c] -= own * x[column() + c];
      }
      __syncthreads();
    }
  }
};

}  // namespace kvloom
