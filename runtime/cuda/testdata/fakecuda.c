// A libcuda for tests on machines without a GPU: it is compiled against the real cuda.h, so the compiler checks the structs and
// the prototypes that runtime/cuda only asserts. The last launch is kept for the test to read.
#include <cuda.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

struct seen {
  unsigned grid[3], block[3], shared, num_attrs;
  CUstream stream;
  unsigned cluster[3], programmatic, cooperative, padding;
  unsigned char params[256];
  size_t size;
  unsigned long launches, pushes, pops;
} fake_seen;

struct seen* fake_last(void) { return &fake_seen; }
size_t fake_offset(int what) {
  switch (what) {
    case 0: return sizeof(CUlaunchConfig);
    case 1: return offsetof(CUlaunchConfig, hStream);
    case 2: return offsetof(CUlaunchConfig, attrs);
    case 3: return offsetof(CUlaunchConfig, numAttrs);
    case 4: return sizeof(CUlaunchAttribute);
    case 5: return offsetof(CUlaunchAttribute, value);
    case 6: return CU_LAUNCH_ATTRIBUTE_COOPERATIVE;
    case 7: return CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION;
    case 8: return CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION;
    case 9: return CU_STREAM_CAPTURE_MODE_RELAXED;
    case 10: return CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
    case 11: return CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED;
    case 12: return CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN;
    case 13: return CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR;
    case 14: return CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR;
    case 15: return CU_JIT_ERROR_LOG_BUFFER;
    case 16: return CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES;
    case 17: return CUDA_ERROR_UNSUPPORTED_PTX_VERSION;
    case 18: return CUDA_ERROR_NO_BINARY_FOR_GPU;
    case 19: return CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE;
    case 20: return CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE;
    case 21: return CU_FUNC_ATTRIBUTE_BINARY_VERSION;
    case 22: return CU_FUNC_ATTRIBUTE_NUM_REGS;
    case 23: return CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT;
  }
  return (size_t)-1;
}

CUresult cuInit(unsigned flags) { return flags ? CUDA_ERROR_INVALID_VALUE : CUDA_SUCCESS; }
CUresult cuDriverGetVersion(int* v) { *v = 13000; return 0; }
CUresult cuGetErrorName(CUresult r, const char** s) {
  *s = r == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY" : r == CUDA_ERROR_NOT_FOUND ? "CUDA_ERROR_NOT_FOUND" : NULL;
  return *s ? 0 : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuGetErrorString(CUresult r, const char** s) {
  *s = r == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory" : r == CUDA_ERROR_NOT_FOUND ? "named symbol not found" : NULL;
  return *s ? 0 : CUDA_ERROR_INVALID_VALUE;
}
CUresult cuDeviceGetCount(int* n) { *n = 1; return 0; }
CUresult cuDeviceGet(CUdevice* d, int ordinal) { *d = ordinal; return 0; }
CUresult cuDeviceGetName(char* name, int len, CUdevice d) { strncpy(name, "Fake GPU MIG 1g.18gb", len); return 0; }
CUresult cuDeviceGetUuid_v2(CUuuid* u, CUdevice d) { for (int i = 0; i < 16; i++) u->bytes[i] = i; return 0; }
CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice d) { *bytes = 150ull << 30; return 0; }
CUresult cuDeviceGetAttribute(int* v, CUdevice_attribute a, CUdevice d) { *v = 1000 * a; return 0; }

static CUcontext current;
CUresult cuDevicePrimaryCtxRetain(CUcontext* c, CUdevice d) { *c = (CUcontext)0x1234; return 0; }
CUresult cuDevicePrimaryCtxRelease_v2(CUdevice d) { return 0; }
CUresult cuCtxGetCurrent(CUcontext* c) { *c = current; return 0; }
CUresult cuCtxGetDevice(CUdevice* d) { *d = 0; return 0; }
CUresult cuCtxPushCurrent_v2(CUcontext c) { current = c; fake_seen.pushes++; return 0; }
CUresult cuCtxPopCurrent_v2(CUcontext* c) { if (c) *c = current; current = NULL; fake_seen.pops++; return 0; }
CUresult cuCtxSynchronize(void) { return current ? 0 : CUDA_ERROR_INVALID_CONTEXT; }

CUresult cuMemAlloc_v2(CUdeviceptr* p, size_t n) {
  if (n > 1ull << 30) return CUDA_ERROR_OUT_OF_MEMORY;
  *p = (CUdeviceptr)aligned_alloc(256, (n + 255) / 256 * 256);
  return 0;
}
CUresult cuMemFree_v2(CUdeviceptr p) { free((void*)p); return 0; }
CUresult cuMemcpyHtoD_v2(CUdeviceptr d, const void* s, size_t n) { memcpy((void*)d, s, n); return 0; }
CUresult cuMemcpyDtoH_v2(void* d, CUdeviceptr s, size_t n) { memcpy(d, (void*)s, n); return 0; }
CUresult cuMemcpyDtoDAsync_v2(CUdeviceptr d, CUdeviceptr s, size_t n, CUstream st) { memcpy((void*)d, (void*)s, n); return 0; }
CUresult cuMemsetD8_v2(CUdeviceptr d, unsigned char v, size_t n) { memset((void*)d, v, n); return 0; }
CUresult cuMemsetD8Async(CUdeviceptr d, unsigned char v, size_t n, CUstream s) { memset((void*)d, v, n); return 0; }

