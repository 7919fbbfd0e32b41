package nvrtc

import (
	"fmt"
	"regexp"
	"strconv"
	"strings"
)

// Module is one compiled source.
type Module struct {
	PTX       []byte    `json:"ptx"`   // text without NVRTC's trailing NUL; always present
	Cubin     []byte    `json:"cubin"` // code of CubinArch; nil for a virtual arch without it
	Log       string    `json:"log"`   // warnings, and what ptxas -v says
	Resources Resources `json:"resources"`
	Key       string    `json:"key"`        // of the disk cache: sha256, hex
	Arch      string    `json:"arch"`       // of the source: "sm_90a", "compute_80"
	CubinArch string    `json:"cubin_arch"` // what the cubin runs on: "sm_90a"; empty without a cubin
	Compiler  string    `json:"compiler"`   // "NVRTC 13.0 build 65be0db342ad"

	Cached   bool     `json:"-"` // it came from the disk cache
	Warnings []string `json:"-"` // of the cache, each said once a Compiler: it cannot be written, an entry was corrupt
}

// Resources are what ptxas gave the entry kernel. Known is false when no cubin was made: nothing was measured then.
type Resources struct {
	Known        bool `json:"known"`
	Registers    int  `json:"registers"`     // a thread
	StackBytes   int  `json:"stack_bytes"`   // a thread
	SpillStores  int  `json:"spill_stores"`  // bytes a thread
	SpillLoads   int  `json:"spill_loads"`   // bytes a thread
	StaticShared int  `json:"static_shared"` // bytes a block
}

func (r Resources) String() string {
	if !r.Known {
		return "resources unknown (PTX only)"
	}
	return fmt.Sprintf("%d registers, %d B stack, %d/%d B spilled, %d B static shared", r.Registers, r.StackBytes, r.SpillStores, r.SpillLoads, r.StaticShared)
}

var (
	reEntry  = regexp.MustCompile(`Compiling entry function '([^']+)'`)
	reProps  = regexp.MustCompile(`Function properties for (\S+)`)
	reFrame  = regexp.MustCompile(`(\d+) bytes stack frame, (\d+) bytes spill stores, (\d+) bytes spill loads`)
	reUsed   = regexp.MustCompile(`Used (\d+) registers`)
	reShared = regexp.MustCompile(`(\d+)(?:\+\d+)? bytes smem`)
)

// parseResources reads what ptxas -v says of one entry kernel. Functions that the kernel calls without inlining have property
// lines of their own; they are left out, as ptxas already counts their registers in the entry's.
func parseResources(log, entry string) (Resources, error) {
	var r Resources
	var compiling, props string
	for line := range strings.Lines(log) {
		if m := reEntry.FindStringSubmatch(line); m != nil {
			compiling, props = m[1], m[1]
		}
		if m := reProps.FindStringSubmatch(line); m != nil {
			props = m[1]
		}
		if m := reFrame.FindStringSubmatch(line); m != nil && props == entry && compiling == entry {
			r.StackBytes, r.SpillStores, r.SpillLoads = number(m[1]), number(m[2]), number(m[3])
		}
		if m := reUsed.FindStringSubmatch(line); m != nil && compiling == entry {
			r.Known, r.Registers = true, number(m[1])
			if m := reShared.FindStringSubmatch(line); m != nil {
				r.StaticShared = number(m[1])
			}
		}
	}
	if !r.Known {
		return r, fmt.Errorf("the compiler's log does not say what %q uses", entry)
	}
	return r, nil
}

// number converts what a \d+ matched.
func number(digits string) int {
	n, err := strconv.Atoi(digits)
	if err != nil {
		panic("BUG: nvrtc: not a number: " + digits)
	}
	return n
}
