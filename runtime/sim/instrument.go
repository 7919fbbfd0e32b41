package sim

import (
	"cmp"
	"slices"
)

// chainOf numbers a launch, and lists those before it that may still run when it starts: with programmatic dependent launch, the
// launch before it, and where that was dependent too, the one before that one, and so on.
func (d *Device) chainOf(stream uintptr, dependent bool) (number uint32, chain []uint32) {
	d.mu.Lock()
	defer d.mu.Unlock()
	number = launchNumber.Add(1)
	if dependent && d.chainStream == stream {
		chain = slices.Clone(d.chain)
		d.chain = append(d.chain, number)
	} else {
		d.chain = append(d.chain[:0], number)
	}
	d.chainStream = stream
	return number, chain
}

// breakChain ends a row of dependent launches: a copy or fill waits for all of them.
func (d *Device) breakChain() {
	d.mu.Lock()
	d.chain = d.chain[:0]
	d.mu.Unlock()
}

// instrument sets up what watches a launch.
func (l *launch) instrument(number uint32, chain []uint32) {
	if l.set.count {
		l.counters = &counting{}
	}
	if !l.set.sanitize {
		return
	}
	warps := (l.block[0]*l.block[1]*l.block[2] + 31) / 32 * l.cluster[0] * l.cluster[1] * l.cluster[2]
	l.san = &sanitizer{launch: l, number: number, chain: chain, stride: warps + maxAgents, vars: map[uint64]*syncVar{}, seen: map[reportKey]bool{}}
}

// collect ends the watch: what the sanitizer found is an error of the launch.
func (l *launch) collect() error {
	l.dev.warpSteps.Add(l.warpSteps.Load())
	l.dev.threadSteps.Add(l.threadSteps.Load())
	if l.counters != nil {
		l.dev.mu.Lock()
		c := l.dev.counters[l.kernel.name]
		if c == nil {
			c = &Counters{Kernel: l.kernel.name}
			l.dev.counters[l.kernel.name] = c
		}
		l.counters.total.Launches = 1
		c.add(&l.counters.total)
		l.dev.mu.Unlock()
	}
	if l.san == nil || len(l.san.reports) == 0 {
		return nil
	}
	found := Reports(l.san.reports)
	slices.SortStableFunc(found, func(a, b *Fault) int { return cmp.Compare(a.PTXLine, b.PTXLine) })
	l.dev.mu.Lock()
	l.dev.reports = append(l.dev.reports, found...)
	l.dev.mu.Unlock()
	return found
}

// Reports returns all that the sanitizer has found on the device, in the order of the launches.
func (d *Device) Reports() []*Fault {
	d.mu.Lock()
	defer d.mu.Unlock()
	return slices.Clone(d.reports)
}

// observe is called before each instruction of a watched launch.
func (w *warp) observe(in *inst, m uint32) {
	if w.b.launch.counters != nil {
		w.count(in, m)
	}
	if w.san != nil {
		w.registers(in, m)
	}
}

// watch is called with the addresses of a memory access of a watched launch.
func (w *warp) watch(a *access, m uint32) {
	if w.b.launch.counters != nil {
		w.countAccess(a, m)
	}
	if w.san != nil {
		w.sanitizeAccess(a, m)
	}
	if r := &w.b.unit.rng; r.on && r.next()%4 == 0 {
		w.stop = true
	}
}

// noteWrite marks memory that the host wrote.
func (d *Device) noteWrite(p uint64, n int64) {
	if a := d.space.find(p); a != nil && a.shade != nil && n > 0 {
		mark(a.shade.written, p-a.base, uint64(n), true)
	}
}

// noteCopy carries what was written along with a copy.
func (d *Device) noteCopy(dst, src uint64, n int64) {
	from, to := d.space.find(src), d.space.find(dst)
	if from == nil || to == nil || from.shade == nil || to.shade == nil {
		return
	}
	for i := uint64(0); i < uint64(n); i++ {
		set := unwritten(from.shade.written, src-from.base+i, 1) == 1
		mark(to.shade.written, dst-to.base+i, 1, set)
	}
}

// tensorOps counts multiply-adds of matrix instructions.
func (w *warp) tensorOps(n int) {
	if w.watched {
		w.b.unit.counters.TensorMultiplyAdds += int64(n)
	}
}
