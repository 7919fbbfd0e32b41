package cuda

import "unsafe"

// symbols is the table of what is looked up in libcuda. Required ones exist since CUDA 11.4; the version after the name is the one
// that cuda.h of CUDA 13.0 selects, and a wrong one would be called with the wrong arguments.
var symbols = []symbol{
	{"cuInit", nil, true, func(a *api, fn uintptr) { a.init = func(flags uint32) Result { return call(fn, uintptr(flags)) } }},
	{"cuDriverGetVersion", nil, true, func(a *api, fn uintptr) {
		a.driverGetVersion = func(v *int32) Result { return call(fn, uintptr(unsafe.Pointer(v))) }
	}},
	{"cuGetErrorName", nil, true, func(a *api, fn uintptr) {
		a.getErrorName = func(r Result, p *unsafe.Pointer) Result { return call(fn, uintptr(r), uintptr(unsafe.Pointer(p))) }
	}},
	{"cuGetErrorString", nil, true, func(a *api, fn uintptr) {
		a.getErrorString = func(r Result, p *unsafe.Pointer) Result { return call(fn, uintptr(r), uintptr(unsafe.Pointer(p))) }
	}},

	{"cuDeviceGetCount", nil, true, func(a *api, fn uintptr) {
		a.deviceGetCount = func(n *int32) Result { return call(fn, uintptr(unsafe.Pointer(n))) }
	}},
	{"cuDeviceGet", nil, true, func(a *api, fn uintptr) {
		a.deviceGet = func(dev *int32, ordinal int32) Result {
			return call(fn, uintptr(unsafe.Pointer(dev)), uintptr(ordinal))
		}
	}},
	{"cuDeviceGetName", nil, true, func(a *api, fn uintptr) {
		a.deviceGetName = func(name *[256]byte, dev int32) Result {
			return call(fn, uintptr(unsafe.Pointer(name)), uintptr(len(name)), uintptr(dev))
		}
	}},
	{"cuDeviceGetUuid_v2", []string{"cuDeviceGetUuid"}, true, func(a *api, fn uintptr) {
		a.deviceGetUUID = func(uuid *[16]byte, dev int32) Result { return call(fn, uintptr(unsafe.Pointer(uuid)), uintptr(dev)) }
	}},
	{"cuDeviceTotalMem_v2", nil, true, func(a *api, fn uintptr) {
		a.deviceTotalMem = func(bytes *uint64, dev int32) Result { return call(fn, uintptr(unsafe.Pointer(bytes)), uintptr(dev)) }
	}},
	{"cuDeviceGetAttribute", nil, true, func(a *api, fn uintptr) {
		a.deviceGetAttribute = func(v *int32, attr, dev int32) Result {
			return call(fn, uintptr(unsafe.Pointer(v)), uintptr(attr), uintptr(dev))
		}
	}},

	{"cuDevicePrimaryCtxRetain", nil, true, func(a *api, fn uintptr) {
		a.primaryRetain = func(ctx *uintptr, dev int32) Result { return call(fn, uintptr(unsafe.Pointer(ctx)), uintptr(dev)) }
	}},
	{"cuDevicePrimaryCtxRelease_v2", nil, true, func(a *api, fn uintptr) { a.primaryRelease = func(dev int32) Result { return call(fn, uintptr(dev)) } }},
	{"cuCtxGetCurrent", nil, true, func(a *api, fn uintptr) {
		a.ctxGetCurrent = func(ctx *uintptr) Result { return callHot(fn, uintptr(unsafe.Pointer(ctx))) }
	}},
	{"cuCtxGetDevice", nil, true, func(a *api, fn uintptr) {
		a.ctxGetDevice = func(dev *int32) Result { return call(fn, uintptr(unsafe.Pointer(dev))) }
	}},
	{"cuCtxPushCurrent_v2", nil, true, func(a *api, fn uintptr) { a.ctxPush = func(ctx uintptr) Result { return callHot(fn, ctx) } }},
	{"cuCtxPopCurrent_v2", nil, true, func(a *api, fn uintptr) {
		a.ctxPop = func(ctx *uintptr) Result { return callHot(fn, uintptr(unsafe.Pointer(ctx))) }
	}},
	{"cuCtxSynchronize", nil, true, func(a *api, fn uintptr) { a.ctxSynchronize = func() Result { return call(fn) } }},

	{"cuMemAlloc_v2", nil, true, func(a *api, fn uintptr) {
		a.memAlloc = func(p *uint64, bytes uint64) Result { return call(fn, uintptr(unsafe.Pointer(p)), uintptr(bytes)) }
	}},
	{"cuMemFree_v2", nil, true, func(a *api, fn uintptr) { a.memFree = func(p uint64) Result { return call(fn, uintptr(p)) } }},
	{"cuMemcpyHtoD_v2", nil, true, func(a *api, fn uintptr) {
		a.memcpyHtoD = func(dst uint64, src unsafe.Pointer, bytes uint64) Result {
			return call(fn, uintptr(dst), uintptr(src), uintptr(bytes))
		}
	}},
	{"cuMemcpyDtoH_v2", nil, true, func(a *api, fn uintptr) {
		a.memcpyDtoH = func(dst unsafe.Pointer, src, bytes uint64) Result {
			return call(fn, uintptr(dst), uintptr(src), uintptr(bytes))
		}
	}},
	{"cuMemcpyDtoDAsync_v2", nil, true, func(a *api, fn uintptr) {
		a.memcpyAsync = func(dst, src, bytes uint64, s uintptr) Result {
			return call(fn, uintptr(dst), uintptr(src), uintptr(bytes), s)
		}
	}},
	{"cuMemsetD8_v2", nil, true, func(a *api, fn uintptr) {
		a.memset = func(dst uint64, value byte, bytes uint64) Result {
			return call(fn, uintptr(dst), uintptr(value), uintptr(bytes))
		}
	}},
	{"cuMemsetD8Async", nil, true, func(a *api, fn uintptr) {
		a.memsetAsync = func(dst uint64, value byte, bytes uint64, s uintptr) Result {
			return call(fn, uintptr(dst), uintptr(value), uintptr(bytes), s)
		}
	}},

	{"cuModuleLoadDataEx", nil, true, func(a *api, fn uintptr) {
		a.moduleLoad = func(mod *uintptr, image unsafe.Pointer, n uint32, options *[2]int32, values *[2]uintptr) Result {
			return call(fn, uintptr(unsafe.Pointer(mod)), uintptr(image), uintptr(n), uintptr(unsafe.Pointer(options)), uintptr(unsafe.Pointer(values)))
		}
	}},
	{"cuModuleUnload", nil, true, func(a *api, fn uintptr) { a.moduleUnload = func(mod uintptr) Result { return call(fn, mod) } }},
	{"cuModuleGetFunction", nil, true, func(a *api, fn uintptr) {
		a.moduleGetFunc = func(f *uintptr, mod uintptr, name *byte) Result {
			return call(fn, uintptr(unsafe.Pointer(f)), mod, uintptr(unsafe.Pointer(name)))
		}
	}},
	{"cuFuncGetAttribute", nil, true, func(a *api, fn uintptr) {
		a.funcGet = func(v *int32, attr int32, f uintptr) Result {
			return call(fn, uintptr(unsafe.Pointer(v)), uintptr(attr), f)
		}
	}},
	{"cuFuncSetAttribute", nil, true, func(a *api, fn uintptr) {
		a.funcSet = func(f uintptr, attr, v int32) Result { return call(fn, f, uintptr(attr), uintptr(v)) }
	}},
	{"cuOccupancyMaxActiveBlocksPerMultiprocessor", nil, true, func(a *api, fn uintptr) {
		a.occupancy = func(n *int32, f uintptr, block int32, shared uint64) Result {
			return call(fn, uintptr(unsafe.Pointer(n)), f, uintptr(block), uintptr(shared))
		}
	}},
	// Since CUDA 11.8; without it plain launches go through cuLaunchKernel and the rest is refused.
	{"cuLaunchKernelEx", nil, false, func(a *api, fn uintptr) {
		a.launchEx = func(c *launchConfig, f uintptr, params unsafe.Pointer, extra *[5]uintptr) Result {
			return callHot(fn, uintptr(unsafe.Pointer(c)), f, uintptr(params), uintptr(unsafe.Pointer(extra)))
		}
	}},
	{"cuLaunchKernel", nil, true, func(a *api, fn uintptr) {
		a.launch = func(c *launchConfig, f uintptr, params unsafe.Pointer, extra *[5]uintptr) Result {
			return callHot(fn, f, uintptr(c.grid[0]), uintptr(c.grid[1]), uintptr(c.grid[2]), uintptr(c.block[0]), uintptr(c.block[1]),
				uintptr(c.block[2]), uintptr(c.shared), c.stream, uintptr(params), uintptr(unsafe.Pointer(extra)))
		}
	}},

	{"cuStreamCreate", nil, true, func(a *api, fn uintptr) {
		a.streamCreate = func(s *uintptr, flags uint32) Result { return call(fn, uintptr(unsafe.Pointer(s)), uintptr(flags)) }
	}},
	{"cuStreamDestroy_v2", nil, true, func(a *api, fn uintptr) { a.streamDestroy = func(s uintptr) Result { return call(fn, s) } }},
	{"cuStreamSynchronize", nil, true, func(a *api, fn uintptr) { a.streamSynchronize = func(s uintptr) Result { return call(fn, s) } }},
	{"cuStreamWaitEvent", nil, true, func(a *api, fn uintptr) {
		a.streamWaitEvent = func(s, e uintptr, flags uint32) Result { return call(fn, s, e, uintptr(flags)) }
	}},
	{"cuStreamBeginCapture_v2", nil, true, func(a *api, fn uintptr) {
		a.streamBeginCapture = func(s uintptr, mode int32) Result { return call(fn, s, uintptr(mode)) }
	}},
	{"cuStreamEndCapture", nil, true, func(a *api, fn uintptr) {
		a.streamEndCapture = func(s uintptr, graph *uintptr) Result { return call(fn, s, uintptr(unsafe.Pointer(graph))) }
	}},

	{"cuEventCreate", nil, true, func(a *api, fn uintptr) {
		a.eventCreate = func(e *uintptr, flags uint32) Result { return call(fn, uintptr(unsafe.Pointer(e)), uintptr(flags)) }
	}},
	{"cuEventDestroy_v2", nil, true, func(a *api, fn uintptr) { a.eventDestroy = func(e uintptr) Result { return call(fn, e) } }},
	{"cuEventRecord", nil, true, func(a *api, fn uintptr) { a.eventRecord = func(e, s uintptr) Result { return call(fn, e, s) } }},
	{"cuEventSynchronize", nil, true, func(a *api, fn uintptr) { a.eventSynchronize = func(e uintptr) Result { return call(fn, e) } }},
	{"cuEventElapsedTime_v2", []string{"cuEventElapsedTime"}, true, func(a *api, fn uintptr) {
		a.eventElapsed = func(ms *float32, start, end uintptr) Result { return call(fn, uintptr(unsafe.Pointer(ms)), start, end) }
	}},

	{"cuGraphInstantiateWithFlags", nil, true, func(a *api, fn uintptr) {
		a.graphInstantiate = func(exec *uintptr, graph uintptr, flags uint64) Result {
			return call(fn, uintptr(unsafe.Pointer(exec)), graph, uintptr(flags))
		}
	}},
	{"cuGraphLaunch", nil, true, func(a *api, fn uintptr) { a.graphLaunch = func(exec, s uintptr) Result { return callHot(fn, exec, s) } }},
	{"cuGraphExecDestroy", nil, true, func(a *api, fn uintptr) { a.graphExecDestroy = func(exec uintptr) Result { return call(fn, exec) } }},
	{"cuGraphDestroy", nil, true, func(a *api, fn uintptr) { a.graphDestroy = func(graph uintptr) Result { return call(fn, graph) } }},
	{"cuGraphGetNodes", nil, true, func(a *api, fn uintptr) {
		a.graphGetNodes = func(graph uintptr, nodes *uintptr, n *uint64) Result {
			return call(fn, graph, uintptr(unsafe.Pointer(nodes)), uintptr(unsafe.Pointer(n)))
		}
	}},
}
