// Package cuda implements device.Device on NVIDIA's driver API. libcuda is found when the program runs: no cgo, no CUDA headers.
//
// Every call pushes the device's context on the calling OS thread and pops it again, because goroutines move between threads and a
// serving process may keep another context current there. Nothing is left behind on the thread.
package cuda

import (
	"errors"
	"fmt"
	"runtime"
	"strings"
	"sync"

	"github.com/kvloom/kvloom/runtime/device"
)

// MinDriver is the CUDA version that the kernels' PTX (9.0, from NVRTC 13.0) asks of a driver.
const MinDriver = 13000

// Open returns device ordinal of this process (CUDA_VISIBLE_DEVICES applies), on its primary context, which PyTorch and the CUDA
// runtime share. No driver and no device are a *device.Unavailable.
func Open(ordinal int) (device.Device, error) {
	a, err := loaded()
	if err != nil {
		return nil, err
	}
	return a.open(ordinal)
}

// Devices lists every device that this process sees, without creating a context.
func Devices() ([]device.Info, error) {
	a, err := loaded()
	if err != nil {
		return nil, err
	}
	return a.devices()
}

// Attach returns a device on a context that the caller owns, and keeps owning: Close leaves it alone. ctx is a CUcontext.
func Attach(ctx uintptr) (*Device, error) {
	a, err := loaded()
	if err != nil {
		return nil, err
	}
	return a.attach(ctx)
}

// FromCurrent attaches to the context that is current on the calling OS thread. Call it with the goroutine locked to that thread.
func FromCurrent() (*Device, error) {
	a, err := loaded()
	if err != nil {
		return nil, err
	}
	ctx := new(uintptr)
	if r := a.ctxGetCurrent(ctx); r != 0 {
		return nil, a.fail(r, "cuCtxGetCurrent", "")
	}
	if *ctx == 0 {
		return nil, errors.New("cuda: no context is current on this thread; lock the goroutine to the thread that made it, or use cuda.Open")
	}
	return a.attach(*ctx)
}

// loaded opens libcuda and initialises it, once a process. A failure is remembered: cuInit does not recover within a process.
var loaded = sync.OnceValues(func() (*api, error) {
	a, err := load()
	if err != nil {
		return nil, err
	}
	return a, a.start()
})

// start initialises the driver.
func (a *api) start() error {
	r := a.init(0)
	if r == 0 {
		return nil
	}
	u := &device.Unavailable{What: "CUDA driver", Reason: a.fail(r, "cuInit", "").Error(), Remedy: "check that nvidia-smi works here, or use --device sim"}
	switch r {
	case errNoDevice:
		u.What = "CUDA device"
		u.Remedy = "run where an NVIDIA GPU is visible (see CUDA_VISIBLE_DEVICES, and --gpus of the container), or use --device sim"
	case errStubLibrary:
		u.Remedy = "a stub libcuda from the toolkit was found first: take its folder out of LD_LIBRARY_PATH"
	case errDriverMismatch:
		u.Remedy = "libcuda and the kernel module have different versions: reload the module or restart the machine"
	}
	return u
}

func (a *api) devices() ([]device.Info, error) {
	n, err := a.count()
	if err != nil {
		return nil, err
	}
	infos := make([]device.Info, n)
	for i := range infos {
		dev, err := a.deviceAt(i, n)
		if err != nil {
			return nil, err
		}
		if infos[i], err = a.info(dev, i); err != nil {
			return nil, err
		}
	}
	return infos, nil
}

func (a *api) count() (int, error) {
	n := new(int32)
	if r := a.deviceGetCount(n); r != 0 {
		return 0, a.fail(r, "cuDeviceGetCount", "")
	}
	return int(*n), nil
}

func (a *api) deviceAt(ordinal, count int) (int32, error) {
	if count == 0 {
		return 0, &device.Unavailable{What: "CUDA device", Reason: "the driver sees none", Remedy: "see CUDA_VISIBLE_DEVICES, or use --device sim"}
	}
	if ordinal < 0 || ordinal >= count {
		return 0, fmt.Errorf("cuda: no device %d: this process sees %d, numbered from 0", ordinal, count)
	}
	dev := new(int32)
	if r := a.deviceGet(dev, int32(ordinal)); r != 0 {
		return 0, a.fail(r, "cuDeviceGet", fmt.Sprintf("of ordinal %d", ordinal))
	}
	return *dev, nil
}

