// One warpgroup multiplies 64 x 64 by 64 x 64 bf16 matrices that bulk tensor copies bring to shared memory, in every layout that the
// descriptors know. The simulator's test compares with the plain product.
struct Map {
  alignas(64) unsigned long long opaque[16];
};

struct Args {
  Map a, b;   // boxes of 64 elements of 64 rows, swizzled as the layout says
  float* d;   // [64][64]
  const unsigned* raw;  // A as pairs, [64][32], for the form with A in registers
};

__device__ unsigned smem(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ unsigned long long descriptor(unsigned address, unsigned lead, unsigned stride, unsigned long long layout) {
  return static_cast<unsigned long long>(address >> 4 & 0x3fff) | static_cast<unsigned long long>(lead >> 4) << 16 |
         static_cast<unsigned long long>(stride >> 4) << 32 | layout << 62;
}

__device__ void load(void* dst, const Map& map, int x, int y, unsigned long long* bar) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %3}], [%4];"
               ::"r"(smem(dst)), "l"(&map), "r"(x), "r"(y), "r"(smem(bar)) : "memory");
}

__device__ void wait(unsigned long long* bar) {
  unsigned done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], 0;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(smem(bar)) : "memory");
  } while (!done);
}

#define OUT4(i) "+f"(d[i]), "+f"(d[i + 1]), "+f"(d[i + 2]), "+f"(d[i + 3])
#define OUT32 OUT4(0), OUT4(4), OUT4(8), OUT4(12), OUT4(16), OUT4(20), OUT4(24), OUT4(28)
#define REGS "{%0,%1,%2,%3,%4,%5,%6,%7,%8,%9,%10,%11,%12,%13,%14,%15,%16,%17,%18,%19,%20,%21,%22,%23,%24,%25,%26,%27,%28,%29,%30,%31}"

template <int TA, int TB>
__device__ void multiply(float (&d)[32], unsigned long long a, unsigned long long b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %34, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS
               ", %32, %33, p, 1, 1, %35, %36;\n}" : OUT32 : "l"(a), "l"(b), "r"(add), "n"(TA), "n"(TB));
}

template <int TB>
__device__ void multiply(float (&d)[32], const unsigned (&a)[4], unsigned long long b, int add) {
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, %37, 0;\nwgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 " REGS
               ", {%32, %33, %34, %35}, %36, p, 1, 1, %38;\n}"
               : OUT32 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b), "r"(add), "n"(TB));
}

// SPAN: bytes of a swizzled row, 128, 64 or 32, or 16 for none: a box then holds SPAN / 2 elements of 64 rows.
template <int SPAN, bool TA, bool TB, bool kRegisters>
__device__ void product(const Args& args) {
  __shared__ alignas(1024) unsigned char a[8192], b[8192];
  __shared__ unsigned long long bar;
  constexpr int kBoxes = 128 / SPAN, kBox = 64 * SPAN;  // boxes side by side, bytes of one
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nfence.proxy.async;" ::"r"(smem(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 16384;" ::"r"(smem(&bar)) : "memory");
    for (int i = 0; i < kBoxes; i++) {
      load(a + i * kBox, args.a, i * SPAN / 2, 0, &bar);
      load(b + i * kBox, args.b, i * SPAN / 2, 0, &bar);
    }
  }
  __syncthreads();
  wait(&bar);
  constexpr unsigned long long kLayout = SPAN == 128 ? 1 : SPAN == 64 ? 2 : SPAN == 32 ? 3 : 0;
  float d[32] = {};
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; k++) {
    // Contiguous k: 32 bytes further along the row, and to the next box. Contiguous rows: 16 rows of k further down.
    const unsigned along = SPAN == 16 ? 2 * k * kBox : k * 32 / SPAN * kBox + k * 32 % SPAN, down = 16 * k * SPAN;
    const auto of = [&](const unsigned char* p, bool transposed) {
      if (SPAN == 16) return transposed ? descriptor(smem(p) + down, 8 * SPAN, kBox, 0) : descriptor(smem(p) + along, kBox, 8 * SPAN, 0);
      return transposed ? descriptor(smem(p) + down, kBox, 8 * SPAN, kLayout) : descriptor(smem(p) + along, 16, 8 * SPAN, kLayout);
    };
    if constexpr (kRegisters) {
      const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, pair = 8 * k + threadIdx.x % 4;
      const unsigned r[4] = {args.raw[row * 32 + pair], args.raw[(row + 8) * 32 + pair], args.raw[row * 32 + pair + 4], args.raw[(row + 8) * 32 + pair + 4]};
      multiply<TB>(d, r, of(b, TB), k > 0);
    } else {
      multiply<TA, TB>(d, of(a, TA), of(b, TB), k > 0);
    }
  }
  asm volatile("wgmma.commit_group.sync.aligned;\nwgmma.wait_group.sync.aligned 0;" ::: "memory");
  for (int i = 0; i < 32; i++) {
    const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4 + i / 2 % 2 * 8, col = i / 4 * 8 + threadIdx.x % 4 * 2 + i % 2;
    args.d[row * 64 + col] = d[i];
  }
}

#define KERNEL(name, ...) \
  extern "C" __global__ void __launch_bounds__(128) name(const __grid_constant__ Args args) { product<__VA_ARGS__>(args); }
KERNEL(k128, 128, false, false, false)
KERNEL(k64, 64, false, false, false)
KERNEL(k32, 32, false, false, false)
KERNEL(k16, 16, false, false, false)
KERNEL(b128, 128, false, true, false)
KERNEL(b64, 64, false, true, false)
KERNEL(b32, 32, false, true, false)
KERNEL(b16, 16, false, true, false)
KERNEL(ab128, 128, true, true, false)
KERNEL(ab64, 64, true, true, false)
KERNEL(ab16, 16, true, true, false)
KERNEL(r128, 128, false, false, true)
KERNEL(rb64, 64, false, true, true)
