package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"mbarrier": lowerMbarrier})

// mbarrier is kept in its own eight bytes of shared memory, so that copying or overwriting it does what it does on a GPU: breaks
// it. Bits 0-19 pending arrivals, 20-39 arrivals a phase, 40-60 bytes still to come (two's complement), 61 the phase, 62-63 a mark.
type mbarrierWord uint64

const (
	mbMark  = mbarrierWord(2) << 62
	mbCount = 1<<20 - 1
)

func (b mbarrierWord) valid() bool  { return b>>62 == 2 }
func (b mbarrierWord) pending() int { return int(b & mbCount) }
func (b mbarrierWord) expect() int  { return int(b >> 20 & mbCount) }
func (b mbarrierWord) tx() int      { return int(int64(b<<3) >> 43) }
func (b mbarrierWord) phase() int   { return int(b >> 61 & 1) }

func makeBarrier(pending, expect, tx, phase int) mbarrierWord {
	return mbMark | mbarrierWord(pending) | mbarrierWord(expect)<<20 | mbarrierWord(tx&(1<<21-1))<<40 | mbarrierWord(phase)<<61
}

// step applies arrivals and bytes, and turns the phase when both are complete.
func (b mbarrierWord) step(arrive, tx int) (next mbarrierWord, ok bool) {
	p, t := b.pending()-arrive, b.tx()+tx
	if p < 0 || t > mbCount || t < -mbCount {
		return b, false
	}
	if p == 0 && t == 0 {
		return makeBarrier(b.expect(), b.expect(), 0, b.phase()^1), true
	}
	return makeBarrier(p, b.expect(), t, b.phase()), true
}

// barrierAt is the word of a barrier, or nil after a fault.
func (w *warp) barrierAt(a *access, lane int, addr uint64) *mbarrierWord {
	p := (*mbarrierWord)(w.pointer(a, lane, addr))
	if p == nil {
		return nil
	}
	if !p.valid() {
		w.failAt(lane, kindBarrier, addr, "the mbarrier at shared %#x was not initialised, or was overwritten", addr)
		return nil
	}
	return p
}

// advance applies arrivals and bytes to a barrier.
func (w *warp) advance(p *mbarrierWord, lane int, addr uint64, arrive, tx int) bool {
	next, ok := p.step(arrive, tx)
	if !ok {
		w.failAt(lane, kindBarrier, addr, "the mbarrier at shared %#x expects %d more arrivals and %d bytes in this phase: %d arrivals and %+d bytes are out of range",
			addr, p.pending(), p.tx(), arrive, tx)
		return false
	}
	turned := next.phase() != p.phase()
	*p = next
	w.effect = true
	if turned {
		w.mbarrierTurned(addr)
	}
	return true
}

func lowerMbarrier(c *lowering) step {
	what := c.oneOf("init", "inval", "expect_tx", "complete_tx", "arrive", "arrive_drop", "test_wait", "try_wait", "pending_count")
	c.oneOf("release", "acquire", "relaxed")
	c.oneOf("cta", "cluster")
	space := c.spaceKind()
	switch what {
	case "init":
		c.has("b64")
		c.args(2, 2)
		return c.mbarrierInit(c.mbAddress(0, space), c.src(1, "u32"))
	case "inval":
		c.has("b64")
		c.args(1, 1)
		a := c.mbAddress(0, space)
		return c.eachBarrier(a, func(w *warp, i int, p *mbarrierWord, addr uint64) bool {
			*p = 0
			return true
		})
	case "expect_tx", "complete_tx":
		c.has("b64")
		c.args(2, 2)
		n := c.src(1, "u32")
		sign := 1
		if what == "complete_tx" {
			sign = -1
		}
		return c.eachBarrier(c.mbAddress(0, space), func(w *warp, i int, p *mbarrierWord, addr uint64) bool {
			return w.advance(p, i, addr, 0, sign*int(w.lane(n, i)))
		})
	case "arrive", "arrive_drop":
		return c.mbarrierArrive(what == "arrive_drop", space)
	case "test_wait", "try_wait":
		return c.mbarrierWait(space)
	case "pending_count":
		c.has("b64")
		c.args(2, 2)
		return mixed(c.dst(0, "u32"), []operand{c.src(1, "b64")}, func(v *[4]uint64) uint64 { return uint64(mbarrierWord(v[0]).pending()) })
	}
	c.failf("no such mbarrier operation is known")
	return nil
}

