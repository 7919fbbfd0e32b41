// Loops of matrix instructions and nothing else, for the simulator's benchmark.
struct Args {
  float* out;
  int n;
};

extern "C" __global__ void mma_loop(const __grid_constant__ Args a) {
  float c0 = 0, c1 = 0, c2 = 0, c3 = 0;
  const unsigned x = 0x3f803f80u + threadIdx.x;
  for (int i = 0; i < a.n; i++) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                 : "+f"(c0), "+f"(c1), "+f"(c2), "+f"(c3) : "r"(x));
  }
  a.out[blockIdx.x * blockDim.x + threadIdx.x] = c0 + c1 + c2 + c3;
}

extern "C" __global__ void imma_loop(const __grid_constant__ Args a) {
  int c0 = 0, c1 = 0, c2 = 0, c3 = 0;
  const unsigned x = 0x01020304u + threadIdx.x;
  for (int i = 0; i < a.n; i++) {
    asm volatile("mma.sync.aligned.m16n8k32.row.col.s32.u8.s8.s32 {%0,%1,%2,%3}, {%4,%4,%4,%4}, {%4,%4}, {%0,%1,%2,%3};"
                 : "+r"(c0), "+r"(c1), "+r"(c2), "+r"(c3) : "r"(x));
  }
  a.out[blockIdx.x * blockDim.x + threadIdx.x] = c0 + c1 + c2 + c3;
}
