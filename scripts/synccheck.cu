// A program without a fault that compute-sanitizer's synccheck calls faulty: blocks of a cluster exchange a word each by st.async,
// and every thread of a block waits for the block's barrier. Clusters of 8 pass. In clusters of 16 synccheck tells of a "missing
// wait" where the barrier is armed for the first time and ends the launch (2025.3.1 on an H200); hence verify --max-cluster in
// scripts/gpu.sh.
//   nvcc -arch=sm_90a -o synccheck scripts/synccheck.cu && for n in 8 16; do compute-sanitizer --tool synccheck ./synccheck $n; done
#include <cstdint>
#include <cstdio>
#include <cstdlib>

__device__ uint32_t shared_address(const void* p) { return static_cast<uint32_t>(__cvta_generic_to_shared(p)); }

__device__ uint32_t map_to_rank(uint32_t address, uint32_t rank) {
  uint32_t mapped;
  asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
  return mapped;
}

template <int kCluster>
__global__ void exchange(uint32_t* out) {
  __shared__ uint32_t received[kCluster];
  __shared__ __align__(8) uint64_t landed;
  const uint32_t rank = blockIdx.x, barrier = shared_address(&landed);
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(barrier) : "memory");
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(4 * kCluster) : "memory");
  }
  asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory");
  asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory");
  if (threadIdx.x < kCluster)
    asm volatile("st.async.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     map_to_rank(shared_address(&received[rank]), threadIdx.x)),
                 "r"(rank + 1), "r"(map_to_rank(barrier, threadIdx.x))
                 : "memory");
  uint32_t done;
  do {
    asm volatile(
        "{\n.reg .pred p;\nmbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], 0;\nselp.b32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier)
        : "memory");
  } while (!done);
  if (threadIdx.x < kCluster) out[(blockIdx.y * gridDim.x + rank) * kCluster + threadIdx.x] = received[threadIdx.x];
}

template <int kCluster>
cudaError_t run(uint32_t* out) {
  cudaFuncSetAttribute(exchange<kCluster>, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  cudaLaunchAttribute cluster{};
  cluster.id = cudaLaunchAttributeClusterDimension;
  cluster.val.clusterDim = {kCluster, 1, 1};
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(kCluster, 12);
  config.blockDim = dim3(128);
  config.attrs = &cluster;
  config.numAttrs = 1;
  for (int i = 0; i < 5; i++) cudaLaunchKernelEx(&config, exchange<kCluster>, out);
  return cudaDeviceSynchronize();
}

int main(int, char** argv) {
  uint32_t* out;
  cudaMalloc(&out, 16 * 16 * 12 * sizeof *out);
  const int cluster = atoi(argv[1]);
  const cudaError_t code = cluster == 16 ? run<16>(out) : run<8>(out);
  printf("clusters of %d: %s\n", cluster, cudaGetErrorString(code));
  return code != cudaSuccess;
}
