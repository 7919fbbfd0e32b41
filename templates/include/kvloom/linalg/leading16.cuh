// The leading eigenvectors of centred Gram matrices of 16 tokens, four matrices a warp and all in registers: 8 lanes a matrix, lane l
// of them holding columns l and l + 8. A direct method, so time does not depend on the spectrum.
//
// One reflector takes the vector of ones to e0, which centres the matrix and leaves 15 rows; Householder reflectors make it
// tridiagonal; Sturm counts bracket the RANK largest eigenvalues, a lane each (fewer: several lanes share one's samples); inverse
// iteration, Gram-Schmidt and the reflectors in reverse give the vectors. Columns that share an eigenvalue's cluster may mix within it.
#pragma once

#include "kvloom/ptx/approx.cuh"
#include "kvloom/types.cuh"

namespace kvloom {

// The value of lane `from` of this lane's group of 8.
template <class T>
__device__ __forceinline__ T of_group(T x, int from) { return __shfl_sync(~0u, x, from, 8); }

__device__ __forceinline__ float group_sum(float x) {
#pragma unroll
  for (int mask = 1; mask < 8; mask *= 2) x += __shfl_xor_sync(~0u, x, mask);
  return x;
}

// kFine spends more on vectors that are nearer to eigenvectors, which coarse codes do not show.
template <int RANK, bool kFine>
struct Leading16 {
  static_assert(RANK >= 1 && RANK <= 8, "a group of 8 lanes finds a vector a lane");
  static constexpr int kPad = RANK > 4 ? 8 : RANK > 2 ? 4 : RANK;  // lanes l, l + kPad, ... sample for the same eigenvalue
  static constexpr int kSamples = 8 / kPad;
  // Each round cuts an interval by kSamples + 1: 64, 81, 125 and 81 times in all where coarse, more than 1000 times where fine. A start
  // vector can hold a thousandth of the eigenvector that is looked for; three solves from a near shift still find it.
  static constexpr int kRounds = kFine ? (kSamples == 1 ? 10 : kSamples == 2 ? 7 : kSamples == 4 ? 5 : 4)
                                       : (kSamples == 1 ? 6 : kSamples == 2 ? 4 : kSamples == 4 ? 3 : 2);
  static constexpr int kSolves = 3;  // two lose directions of real keys, four make the vectors of a cluster parallel
  // Length of a start vector's elements. A solve lengthens by the reciprocal of the shift's distance from the eigenvalue, 600 at least and
  // 1e10 and more where a shift happens to hit: squares of three must stay above 1e-36 and inside f32. At 1e-10 one column in 1e5 was lost.
  static constexpr float kStart = 1e-20f;
  static constexpr int kStartFloats = 8 * 16;

  float a[16], b[16];    // columns l and l + 8; then reflector k's elements l and l + 8 in a[k], b[k]
  float d[16], e[16];    // the tridiagonal matrix, rows 1..15, e[i] couples i and i + 1; the same in all lanes of the group
  float x[16];           // this lane's vector
  float top;             // what d and e were divided by

  // The table of start vectors, made once a block: row l's first float is lane l's first sample point, for row 0 of a vector is
  // never used. Groups of four floats are exchanged so that 8 lanes meet all banks.
  static __device__ __forceinline__ int start_place(int l, int i) { return l * 16 + (((i / 4) ^ (l / 2)) % 4) * 4 + i % 4; }

  static __device__ __forceinline__ void make_starts(float* table, int index, int count) {
    for (int i = index; i < kStartFloats; i += count) {
      const int l = i / 16;
      uint32_t u = i * 0x9E3779B1u + 0x7F4A7C15u;
      u ^= u >> 15, u *= 0x2C1B3C6Du, u ^= u >> 12, u *= 0x297A2D39u, u ^= u >> 15;
      // Points close in on 0, so that small eigenvalues are bracketed relative to their size.
      const float point = l == 0 ? 0x1p-12f : l == 1 ? 0x1p-8f : l == 2 ? 0x1p-5f : l == 3 ? 0.125f : l == 4 ? 0.25f : l == 5 ? 0.4f : l == 6 ? 0.6f : 0.8f;
      table[start_place(l, i % 16)] = i % 16 == 0 ? point : static_cast<float>(static_cast<int>(u >> 8) - (1 << 23)) * 0x1p-23f * kStart;
    }
  }

