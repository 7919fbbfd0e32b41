package kernel

import (
	"fmt"
	"strconv"
	"strings"
	"sync/atomic"

	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/runtime/device"
)

// Problem sizes memory: what a launch is at most. NewPages counts for page_summary alone.
type Problem = launch.Problem

// workNames in the order of workID.
var workNames = [...]string{PageSummary, PageScore, PageSelect, PageAttend, Dense, PageSelectAttend, PageRerank, PageRerankAttend, PageSelectRerankAttend, KVQuantize, QueryMoment, QueryFactor, DropObserve, DropScore, DropObserveScore, DropPool, DropAllot, DropSelect, DropPoolSelect, DropCompact}

type workID int

const (
	summaryWork workID = iota
	scoreWork
	selectWork
	attendWork
	denseWork
	selectAttendWork
	rerankWork
	rerankAttendWork
	selectRerankAttendWork
	quantizeWork
	momentWork
	factorWork
	dropObserveWork
	dropScoreWork
	dropObserveScoreWork
	dropPoolWork
	dropAllotWork
	dropSelectWork
	dropPoolSelectWork
	dropCompactWork
	numWorks
)

// Set is a bundle loaded on a device. Its launch functions are safe for several goroutines.
type Set struct {
	bundle   *Bundle
	info     device.Info
	modules  []device.Module
	fns      []device.Function // by kernel; nil where it is not used here
	works    [numWorks]*loadedWork
	fallback bool // another architecture: portable forms alone
	other    bool // another GPU of the same architecture
	warnings []string
}

// loadedWork is a work with counters: lookups at launches by grade, and the last one that was not exact.
type loadedWork struct {
	*Work
	portable  bool // the portable form serves all of it
	grades    [numGrades]atomic.Int64
	lastWorse atomic.Uint64 // context << 24 | batch
}

// Load loads the kernels on a device: the tuned ones on the architecture that they were tuned on, elsewhere the portable forms with a
// warning. A driver too old for either is an error that names both versions.
func (b *Bundle) Load(dev device.Device) (*Set, error) {
	s := &Set{bundle: b, info: dev.Info(), fns: make([]device.Function, len(b.Kernels))}
	s.fallback = s.info.Major != b.Device.Major || s.info.Minor != b.Device.Minor
	s.other = s.info.Name != b.Device.Name || s.info.SMs != b.Device.SMs
	switch {
	case s.fallback:
		s.warn("tuned on %s, this is %s: the portable kernels run, slower than kernels tuned here would", gpu(b.Device), gpu(s.info))
	case s.other && s.info.Backend != "sim":
		s.warn("tuned on %s, this is %s of the same architecture: the choices are inherited, not measured here", gpu(b.Device), gpu(s.info))
	}
	for i := range b.Works {
		if err := s.loadWork(dev, &b.Works[i]); err != nil {
			s.Unload() //nolint:errcheck // the first error is the one to report
			return nil, fmt.Errorf("load %s of the bundle of %s: %w", b.Works[i].Name, b.Spec, err)
		}
	}
	return s, nil
}

func gpu(i device.Info) string {
	return fmt.Sprintf("%s (sm_%d%d, %d SMs)", i.Name, i.Major, i.Minor, i.SMs)
}

func (s *Set) warn(format string, args ...any) {
	s.warnings = append(s.warnings, fmt.Sprintf(format, args...))
}

// loadWork loads what the work can choose here.
func (s *Set) loadWork(dev device.Device, wk *Work) error {
	if s.fallback && wk.Portable < 0 {
		return nil
	}
	lw := &loadedWork{Work: wk, portable: s.fallback}
	for id, name := range workNames {
		if name == wk.Name {
			s.works[id] = lw
		}
	}
	if !lw.portable {
		err := s.loadTuned(dev, wk)
		if err == nil || s.info.Backend != "sim" || wk.Portable < 0 {
			return err
		}
		// The simulator executes what it knows of PTX; the portable form computes the same function.
		lw.portable = true
		s.warn("%s: the simulator cannot run the tuned form (%v): the portable one runs", wk.Name, err)
	}
	return s.loadKernel(dev, wk.Portable)
}

func (s *Set) loadTuned(dev device.Device, wk *Work) (err error) {
	wk.kernels(func(i int) {
		if err == nil {
			err = s.loadKernel(dev, i)
		}
	})
	return err
}

// loadKernel loads one kernel, once.
func (s *Set) loadKernel(dev device.Device, i int) error {
	if s.fns[i] != nil {
		return nil
	}
	k := &s.bundle.Kernels[i]
	image, err := k.image(s.info)
	if err != nil {
		return err
	}
	m, err := dev.Load(image)
	if err != nil {
		return fmt.Errorf("%s: %w", k.ID(), err)
	}
	s.modules = append(s.modules, m)
	f, err := launch.Function(m, k.Entry, &k.Geometry)
	if err != nil {
		return fmt.Errorf("%s: %w", k.ID(), err)
	}
	s.fns[i] = f
	return nil
}

