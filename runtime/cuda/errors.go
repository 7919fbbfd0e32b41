package cuda

import (
	"fmt"
	"os"
	"regexp"
	"sync"
	"unsafe"
)

// Result is a CUresult.
type Result int32

// The results that need more than the driver's own words.
const (
	errOutOfMemory      Result = 2
	errStubLibrary      Result = 34
	errNeedsNewerDriver Result = 36
	errNoDevice         Result = 100
	errInvalidImage     Result = 200
	errNoBinary         Result = 209
	errInvalidPTX       Result = 218
	errNoJIT            Result = 221
	errPTXVersion       Result = 222
	errDriverMismatch   Result = 803
)

// Error is a driver call that failed: what was called, with what, and the driver's name and text for the result.
type Error struct {
	Call string // "cuMemAlloc_v2"
	What string // "of 1073741824 bytes"; may be empty
	Code Result
	Name string // "CUDA_ERROR_OUT_OF_MEMORY"
	Text string // "out of memory"
}

func (e *Error) Error() string {
	what := e.What
	if what != "" {
		what = " " + what
	}
	return fmt.Sprintf("%s%s: %s: %s", e.Call, what, e.Name, e.Text)
}

// Sticky tells whether the context is lost: every later call in this process fails too, and only a new process recovers.
func (e *Error) Sticky() bool {
	switch e.Code {
	case 214, 220, 226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 999:
		return true // ECC, NVLink, contained, illegal address, timeout, assert, stack, instruction, misaligned, space, pc, launch, unknown
	}
	return false
}

// OutOfMemory tells whether the device had no room for what was asked for.
func (e *Error) OutOfMemory() bool { return e.Code == errOutOfMemory }

// fail makes the error of a result.
func (a *api) fail(r Result, call, what string) error {
	e := &Error{Call: call, What: what, Code: r, Name: fmt.Sprintf("CUDA error %d", r), Text: "this driver has no text for it"}
	p := new(unsafe.Pointer)
	if a.getErrorName(r, p) == 0 && *p != nil {
		e.Name = cString(*p)
	}
	*p = nil
	if a.getErrorString(r, p) == 0 && *p != nil {
		e.Text = cString(*p)
	}
	return e
}

// cString copies a NUL-terminated string of the driver's.
func cString(p unsafe.Pointer) string {
	n := 0
	for *(*byte)(unsafe.Add(p, n)) != 0 {
		n++
	}
	return string(unsafe.Slice((*byte)(p), n))
}

var driverVersion = regexp.MustCompile(`Kernel Module[^\n]*?\s(\d{3,}\.\d+(?:\.\d+)?)\s`)

// driverName is the driver's own version, "580.159.04", or "" where the kernel module does not say (WSL).
var driverName = sync.OnceValue(func() string {
	text, err := os.ReadFile("/proc/driver/nvidia/version")
	if err != nil {
		return ""
	}
	return parseDriverName(text)
})

func parseDriverName(text []byte) string {
	if m := driverVersion.FindSubmatch(text); m != nil {
		return string(m[1])
	}
	return ""
}

// cudaVersion spells 13000 as "13.0".
func cudaVersion(v int) string { return fmt.Sprintf("%d.%d", v/1000, v%1000/10) }
