package sim

import (
	"slices"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// interval is the stretch of instructions over which a register holds a value that may still be read.
type interval struct {
	reg      int32
	from, to int32
}

// intervals computes the hull of each register's live range, by backward data flow over the basic blocks. A guarded write keeps what
// other lanes hold, so that it does not end the range before it.
func (fl *flow) intervals(f *ptx.Func) []interval {
	n := len(f.Regs)
	in, out := fl.live(f, n)
	span := make([]interval, n)
	for r := range span {
		span[r] = interval{int32(r), -1, -1}
	}
	touch := func(r, at int32) {
		s := &span[r]
		if s.from < 0 || at < s.from {
			s.from = at
		}
		s.to = max(s.to, at)
	}
	for b, bb := range fl.blocks {
		in[b].each(func(r int32) { touch(r, int32(bb.from)) })
		out[b].each(func(r int32) { touch(r, int32(bb.to)) })
		for i := bb.from; i < bb.to; i++ {
			for _, r := range fl.uses[i] {
				touch(r, int32(i))
			}
			for _, r := range fl.defs[i] {
				touch(r, int32(i))
			}
		}
	}
	return slices.DeleteFunc(span, func(s interval) bool { return s.from < 0 })
}

// live returns the registers live at the start and end of each block.
func (fl *flow) live(f *ptx.Func, n int) (in, out []bitset) {
	count := len(fl.blocks)
	gen, kill := make([]bitset, count), make([]bitset, count)
	in, out = make([]bitset, count), make([]bitset, count)
	prev := make([][]int, count)
	for b, bb := range fl.blocks {
		gen[b], kill[b], in[b], out[b] = newBitset(n), newBitset(n), newBitset(n), newBitset(n)
		for i := bb.to - 1; i >= bb.from; i-- {
			if f.Code[i].Guard < 0 {
				for _, r := range fl.defs[i] {
					kill[b].add(r)
					gen[b].remove(r)
				}
			}
			for _, r := range fl.uses[i] {
				gen[b].add(r)
			}
		}
		for _, s := range bb.next {
			if s < count {
				prev[s] = append(prev[s], b)
			}
		}
	}
	work := make([]int, 0, count)
	queued := make([]bool, count)
	for b := range count {
		work, queued[b] = append(work, b), true
	}
	none := newBitset(n)
	for len(work) > 0 {
		b := work[len(work)-1]
		work = work[:len(work)-1]
		queued[b] = false
		for _, s := range fl.blocks[b].next {
			if s < count {
				out[b].orNot(in[s], none)
			}
		}
		changed := in[b].orNot(gen[b], none)
		if in[b].orNot(out[b], kill[b]) || changed {
			for _, p := range prev[b] {
				if !queued[p] {
					work, queued[p] = append(work, p), true
				}
			}
		}
	}
	return in, out
}

// allocate gives virtual registers slots: those whose live ranges do not meet share one, so that a warp's registers stay in the cache.
// Lanes that have diverged use a slot for different registers without harm: each lane's values are its own.
func (c *lowering) allocate(fl *flow) {
	c.locs = make([]loc, len(c.fn.Regs))
	for i, r := range c.fn.Regs {
		if r.Type.Bits() > 64 {
			c.failf("register %s: .%s registers are not known", r.Name, r.Type)
		}
		c.locs[i] = loc{class: classOf(r.Type)}
	}
	spans := fl.intervals(c.fn)
	slices.SortStableFunc(spans, func(a, b interval) int { return int(a.from - b.from) })
	var free [3][]slot
	var size [3]int
	var active [3][]interval
	live, most := 0, 0
	weight := [3]int{1, 2, 0}
	for _, s := range spans {
		cl := c.locs[s.reg].class
		for k := range active {
			active[k] = slices.DeleteFunc(active[k], func(a interval) bool {
				if a.to >= s.from {
					return false
				}
				free[k] = append(free[k], c.locs[a.reg].slot)
				live -= weight[k]
				return true
			})
		}
		if n := len(free[cl]); n > 0 {
			c.locs[s.reg].slot = free[cl][n-1]
			free[cl] = free[cl][:n-1]
		} else {
			c.locs[s.reg].slot = slot(size[cl])
			size[cl]++
		}
		active[cl] = append(active[cl], s)
		live += weight[cl]
		most = max(most, live)
	}
	c.k.nr, c.k.nq, c.k.np = max(size[c32], 1), max(size[c64], 1), max(size[cPred], 1)
	c.k.locs = c.locs
	c.k.pressure = min(max(most, 16), 255)
}
