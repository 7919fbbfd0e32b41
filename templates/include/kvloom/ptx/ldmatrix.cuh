// Fragments of 8 x 8 matrices of 16-bit values. Lane l holds row l / 4, columns 2 (l % 4) and the next, of each matrix.
#pragma once

#include "kvloom/types.cuh"

namespace kvloom::ptx {

struct Matrices4 {
  uint32_t m[4];
};

// 16 or 8 bytes of shared memory, in order with ldmatrix and with barriers.
__device__ __forceinline__ uint4 load_shared16(uint32_t from) {
  uint4 x;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];" : "=r"(x.x), "=r"(x.y), "=r"(x.z), "=r"(x.w) : "r"(from) : "memory");
  return x;
}
__device__ __forceinline__ uint2 load_shared8(uint32_t from) {
  uint2 x;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(x.x), "=r"(x.y) : "r"(from) : "memory");
  return x;
}

// Four matrices; lane l gives the shared address of row l % 8 of matrix l / 8, 16 bytes each.
__device__ __forceinline__ Matrices4 ldmatrix4(uint32_t row) {
  Matrices4 f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.m[0]), "=r"(f.m[1]), "=r"(f.m[2]), "=r"(f.m[3])
               : "r"(row)
               : "memory");
  return f;
}

// The same of their transposes.
__device__ __forceinline__ Matrices4 ldmatrix4_transposed(uint32_t row) {
  Matrices4 f;
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(f.m[0]), "=r"(f.m[1]), "=r"(f.m[2]), "=r"(f.m[3])
               : "r"(row)
               : "memory");
  return f;
}

// Stores the transposes of four matrices, or of two; lane l gives the shared address of row l % 8 of matrix l / 8 as stored.
__device__ __forceinline__ void stmatrix4_transposed(uint32_t row, const uint32_t (&m)[4]) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.trans.shared.b16 [%0], {%1, %2, %3, %4};" ::"r"(row), "r"(m[0]), "r"(m[1]), "r"(m[2]), "r"(m[3])
               : "memory");
}
__device__ __forceinline__ void stmatrix2_transposed(uint32_t row, uint32_t x, uint32_t y) {
  asm volatile("stmatrix.sync.aligned.m8n8.x2.trans.shared.b16 [%0], {%1, %2};" ::"r"(row), "r"(x), "r"(y) : "memory");
}

// Transposes one matrix across the warp's registers.
__device__ __forceinline__ uint32_t transpose8x8(uint32_t x) {
  uint32_t y;
  asm("movmatrix.sync.aligned.m8n8.trans.b16 %0, %1;" : "=r"(y) : "r"(x));
  return y;
}

}  // namespace kvloom::ptx
