package launch_test

import (
	"errors"
	"testing"
	"unsafe"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// module hands out functions that note their launches.
type module struct {
	device.Module
	missing  string
	launches []string
	lets     []device.Launch
}

func (m *module) Function(name string) (device.Function, error) {
	if name == m.missing {
		return nil, errors.New("no function " + name)
	}
	return &function{module: m, name: name}, nil
}

type function struct {
	device.Function
	module *module
	name   string
}

func (f *function) SetMaxDynamicShared(int) error { return nil }
func (f *function) SetNonPortableCluster() error  { return nil }

func (f *function) Launch(_ device.Stream, l *device.Launch, _ unsafe.Pointer, _ uintptr) error {
	f.module.launches, f.module.lets = append(f.module.launches, f.name), append(f.module.lets, *l)
	return nil
}

var (
	lists = launch.Problem{Batch: 1, Lists: 2, MaxPages: 100}
	two   = launch.Geometry{
		Grid:  [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: 16, Per: 1}, launch.Const(1), launch.Const(1)},
		Block: 512, Cluster: 16, DynamicShared: 1024, Dependent: true,
		Workspace: []launch.Extent{{Of: []launch.Quantity{launch.Lists, launch.MaxPages}, Times: 4, Per: 1}, {Of: []launch.Quantity{launch.Lists}, Times: 8192, Per: 1}, launch.Const(16)},
		First: &launch.First{Entry: "first", Block: 256, Counters: 1,
			Grid: [3]launch.Extent{{Of: []launch.Quantity{launch.Lists}, Times: 64, Per: 1}, launch.Const(1), launch.Const(1)}},
	}
)

func TestTwoKernelsOfOneLaunch(t *testing.T) {
	for _, tt := range []struct {
		name     string
		early    bool
		whatWith string
	}{
		{"at an ordinary edge", false, "the first waits for all before it, the second starts early"},
		{"early", true, "both start early"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			m := &module{}
			f, err := launch.Function(m, "second", &two)
			if err != nil {
				t.Fatal(err)
			}
			l, err := two.Launch(lists)
			if err != nil {
				t.Fatal(err)
			}
			l.Dependent = tt.early
			before := l
			if err := f.Launch(nil, &l, nil, 0); err != nil {
				t.Fatal(err)
			}
			if l != before {
				t.Errorf("the description was %+v and is %+v: callers launch it again", before, l)
			}
			if diff := cmp.Diff([]string{"first", "second"}, m.launches); diff != "" {
				t.Fatalf("launches (-want +got):\n%s", diff)
			}
			want := device.Launch{Grid: [3]uint32{128, 1, 1}, Block: [3]uint32{256, 1, 1}, Cluster: [3]uint32{1, 1, 1}, Dependent: tt.early}
			if diff := cmp.Diff(want, m.lets[0]); diff != "" {
				t.Errorf("%s; first (-want +got):\n%s", tt.whatWith, diff)
			}
			second := before
			second.Dependent = true
			if diff := cmp.Diff(second, m.lets[1]); diff != "" {
				t.Errorf("%s; second (-want +got):\n%s", tt.whatWith, diff)
			}
		})
	}
}

func TestFunctionOfOneKernel(t *testing.T) {
	one := two
	one.First = nil
	m := &module{}
	f, err := launch.Function(m, "second", &one)
	if err != nil {
		t.Fatal(err)
	}
	l, err := one.Launch(lists)
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Launch(nil, &l, nil, 0); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"second"}, m.launches); diff != "" {
		t.Errorf("launches (-want +got):\n%s", diff)
	}
}

func TestMissingFirstKernel(t *testing.T) {
	for _, name := range []string{"first", "second"} {
		if _, err := launch.Function(&module{missing: name}, "second", &two); err == nil {
			t.Errorf("no error where %q is missing", name)
		}
	}
}

func TestCounters(t *testing.T) {
	if offset, size := two.Counters(lists); offset != 1024 || size != 16384 {
		t.Errorf("counters at %d, %d bytes; 800 bytes rounded up to 1024 lie before two lists of 8192", offset, size)
	}
	one := two
	one.First = nil
	if offset, size := one.Counters(lists); offset != 0 || size != 1024+16384+256 {
		t.Errorf("counters at %d, %d bytes; one kernel leaves all zeroed", offset, size)
	}
}
