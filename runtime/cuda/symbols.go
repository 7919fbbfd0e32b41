package cuda

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"sync"
	"unsafe"

	"github.com/ebitengine/purego"

	"github.com/kvloom/kvloom/runtime/device"
)

// api is the part of libcuda that kvloom uses. Fields are Go functions so that tests put others in their place; pointer arguments
// of a call through a field escape, so what C sees is always on Go's heap, which does not move.
type api struct {
	init             func(flags uint32) Result
	driverGetVersion func(v *int32) Result
	getErrorName     func(r Result, p *unsafe.Pointer) Result
	getErrorString   func(r Result, p *unsafe.Pointer) Result

	deviceGetCount     func(n *int32) Result
	deviceGet          func(dev *int32, ordinal int32) Result
	deviceGetName      func(name *[256]byte, dev int32) Result
	deviceGetUUID      func(uuid *[16]byte, dev int32) Result
	deviceTotalMem     func(bytes *uint64, dev int32) Result
	deviceGetAttribute func(v *int32, attr, dev int32) Result

	primaryRetain  func(ctx *uintptr, dev int32) Result
	primaryRelease func(dev int32) Result
	ctxGetCurrent  func(ctx *uintptr) Result
	ctxGetDevice   func(dev *int32) Result
	ctxPush        func(ctx uintptr) Result
	ctxPop         func(ctx *uintptr) Result // nil: not wanted
	ctxSynchronize func() Result

	memAlloc    func(p *uint64, bytes uint64) Result
	memFree     func(p uint64) Result
	memcpyHtoD  func(dst uint64, src unsafe.Pointer, bytes uint64) Result
	memcpyDtoH  func(dst unsafe.Pointer, src, bytes uint64) Result
	memcpyAsync func(dst, src, bytes uint64, stream uintptr) Result
	memset      func(dst uint64, value byte, bytes uint64) Result
	memsetAsync func(dst uint64, value byte, bytes uint64, stream uintptr) Result

	moduleLoad    func(mod *uintptr, image unsafe.Pointer, n uint32, options *[2]int32, values *[2]uintptr) Result
	moduleUnload  func(mod uintptr) Result
	moduleGetFunc func(f *uintptr, mod uintptr, name *byte) Result
	funcGet       func(v *int32, attr int32, f uintptr) Result
	funcSet       func(f uintptr, attr, v int32) Result
	occupancy     func(n *int32, f uintptr, block int32, shared uint64) Result
	launchEx      func(c *launchConfig, f uintptr, params unsafe.Pointer, extra *[5]uintptr) Result
	launch        func(c *launchConfig, f uintptr, params unsafe.Pointer, extra *[5]uintptr) Result // cuLaunchKernel, c spelt out

	streamCreate       func(s *uintptr, flags uint32) Result
	streamDestroy      func(s uintptr) Result
	streamSynchronize  func(s uintptr) Result
	streamWaitEvent    func(s, event uintptr, flags uint32) Result
	streamBeginCapture func(s uintptr, mode int32) Result
	streamEndCapture   func(s uintptr, graph *uintptr) Result

	eventCreate      func(e *uintptr, flags uint32) Result
	eventDestroy     func(e uintptr) Result
	eventRecord      func(e, stream uintptr) Result
	eventSynchronize func(e uintptr) Result
	eventElapsed     func(ms *float32, start, end uintptr) Result

	graphInstantiate func(exec *uintptr, graph uintptr, flags uint64) Result
	graphLaunch      func(exec, stream uintptr) Result
	graphExecDestroy func(exec uintptr) Result
	graphDestroy     func(graph uintptr) Result
	graphGetNodes    func(graph uintptr, nodes *uintptr, n *uint64) Result // nodes nil: only count
}

// symbol is one function of libcuda: its name with version, and others to try after it, in order.
type symbol struct {
	name     string
	others   []string
	required bool
	bind     func(a *api, fn uintptr)
}

// call is purego's, as a Result. Results come back in 32 bits; the rest of the register is undefined. A pointer converted in the
// argument list of a call stays alive until it returns.
//
//go:uintptrescapes
func call(fn uintptr, args ...uintptr) Result {
	r, _, _ := purego.SyscallN(fn, args...)
	return Result(int32(r))
}

// callHot is call without its heap allocation (arguments of a function marked uintptrescapes go to the heap, the slice with them).
// In exchange a pointer among the arguments stays alive only if the caller keeps it alive.
func callHot(fn uintptr, args ...uintptr) Result {
	buf := arguments.Get().(*[12]uintptr)
	r, _, _ := purego.SyscallN(fn, buf[:copy(buf[:], args)]...)
	arguments.Put(buf)
	return Result(int32(r))
}

var arguments = sync.Pool{New: func() any { return new([12]uintptr) }}

// resolve looks every symbol up. All missing required ones are named in one error.
func resolve(lookup func(name string) (uintptr, bool)) (*api, error) {
	a := &api{}
	var missing []string
	for _, s := range symbols {
		found := false
		for _, name := range append([]string{s.name}, s.others...) {
			if fn, ok := lookup(name); ok {
				s.bind(a, fn)
				found = true
				break
			}
		}
		if !found && s.required {
			missing = append(missing, s.name)
		}
	}
	if missing != nil {
		return nil, &device.Unavailable{What: "CUDA driver", Reason: "libcuda lacks " + strings.Join(missing, ", "),
			Remedy: fmt.Sprintf("update the NVIDIA driver to one of CUDA %s or newer (580), or use --device sim", cudaVersion(MinDriver))}
	}
	return a, nil
}

// libraries are tried in order; WSL keeps libcuda outside the loader's path.
var libraries = []string{"libcuda.so.1", "libcuda.so", "/usr/lib/wsl/lib/libcuda.so.1"}

// load opens libcuda. KVLOOM_LIBCUDA names another file in its place, for tests and unusual installations.
func load() (*api, error) {
	names := libraries
	if file := os.Getenv("KVLOOM_LIBCUDA"); file != "" {
		names = []string{file}
	}
	runtime.LockOSThread() // dlerror's text belongs to the thread
	defer runtime.UnlockOSThread()
	var first error
	for _, name := range names {
		lib, err := purego.Dlopen(name, purego.RTLD_NOW|purego.RTLD_LOCAL)
		if err == nil {
			return resolve(func(name string) (uintptr, bool) {
				fn, err := purego.Dlsym(lib, name)
				return fn, err == nil
			})
		}
		if first == nil {
			first = err
		}
	}
	return nil, &device.Unavailable{What: "CUDA driver", Reason: names[0] + " not found (" + first.Error() + ")",
		Remedy: "install the NVIDIA driver 580 or newer, or use --device sim"}
}
