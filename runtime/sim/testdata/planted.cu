// Small kernels with one planted fault each, for the sanitizer's own test. The test compiles this file twice: with FAULTY 1, where
// BAD(...) is code and GOOD(...) is not, and with FAULTY 0 for the correct twins. The line that must be reported ends in "// HERE".
// Every kernel runs with the grid, block and cluster that its row in planted_test.go gives; x and y hold n floats, c is one zeroed
// counter, u is n floats that nothing wrote.
#include <cuda_runtime.h>

#if FAULTY
#define BAD(...) __VA_ARGS__
#define GOOD(...)
#else
#define BAD(...)
#define GOOD(...) __VA_ARGS__
#endif
#define KERNEL(name) extern "C" __global__ void name(const __grid_constant__ Args a)

struct Args {
  const float* x;
  float* y;
  float* u;
  unsigned* c;
  int n;
};

__device__ unsigned smem(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

__device__ void bar_init(unsigned long long* bar, unsigned count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(smem(bar)), "r"(count) : "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}

__device__ void bar_expect(unsigned long long* bar, unsigned bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(smem(bar)), "r"(bytes) : "memory");
}

__device__ void bar_arrive(unsigned long long* bar) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(bar)) : "memory");
}

__device__ void bar_wait(unsigned long long* bar, unsigned parity) {
  unsigned done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(smem(bar)), "r"(parity) : "memory");
  } while (!done);
}

__device__ void bulk_load(void* dst, const void* src, unsigned bytes, unsigned long long* bar) {
  asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];"
               ::"r"(smem(dst)), "l"(src), "r"(bytes), "r"(smem(bar)) : "memory");
}

__device__ void bulk_store(void* dst, const void* src, unsigned bytes) {
  asm volatile("cp.async.bulk.global.shared::cta.bulk_group [%0], [%1], %2;" ::"l"(dst), "r"(smem(src)), "r"(bytes) : "memory");
  asm volatile("cp.async.bulk.commit_group;\ncp.async.bulk.wait_group 0;" ::: "memory");
}

__device__ void cp_async(void* dst, const void* src) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(smem(dst)), "l"(src) : "memory");
}

KERNEL(off_by_one) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < a.n BAD(+ 1)) a.y[i] = 1.0f;  // HERE
}

KERNEL(negative_index) {
  const int i = threadIdx.x;
  a.y[i] = a.x[i BAD(- 1) GOOD(+ 0)];  // HERE
}

KERNEL(shared_overrun) {
  __shared__ float s[64];
  s[threadIdx.x BAD(+ 1)] = a.x[threadIdx.x];  // HERE
  __syncthreads();
  a.y[threadIdx.x] = s[63 - threadIdx.x];
}

KERNEL(local_overrun) {
  float t[4];
  for (int i = 0; i < 4; i++) t[i] = a.x[i];
  const int k = static_cast<int>(a.x[4]) BAD(+ 400);
  a.y[threadIdx.x] = t[k];  // HERE
}

KERNEL(misaligned_vector) {
  const float* p = a.x BAD(+ 1);
  const float4 v = *reinterpret_cast<const float4*>(p);  // HERE
  a.y[0] = v.x + v.y;
}

KERNEL(use_after_free) {
  a.y[threadIdx.x] = a.x[threadIdx.x];  // HERE
}

KERNEL(unwritten_shared) {
  __shared__ float s[64];
  if (threadIdx.x < 63 GOOD(+ 1)) s[threadIdx.x] = 1.0f;
  __syncthreads();
  a.y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
}

KERNEL(unwritten_global) {
  a.y[threadIdx.x] = BAD(a.u) GOOD(a.x)[threadIdx.x];  // HERE
}

KERNEL(unwritten_register) {
  asm volatile("{\n.reg .b32 t;\n" GOOD("mov.b32 t, 0;\n") "st.global.b32 [%0], t;\n}" ::"l"(a.y) : "memory");  // HERE
}

