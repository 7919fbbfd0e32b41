package sim

import (
	"fmt"
	"runtime"
	"strconv"
	"strings"

	"github.com/kvloom/kvloom/runtime/device"
)

// Config sets up a simulator. The zero Config is an H200 on all cores, without the sanitizer.
type Config struct {
	// Workers is how many goroutines run blocks; 0: one for each CPU. With 1, a launch is repeatable bit for bit.
	Workers int
	// Schedule is "" for warps in order, or "random:SEED" to reorder warps at barriers and memory operations.
	Schedule string
	// Sanitize reports races, uninitialised reads and more; see Report.
	Sanitize bool
	// Info overrides the device's attributes where not nil; Backend is always "sim".
	Info *device.Info
	// InstructionLimit ends a launch with an error after that many warp instructions, instead of a hang; 0: DefaultLimit.
	InstructionLimit int64
	// Count collects Counters for every kernel.
	Count bool
}

// DefaultLimit is the default InstructionLimit: minutes of work.
const DefaultLimit = 1 << 33

// h200 is what the simulator says it is.
func h200() device.Info {
	return device.Info{
		Backend: "sim", Name: "kvloom simulator (H200 attributes)", UUID: "sim", Major: 9, Minor: 0, SMs: 132,
		L2Bytes: 50 << 20, MemoryBytes: 141 << 30, MemoryClockMHz: 3201, SharedPerBlock: 227 << 10, SharedPerSM: 228 << 10,
		RegistersPerSM: 65536, ThreadsPerSM: 2048, DriverVersion: 13000, ErrorCorrectionOn: true,
	}
}

// settings is a checked Config.
type settings struct {
	workers  int
	random   bool
	seed     uint64
	sanitize bool
	count    bool
	limit    int64
	info     device.Info
}

func (c Config) check() (settings, error) {
	s := settings{workers: c.Workers, sanitize: c.Sanitize, count: c.Count, limit: c.InstructionLimit, info: h200()}
	if c.Workers < 0 {
		return s, fmt.Errorf("sim: %d workers: give 1 or more, or 0 for one a CPU", c.Workers)
	}
	if s.workers == 0 {
		s.workers = runtime.GOMAXPROCS(0)
	}
	if c.InstructionLimit < 0 {
		return s, fmt.Errorf("sim: instruction limit %d is negative", c.InstructionLimit)
	}
	if s.limit == 0 {
		s.limit = DefaultLimit
	}
	if c.Info != nil {
		s.info = *c.Info
		s.info.Backend = "sim"
	}
	if c.Schedule == "" {
		return s, nil
	}
	seed, ok := strings.CutPrefix(c.Schedule, "random:")
	n, err := strconv.ParseUint(seed, 10, 64)
	if !ok || err != nil {
		return s, fmt.Errorf("sim: schedule %q: want \"\" or \"random:SEED\" with a whole number", c.Schedule)
	}
	s.random, s.seed = true, n
	return s, nil
}
