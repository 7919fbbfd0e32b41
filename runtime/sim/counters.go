package sim

import (
	"fmt"
	"math/bits"
	"sync"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// Group is a class of instructions.
type Group uint8

// The classes.
const (
	GroupInteger Group = iota
	GroupFloat
	GroupSpecial // ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh, div: the special function unit and what is built on it
	GroupConvert
	GroupMove
	GroupMemory
	GroupAtomic
	GroupControl
	GroupSync
	GroupWarp // shuffles, votes, matches, reductions
	GroupTensor
	groups
)

var groupNames = [groups]string{"integer", "float", "special", "convert", "move", "memory", "atomic", "control", "sync", "warp", "tensor"}

func (g Group) String() string { return groupNames[g] }

// Groups lists all classes.
func Groups() []Group {
	var out []Group
	for g := range groups {
		out = append(out, g)
	}
	return out
}

// Counters are what one kernel did, over all its launches. They are counts of PTX instructions and of memory sectors; no time can be
// read from them, and ptxas may emit more or fewer instructions.
type Counters struct {
	Kernel              string
	Launches, Blocks    int64
	WarpInstructions    int64
	ThreadInstructions  int64
	ByGroup             [groups]int64 // warp instructions
	Branches            int64         // conditional, executed by a warp
	DivergentBranches   int64         // of which lanes went both ways
	GlobalReads         Traffic
	GlobalWrites        Traffic
	SharedRequests      int64 // warp instructions on shared memory
	SharedWavefronts    int64 // passes they need: 1 for each without bank conflicts, more for wide accesses
	SharedConflicts     int64 // wavefronts beyond the fewest that the accesses could need
	BulkBytes           int64 // moved by copy engines
	TensorMultiplyAdds  int64 // inside mma and wgmma
	AtomicOperations    int64 // of single threads
	BarrierInstructions int64
}

// Traffic is one direction of global memory.
type Traffic struct {
	Requests int64 // warp instructions
	Sectors  int64 // of 32 bytes, each once a request
	Bytes    int64 // asked for by the threads
}

// SectorsPerRequest measures coalescing: 4 for 32 consecutive words, 32 for scattered ones.
func (t Traffic) SectorsPerRequest() float64 {
	if t.Requests == 0 {
		return 0
	}
	return float64(t.Sectors) / float64(t.Requests)
}

func (t Traffic) String() string {
	return fmt.Sprintf("%d requests, %d sectors (%.1f a request), %d bytes", t.Requests, t.Sectors, t.SectorsPerRequest(), t.Bytes)
}

// add merges the counters of a unit.
func (c *Counters) add(o *Counters) {
	c.Launches += o.Launches
	c.Blocks += o.Blocks
	c.WarpInstructions += o.WarpInstructions
	c.ThreadInstructions += o.ThreadInstructions
	for i := range c.ByGroup {
		c.ByGroup[i] += o.ByGroup[i]
	}
	c.Branches += o.Branches
	c.DivergentBranches += o.DivergentBranches
	c.GlobalReads.add(o.GlobalReads)
	c.GlobalWrites.add(o.GlobalWrites)
	c.SharedRequests += o.SharedRequests
	c.SharedWavefronts += o.SharedWavefronts
	c.SharedConflicts += o.SharedConflicts
	c.BulkBytes += o.BulkBytes
	c.TensorMultiplyAdds += o.TensorMultiplyAdds
	c.AtomicOperations += o.AtomicOperations
	c.BarrierInstructions += o.BarrierInstructions
}

func (t *Traffic) add(o Traffic) {
	t.Requests += o.Requests
	t.Sectors += o.Sectors
	t.Bytes += o.Bytes
}

// counting collects the counters of one launch.
type counting struct {
	mu    sync.Mutex
	total Counters
}

// groupOf is the class of an instruction.
func groupOf(in *ptx.Instr) Group {
	switch in.Op {
	case "ld", "ldu", "st", "cp", "prefetch", "prefetchu", "ldmatrix", "stmatrix":
		return GroupMemory
	case "atom", "red":
		return GroupAtomic
	case "bra", "brx", "ret", "exit", "trap", "call":
		return GroupControl
	case "bar", "barrier", "membar", "fence", "mbarrier", "nanosleep", "griddepcontrol":
		return GroupSync
	case "shfl", "vote", "match", "redux", "activemask", "elect", "movmatrix":
		return GroupWarp
	case "mma", "wgmma":
		return GroupTensor
	case "mov", "cvta", "mapa", "getctarank", "createpolicy", "selp":
		return GroupMove
	case "cvt":
		return GroupConvert
	case "ex2", "lg2", "rcp", "rsqrt", "sqrt", "sin", "cos", "tanh":
		return GroupSpecial
	}
	for _, m := range in.Mods {
		if isFloat(m) {
			if in.Op == "div" {
				return GroupSpecial
			}
			return GroupFloat
		}
	}
	return GroupInteger
}

// count is called before each instruction of a counted launch.
func (w *warp) count(in *inst, m uint32) {
	c := &w.b.unit.counters
	c.ByGroup[in.group]++
	switch {
	case in.kind == kBranch && in.guard >= 0:
		c.Branches++
		if m != 0 && m != w.mask {
			c.DivergentBranches++
		}
	case in.group == GroupAtomic:
		c.AtomicOperations += int64(bits.OnesCount32(m))
	case in.group == GroupSync:
		c.BarrierInstructions++
	}
}

// countAccess counts one memory instruction; the addresses are in w.addr.
func (w *warp) countAccess(a *access, m uint32) {
	if m == 0 {
		return
	}
	c := &w.b.unit.counters
	switch w.spaceOf(a, w.addr[firstLane(m)]) {
	case spGlobal:
		t := &c.GlobalReads
		if a.write {
			t = &c.GlobalWrites
		}
		t.Requests++
		t.Bytes += int64(a.size) * int64(bits.OnesCount32(m))
		t.Sectors += w.sectors(a, m)
	case spShared:
		waves, least := w.wavefronts(a, m)
		c.SharedRequests++
		c.SharedWavefronts += waves
		c.SharedConflicts += waves - least
	}
}

// sectors counts the distinct 32-byte sectors of the lanes' accesses.
func (w *warp) sectors(a *access, m uint32) int64 {
	var seen [96]uint64
	n := 0
	for l := m; l != 0; l &= l - 1 {
		i := bits.TrailingZeros32(l) & 31
		for s := w.addr[i] / 32; s <= (w.addr[i]+max(a.size, 1)-1)/32; s++ {
			found := false
			for k := n - 1; k >= 0 && !found; k-- {
				found = seen[k] == s
			}
			if !found && n < len(seen) {
				seen[n] = s
				n++
			}
		}
	}
	return int64(n)
}

// wavefronts counts passes over the 32 banks: accesses of 8 and 16 bytes go by halves and quarters of the warp, and in each part a
// bank serves one word at a time.
func (w *warp) wavefronts(a *access, m uint32) (waves, least int64) {
	lanes := 32
	switch {
	case a.size >= 16:
		lanes = 8
	case a.size >= 8:
		lanes = 16
	}
	for first := 0; first < 32; first += lanes {
		part := m & (uint32(uint64(1)<<lanes-1) << first)
		if part == 0 {
			continue
		}
		var words [32][]uint32
		worst := 0
		for l := part; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			for k := uint64(0); k < max(a.size, 4); k += 4 {
				word := uint32(w.addr[i]+k) / 4
				b := &words[word%32]
				dup := false
				for _, x := range *b {
					dup = dup || x == word
				}
				if !dup {
					*b = append(*b, word)
					worst = max(worst, len(*b))
				}
			}
		}
		waves += int64(worst)
		least++
	}
	return waves, least
}

// finished adds a unit that is done to the launch's counters.
func (u *unit) finished(l *launch) {
	var warps, threads int64
	for _, b := range u.blocks {
		for _, w := range b.warps {
			warps += w.steps
			threads += w.lanes
		}
	}
	l.warpSteps.Add(warps)
	l.threadSteps.Add(threads)
	if l.counters == nil {
		return
	}
	u.counters.WarpInstructions, u.counters.ThreadInstructions = warps, threads
	u.counters.Blocks = int64(len(u.blocks))
	l.counters.mu.Lock()
	l.counters.total.add(&u.counters)
	l.counters.mu.Unlock()
}

// Counters returns what the kernels have done since the device was made, by name. It needs Config.Count.
func (d *Device) Counters() map[string]Counters {
	d.mu.Lock()
	defer d.mu.Unlock()
	out := make(map[string]Counters, len(d.counters))
	for k, v := range d.counters {
		out[k] = *v
	}
	return out
}

// Executed is how many warp and thread instructions the device has executed.
func (d *Device) Executed() (warps, threads int64) {
	return d.warpSteps.Load(), d.threadSteps.Load()
}
