package sim

import (
	"unsafe"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// spaceKind is a state space after lowering.
type spaceKind uint8

const (
	spGeneric spaceKind = iota
	spGlobal
	spShared
	spLocal
	spParam
)

func (c *lowering) spaceKind() spaceKind {
	switch c.oneOf(spaces...) {
	case "global", "const":
		return spGlobal
	case "shared", "shared::cta", "shared::cluster":
		return spShared
	case "local", "param::func":
		return spLocal
	case "param", "param::entry":
		return spParam
	}
	return spGeneric
}

// access is one memory operand: base register or variable, plus offset.
type access struct {
	space   spaceKind
	base    operand
	offset  uint64
	size    uint64 // bytes of one lane
	align   uint64
	write   bool
	atomic  bool
	async   bool // a copy engine's access, not the thread's
	barrier bool // of an mbarrier
	order   ordering
	dead    uint8     // elements of a vector load that nothing reads, a bit each
	element uint64    // their size
	stored  []operand // of a plain store: the values, each of element bytes
}

// address lowers an [a+off] operand. A variable's own space wins over .param for the parameters of inlined calls.
func (c *lowering) address(n int, space spaceKind, size int) access {
	return c.addressOf(c.arg(n), space, size)
}

func (c *lowering) addressOf(o ptx.Operand, space spaceKind, size int) access {
	if o.Kind != ptx.Address || len(o.Elems) == 0 {
		c.failf("an address in brackets is wanted")
	}
	base := o.Elems[0]
	a := access{space: space, offset: uint64(o.Off), size: uint64(size), align: uint64(size)}
	switch base.Kind {
	case ptx.Register:
		a.base = c.any(base, "u64")
		if a.base.class == cPred {
			c.failf("an address in a predicate")
		}
	case ptx.Symbol:
		p, ok := c.vars[base.Name]
		if !ok {
			c.failf("unknown variable %s", base.Name)
		}
		if space == spParam && p.space == "local" {
			a.space = spLocal
		}
		if space == spGeneric {
			a.offset |= window(p.space)
		}
		a.base = c.symbol(base, c64)
	case ptx.Integer:
		a.base = c.literal(base, "u64")
	default:
		c.failf("unknown kind of address")
	}
	return a
}

// addresses computes each lane's address into w.addr.
func (a *access) addresses(w *warp, m uint32) {
	y := &w.addr
	if a.base.class == c64 {
		x := w.in64(a.base.slot)
		for i := range y {
			y[i] = x[i] + a.offset
		}
	} else {
		x := w.in32(a.base.slot)
		for i := range y {
			y[i] = uint64(x[i] + uint32(a.offset))
		}
	}
	if w.watched {
		w.watch(a, m)
	}
}

// pointer returns the memory of one lane's access, or nil after a fault.
func (w *warp) pointer(a *access, lane int, addr uint64) unsafe.Pointer {
	if addr&(a.align-1) != 0 {
		w.failf(lane, kindAlign, "%s of %d bytes at %#x, which is no multiple of %d", a.verb(), a.size, addr, a.align)
		return nil
	}
	switch a.space {
	case spGlobal:
		return w.global(a, lane, addr)
	case spShared:
		return w.shared(a, lane, uint32(addr))
	case spLocal:
		return w.local(a, lane, addr)
	case spParam:
		return w.param(a, lane, addr)
	}
	switch addr & windowMask {
	case 0:
		return w.global(a, lane, addr)
	case windowShared:
		return w.shared(a, lane, uint32(addr))
	case windowLocal:
		return w.local(a, lane, addr)
	case windowParam:
		return w.param(a, lane, addr)
	}
	w.failf(lane, kindBounds, "%s of %d bytes at %#x: no such address", a.verb(), a.size, addr)
	return nil
}

func (a *access) verb() string {
	switch {
	case a.atomic:
		return "atomic"
	case a.write:
		return "write"
	}
	return "read"
}

func (w *warp) global(a *access, lane int, addr uint64) unsafe.Pointer {
	if g := w.ga; g != nil {
		if off := addr - g.base; off < g.size && a.size <= g.size-off {
			return unsafe.Add(g.mem, off)
		}
	}
	g := w.b.launch.dev.space.find(addr)
	if g != nil {
		if off := addr - g.base; off < g.size && a.size <= g.size-off {
			if !g.freed {
				w.ga = g
				return unsafe.Add(g.mem, off)
			}
			w.failAt(lane, kindFreed, addr, "%s of %d bytes at %#x, %s", a.verb(), a.size, addr, w.b.launch.dev.space.near(addr))
			return nil
		}
	}
	w.failAt(lane, kindBounds, addr, "%s of %d bytes at global %#x, %s", a.verb(), a.size, addr, w.b.launch.dev.space.near(addr))
	return nil
}

func (w *warp) failAt(lane int, kind FaultKind, addr uint64, format string, args ...any) {
	w.failf(lane, kind, format, args...)
	if w.fault != nil && w.fault.Address == 0 {
		w.fault.Address = addr
	}
}

func (w *warp) shared(a *access, lane int, addr uint32) unsafe.Pointer {
	b := w.b
	if rank := addr >> sharedRank; rank != b.rank {
		if int(rank) >= len(b.unit.blocks) {
			w.failAt(lane, kindBounds, uint64(addr), "%s of %d bytes at shared %#x: the cluster has no block of rank %d", a.verb(), a.size, addr, rank)
			return nil
		}
		b = b.unit.blocks[rank]
		if b.alive == 0 {
			w.failAt(lane, kindBounds, uint64(addr), "%s of %d bytes in the shared memory of block %v, which has exited", a.verb(), a.size, b.id)
			return nil
		}
	}
	off := uint64(addr&sharedOffset) - sharedBase
	if size := uint64(b.launch.shared); off >= size || a.size > size-off {
		w.failAt(lane, kindBounds, uint64(addr), "%s of %d bytes at shared offset %d; the block has %d bytes", a.verb(), a.size, int64(off), size)
		return nil
	}
	return unsafe.Pointer(&b.shared[off])
}

func (w *warp) local(a *access, lane int, addr uint64) unsafe.Pointer {
	off, size := addr&^windowMask, uint64(w.b.launch.kernel.localBytes)
	if off >= size || a.size > size-off {
		w.failAt(lane, kindBounds, addr, "%s of %d bytes at local offset %d; the thread has %d bytes", a.verb(), a.size, off, size)
		return nil
	}
	return unsafe.Pointer(&w.b.local[uint64(w.id*32+lane)*size+off])
}

func (w *warp) param(a *access, lane int, addr uint64) unsafe.Pointer {
	off, size := addr&^windowMask, uint64(len(w.b.launch.params))
	if a.write || off >= size || a.size > size-off {
		w.failAt(lane, kindBounds, addr, "%s of %d bytes at offset %d of the kernel's %d bytes of parameters", a.verb(), a.size, off, size)
		return nil
	}
	return unsafe.Pointer(&w.b.launch.params[off])
}

// cacheMods are modifiers that change no result: cache operators, eviction priorities, prefetch sizes.
var cacheMods = []string{"ca", "cg", "cs", "lu", "cv", "wb", "wt", "nc", "L1::evict_normal", "L1::evict_unchanged", "L1::evict_first", "L1::evict_last",
	"L1::no_allocate", "L2::evict_normal", "L2::evict_first", "L2::evict_last", "L2::64B", "L2::128B", "L2::256B"}

// cached takes cache modifiers and reports a cache policy operand.
func (c *lowering) cached() (policy bool) {
	for c.oneOf(cacheMods...) != "" {
	}
	return c.has("L2::cache_hint")
}

// ordering is the memory order of an access.
type ordering struct {
	acquire, release, volatile, relaxed bool
	scope                               string
}

func (c *lowering) ordering() ordering {
	var o ordering
	switch c.oneOf("weak", "volatile", "relaxed", "acquire", "release", "acq_rel", "mmio") {
	case "volatile", "mmio":
		o.volatile = true
	case "relaxed":
		o.relaxed = true
	case "acquire":
		o.acquire = true
	case "release":
		o.release = true
	case "acq_rel":
		o.acquire, o.release = true, true
	}
	o.scope = c.oneOf("cta", "cluster", "gpu", "sys")
	return o
}

// strong reports an access that may be polled or raced on.
func (o ordering) strong() bool { return o.acquire || o.release || o.volatile || o.relaxed }

// vector takes .v2, .v4 or .v8.
func (c *lowering) vector() int {
	switch c.oneOf("v2", "v4", "v8") {
	case "v2":
		return 2
	case "v4":
		return 4
	case "v8":
		return 8
	}
	return 1
}

// elements lowers a register or a vector of n of them.
func (c *lowering) elements(o ptx.Operand, n int, t ptx.Type, dest bool) []operand {
	list := []ptx.Operand{o}
	if n > 1 || o.Kind == ptx.Vector {
		if o.Kind != ptx.Vector || len(o.Elems) != n {
			c.failf("a vector of %d is wanted", n)
		}
		list = o.Elems
	}
	var out []operand
	for _, e := range list {
		if dest {
			out = append(out, c.anyDest(e, t))
		} else {
			out = append(out, c.any(e, t))
		}
	}
	return out
}