  // Sums of columns l and l + 8.
  __device__ __forceinline__ float2 sums() const {
    float s = 0.f, r = 0.f;
#pragma unroll
    for (int i = 0; i < 16; i++) s += a[i], r += b[i];
    return make_float2(s, r);
  }

  // Centres: the reflector along v = 1 + 4 e0, of which H = I - f^2 v v^T with f^2 = 2 / |v|^2. Rows 1..15 are left.
  __device__ __forceinline__ void centre(float2 sums) {
    constexpr float f = 0.22360679775f;
    const float p0 = f * fmaf(4.f, a[0], sums.x), p1 = f * fmaf(4.f, b[0], sums.y);
    const float half = 0.5f * f * fmaf(4.f, of_group(p0, 0), group_sum(p0 + p1));
    const float w0 = f * fmaf(-half, f, p0), w1 = f * fmaf(-half, f, p1);
#pragma unroll
    for (int j = 1; j < 16; j++) {
      const float w = of_group(j < 8 ? w0 : w1, j % 8);
      a[j] -= w + w0;
      b[j] -= w + w1;
    }
  }

  // Each lane takes in the whole vector v and the whole product A v, so that their sums need no shuffles. v is not normalised:
  // H = I - beta v v^T. It is put together from each lane's own element, which the same lane uses below: columns and rows differ by
  // rounding, and a v of one with elements of the other makes that difference grow with each step.
  __device__ __forceinline__ void reduce(int l) {
#pragma unroll
    for (int k = 1; k < 14; k++) {
      const bool both = k < 7;  // column l still has rows below k
      float v[16], square = 0.f, odd = 0.f;
#pragma unroll
      for (int j = k; j < 16; j++) v[j] = of_group(j < 8 ? a[k] : b[k], j % 8);
      d[k] = v[k];
#pragma unroll
      for (int j = k + 1; j < 16; j++) {
        float& sum = j % 2 ? odd : square;
        sum = fmaf(v[j], v[j], sum);
      }
      square += odd;
      const float length = square * rsqrt_approx(square + 1e-36f);
      const float alpha = -copysignf(length, v[k + 1]);
      const float scale = rsqrt_approx(fmaf(fabsf(v[k + 1]), length, square) + 1e-36f);
      const float beta = scale * scale;
      v[k + 1] -= alpha;
      e[k] = alpha;
      float v0 = both && l > k ? a[k] : 0.f;  // elements l and l + 8
      float v1 = k < 8 || l + 8 > k ? b[k] : 0.f;
      if (l == (k + 1) % 8) {
        if (k + 1 < 8) v0 -= alpha;
        else v1 -= alpha;
      }
      float p0 = 0.f, p1 = 0.f, q0 = 0.f, q1 = 0.f;
#pragma unroll
      for (int j = k + 1; j < 16; j++) {
        float& low = j % 2 ? p0 : q0;
        float& high = j % 2 ? p1 : q1;
        if (both) low = fmaf(a[j], v[j], low);
        high = fmaf(b[j], v[j], high);
      }
      p0 = (p0 + q0) * beta;
      p1 = (p1 + q1) * beta;
      float p[16], dot = 0.f, rest = 0.f;
#pragma unroll
      for (int j = k + 1; j < 16; j++) p[j] = of_group(j < 8 ? p0 : p1, j % 8);
#pragma unroll
      for (int j = k + 1; j < 16; j++) {
        float& sum = j % 2 ? rest : dot;
        sum = fmaf(v[j], p[j], sum);
      }
      // A -= v w^T + w v^T with w = p - beta (v.p) / 2 v, its part along v on this lane's side.
      const float twice = (dot + rest) * beta;
      const float w0 = fmaf(-twice, v0, p0), w1 = fmaf(-twice, v1, p1);
#pragma unroll
      for (int j = k + 1; j < 16; j++) {
        if (both) a[j] = fmaf(-v[j], w0, fmaf(-p[j], v0, a[j]));
        b[j] = fmaf(-v[j], w1, fmaf(-p[j], v1, b[j]));
      }
      if (k < 8) a[k] = v0 * scale;
      b[k] = v1 * scale;
    }
    d[14] = of_group(b[14], 6);
    d[15] = of_group(b[15], 7);
    e[14] = of_group(b[15], 6);
    e[15] = 0.f;
    top = d[1] + fabsf(e[1]);
#pragma unroll
    for (int i = 2; i < 16; i++) top = fmaxf(top, d[i] + fabsf(e[i]) + fabsf(e[i - 1]));
    top = fmaxf(top * 1.0001f, 1e-30f);
    const float inverse = rcp_approx(top);
#pragma unroll
    for (int i = 1; i < 16; i++) {
      d[i] *= inverse;
      e[i] *= inverse;
    }
  }

