package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"shfl": lowerShfl, "vote": lowerVote, "match": lowerMatch, "redux": lowerRedux, "elect": lowerElect,
	"activemask": func(c *lowering) step { c.typ(); return c.activemask(c.dstT(0, "b32")) }})

// members checks a membermask: the running lanes must agree on it and be in it. It reports whether the instruction can execute.
func (w *warp) members(s slot, m uint32) (uint32, bool) {
	v := w.in32(s)
	mm := v[firstLane(m)]
	for l := m; l != 0; l &= l - 1 {
		if i := bits.TrailingZeros32(l) & 31; v[i] != mm {
			return w.splitMembers(v, m)
		}
	}
	if mm>>firstLane(m)&1 == 0 {
		w.failf(firstLane(m), kindDivergence, "lane %d executes an instruction whose member mask %#08x leaves it out", firstLane(m), mm)
		return 0, false
	}
	if mm&w.live&^m == 0 {
		return mm, true
	}
	if m != w.mask {
		w.failf(firstLane(m), kindDivergence, "the guard keeps out lanes %#08x that the member mask %#08x names", mm&w.mask&^m, mm)
		return 0, false
	}
	return mm, w.gather(mm)
}

// splitMembers handles lanes that name different masks, as sub-warp groups do: each group must be complete by itself.
func (w *warp) splitMembers(v *vec32, m uint32) (uint32, bool) {
	for l := m; l != 0; l &= l - 1 {
		i := bits.TrailingZeros32(l) & 31
		if need := v[i] & w.live; need&^m != 0 || v[i]>>i&1 == 0 {
			w.failf(i, kindDivergence, "names lanes %#08x, of which only %#08x are here", v[i], m)
			return 0, false
		}
	}
	return m, true
}

func lowerShfl(c *lowering) step {
	sync := c.has("sync")
	mode := c.oneOf("up", "down", "bfly", "idx")
	c.typ()
	if !sync || mode == "" {
		c.failf("want shfl.sync.up, .down, .bfly or .idx")
	}
	c.args(5, 5)
	d, p := c.arg(0), operand{class: cPred, sink: true}
	if d.Kind == ptx.Pair {
		p = c.dest(d.Elems[1], "pred")
		d = d.Elems[0]
	}
	dst, a, b, cl, mm := c.dest(d, "b32").slot, c.srcT(1, "b32"), c.srcT(2, "u32"), c.srcT(3, "u32"), c.srcT(4, "u32")
	if f := hotShuffle(mode, dst, p, a, b, cl, mm, c); f != nil {
		return f
	}
	return func(w *warp, m uint32) {
		if _, ok := w.members(mm, m); !ok {
			return
		}
		src, bv, cv := *w.in32(a), w.in32(b), w.in32(cl)
		y, ok := &w.r[dst], uint32(0)
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			j, valid := shuffleSource(mode, i, bv[i], cv[i])
			if valid {
				ok |= 1 << i
			}
			y[i] = src[j&31]
		}
		w.setPred(p, m, ok)
	}
}

// shuffleSource is the ISA's rule: the lane read, and whether it is inside the segment.
func shuffleSource(mode string, lane int, b, c uint32) (int, bool) {
	bval, cval, seg := int(b&31), int(c&31), int(c>>8&31)
	maxLane := lane&seg | cval&^seg
	minLane := lane & seg
	j, ok := 0, false
	switch mode {
	case "up":
		j = lane - bval
		ok = j >= maxLane
	case "down":
		j = lane + bval
		ok = j <= maxLane
	case "bfly":
		j = lane ^ bval
		ok = j <= maxLane
	case "idx":
		j = minLane | bval&^seg
		ok = j <= maxLane
	}
	if !ok {
		j = lane
	}
	return j, ok
}

// hotShuffle handles constant lane, clamp and member operands for a full warp: the source lanes are known at load.
func hotShuffle(mode string, dst slot, p operand, a, b, cl, mm slot, c *lowering) step {
	if b >= 0 || cl >= 0 || mm >= 0 || c.k.c32[^mm][0] != allLanes {
		return nil
	}
	var from [32]uint8
	var ok uint32
	for i := range from {
		j, valid := shuffleSource(mode, i, c.k.c32[^b][0], c.k.c32[^cl][0])
		from[i] = uint8(j)
		if valid {
			ok |= 1 << i
		}
	}
	return func(w *warp, m uint32) {
		if m != allLanes {
			if _, here := w.members(mm, m); !here {
				return
			}
		}
		src := *w.in32(a)
		y := &w.r[dst]
		if m == allLanes {
			for i := range y {
				y[i] = src[from[i]&31]
			}
		} else {
			for l := m; l != 0; l &= l - 1 {
				i := bits.TrailingZeros32(l) & 31
				y[i] = src[from[i]&31]
			}
		}
		w.setPred(p, m, ok)
	}
}

