package sim

// syncLanes waits until every live lane of members has come to a warp-synchronous barrier. It reports whether they are all here;
// if not, the running group waits behind it and another group of lanes runs.
//
// Lanes that come by different ways stay different groups; only the arrival is shared, which is all that bar.warp.sync promises.
func (w *warp) syncLanes(members uint32) bool {
	need := members & w.live
	arrived := w.mask
	for _, e := range w.stack {
		if e.syncing == members {
			arrived |= e.mask
		}
	}
	if need&^arrived == 0 {
		for i := range w.stack {
			if w.stack[i].syncing == members {
				w.stack[i].syncing = 0
			}
		}
		return true
	}
	w.syncing = members
	for range w.stack {
		if !w.rotate() || w.syncing == 0 {
			break
		}
	}
	if w.syncing != 0 {
		w.lostLanes(members, arrived)
	}
	return false
}

func (w *warp) lostLanes(members, arrived uint32) {
	w.failf(firstLane(w.mask), kindDivergence, "waits for lanes %#08x of its warp; lanes %#08x never come", members, members&w.live&^arrived)
}

// resumeSync is called when a group that waits for lanes comes to the top of the stack: another group must run instead.
func (w *warp) resumeSync() {
	members := w.syncing
	for range w.stack {
		if !w.rotate() || w.syncing == 0 {
			break
		}
	}
	if w.syncing != 0 {
		w.lostLanes(members, w.mask)
	}
}

// gather brings the lanes of members together for an instruction that exchanges data between them. Groups that stand at the same
// instruction with the same reconvergence point are merged; for others the running group steps back and lets them come.
// It reports whether the instruction can execute now.
func (w *warp) gather(members uint32) bool {
	need := members & w.live
	if need&^w.mask == 0 {
		return true
	}
	pc := w.pc - 1
	for i := 0; i < len(w.stack); {
		if e := w.stack[i]; e.pc == pc && e.join == w.join && !e.joined {
			w.mask |= e.mask & w.live
			w.stack = append(w.stack[:i], w.stack[i+1:]...)
			continue
		}
		i++
	}
	w.pc = pc
	if need&^w.mask == 0 {
		w.tries = 0
		return false // executed again, with all lanes
	}
	w.tries++
	if w.tries > 64 || !w.rotate() {
		w.failf(firstLane(w.mask), kindDivergence, "names lanes %#08x, of which only %#08x are here", members, w.mask)
	}
	return false
}