KERNEL(missing_barrier) {
  __shared__ float s[64];
  s[threadIdx.x] = a.x[threadIdx.x];
  GOOD(__syncthreads();)
  a.y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
}

KERNEL(missing_second_barrier) {
  __shared__ float s[64];
  for (int k = 0; k < 2; k++) {
    s[threadIdx.x] = a.x[threadIdx.x] + k;  // HERE
    __syncthreads();
    a.y[threadIdx.x] = s[63 - threadIdx.x];
    GOOD(__syncthreads();)
  }
}

KERNEL(missing_syncwarp) {
  __shared__ float s[32];
  s[threadIdx.x] = a.x[threadIdx.x];
  GOOD(__syncwarp();)
  a.y[threadIdx.x] = s[31 - threadIdx.x];  // HERE
}

KERNEL(half_block_barrier) {  // a barrier that only one of two warps takes part in
  __shared__ float s[64];
  s[threadIdx.x] = a.x[threadIdx.x];
  asm volatile("bar.sync 1, " BAD("32") GOOD("64") ";" ::: "memory");
  a.y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
}

KERNEL(missing_fence) {
  if (blockIdx.x == 0) {
    a.y[0] = 1.0f;
    GOOD(__threadfence();)
    atomicExch(a.c, 1u);
  } else {
    while (atomicAdd(a.c, 0u) == 0) {}
    __threadfence();
    a.y[1] = a.y[0];  // HERE
  }
}

KERNEL(missing_acquire) {
  if (blockIdx.x == 0) {
    a.y[0] = 1.0f;
    __threadfence();
    atomicExch(a.c, 1u);
  } else {
    while (atomicAdd(a.c, 0u) == 0) {}
    GOOD(__threadfence();)
    a.y[1] = a.y[0];  // HERE
  }
}

KERNEL(last_block) {
  __shared__ bool last;
  a.y[blockIdx.x * 32 + threadIdx.x] = 1.0f + blockIdx.x;
  GOOD(__threadfence();)
  __syncthreads();
  if (threadIdx.x == 0) {
    last = atomicAdd(a.c, 1u) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) a.y[0] = a.y[63];  // HERE
}

KERNEL(blocks_collide) {
  a.y[threadIdx.x GOOD(+ 32 * blockIdx.x)] = blockIdx.x;  // HERE
}

KERNEL(plain_counter) {
  if (threadIdx.x == 0) {
    BAD(*a.c += 1;) GOOD(atomicAdd(a.c, 1u);)  // HERE
  }
}

KERNEL(divergent_barrier) {
  if (threadIdx.x < 16 GOOD(+ 16)) __syncthreads();  // HERE
}

KERNEL(barrier_short) {  // 64 threads are expected, 32 come
  if (threadIdx.x < 32 GOOD(+ 32)) asm volatile("bar.sync 1, 64;" ::: "memory");  // HERE
}

KERNEL(barrier_counts_differ) {
  if (threadIdx.x < 32) {
    asm volatile("bar.sync 1, 64;" ::: "memory");
  } else {
    asm volatile("bar.sync 1, " BAD("96") GOOD("64") ";" ::: "memory");  // HERE
  }
}

KERNEL(stale_phase) {
  __shared__ alignas(16) float s[32];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) bar_init(&bar, 1);
  __syncthreads();
  if (threadIdx.x == 0) {
    bar_expect(&bar, 128);
    bulk_load(s, a.x, 128, &bar);
  }
  bar_wait(&bar, BAD(1) GOOD(0));
  a.y[threadIdx.x] = s[threadIdx.x];  // HERE
}

KERNEL(bytes_never_come) {
  __shared__ alignas(16) float s[32];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    bar_init(&bar, 1);
    bar_expect(&bar, 128 BAD(+ 16));
    bulk_load(s, a.x, 128, &bar);
    bar_wait(&bar, 0);
  }
}

