package nvrtc

import (
	"fmt"
	"runtime"
	"unsafe"

	"github.com/ebitengine/purego"
)

// library is libnvrtc's entry points, resolved. A program handle is an nvrtcProgram; results are nvrtcResult codes, 0 for success.
type library struct {
	errorString    func(code int32) string
	version        func(major, minor *int32) int32
	createProgram  func(prog *uintptr, src, name *byte, numHeaders int32, headers, names unsafe.Pointer) int32
	destroyProgram func(prog *uintptr) int32
	compileProgram func(prog uintptr, numOptions int32, options unsafe.Pointer) int32
	ptxSize        func(prog uintptr, size *uintptr) int32
	ptx            func(prog uintptr, dst *byte) int32
	cubinSize      func(prog uintptr, size *uintptr) int32
	cubin          func(prog uintptr, dst *byte) int32
	logSize        func(prog uintptr, size *uintptr) int32
	log            func(prog uintptr, dst *byte) int32
	// setFlowCallback lets a context cancel a compilation; nil before NVRTC 12.8.
	setFlowCallback func(prog uintptr, callback, payload uintptr) int32
	// signals is why NVRTC could not be kept from the process's signal handlers; nil where it could.
	signals error
}

// symbol is one row of the table that load resolves: optional symbols stay nil when the library has none.
type symbol struct {
	name     string
	required bool
	fn       any // pointer to a func field of library
}

func (l *library) symbols() []symbol {
	return []symbol{
		{"nvrtcGetErrorString", true, &l.errorString},
		{"nvrtcVersion", true, &l.version},
		{"nvrtcCreateProgram", true, &l.createProgram},
		{"nvrtcDestroyProgram", true, &l.destroyProgram},
		{"nvrtcCompileProgram", true, &l.compileProgram},
		{"nvrtcGetPTXSize", true, &l.ptxSize},
		{"nvrtcGetPTX", true, &l.ptx},
		{"nvrtcGetCUBINSize", true, &l.cubinSize},
		{"nvrtcGetCUBIN", true, &l.cubin},
		{"nvrtcGetProgramLogSize", true, &l.logSize},
		{"nvrtcGetProgramLog", true, &l.log},
		{"nvrtcSetFlowCallback", false, &l.setFlowCallback},
	}
}

// load opens the builtins library and then NVRTC. The order matters: NVRTC opens its builtins by bare name at the first compile,
// which succeeds only when they are loaded already or lie on the loader's path. builtins may be empty where they are.
func load(nvrtc, builtins string) (*library, error) {
	runtime.LockOSThread() // dlerror's text belongs to the thread that failed
	defer runtime.UnlockOSThread()
	if builtins != "" {
		if _, err := purego.Dlopen(builtins, purego.RTLD_NOW|purego.RTLD_GLOBAL); err != nil {
			return nil, fmt.Errorf("load NVRTC's builtins %s: %w", builtins, err)
		}
	}
	handle, err := purego.Dlopen(nvrtc, purego.RTLD_NOW|purego.RTLD_GLOBAL)
	if err != nil {
		return nil, fmt.Errorf("load NVRTC %s: %w", nvrtc, err)
	}
	l := &library{}
	for _, s := range l.symbols() {
		addr, err := purego.Dlsym(handle, s.name)
		switch {
		case err == nil:
			purego.RegisterFunc(s.fn, addr)
		case s.required:
			return nil, fmt.Errorf("load NVRTC %s: %w; NVRTC 12.0 or newer is needed, `make toolchain` installs 13.0", nvrtc, err)
		}
	}
	l.signals = keepSignals(handle, nvrtc)
	return l, nil
}

// check turns a result code into an error that says what was being done.
func (l *library) check(code int32, doing string) error {
	if code == 0 {
		return nil
	}
	return fmt.Errorf("%s: %s", doing, l.errorString(code))
}

// bytes fetches one of a program's outputs by its size and content functions.
func (l *library) bytes(prog uintptr, doing string, size func(uintptr, *uintptr) int32, get func(uintptr, *byte) int32) ([]byte, error) {
	var n uintptr
	if err := l.check(size(prog, &n), doing); err != nil || n == 0 {
		return nil, err
	}
	b := make([]byte, n)
	return b, l.check(get(prog, &b[0]), doing)
}
