package cuda

import (
	"fmt"
	"runtime"
	"sync"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// launchConfig is CUlaunchConfig of cuda.h.
type launchConfig struct {
	grid, block [3]uint32
	shared      uint32 // bytes
	_           uint32
	stream      uintptr
	attrs       *launchAttribute
	numAttrs    uint32
	_           uint32
}

// launchAttribute is CUlaunchAttribute: an id and a union of 64 bytes, aligned to 8.
type launchAttribute struct {
	_     [0]uint64
	id    uint32
	_     uint32
	value [16]uint32
}

// ids of launch attributes, numbered as in cuda.h.
const (
	attrCooperative  = 2 // int
	attrCluster      = 4 // x, y, z
	attrProgrammatic = 6 // int: programmatic stream serialisation
)

// markers of the extra array: arguments come as one buffer and its size.
const (
	paramEnd    = 0
	paramBuffer = 1
	paramSize   = 2
)

// maxParams is the size of arguments that CUDA takes since 12.1.
const maxParams = 32764

// record is all that C reads of one launch. Records are pooled, so a launch allocates nothing, and they live on the heap, so they
// do not move. params holds the caller's pointer as a pointer: it makes the argument escape even where the call is not through an
// interface, for a goroutine's stack may move before the driver is entered.
type record struct {
	config launchConfig
	attrs  [3]launchAttribute
	extra  [5]uintptr
	size   uintptr
	params unsafe.Pointer
	ctx    uintptr // current on the calling thread
}

var records = sync.Pool{New: func() any { return new(record) }}

// Launch enqueues the kernel on the calling thread; see device.Function.
func (f *Function) Launch(s device.Stream, l *device.Launch, params unsafe.Pointer, size uintptr) error {
	st, ok := s.(*Stream)
	if !ok || st == nil {
		return fmt.Errorf("cuda: launch %s: a stream of this backend is needed, not %T", f.name, s)
	}
	if params == nil && size > 0 || size > maxParams {
		return fmt.Errorf("cuda: launch %s: %d bytes of arguments at %v; at most %d, never at null", f.name, size, params, maxParams)
	}
	rec := records.Get().(*record)
	rec.fill(st.handle, l, params, size)
	r, name := f.enqueue(rec)
	runtime.KeepAlive(params)
	rec.params = nil
	records.Put(rec)
	if r != 0 {
		return f.launchError(r, name, l)
	}
	return nil
}

// fill writes the record.
func (rec *record) fill(stream uintptr, l *device.Launch, params unsafe.Pointer, size uintptr) {
	n := 0
	if c := l.Cluster; c[0]*c[1]*c[2] > 1 {
		rec.attrs[n].id = attrCluster
		rec.attrs[n].value = [16]uint32{c[0], c[1], c[2]}
		n++
	}
	if l.Dependent {
		rec.attrs[n].id = attrProgrammatic
		rec.attrs[n].value = [16]uint32{1}
		n++
	}
	if l.Cooperative {
		rec.attrs[n].id = attrCooperative
		rec.attrs[n].value = [16]uint32{1}
		n++
	}
	rec.config = launchConfig{grid: l.Grid, block: l.Block, shared: l.DynamicShared, stream: stream, numAttrs: uint32(n)}
	if n > 0 {
		rec.config.attrs = &rec.attrs[0]
	}
	rec.params, rec.size = params, size
	rec.extra = [5]uintptr{paramBuffer, uintptr(params), paramSize, uintptr(unsafe.Pointer(&rec.size)), paramEnd}
}

// enqueue calls the driver and names the call that answered.
func (f *Function) enqueue(rec *record) (Result, string) {
	a := f.d.api
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	// A serving thread has its context current already, and then nothing is pushed.
	if r := a.ctxGetCurrent(&rec.ctx); r != 0 || rec.ctx != f.d.ctx {
		if r := a.ctxPush(f.d.ctx); r != 0 {
			return r, "cuCtxPushCurrent_v2"
		}
		defer a.ctxPop(nil)
	}
	switch {
	case a.launchEx != nil:
		return a.launchEx(&rec.config, f.handle, nil, &rec.extra), "cuLaunchKernelEx"
	case rec.config.numAttrs == 0:
		return a.launch(&rec.config, f.handle, nil, &rec.extra), "cuLaunchKernel"
	}
	return errNeedsNewerDriver, "cuLaunchKernelEx"
}

func (f *Function) launchError(r Result, name string, l *device.Launch) error {
	what := fmt.Sprintf("of %s, grid %v, block %v, cluster %v, %d bytes of dynamic shared memory", f.name, l.Grid, l.Block, l.Cluster, l.DynamicShared)
	err := f.d.api.fail(r, name, what)
	if r == errNeedsNewerDriver {
		return fmt.Errorf("%w; clusters and dependent launches need a driver of CUDA 11.8 or newer, this one has CUDA %s",
			err, cudaVersion(f.d.info.DriverVersion))
	}
	return err
}
