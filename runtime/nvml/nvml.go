// Package nvml reads what NVIDIA's management library knows of a GPU while it is measured: clocks, power, temperature, what holds
// the clocks down, who else uses it. It needs cgo; a build without cgo answers ErrNoCgo, and nothing else changes.
//
// Link with -ldflags=-extldflags=-Wl,-z,lazy, as the Makefile does: the library's symbols are resolved when it is opened, and a
// linker that binds at start would make a program that dies at start.
package nvml

import (
	"errors"
	"strings"
)

// ErrNoCgo says that this binary was built without cgo, and so without NVML.
var ErrNoCgo = errors.New("NVML needs cgo and this binary was built without it; build with CGO_ENABLED=1 and a C compiler to see clocks and throttling")

// Status is one reading of one GPU.
type Status struct {
	UUID          string    `json:"uuid"`
	Name          string    `json:"name"`
	Driver        string    `json:"driver"`           // "580.159.04"
	SMClockMHz    int       `json:"sm_clock_mhz"`     // now
	MemClockMHz   int       `json:"mem_clock_mhz"`    // now
	MaxSMClockMHz int       `json:"max_sm_clock_mhz"` // what the board allows
	PowerWatts    float64   `json:"power_watts"`
	PowerCapWatts float64   `json:"power_cap_watts"` // enforced
	Celsius       int       `json:"celsius"`
	Reasons       Reasons   `json:"clock_reasons"`
	MIG           bool      `json:"mig"`
	Processes     []Process `json:"processes"` // computing on this GPU, ourselves included
}

// Process is a user of the GPU's memory.
type Process struct {
	PID   int   `json:"pid"`
	Bytes int64 `json:"bytes"`
}

// Others are the processes that are not pid (os.Getpid): they disturb a measurement. In a container NVML tells pids of the host,
// so that a lone process may be ourselves under another number.
func (s Status) Others(pid int) []Process {
	var others []Process
	for _, p := range s.Processes {
		if p.PID != pid {
			others = append(others, p)
		}
	}
	return others
}

// Reasons is NVML's set of reasons for the present clocks.
type Reasons uint64

// reasonNames in the order of their bits, as nvml.h numbers them.
var reasonNames = []string{"idle", "application clocks", "software power cap", "hardware slowdown", "sync boost", "software thermal slowdown",
	"hardware thermal slowdown", "hardware power brake", "display clocks", "board limit", "reliability"}

// throttled are the reasons that make a measurement slower than the board is: power, heat and brakes. Idle and clocks that
// someone set are not among them.
const throttled Reasons = 1<<2 | 1<<3 | 1<<5 | 1<<6 | 1<<7 | 1<<9 | 1<<10

// Throttled says that the GPU runs below its clocks for want of power or cooling: drop the window.
func (r Reasons) Throttled() bool { return r&throttled != 0 }

func (r Reasons) String() string {
	var names []string
	for i, n := range reasonNames {
		if r&(1<<i) != 0 {
			names = append(names, n)
		}
	}
	if len(names) == 0 {
		return "none"
	}
	return strings.Join(names, ", ")
}
