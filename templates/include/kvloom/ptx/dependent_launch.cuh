// Programmatic dependent launch (compute capability 9.0). Without the launch attribute both are no-ops.
#pragma once

namespace kvloom::ptx {

// Waits until the launches before this one in the stream are complete and their writes visible.
__device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// Lets the launch that depends on this one start as soon as every block of this one has said so or has ended. It still has to wait
// for all of this launch before it reads what this launch writes, so this may be the first thing that a kernel does: what a kernel
// writes before its own wait must then be its own shared memory alone. Older GPUs know no such launches.
__device__ __forceinline__ void launch_dependents() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
  asm volatile("griddepcontrol.launch_dependents;");
#endif
}

}  // namespace kvloom::ptx
