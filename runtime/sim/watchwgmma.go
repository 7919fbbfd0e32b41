package sim

// wgmmaAgent is the copy-engine number that stands for the tensor core reading shared memory for one warp.
func (w *warp) wgmmaAgent() uint32 {
	return w.san.unit.agent(len(w.b.unit.blocks)*len(w.b.warps), uint64(w.san.index)|1<<41)
}

// wgmmaIssued notes the registers of a product; they belong to the tensor core until it is waited for.
func (w *warp) wgmmaIssued() {
	if w.san == nil {
		return
	}
	g := &w.wg
	g.issued++
	src := &w.b.launch.kernel.origin[w.at().src]
	for i := range 2 {
		var regs []regUse
		if i == 0 || len(src.Args[1].Elems) > 0 {
			collectRegs(&src.Args[i], &regs)
		}
		for _, r := range regs {
			g.flying = append(g.flying, flight{r, g.issued, i == 0, w.at().src})
		}
	}
}

func (w *warp) wgmmaCommitted() {
	if w.san != nil {
		w.wg.groups = append(w.wg.groups, w.wg.issued)
	}
}

// wgmmaWaited gives back the registers of all groups but the newest keep, and orders what follows after their reads of shared memory.
func (w *warp) wgmmaWaited(keep int) {
	s, g := w.san, &w.wg
	if s == nil || len(g.groups) <= keep {
		return
	}
	done := g.groups[len(g.groups)-1-keep]
	left := g.flying[:0]
	for _, f := range g.flying {
		if f.product > done {
			left = append(left, f)
		}
	}
	g.flying = left
	i := w.wgmmaAgent()
	for uint32(len(s.vc.near)) <= i {
		s.vc.near = append(s.vc.near, 0)
	}
	s.vc.near[i] = max(s.vc.near[i], done)
}

// wgmmaTouched reports an instruction that uses an accumulator in flight, or overwrites a fragment of A in flight.
func (w *warp) wgmmaTouched(in *inst, m uint32) {
	if w.b.launch.kernel.origin[in.src].Op == "wgmma" {
		return
	}
	for _, f := range w.wg.flying {
		hit := false
		for _, r := range in.defs {
			hit = hit || r == f.reg
		}
		if f.result {
			for _, r := range in.uses {
				hit = hit || r == f.reg
			}
		}
		if hit {
			w.report(firstLane(m), kindRace, in, f.src, 0, "register %s belongs to the wgmma at %s until wgmma.wait_group", w.b.launch.kernel.fn.Regs[f.reg].Name, w.where(f.src))
			return
		}
	}
}
