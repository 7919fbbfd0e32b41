package sim

import (
	"math/bits"
	"slices"
	"unsafe"
)

// bulk lowers cp.async.bulk.
func (c *lowering) bulk() step {
	switch {
	case c.has("commit_group"):
		c.args(0, 0)
		return func(w *warp, m uint32) { w.bulkCommitted() }
	case c.has("wait_group"), c.has("wait_group.read"):
		c.has("read")
		c.args(1, 1)
		keep := int(c.imm(0))
		return func(w *warp, m uint32) {
			if f := w.b.unit.land(true); f != nil {
				w.fault, w.stop = f, true
				return
			}
			w.bulkWaited(keep)
		}
	case c.has("prefetch"):
		return c.bulkPrefetch()
	case c.has("tensor"):
		return c.bulkTensor()
	}
	return c.bulkLinear()
}

func (c *lowering) bulkPrefetch() step {
	if c.has("tensor") {
		return c.tensorPrefetch()
	}
	c.has("L2")
	c.has("global")
	policy := c.cached()
	n := 2
	if policy {
		n = 3
	}
	c.args(n, n)
	c.address(0, spGlobal, 16)
	c.src(1, "u32")
	return nil
}

// bulkSpaces takes the destination and source spaces, in order.
func (c *lowering) bulkSpaces() (dst, src string) {
	var found []string
	for _, m := range c.mods {
		if slices.Contains([]string{"global", "shared::cta", "shared::cluster"}, m) {
			found = append(found, m)
		}
	}
	if len(found) != 2 {
		c.failf("want a destination and a source space")
	}
	for _, m := range found {
		c.has(m)
	}
	return found[0], found[1]
}

func spaceOf(s string) spaceKind {
	if s == "global" {
		return spGlobal
	}
	return spShared
}

// bulkLinear is the one-dimensional copy.
func (c *lowering) bulkLinear() step {
	dstSpace, srcSpace := c.bulkSpaces()
	signal := c.has("mbarrier::complete_tx::bytes")
	group := c.has("bulk_group")
	multicast := c.has("multicast::cluster")
	mask := c.has("cp_mask")
	policy := c.cached()
	if signal == group || mask {
		c.failf("want .mbarrier::complete_tx::bytes or .bulk_group, without .cp_mask")
	}
	dst, src := c.address(0, spaceOf(dstSpace), 16), c.address(1, spaceOf(srcSpace), 16)
	dst.write, dst.async, src.async = true, true, true
	size := c.src(2, "u32")
	n := 3
	var bar access
	if signal {
		bar = c.mbAddress(n, spShared)
		n++
	}
	ctas := operand{slot: c.constant32(0)}
	if multicast {
		ctas = c.any(c.arg(n), "b16")
		n++
	}
	if policy {
		c.src(n, "b64")
		n++
	}
	c.args(n, n)
	return func(w *warp, m uint32) {
		d, s, b := dst, src, bar
		w.effect = true
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			n := w.lane(size, i)
			if n == 0 || n%16 != 0 {
				w.failf(i, kindOperand, "a bulk copy of %d bytes: multiples of 16", n)
				return
			}
			d.size, s.size = n, n
			from, fa := w.bulkPointer(&s, i)
			if from == nil {
				return
			}
			if !multicast {
				to, ta := w.bulkPointer(&d, i)
				if to == nil || !w.copyLater(to, from, n, &b, i, -1, signal) {
					return
				}
				w.bulkCopied(i, &d, ta, &s, fa, n, w.signalOf(&b, i, -1, signal))
				continue
			}
			for set := uint32(w.lane(ctas, i)); set != 0; set &= set - 1 {
				rank := bits.TrailingZeros32(set)
				ta := w.laneAddress(&d, i)&^(0xff<<sharedRank) | uint64(rank)<<sharedRank
				to := w.pointer(&d, i, ta)
				if to == nil || !w.copyLater(to, from, n, &b, i, rank, true) {
					return
				}
				w.bulkCopied(i, &d, ta, &s, fa, n, w.signalOf(&b, i, rank, true))
			}
		}
	}
}

// move copies n bytes of device memory.
func move(dst, src unsafe.Pointer, n uint64) {
	copy(unsafe.Slice((*byte)(dst), n), unsafe.Slice((*byte)(src), n))
}

// laneAddress is one lane's address.
func (w *warp) laneAddress(a *access, lane int) uint64 {
	v := w.lane(a.base, lane) + a.offset
	if a.base.class == c32 {
		v &= 0xffffffff
	}
	return v
}

// bulkPointer is one lane's memory; bulk copies need 16-byte alignment whatever their size.
func (w *warp) bulkPointer(a *access, lane int) (unsafe.Pointer, uint64) {
	addr := w.laneAddress(a, lane)
	return w.pointer(a, lane, addr), addr
}

