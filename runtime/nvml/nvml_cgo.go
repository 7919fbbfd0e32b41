//go:build cgo

package nvml

import (
	"fmt"

	"github.com/NVIDIA/go-nvml/pkg/nvml"
	"github.com/kvloom/kvloom/runtime/device"
)

// Library is NVML, initialised. Close it once.
type Library struct{ api nvml.Interface }

// Open loads and initialises NVML. Where the machine has none the error is a *device.Unavailable.
func Open() (*Library, error) { return open(nvml.New()) }

func open(api nvml.Interface) (*Library, error) {
	if ret := api.Init(); ret != nvml.SUCCESS {
		return nil, &device.Unavailable{What: "NVML", Reason: ret.Error(),
			Remedy: "install the NVIDIA driver, whose libnvidia-ml.so.1 this is; without it clocks and throttling are not seen"}
	}
	return &Library{api}, nil
}

// Close shuts NVML down.
func (l *Library) Close() error { return check(l.api.Shutdown(), "shut down") }

// Count is the number of GPUs.
func (l *Library) Count() (int, error) {
	n, ret := l.api.DeviceGetCount()
	return n, check(ret, "count the GPUs")
}

// ByIndex reads the GPU at NVML's index. CUDA's ordinals differ from it under CUDA_VISIBLE_DEVICES: prefer ByUUID.
func (l *Library) ByIndex(i int) (Status, error) {
	d, ret := l.api.DeviceGetHandleByIndex(i)
	if err := check(ret, fmt.Sprintf("find GPU %d", i)); err != nil {
		return Status{}, err
	}
	return l.read(d)
}

// ByUUID reads the GPU called uuid ("GPU-...").
func (l *Library) ByUUID(uuid string) (Status, error) {
	d, ret := l.api.DeviceGetHandleByUUID(uuid)
	if err := check(ret, "find GPU "+uuid); err != nil {
		return Status{}, err
	}
	return l.read(d)
}

// read asks everything; what a board does not support, or hides from a container, stays zero, other errors are errors.
func (l *Library) read(d nvml.Device) (Status, error) {
	var s Status
	var first error
	ask := func(ret nvml.Return, doing string) bool {
		if ret == nvml.ERROR_NOT_SUPPORTED || ret == nvml.ERROR_NO_PERMISSION {
			return false
		}
		if err := check(ret, doing); err != nil && first == nil {
			first = err
		}
		return ret == nvml.SUCCESS
	}
	text := func(dst *string, doing string) func(string, nvml.Return) {
		return func(v string, ret nvml.Return) {
			if ask(ret, doing) {
				*dst = v
			}
		}
	}
	number := func(dst *int, doing string) func(uint32, nvml.Return) {
		return func(v uint32, ret nvml.Return) {
			if ask(ret, doing) {
				*dst = int(v)
			}
		}
	}
	watts := func(dst *float64, doing string) func(uint32, nvml.Return) {
		return func(milliwatts uint32, ret nvml.Return) {
			if ask(ret, doing) {
				*dst = float64(milliwatts) / 1000
			}
		}
	}
	text(&s.UUID, "read the UUID")(d.GetUUID())
	text(&s.Name, "read the name")(d.GetName())
	text(&s.Driver, "read the driver's version")(l.api.SystemGetDriverVersion())
	number(&s.SMClockMHz, "read the SM clock")(d.GetClockInfo(nvml.CLOCK_SM))
	number(&s.MemClockMHz, "read the memory clock")(d.GetClockInfo(nvml.CLOCK_MEM))
	number(&s.MaxSMClockMHz, "read the greatest SM clock")(d.GetMaxClockInfo(nvml.CLOCK_SM))
	number(&s.Celsius, "read the temperature")(d.GetTemperature(nvml.TEMPERATURE_GPU))
	watts(&s.PowerWatts, "read the power")(d.GetPowerUsage())
	watts(&s.PowerCapWatts, "read the power cap")(d.GetEnforcedPowerLimit())
	if reasons, ret := d.GetCurrentClocksThrottleReasons(); ask(ret, "read the clock reasons") {
		s.Reasons = Reasons(reasons)
	}
	if mode, _, ret := d.GetMigMode(); ask(ret, "read the MIG mode") {
		s.MIG = mode == nvml.DEVICE_MIG_ENABLE
	}
	if processes, ret := d.GetComputeRunningProcesses(); ask(ret, "list the processes") {
		for _, p := range processes {
			s.Processes = append(s.Processes, Process{int(p.Pid), int64(p.UsedGpuMemory)})
		}
	}
	return s, first
}

func check(ret nvml.Return, doing string) error {
	if ret == nvml.SUCCESS {
		return nil
	}
	return fmt.Errorf("NVML: %s: %s", doing, ret.Error())
}
