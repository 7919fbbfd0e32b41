package sim

func (w *warp) mbarrier(addr uint64) *mbShadow {
	addr &= 0xffffffff
	x := w.san.unit.mbars[addr]
	if x == nil {
		x = &mbShadow{}
		w.san.unit.mbars[addr] = x
	}
	return x
}

// mbarrierNew notes that the barrier's bytes hold something. What an earlier barrier there has ordered stays ordered.
func (w *warp) mbarrierNew(addr uint64) {
	if w.san == nil {
		return
	}
	b := w.b.unit.blocks[uint32(addr)>>sharedRank]
	mark(b.shade.written, addr&sharedOffset-sharedBase, 8, true)
}

// mbarrierArrived releases a warp's past to the barrier's phase.
func (w *warp) mbarrierArrived(addr uint64, lanes uint32) {
	if s := w.san; s != nil {
		x := w.mbarrier(addr)
		x.arriving.join(&s.vc)
		x.waited = x.waited || s.waited
		x.arrivingP.join(&s.proxy)
		s.tick()
	}
}

// mbarrierTurned moves what has arrived to the completed phase.
func (w *warp) mbarrierTurned(addr uint64) {
	if w.san != nil {
		x := w.mbarrier(addr)
		x.done, x.doneP = x.arriving, x.arrivingP
		x.arriving, x.arrivingP = vclock{}, vclock{}
		x.arriving.copyFrom(&x.done) // phases are in order
		x.arrivingP.copyFrom(&x.doneP)
	}
}

// mbarrierWaited acquires the completed phase.
func (w *warp) mbarrierWaited(addr uint64, lanes uint32, phase int) {
	if s := w.san; s != nil {
		x := w.mbarrier(addr)
		s.vc.join(&x.done)
		s.waited = s.waited || x.waited
		s.proxy.join(&x.doneP)
		s.sync++
	}
}

// asyncIssued marks the target of a cp.async.
func (w *warp) asyncIssued(lane int, addr uint32, size int) {
	if w.san == nil {
		return
	}
	off := uint64(addr&sharedOffset) - sharedBase
	for g := off; g < off+uint64(size); g += granule {
		c := &w.b.shade.cells[g/granule]
		w.check(c, w.touch(lane, 15, false), true, lane, uint64(addr)+g-off)
		c.pending = w.at().src + 1
	}
}

// asyncLanded makes the copies writes of their threads, now.
func (w *warp) asyncLanded(group []asyncCopy) {
	if w.san == nil {
		return
	}
	for _, a := range group {
		off := uint64(a.shared&sharedOffset) - sharedBase
		mark(w.b.shade.written, off, uint64(a.size), true)
		for g := off; g < off+uint64(a.size); g += granule {
			c := &w.b.shade.cells[g/granule]
			inst := c.pending - 1
			c.pending = 0
			c.write = w.touch(int(a.lane), 15, false)
			if inst >= 0 {
				c.write.inst = inst
			}
			c.readers = c.readers[:0]
		}
	}
}

// bulkCommitted closes the thread's bulk group.
func (w *warp) bulkCommitted() {
	if s := w.san; s != nil {
		s.groups = append(s.groups, s.bulk)
	}
}

// bulkWaited orders the thread after all its bulk groups but the newest keep.
func (w *warp) bulkWaited(keep int) {
	s := w.san
	if s == nil || len(s.groups) <= keep {
		return
	}
	i := s.unit.agent(len(w.b.unit.blocks)*len(w.b.warps), uint64(s.index)|1<<40)
	for uint32(len(s.vc.near)) <= i {
		s.vc.near = append(s.vc.near, 0)
	}
	s.vc.near[i] = max(s.vc.near[i], s.groups[len(s.groups)-1-keep])
	s.sync++
}

// bulkCopied checks both sides of a bulk copy, issued by one lane. The copy is a step of a copy engine of its own, which the
// barrier's phase, or a wait for the thread's bulk groups, brings back into order.
func (w *warp) bulkCopied(lane int, d *access, to uint64, src *access, from, n uint64, bar uint64) {
	s := w.san
	if s == nil {
		return
	}
	key := bar & 0xffffffff
	if bar == 0 {
		key = uint64(s.index) | 1<<40
	}
	i := s.unit.agent(len(w.b.unit.blocks)*len(w.b.warps), key)
	s.san.mu.Lock()
	t := touch{gid: s.unit.base + i, clock: 1, launch: s.san.number, inst: w.at().src, step: w.steps, async: true, lanes: allLanes}
	if bar != 0 {
		x := w.mbarrier(bar)
		for uint32(len(x.arriving.near)) <= i {
			x.arriving.near = append(x.arriving.near, 0)
		}
		x.arriving.near[i]++
		t.clock = x.arriving.near[i]
	} else {
		s.bulk++
		t.clock = s.bulk
	}
	if src != nil {
		w.bulkSide(lane, src, from, n, t, false)
	}
	w.bulkSide(lane, d, to, n, t, true)
	s.san.mu.Unlock()
}

