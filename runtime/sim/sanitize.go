package sim

import (
	"fmt"
	"sync"
	"sync/atomic"
)

// maxReports bounds what one launch reports: each faulty instruction once.
const maxReports = 64

// maxAgents is how many copy engines of a unit are told apart: one for each mbarrier or bulk group.
const maxAgents = 96

var launchNumber atomic.Uint32

// sanitizer watches one launch. Its state is shared by the workers.
type sanitizer struct {
	launch *launch
	number uint32   // of the launch: what earlier ones did happened before, but for
	chain  []uint32 // those that may still run, under programmatic dependent launch, until griddepcontrol.wait
	stride uint32   // global numbers of one unit: its warps and its copy engines

	mu      sync.Mutex // of the shadows of global memory and of vars
	vars    map[uint64]*syncVar
	note    sync.Mutex // of what follows
	seen    map[reportKey]bool
	reports []*Fault
}

type reportKey struct {
	kind FaultKind
	inst int32
	with int32
}

// Reports is the error of a launch under the sanitizer: what it found, each faulty instruction once.
type Reports []*Fault

func (r Reports) Error() string {
	s := fmt.Sprintf("the sanitizer reports %d faults", len(r))
	if len(r) == 1 {
		s = "the sanitizer reports a fault"
	}
	for i, f := range r {
		if i == 8 {
			return s + fmt.Sprintf("\n  and %d more", len(r)-i)
		}
		s += "\n  " + f.Error()
	}
	return s
}

// overlaps reports whether an earlier launch may still be running when this one starts.
func (s *sanitizer) overlaps(launch uint32) bool {
	for _, n := range s.chain {
		if n == launch {
			return true
		}
	}
	return false
}

// reportAt reports at the instruction in flight.
func (w *warp) reportAt(lane int, kind FaultKind, with int32, addr uint64, format string, args ...any) {
	w.report(lane, kind, w.at(), with, addr, format, args...)
}

// unitShadow is what the sanitizer keeps for a unit.
type unitShadow struct {
	base   uint32
	agents map[uint64]int       // copy engine of an mbarrier's address or bulk group
	mbars  map[uint64]*mbShadow // by shared address with rank
	vars   map[uint64]*syncVar  // synchronisation variables in shared memory
	bars   map[int]*barShadow   // named barriers: block rank x 16 + number
	open   vclock               // cluster barrier: released so far
	openP  vclock
	done   vclock // of the phase that opened last
	doneP  vclock
	waited bool // some arrival at the cluster's barrier came after griddepcontrol.wait
}

type barShadow struct {
	vc, proxy     vclock
	fence, fenceP vclock
	fenced        bool
	waited        bool
	pending       map[*syncVar]uint64
}

// mbShadow is an mbarrier's: what arrived in this phase, and in the phase completed last.
type mbShadow struct {
	arriving, arrivingP vclock
	done, doneP         vclock
	waited              bool // some arrival came after griddepcontrol.wait
}

// warpShadow is what the sanitizer keeps for a warp.
type warpShadow struct {
	san     *sanitizer
	unit    *unitShadow
	index   uint32 // in the unit
	vc      vclock
	proxy   vclock // writes that a proxy fence has made visible to copy engines
	fence   vclock // what the last fence released
	fenceP  vclock
	fenced  bool
	pending map[*syncVar]uint64 // read by relaxed accesses: acquired by the next fence
	latest  map[*syncVar]uint64 // versions already acquired
	sync    uint32
	waited  bool     // griddepcontrol.wait was executed, by this warp or one that it knows of
	ready   []halves // lanes whose register was written, by register
	tainted uint32   // lanes that store a value nothing wrote
	bulk    uint32   // bulk copies without an mbarrier so far
	groups  []uint32 // bulk at each commit
}

func (w *warpShadow) tick() {
	w.vc.near[w.index]++
}

// begin prepares a unit that starts.
func (s *sanitizer) begin(u *unit) {
	n := 0
	for _, b := range u.blocks {
		n += len(b.warps)
	}
	us := &unitShadow{base: uint32(u.index) * s.stride, agents: map[uint64]int{}, mbars: map[uint64]*mbShadow{}, vars: map[uint64]*syncVar{}, bars: map[int]*barShadow{}}
	u.shade = us
	i := uint32(0)
	for _, b := range u.blocks {
		if b.shade == nil {
			b.shade = &sharedShadow{}
		}
		b.shade.reset(s.launch.shared)
		for _, w := range b.warps {
			if w.san == nil {
				w.san = &warpShadow{ready: make([]halves, len(s.launch.kernel.fn.Regs))}
			}
			*w.san = warpShadow{san: s, unit: us, index: i, ready: w.san.ready, pending: map[*syncVar]uint64{}, latest: map[*syncVar]uint64{}}
			w.san.vc.near = make([]uint32, n)
			w.san.vc.near[i] = 1
			clear(w.san.ready)
			i++
		}
	}
}

// report adds a fault, once for each pair of instructions.
func (w *warp) report(lane int, kind FaultKind, in *inst, with int32, addr uint64, format string, args ...any) {
	s := w.san.san
	key := reportKey{kind, in.src, with}
	s.note.Lock()
	defer s.note.Unlock()
	if s.seen[key] || len(s.reports) >= maxReports {
		return
	}
	s.seen[key] = true
	f := w.describe(lane, kind, in, fmt.Sprintf(format, args...))
	f.Address = addr
	s.reports = append(s.reports, f)
}

