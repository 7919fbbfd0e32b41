package sim

import (
	"runtime"
	"sync"
	"time"
)

// patience is how many fruitless passes over all resident blocks a launch survives: nothing writes memory, everything polls.
const patience = 200_000

// execute runs all units of a launch on the workers and returns its fault, if any.
func (l *launch) execute() error {
	n := min(uint64(l.set.workers), l.units)
	if n <= 1 {
		l.work(1)
	} else {
		var wg sync.WaitGroup
		for range n {
			wg.Add(1)
			go func() {
				defer wg.Done()
				l.work(int(n))
			}()
		}
		wg.Wait()
	}
	if f := l.fault.Load(); f != nil {
		return f
	}
	return nil
}

// work runs units: the current ones while they move, a new one when all of them only poll. Blocks that wait for each other over
// memory therefore all become resident, up to what the device holds, and all get turns.
func (l *launch) work(workers int) {
	var mine []*unit
	var pool []*unit
	defer func() { l.kernel.keep(pool) }()
	idle := 0
	for !l.abort.Load() {
		moved := false
		seen := l.progress.Load()
		for i := 0; i < len(mine); i++ {
			switch mine[i].run() {
			case faulted:
				return
			case finished:
				mine[i].finished(l)
				pool = append(pool, mine[i])
				mine = append(mine[:i], mine[i+1:]...)
				i--
				l.resident.Add(-1)
				moved = true
			case worked:
				moved = true
			}
			if l.abort.Load() {
				return
			}
		}
		if moved && len(mine) > 0 {
			idle = 0
			l.progress.Add(1)
			continue
		}
		if u := l.admit(&pool); u != nil {
			mine = append(mine, u)
			l.progress.Add(1)
			idle = 0
			continue
		}
		if len(mine) == 0 {
			if l.next.Load() >= l.units {
				return
			}
		} else if l.progress.Load() == seen {
			idle++
		} else {
			idle = 0
		}
		l.rest(mine, idle, workers)
	}
}

// rest yields to other workers while all blocks of this one poll, and gives up when nothing ever moves.
func (l *launch) rest(mine []*unit, idle, workers int) {
	if idle > patience && len(mine) > 0 {
		if f := mine[0].deadlock(); f != nil {
			mine[0].stopWith(f)
		}
		return
	}
	if workers > 1 {
		runtime.Gosched()
		if idle > 100 || len(mine) == 0 {
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
