package sim

import (
	"encoding/binary"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// special is a register that holds a value of the warp's place, filled when a warp starts.
type special struct {
	name string // "%tid.x", or "" for the address of a shared variable
	wide bool
	slot slot
	addr uint32
}

// newUnit allocates the blocks of one cluster.
func (l *launch) newUnit() *unit {
	u := &unit{}
	n := int(l.cluster[0] * l.cluster[1] * l.cluster[2])
	threads := int(l.block[0] * l.block[1] * l.block[2])
	k := l.kernel
	for rank := range n {
		b := &block{launch: l, unit: u, rank: uint32(rank), shared: aligned(int64(max(l.shared, 16)))}
		if k.localBytes > 0 {
			b.local = make([]byte, threads*k.localBytes)
		}
		for id := range (threads + 31) / 32 {
			w := &warp{id: id, b: b, r: make([]vec32, k.nr), q: make([]vec64, k.nq), p: make([]uint32, k.np), c32: k.c32, c64: k.c64, code: k.code}
			b.warps = append(b.warps, w)
		}
		u.blocks = append(u.blocks, b)
	}
	return u
}

// maxSpare is how many units a kernel keeps from one launch to the next.
const maxSpare = 4

// fits reports whether the unit was made for a launch of the same shape.
func (u *unit) fits(l *launch) bool {
	o := u.blocks[0].launch
	return o.block == l.block && o.cluster == l.cluster && o.shared == l.shared
}

// spare takes a unit that an earlier launch of the same shape has left, or returns nil.
func (k *kernel) spare(l *launch) *unit {
	k.mu.Lock()
	defer k.mu.Unlock()
	for i, u := range k.units {
		if u.fits(l) {
			k.units = append(k.units[:i], k.units[i+1:]...)
			return u
		}
	}
	return nil
}

// keep leaves units for later launches, the newest first.
func (k *kernel) keep(units []*unit) {
	k.mu.Lock()
	defer k.mu.Unlock()
	k.units = append(units, k.units...)
	if len(k.units) > maxSpare {
		clear(k.units[maxSpare:])
		k.units = k.units[:maxSpare]
	}
}

// reset makes the unit the i-th of the launch, at the kernel's first instruction.
func (u *unit) reset(l *launch, i uint64) {
	u.index = i
	u.rng = rng{on: l.set.random, state: l.set.seed + i*0x9e3779b97f4a7c15}
	u.bar = clusterBarrier{}
	u.pending = u.pending[:0]
	u.counters = Counters{}
	gx, gy := uint64(l.grid[0]/l.cluster[0]), uint64(l.grid[1]/l.cluster[1])
	u.crank = [3]uint32{uint32(i % gx), uint32(i / gx % gy), uint32(i / gx / gy)}
	for _, b := range u.blocks {
		b.launch = l
		r := b.rank
		at := [3]uint32{r % l.cluster[0], r / l.cluster[0] % l.cluster[1], r / l.cluster[0] / l.cluster[1]}
		for d := range 3 {
			b.id[d] = u.crank[d]*l.cluster[d] + at[d]
		}
		b.start()
	}
	if l.san != nil {
		l.san.begin(u)
	}
}

// start puts every warp at the first instruction.
func (b *block) start() {
	l := b.launch
	clear(b.bars[:])
	b.alive = len(b.warps)
	threads := l.block[0] * l.block[1] * l.block[2]
	for _, w := range b.warps {
		w.live = allLanes
		if rest := threads - uint32(w.id)*32; rest < 32 {
			w.live = 1<<rest - 1
		}
		w.mask, w.pc, w.join, w.state, w.fault = w.live, 0, -1, running, nil
		w.stack = w.stack[:0]
		w.syncing, w.effect, w.ga, w.waits, w.clusterPhase = 0, false, nil, "", 0
		w.async = asyncGroups{}
		w.wg = wgmmaState{}
		w.watched = l.san != nil || l.counters != nil || l.set.random
		w.steps, w.lanes = 0, 0
		for _, s := range l.kernel.specials {
			w.fill(s)
		}
	}
}

// fill sets a special register.
func (w *warp) fill(s special) {
	for lane := range 32 {
		v := w.special(s, lane)
		if s.wide {
			w.q[s.slot][lane] = v
		} else {
			w.r[s.slot][lane] = uint32(v)
		}
	}
}

// axis is the component of a special register's name.
func axis(name string) int {
	switch name[len(name)-1] {
	case 'y':
		return 1
	case 'z':
		return 2
	}
	return 0
}

// specialNames are the registers whose value does not change while a warp runs.
var specialNames = map[string]bool{}

func init() {
	for _, base := range []string{"tid", "ntid", "ctaid", "nctaid", "clusterid", "nclusterid", "cluster_ctaid", "cluster_nctaid"} {
		for _, c := range []string{"x", "y", "z"} {
			specialNames["%"+base+"."+c] = true
		}
	}
	for _, n := range []string{"laneid", "warpid", "nwarpid", "smid", "nsmid", "gridid", "cluster_ctarank", "cluster_nctarank", "is_explicit_cluster",
		"lanemask_eq", "lanemask_lt", "lanemask_le", "lanemask_gt", "lanemask_ge", "dynamic_smem_size", "total_smem_size"} {
		specialNames["%"+n] = true
	}
}

func (w *warp) special(s special, lane int) uint64 {
	b, l := w.b, w.b.launch
	t := w.thread(lane)
	switch s.name {
	case "":
		return uint64(b.rank)<<sharedRank | uint64(s.addr)
	case "%laneid":
		return uint64(lane)
	case "%warpid":
		return uint64(w.id)
	case "%nwarpid":
		return uint64(len(b.warps))
	case "%smid":
		return b.linear() % uint64(l.set.info.SMs)
	case "%nsmid":
		return uint64(l.set.info.SMs)
	case "%gridid":
		return 0
	case "%cluster_ctarank":
		return uint64(b.rank)
	case "%cluster_nctarank":
		return uint64(len(b.unit.blocks))
	case "%is_explicit_cluster":
		return uint64(min(len(b.unit.blocks)-1, 1))
	case "%lanemask_eq":
		return 1 << lane
	case "%lanemask_lt":
		return 1<<lane - 1
	case "%lanemask_le":
		return 2<<lane - 1
	case "%lanemask_gt":
		return uint64(^uint32(2<<lane - 1))
	case "%lanemask_ge":
		return uint64(^uint32(1<<lane - 1))
	case "%dynamic_smem_size":
		return uint64(l.dynamic)
	case "%total_smem_size":
		return uint64(l.shared)
	}
	i := axis(s.name)
	switch s.name[1 : len(s.name)-2] {
	case "tid":
		return uint64(t[i])
	case "ntid":
		return uint64(l.block[i])
	case "ctaid":
		return uint64(b.id[i])
	case "nctaid":
		return uint64(l.grid[i])
	case "clusterid":
		return uint64(b.unit.crank[i])
	case "nclusterid":
		return uint64(l.grid[i] / l.cluster[i])
	case "cluster_ctaid":
		return uint64(b.id[i] % l.cluster[i])
	case "cluster_nctaid":
		return uint64(l.cluster[i])
	}
	panic("BUG: sim: special register " + s.name)
}

// linear is the block's index in the grid.
func (b *block) linear() uint64 {
	g := b.launch.grid
	return (uint64(b.id[2])*uint64(g[1])+uint64(b.id[1]))*uint64(g[0]) + uint64(b.id[0])
}

// link writes the addresses of other variables into initialisers.
func link(init []byte, refs []ptx.Ref, address func(string) (uint64, bool)) (string, bool) {
	for _, r := range refs {
		a, ok := address(r.Name)
		if !ok {
			return r.Name, false
		}
		binary.LittleEndian.PutUint64(init[r.Offset:], a+uint64(r.Add))
	}
	return "", true
}
