package sim

import "math/bits"

// sanitizeAccess checks the lanes' accesses of one memory instruction; the addresses are in w.addr. Accesses that are out of bounds are
// left to the bounds check that follows.
func (w *warp) sanitizeAccess(a *access, m uint32) {
	if a.async || a.barrier {
		return
	}
	s := w.san
	global := false
	for l := m; l != 0; l &= l - 1 {
		i := bits.TrailingZeros32(l) & 31
		addr := w.addr[i]
		switch w.spaceOf(a, addr) {
		case spShared:
			w.sanitizeShared(a, i, uint32(addr))
		case spGlobal:
			if !global {
				global = true
				s.san.mu.Lock()
			}
			w.sanitizeGlobal(a, i, addr)
		}
	}
	if global {
		s.san.mu.Unlock()
	}
	if a.order.strong() || a.atomic {
		w.synchronise(a, m)
	}
}

// spaceOf resolves the generic space.
func (w *warp) spaceOf(a *access, addr uint64) spaceKind {
	if a.space != spGeneric {
		return a.space
	}
	switch addr & windowMask {
	case 0:
		return spGlobal
	case windowShared:
		return spShared
	case windowLocal:
		return spLocal
	}
	return spParam
}

func (w *warp) sanitizeShared(a *access, lane int, addr uint32) {
	b := w.b
	if rank := addr >> sharedRank; rank != b.rank {
		if int(rank) >= len(b.unit.blocks) {
			return
		}
		b = b.unit.blocks[rank]
	}
	off := uint64(addr&sharedOffset) - sharedBase
	if size := uint64(b.launch.shared); off >= size || a.size > size-off {
		return
	}
	if !a.write || a.atomic {
		if unwritten(b.shade.written, off, a.size) < a.size && !w.partly(a, lane, b.shade.written, off) {
			w.report(lane, kindUninit, w.at(), 0, uint64(addr), "shared offset %d was never written", off)
		}
	}
	if a.write {
		mark(b.shade.written, off, a.size, w.san.tainted>>lane&1 == 0)
	}
	strong := a.atomic || a.order.strong()
	for g := off &^ (granule - 1); g < off+a.size; g += granule {
		if a.dead != 0 && a.unread(g, off) {
			continue
		}
		t := w.touch(lane, bytesOf(g, off, a.size), strong)
		a.valued(w, &t, lane, g, off)
		w.check(&b.shade.cells[g/granule], t, a.write, lane, uint64(addr)+g-off)
	}
}

func (w *warp) sanitizeGlobal(a *access, lane int, addr uint64) {
	g := w.ga
	if g == nil || addr-g.base >= g.size {
		g = w.b.launch.dev.space.find(addr)
	}
	if g == nil || g.freed || g.shade == nil {
		return
	}
	off := addr - g.base
	if off >= g.size || a.size > g.size-off {
		return
	}
	if !a.write || a.atomic {
		if unwritten(g.shade.written, off, a.size) < a.size && !w.partly(a, lane, g.shade.written, off) {
			w.reportAt(lane, kindUninit, 0, addr, "%s was never written", w.b.launch.dev.space.near(addr))
		}
	}
	if a.write {
		if w.san.tainted>>lane&1 != 0 {
			w.reportAt(lane, kindUninit, 2, addr, "stores a register that was never written")
		}
		mark(g.shade.written, off, a.size, true)
	}
	strong := a.atomic || a.order.strong()
	for x := off &^ (granule - 1); x < off+a.size; x += granule {
		if a.dead != 0 && a.unread(x, off) {
			continue
		}
		t := w.touch(lane, bytesOf(x, off, a.size), strong)
		a.valued(w, &t, lane, x, off)
		w.check(g.shade.cell(x), t, a.write, lane, g.base+x)
	}
}

// unread reports whether a granule belongs to an element that nothing reads.
func (a *access) unread(g, off uint64) bool {
	return a.element >= granule && g >= off && a.dead>>((g-off)/a.element)&1 != 0
}

// valued notes what a plain store stores in the granule at g of an access at off.
func (a *access) valued(w *warp, t *touch, lane int, g, off uint64) {
	if a.stored == nil {
		return
	}
	t.known = true
	for j := range uint64(granule) {
		if t.bytes>>j&1 != 0 {
			at := g + j - off
			t.value |= uint32(uint8(w.lane(a.stored[at/a.element], lane)>>(8*(at%a.element)))) << (8 * j)
		}
	}
}

// synchronise applies the memory order of atomics and strong accesses.
func (w *warp) synchronise(a *access, m uint32) {
	s := w.san
	published := false
	last := uint64(0)
	for l := m; l != 0; l &= l - 1 {
		i := bits.TrailingZeros32(l) & 31
		addr := w.addr[i]
		if addr == last {
			continue
		}
		last = addr
		v := s.variable(w, a, addr)
		if v == nil {
			continue
		}
		s.san.mu.Lock()
		s.see(a, v)
		if a.write {
			own := s.latest[v] == v.version // what it publishes now is then no news to itself
			switch {
			case a.order.release:
				v.publish(s.unit.base, &s.vc, &s.proxy)
				published = true
			case s.fenced:
				v.publish(s.unit.base, &s.fence, &s.fenceP)
				published = true
			}
			if own {
				s.latest[v] = v.version
			}
		}
		s.san.mu.Unlock()
	}
	if published {
		s.tick()
	}
}

