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

extern "C" __global__ void wgmma_loop(const __grid_constant__ Args a) {
  __shared__ alignas(128) unsigned s[1024];
  for (int i = threadIdx.x; i < 1024; i += blockDim.x) s[i] = 0x3f803f80u + i;
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  // 64 x 16 operands of core matrices, 128 bytes each: k along 128, rows along 256.
  const unsigned long long base = static_cast<unsigned>(__cvta_generic_to_shared(s)) >> 4 & 0x3fff;
  const unsigned long long da = base | 8ull << 16 | 16ull << 32, db = da + 128;
  float d[32] = {};
  for (int i = 0; i < a.n; i++) {
    asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
    asm volatile("{\n.reg .pred p;\nsetp.eq.u32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
                 "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}, "
                 "%32, %33, p, 1, 1, 0, 0;\nwgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;\n}"
                 : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]), "+f"(d[8]), "+f"(d[9]),
                   "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]), "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]),
                   "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]), "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]),
                   "+f"(d[30]), "+f"(d[31]) : "l"(da), "l"(db));
  }
  float sum = 0;
  for (int i = 0; i < 32; i++) sum += d[i];
  a.out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
