// Programmatic dependent launch (compute capability 9.0). Without the launch attribute both are no-ops.
#pragma once

namespace kvloom::ptx {

// Waits until the launches before this one in the stream are complete and their writes visible.
__device__ __forceinline__ void wait_for_dependencies() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace kvloom::ptx