// image is the code for a device: the cubin where it runs, for it loads in a fraction of the time that compiling PTX takes.
func (k *Kernel) image(i device.Info) ([]byte, error) {
	if len(k.Cubin) > 0 && i.Backend != "sim" && cubinRuns(k.CubinArch, i.Major, i.Minor) {
		return k.Cubin, nil
	}
	if len(k.PTX) > 0 && (i.Backend == "sim" || ptxRuns(k.Arch, i.Major, i.Minor)) {
		return k.PTX, nil
	}
	return nil, fmt.Errorf("%s: compiled for %s (cubin %q), which sm_%d%d does not run; tune on that device, or compile for it", k.ID(), k.Arch, k.CubinArch, i.Major, i.Minor)
}

// cubinRuns: a cubin runs on its architecture and on later minor versions of it, one with a letter on its own alone.
func cubinRuns(arch string, major, minor int) bool {
	m, n, letter, ok := parseArch(arch)
	return ok && m == major && (n == minor || n < minor && !letter)
}

// ptxRuns: PTX runs on its architecture and on all later ones, one with a letter on its own alone.
func ptxRuns(arch string, major, minor int) bool {
	m, n, letter, ok := parseArch(arch)
	if letter {
		return ok && m == major && n == minor
	}
	return ok && (m < major || m == major && n <= minor)
}

// parseArch splits "sm_90a", "compute_80" into 9, 0, true and 8, 0, false. The last digit is the minor version.
func parseArch(arch string) (major, minor int, letter, ok bool) {
	_, digits, found := strings.Cut(arch, "_")
	trimmed := strings.TrimRight(digits, "af")
	v, err := strconv.Atoi(trimmed)
	if !found || err != nil || v < 10 {
		return 0, 0, false, false
	}
	return v / 10, v % 10, trimmed != digits, true
}

// Unload frees the code.
func (s *Set) Unload() error {
	var first error
	for _, m := range s.modules {
		if err := m.Unload(); first == nil {
			first = err
		}
	}
	s.modules = nil
	return first
}

// Bundle is what the set was loaded from.
func (s *Set) Bundle() *Bundle { return s.bundle }

// Model holds what callers need to size their memory.
func (s *Set) Model() Model { return s.bundle.Model }

// Warnings are sentences for a person: about the device here, and the tuner's own.
func (s *Set) Warnings() []string {
	return append(append([]string{}, s.warnings...), s.bundle.Warnings...)
}

// Lookup tells which kernel a launch of the work uses for a workload, and how well it fits.
func (s *Set) Lookup(work string, w Workload) (Answer, error) {
	for id, name := range workNames {
		if lw := s.works[id]; name == work && lw != nil {
			if lw.portable {
				reason := fmt.Sprintf("tuned on %s, this is %s: the portable form runs", gpu(s.bundle.Device), gpu(s.info))
				return Answer{Kernel: &s.bundle.Kernels[lw.Portable], Grade: Fallback, Reason: reason}, nil
			}
			a, err := s.bundle.Lookup(work, w)
			if a.Tuned != nil && s.other {
				a.Inherited = true
				a.Reason += "; inherited from " + gpu(s.bundle.Device)
			}
			return a, err
		}
	}
	return Answer{}, fmt.Errorf("bundle of %s: no work %q", s.bundle.Spec, work)
}

// Stat counts the lookups of one work at launches and captures.
type Stat struct {
	Work   string
	Counts map[Grade]int64
	// LastMiss is the last workload that was not exact; zero when there was none.
	LastMiss Workload
}

// Stats says how well launches so far were served: everything but Exact is a miss, worth a workload in the spec.
func (s *Set) Stats() []Stat {
	var stats []Stat
	for _, lw := range s.works {
		if lw == nil {
			continue
		}
		st := Stat{Work: lw.Name, Counts: map[Grade]int64{}}
		for g := range numGrades {
			if n := lw.grades[g].Load(); n > 0 {
				st.Counts[g] = n
			}
		}
		if v := lw.lastWorse.Load(); v != 0 {
			st.LastMiss = Workload{Context: int(v >> 24), Batch: int(v & (1<<24 - 1))}
		}
		stats = append(stats, st)
	}
	return stats
}

// pick is Lookup without words, counted.
func (s *Set) pick(lw *loadedWork, w Workload) int {
	index, grade := lw.Portable, Fallback
	if !lw.portable {
		var point int
		point, grade = lw.find(w)
		if point >= 0 {
			index = lw.Points[point].Kernel
		} else {
			index = lw.untuned(w)
		}
	}
	lw.grades[grade].Add(1)
	if grade != Exact {
		lw.lastWorse.Store(uint64(w.Context)<<24 | uint64(w.Batch)&(1<<24-1))
	}
	return index
}
