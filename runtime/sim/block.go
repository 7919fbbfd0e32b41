package sim

import "sync/atomic"

// launch is one kernel launch in execution.
type launch struct {
	dev                    *Device
	kernel                 *kernel
	grid                   [3]uint32
	block                  [3]uint32
	cluster                [3]uint32
	dynamic                uint32
	shared                 uint32 // bytes a block, the dynamic ones with them, from sharedBase
	params                 []byte
	units                  uint64 // clusters, or blocks where there is no cluster
	next                   atomic.Uint64
	resident               atomic.Int64
	limit                  int64        // units resident at once
	idle                   atomic.Int64 // workers of which nothing moves
	workers                int64
	abort                  atomic.Bool
	fault                  atomic.Pointer[Fault]
	budget                 atomic.Int64 // warp instructions left; see Config.InstructionLimit
	counters               *counting
	san                    *sanitizer
	warpSteps, threadSteps atomic.Int64
	set                    *settings
}

// unit is what one worker runs: the blocks of a cluster, or one block.
type unit struct {
	index    uint64
	blocks   []*block
	crank    [3]uint32
	bar      clusterBarrier
	rng      rng
	shade    *unitShadow
	pending  []bulkOp
	matrix   matrixScratch
	wgmma    *wgmmaScratch
	counters Counters
	order    []int32 // of warps, where the schedule is random
}

// block is one thread block.
type block struct {
	launch *launch
	unit   *unit
	id     [3]uint32
	rank   uint32 // in the cluster
	shared []byte // from sharedBase
	local  []byte // threads x kernel.localBytes
	warps  []*warp
	alive  int // warps that have not exited
	bars   [16]barrier
	shade  *sharedShadow
}

// barrier is one of a block's sixteen named barriers.
type barrier struct {
	arrived int // threads
	expect  int
	waiters []*warp
	phase   int64
	red     redState
}

// redState is the running reduction of barrier.red.
type redState struct {
	count, live uint32
	results     []redResult
}

// turn is how many branches a warp takes before the next warp's turn, where it does not block.
const turn = 4096

// exited is called by a warp whose lanes have all left.
func (b *block) exited(w *warp) {
	b.alive--
	for i := range b.bars {
		bar := &b.bars[i]
		if len(bar.waiters) > 0 || bar.arrived > 0 {
			b.settle(i)
		}
	}
	b.unit.bar.settle(b.unit)
}

// threads is how many threads of the block have not exited, in whole warps as the hardware counts them.
func (b *block) threads() int {
	return b.alive * 32
}

// arrive counts a warp at a barrier; wait puts it to sleep until the barrier opens.
func (b *block) arrive(w *warp, id, expect int, wait bool) {
	bar := &b.bars[id]
	if bar.arrived > 0 && bar.expect != expect {
		w.failf(firstLane(w.mask), kindBarrier, "barrier %d expects %d threads here and %d elsewhere", id, expect, bar.expect)
		return
	}
	bar.expect = expect
	bar.arrived += 32
	w.barrierArrived(id)
	if wait {
		bar.waiters = append(bar.waiters, w)
		w.state, w.stop = waiting, true
		w.waits = "waits at a barrier"
	}
	b.settle(id)
}

// settle opens a barrier whose threads have all come. expect 0 means every thread that has not exited.
func (b *block) settle(id int) {
	bar := &b.bars[id]
	need := bar.expect
	if need == 0 {
		need = b.threads()
	}
	if bar.arrived < need || bar.arrived == 0 {
		return
	}
	bar.red.finish()
	for _, w := range bar.waiters {
		w.state = running
	}
	b.barrierOpened(id, bar.waiters)
	bar.waiters = bar.waiters[:0]
	bar.arrived = 0
	bar.phase++
}

// progress of a unit after a turn.
type progress uint8

const (
	worked progress = iota
	stalled
	finished
	faulted
)

// run gives every warp of the unit turns, until all have exited, all only poll, or a good while has passed.
func (u *unit) run() progress {
	for range 64 {
		moved, polls, alive := len(u.pending) > 0, false, false
		if f := u.land(false); f != nil {
			return u.stopWith(f)
		}
		for _, b := range u.blocks {
			u.shuffle(len(b.warps))
			for i := range b.warps {
				w := b.warps[u.pick(i)]
				if w.state != running && w.state != polling {
					continue
				}
				w.state = running
				w.left = turn
				if u.rng.on {
					w.left = 1 + int(u.rng.next()%16)
				}
				before := w.steps
				if w.run() {
					polls = true
				} else {
					moved = true
				}
				if w.fault != nil {
					return u.stopWith(w.fault)
				}
				if !b.launch.spend(w.steps - before) {
					return u.stopWith(w.describe(firstLane(w.mask), kindLimit, w.at(), "the launch has used up its instruction limit"))
				}
			}
			alive = alive || b.alive > 0
		}
		switch {
		case !alive && len(u.pending) > 0:
		case !alive:
			return finished
		case moved || len(u.pending) > 0:
		case polls:
			return stalled
		default:
			return u.stopWith(u.deadlock())
		}
	}
	return worked
}

func (u *unit) stopWith(f *Fault) progress {
	l := u.blocks[0].launch
	l.fault.CompareAndSwap(nil, f)
	l.abort.Store(true)
	return faulted
}

// spend takes instructions from the launch's limit.
func (l *launch) spend(n int64) bool {
	return l.budget.Add(-n) >= 0
}

// shuffle chooses an order of n warps, where the schedule asks for a random one.
func (u *unit) shuffle(n int) {
	if !u.rng.on {
		return
	}
	u.order = u.order[:0]
	for i := range n {
		u.order = append(u.order, int32(i))
		j := u.rng.next() % uint64(i+1)
		u.order[i], u.order[j] = u.order[j], u.order[i]
	}
}

func (u *unit) pick(i int) int {
	if !u.rng.on {
		return i
	}
	return int(u.order[i])
}

// rng is splitmix64.
type rng struct {
	on    bool
	state uint64
}

func (r *rng) next() uint64 {
	r.state += 0x9e3779b97f4a7c15
	z := r.state
	z = (z ^ z>>30) * 0xbf58476d1ce4e5b9
	z = (z ^ z>>27) * 0x94d049bb133111eb
	return z ^ z>>31
}
