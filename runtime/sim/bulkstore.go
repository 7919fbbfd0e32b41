package sim

import (
	"math/bits"
	"unsafe"
)

// storeAsync is st.async.shared::cluster.mbarrier::complete_tx::bytes{.vec}.type [addr], value, [bar].
func (c *lowering) storeAsync() step {
	c.oneOf("weak")
	c.ordering()
	c.oneOf("shared::cluster")
	c.has("mbarrier::complete_tx::bytes")
	n := c.vector()
	t := c.typ()
	c.args(3, 3)
	size := t.Bits() / 8
	a := c.address(0, spShared, size*n)
	a.write, a.async = true, true
	src := c.elements(c.arg(1), n, t, false)
	bar := c.mbAddress(2, spShared)
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p, addr := w.bulkPointer(&a, i)
			if p == nil {
				return
			}
			for k, s := range src {
				store(unsafe.Add(p, k*size), size, w.lane(s, i))
			}
			w.bulkCopied(i, &a, addr, nil, 0, a.size, w.signalOf(&bar, i, -1, true))
			if !w.bulkSignal(&bar, i, -1, size*n) {
				return
			}
		}
	}
}

// redAsync is red.async.relaxed.cluster...: st.async with an operation.
func (c *lowering) redAsync() step {
	c.ordering()
	c.oneOf("shared::cluster")
	c.has("mbarrier::complete_tx::bytes")
	op := c.oneOf(atomicOps...)
	t := c.typ()
	f := c.update(op, t)
	c.args(3, 3)
	size := t.Bits() / 8
	a := c.address(0, spShared, size)
	a.write, a.async, a.atomic = true, true, true
	src := c.any(c.arg(1), t)
	bar := c.mbAddress(2, spShared)
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p, addr := w.bulkPointer(&a, i)
			if p == nil {
				return
			}
			v := w.lane(src, i)
			modify(p, size, func(old uint64) uint64 { return f(old, v, 0) })
			w.bulkCopied(i, &a, addr, nil, 0, a.size, w.signalOf(&bar, i, -1, true))
			if !w.bulkSignal(&bar, i, -1, size) {
				return
			}
		}
	}
}

// storeBulk is st.bulk.weak.shared::cta [a], size, 0.
func (c *lowering) storeBulk() step {
	c.has("weak")
	c.oneOf("shared::cta")
	c.args(3, 3)
	a := c.address(0, spShared, 8)
	a.write = true
	size := c.any(c.arg(1), "u64")
	if c.imm(2) != 0 {
		c.failf("st.bulk stores zero only")
	}
	return func(w *warp, m uint32) {
		one := a
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			one.size = w.lane(size, i)
			p, addr := w.bulkPointer(&one, i)
			if p == nil {
				return
			}
			clear(unsafe.Slice((*byte)(p), one.size))
			w.addr[i] = addr
			if w.san != nil {
				w.sanitizeAccess(&one, 1<<i)
			}
		}
	}
}