KERNEL(missing_proxy_fence) {
  __shared__ alignas(16) float s[64];
  s[threadIdx.x] = a.x[threadIdx.x];
  GOOD(asm volatile("fence.proxy.async;" ::: "memory");)
  __syncthreads();
  if (threadIdx.x == 0) bulk_store(a.y, s, 256);  // HERE
}

KERNEL(buffer_reused) {  // the second copy may land while warp 1 still reads the first
  __shared__ alignas(16) float s[32];
  __shared__ unsigned long long full, empty;
  if (threadIdx.x == 0) {
    bar_init(&full, 1);
    bar_init(&empty, 32);
  }
  __syncthreads();
  if (threadIdx.x < 32) {
    for (int k = 0; k < 2; k++) {
      GOOD(if (k > 0) bar_wait(&empty, 0);)
      if (threadIdx.x == 0) {
        bar_expect(&full, 128);
        bulk_load(s, a.x + 32 * k, 128, &full);
      }
      bar_wait(&full, k);
    }
  } else {
    bar_wait(&full, 0);
    a.y[threadIdx.x] = s[threadIdx.x - 32];  // HERE
    GOOD(bar_arrive(&empty);)
  }
}

KERNEL(bulk_size) {
  __shared__ alignas(16) float s[32];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    bar_init(&bar, 1);
    bar_expect(&bar, 128);
    bulk_load(s, a.x, 128 BAD(- 4), &bar);  // HERE
    bar_wait(&bar, 0);
  }
}

KERNEL(async_not_waited) {
  __shared__ float s[32];
  cp_async(&s[threadIdx.x], a.x + threadIdx.x);
  asm volatile("cp.async.commit_group;" ::: "memory");
  GOOD(asm volatile("cp.async.wait_group 0;" ::: "memory");)
  a.y[threadIdx.x] = s[threadIdx.x];  // HERE
}

KERNEL(async_no_barrier) {
  __shared__ float s[64];
  cp_async(&s[threadIdx.x], a.x + threadIdx.x);
  asm volatile("cp.async.commit_group;\ncp.async.wait_group 0;" ::: "memory");
  GOOD(__syncthreads();)
  a.y[threadIdx.x] = s[63 - threadIdx.x];  // HERE
}

KERNEL(barrier_not_made) {
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    GOOD(bar_init(&bar, 2);)
    bar_arrive(&bar);  // HERE
  }
}

KERNEL(too_many_arrivals) {
  __shared__ alignas(16) float s[4];
  __shared__ unsigned long long bar;
  if (threadIdx.x == 0) {
    bar_init(&bar, 1 GOOD(+ 1));
    asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], 16;" ::"r"(smem(&bar)) : "memory");
    bar_arrive(&bar);
    bar_arrive(&bar);  // HERE
    bulk_load(s, a.x, 16, &bar);
    bar_wait(&bar, 0);
  }
}

KERNEL(cluster_race) {
  __shared__ float s[32];
  s[threadIdx.x] = a.x[threadIdx.x];
  GOOD(asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");)
  unsigned peer;
  float v;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(peer) : "r"(smem(&s[threadIdx.x])), "r"(1 - (blockIdx.x & 1)));
  asm volatile("ld.shared::cluster.f32 %0, [%1];" : "=f"(v) : "r"(peer) : "memory");  // HERE
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  a.y[blockIdx.x * 32 + threadIdx.x] = v;
}

