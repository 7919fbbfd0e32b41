// Fixed-width integers and the 16-bit float types, without the host's C headers, so that NVRTC needs no include path of the host.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#ifdef __CUDACC_RTC__
using int8_t = signed char;
using uint8_t = unsigned char;
using int16_t = short;
using uint16_t = unsigned short;
using int32_t = int;
using uint32_t = unsigned int;
using int64_t = long long;
using uint64_t = unsigned long long;
#else
#include <cstdint>
#endif

namespace kvloom {

using bf16 = __nv_bfloat16;
using fp16 = __half;

// An element of a cache in e4m3; quant/e4m3.cuh says what its bits mean.
struct fp8_e4m3 {
  uint8_t bits;
};

// The type of queries and outputs beside a cache of T: its own, and bf16 beside 8 bits.
template <typename T>
struct Compute {
  using type = T;
};
template <>
struct Compute<fp8_e4m3> {
  using type = bf16;
};

}  // namespace kvloom
