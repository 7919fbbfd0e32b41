// A basis of the leading directions of a centred Gram matrix of 16 tokens by one warp, for the few pages of a decode step: what counts is
// how long one matrix takes, not how many instructions.
//
// Squaring by mma takes a matrix to its 16th power, where directions that matter stand out; rows of that are taken by the largest
// remainder, as Cholesky with pivoting does, down to kNoise of the first, where rounding begins. The columns n found span the leading
// directions; orthogonalised as D^T n they are V, and C = D V. What is taken out of the matrix is C C^T, and the rest goes through the same
// again until RANK columns are found: one round where directions hold like energies, more where they decay.
#pragma once

#include "kvloom/mma/m16n8k8.cuh"
#include "kvloom/ptx/approx.cuh"
#include "kvloom/types.cuh"

namespace kvloom {

// A symmetric 16 x 16 matrix as mma leaves it: with g = lane / 4 and p = lane % 4, left has columns 2p, 2p+1 of row g, then of row g+8,
// right the columns 8 later. Rounded to 16 bits these registers are A operand and B operand of a product with itself.
struct Square16 {
  float left[4], right[4];
};

// The product with itself, from hi + lo of bf16; lo times lo is below what f32 shows.
__device__ __forceinline__ Square16 square(const Square16& x) {
  const auto pack = [](float a, float b) {
    const __nv_bfloat162 p = __floats2bfloat162_rn(a, b);
    return *reinterpret_cast<const uint32_t*>(&p);
  };
  const float pairs[4][2] = {{x.left[0], x.left[1]}, {x.left[2], x.left[3]}, {x.right[0], x.right[1]}, {x.right[2], x.right[3]}};
  uint32_t hi[4], lo[4];
#pragma unroll
  for (int i = 0; i < 4; i++) {
    hi[i] = pack(pairs[i][0], pairs[i][1]);
    lo[i] = pack(pairs[i][0] - __uint_as_float(hi[i] << 16), pairs[i][1] - __uint_as_float(hi[i] & 0xffff0000u));
  }
  float acc[2][3][4];
#pragma unroll
  for (int h = 0; h < 2; h++) {
    mma_m16n8k16_from_zero(acc[h][0], hi[0], hi[1], hi[2], hi[3], hi[h], hi[2 + h], bf16{});
    mma_m16n8k16_from_zero(acc[h][1], lo[0], lo[1], lo[2], lo[3], hi[h], hi[2 + h], bf16{});
    mma_m16n8k16_from_zero(acc[h][2], hi[0], hi[1], hi[2], hi[3], lo[h], lo[2 + h], bf16{});
  }
  Square16 y;
#pragma unroll
  for (int i = 0; i < 4; i++) {
    y.left[i] = acc[0][0][i] + (acc[0][1][i] + acc[0][2][i]);
    y.right[i] = acc[1][0][i] + (acc[1][1][i] + acc[1][2][i]);
  }
  return y;
}

template <int RANK>
struct Power16 {
  static_assert(RANK >= 1 && RANK <= 8, "a lane holds an element of each column");
  static constexpr int kPad = RANK > 4 ? 8 : RANK > 2 ? 4 : RANK;
  static constexpr int kStride = 20;        // of matrices in shared memory: rows of floats that 8 lanes read in 16 bytes meet all banks
  static constexpr int kSquarings = 4;      // three lose 0.5 % of the energy of random keys, four 0.1 %
  static constexpr float kNoise = 1e-4f;    // of a 16th power; its directions are within 0.56 of the first
  static constexpr float kRank = 1e-5f;     // less energy than this share of the first direction's is rounding (kRankTolerance)
  static constexpr int kMatrixBytes = 16 * kStride * 4, kColumnBytes = 8 * 16 * 4;
  static constexpr int kBytes = kMatrixBytes + kColumnBytes;  // of `kept`

  float* work;  // room for a matrix, in shared memory
  float* kept;  // the matrix and the columns, f32 [8][16]
  int lane;

  // After run: lanes 0 to 15 hold element lane of u, lanes 16 to 31 token lane - 16 of C before the division by sigma = sqrt(energy).
  float x[RANK], energy[RANK];  // energy is 0 for no such direction, the same in all lanes

  __device__ __forceinline__ void store(float* to, const Square16& m) const {
    to += lane / 4 * kStride + 2 * (lane % 4);
    *reinterpret_cast<float2*>(to) = make_float2(m.left[0], m.left[1]);
    *reinterpret_cast<float2*>(to + 8 * kStride) = make_float2(m.left[2], m.left[3]);
    *reinterpret_cast<float2*>(to + 8) = make_float2(m.right[0], m.right[1]);
    *reinterpret_cast<float2*>(to + 8 * kStride + 8) = make_float2(m.right[2], m.right[3]);
  }