func lowerVote(c *lowering) step {
	if !c.has("sync") {
		c.failf("want vote.sync")
	}
	mode := c.oneOf("all", "any", "uni", "ballot")
	t := c.typ()
	c.args(3, 3)
	p, mm := c.predSrc(1), c.srcT(2, "u32")
	if mode == "ballot" {
		d := c.dst(0, t).slot
		return func(w *warp, m uint32) {
			g, ok := w.members(mm, m)
			if !ok {
				return
			}
			v := w.pred(p) & m & g
			y := &w.r[d]
			for l := m; l != 0; l &= l - 1 {
				y[bits.TrailingZeros32(l)&31] = v
			}
		}
	}
	d := c.dst(0, "pred")
	return func(w *warp, m uint32) {
		g, ok := w.members(mm, m)
		if !ok {
			return
		}
		in := m & g
		v := w.pred(p) & in
		hit := false
		switch mode {
		case "all":
			hit = v == in
		case "any":
			hit = v != 0
		case "uni":
			hit = v == 0 || v == in
		}
		r := uint32(0)
		if hit {
			r = allLanes
		}
		w.setPred(d, m, r)
	}
}

func lowerMatch(c *lowering) step {
	mode := c.oneOf("any", "all")
	if !c.has("sync") || mode == "" {
		c.failf("want match.any.sync or match.all.sync")
	}
	t := c.typ()
	c.args(3, 3)
	p := operand{class: cPred, sink: true}
	d := c.arg(0)
	if d.Kind == ptx.Pair {
		p = c.dest(d.Elems[1], "pred")
		d = d.Elems[0]
	}
	dst, a, mm := c.dest(d, "b32").slot, c.src(1, t), c.srcT(2, "u32")
	return func(w *warp, m uint32) {
		g, ok := w.members(mm, m)
		if !ok {
			return
		}
		in := m & g
		same := allLanes
		for l := m; l != 0; l &= l - 1 {
			i := bits.TrailingZeros32(l) & 31
			eq := uint32(0)
			for k := in; k != 0; k &= k - 1 {
				if j := bits.TrailingZeros32(k) & 31; w.lane(a, j) == w.lane(a, i) {
					eq |= 1 << j
				}
			}
			if eq != in {
				same = 0
			}
			w.r[dst][i] = eq
		}
		if mode == "all" {
			for l := m; l != 0; l &= l - 1 {
				w.r[dst][bits.TrailingZeros32(l)&31] = in & same
			}
			w.setPred(p, m, same)
		}
	}
}

func lowerRedux(c *lowering) step {
	if !c.has("sync") {
		c.failf("want redux.sync")
	}
	op := c.oneOf("add", "min", "max", "and", "or", "xor")
	t := c.typ()
	c.args(3, 3)
	f := map[string]func(a, b uint32) uint32{
		"add": func(a, b uint32) uint32 { return a + b }, "and": func(a, b uint32) uint32 { return a & b },
		"or": func(a, b uint32) uint32 { return a | b }, "xor": func(a, b uint32) uint32 { return a ^ b },
		"min": func(a, b uint32) uint32 { return min(a, b) }, "max": func(a, b uint32) uint32 { return max(a, b) },
	}[op]
	if t == "s32" && op == "min" {
		f = func(a, b uint32) uint32 { return uint32(min(int32(a), int32(b))) }
	}
	if t == "s32" && op == "max" {
		f = func(a, b uint32) uint32 { return uint32(max(int32(a), int32(b))) }
	}
	if f == nil {
		c.failf("no such reduction is known")
	}
	d, a, mm := c.dstT(0, "u32"), c.srcT(1, "u32"), c.srcT(2, "u32")
	return func(w *warp, m uint32) {
		if _, ok := w.members(mm, m); !ok {
			return
		}
		src := *w.in32(a)
		groups := w.in32(mm)
		for left := m; left != 0; {
			i := firstLane(left)
			in := groups[i] & m
			v := src[i]
			for l := in &^ (1 << i); l != 0; l &= l - 1 {
				v = f(v, src[bits.TrailingZeros32(l)&31])
			}
			for l := in; l != 0; l &= l - 1 {
				w.r[d][bits.TrailingZeros32(l)&31] = v
			}
			left &^= in
		}
	}
}

// lowerElect chooses the lowest lane of the members.
func lowerElect(c *lowering) step {
	if !c.has("sync") {
		c.failf("want elect.sync")
	}
	c.args(2, 2)
	pair := c.arg(0)
	if pair.Kind != ptx.Pair {
		c.failf("elect.sync needs a result pair d|p")
	}
	d, p, mm := c.dest(pair.Elems[0], "b32").slot, c.dest(pair.Elems[1], "pred"), c.srcT(1, "u32")
	return func(w *warp, m uint32) {
		g, ok := w.members(mm, m)
		if !ok {
			return
		}
		leader := firstLane(m & g)
		for l := m; l != 0; l &= l - 1 {
			w.r[d][bits.TrailingZeros32(l)&31] = uint32(leader)
		}
		w.setPred(p, m, 1<<leader)
	}
}

func (c *lowering) activemask(d slot) step {
	return func(w *warp, m uint32) {
		for l := m; l != 0; l &= l - 1 {
			w.r[d][bits.TrailingZeros32(l)&31] = m
		}
	}
}
