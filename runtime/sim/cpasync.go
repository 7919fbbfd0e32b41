package sim

import (
	"math/bits"
	"unsafe"
)

var _ = register(map[string]func(c *lowering) step{"cp": lowerCp})

// asyncGroups are the cp.async copies of one warp that have not been waited for. A copy happens when something waits for it, so a
// kernel that reads too early reads the old bytes. Groups are kept per warp: its lanes commit and wait together.
type asyncGroups struct {
	open   []asyncCopy   // not committed
	groups [][]asyncCopy // committed, oldest first
	spare  [][]asyncCopy // emptied slices, for reuse
}

// asyncCopy is one lane's copy of at most 16 bytes.
type asyncCopy struct {
	dst, src unsafe.Pointer
	size     uint8 // bytes written
	from     uint8 // bytes read; the rest is zero
	lane     uint8
	shared   uint32 // destination address, for the sanitizer
}

func (a asyncCopy) run() {
	dst := unsafe.Slice((*byte)(a.dst), a.size)
	n := 0
	if a.from > 0 {
		n = copy(dst, unsafe.Slice((*byte)(a.src), a.from))
	}
	clear(dst[n:])
}

func (g *asyncGroups) commit() {
	g.groups = append(g.groups, g.open)
	g.open = nil
	if n := len(g.spare); n > 0 {
		g.open = g.spare[n-1]
		g.spare = g.spare[:n-1]
	}
}

// wait completes all groups but the newest keep.
func (g *asyncGroups) wait(w *warp, keep int) {
	n := len(g.groups) - keep
	if n <= 0 {
		return
	}
	for _, group := range g.groups[:n] {
		for _, a := range group {
			a.run()
		}
		w.asyncLanded(group)
		g.spare = append(g.spare, group[:0])
	}
	g.groups = append(g.groups[:0], g.groups[n:]...)
}

// all completes every copy, committed or not.
func (g *asyncGroups) all(w *warp) {
	g.wait(w, 0)
	for _, a := range g.open {
		a.run()
	}
	w.asyncLanded(g.open)
	g.open = g.open[:0]
}

func lowerCp(c *lowering) step {
	if c.has("reduce") {
		return c.bulkReduce()
	}
	if !c.has("async") {
		c.failf("want cp.async")
	}
	switch {
	case c.has("bulk"):
		return c.bulk()
	case c.has("commit_group"):
		c.args(0, 0)
		return func(w *warp, m uint32) { w.async.commit() }
	case c.has("wait_all"):
		c.args(0, 0)
		return func(w *warp, m uint32) { w.async.all(w) }
	case c.has("wait_group"):
		c.args(1, 1)
		keep := int(c.imm(0))
		return func(w *warp, m uint32) { w.async.wait(w, keep) }
	case c.has("mbarrier"), c.has("mbarrier::arrive"):
		return c.asyncArrive()
	}
	return c.copyAsync()
}

// copyAsync is cp.async.ca/cg.shared.global [dst], [src], size{, from | ignore}{, policy}.
func (c *lowering) copyAsync() step {
	if c.oneOf("ca", "cg") == "" {
		c.failf("want .ca or .cg")
	}
	if c.oneOf("shared", "shared::cta") == "" || !c.has("global") {
		c.failf("want .shared.global")
	}
	policy := c.cached()
	n := c.args(3, 5)
	size := c.imm(2)
	if size != 4 && size != 8 && size != 16 {
		c.failf("copies are of 4, 8 or 16 bytes, not %d", size)
	}
	if policy {
		n--
		c.src(n, "b64")
	}
	dst, src := c.address(0, spShared, int(size)), c.address(1, spGlobal, int(size))
	dst.write, dst.async, src.async = true, true, true
	from, ignore := operand{slot: c.constant32(uint32(size))}, operand{class: cPred, slot: predFalse}
	if n == 4 {
		if o := c.any(c.arg(3), "u32"); o.class == cPred {
			ignore = o
		} else {
			from = o
		}
	}
	return func(w *warp, m uint32) {
		// Lanes that read nothing have no source to check.
		skip := w.pred(ignore)
		fv := w.in32(from.slot)
		read := m &^ skip
		for l := read; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			if fv[i] == 0 {
				read &^= 1 << i
			}
			if fv[i] > uint32(size) {
				w.failf(i, kindOperand, "cp.async reads %d bytes into %d", fv[i], size)
				return
			}
		}
		var ptrs [32]unsafe.Pointer
		one := src
		src.addresses(w, read)
		for l := read; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			one.size = uint64(fv[i])
			if ptrs[i] = w.pointer(&one, i, w.addr[i]); ptrs[i] == nil {
				return
			}
		}
		dst.addresses(w, m)
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			p := w.pointer(&dst, i, w.addr[i])
			if p == nil {
				return
			}
			a := asyncCopy{dst: p, src: ptrs[i], size: uint8(size), lane: uint8(i), shared: uint32(w.addr[i])}
			if ptrs[i] != nil {
				a.from = uint8(fv[i])
			}
			w.asyncIssued(i, uint32(w.addr[i]), int(size))
			w.async.open = append(w.async.open, a)
		}
	}
}