  __device__ __forceinline__ Square16 load(const float* from, float scale) const {
    from += lane / 4 * kStride + 2 * (lane % 4);
    const auto pair = [&](int at) { return *reinterpret_cast<const float2*>(from + at); };
    const float2 a = pair(0), b = pair(8 * kStride), c = pair(8), d = pair(8 * kStride + 8);
    return {{a.x * scale, a.y * scale, b.x * scale, b.y * scale}, {c.x * scale, c.y * scale, d.x * scale, d.y * scale}};
  }

  // A lane's share of the trace.
  static __device__ __forceinline__ float diagonal(const Square16& m, int lane) {
    const int g = lane / 4;
    if (lane % 4 != g / 2) return 0.f;
    return g % 2 ? m.left[1] + m.right[3] : m.left[0] + m.right[2];
  }

  static __device__ __forceinline__ float warp_sum(float v) {
#pragma unroll
    for (int mask = 1; mask < 32; mask *= 2) v += __shfl_xor_sync(~0u, v, mask);
    return v;
  }

  // gram: centred; trace: 0 for a page that is not wanted.
  __device__ __forceinline__ void run(const Square16& gram, float trace) {
    float n[RANK];  // element lane % 16 of each column, the largest 1
    int found = 0;  // columns so far
    Square16 m = gram;
    float inverse = trace > 0.f ? rcp_approx(trace) : 0.f;
    store(kept, gram);
#pragma unroll
    for (int j = 0; j < RANK; j++) n[j] = 0.f;
#pragma unroll 1
    for (int round = 0;; round++) {
#pragma unroll
      for (int i = 0; i < 4; i++) m.left[i] *= inverse, m.right[i] *= inverse;
#pragma unroll 1
      for (int s = 0; s < kSquarings; s++) m = square(m);
      store(work, m);
      __syncwarp();
      pivots(n, found);
      products(n);
      int now = triangular(n);
      if (__builtin_expect(round > 0, 0)) now = cut(n, now);
      if (__builtin_expect(now == RANK || now <= found, 1)) return;  // in the second case what is left is rounding
      found = now;
      m = deflate();
      const float rest = warp_sum(diagonal(m, lane));
      if (!(rest > 0.1f * kRank * trace)) return;  // 15 directions at most: none has kRank of the first one's energy
      inverse = rcp_approx(rest);
    }
  }

  // Columns from `found` on, of the power in `work`.
  __device__ __forceinline__ void pivots(float (&n)[RANK], int found) const {
    const int t = lane % 16;
    float d = fmaxf(work[t * (kStride + 1)], 0.f), weight[RANK], first = 0.f;
#pragma unroll
    for (int j = 0; j < RANK; j++) {
      // The largest remainder and whose it is: positive floats are ordered as their bits, of which the last four are given up.
      const uint32_t top = __reduce_max_sync(~0u, __float_as_uint(d) & ~15u | static_cast<uint32_t>(t));
      const float pivot = __uint_as_float(top & ~15u);
      const int token = static_cast<int>(top & 15u);
      const bool taken = j >= found && pivot > kNoise * first;
      float column = work[token * kStride + t];
#pragma unroll
      for (int i = 0; i < j; i++) column = fmaf(-n[i], __shfl_sync(~0u, n[i], token) * weight[i], column);
      column *= rcp_approx(pivot);
      weight[j] = taken ? pivot : 0.f;
      if (first == 0.f) first = weight[j];
      if (j >= found) n[j] = taken ? column : 0.f;
      d = fmaxf(fmaf(-weight[j] * column, column, d), 0.f);
    }
  }

  // Columns and the matrix times columns to shared memory.
  __device__ __forceinline__ void products(const float (&n)[RANK]) const {
    constexpr int kEach = (RANK + 1) / 2;
    const int t = lane % 16;
    const bool high = lane >= 16;
    __syncwarp();
    float* columns = kept + 16 * kStride;
#pragma unroll
    for (int i = 0; i < kEach; i++) columns[2 * i * 16 + lane] = 2 * i + 1 < RANK && high ? n[2 * i + 1 < RANK ? 2 * i + 1 : 0] : high ? 0.f : n[2 * i];
    __syncwarp();
    const float* row = kept + t * kStride;
    columns += lane / 16 * 16;
    float sum[kEach][2];
#pragma unroll
    for (int i = 0; i < kEach; i++) sum[i][0] = sum[i][1] = 0.f;
#pragma unroll
    for (int c = 0; c < 16; c += 4) {
      const float4 a = *reinterpret_cast<const float4*>(row + c);
#pragma unroll
      for (int i = 0; i < kEach; i++) {
        const float4 b = *reinterpret_cast<const float4*>(columns + 2 * i * 16 + c);
        sum[i][0] = fmaf(a.x, b.x, fmaf(a.y, b.y, sum[i][0]));
        sum[i][1] = fmaf(a.z, b.z, fmaf(a.w, b.w, sum[i][1]));
      }
    }
#pragma unroll
    for (int i = 0; i < kEach; i++) work[2 * i * 16 + lane] = sum[i][0] + sum[i][1];
    __syncwarp();
  }

