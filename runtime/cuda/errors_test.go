package cuda

import (
	"errors"
	"path/filepath"
	"strings"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/runtime/device"
)

// fakeAPI is a driver in Go: one device of compute capability major.minor under a driver of CUDA version v. Every call is noted.
func fakeAPI(v int32, major, minor int32, calls *[]string) *api {
	note := func(s string) Result { *calls = append(*calls, s); return 0 }
	names := map[Result][2]string{
		errPTXVersion: {"CUDA_ERROR_UNSUPPORTED_PTX_VERSION\x00", "the provided PTX was compiled with an unsupported toolchain.\x00"},
		errNoBinary:   {"CUDA_ERROR_NO_BINARY_FOR_GPU\x00", "no kernel image is available for execution on the device\x00"},
		errNoDevice:   {"CUDA_ERROR_NO_DEVICE\x00", "no CUDA-capable device is detected\x00"},
		1:             {"CUDA_ERROR_INVALID_VALUE\x00", "invalid argument\x00"},
		201:           {"CUDA_ERROR_INVALID_CONTEXT\x00", "invalid device context\x00"},
	}
	text := func(i int) func(Result, *unsafe.Pointer) Result {
		return func(r Result, p *unsafe.Pointer) Result {
			s, ok := names[r]
			if !ok {
				return 1
			}
			*p = unsafe.Pointer(unsafe.StringData(s[i]))
			return 0
		}
	}
	return &api{
		init:             func(uint32) Result { return 0 },
		getErrorName:     text(0),
		getErrorString:   text(1),
		driverGetVersion: func(p *int32) Result { *p = v; return 0 },
		deviceGetCount:   func(n *int32) Result { *n = 1; return 0 },
		deviceGet:        func(dev *int32, ordinal int32) Result { *dev = ordinal; return 0 },
		deviceGetName:    func(name *[256]byte, _ int32) Result { copy(name[:], "NVIDIA GH200 480GB"); return 0 },
		deviceGetUUID:    func(*[16]byte, int32) Result { return 0 },
		deviceTotalMem:   func(b *uint64, _ int32) Result { *b = 96 << 30; return 0 },
		deviceGetAttribute: func(p *int32, attr, _ int32) Result {
			*p = map[int32]int32{attrMajor: major, attrMinor: minor, attrSMs: 132}[attr]
			return 0
		},
		primaryRetain:  func(ctx *uintptr, _ int32) Result { *ctx = 7; return note("retain") },
		primaryRelease: func(int32) Result { return note("release") },
		ctxGetDevice:   func(dev *int32) Result { *dev = 0; return 0 },
		ctxGetCurrent:  func(ctx *uintptr) Result { *ctx = 0; return 0 },
		ctxPush:        func(uintptr) Result { return note("push") },
		ctxPop:         func(*uintptr) Result { return note("pop") },
		moduleLoad: func(m *uintptr, _ unsafe.Pointer, _ uint32, _ *[2]int32, _ *[2]uintptr) Result {
			*m = 8
			return note("load")
		},
		moduleGetFunc: func(f *uintptr, _ uintptr, _ *byte) Result { *f = 9; return note("function") },
		streamCreate:  func(s *uintptr, _ uint32) Result { *s = 10; return note("stream") },
		launch:        func(*launchConfig, uintptr, unsafe.Pointer, *[5]uintptr) Result { return note("launch") },
		launchEx:      func(*launchConfig, uintptr, unsafe.Pointer, *[5]uintptr) Result { return note("launchEx") },
	}
}

// cubin is as much of an ELF header as errors need.
func cubin(abi byte, flags uint32) []byte {
	b := make([]byte, 64)
	copy(b, "\x7fELF\x02\x01\x01\x41")
	b[8] = abi
	b[48], b[49], b[50], b[51] = byte(flags), byte(flags>>8), byte(flags>>16), byte(flags>>24)
	return b
}