  // How many eigenvalues exceed s: the signs of the leading minors, without a division. square holds e^2.
  __device__ __forceinline__ int count(float s, const float (&square)[16]) const {
    float before = 1.f, now = d[1] - s;
    uint32_t signs = __float_as_uint(now) >> 31;
#pragma unroll
    for (int i = 2; i < 16; i++) {
      const float next = fmaf(d[i] - s, now, -(square[i - 1] * before));
      before = now;
      now = next;
      signs = __funnelshift_l(__float_as_uint(next), signs, 1);
      if (i == 6 || i == 11) {
        const float grow = fmaxf(fabsf(before), fabsf(now)) < 0x1p-20f ? 0x1p60f : 1.f;
        before *= grow;
        now *= grow;
      }
    }
    return 15 - __popc(signs ^ (signs >> 1));
  }

  // Brackets eigenvalue l % kPad, 0 the largest; returns a place in the bracket.
  __device__ __forceinline__ float bracket(int l, float point) const {
    float square[16];
#pragma unroll
    for (int i = 1; i < 15; i++) square[i] = fmaxf(e[i] * e[i], 1e-20f);  // never split: both minors would stay 0 after one that is
    const int which = l % kPad;
    const int mine = count(point, square);
    int passed = 0;  // first points below the eigenvalue
#pragma unroll
    for (int i = 0; i < 8; i++) passed += of_group(mine, i) > which;
    const float under = of_group(point, (passed + 7) % 8), over = of_group(point, passed % 8);
    float low = passed == 0 ? 0.f : under;
    float width = (passed == 8 ? 1.f : over) - low;
#pragma unroll 1
    for (int round = 0; round < kRounds; round++) {
      width *= 1.f / (kSamples + 1);
      int above = count(fmaf(width, static_cast<float>(l / kPad + 1), low), square) > which;
#pragma unroll
      for (int mask = kPad; mask < 8; mask *= 2) above += __shfl_xor_sync(~0u, above, mask);
      low = fmaf(width, static_cast<float>(above), low);
    }
    // Neighbours in one bracket get different places in it: from one place both would find the eigenvector that happens to lie nearest,
    // and what Gram-Schmidt leaves of the second would be noise.
    const float larger = of_group(low, (l + 7) % 8), smaller = of_group(low, (l + 1) % 8);
    const bool first = which == 0 || larger != low, last = which == kPad - 1 || smaller != low;
    const float place = first ? (last ? 0.5f : 0.75f) : last ? 0.25f : which % 2 ? 0.6f : 0.4f;
    // Eigenvalues that are rounding share a place too: one among them would favour the nearest.
    return fmaxf(fmaf(place, width, low), 4e-6f);
  }

  __device__ __forceinline__ float squared_length() const {
    float s = 0.f;
#pragma unroll
    for (int i = 1; i < 16; i++) s = fmaf(x[i], x[i], s);
    return s;
  }

