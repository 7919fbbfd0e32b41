package sim

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/sim/num"
	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"atom": func(c *lowering) step { return c.atomic(true) }, "red": func(c *lowering) step { return c.atomic(false) }})

var atomicOps = []string{"add", "min", "max", "inc", "dec", "and", "or", "xor", "exch", "cas"}

// atomic lowers atom and red: every element is one read-modify-write of a word.
func (c *lowering) atomic(result bool) step {
	if !result && c.has("async") {
		return c.redAsync()
	}
	order := c.ordering()
	space := c.spaceKind()
	op := c.oneOf(atomicOps...)
	c.has("noftz")
	policy := c.cached()
	n := c.vector()
	t := c.typ()
	size := t.Bits() / 8
	if op == "" || size == 1 || size > 8 {
		c.failf("no such atomic operation is known")
	}
	f := c.update(op, t)
	first := 0
	var dst []operand
	if result {
		dst = c.elements(c.arg(0), n, t, true)
		first = 1
	}
	a := c.address(first, space, size*n)
	a.write, a.atomic, a.order = true, true, order
	src := c.elements(c.arg(first+1), n, t, false)
	next := first + 2
	var swap []operand
	if op == "cas" {
		swap = c.elements(c.arg(next), n, t, false)
		next++
	}
	if policy {
		c.src(next, "b64")
		next++
	}
	c.args(next, next)
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			p := w.pointer(&a, i, w.addr[i])
			if p == nil {
				return
			}
			for k, s := range src {
				v, x := w.lane(s, i), uint64(0)
				if swap != nil {
					x = w.lane(swap[k], i)
				}
				old, changed := modify(unsafe.Add(p, k*size), size, func(old uint64) uint64 { return f(old, v, x) })
				if changed {
					w.effect = true
				}
				if dst != nil {
					w.set(dst[k], i, old)
				}
			}
		}
		if w.watched {
			w.observed(&a, m)
		}
	}
}

// modify applies f to a word, atomically among all workers.
func modify(p unsafe.Pointer, size int, f func(uint64) uint64) (old uint64, changed bool) {
	switch size {
	case 2:
		word := (*uint32)(unsafe.Pointer(uintptr(p) &^ 3))
		shift := (uintptr(p) & 2) * 8
		for {
			w := atomic.LoadUint32(word)
			old = uint64(w >> shift & 0xffff)
			v := f(old) & 0xffff
			if atomic.CompareAndSwapUint32(word, w, w&^(0xffff<<shift)|uint32(v)<<shift) {
				return old, v != old
			}
		}
	case 4:
		for {
			w := atomic.LoadUint32((*uint32)(p))
			v := uint32(f(uint64(w)))
			if atomic.CompareAndSwapUint32((*uint32)(p), w, v) {
				return uint64(w), v != w
			}
		}
	}
	for {
		w := atomic.LoadUint64((*uint64)(p))
		v := f(w)
		if atomic.CompareAndSwapUint64((*uint64)(p), w, v) {
			return w, v != w
		}
	}
}

// update is the new value of a word, from the old one, the operand and the swap value.
func (c *lowering) update(op string, t ptx.Type) func(old, v, swap uint64) uint64 {
	switch op {
	case "exch":
		return func(_, v, _ uint64) uint64 { return v }
	case "cas":
		return func(old, v, swap uint64) uint64 {
			if old == v {
				return swap
			}
			return old
		}
	case "and":
		return func(old, v, _ uint64) uint64 { return old & v }
	case "or":
		return func(old, v, _ uint64) uint64 { return old | v }
	case "xor":
		return func(old, v, _ uint64) uint64 { return old ^ v }
	case "inc":
		return func(old, v, _ uint64) uint64 {
			if old >= v {
				return 0
			}
			return old + 1
		}
	case "dec":
		return func(old, v, _ uint64) uint64 {
			if old == 0 || old > v {
				return v
			}
			return old - 1
		}
	case "add":
		return c.updateAdd(t)
	}
	return c.updateMinMax(t, op == "max")
}

func (c *lowering) updateAdd(t ptx.Type) func(old, v, swap uint64) uint64 {
	switch t {
	case "f32":
		return func(old, v, _ uint64) uint64 {
			return uint64(bits32(num.Add(f32of(uint32(old)), f32of(uint32(v)), num.RN)))
		}
	case "f64":
		return func(old, v, _ uint64) uint64 { return bits64(f64of(old) + f64of(v)) }
	case "f16", "bf16", "f16x2", "bf16x2":
		h := c.half(string(t))
		one := func(a, b uint32) uint32 {
			s, e := num.TwoSum64(h.load(a, false), h.load(b, false))
			return uint32(h.store(s, e, false, false))
		}
		if h.pair {
			one = pair16(one)
		}
		return func(old, v, _ uint64) uint64 { return uint64(one(uint32(old), uint32(v))) }
	}
	return func(old, v, _ uint64) uint64 { return old + v }
}

func (c *lowering) updateMinMax(t ptx.Type, larger bool) func(old, v, swap uint64) uint64 {
	pick := func(less bool, old, v uint64) uint64 {
		if less == larger {
			return v
		}
		return old
	}
	switch t {
	case "u32", "u64":
		return func(old, v, _ uint64) uint64 { return pick(old < v, old, v) }
	case "s32":
		return func(old, v, _ uint64) uint64 { return pick(int32(old) < int32(v), old, v) }
	case "s64":
		return func(old, v, _ uint64) uint64 { return pick(int64(old) < int64(v), old, v) }
	case "f16", "bf16", "f16x2", "bf16x2":
		h := c.half(string(t))
		f := num.Min
		if larger {
			f = num.Max
		}
		one := func(a, b uint32) uint32 {
			return uint32(h.store(float64(f(float32(h.load(a, false)), float32(h.load(b, false)))), 0, false, false))
		}
		if h.pair {
			one = pair16(one)
		}
		return func(old, v, _ uint64) uint64 { return uint64(one(uint32(old), uint32(v))) }
	}
	c.failf("no atomic minimum of .%s is known", t)
	return nil
}