func TestLoadErrorsNameBothVersions(t *testing.T) {
	const ptx9 = "//\n// Generated\n.version 9.0\n.target sm_90a\n.address_size 64\n"
	for _, tc := range []struct {
		name, reason string
		driver       int32
		major, minor int32
		image        []byte
		result       Result
		want         []string
	}{
		{"PTX newer than the driver (C11)", "both versions and the remedy", 12040, 9, 0, []byte(ptx9), errPTXVersion,
			[]string{"PTX 9.0 for sm_90a", "PTX 9.0 needs a driver of CUDA 13.0 or newer, this one has CUDA 12.4: update the driver", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION"}},
		{"PTX of the future", "a version that this build does not know is not guessed", 13000, 9, 0, []byte(strings.Replace(ptx9, "9.0", "11.3", 1)), errPTXVersion,
			[]string{"PTX 11.3 needs a driver of a newer CUDA, this one has CUDA 13.0"}},
		{"cubin of another architecture (C5)", "both architectures", 13000, 8, 0, cubin(8, 0x06005a04), errNoBinary,
			[]string{"load cubin for sm_90 on NVIDIA GH200 480GB (sm_80)", "code for sm_90 does not run on sm_80", "CUDA_ERROR_NO_BINARY_FOR_GPU"}},
		{"old cubin", "the architecture was the low byte before CUDA 13", 13000, 9, 0, cubin(7, 0x00500550), errNoBinary,
			[]string{"code for sm_80 does not run on sm_90"}},
	} {
		t.Run(tc.name, func(t *testing.T) {
			a := fakeAPI(tc.driver, tc.major, tc.minor, new([]string))
			a.moduleLoad = func(*uintptr, unsafe.Pointer, uint32, *[2]int32, *[2]uintptr) Result { return tc.result }
			d, err := a.open(0)
			if err != nil {
				t.Fatal(err)
			}
			_, err = d.Load(tc.image)
			var le *LoadError
			if !errors.As(err, &le) {
				t.Fatalf("%s: got %v, want a *LoadError", tc.reason, err)
			}
			for _, w := range tc.want {
				if !strings.Contains(err.Error(), w) {
					t.Errorf("%s: %q lacks %q", tc.reason, err, w)
				}
			}
		})
	}
}

func TestLoadRefusesOtherBytes(t *testing.T) {
	d, err := fakeAPI(13000, 9, 0, new([]string)).open(0)
	if err != nil {
		t.Fatal(err)
	}
	for _, image := range []string{"", "hello", ".version 9.0\n", "\x00\x00"} {
		if m, err := d.Load([]byte(image)); err == nil || m != nil {
			t.Errorf("%q was loaded as %v", image, m)
		}
	}
}

func TestUnavailable(t *testing.T) {
	t.Setenv("KVLOOM_LIBCUDA", filepath.Join(t.TempDir(), "none.so"))
	_, noLibrary := load()
	_, old := resolve(func(name string) (uintptr, bool) {
		return 1, name != "cuStreamBeginCapture_v2" && name != "cuMemAlloc_v2"
	})
	a := fakeAPI(13000, 9, 0, new([]string))
	a.init = func(uint32) Result { return errNoDevice }
	noDevice := a.start()
	a.deviceGetCount = func(n *int32) Result { *n = 0; return 0 }
	_, none := a.open(0)
	for _, tc := range []struct {
		name string
		err  error
		want []string
	}{
		{"no driver", noLibrary, []string{"CUDA driver: ", "none.so not found", "install the NVIDIA driver"}},
		{"old driver", old, []string{"libcuda lacks cuMemAlloc_v2, cuStreamBeginCapture_v2", "update the NVIDIA driver"}},
		{"no device", noDevice, []string{"CUDA device: cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected", "--device sim"}},
		{"none visible", none, []string{"CUDA device: the driver sees none", "CUDA_VISIBLE_DEVICES"}},
	} {
		var u *device.Unavailable
		if !errors.As(tc.err, &u) {
			t.Errorf("%s: got %v, want a *device.Unavailable", tc.name, tc.err)
			continue
		}
		for _, w := range tc.want {
			if !strings.Contains(u.Error(), w) {
				t.Errorf("%s: %q lacks %q", tc.name, u, w)
			}
		}
	}
	if _, err := fakeAPI(13000, 9, 0, new([]string)).open(3); err == nil || !strings.Contains(err.Error(), "no device 3: this process sees 1") {
		t.Errorf("ordinal 3 of 1: %v", err)
	}
}

func TestOptionalSymbol(t *testing.T) {
	a, err := resolve(func(name string) (uintptr, bool) {
		return 1, name != "cuLaunchKernelEx" && name != "cuEventElapsedTime_v2"
	})
	if err != nil || a.launchEx != nil || a.eventElapsed == nil {
		t.Errorf("an optional symbol and an older name of one: %v", err)
	}
}

func TestLaunchWithoutEx(t *testing.T) {
	var calls []string
	a := fakeAPI(11040, 9, 0, &calls)
	a.launchEx = nil
	_, f, s := open(t, library{api: a})
	calls = nil
	one := [3]uint32{1, 1, 1}
	if err := f.Launch(s, &device.Launch{Grid: one, Block: one, Cluster: one}, nil, 0); err != nil {
		t.Fatal(err)
	}
	err := f.Launch(s, &device.Launch{Grid: one, Block: one, Cluster: [3]uint32{2, 1, 1}}, nil, 0)
	if err == nil || !strings.Contains(err.Error(), "need a driver of CUDA 11.8 or newer, this one has CUDA 11.4") {
		t.Errorf("a cluster without cuLaunchKernelEx: %v", err)
	}
	if diff := cmp.Diff([]string{"push", "launch", "pop", "push", "pop"}, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
}

func TestLaunchRefusals(t *testing.T) {
	var calls []string
	a := fakeAPI(13000, 9, 0, &calls)
	a.launchEx = func(*launchConfig, uintptr, unsafe.Pointer, *[5]uintptr) Result { return 1 }
	_, f, s := open(t, library{api: a})
	l := &device.Launch{Grid: [3]uint32{0, 1, 1}, Block: [3]uint32{32, 1, 1}}
	for _, tc := range []struct {
		name string
		err  error
		want string
	}{
		{"no stream", f.Launch(nil, l, nil, 0), "a stream of this backend is needed"},
		{"typed nil", f.Launch((*Stream)(nil), l, nil, 0), "a stream of this backend is needed"},
		{"null arguments", f.Launch(s, l, nil, 8), "never at null"},
		{"the driver's own", f.Launch(s, l, nil, 0), "cuLaunchKernelEx of page_score, grid [0 1 1], block [32 1 1], cluster [0 0 0], 0 bytes of dynamic shared memory: CUDA_ERROR_INVALID_VALUE: invalid argument"},
	} {
		if tc.err == nil || !strings.Contains(tc.err.Error(), tc.want) {
			t.Errorf("%s: got %v, want %q", tc.name, tc.err, tc.want)
		}
	}
	a.ctxPush = func(uintptr) Result { return 201 }
	if err := f.Launch(s, l, nil, 0); err == nil || !strings.Contains(err.Error(), "cuCtxPushCurrent_v2") {
		t.Errorf("a lost context: %v", err)
	}
}

func TestCloseLeavesAnAttachedContext(t *testing.T) {
	var calls []string
	a := fakeAPI(13000, 9, 0, &calls)
	d, err := a.attach(0x1234)
	if err != nil {
		t.Fatal(err)
	}
	if err := d.Close(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"push", "pop"}, calls); diff != "" {
		t.Errorf("calls (-want +got):\n%s", diff)
	}
	if _, err := a.attach(0); err == nil {
		t.Error("a null context was attached")
	}
}

func TestSticky(t *testing.T) {
	for _, tc := range []struct {
		code Result
		want bool
	}{{700, true}, {719, true}, {702, true}, {2, false}, {1, false}, {701, false}, {209, false}} {
		if got := (&Error{Code: tc.code}).Sticky(); got != tc.want {
			t.Errorf("result %d: sticky %v, want %v", tc.code, got, tc.want)
		}
	}
}

func TestDriverName(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar  5 22:23:56 UTC 2024\nGCC version: gcc 12", "550.54.15"},
		{"NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build  (x@y)\n", "580.159.04"},
		{"nothing of the kind", ""},
	} {
		if got := parseDriverName([]byte(tc.text)); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}