// bulkRead checks the shared side of a tensor store.
func (w *warp) bulkRead(lane int, src *access, from, n uint64) {
	s := w.san
	if s == nil {
		return
	}
	i := s.unit.agent(len(w.b.unit.blocks)*len(w.b.warps), uint64(s.index)|1<<40)
	s.bulk++
	t := touch{gid: s.unit.base + i, clock: s.bulk, launch: s.san.number, inst: w.at().src, step: w.steps, async: true, lanes: allLanes}
	w.bulkSide(lane, src, from, n, t, false)
}

// bulkSide checks one side of a copy.
func (w *warp) bulkSide(lane int, a *access, addr, n uint64, t touch, write bool) {
	var cellAt func(off uint64) *cell
	var written []byte
	var off uint64
	switch w.spaceOf(a, addr) {
	case spShared:
		b := w.b.unit.blocks[uint32(addr)>>sharedRank]
		off, written = addr&sharedOffset-sharedBase, b.shade.written
		cellAt = func(o uint64) *cell { return &b.shade.cells[o/granule] }
	case spGlobal:
		g := w.b.launch.dev.space.find(addr)
		if g == nil || g.shade == nil {
			return
		}
		off, written = addr-g.base, g.shade.written
		cellAt = g.shade.cell
	default:
		return
	}
	if write {
		mark(written, off, n, true)
	} else if k := unwritten(written, off, n); k < n {
		w.reportAt(lane, kindUninit, 0, addr+k, "the bulk copy reads %s, which was never written", w.location(addr+k))
	}
	for o := off &^ (granule - 1); o < off+n; o += granule {
		t.bytes = bytesOf(o, off, n)
		w.bulkCell(lane, cellAt(o), t, write, addr+o-off)
	}
}

func (w *warp) bulkCell(lane int, c *cell, t touch, write bool, addr uint64) {
	s := w.san
	verb := "bulk copy's read"
	if write {
		verb = "bulk copy's write"
	}
	last := &c.write
	switch {
	case last.bytes&t.bytes == 0:
	case last.launch != s.san.number:
		if !s.ordered(last, lane) {
			w.race(lane, last, verb, "write", addr)
		}
	case last.gid == t.gid && last.async:
	case !s.ordered(last, lane):
		w.race(lane, last, verb, "write", addr)
	case !s.visible(last) && !last.strong:
		w.reportAt(lane, kindProxy, last.inst, addr, "the %s of %s follows the write at %s with no fence.proxy.async between", verb, w.location(addr), w.where(last.inst))
	}
	if !write {
		c.read(s, t, lane)
		return
	}
	for i := range c.readers {
		if r := &c.readers[i]; r.bytes&t.bytes != 0 && !s.ordered(r, lane) && r.gid != t.gid {
			w.race(lane, r, verb, "read", addr)
		}
	}
	c.write, c.readers = t, c.readers[:0]
}

// matrixRead checks a wgmma operand: it is read through the async proxy.
func (w *warp) matrixRead(off, size uint64) {
	c := &w.b.shade.cells[off/granule]
	addr := off + sharedBase
	if k := unwritten(w.b.shade.written, off, size); k < size {
		w.reportAt(0, kindUninit, 0, addr, "the matrix reads shared offset %d, which was never written", off+k)
	}
	last := &c.write
	switch {
	case last.launch != w.san.san.number:
	case !w.san.ordered(last, 0) && last.gid != w.san.unit.base+w.san.index:
		w.race(0, last, "matrix read", "write", addr)
	case !w.san.visible(last):
		w.reportAt(0, kindProxy, last.inst, addr, "the matrix read of shared offset %d follows the write at %s with no fence.proxy.async between", off, w.where(last.inst))
	}
	t := w.touch(0, 15, false)
	t.gid, t.clock, t.lanes, t.async = w.san.unit.base+w.wgmmaAgent(), w.wg.issued, allLanes, true
	c.read(w.san, t, 0)
}
