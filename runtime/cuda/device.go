package cuda

import (
	"fmt"
	"sync"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
)

// Device is one GPU and one context on it. It implements device.Device.
type Device struct {
	api   *api
	ctx   uintptr // CUcontext
	dev   int32   // CUdevice
	info  device.Info
	owned bool // the primary context was retained by Open

	closing sync.Once
}

var _ device.Device = (*Device)(nil)

// Info describes the device.
func (d *Device) Info() device.Info { return d.info }

// Context is the CUcontext, for callers that mix kvloom with other CUDA code.
func (d *Device) Context() uintptr { return d.ctx }

// do runs fn with the context current. name is the driver's function, what names the operands of an error.
func (d *Device) do(name string, what func() string, fn func() Result) error {
	if err := d.enter(); err != nil {
		return err
	}
	r := fn()
	d.leave()
	if r != 0 {
		return d.api.fail(r, name, what())
	}
	return nil
}

func nothing() string { return "" }

// Alloc returns device memory, 256-byte aligned.
func (d *Device) Alloc(bytes int64) (device.Ptr, error) {
	what := func() string { return fmt.Sprintf("of %d bytes", bytes) }
	if bytes <= 0 {
		return 0, fmt.Errorf("cuda: allocate %d bytes on %s: a positive size is needed", bytes, d.info.Name)
	}
	p := new(uint64)
	err := d.do("cuMemAlloc_v2", what, func() Result { return d.api.memAlloc(p, uint64(bytes)) })
	return device.Ptr(*p), err
}

// Free returns memory of Alloc. Null is a no-op.
func (d *Device) Free(p device.Ptr) error {
	if p == 0 {
		return nil
	}
	return d.do("cuMemFree_v2", func() string { return fmt.Sprintf("of %#x", p) }, func() Result { return d.api.memFree(uint64(p)) })
}

// Write copies to the device and waits. From pageable memory the driver returns once the bytes are staged; the synchronise makes
// them visible to non-blocking streams as well.
func (d *Device) Write(dst device.Ptr, src []byte) error {
	if len(src) == 0 {
		return nil
	}
	what := func() string { return fmt.Sprintf("of %d bytes to %#x", len(src), dst) }
	return d.do("cuMemcpyHtoD_v2", what, func() Result {
		if r := d.api.memcpyHtoD(uint64(dst), unsafe.Pointer(unsafe.SliceData(src)), uint64(len(src))); r != 0 {
			return r
		}
		return d.api.streamSynchronize(0)
	})
}

// Read copies from the device and waits.
func (d *Device) Read(dst []byte, src device.Ptr) error {
	if len(dst) == 0 {
		return nil
	}
	what := func() string { return fmt.Sprintf("of %d bytes from %#x", len(dst), src) }
	return d.do("cuMemcpyDtoH_v2", what, func() Result {
		return d.api.memcpyDtoH(unsafe.Pointer(unsafe.SliceData(dst)), uint64(src), uint64(len(dst)))
	})
}

// Fill sets bytes and waits: cuMemsetD8 alone returns before the device is done.
func (d *Device) Fill(dst device.Ptr, value byte, bytes int64) error {
	if bytes == 0 {
		return nil
	}
	what := func() string { return fmt.Sprintf("of %d bytes at %#x", bytes, dst) }
	if bytes < 0 {
		return fmt.Errorf("cuda: fill %s: the size is negative", what())
	}
	return d.do("cuMemsetD8_v2", what, func() Result {
		if r := d.api.memset(uint64(dst), value, uint64(bytes)); r != 0 {
			return r
		}
		return d.api.streamSynchronize(0)
	})
}

// Synchronize waits for all work of the context; a fault of an earlier kernel is reported here.
func (d *Device) Synchronize() error { return d.do("cuCtxSynchronize", nothing, d.api.ctxSynchronize) }

// Close gives the primary context back. What was made from the device must not be used afterwards. An attached context stays.
func (d *Device) Close() error {
	var err error
	d.closing.Do(func() {
		if !d.owned {
			return
		}
		if r := d.api.primaryRelease(d.dev); r != 0 {
			err = d.api.fail(r, "cuDevicePrimaryCtxRelease_v2", fmt.Sprintf("of device %d", d.info.Ordinal))
		}
	})
	return err
}
