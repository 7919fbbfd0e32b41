package cuda

import (
	"fmt"
	"runtime"
	"strings"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Module is loaded code. It implements device.Module.
type Module struct {
	d      *Device
	handle uintptr
}

// options of cuModuleLoadDataEx.
const (
	jitErrorLog      = 5
	jitErrorLogBytes = 6
	jitLogSize       = 8 << 10
)

// Load makes a module of a cubin or of PTX text.
func (d *Device) Load(image []byte) (device.Module, error) {
	img, err := inspect(image)
	if err != nil {
		return nil, err
	}
	data := image
	if img.ptx {
		data = append(append(make([]byte, 0, len(image)+1), image...), 0) // the driver takes PTX as a C string
	}
	log := new([jitLogSize]byte)
	m := &Module{d: d}
	options := &[2]int32{jitErrorLog, jitErrorLogBytes}
	values := &[2]uintptr{uintptr(unsafe.Pointer(log)), jitLogSize}
	if err := d.enter(); err != nil {
		return nil, err
	}
	r := d.api.moduleLoad(&m.handle, unsafe.Pointer(unsafe.SliceData(data)), uint32(len(options)), options, values)
	runtime.KeepAlive(log)
	runtime.KeepAlive(data)
	d.leave()
	if r != 0 {
		text, _, _ := strings.Cut(string(log[:]), "\x00")
		return nil, d.loadError(r, img, strings.TrimSpace(text))
	}
	return m, nil
}

// LoadError is code that this device or its driver cannot take.
type LoadError struct {
	Image  string // "PTX 9.0 for sm_90a", "cubin for sm_90"
	Device string // "NVIDIA A100 (sm_80), driver 550.54 with CUDA 12.4"
	Remedy string
	Log    string // of the driver's PTX compiler; may be empty
	Err    error
}

func (e *LoadError) Error() string {
	s := fmt.Sprintf("load %s on %s: %v", e.Image, e.Device, e.Err)
	if e.Remedy != "" {
		s += "; " + e.Remedy
	}
	if e.Log != "" {
		s += "\n" + e.Log
	}
	return s
}

func (e *LoadError) Unwrap() error { return e.Err }

// loadError says which version or architecture does not fit which, and what to do.
func (d *Device) loadError(r Result, img image, log string) error {
	e := &LoadError{Image: img.String(), Device: d.describe(), Log: log, Err: d.api.fail(r, "cuModuleLoadDataEx", "")}
	switch r {
	case errPTXVersion:
		needs := "a newer CUDA"
		if v, ok := img.needsCUDA(); ok {
			needs = "CUDA " + v + " or newer"
		}
		e.Remedy = fmt.Sprintf("PTX %s needs a driver of %s, this one has CUDA %s: update the driver, or compile with an older NVRTC (KVLOOM_NVRTC)",
			img.version, needs, cudaVersion(d.info.DriverVersion))
	case errNoBinary, errInvalidImage:
		e.Remedy = fmt.Sprintf("code for %s does not run on sm_%d%d: load the portable PTX there, or tune on that device", img.target, d.info.Major, d.info.Minor)
	case errInvalidPTX:
		e.Remedy = fmt.Sprintf("the driver's compiler refused it for sm_%d%d; its log follows if it wrote one", d.info.Major, d.info.Minor)
	case errNoJIT:
		e.Remedy = "libnvidia-ptxjitcompiler is missing beside libcuda: install the whole driver, or load a cubin for this device"
	}
	return e
}

func (d *Device) describe() string {
	name := d.info.DriverName
	if name != "" {
		name += " "
	}
	return fmt.Sprintf("%s (sm_%d%d), driver %swith CUDA %s", d.info.Name, d.info.Major, d.info.Minor, name, cudaVersion(d.info.DriverVersion))
}

// Unload frees the code. Its functions must not be used afterwards.
func (m *Module) Unload() error {
	return m.d.do("cuModuleUnload", nothing, func() Result { return m.d.api.moduleUnload(m.handle) })
}

// Function finds a kernel by its extern "C" name.
func (m *Module) Function(name string) (device.Function, error) {
	f := &Function{d: m.d, name: name}
	c := append([]byte(name), 0)
	err := m.d.do("cuModuleGetFunction", func() string { return fmt.Sprintf("of %q", name) },
		func() Result { return m.d.api.moduleGetFunc(&f.handle, m.handle, &c[0]) })
	if err != nil {
		return nil, err
	}
	return f, nil
}

// Function is one kernel. It implements device.Function.
type Function struct {
	d      *Device
	handle uintptr
	name   string
}

// Name is the kernel's name.
func (f *Function) Name() string { return f.name }

// Handle is the CUfunction.
func (f *Function) Handle() uintptr { return f.handle }

// attributes of a function, numbered as in cuda.h.
const (
	funcMaxThreads    = 0
	funcShared        = 1
	funcLocal         = 3
	funcRegisters     = 4
	funcPTXVersion    = 5
	funcBinaryVersion = 6
	funcMaxDynamic    = 8
	funcCarveout      = 9
	funcNonPortable   = 14
)

// Attributes are what the compiler gave the kernel.
func (f *Function) Attributes() (device.FuncAttributes, error) {
	var a device.FuncAttributes
	for _, at := range []struct {
		id  int32
		dst *int
	}{
		{funcRegisters, &a.Registers}, {funcLocal, &a.LocalBytes}, {funcShared, &a.SharedBytes}, {funcMaxThreads, &a.MaxThreads},
		{funcBinaryVersion, &a.BinaryVersion}, {funcPTXVersion, &a.PTXVersion},
	} {
		v := new(int32)
		what := func() string { return fmt.Sprintf("%d of %s", at.id, f.name) }
		if err := f.d.do("cuFuncGetAttribute", what, func() Result { return f.d.api.funcGet(v, at.id, f.handle) }); err != nil {
			return a, err
		}
		*at.dst = int(*v)
	}
	return a, nil
}

// SetMaxDynamicShared implements device.Function.
func (f *Function) SetMaxDynamicShared(bytes int) error {
	what := func() string {
		return fmt.Sprintf("MAX_DYNAMIC_SHARED_SIZE_BYTES = %d of %s (the device allows %d)", bytes, f.name, f.d.info.SharedPerBlock)
	}
	return f.d.do("cuFuncSetAttribute", what, func() Result { return f.d.api.funcSet(f.handle, funcMaxDynamic, int32(bytes)) })
}

// PreferShared implements device.PreferShared.
func (f *Function) PreferShared() error {
	what := func() string { return "PREFERRED_SHARED_MEMORY_CARVEOUT of " + f.name }
	return f.d.do("cuFuncSetAttribute", what, func() Result { return f.d.api.funcSet(f.handle, funcCarveout, 100) })
}

// SetNonPortableCluster allows clusters of 16.
func (f *Function) SetNonPortableCluster() error {
	what := func() string { return "NON_PORTABLE_CLUSTER_SIZE_ALLOWED of " + f.name }
	return f.d.do("cuFuncSetAttribute", what, func() Result { return f.d.api.funcSet(f.handle, funcNonPortable, 1) })
}

// Occupancy is how many blocks of this size fit on one SM.
func (f *Function) Occupancy(blockThreads, dynamicShared int) (int, error) {
	n := new(int32)
	what := func() string { return fmt.Sprintf("of %s, %d threads, %d bytes", f.name, blockThreads, dynamicShared) }
	err := f.d.do("cuOccupancyMaxActiveBlocksPerMultiprocessor", what,
		func() Result { return f.d.api.occupancy(n, f.handle, int32(blockThreads), uint64(dynamicShared)) })
	return int(*n), err
}
