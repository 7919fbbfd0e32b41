package sim

import (
	"math/bits"
)

const allLanes = ^uint32(0)

// vec32 and vec64 are one register of a warp.
type (
	vec32 = [32]uint32
	vec64 = [32]uint64
)

// slot names a register of one class; a negative one is constant ^slot of the kernel.
type slot int32

// kind tells the interpreter what to do after an instruction's step.
type kind uint8

const (
	kStep   kind = iota // run, then the next instruction
	kBranch             // target for lanes of the guard
	kExit               // lanes of the guard leave
	kIndex              // brx.idx: each lane its own target
)

// inst is one lowered instruction.
type inst struct {
	run     func(w *warp, m uint32)
	guard   int32 // predicate slot, or -1
	negated bool
	kind    kind
	spin    bool  // a back edge of a loop that polls memory: give other warps a turn
	target  int32 // of a branch
	join    int32 // immediate post-dominator of a branch, or -1: the exit
	index   slot  // of brx.idx
	targets []int32
	src     int32 // index of the instruction in the PTX function
	uses    []regUse
	defs    []regUse
	addrs   []regUse // part of uses: what forms addresses
	stores  bool     // writes its other uses to memory
	carry   carry    // of undefined values
	group   Group
}

// entry is a group of lanes that waits on the warp's reconvergence stack.
type entry struct {
	pc, join int32
	mask     uint32
	joined   bool // a reconvergence point: runs only when everything above it is done
	syncing  uint32
}

// state says why a warp is not running.
type state uint8

const (
	running state = iota
	waiting       // at a barrier, which will wake it
	polling       // gave up its turn in a spin loop
	exited
)

// warp is 32 threads of a block.
type warp struct {
	r    []vec32
	q    []vec64
	p    []uint32
	c32  []vec32
	c64  []vec64
	code []inst

	pc, join int32
	mask     uint32 // lanes running now
	live     uint32 // lanes that have not exited
	stack    []entry
	stop     bool // leave the run loop: a fault, a barrier or a yield
	state    state
	fault    *Fault
	effect   bool // wrote memory since the last poll
	syncing  uint32

	id           int
	b            *block
	addr         vec64  // addresses of the memory instruction in flight
	ga           *alloc // the allocation of the last global access
	left         int    // instructions before others get a turn
	steps        int64  // instructions executed
	lanes        int64  // thread instructions executed
	async        asyncGroups
	wg           wgmmaState
	watched      bool  // the sanitizer or the counters see every instruction
	polled       *inst // the back edge of the loop that polls
	san          *warpShadow
	waits        string // what the warp waits for, for a deadlock report
	tries        int    // times that lanes of a shuffle were looked for
	carry        uint32 // condition code, by lane
	clusterPhase int64  // of the cluster's barrier that the warp last arrived for
}

// in32 returns a source of the 32-bit class.
func (w *warp) in32(s slot) *vec32 {
	if s < 0 {
		return &w.c32[^s]
	}
	return &w.r[s]
}

func (w *warp) in64(s slot) *vec64 {
	if s < 0 {
		return &w.c64[^s]
	}
	return &w.q[s]
}

// run executes until the warp blocks, polls, exits, faults or has used its turn. It reports whether it only polled.
func (w *warp) run() (polled bool) {
	w.stop = false
	code := w.code
	for !w.stop {
		if w.pc == w.join {
			w.pop()
			continue
		}
		in := &code[w.pc]
		m := w.mask
		if in.guard >= 0 {
			g := w.p[in.guard]
			if in.negated {
				g = ^g
			}
			m &= g
		}
		w.steps++
		if in.kind == kStep {
			w.pc++
			if m != 0 {
				w.lanes += int64(bits.OnesCount32(m))
				if w.watched {
					w.observe(in, m)
				}
				in.run(w, m)
			}
			continue
		}
		w.lanes += int64(bits.OnesCount32(w.mask))
		if w.control(in, m) {
			return true
		}
	}
	return w.state == polling
}