  // Inverse iteration by L D L^T without pivoting: a pivot near 0 makes the vector long, which is what is wanted.
  __device__ __forceinline__ void solve(float lambda) {
    float pivot[16], factor[16];  // reciprocals
#pragma unroll
    for (int i = 1; i < 16; i++) {
      float q = d[i] - lambda;
      if (i > 1) q = fmaf(-e[i - 1], factor[i - 1], q);
      q += copysignf(1e-7f, q);
      pivot[i] = rcp_approx(q);
      factor[i] = e[i] * pivot[i];
    }
#pragma unroll
    for (int s = 0; s < kSolves; s++) {
#pragma unroll
      for (int i = 2; i < 16; i++) x[i] = fmaf(-factor[i - 1], x[i - 1], x[i]);
      x[15] *= pivot[15];
#pragma unroll
      for (int i = 14; i >= 1; i--) x[i] = fmaf(-factor[i], x[i + 1], x[i] * pivot[i]);
    }
  }

  // Gram-Schmidt over the group's vectors, the largest eigenvalue's first.
  __device__ __forceinline__ void orthonormalise(int l) {
#pragma unroll
    for (int j = 0; j < RANK - 1; j++) {
      float z[16], dot = 0.f, odd = 0.f;
#pragma unroll
      for (int i = 1; i < 16; i++) z[i] = of_group(x[i], j);
#pragma unroll
      for (int i = 1; i < 16; i++) {
        if (i % 2) odd = fmaf(x[i], z[i], odd);
        else dot = fmaf(x[i], z[i], dot);
      }
      dot += odd;
      const float length = of_group(dot, j);
      const float share = l > j ? -dot * rcp_approx(length + 1e-36f) : 0.f;
#pragma unroll
      for (int i = 1; i < 16; i++) x[i] = fmaf(share, z[i], x[i]);
    }
    const float inverse = rsqrt_approx(squared_length() + 1e-36f);
#pragma unroll
    for (int i = 1; i < 16; i++) x[i] *= inverse;
  }

  __device__ __forceinline__ float rayleigh() const {
    float q = d[1] * x[1] * x[1];
#pragma unroll
    for (int i = 2; i < 16; i++) q = fmaf(fmaf(d[i], x[i], 2.f * e[i - 1] * x[i - 1]), x[i], q);
    return q * top;
  }

  // From the tridiagonal matrix's coordinates to the tokens'.
  __device__ __forceinline__ void back() {
#pragma unroll
    for (int k = 13; k >= 1; k--) {
      float z[16], dot = 0.f, odd = 0.f;
#pragma unroll
      for (int j = k + 1; j < 16; j++) z[j] = of_group(j < 8 ? a[k] : b[k], j % 8);
#pragma unroll
      for (int j = k + 1; j < 16; j++) {
        if (j % 2) odd = fmaf(z[j], x[j], odd);
        else dot = fmaf(z[j], x[j], dot);
      }
      dot += odd;
#pragma unroll
      for (int j = k + 1; j < 16; j++) x[j] = fmaf(-dot, z[j], x[j]);
    }
    float s = 0.f;
#pragma unroll
    for (int i = 1; i < 16; i++) s += x[i];
    s *= 0.05f;  // f^2
    x[0] = -5.f * s;
#pragma unroll
    for (int i = 1; i < 16; i++) x[i] -= s;
  }

  // Leaves the vector of the l-th largest eigenvalue in x of each lane l < RANK, by token, and returns the eigenvalue. sums are this
  // lane's columns'.
  __device__ __forceinline__ float run(int l, float2 sums, const float* starts) {
    centre(sums);
    reduce(l);
    const float lambda = bracket(l, starts[start_place(l, 0)]);
#pragma unroll
    for (int i = 0; i < 4; i++) {
      const float4 s = *reinterpret_cast<const float4*>(starts + start_place(l, 4 * i));
      x[4 * i] = s.x, x[4 * i + 1] = s.y, x[4 * i + 2] = s.z, x[4 * i + 3] = s.w;
    }
    solve(lambda);
    orthonormalise(l);
    const float value = rayleigh();
    back();
    return value;
  }
};

}  // namespace kvloom
