package sim

import "github.com/kvloom/kvloom/runtime/sim/ptx"

// halves are the lanes in which the low and the high half of a register hold a value. Compilers pack one value and one undefined
// one into a wider register and then use the defined half alone, so that halves must be told apart.
type halves struct{ lo, hi uint32 }

// carry says how an instruction passes undefined values on.
type carry uint8

const (
	carryAny     carry = iota // the results lack a value where some source lacks all of it
	carryCopy                 // mov
	carryPack                 // mov d, {a, b}
	carryUnpack               // mov {d, e}, a
	carryNarrow               // an integer cvt to half the width
	carryPick                 // selp: only the chosen operand matters
	carryProduct              // wgmma: the accumulators matter where the predicate adds to them
)

func carryOf(in *ptx.Instr) carry {
	switch {
	case in.Op == "selp" && len(in.Args) == 4:
		return carryPick
	case in.Op == "wgmma" && len(in.Args) >= 4:
		return carryProduct
	case in.Op == "mov" && len(in.Args) == 2:
		switch {
		case in.Args[1].Kind == ptx.Vector:
			return carryPack
		case in.Args[0].Kind == ptx.Vector:
			return carryUnpack
		case in.Args[1].Kind == ptx.Register && in.Args[0].Kind == ptx.Register:
			return carryCopy
		}
	case in.Op == "cvt" && len(in.Mods) == 2 && len(in.Args) == 2 && in.Args[1].Kind == ptx.Register:
		d, s := ptx.Type(in.Mods[0]), ptx.Type(in.Mods[1])
		if d.Bits() < s.Bits() && !isFloat(string(d)) && !isFloat(string(s)) {
			return carryNarrow
		}
	}
	return carryAny
}

// registers follows which registers hold values. A value that nothing wrote may be moved about; it may not decide a branch, form an
// address or leave through memory.
func (w *warp) registers(in *inst, m uint32) {
	s := w.san
	k := w.b.launch.kernel
	src := &k.origin[in.src]
	if in.guard >= 0 {
		if bad := w.mask &^ s.ready[src.Guard].lo; bad != 0 {
			w.report(firstLane(bad), kindUninit, in, 0, 0, "the predicate was never written")
		}
	}
	for _, r := range in.addrs {
		if bad := m &^ (s.ready[r].lo | s.ready[r].hi); bad != 0 {
			w.report(firstLane(bad), kindUninit, in, 1, 0, "register %s, part of the address, was never written", k.fn.Regs[r].Name)
		}
	}
	if len(w.wg.flying) > 0 {
		w.wgmmaTouched(in, m)
	}
	lack := uint32(0)
	for _, r := range in.uses {
		lack |= m &^ (s.ready[r].lo | s.ready[r].hi)
	}
	s.tainted = 0
	if in.stores {
		s.tainted = lack
	}
	switch in.carry {
	case carryCopy:
		s.define(src.Args[0], m, s.of(src.Args[1]))
	case carryPack:
		e := src.Args[1].Elems
		s.define(src.Args[0], m, halves{s.some(e[:(len(e)+1)/2]), s.some(e[len(e)/2:])})
	case carryUnpack:
		h := s.of(src.Args[1])
		e := src.Args[0].Elems
		for i, d := range e {
			v := h.lo
			if i >= len(e)/2 {
				v = h.hi
			}
			s.define(d, m, halves{v, v})
		}
	case carryNarrow:
		v := s.of(src.Args[1]).lo
		s.define(src.Args[0], m, halves{v, v})
	case carryPick:
		s.pick(w, src, m)
	case carryProduct:
		s.product(w, src, m)
	default:
		for _, r := range in.defs {
			h := &s.ready[r]
			h.lo, h.hi = h.lo&^m|m&^lack, h.hi&^m|m&^lack
		}
	}
}

// of is what an operand holds; constants and special registers hold values.
func (s *warpShadow) of(o ptx.Operand) halves {
	if o.Kind == ptx.Register {
		return s.ready[o.Reg]
	}
	return halves{allLanes, allLanes}
}

// some are the lanes in which one of the operands holds a value.
func (s *warpShadow) some(list []ptx.Operand) uint32 {
	v := uint32(0)
	for _, o := range list {
		h := s.of(o)
		v |= h.lo | h.hi
	}
	return v
}

func (s *warpShadow) define(o ptx.Operand, m uint32, h halves) {
	if o.Kind == ptx.Register {
		r := &s.ready[o.Reg]
		r.lo, r.hi = r.lo&^m|h.lo&m, r.hi&^m|h.hi&m
	}
}

// pick is selp.
func (s *warpShadow) pick(w *warp, src *ptx.Instr, m uint32) {
	chosen, known := allLanes, allLanes
	if p := src.Args[3]; p.Kind == ptx.Register {
		chosen, known = w.p[w.b.launch.kernel.locs[p.Reg].slot], s.ready[p.Reg].lo
		if p.Neg {
			chosen = ^chosen
		}
	}
	a, b := s.of(src.Args[1]), s.of(src.Args[2])
	s.define(src.Args[0], m, halves{(a.lo&chosen | b.lo&^chosen) & known, (a.hi&chosen | b.hi&^chosen) & known})
}

// partly handles a load of which a part was never written, as the padding of a struct: the registers of that part hold no value. It
// reports false for a load of which nothing was written.
func (w *warp) partly(a *access, lane int, written []byte, off uint64) bool {
	src := &w.b.launch.kernel.origin[w.at().src]
	if src.Op != "ld" && src.Op != "ldu" || a.size < 2 {
		return false
	}
	elems := []ptx.Operand{src.Args[0]}
	if src.Args[0].Kind == ptx.Vector {
		elems = src.Args[0].Elems
	}
	size := a.size / uint64(len(elems))
	some := false
	for i, e := range elems {
		any := false
		for k := range size {
			any = any || unwritten(written, off+uint64(i)*size+k, 1) == 1
		}
		some = some || any
		if e.Kind == ptx.Register && !any {
			h := &w.san.ready[e.Reg]
			h.lo, h.hi = h.lo&^(1<<lane), h.hi&^(1<<lane)
		}
	}
	return some
}

// product is wgmma.mma_async d, a, b, scale-d, ...
func (s *warpShadow) product(w *warp, src *ptx.Instr, m uint32) {
	add := allLanes
	if p := src.Args[3]; p.Kind == ptx.Register {
		add = w.p[w.b.launch.kernel.locs[p.Reg].slot]
		if p.Neg {
			add = ^add
		}
	}
	known := allLanes
	var regs []regUse
	for i := 1; i < 4; i++ {
		collectRegs(&src.Args[i], &regs)
	}
	for _, r := range regs {
		known &= s.ready[r].lo | s.ready[r].hi
	}
	for _, d := range src.Args[0].Elems {
		h := s.of(d)
		v := known & (h.lo | h.hi | ^add)
		s.define(d, m, halves{v, v})
	}
}