// bulkOp is a bulk copy on its way: it lands when the unit's warps have had a turn, so that a kernel which does not wait for it
// sees the old bytes.
type bulkOp struct {
	w        *warp
	lane     int
	pc       int32
	dst, src unsafe.Pointer
	n        uint64
	do       func() // instead of a plain copy
	bar      uint64 // shared address of the mbarrier
	access   access // of the mbarrier
	signal   bool
}

// copyLater enqueues a copy, after a look at its barrier.
func (w *warp) copyLater(dst, src unsafe.Pointer, n uint64, bar *access, lane, rank int, signal bool) bool {
	return w.later(bulkOp{dst: dst, src: src, n: n}, bar, lane, rank, signal)
}

func (w *warp) later(op bulkOp, bar *access, lane, rank int, signal bool) bool {
	op.w, op.lane, op.pc, op.signal = w, lane, w.pc, signal
	if signal {
		op.bar, op.access = w.signalOf(bar, lane, rank, true), *bar
		if w.barrierAt(bar, lane, op.bar) == nil {
			return false
		}
	}
	w.b.unit.counters.BulkBytes += int64(op.n)
	w.b.unit.pending = append(w.b.unit.pending, op)
	return true
}

// land completes copies on their way: all of them, or about half where the schedule is random. It reports a fault
// of one of them.
func (u *unit) land(all bool) *Fault {
	var later []bulkOp
	for i := range u.pending {
		op := &u.pending[i]
		if !all && u.rng.on && u.rng.next()%2 == 0 {
			later = append(later, *op)
			continue
		}
		if op.do != nil {
			op.do()
		} else {
			move(op.dst, op.src, op.n)
		}
		if op.signal && !op.complete() {
			return op.w.fault
		}
	}
	u.pending = append(u.pending[:0], later...)
	return nil
}

// complete signals the barrier, at the place in the code where the copy was issued.
func (op *bulkOp) complete() bool {
	w := op.w
	pc, stop := w.pc, w.stop
	w.pc = op.pc
	p := w.barrierAt(&op.access, op.lane, op.bar)
	ok := p != nil && w.advance(p, op.lane, op.bar, 0, -int(op.n))
	w.pc = pc
	if ok {
		w.stop = stop
	}
	return ok
}

// signalOf is the address of the barrier that a copy signals, 0 where it signals none; rank >= 0: the barrier at the same offset in
// that block.
func (w *warp) signalOf(a *access, lane, rank int, signal bool) uint64 {
	if !signal {
		return 0
	}
	addr := w.laneAddress(a, lane)
	if rank >= 0 {
		addr = addr&^(0xff<<sharedRank) | uint64(rank)<<sharedRank
	}
	return addr
}

// bulkSignal completes bytes on a barrier.
func (w *warp) bulkSignal(a *access, lane, rank, n int) bool {
	addr := w.signalOf(a, lane, rank, true)
	p := w.barrierAt(a, lane, addr)
	if p == nil {
		return false
	}
	return w.advance(p, lane, addr, 0, -n)
}

// bulkReduce is cp.reduce.async.bulk: element-wise reductions into global or distributed shared memory.
func (c *lowering) bulkReduce() step {
	if !c.has("async") || !c.has("bulk") {
		c.failf("want cp.reduce.async.bulk")
	}
	if c.has("tensor") {
		c.failf("tensor reductions are not known")
	}
	dstSpace, srcSpace := c.bulkSpaces()
	signal := c.has("mbarrier::complete_tx::bytes")
	c.has("bulk_group")
	policy := c.cached()
	c.has("noftz")
	op := c.oneOf(atomicOps...)
	t := c.typ()
	f := c.update(op, t)
	width := t.Bits() / 8
	dst, src := c.address(0, spaceOf(dstSpace), 16), c.address(1, spaceOf(srcSpace), 16)
	dst.write, dst.async, src.async, dst.atomic = true, true, true, true
	size := c.src(2, "u32")
	n := 3
	var bar access
	if signal {
		bar = c.mbAddress(n, spShared)
		n++
	}
	if policy {
		n++
	}
	c.args(n, n)
	return func(w *warp, m uint32) {
		d, s, b := dst, src, bar
		w.effect = true
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			n := w.lane(size, i)
			if n == 0 || n%16 != 0 {
				w.failf(i, kindOperand, "a bulk reduction of %d bytes: multiples of 16", n)
				return
			}
			d.size, s.size = n, n
			from, fa := w.bulkPointer(&s, i)
			to, ta := w.bulkPointer(&d, i)
			if from == nil || to == nil {
				return
			}
			reduce := func() {
				for off := uint64(0); off < n; off += uint64(width) {
					v := load(unsafe.Add(from, off), width)
					modify(unsafe.Add(to, off), width, func(old uint64) uint64 { return f(old, v, 0) })
				}
			}
			if !w.later(bulkOp{do: reduce, n: n}, &b, i, -1, signal) {
				return
			}
			w.bulkCopied(i, &d, ta, &s, fa, n, w.signalOf(&b, i, -1, signal))
		}
	}
}
