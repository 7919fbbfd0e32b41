// Kernels for the simulator's tests of control flow, calls, memory, barriers, clusters, atomics and graphs.
#include <cuda_fp16.h>

struct Args {
  const int* x;  // [n]
  int* y;        // [n]
  unsigned* c;   // [64], zeroed
  long long big; // bytes from x to what big_offset reads
  int n;
};
#define KERNEL(name) extern "C" __global__ void name(const __grid_constant__ Args a)

__device__ unsigned smem(const void* p) { return static_cast<unsigned>(__cvta_generic_to_shared(p)); }

KERNEL(collatz) {  // lanes leave a loop at different times
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i >= a.n) return;
  unsigned v = a.x[i];
  int steps = 0;
  while (v != 1) {
    v = v % 2 == 0 ? v / 2 : 3 * v + 1;
    if (++steps == 100) break;
  }
  a.y[i] = steps;
}

KERNEL(nested) {  // loops and breaks inside each other, lanes meeting again after each
  const int i = threadIdx.x;
  int sum = 0;
  for (int j = 0; j < i % 7; j++) {
    for (int k = j; k < 9; k++) {
      if (k == a.x[i] % 11) break;
      if (k % 3 == 1) continue;
      sum += k * j;
    }
    sum += __popc(__ballot_sync(__activemask(), 1)) > 0;
  }
  a.y[i] = sum;
}

KERNEL(jump_table) {
  const int i = threadIdx.x, v = a.x[i];
  int r;
  switch (v % 8) {
    case 0: r = v + 1; break;
    case 1: r = v * 3; break;
    case 2: r = v - 7; break;
    case 3: r = v / 2; break;
    case 4: r = v ^ 21; break;
    case 5: r = ~v; break;
    case 6: r = v << 2; break;
    default: r = -v;
  }
  a.y[i] = r;
}

struct Pair {
  int u, v;
};
__noinline__ __device__ int twice(int v) { return 2 * v + 1; }
__noinline__ __device__ Pair step(Pair p, const int* x) {
  Pair r{p.u + twice(p.v), p.v};
  if (p.v > 3) return r;
  r.v = twice(x[p.v & 3]) % 100;
  return r;
}

KERNEL(calls) {  // functions with structs by value, called under divergence
  const int i = threadIdx.x;
  Pair p{i, i % 6};
  if (i % 3 != 0) {
    p = step(p, a.x);
    p = step(p, a.x);
  }
  a.y[i] = p.u * 1000 + p.v;
}

KERNEL(local_array) {
  int t[16];
  for (int j = 0; j < 16; j++) t[j] = j * j + threadIdx.x;
  a.y[threadIdx.x] = t[a.x[threadIdx.x] & 15];
}

KERNEL(block_sum) {
  __shared__ int s[32];
  int v = threadIdx.x < a.n ? a.x[threadIdx.x] : 0;
  for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
  if (threadIdx.x % 32 == 0) s[threadIdx.x / 32] = v;
  __syncthreads();
  if (threadIdx.x < 32) {
    v = threadIdx.x < blockDim.x / 32 ? s[threadIdx.x] : 0;
    for (int o = 16; o > 0; o /= 2) v += __shfl_xor_sync(~0u, v, o);
    if (threadIdx.x == 0) a.y[blockIdx.x] = v;
  }
}

KERNEL(barrier_votes) {
  const int all = __syncthreads_and(a.x[threadIdx.x] < 1000), any = __syncthreads_or(a.x[threadIdx.x] == 5), count = __syncthreads_count(a.x[threadIdx.x] % 2);
  a.y[threadIdx.x] = all + 10 * any + 100 * count;
}

KERNEL(named_barriers) {  // warp 1 produces for warp 0, by two barriers of 64 threads
  __shared__ int s[32];
  const int lane = threadIdx.x % 32;
  for (int k = 0; k < 4; k++) {
    if (threadIdx.x >= 32) {
      if (k > 0) asm volatile("bar.sync 2, 64;" ::: "memory");
      s[lane] = a.x[lane] + k;
      asm volatile("bar.arrive 1, 64;" ::: "memory");
    } else {
      asm volatile("bar.sync 1, 64;" ::: "memory");
      a.y[32 * k + lane] = s[31 - lane];
      if (k < 3) asm volatile("bar.arrive 2, 64;" ::: "memory");
    }
  }
}

KERNEL(grid_barrier) {  // every block waits for all: they must be resident together
  __shared__ int seen;
  if (threadIdx.x == 0) {
    a.y[blockIdx.x] = a.x[blockIdx.x];
    __threadfence();
    atomicAdd(a.c, 1u);
    while (*static_cast<volatile unsigned*>(a.c) < gridDim.x) {}
    __threadfence();
    seen = static_cast<volatile int*>(a.y)[gridDim.x - 1 - blockIdx.x];
  }
  __syncthreads();
  if (threadIdx.x == 31) a.y[gridDim.x + blockIdx.x] = seen;
}

