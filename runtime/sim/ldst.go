package sim

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"ld": lowerLd, "ldu": lowerLd, "st": lowerSt, "prefetch": lowerPrefetch, "prefetchu": lowerPrefetch,
	"discard": lowerPrefetch, "applypriority": lowerPrefetch})

func lowerLd(c *lowering) step {
	order := c.ordering()
	space := c.spaceKind()
	policy := c.cached()
	n := c.vector()
	t := c.typ()
	if policy {
		c.args(3, 3)
		c.src(2, "b64")
	} else {
		c.args(2, 2)
	}
	if t.Bits() > 64 || t.Bits() < 8 {
		c.failf("loads of .%s are not known", t)
	}
	size := t.Bits() / 8
	a := c.address(1, space, size*n)
	a.order = order
	dst := c.elements(c.arg(0), n, t, true)
	a.element, a.dead = uint64(size), c.deadElements()
	if order.strong() {
		return strongLoad(a, dst, t, size)
	}
	if f := hotLoad(a, dst, size); f != nil && (t[0] != 's' || dst[0].bits <= size*8) {
		return f
	}
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p := w.pointer(&a, i, w.addr[i])
			if p == nil {
				return
			}
			for k, d := range dst {
				w.set(d, i, extendTo(d, t, load(unsafe.Add(p, k*size), size)))
			}
		}
	}
}

// deadElements are the elements of a vector load whose registers nothing reads: compilers load the neighbours of what they need.
func (c *lowering) deadElements() (dead uint8) {
	for i, e := range c.arg(0).Elems {
		if i < 8 && (e.Kind == ptx.Sink || e.Kind == ptx.Register && !c.used[e.Reg]) {
			dead |= 1 << i
		}
	}
	return dead
}

// extendTo widens a loaded value to its register.
func extendTo(d operand, t ptx.Type, v uint64) uint64 {
	if t[0] == 's' {
		switch t.Bits() {
		case 8:
			v = uint64(int64(int8(v)))
		case 16:
			v = uint64(int64(int16(v)))
		case 32:
			v = uint64(int64(int32(v)))
		}
		if d.bits == 16 {
			v &= 0xffff
		}
	}
	return v
}

func load(p unsafe.Pointer, size int) uint64 {
	switch size {
	case 1:
		return uint64(*(*uint8)(p))
	case 2:
		return uint64(*(*uint16)(p))
	case 4:
		return uint64(*(*uint32)(p))
	}
	return *(*uint64)(p)
}

func store(p unsafe.Pointer, size int, v uint64) {
	switch size {
	case 1:
		*(*uint8)(p) = uint8(v)
	case 2:
		*(*uint16)(p) = uint16(v)
	case 4:
		*(*uint32)(p) = uint32(v)
	default:
		*(*uint64)(p) = v
	}
}

// strongLoad reads words atomically, so that other workers' writes are seen whole and in order.
func strongLoad(a access, dst []operand, t ptx.Type, size int) step {
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			p := w.pointer(&a, i, w.addr[i])
			if p == nil {
				return
			}
			for k, d := range dst {
				var v uint64
				switch e := unsafe.Add(p, k*size); size {
				case 4:
					v = uint64(atomic.LoadUint32((*uint32)(e)))
				case 8:
					v = atomic.LoadUint64((*uint64)(e))
				default:
					v = load(e, size)
				}
				w.set(d, i, extendTo(d, t, v))
			}
		}
		if w.watched {
			w.observed(&a, m)
		}
	}
}

// hotLoad has loops for the common shapes: words and pairs of words into registers of their own width.
func hotLoad(a access, dst []operand, size int) step {
	cl := c32
	if size == 8 {
		cl = c64
	}
	if size < 4 {
		return nil
	}
	for _, d := range dst {
		if d.class != cl {
			return nil
		}
	}
	slots := make([]slot, len(dst))
	for i, d := range dst {
		slots[i] = d.slot
	}
	if size == 8 {
		return load64(a, slots)
	}
	return load32(a, slots)
}

func load32(a access, slots []slot) step {
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p := w.pointer(&a, i, w.addr[i])
			if p == nil {
				return
			}
			for k, s := range slots {
				w.r[s][i] = *(*uint32)(unsafe.Add(p, k*4))
			}
		}
	}
}

func load64(a access, slots []slot) step {
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p := w.pointer(&a, i, w.addr[i])
			if p == nil {
				return
			}
			for k, s := range slots {
				w.q[s][i] = *(*uint64)(unsafe.Add(p, k*8))
			}
		}
	}
}

func lowerSt(c *lowering) step {
	if c.has("async") {
		return c.storeAsync()
	}
	if c.has("bulk") {
		return c.storeBulk()
	}
	order := c.ordering()
	space := c.spaceKind()
	policy := c.cached()
	n := c.vector()
	t := c.typ()
	if policy {
		c.args(3, 3)
		c.src(2, "b64")
	} else {
		c.args(2, 2)
	}
	if t.Bits() > 64 || t.Bits() < 8 {
		c.failf("stores of .%s are not known", t)
	}
	size := t.Bits() / 8
	a := c.address(0, space, size*n)
	a.write, a.order = true, order
	src := c.elements(c.arg(1), n, t, false)
	strong := order.strong()
	if !strong {
		a.stored, a.element = src, uint64(size)
	}
	return func(w *warp, m uint32) {
		w.effect = true
		a.addresses(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p := w.pointer(&a, i, w.addr[i])
			if p == nil {
				return
			}
			for k, s := range src {
				v := w.lane(s, i)
				switch e := unsafe.Add(p, k*size); {
				case strong && size == 4:
					atomic.StoreUint32((*uint32)(e), uint32(v))
				case strong && size == 8:
					atomic.StoreUint64((*uint64)(e), v)
				default:
					store(e, size, v)
				}
			}
		}
	}
}

// lowerPrefetch covers the instructions that only move cache lines; a prefetch of a bad address does nothing.
func lowerPrefetch(c *lowering) step {
	for c.oneOf("L1", "L2", "L2::evict_last", "L2::evict_normal", "L2::128B", "tensormap") != "" {
	}
	c.spaceKind()
	c.args(1, 2)
	c.addressOf(c.arg(0), spGeneric, 1)
	return nil
}
