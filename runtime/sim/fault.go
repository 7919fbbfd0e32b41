package sim

import (
	"fmt"
	"math/bits"
	"sort"
	"strings"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// FaultKind is the class of a fault.
type FaultKind string

// The classes.
const (
	kindBounds     FaultKind = "out of bounds"
	kindAlign      FaultKind = "misaligned address"
	kindFreed      FaultKind = "use after free"
	kindControl    FaultKind = "bad control flow"
	kindDivergence FaultKind = "divergence"
	kindDeadlock   FaultKind = "deadlock"
	kindLimit      FaultKind = "instruction limit"
	kindTrap       FaultKind = "trap"
	kindBarrier    FaultKind = "barrier misuse"
	kindUninit     FaultKind = "uninitialised read"
	kindRace       FaultKind = "race"
	kindProxy      FaultKind = "missing proxy fence"
	kindOperand    FaultKind = "bad operand"
)

// Fault is an error of a launch: what, who and where.
type Fault struct {
	Kind     FaultKind
	Kernel   string
	Block    [3]uint32
	Thread   [3]uint32
	PTXLine  int
	PTX      string // the instruction
	File     string // CUDA source
	Line     int    // CUDA source line; 0: the module has no line information
	CallFile string // where the function that Line belongs to was inlined, if it was
	CallLine int
	Address  uint64
	Message  string
}

func (f *Fault) Error() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s: kernel %s, block (%d,%d,%d), thread (%d,%d,%d)", f.Kind, f.Kernel, f.Block[0], f.Block[1], f.Block[2],
		f.Thread[0], f.Thread[1], f.Thread[2])
	if f.Line > 0 {
		fmt.Fprintf(&b, ", %s:%d", f.File, f.Line)
	}
	if f.CallLine > 0 {
		fmt.Fprintf(&b, " inlined at %s:%d", f.CallFile, f.CallLine)
	}
	fmt.Fprintf(&b, " (PTX line %d: %s): %s", f.PTXLine, f.PTX, f.Message)
	return b.String()
}

func firstLane(m uint32) int { return bits.TrailingZeros32(m) & 31 }

// at is the lowered instruction a warp executes or has just executed.
func (w *warp) at() *inst {
	return &w.code[max(w.pc-1, 0)]
}

// failf stops the launch with a fault of one lane.
func (w *warp) failf(lane int, kind FaultKind, format string, args ...any) {
	if w.fault == nil {
		w.fault = w.describe(lane, kind, w.at(), fmt.Sprintf(format, args...))
	}
	w.stop = true
}

func (w *warp) describe(lane int, kind FaultKind, in *inst, msg string) *Fault {
	k := w.b.launch.kernel
	src := k.source(in)
	f := &Fault{Kind: kind, Kernel: k.name, Block: w.b.id, Thread: w.thread(lane), PTXLine: src.Line, PTX: src.Full(), Message: msg}
	f.File, f.Line = k.place(src.Src)
	if at := src.Src.InlinedAt; at != nil {
		f.CallFile, f.CallLine = k.place(*at)
	}
	return f
}

// thread is a lane's thread index.
func (w *warp) thread(lane int) [3]uint32 {
	t := uint32(w.id*32 + lane)
	d := w.b.launch.block
	return [3]uint32{t % d[0], t / d[0] % d[1], t / d[0] / d[1]}
}

func (k *kernel) source(in *inst) *ptx.Instr {
	return &k.origin[in.src]
}

func (k *kernel) place(s ptx.Src) (string, int) {
	return k.files[s.File], s.Line
}

// stands is where a warp that cannot go on is: at its barrier, or at what its loop polls.
func (w *warp) stands() *inst {
	if w.state != polling || w.polled == nil {
		return w.at()
	}
	end := w.polled.src
	for i := w.code[w.polled.target].src; i <= end; i++ {
		if in := &w.code[i]; polls(&w.b.launch.kernel.origin[in.src]) {
			return in
		}
	}
	return w.polled
}

// deadlock describes where every warp of a unit stands.
func (u *unit) deadlock() *Fault {
	var first *Fault
	lines := map[string][]string{}
	for _, b := range u.blocks {
		for _, w := range b.warps {
			if w.state == exited {
				continue
			}
			what := w.waits
			if w.state == polling {
				what = "polls"
			}
			f := w.describe(firstLane(w.mask), kindDeadlock, w.stands(), "")
			if first == nil {
				first = f
			}
			key := fmt.Sprintf("%s at %s:%d (PTX line %d)", what, f.File, f.Line, f.PTXLine)
			lines[key] = append(lines[key], fmt.Sprintf("%v/%d", b.id, w.id))
		}
	}
	if first == nil {
		return nil
	}
	keys := make([]string, 0, len(lines))
	for k := range lines {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	var b strings.Builder
	b.WriteString("no warp can go on; block/warp:")
	for _, k := range keys {
		list := lines[k]
		if len(list) > 8 {
			list = append(list[:8:8], fmt.Sprintf("and %d more", len(lines[k])-8))
		}
		fmt.Fprintf(&b, " [%s] %s;", strings.Join(list, ", "), k)
	}
	first.Message = strings.TrimSuffix(b.String(), ";")
	return first
}
