package sim

import (
	"math/bits"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

var _ = register(map[string]func(c *lowering) step{"bar": lowerBar, "barrier": lowerBar, "membar": lowerFence, "fence": lowerFence, "mapa": lowerMapa,
	"getctarank": lowerGetctarank})

func lowerBar(c *lowering) step {
	if c.has("cluster") {
		return c.clusterBarrier()
	}
	c.has("cta")
	if c.has("warp") {
		return c.warpBarrier()
	}
	aligned := c.in.Op == "bar" || c.has("aligned")
	switch c.oneOf("sync", "arrive", "red") {
	case "sync":
		n := c.args(1, 2)
		id, count := c.src(0, "u32"), operand{class: c32, slot: c.constant32(0)}
		if n == 2 {
			count = c.src(1, "u32")
		}
		return c.blockBarrier(id, count, true, aligned)
	case "arrive":
		c.args(2, 2)
		return c.blockBarrier(c.src(0, "u32"), c.src(1, "u32"), false, aligned)
	case "red":
		return c.barrierRed()
	}
	c.failf("want .sync, .arrive or .red")
	return nil
}

// uniform reads an operand on which all running lanes must agree.
func (w *warp) uniform(o operand, m uint32, what string) (uint32, bool) {
	v := w.in32(o.slot)
	first := v[firstLane(m)]
	for l := m; l != 0; l &= l - 1 {
		if i := bits.TrailingZeros32(l) & 31; v[i] != first {
			w.failf(i, kindBarrier, "lanes of one warp disagree on %s: %d and %d", what, first, v[i])
			return 0, false
		}
	}
	return first, true
}

// whole checks that the warp comes to a barrier with all its live lanes.
func (w *warp) whole(m uint32) bool {
	if m == w.live {
		return true
	}
	missing := w.live &^ m
	w.failf(firstLane(m), kindDivergence, "a barrier for the whole warp is executed without lanes %#08x, which went another way", missing)
	return false
}

func (c *lowering) blockBarrier(id, count operand, wait, aligned bool) step {
	return func(w *warp, m uint32) {
		if !w.whole(m) {
			return
		}
		n, ok := w.uniform(id, m, "the barrier")
		if !ok {
			return
		}
		expect, ok := w.uniform(count, m, "the thread count")
		if !ok {
			return
		}
		if n > 15 || expect%32 != 0 || int(expect) > len(w.b.warps)*32 {
			w.failf(firstLane(m), kindBarrier, "barrier %d with %d threads: barriers are 0 to 15, counts multiples of 32 within the block's %d threads",
				n, expect, len(w.b.warps)*32)
			return
		}
		w.effect = true
		w.b.arrive(w, int(n), int(expect), wait)
	}
}

// barrierRed is bar.red.op: a barrier that also combines a predicate of every thread.
func (c *lowering) barrierRed() step {
	op := c.oneOf("popc", "and", "or")
	t := c.typ()
	c.has("aligned")
	n := c.args(3, 4)
	d := c.dst(0, t)
	id, count := c.src(1, "u32"), operand{class: c32, slot: c.constant32(0)}
	if n == 4 {
		count = c.src(2, "u32")
	}
	p := c.predSrc(n - 1)
	return func(w *warp, m uint32) {
		if !w.whole(m) {
			return
		}
		n, ok := w.uniform(id, m, "the barrier")
		if !ok {
			return
		}
		expect, _ := w.uniform(count, m, "the thread count")
		if n > 15 {
			w.failf(firstLane(m), kindBarrier, "barrier %d: barriers are 0 to 15", n)
			return
		}
		w.effect = true
		bar := &w.b.bars[n]
		v := w.pred(p) & m
		bar.red.count += uint32(bits.OnesCount32(v))
		bar.red.live += uint32(bits.OnesCount32(m))
		bar.red.results = append(bar.red.results, redResult{w, d, m, op})
		w.b.arrive(w, int(n), int(expect), true)
	}
}

// redResult is a warp that waits for a reduction.
type redResult struct {
	w  *warp
	d  operand
	m  uint32
	op string
}

// finish gives every waiting warp the result and starts the next reduction.
func (r *redState) finish() {
	for _, x := range r.results {
		v := r.count
		hit := uint32(0)
		if x.op == "and" && r.count == r.live || x.op == "or" && r.count > 0 {
			hit = allLanes
		}
		if x.op != "popc" {
			x.w.setPred(x.d, x.m, hit)
			continue
		}
		for l := x.m; l != 0; l &= l - 1 {
			x.w.set(x.d, bits.TrailingZeros32(l)&31, uint64(v))
		}
	}
	*r = redState{results: r.results[:0]}
}

func (c *lowering) warpBarrier() step {
	if !c.has("sync") {
		c.failf("want bar.warp.sync")
	}
	c.args(1, 1)
	mm := c.srcT(0, "u32")
	return func(w *warp, m uint32) {
		members := w.in32(mm)[firstLane(m)]
		if members&w.live&^m == 0 {
			w.warpSynced(members)
			return
		}
		for l := m; l != 0; l &= l - 1 {
			if i := bits.TrailingZeros32(l) & 31; w.in32(mm)[i] != members {
				w.splitMembers(w.in32(mm), m)
				w.warpSynced(m)
				return
			}
		}
		if w.syncLanes(members) {
			w.warpSynced(members)
		}
	}
}

// lowerFence covers fences. The workers' accesses are ordered already; the sanitizer takes note of them.
func lowerFence(c *lowering) step {
	proxy := false
	scope := ""
	for {
		m := c.oneOf("sc", "acq_rel", "acquire", "release", "relaxed", "cta", "cluster", "gpu", "sys", "gl", "proxy", "alias", "async", "async::generic",
			"async.global", "async.shared", "global", "shared", "shared::cta", "shared::cluster", "mbarrier_init", "tensormap::generic",
			"sync_restrict::shared::cta", "sync_restrict::shared::cluster", "cluster", "acquire::sync_restrict::shared::cluster")
		if m == "" {
			break
		}
		switch m {
		case "async", "async::generic", "alias", "tensormap::generic":
			proxy = true
		case "cta", "cluster", "gpu", "sys", "gl":
			scope = m
		}
	}
	c.args(0, 2)
	return func(w *warp, m uint32) { w.fenced(m, proxy, scope) }
}

// clusterBarrier is the barrier of a cluster's threads: arrive and wait are separate.
type clusterBarrier struct {
	arrived int // warps of this phase
	phase   int64
	waiters []*warp
}

func (c *lowering) clusterBarrier() step {
	what := c.oneOf("arrive", "wait")
	relaxed := c.oneOf("acquire", "release", "relaxed") == "relaxed"
	c.has("aligned")
	c.args(0, 0)
	switch what {
	case "arrive":
		return func(w *warp, m uint32) {
			if !w.whole(m) {
				return
			}
			if w.clusterPhase > w.b.unit.bar.phase {
				w.failf(firstLane(m), kindBarrier, "barrier.cluster.arrive twice without a wait")
				return
			}
			w.effect = true
			w.clusterPhase = w.b.unit.bar.phase + 1
			w.b.unit.bar.arrived++
			w.clusterArrived(!relaxed)
			w.b.unit.bar.settle(w.b.unit)
		}
	case "wait":
		return func(w *warp, m uint32) {
			if !w.whole(m) {
				return
			}
			bar := &w.b.unit.bar
			if w.clusterPhase == 0 {
				w.failf(firstLane(m), kindBarrier, "barrier.cluster.wait without an arrive")
				return
			}
			if bar.phase < w.clusterPhase {
				bar.waiters = append(bar.waiters, w)
				w.state, w.stop, w.waits = waiting, true, "waits at the cluster's barrier"
				return
			}
			w.clusterWaited()
		}
	}
	c.failf("want .arrive or .wait")
	return nil
}

// settle opens the cluster's barrier when every warp that has not exited has arrived.
func (b *clusterBarrier) settle(u *unit) {
	need := 0
	for _, blk := range u.blocks {
		need += blk.alive
	}
	gone := 0
	for _, blk := range u.blocks {
		for _, w := range blk.warps {
			if w.state == exited && w.clusterPhase > b.phase {
				gone++ // arrived, then left
			}
		}
	}
	if b.arrived == 0 || b.arrived < need+gone {
		return
	}
	b.arrived = 0
	b.phase++
	u.clusterOpened()
	for _, w := range b.waiters {
		w.state = running
		w.clusterWaited()
	}
	b.waiters = b.waiters[:0]
}

// lowerMapa maps a shared address to the same place in another block of the cluster.
func lowerMapa(c *lowering) step {
	c.oneOf("shared::cluster")
	generic := len(c.in.Mods) == 1
	t := c.typ()
	c.args(3, 3)
	d, a, r := c.dst(0, t), c.any(c.arg(1), t), c.src(2, "u32")
	if s := c.arg(1); s.Kind == ptx.Symbol && generic {
		c.failf("mapa of a variable needs .shared::cluster")
	}
	return func(w *warp, m uint32) {
		for ; m != 0; m &= m - 1 {
			i := bits.TrailingZeros32(m) & 31
			rank := w.lane(r, i)
			if rank >= uint64(len(w.b.unit.blocks)) {
				w.failf(i, kindOperand, "rank %d in a cluster of %d blocks", rank, len(w.b.unit.blocks))
				return
			}
			v := w.lane(a, i)
			w.set(d, i, v&^(0xff<<sharedRank)|rank<<sharedRank)
		}
	}
}

func lowerGetctarank(c *lowering) step {
	c.oneOf("shared::cluster")
	t := c.typ()
	c.args(2, 2)
	return mixed(c.dst(0, "u32"), []operand{c.any(c.arg(1), t)}, func(v *[4]uint64) uint64 { return v[0] >> sharedRank & 0xff })
}
