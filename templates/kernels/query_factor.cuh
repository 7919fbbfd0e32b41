// query_factor: from the second moments of a prompt's queries to the factors that page_summary takes as weights. A block a KV head: the
// partial sums are added in their order, S/mean(diag S) + kShrinkage I is factored by Cholesky in shared memory, lower triangle alone, and
// L goes out as bf16 in the order of page_summary_weights.cuh. A moment that is zero or not finite says nothing about directions: its
// factor is the identity, which is the plain SVD.
#pragma once

#include "kernels/page_summary_weights.cuh"
#include "kvloom/abi_query.cuh"

namespace kvloom {

// How much of its mean diagonal is added to a moment: directions that the queries at hand did not use must not be free.
inline constexpr float kShrinkage = 0.3f;

template <int HEAD_DIM, int kThreads, int kSharedBytes>
__device__ __forceinline__ void query_factor(const QueryFactorArgs& args) {
  using Factor = WeightFactor<HEAD_DIM>;
  static_assert(HEAD_DIM * (HEAD_DIM + 1) / 2 * 4 == kSharedBytes, "a lower triangle of f32");
  extern __shared__ __align__(16) float triangle[];  // row i from i (i + 1) / 2
  __shared__ float mean;
  const int t = threadIdx.x;
#pragma unroll 1
  for (int head = blockIdx.x; head < args.kv_heads; head += gridDim.x) {
    bool finite = true;
    for (int i = t; i < HEAD_DIM * HEAD_DIM; i += kThreads) {
      const int row = i / HEAD_DIM, column = i % HEAD_DIM;
      if (column > row) continue;
      float sum = 0.f;
      for (int s = 0; s < args.splits; s++) sum += args.moments[(static_cast<int64_t>(s) * args.kv_heads + head) * HEAD_DIM * HEAD_DIM + i];
      finite = finite && fabsf(sum) < __uint_as_float(0x7f800000u);  // NaN is not
      triangle[row * (row + 1) / 2 + column] = sum;
    }
    finite = __syncthreads_and(finite);
    if (t == 0) {
      float trace = 0.f;
      for (int i = 0; i < HEAD_DIM; i++) trace += triangle[i * (i + 3) / 2];
      mean = trace / HEAD_DIM;
    }
    __syncthreads();
    // A mean too small or large for its reciprocal says as little as 0.
    const bool usable = finite && mean > 1e-30f && mean < 1e30f;
    const float by = usable ? 1.f / mean : 0.f;
    for (int i = t; i < HEAD_DIM * HEAD_DIM; i += kThreads) {
      const int row = i / HEAD_DIM, column = i % HEAD_DIM;
      if (column > row) continue;
      float& x = triangle[row * (row + 1) / 2 + column];
      x = usable ? fmaf(x, by, row == column ? kShrinkage : 0.f) : row == column ? 1.f : 0.f;
    }
    __syncthreads();
    for (int j = 0; j < HEAD_DIM; j++) {
      const float square = triangle[j * (j + 3) / 2];
      __syncthreads();  // before the pivot is replaced
      const float pivot = sqrtf(fmaxf(square, 0.5f * kShrinkage));  // exact arithmetic leaves kShrinkage at least
      for (int i = j + t; i < HEAD_DIM; i += kThreads) {
        float& x = triangle[i * (i + 1) / 2 + j];
        x = i == j ? pivot : x / pivot;
      }
      __syncthreads();
      // Rows below, two threads a row.
      for (int i = j + 1 + t / 2; i < HEAD_DIM; i += kThreads / 2) {
        float* row = triangle + i * (i + 1) / 2;
        const float own = row[j];
        for (int k = j + 1 + t % 2; k <= i; k += 2) row[k] = fmaf(-own, triangle[k * (k + 1) / 2 + j], row[k]);
      }
      __syncthreads();
    }
    uint8_t* out = static_cast<uint8_t*>(args.weights) + static_cast<int64_t>(head) * Factor::kBytes;
    for (int i = t; i < HEAD_DIM * HEAD_DIM; i += kThreads) {
      const int row = i / HEAD_DIM, column = i % HEAD_DIM;
      if (column / 16 > row / 16) continue;  // blocks above the diagonal are not kept
      const float x = column > row ? 0.f : triangle[row * (row + 1) / 2 + column];
      *reinterpret_cast<bf16*>(out + Factor::place(row, column)) = __float2bfloat16(x);
    }
    __syncthreads();  // the triangle is read
  }
}

}  // namespace kvloom