  // Takes the columns' products with one another apart: L D L^T. Leaves x and energy; returns how many columns are good.
  __device__ __forceinline__ int triangular(const float (&n)[RANK]) {
    constexpr int kEntries = kPad * kPad, kLanes = kEntries >= 32 ? 1 : 32 / kEntries > 4 ? 4 : 32 / kEntries, kEach = kEntries > 32 ? kEntries / 32 : 1;
    constexpr int kTokens = 16 / kLanes;
    const float* columns = kept + 16 * kStride;
    const float* times = work;
    const int entry = lane / kLanes % kEntries, part = lane % kLanes * kTokens;
    float mine[kEach];
#pragma unroll
    for (int k = 0; k < kEach; k++) {
      const float* a = columns + (entry + 32 * k) / kPad * 16 + part;
      const float* b = times + (entry + 32 * k) % kPad * 16 + part;
      float sum = 0.f, odd = 0.f;
#pragma unroll
      for (int c = 0; c < kTokens; c += 4) {
        const float4 u = *reinterpret_cast<const float4*>(a + c), v = *reinterpret_cast<const float4*>(b + c);
        sum = fmaf(u.x, v.x, fmaf(u.y, v.y, sum));
        odd = fmaf(u.z, v.z, fmaf(u.w, v.w, odd));
      }
      sum += odd;
#pragma unroll
      for (int mask = 1; mask < kLanes; mask *= 2) sum += __shfl_xor_sync(~0u, sum, mask);
      mine[k] = sum;
    }
    float a[RANK][RANK], own[RANK];
#pragma unroll
    for (int i = 0; i < RANK; i++) {
#pragma unroll
      for (int j = 0; j <= i; j++) a[i][j] = __shfl_sync(~0u, mine[(i * kPad + j) / 32], (i * kPad + j) * kLanes % 32);
      own[i] = a[i][i];
      x[i] = lane < 16 ? n[i] : times[i * 16 + lane % 16];
    }
    int good = 0;
#pragma unroll
    for (int j = 0; j < RANK; j++) {
      // What is left of a column beside the ones before it; below 1e-6 it is rounding.
      const float left = a[j][j];
      const bool whole = good == j && left > 1e-6f * own[j];
      if (whole) good = j + 1;
      const float inverse = whole ? rcp_approx(left) : 0.f;
      energy[j] = whole ? left : 0.f;
#pragma unroll
      for (int i = j + 1; i < RANK; i++) {
        const float share = a[i][j] * inverse;
#pragma unroll
        for (int k = j + 1; k <= i; k++) a[i][k] = fmaf(-share, a[k][j], a[i][k]);
        x[i] = fmaf(-share, x[j], x[i]);
      }
    }
    return good;
  }

  // Cuts columns that hold less than kRank of the first one's energy for their length, and those after them. Returns how many stay.
  __device__ __forceinline__ int cut(float (&n)[RANK], int good) {
    int stay = 0;
    float first = 0.f;
#pragma unroll
    for (int j = 0; j < RANK; j++) {
      float square = x[j] * x[j];
#pragma unroll
      for (int mask = 1; mask < 16; mask *= 2) square += __shfl_xor_sync(~0u, square, mask);
      square = __shfl_sync(~0u, square, 0);
      const float share = j < good ? energy[j] / square : 0.f;
      if (j == 0) first = share;
      if (stay == j && share > kRank * first) stay = j + 1;
      if (stay <= j) energy[j] = n[j] = 0.f;
    }
    return stay;
  }

  // What the columns leave of the matrix: less C C^T.
  __device__ __forceinline__ Square16 deflate() const {
    float* c = work + 128;  // [16][8], behind the products
    const int g = lane / 4, p = lane % 4;
    __syncwarp();
    if (lane >= 16) {
#pragma unroll
      for (int j = 0; j < RANK; j++) c[(lane - 16) * 8 + j] = energy[j] > 0.f ? x[j] * rsqrt_approx(energy[j]) : 0.f;
    }
    __syncwarp();
    const float* from = kept + g * kStride + 2 * p;
    Square16 m;
#pragma unroll
    for (int i = 0; i < 8; i++) {  // rows g and g + 8, columns 2p, 2p+1 and 8 later
      const int row = i / 2 % 2 * 8, column = i / 4 * 8 + i % 2;
      float sum = from[row * kStride + column];
#pragma unroll
      for (int j = 0; j < RANK; j++) sum = fmaf(-c[(g + row) * 8 + j], c[(2 * p + column) * 8 + j], sum);
      (i < 4 ? m.left[i] : m.right[i - 4]) = sum;
    }
    __syncwarp();
    return m;
  }
};

}  // namespace kvloom
