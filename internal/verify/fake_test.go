package verify

import (
	"fmt"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// fakeDevice is host memory behind device.Device. Its kernels are Go functions; memory is one slab, so that a write past a buffer
// lands in the next one, as on a GPU.
type fakeDevice struct {
	memory []byte
	next   int64
	freed  int
}

const fakeBase = 1 << 40

func newFake() *fakeDevice { return &fakeDevice{memory: make([]byte, 64<<20)} }

func (d *fakeDevice) Info() device.Info {
	return device.Info{Backend: "fake", Name: "fake", Major: 9, SMs: 4}
}

func (d *fakeDevice) Alloc(bytes int64) (device.Ptr, error) {
	if bytes <= 0 || d.next+bytes > int64(len(d.memory)) {
		return 0, fmt.Errorf("fake: no %d bytes", bytes)
	}
	p := device.Ptr(fakeBase + d.next)
	d.next += (bytes + 255) / 256 * 256
	return p, nil
}

func (d *fakeDevice) Free(device.Ptr) error { d.freed++; return nil }

func (d *fakeDevice) at(p device.Ptr, n int) []byte {
	return d.memory[int64(p)-fakeBase:][:n]
}

func (d *fakeDevice) Write(dst device.Ptr, src []byte) error {
	copy(d.at(dst, len(src)), src)
	return nil
}
func (d *fakeDevice) Read(dst []byte, src device.Ptr) error {
	copy(dst, d.at(src, len(dst)))
	return nil
}
func (d *fakeDevice) Fill(dst device.Ptr, value byte, bytes int64) error {
	b := d.at(dst, int(bytes))
	for i := range b {
		b[i] = value
	}
	return nil
}
func (d *fakeDevice) Load([]byte) (device.Module, error) { return nil, fmt.Errorf("fake: no modules") }
func (d *fakeDevice) NewStream() (device.Stream, error)  { return &fakeStream{dev: d}, nil }
func (d *fakeDevice) NewEvent() (device.Event, error)    { return nil, device.ErrNoTimes }
func (d *fakeDevice) Synchronize() error                 { return nil }
func (d *fakeDevice) Close() error                       { return nil }

// fakeStream runs at once, or records while it captures.
type fakeStream struct {
	dev       *fakeDevice
	capturing bool
	recorded  []func() error
}

func (s *fakeStream) do(f func() error) error {
	if s.capturing {
		s.recorded = append(s.recorded, f)
		return nil
	}
	return f()
}
func (s *fakeStream) Handle() uintptr           { return 0 }
func (s *fakeStream) Synchronize() error        { return nil }
func (s *fakeStream) Record(device.Event) error { return nil }
func (s *fakeStream) Wait(device.Event) error   { return nil }
func (s *fakeStream) FillAsync(dst device.Ptr, value byte, bytes int64) error {
	return s.do(func() error { return s.dev.Fill(dst, value, bytes) })
}
func (s *fakeStream) CopyAsync(dst, src device.Ptr, bytes int64) error {
	return s.do(func() error { return s.dev.Write(dst, s.dev.at(src, int(bytes))) })
}
func (s *fakeStream) BeginCapture() error { s.capturing = true; return nil }
func (s *fakeStream) EndCapture() (device.Graph, error) {
	s.capturing = false
	return fakeGraph(s.recorded), nil
}
func (s *fakeStream) Destroy() error { return nil }

type fakeGraph []func() error

func (g fakeGraph) Launch(device.Stream) error {
	for _, f := range g {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}
func (g fakeGraph) Nodes() (int, error) { return len(g), nil }
func (g fakeGraph) Destroy() error      { return nil }

// fakeKernel is a kernel that doubles int32s, told how to go wrong.
type fakeKernel struct {
	dev *fakeDevice
	run func(d *fakeDevice, args *doubleArgs) error
}

// doubleArgs is the argument struct of the harness's own test kernel: out[i] = 2 * in[i] for i < *length.
type doubleArgs struct {
	In, Out, Length, Workspace device.Ptr
}

func (k *fakeKernel) Name() string                                     { return "double" }
func (k *fakeKernel) Attributes() (a device.FuncAttributes, err error) { return }
func (k *fakeKernel) SetMaxDynamicShared(int) error                    { return nil }
func (k *fakeKernel) SetNonPortableCluster() error                     { return nil }
func (k *fakeKernel) Occupancy(int, int) (int, error)                  { return 1, nil }
func (k *fakeKernel) Launch(s device.Stream, _ *device.Launch, params unsafe.Pointer, size uintptr) error {
	if size != unsafe.Sizeof(doubleArgs{}) {
		return fmt.Errorf("fake: %d bytes of arguments", size)
	}
	args := *(*doubleArgs)(params)
	return s.(*fakeStream).do(func() error { return k.run(k.dev, &args) })
}

// doubled is the right kernel.
func doubled(d *fakeDevice, a *doubleArgs) error {
	n := Int32s(d.at(a.Length, 4))[0]
	for i := range n {
		x := Int32s(d.at(a.In+device.Ptr(4*i), 4))[0]
		copy(d.at(a.Out+device.Ptr(4*i), 4), BytesOfInt32([]int32{2 * x}))
	}
	return nil
}

func fakeCandidate() plan.Candidate {
	return plan.Candidate{Family: "double", Form: plan.Portable, Geometry: launch.Geometry{
		Grid: [3]launch.Extent{launch.Const(1), launch.Const(1), launch.Const(1)}, Block: 32, Cluster: 1, Workspace: []launch.Extent{launch.Const(64)}}}
}

// devicePtr makes an offset of elements an offset of addresses.
func devicePtr(n int64) device.Ptr { return device.Ptr(n) }