func (c *lowering) mbAddress(n int, space spaceKind) access {
	a := c.address(n, space, 8)
	a.write, a.atomic, a.barrier = true, true, true
	return a
}

func (c *lowering) mbarrierInit(a access, count operand) step {
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p := (*mbarrierWord)(w.pointer(&a, i, w.addr[i]))
			if p == nil {
				return
			}
			n := w.lane(count, i)
			if n < 1 || n > mbCount {
				w.failf(i, kindBarrier, "mbarrier with %d arrivals: 1 to %d", n, mbCount)
				return
			}
			*p = makeBarrier(int(n), int(n), 0, 0)
			w.effect = true
			w.mbarrierNew(w.addr[i])
		}
	}
}

// eachBarrier runs f for the barrier of each lane, in lane order.
func (c *lowering) eachBarrier(a access, f func(w *warp, i int, p *mbarrierWord, addr uint64) bool) step {
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			p := w.barrierAt(&a, i, w.addr[i])
			if p == nil || !f(w, i, p, w.addr[i]) {
				return
			}
		}
	}
}

// mbarrierArrive is mbarrier.arrive{.expect_tx}{.noComplete} {state,} [addr]{, bytes or count}.
func (c *lowering) mbarrierArrive(drop bool, space spaceKind) step {
	expect := c.has("expect_tx")
	c.has("noComplete")
	if space == spGeneric {
		space = c.spaceKind()
	}
	c.has("b64")
	n := c.args(1, 3)
	at := 0
	state := operand{class: c64, sink: true}
	if c.arg(0).Kind != ptx.Address {
		state, at = c.dst(0, "b64"), 1
	}
	a := c.mbAddress(at, space)
	amount := operand{class: c32, slot: c.constant32(1)}
	if n > at+1 {
		amount = c.src(at+1, "u32")
	}
	return c.eachBarrier(a, func(w *warp, i int, p *mbarrierWord, addr uint64) bool {
		count, tx := int(w.lane(amount, i)), 0
		if expect {
			count, tx = 1, count
		}
		old := *p
		if drop {
			if old.expect() < count {
				w.failAt(i, kindBarrier, addr, "arrive_drop of %d from an mbarrier of %d arrivals", count, old.expect())
				return false
			}
			*p = makeBarrier(old.pending(), old.expect()-count, old.tx(), old.phase())
		}
		w.mbarrierArrived(addr, 1<<i)
		w.set(state, i, uint64(old))
		return w.advance(p, i, addr, count, tx)
	})
}

// mbarrierWait is test_wait and try_wait, by state or by parity; a wait that fails gives other warps a turn.
func (c *lowering) mbarrierWait(space spaceKind) step {
	parity := c.has("parity")
	c.oneOf("acquire", "relaxed")
	c.oneOf("cta", "cluster")
	if space == spGeneric {
		space = c.spaceKind()
	}
	c.has("b64")
	c.args(3, 4)
	d := c.dst(0, "pred")
	a := c.mbAddress(1, space)
	phase := c.src(2, map[bool]ptx.Type{true: "u32", false: "b64"}[parity])
	return func(w *warp, m uint32) {
		a.addresses(w, m)
		done := uint32(0)
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			p := w.barrierAt(&a, i, w.addr[i])
			if p == nil {
				return
			}
			want := int(w.lane(phase, i)) & 1
			if !parity {
				want = mbarrierWord(w.lane(phase, i)).phase()
			}
			if p.phase() != want {
				done |= 1 << i
				w.mbarrierWaited(w.addr[i], 1<<i, want)
			}
		}
		w.setPred(d, m, done)
	}
}

// asyncArrive is cp.async.mbarrier.arrive{.noinc}: the copies this thread has issued count as one arrival when they land.
func (c *lowering) asyncArrive() step {
	c.has("arrive")
	noinc := c.has("noinc")
	space := c.spaceKind()
	c.has("b64")
	c.args(1, 1)
	a := c.mbAddress(0, space)
	arrive := c.eachBarrier(a, func(w *warp, i int, p *mbarrierWord, addr uint64) bool {
		w.mbarrierArrived(addr, 1<<i)
		if !noinc {
			// The pending count was raised when the copies began: raising and arriving cancel out, but may not turn the phase.
			return true
		}
		return w.advance(p, i, addr, 1, 0)
	})
	return func(w *warp, m uint32) {
		w.async.all(w)
		arrive(w, m)
	}
}
