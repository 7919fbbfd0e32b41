//go:build cgo

package nvml

import (
	"errors"
	"testing"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/NVIDIA/go-nvml/pkg/nvml/mock/dgxh200"
	mock "github.com/NVIDIA/go-nvml/pkg/nvml/mock/server"
	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/runtime/device"
)

// h200s is go-nvml's server of eight H200, its first GPU answering what the mock leaves out.
func h200s() (*mock.Server, *mock.Device) {
	s := dgxh200.New()
	d := s.Devices[0].(*mock.Device)
	clocks := map[nvml.ClockType]uint32{nvml.CLOCK_SM: 1755, nvml.CLOCK_MEM: 3201}
	d.GetClockInfoFunc = func(c nvml.ClockType) (uint32, nvml.Return) { return clocks[c], nvml.SUCCESS }
	d.GetMaxClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 1980, nvml.SUCCESS }
	d.GetTemperatureFunc = func(nvml.TemperatureSensors) (uint32, nvml.Return) { return 41, nvml.SUCCESS }
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 412500, nvml.SUCCESS }
	d.GetEnforcedPowerLimitFunc = func() (uint32, nvml.Return) { return 700000, nvml.SUCCESS }
	d.GetCurrentClocksThrottleReasonsFunc = func() (uint64, nvml.Return) { return 4, nvml.SUCCESS }
	d.GetComputeRunningProcessesFunc = func() ([]nvml.ProcessInfo, nvml.Return) {
		return []nvml.ProcessInfo{{Pid: 42, UsedGpuMemory: 1 << 30}}, nvml.SUCCESS
	}
	return s, d
}

func TestRead(t *testing.T) {
	s, d := h200s()
	d.GetPowerUsageFunc = func() (uint32, nvml.Return) { return 0, nvml.ERROR_NOT_SUPPORTED }
	if _, ret := d.SetMigMode(nvml.DEVICE_MIG_ENABLE); ret != nvml.SUCCESS {
		t.Fatal(ret)
	}
	l, err := open(s)
	if err != nil {
		t.Fatal(err)
	}
	if n, err := l.Count(); n != 8 || err != nil {
		t.Errorf("count %d, %v: want 8", n, err)
	}
	uuid, _ := d.GetUUID()
	want := Status{UUID: uuid, Name: "NVIDIA H200 141GB HBM3e", Driver: "550.54.15", SMClockMHz: 1755, MemClockMHz: 3201, MaxSMClockMHz: 1980,
		PowerCapWatts: 700, Celsius: 41, Reasons: 4, MIG: true, Processes: []Process{{42, 1 << 30}}}
	byIndex, err := l.ByIndex(0)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, byIndex); d != "" {
		t.Errorf("by index; an unsupported reading stays zero (-want +got):\n%s", d)
	}
	byUUID, err := l.ByUUID(uuid)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(byIndex, byUUID); d != "" {
		t.Errorf("by UUID:\n%s", d)
	}
	if _, err := l.ByUUID("GPU-none"); err == nil {
		t.Error("an unknown UUID was found")
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}

func TestReadFails(t *testing.T) {
	s, d := h200s()
	d.GetClockInfoFunc = func(nvml.ClockType) (uint32, nvml.Return) { return 0, nvml.ERROR_GPU_IS_LOST }
	l, err := open(s)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := l.ByIndex(0); err == nil {
		t.Error("a lost GPU was read")
	}
}

func TestOpenWithoutDriver(t *testing.T) {
	s, _ := h200s()
	s.InitFunc = func() nvml.Return { return nvml.ERROR_LIBRARY_NOT_FOUND }
	_, err := open(s)
	var u *device.Unavailable
	if !errors.As(err, &u) || u.Remedy == "" {
		t.Errorf("error %v: want a *device.Unavailable with a remedy", err)
	}
}

// The real library where there is one, and a typed answer where not: this also proves that the test binary links and starts.
func TestOpen(t *testing.T) {
	l, err := Open()
	var u *device.Unavailable
	if errors.As(err, &u) {
		t.Skip(err)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
}