KERNEL(peer_has_left) {
  __shared__ float s[32];
  s[threadIdx.x] = 0.0f;
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  if (blockIdx.x == 1) {
    unsigned peer;
    asm volatile("mapa.shared::cluster.u32 %0, %1, 0;" : "=r"(peer) : "r"(smem(&s[threadIdx.x])));
    for (int k = 0; k < 100; k++) asm volatile("nanosleep.u32 20;");
    asm volatile("st.shared::cluster.f32 [%0], 0f3F800000;" ::"r"(peer) : "memory");  // HERE
  }
  GOOD(asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");)
}

KERNEL(cluster_arrive_twice) {
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");
  GOOD(asm volatile("barrier.cluster.wait.aligned;" ::: "memory");)
  asm volatile("barrier.cluster.arrive.aligned;" ::: "memory");  // HERE
  asm volatile("barrier.cluster.wait.aligned;" ::: "memory");
}

KERNEL(lost_lanes) {
  float v = a.x[threadIdx.x];
  if (threadIdx.x < 16) {
    v += __shfl_xor_sync(BAD(0xffffffffu) GOOD(0xffffu), v, 1);  // HERE
    a.y[threadIdx.x] = v;
  } else {
    a.y[threadIdx.x] = 2 * v;
    __syncwarp(0xffff0000u);
  }
}

KERNEL(nobody_sets_the_flag) {
  if (blockIdx.x == 0) {
    GOOD(atomicExch(a.c, 1u);)
  } else {
    while (*static_cast<volatile unsigned*>(a.c) == 0) {}  // HERE
  }
}

KERNEL(endless_loop) {
  unsigned v = a.n;
  while (v != BAD(0) GOOD(1)) v = v % 2 == 0 ? v / 2 : 3 * v + 1;  // HERE
  a.y[0] = v;
}

KERNEL(dependent_no_wait) {  // launched twice, the second time as a dependent launch
  GOOD(asm volatile("griddepcontrol.wait;" ::: "memory");)
  a.y[threadIdx.x] = a.y[threadIdx.x] + 1;  // HERE
  asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
}

// One m64n8k16 product of operands without swizzle: 8 x 16-byte core matrices, rows in groups of 8.
struct Operands {
  alignas(128) unsigned a[512], b[64];
};

__device__ void fill(Operands& s) {
  for (int i = threadIdx.x; i < 512; i += blockDim.x) s.a[i] = 0x3f803f80;
  for (int i = threadIdx.x; i < 64; i += blockDim.x) s.b[i] = 0x3f803f80;
}

__device__ void product(float (&d)[4], const Operands& s) {
  const auto of = [](const void* p) { return static_cast<unsigned long long>(smem(p) >> 4 & 0x3fff) | 8ull << 16 | 16ull << 32; };
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  asm volatile("{\n.reg .pred p;\nsetp.ne.b32 p, 0, 0;\nwgmma.mma_async.sync.aligned.m64n8k16.f32.bf16.bf16 {%0, %1, %2, %3}, %4, %5, p, 1, 1, 0, 0;\n}"
               : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]) : "l"(of(s.a)), "l"(of(s.b)));
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
}

__device__ void product_wait() { asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory"); }

KERNEL(product_no_fence) {
  __shared__ Operands s;
  float d[4] = {};
  fill(s);
  GOOD(asm volatile("fence.proxy.async;" ::: "memory");)
  __syncthreads();
  product(d, s);  // HERE
  product_wait();
  if (threadIdx.x < 64) a.y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}

KERNEL(product_not_waited) {
  __shared__ Operands s;
  float d[4] = {};
  fill(s);
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  product(d, s);
  GOOD(product_wait();)
  float sum;
  asm volatile("add.f32 %0, %1, %2;" : "=f"(sum) : "f"(d[0]), "f"(d[1]));  // HERE
  BAD(product_wait();)
  if (threadIdx.x < 64) a.y[threadIdx.x] = sum;
}

KERNEL(product_operand_reused) {
  __shared__ Operands s;
  float d[4] = {};
  fill(s);
  asm volatile("fence.proxy.async;" ::: "memory");
  __syncthreads();
  product(d, s);
  GOOD(product_wait();)
  GOOD(__syncthreads();)
  if (threadIdx.x < 64) s.b[threadIdx.x] = 0;  // HERE
  BAD(product_wait();)
  if (threadIdx.x < 64) a.y[threadIdx.x] = d[0] + d[1] + d[2] + d[3];
}