KERNEL(last_block) {  // the last block to finish sums up, and leaves the counter zeroed
  __shared__ bool last;
  if (threadIdx.x == 0) {
    a.y[1 + blockIdx.x] = a.x[blockIdx.x];
    __threadfence();
    last = atomicInc(a.c, gridDim.x - 1) == gridDim.x - 1;
    __threadfence();
  }
  __syncthreads();
  if (last && threadIdx.x == 0) {
    int sum = 0;
    for (int i = 0; i < static_cast<int>(gridDim.x); i++) sum += a.y[1 + i];
    a.y[0] = sum;
  }
}

KERNEL(lock_in_warp) {  // lanes of one warp take a lock in turn: groups of lanes must make progress side by side
  bool done = false;
  while (!done) {
    if (atomicCAS(a.c, 0u, 1u) == 0) {
      a.y[0] = a.y[0] + 1;
      __threadfence();
      atomicExch(a.c, 0u);
      done = true;
    }
  }
}

KERNEL(atomics) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(&a.c[0], 3u);
  atomicMax(&a.c[1], static_cast<unsigned>(i * 7 % 101));
  atomicMin(reinterpret_cast<int*>(&a.c[2]), -i);
  atomicOr(&a.c[3], 1u << i % 32);
  atomicXor(&a.c[4], static_cast<unsigned>(i));
  atomicAdd(reinterpret_cast<float*>(&a.c[5]), 0.5f);
  atomicAdd(reinterpret_cast<unsigned long long*>(&a.c[6]), 1ull << 20);
  atomicAdd(reinterpret_cast<__half2*>(&a.c[8]), __floats2half2_rn(1.0f, 0.5f));
  atomicDec(&a.c[9], 6u);
  asm volatile("red.global.add.v2.f32 [%0], {%1, %2};" ::"l"(&a.c[10]), "f"(1.0f), "f"(2.0f) : "memory");
}

KERNEL(cluster_ring) {  // each block passes its values to the next, over distributed shared memory and an mbarrier
  __shared__ int inbox[32];
  __shared__ unsigned long long bar;
  unsigned rank, size;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  asm volatile("mov.u32 %0, %%cluster_nctarank;" : "=r"(size));
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(smem(&bar)) : "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(smem(&bar)) : "memory");
  }
  asm volatile("fence.mbarrier_init.release.cluster;\nbarrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
  unsigned box, remote;
  const unsigned next = (rank + 1) % size;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(box) : "r"(smem(&inbox[threadIdx.x])), "r"(next));
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(remote) : "r"(smem(&bar)), "r"(next));
  asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];"
               ::"r"(box), "r"(a.x[threadIdx.x] + static_cast<int>(rank)), "r"(remote) : "memory");
  unsigned done;
  do {
    asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\nselp.b32 %0, 1, 0, p;\n}"
                 : "=r"(done) : "r"(smem(&bar)) : "memory");
  } while (!done);
  a.y[blockIdx.x * 32 + threadIdx.x] = inbox[threadIdx.x];
  asm volatile("barrier.cluster.arrive.aligned;\nbarrier.cluster.wait.aligned;" ::: "memory");
}

KERNEL(bulk_ring) {  // a producer warp keeps two stages of bulk copies in flight for a consumer warp
  __shared__ alignas(128) int stage[2][32];
  __shared__ unsigned long long full[2], empty[2];
  const int lane = threadIdx.x % 32;
  const auto wait = [](unsigned long long* bar, unsigned parity) {
    unsigned done;
    do {
      asm volatile("{\n.reg .pred p;\nmbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\nselp.b32 %0, 1, 0, p;\n}"
                   : "=r"(done) : "r"(smem(bar)), "r"(parity) : "memory");
    } while (!done);
  };
  if (threadIdx.x < 2) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;\nmbarrier.init.shared::cta.b64 [%1], 32;\nfence.proxy.async;" ::"r"(smem(&full[threadIdx.x])),
                 "r"(smem(&empty[threadIdx.x])) : "memory");
  }
  __syncthreads();
  const int tiles = a.n / 32;
  if (threadIdx.x < 32) {
    if (lane == 0) {
      for (int i = 0; i < tiles; i++) {
        if (i >= 2) wait(&empty[i % 2], i / 2 - 1 & 1);
        asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], 128;" ::"r"(smem(&full[i % 2])) : "memory");
        asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 128, [%2];"
                     ::"r"(smem(stage[i % 2])), "l"(a.x + 32 * i), "r"(smem(&full[i % 2])) : "memory");
      }
    }
  } else {
    int sum = 0;
    for (int i = 0; i < tiles; i++) {
      wait(&full[i % 2], i / 2 & 1);
      sum += stage[i % 2][lane];
      asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(smem(&empty[i % 2])) : "memory");
    }
    a.y[lane] = sum;
  }
}

KERNEL(big_offset) {  // 64-bit offsets, far past 2^32
  const char* p = reinterpret_cast<const char*>(a.x) + a.big;
  a.y[threadIdx.x] = reinterpret_cast<const int*>(p)[threadIdx.x];
}

KERNEL(add_one) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < a.n) a.y[i] = a.y[i] + 1;
}

KERNEL(sum_floats) {  // the order of float atomics decides the last bits
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  atomicAdd(reinterpret_cast<float*>(a.y), 1.0f / (1 + a.x[i % a.n]));
}