// agent is the global number and near index of the copy engine that signals an address.
func (u *unitShadow) agent(warps int, addr uint64) uint32 {
	i, ok := u.agents[addr]
	if !ok {
		i = warps + len(u.agents)%maxAgents
		u.agents[addr] = i
	}
	return uint32(i)
}

// ordered reports whether an earlier access happened before what lane of the warp does now.
func (w *warpShadow) ordered(t *touch, lane int) bool {
	if t.launch != w.san.number {
		return w.waited || !w.san.overlaps(t.launch)
	}
	i := t.gid - w.unit.base
	if i == w.index {
		return t.lanes&^(1<<lane) == 0 || t.sync < w.sync
	}
	if i < w.san.stride {
		return w.vc.at(i) >= t.clock
	}
	return w.vc.far[t.gid] >= t.clock
}

// visible reports whether an earlier write was made visible to copy engines.
func (w *warpShadow) visible(t *touch) bool {
	if t.launch != w.san.number || t.async {
		return true
	}
	if i := t.gid - w.unit.base; i < w.san.stride {
		return w.proxy.at(i) >= t.clock
	}
	return w.proxy.far[t.gid] >= t.clock
}

func (w *warp) touch(lane int, bytes uint8, strong bool) touch {
	s := w.san
	return touch{gid: s.unit.base + s.index, clock: s.vc.near[s.index], sync: s.sync, lanes: 1 << lane, launch: s.san.number,
		inst: w.at().src, step: w.steps, bytes: bytes, strong: strong}
}

// check compares an access with what the cell knows, reports a race, and notes the access.
func (w *warp) check(c *cell, t touch, write bool, lane int, addr uint64) {
	s := w.san
	if c.pending != 0 {
		w.report(lane, kindRace, w.at(), c.pending, addr, "%#x is the target of a cp.async (%s) that nothing has waited for", addr, w.where(c.pending-1))
	}
	if c.write.bytes&t.bytes != 0 && !(c.write.strong && t.strong) && !s.ordered(&c.write, lane) && !(write && (c.write.together(&t) || c.write.same(&t))) {
		verb := "read"
		if write {
			verb = "write"
		}
		w.race(lane, &c.write, verb, "write", addr)
	}
	if !write {
		c.read(s, t, lane)
		return
	}
	for i := range c.readers {
		r := &c.readers[i]
		if r.bytes&t.bytes != 0 && !(r.strong && t.strong) && !s.ordered(r, lane) && !r.together(&t) {
			w.race(lane, r, "write", "read", addr)
		}
	}
	// Lanes of one instruction, and one lane's stores to the parts of a word, are one write.
	if o := &c.write; o.together(&t) || o.gid == t.gid && o.launch == t.launch && o.lanes == t.lanes && o.clock == t.clock && o.sync == t.sync && o.async == t.async {
		t.strong = t.strong && o.strong
		t.known = t.known && c.write.known
		t.value |= c.write.value & spread(c.write.bytes&^t.bytes)
		t.lanes |= c.write.lanes
		t.bytes |= c.write.bytes
	}
	c.write, c.readers = t, c.readers[:0]
}

// read notes a reader; an older read of the same warp, or one that is known to have happened before, is replaced.
func (c *cell) read(s *warpShadow, t touch, lane int) {
	for i := range c.readers {
		r := &c.readers[i]
		if r.gid == t.gid {
			if r.clock == t.clock && r.sync == t.sync && r.launch == t.launch {
				t.lanes |= r.lanes
				t.bytes |= r.bytes
			}
			*r = t
			return
		}
	}
	if len(c.readers) == 1 && s.ordered(&c.readers[0], lane) && c.readers[0].bytes&^t.bytes == 0 {
		c.readers[0] = t
		return
	}
	c.readers = append(c.readers, t)
}

func (w *warp) race(lane int, t *touch, now, then string, addr uint64) {
	who := "another block"
	if t.launch != w.san.san.number {
		who = "an earlier launch, for which griddepcontrol.wait was not executed"
	} else if i := t.gid - w.san.unit.base; i == w.san.index {
		who = fmt.Sprintf("lane %d of the same warp, with no __syncwarp between", firstLane(t.lanes))
	} else if t.async {
		who = "a copy engine or the tensor core, which was not waited for"
	} else if i < w.san.san.stride {
		who = fmt.Sprintf("warp %d of the block", i)
		if len(w.b.unit.blocks) > 1 {
			who = fmt.Sprintf("warp %d of block rank %d", int(i)%len(w.b.warps), int(i)/len(w.b.warps))
		}
	}
	w.report(lane, kindRace, w.at(), t.inst, addr, "%s of %#x is not ordered after the %s at %s by %s; %s", now, addr, then, w.where(t.inst), who, w.location(addr))
}

// where names an instruction by its source lines.
func (w *warp) where(src int32) string {
	k := w.b.launch.kernel
	in := &k.origin[src]
	file, line := k.place(in.Src)
	if line == 0 {
		return fmt.Sprintf("PTX line %d", in.Line)
	}
	return fmt.Sprintf("%s:%d (PTX line %d)", file, line, in.Line)
}

// location describes an address.
func (w *warp) location(addr uint64) string {
	if addr < 1<<windowShift && addr >= globalBase {
		return w.b.launch.dev.space.near(addr)
	}
	return fmt.Sprintf("shared offset %d", int64(addr&sharedOffset)-sharedBase)
}