func (a *api) open(ordinal int) (*Device, error) {
	n, err := a.count()
	if err != nil {
		return nil, err
	}
	dev, err := a.deviceAt(ordinal, n)
	if err != nil {
		return nil, err
	}
	info, err := a.info(dev, ordinal)
	if err != nil {
		return nil, err
	}
	ctx := new(uintptr)
	if r := a.primaryRetain(ctx, dev); r != 0 {
		return nil, a.fail(r, "cuDevicePrimaryCtxRetain", fmt.Sprintf("of device %d (%s)", ordinal, info.Name))
	}
	return &Device{api: a, ctx: *ctx, dev: dev, info: info, owned: true}, nil
}

func (a *api) attach(ctx uintptr) (*Device, error) {
	if ctx == 0 {
		return nil, errors.New("cuda: attach to a null context")
	}
	d := &Device{api: a, ctx: ctx}
	if err := d.enter(); err != nil {
		return nil, err
	}
	dev := new(int32)
	r := a.ctxGetDevice(dev)
	d.leave()
	if r != 0 {
		return nil, a.fail(r, "cuCtxGetDevice", "")
	}
	d.dev = *dev
	var err error
	d.info, err = a.info(d.dev, int(d.dev)) // a CUdevice is its ordinal
	return d, err
}

// attributes of a device, numbered as in cuda.h.
const (
	attrSMs              = 16
	attrECC              = 32
	attrMemoryClock      = 36 // kHz
	attrL2Bytes          = 38
	attrThreadsPerSM     = 39
	attrMajor            = 75
	attrMinor            = 76
	attrSharedPerSM      = 81
	attrRegistersPerSM   = 82
	attrSharedPerBlockIn = 97 // with opt-in
)

func (a *api) info(dev int32, ordinal int) (device.Info, error) {
	i := device.Info{Backend: "cuda", Ordinal: ordinal, DriverName: driverName()}
	name, uuid, total, version := new([256]byte), new([16]byte), new(uint64), new(int32)
	for _, step := range []struct {
		call string
		r    Result
	}{
		{"cuDeviceGetName", a.deviceGetName(name, dev)},
		{"cuDeviceGetUuid_v2", a.deviceGetUUID(uuid, dev)},
		{"cuDeviceTotalMem_v2", a.deviceTotalMem(total, dev)},
		{"cuDriverGetVersion", a.driverGetVersion(version)},
	} {
		if step.r != 0 {
			return i, a.fail(step.r, step.call, fmt.Sprintf("of device %d", ordinal))
		}
	}
	i.Name, _, _ = strings.Cut(string(name[:]), "\x00")
	i.UUID = fmt.Sprintf("GPU-%x-%x-%x-%x-%x", uuid[:4], uuid[4:6], uuid[6:8], uuid[8:10], uuid[10:])
	i.MemoryBytes, i.DriverVersion = int64(*total), int(*version)
	// The driver names a slice "NVIDIA H200 MIG 1g.18gb"; it has no attribute for it.
	i.MultiInstanceGPU = strings.Contains(i.Name, " MIG ")
	var ecc, l2, clock int
	for _, at := range []struct {
		id  int32
		dst *int
	}{
		{attrSMs, &i.SMs}, {attrECC, &ecc}, {attrMemoryClock, &clock}, {attrL2Bytes, &l2}, {attrThreadsPerSM, &i.ThreadsPerSM},
		{attrMajor, &i.Major}, {attrMinor, &i.Minor}, {attrSharedPerSM, &i.SharedPerSM}, {attrRegistersPerSM, &i.RegistersPerSM},
		{attrSharedPerBlockIn, &i.SharedPerBlock},
	} {
		v := new(int32)
		if r := a.deviceGetAttribute(v, at.id, dev); r != 0 {
			return i, a.fail(r, "cuDeviceGetAttribute", fmt.Sprintf("%d of device %d", at.id, ordinal))
		}
		*at.dst = int(*v)
	}
	i.ErrorCorrectionOn, i.L2Bytes, i.MemoryClockMHz = ecc != 0, int64(l2), clock/1000
	return i, nil
}

// MakeCurrent locks the goroutine to its OS thread and makes the context current there until release is called. A serving loop does it
// once: launches find the context current and save two driver calls each.
func (d *Device) MakeCurrent() (release func(), err error) {
	if err := d.enter(); err != nil {
		return nil, err
	}
	return d.leave, nil
}

// enter makes the context current on the calling thread until leave.
func (d *Device) enter() error {
	runtime.LockOSThread()
	if r := d.api.ctxPush(d.ctx); r != 0 {
		runtime.UnlockOSThread()
		return d.api.fail(r, "cuCtxPushCurrent_v2", "of the device's context")
	}
	return nil
}

func (d *Device) leave() {
	d.api.ctxPop(nil)
	runtime.UnlockOSThread()
}