CUresult cuModuleLoadDataEx(CUmodule* m, const void* image, unsigned n, CUjit_option* o, void** v) {
  if (strstr(image, "WILL NOT LOAD")) {
    if (n == 2 && o[0] == CU_JIT_ERROR_LOG_BUFFER && o[1] == CU_JIT_ERROR_LOG_BUFFER_SIZE_BYTES) strncpy(v[0], "line 3: not PTX", (size_t)v[1]);
    return CUDA_ERROR_INVALID_PTX;
  }
  *m = (CUmodule)0x77;
  return 0;
}
CUresult cuModuleUnload(CUmodule m) { return 0; }
CUresult cuModuleGetFunction(CUfunction* f, CUmodule m, const char* name) {
  if (strcmp(name, "page_score")) return CUDA_ERROR_NOT_FOUND;
  *f = (CUfunction)0x99;
  return 0;
}
CUresult cuFuncGetAttribute(int* v, CUfunction_attribute a, CUfunction f) { *v = 10 + a; return 0; }
CUresult cuFuncSetAttribute(CUfunction f, CUfunction_attribute a, int v) { return 0; }
CUresult cuOccupancyMaxActiveBlocksPerMultiprocessor(int* n, CUfunction f, int block, size_t shared) { *n = 2048 / block; return 0; }

CUresult cuLaunchKernelEx(const CUlaunchConfig* c, CUfunction f, void** params, void** extra) {
  struct seen* s = &fake_seen;
  if (!current || f != (CUfunction)0x99 || params) return CUDA_ERROR_INVALID_VALUE;
  s->grid[0] = c->gridDimX, s->grid[1] = c->gridDimY, s->grid[2] = c->gridDimZ;
  s->block[0] = c->blockDimX, s->block[1] = c->blockDimY, s->block[2] = c->blockDimZ;
  s->shared = c->sharedMemBytes, s->stream = c->hStream, s->num_attrs = c->numAttrs;
  s->cluster[0] = s->cluster[1] = s->cluster[2] = s->programmatic = s->cooperative = 0;
  for (unsigned i = 0; i < c->numAttrs; i++) {
    const CUlaunchAttribute* a = &c->attrs[i];
    if (a->id == CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION)
      s->cluster[0] = a->value.clusterDim.x, s->cluster[1] = a->value.clusterDim.y, s->cluster[2] = a->value.clusterDim.z;
    if (a->id == CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION) s->programmatic = a->value.programmaticStreamSerializationAllowed;
    if (a->id == CU_LAUNCH_ATTRIBUTE_COOPERATIVE) s->cooperative = a->value.cooperative;
  }
  s->size = 0;
  void* buffer = NULL;
  for (void** e = extra; *e != CU_LAUNCH_PARAM_END; e += 2) {
    if (*e == CU_LAUNCH_PARAM_BUFFER_POINTER) buffer = e[1];
    if (*e == CU_LAUNCH_PARAM_BUFFER_SIZE) s->size = *(size_t*)e[1];
  }
  memcpy(s->params, buffer, s->size < sizeof s->params ? s->size : sizeof s->params);
  s->launches++;
  return 0;
}
CUresult cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz, unsigned shared,
                        CUstream stream, void** params, void** extra) {
  CUlaunchConfig c = {gx, gy, gz, bx, by, bz, shared, stream, NULL, 0};
  return cuLaunchKernelEx(&c, f, params, extra);
}

CUresult cuStreamCreate(CUstream* s, unsigned flags) { *s = (CUstream)0x55; return flags == CU_STREAM_NON_BLOCKING ? 0 : CUDA_ERROR_INVALID_VALUE; }
CUresult cuStreamDestroy_v2(CUstream s) { return 0; }
CUresult cuStreamSynchronize(CUstream s) { return 0; }
CUresult cuStreamWaitEvent(CUstream s, CUevent e, unsigned flags) { return 0; }
CUresult cuStreamBeginCapture_v2(CUstream s, CUstreamCaptureMode m) { return m == CU_STREAM_CAPTURE_MODE_RELAXED ? 0 : CUDA_ERROR_INVALID_VALUE; }
CUresult cuStreamEndCapture(CUstream s, CUgraph* g) { *g = (CUgraph)0x33; return 0; }
CUresult cuEventCreate(CUevent* e, unsigned flags) { *e = (CUevent)0x44; return flags == CU_EVENT_DEFAULT ? 0 : CUDA_ERROR_INVALID_VALUE; }
CUresult cuEventDestroy_v2(CUevent e) { return 0; }
CUresult cuEventRecord(CUevent e, CUstream s) { return 0; }
CUresult cuEventSynchronize(CUevent e) { return 0; }
CUresult cuEventElapsedTime_v2(float* ms, CUevent a, CUevent b) { *ms = 1.5f; return 0; }
CUresult cuGraphInstantiateWithFlags(CUgraphExec* x, CUgraph g, unsigned long long flags) { *x = (CUgraphExec)0x34; return 0; }
CUresult cuGraphLaunch(CUgraphExec x, CUstream s) { return x == (CUgraphExec)0x34 ? 0 : CUDA_ERROR_INVALID_HANDLE; }
CUresult cuGraphExecDestroy(CUgraphExec x) { return 0; }
CUresult cuGraphDestroy(CUgraph g) { return 0; }
CUresult cuGraphGetNodes(CUgraph g, CUgraphNode* nodes, size_t* n) { *n = 3; return 0; }
