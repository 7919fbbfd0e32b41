package kernel

import (
	"bytes"
	"errors"
	"fmt"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// fakeDevice notes what is loaded and launched.
type fakeDevice struct {
	device.Device
	info    device.Info
	refuse  string // an image that contains this does not load
	loaded  []string
	shared  int
	cluster bool
	last    device.Launch
	all     []device.Launch
	entry   string
	args    []byte
}

func (d *fakeDevice) Info() device.Info { return d.info }

func (d *fakeDevice) Load(image []byte) (device.Module, error) {
	if d.refuse != "" && bytes.Contains(image, []byte(d.refuse)) {
		return nil, errors.New("PTX 9.0 needs a driver of CUDA 13.0 or newer, this one has CUDA 12.4")
	}
	d.loaded = append(d.loaded, string(image))
	return &fakeModule{d: d, image: string(image)}, nil
}

type fakeModule struct {
	d     *fakeDevice
	image string
}

func (m *fakeModule) Function(name string) (device.Function, error) {
	return &fakeFunction{d: m.d, name: m.image}, nil
}
func (m *fakeModule) Unload() error { return nil }

type fakeFunction struct {
	device.Function
	d    *fakeDevice
	name string
}

func (f *fakeFunction) SetMaxDynamicShared(n int) error { f.d.shared = max(f.d.shared, n); return nil }
func (f *fakeFunction) SetNonPortableCluster() error    { f.d.cluster = true; return nil }
func (f *fakeFunction) Launch(_ device.Stream, l *device.Launch, params unsafe.Pointer, size uintptr) error {
	f.d.last, f.d.entry = *l, f.name
	if len(f.d.all) < cap(f.d.all) {
		f.d.all = append(f.d.all, *l)
	}
	f.d.args = append(f.d.args[:0], unsafe.Slice((*byte)(params), size)...)
	return nil
}

var h200 = device.Info{Backend: "cuda", Name: "NVIDIA H200", Major: 9, SMs: 132, DriverVersion: 13000}

// testBundle has two tuned workloads of page_score and defaults for the rest.
func testBundle() *Bundle {
	b := &Bundle{Spec: "test", SpecHash: "00ff", Generator: "kvloom test", Compiler: "NVRTC 13.0", Device: h200,
		Model: Model{QueryHeads: 32, KVHeads: 8, HeadDim: 128, PageSize: 16, DType: "bf16", Rank: 4, BasisBits: 4, RecordBytes: 496, Combine: "share_average", Slots: 128, SinkPages: 1, RecentPages: 1, SoftmaxScale: 0.0884},
	}
	add := func(family, form, arch string, value int) int {
		k := Kernel{Family: family, Form: form, Arch: arch, Key: "d128", Params: []Param{{"warps", value}}, Entry: family, SourceHash: fmt.Sprintf("%s%d", form, value),
			Geometry: launch.Geometry{Grid: [3]launch.Extent{{Of: []launch.Quantity{launch.SMs}, Times: int64(value), Per: 1}, launch.Each(launch.Batch), launch.Const(1)},
				Block: 32 * value, Cluster: 1, DynamicShared: 1000 * value,
				Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Batch, launch.Lists}, Times: int64(4 * value), Per: 1}}},
			PTX: fmt.Appendf(nil, "ptx %s %s %d", family, form, value)}
		if form == "hopper" {
			k.CubinArch, k.Cubin = "sm_90a", fmt.Appendf(nil, "\x7fELF %s %d", family, value)
		}
		b.Kernels = append(b.Kernels, k)
		return len(b.Kernels) - 1
	}
	for _, name := range []string{PageSummary, PageScore, PageSelect, PageAttend} {
		w := Work{Name: name, Points: []Point{}, Default: add(name, "hopper", "sm_90a", 8), Portable: add(name, "portable", "compute_80", 4)}
		if name == PageScore {
			big, small := add(name, "hopper", "sm_90a", 12), add(name, "hopper", "sm_90a", 2)
			w.Points = []Point{
				{Workload: Workload{131072, 1}, Kernel: big, Evidence: Evidence{MedianUS: 25.5, LoUS: 25.1, HiUS: 25.9, Samples: 200, Tied: 1, Trials: 18}},
				{Workload: Workload{8192, 16}, Kernel: small},
			}
		}
		b.Works = append(b.Works, w)
	}
	b.Works = append(b.Works, Work{Name: Dense, Points: []Point{}, Default: 2, Portable: 3})
	for i, k := range b.Kernels { // dense uses the kernels of page_attend
		if k.Family == PageAttend && k.Form == "hopper" {
			b.Works[4].Default = i
		}
		if k.Family == PageAttend && k.Form == "portable" {
			b.Works[4].Portable = i
		}
	}
	return b
}

func load(t *testing.T, d *fakeDevice) *Set {
	t.Helper()
	s, err := testBundle().Load(d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

func contains(t *testing.T, what string, err error, words ...string) {
	t.Helper()
	if err == nil {
		t.Errorf("%s: no error, want one with %q", what, words)
		return
	}
	for _, w := range words {
		if !strings.Contains(err.Error(), w) {
			t.Errorf("%s: %q lacks %q", what, err, w)
		}
	}
}
