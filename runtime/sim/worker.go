package sim

import (
	"runtime"
	"sync"
	"time"
)

// patience is how many turns of polling warps a worker grants in a row, while no worker of the launch moves anything, before it calls
// that a deadlock.
const patience = 100_000

// impatience is how many passes over the resident blocks may end with none finished before another block joins them: a wait that
// writes memory as it polls does not look like one.
const impatience = 32

// execute runs all units of a launch on the workers and returns its fault, if any.
func (l *launch) execute() error {
	n := min(uint64(l.set.workers), l.units)
	l.workers = int64(max(n, 1))
	if n <= 1 {
		l.work()
	} else {
		var wg sync.WaitGroup
		for range n {
			wg.Go(l.work)
		}
		wg.Wait()
	}
	if f := l.fault.Load(); f != nil {
		return f
	}
	return nil
}

// worker is one goroutine's share of a launch.
type worker struct {
	launch *launch
	mine   []*unit // resident
	pool   []*unit // finished, for reuse
	idle   bool    // nothing of its own moves
	polls  int     // turns granted while all workers were idle
	passes int     // since a unit finished or joined
}

// work runs units: the current ones while they move, a new one when all of them only poll. Blocks that wait for each other over
// memory therefore all become resident, up to what the device holds, and all get turns.
func (l *launch) work() {
	w := &worker{launch: l}
	for !l.abort.Load() {
		moved, ok := w.pass()
		if !ok {
			break
		}
		if moved && len(w.mine) > 0 && w.passes < impatience {
			w.setIdle(false)
			continue
		}
		if u := l.admit(&w.pool); u != nil {
			w.mine = append(w.mine, u)
			w.passes = 0
			w.setIdle(false)
			continue
		}
		if moved && len(w.mine) > 0 {
			w.setIdle(false)
			continue
		}
		if len(w.mine) == 0 && l.next.Load() >= l.units {
			break
		}
		w.setIdle(true)
		w.rest()
	}
	w.setIdle(true) // for good
	l.kernel.keep(w.pool)
}

// pass gives every resident unit its turns. It reports whether any moved, and false after a fault.
func (w *worker) pass() (moved, ok bool) {
	w.passes++
	for i := 0; i < len(w.mine); i++ {
		switch u := w.mine[i]; u.run() {
		case faulted:
			return false, false
		case finished:
			u.finished(w.launch)
			w.pool = append(w.pool, u)
			w.mine = append(w.mine[:i], w.mine[i+1:]...)
			i--
			w.launch.resident.Add(-1)
			w.passes = 0
			moved = true
		case worked:
			moved = true
		}
		if w.launch.abort.Load() {
			return false, false
		}
	}
	return moved, true
}

// setIdle tells the other workers whether anything of this one moves.
func (w *worker) setIdle(idle bool) {
	if idle == w.idle {
		return
	}
	w.idle = idle
	if idle {
		w.launch.idle.Add(1)
	} else {
		w.launch.idle.Add(-1)
		w.polls = 0
	}
}

// rest yields to other workers while all blocks of this one poll, and gives up when nothing anywhere moves.
func (w *worker) rest() {
	l := w.launch
	if l.idle.Load() < l.workers {
		w.polls = 0
	}
	for _, u := range w.mine {
		w.polls += len(u.blocks) * len(u.blocks[0].warps)
	}
	if w.polls > patience {
		if f := w.mine[0].deadlock(); f != nil {
			w.mine[0].stopWith(f)
		}
		return
	}
	if l.workers > 1 {
		runtime.Gosched()
		if w.polls > 1000 || len(w.mine) == 0 {
			time.Sleep(20 * time.Microsecond)
		}
	}
}

// admit makes the next unit resident, if the device has room.
func (l *launch) admit(pool *[]*unit) *unit {
	if l.resident.Add(1) > l.limit {
		l.resident.Add(-1)
		return nil
	}
	i := l.next.Add(1) - 1
	if i >= l.units {
		l.resident.Add(-1)
		return nil
	}
	var u *unit
	if n := len(*pool); n > 0 {
		u = (*pool)[n-1]
		*pool = (*pool)[:n-1]
	} else if u = l.kernel.spare(l); u == nil {
		u = l.newUnit()
	}
	u.reset(l, i)
	return u
}