// control executes a branch or an exit, and reports a poll.
func (w *warp) control(in *inst, m uint32) bool {
	if w.watched {
		w.observe(in, m)
	}
	switch in.kind {
	case kExit:
		w.pc++
		w.exit(m)
		return false
	case kIndex:
		w.indexed(in, m)
		return false
	}
	w.left--
	switch {
	case m == 0:
		w.pc++
	case m == w.mask:
		w.pc = in.target
	default:
		w.diverge(in, m)
	}
	if in.spin && m != 0 {
		w.polled = in
		idle := !w.effect
		w.effect = false
		w.rotate()
		if idle {
			w.state = polling
		}
		w.stop = true
		return idle
	}
	if w.left <= 0 && m != 0 {
		w.stop = true
	}
	return false
}

// diverge splits the running lanes: those of m jump, the others fall through.
func (w *warp) diverge(in *inst, m uint32) {
	rest := w.mask &^ m
	next := w.pc + 1
	if in.join != w.join && in.join >= 0 {
		w.stack = append(w.stack, entry{pc: in.join, join: w.join, mask: w.mask, joined: true})
	}
	switch {
	case in.join >= 0 && next == in.join:
		w.pc, w.mask = in.target, m
	case in.join >= 0 && in.target == in.join:
		w.pc, w.mask = next, rest
	default:
		w.stack = append(w.stack, entry{pc: in.target, join: in.join, mask: m})
		w.pc, w.mask = next, rest
	}
	w.join = in.join
}

// indexed executes brx.idx: lanes are split by target.
func (w *warp) indexed(in *inst, m uint32) {
	index := w.in32(in.index)
	rest := w.mask &^ m
	groups := map[int32]uint32{}
	order := []int32{}
	for l := m; l != 0; l &= l - 1 {
		lane := bits.TrailingZeros32(l)
		i := index[lane]
		if int(i) >= len(in.targets) {
			w.failf(lane, kindControl, "brx.idx index %d of %d targets", i, len(in.targets))
			return
		}
		t := in.targets[i]
		if groups[t] == 0 {
			order = append(order, t)
		}
		groups[t] |= 1 << lane
	}
	if rest != 0 {
		if groups[w.pc+1] == 0 {
			order = append(order, w.pc+1)
		}
		groups[w.pc+1] |= rest
	}
	if len(order) > 1 {
		if in.join != w.join && in.join >= 0 {
			w.stack = append(w.stack, entry{pc: in.join, join: w.join, mask: w.mask, joined: true})
		}
		for _, t := range order[1:] {
			if t != in.join {
				w.stack = append(w.stack, entry{pc: t, join: in.join, mask: groups[t]})
			}
		}
		w.join = in.join
	}
	w.pc, w.mask = order[0], groups[order[0]]
}

// pop takes the next group of lanes from the stack.
func (w *warp) pop() {
	for len(w.stack) > 0 {
		e := w.stack[len(w.stack)-1]
		w.stack = w.stack[:len(w.stack)-1]
		if e.mask &= w.live; e.mask != 0 {
			w.pc, w.join, w.mask, w.syncing = e.pc, e.join, e.mask, e.syncing
			if w.syncing != 0 {
				w.resumeSync()
			}
			return
		}
	}
	w.mask, w.state, w.stop, w.join = 0, exited, true, -1
	w.b.exited(w)
}

// exit ends lanes.
func (w *warp) exit(m uint32) {
	w.live &^= m
	w.mask &^= m
	if w.mask == 0 {
		w.pop()
	}
}

// rotate lets another group of lanes of the same warp run, so that one that polls cannot starve the one it waits for. Moving a
// group to the top keeps every reconvergence point below all of its groups.
func (w *warp) rotate() bool {
	for i, e := range w.stack {
		if e.mask&w.live == 0 || e.joined && !w.complete(i) {
			continue
		}
		copy(w.stack[i:], w.stack[i+1:])
		w.stack[len(w.stack)-1] = entry{pc: w.pc, join: w.join, mask: w.mask, syncing: w.syncing}
		w.pc, w.join, w.mask, w.syncing = e.pc, e.join, e.mask&w.live, e.syncing
		return true
	}
	return false
}

// complete reports whether all groups of a reconvergence point have come to it: their lanes are subsets of its own.
func (w *warp) complete(i int) bool {
	m := w.stack[i].mask & w.live
	for _, e := range w.stack[i+1:] {
		if e.mask&m != 0 {
			return false
		}
	}
	return w.mask&m == 0
}