// see takes over what a variable published, or notes that a fence may: after a load or an atomic. The sanitizer is locked.
func (s *warpShadow) see(a *access, v *syncVar) {
	switch {
	case a.write && !a.atomic:
	case a.order.acquire:
		s.acquire(v)
	case s.latest[v] != v.version:
		s.pending[v] = v.version
	}
}

// observed is called after a strong load or an atomic. It sees once more: a block that another worker runs may have published between the
// check before the access and the access itself, which then found its value.
func (w *warp) observed(a *access, m uint32) {
	s := w.san
	if s == nil {
		return
	}
	for ; m != 0; m &= m - 1 {
		if v := s.variable(w, a, w.addr[bits.TrailingZeros32(m)&31]); v != nil {
			s.san.mu.Lock()
			s.see(a, v)
			s.san.mu.Unlock()
		}
	}
}

// variable is the synchronisation variable at an address.
func (s *warpShadow) variable(w *warp, a *access, addr uint64) *syncVar {
	vars := s.san.vars
	switch w.spaceOf(a, addr) {
	case spShared:
		vars = s.unit.vars
		addr &= 0xffffffff
	case spGlobal:
	default:
		return nil
	}
	s.san.mu.Lock()
	defer s.san.mu.Unlock()
	v := vars[addr]
	if v == nil {
		if !a.write {
			return nil
		}
		v = &syncVar{}
		vars[addr] = v
	}
	return v
}

// acquire takes over what a variable published; the sanitizer is locked.
func (s *warpShadow) acquire(v *syncVar) {
	if s.latest[v] == v.version {
		return
	}
	s.vc.acquire(s.unit.base, s.san.stride, v.clocks)
	s.proxy.acquire(s.unit.base, s.san.stride, v.proxy)
	s.latest[v] = v.version
}

// fenced is a fence: it releases what happened before to later atomics, and acquires what earlier ones saw.
func (w *warp) fenced(m uint32, proxy bool, scope string) {
	s := w.san
	if s == nil {
		return
	}
	if proxy {
		s.proxy.copyFrom(&s.vc)
		s.tick()
		return
	}
	s.san.mu.Lock()
	for v := range s.pending {
		s.acquire(v)
	}
	s.san.mu.Unlock()
	clear(s.pending)
	s.fence.copyFrom(&s.vc)
	s.fenceP.copyFrom(&s.proxy)
	s.fenced = true
	s.tick()
}

func (w *warp) warpSynced(members uint32) {
	if w.san != nil {
		w.san.sync++
	}
}

// clock of a barrier of a block.
func (u *unitShadow) bar(b *block, id int) *barShadow {
	key := int(b.rank)*16 + id
	x := u.bars[key]
	if x == nil {
		x = &barShadow{}
		u.bars[key] = x
	}
	return x
}

// barrierArrived notes a warp's arrival at a named barrier.
func (w *warp) barrierArrived(id int) {
	if s := w.san; s != nil {
		x := s.unit.bar(w.b, id)
		x.vc.join(&s.vc)
		x.proxy.join(&s.proxy)
		// A fence before the barrier covers an atomic after it, and the other way round: "fence; barrier; one thread's atomic" and
		// "one thread's atomic; barrier; fence" are how blocks hand over, and the hardware's fences are cumulative.
		x.waited = x.waited || s.waited
		if s.fenced {
			x.fence.join(&s.fence)
			x.fenceP.join(&s.fenceP)
			x.fenced = true
		}
		for v, version := range s.pending {
			if x.pending == nil {
				x.pending = map[*syncVar]uint64{}
			}
			x.pending[v] = version
		}
		s.tick()
		s.sync++
	}
}

// barrierOpened gives the waiters what all arrived with.
func (b *block) barrierOpened(id int, waiters []*warp) {
	u := b.unit.shade
	if u == nil {
		return
	}
	x := u.bar(b, id)
	for _, w := range waiters {
		w.san.vc.join(&x.vc)
		w.san.proxy.join(&x.proxy)
		w.san.waited = w.san.waited || x.waited
		if x.fenced {
			w.san.fence.join(&x.fence)
			w.san.fenceP.join(&x.fenceP)
			w.san.fenced = true
		}
		for v, version := range x.pending {
			w.san.pending[v] = version
		}
	}
	*x = barShadow{}
}

func (w *warp) clusterArrived(release bool) {
	s := w.san
	if s == nil {
		return
	}
	if release {
		s.unit.open.join(&s.vc)
		s.unit.waited = s.unit.waited || s.waited
		s.unit.openP.join(&s.proxy)
		s.tick()
	}
	s.sync++
}

func (w *warp) clusterWaited() {
	if s := w.san; s != nil {
		s.vc.join(&s.unit.done)
		s.waited = s.waited || s.unit.waited
		s.proxy.join(&s.unit.doneP)
		s.sync++
	}
}

func (u *unit) clusterOpened() {
	if s := u.shade; s != nil {
		s.done, s.doneP = s.open, s.openP
		s.open, s.openP = vclock{}, vclock{}
	}
}
