package sim

import (
	"math"
	"strconv"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// operand is a source or destination: a register or constant of a class.
type operand struct {
	class class
	slot  slot
	neg   bool // of predicates
	sink  bool
	bits  int // declared width of the register; the class's width for constants
}

// pred slots below zero are constants.
const (
	predFalse slot = -1
	predTrue  slot = -2
)

// lane reads one lane of any class.
func (w *warp) lane(o operand, i int) uint64 {
	switch o.class {
	case c32:
		return uint64(w.in32(o.slot)[i&31])
	case c64:
		return w.in64(o.slot)[i&31]
	}
	return uint64(w.pred(o) >> i & 1)
}

// set writes one lane of any class.
func (w *warp) set(o operand, i int, v uint64) {
	switch {
	case o.sink:
	case o.class == c32:
		w.r[o.slot][i&31] = uint32(v)
	case o.class == c64:
		w.q[o.slot][i&31] = v
	default:
		w.p[o.slot] = w.p[o.slot]&^(1<<i) | uint32(v&1)<<i
	}
}

// pred reads a predicate as a mask.
func (w *warp) pred(o operand) uint32 {
	var m uint32
	switch {
	case o.slot >= 0:
		m = w.p[o.slot]
	case o.slot == predTrue:
		m = allLanes
	}
	if o.neg {
		return ^m
	}
	return m
}

// setPred writes the lanes of m.
func (w *warp) setPred(o operand, m, v uint32) {
	if !o.sink {
		w.p[o.slot] = w.p[o.slot]&^m | v&m
	}
}

func (c *lowering) constant32(v uint32) slot {
	s, ok := c.const32[v]
	if !ok {
		s = ^slot(len(c.k.c32))
		c.const32[v] = s
		var x vec32
		for i := range x {
			x[i] = v
		}
		c.k.c32 = append(c.k.c32, x)
	}
	return s
}

func (c *lowering) constant64(v uint64) slot {
	s, ok := c.const64[v]
	if !ok {
		s = ^slot(len(c.k.c64))
		c.const64[v] = s
		var x vec64
		for i := range x {
			x[i] = v
		}
		c.k.c64 = append(c.k.c64, x)
	}
	return s
}

// classOf is the register file of a type.
func classOf(t ptx.Type) class {
	switch b := t.Bits(); {
	case b == 1:
		return cPred
	case b <= 32:
		return c32
	}
	return c64
}

// src lowers a source operand read as a type. The register may be wider than the type only where the caller allows it by asking
// for the register's own class.
func (c *lowering) src(n int, t ptx.Type) operand { return c.source(c.arg(n), t) }

func (c *lowering) source(o ptx.Operand, t ptx.Type) operand {
	want := classOf(t)
	switch o.Kind {
	case ptx.Register:
		l := c.locs[o.Reg]
		if l.class != want {
			c.failf("register %s is .%s, the instruction reads .%s", c.fn.Regs[o.Reg].Name, c.fn.Regs[o.Reg].Type, t)
		}
		return operand{class: l.class, slot: l.slot, neg: o.Neg, bits: c.fn.Regs[o.Reg].Type.Bits()}
	case ptx.Integer, ptx.Float32, ptx.Float64:
		return c.literal(o, t)
	case ptx.Special:
		return c.specialRegister(o.Name, want)
	case ptx.Symbol:
		return c.symbol(o, want)
	}
	c.failf("operand %v cannot be read as .%s", o.Name, t)
	return operand{}
}

// literal is a constant of a type.
func (c *lowering) literal(o ptx.Operand, t ptx.Type) operand {
	v := o.Bits
	switch {
	case o.Kind == ptx.Float64 && t == "f32":
		v = uint64(math.Float32bits(float32(math.Float64frombits(v))))
	case o.Kind == ptx.Float32 && t == "f64":
		v = math.Float64bits(float64(math.Float32frombits(uint32(v))))
	case o.Kind == ptx.Integer && t == "f64" || o.Kind == ptx.Integer && t == "f32":
		c.failf("a whole number where a .%s is wanted", t)
	}
	switch classOf(t) {
	case cPred:
		if v != 0 {
			return operand{class: cPred, slot: predTrue}
		}
		return operand{class: cPred, slot: predFalse}
	case c32:
		if b := t.Bits(); b < 32 {
			v &= 1<<b - 1
		}
		return operand{class: c32, slot: c.constant32(uint32(v)), bits: t.Bits()}
	}
	return operand{class: c64, slot: c.constant64(v), bits: 64}
}

// specialRegister gives a special register a slot that is filled when a warp starts.
func (c *lowering) specialRegister(name string, want class) operand {
	if name == "WARP_SZ" {
		return operand{class: c32, slot: c.constant32(32), bits: 32}
	}
	if !specialNames[name] {
		c.failf("unknown special register %s", name)
	}
	return c.filled(special{name: name, wide: want == c64})
}

func (c *lowering) filled(s special) operand {
	key := s.name
	if s.name == "" {
		key = "@" + strconv.Itoa(int(s.addr))
	}
	if s.wide {
		key += "/64"
	}
	if o, ok := c.special[key]; ok {
		return o
	}
	o := operand{class: c32, bits: 32}
	if s.wide {
		o = operand{class: c64, bits: 64}
		o.slot = slot(c.k.nq)
		c.k.nq++
	} else {
		o.slot = slot(c.k.nr)
		c.k.nr++
	}
	s.slot = o.slot
	c.k.specials = append(c.k.specials, s)
	c.special[key] = o
	return o
}

// symbol is the address of a variable. A shared variable's address carries the block's rank, so it is filled when a warp starts.
func (c *lowering) symbol(o ptx.Operand, want class) operand {
	if want == cPred {
		c.failf("variable %s read as a predicate", o.Name)
	}
	p, ok := c.vars[o.Name]
	if !ok {
		c.failf("unknown variable %s", o.Name)
	}
	var addr uint64
	switch p.space {
	case "shared":
		return c.filled(special{addr: uint32(p.offset + o.Off), wide: want == c64})
	case "local":
		addr = uint64(p.offset + o.Off)
	case "param":
		addr = uint64(p.offset + o.Off)
	default:
		addr = uint64(p.offset + o.Off)
	}
	if want == c32 {
		return operand{class: c32, slot: c.constant32(uint32(addr)), bits: 32}
	}
	return operand{class: c64, slot: c.constant64(addr), bits: 64}
}

// dst lowers a destination register of a type's class; a sink is allowed.
func (c *lowering) dst(n int, t ptx.Type) operand { return c.dest(c.arg(n), t) }

func (c *lowering) dest(o ptx.Operand, t ptx.Type) operand {
	switch o.Kind {
	case ptx.Register:
		l := c.locs[o.Reg]
		if l.class != classOf(t) {
			c.failf("register %s is .%s, the instruction writes .%s", c.fn.Regs[o.Reg].Name, c.fn.Regs[o.Reg].Type, t)
		}
		return operand{class: l.class, slot: l.slot, bits: c.fn.Regs[o.Reg].Type.Bits()}
	case ptx.Sink:
		// Writes to a sink go to a scratch register, so that steps need not ask.
		return c.scratch(classOf(t))
	}
	c.failf("a register is wanted for the result")
	return operand{}
}

// scratch is a register that nothing reads.
func (c *lowering) scratch(cl class) operand {
	key := [...]string{"scratch32", "scratch64", "scratchp"}[cl]
	if o, ok := c.special[key]; ok {
		return o
	}
	o := operand{class: cl, sink: cl == cPred}
	switch cl {
	case c32:
		o.slot, o.bits = slot(c.k.nr), 32
		c.k.nr++
	case c64:
		o.slot, o.bits = slot(c.k.nq), 64
		c.k.nq++
	}
	c.special[key] = o
	return o
}

// any lowers a source by its own register class, for instructions whose operand may be wider than their type.
func (c *lowering) any(o ptx.Operand, t ptx.Type) operand {
	if o.Kind == ptx.Register {
		l := c.locs[o.Reg]
		return operand{class: l.class, slot: l.slot, neg: o.Neg, bits: c.fn.Regs[o.Reg].Type.Bits()}
	}
	return c.source(o, t)
}

func (c *lowering) anyDest(o ptx.Operand, t ptx.Type) operand {
	if o.Kind == ptx.Register {
		l := c.locs[o.Reg]
		return operand{class: l.class, slot: l.slot, bits: c.fn.Regs[o.Reg].Type.Bits()}
	}
	return c.dest(o, t)
}

// imm is a constant operand.
func (c *lowering) imm(n int) int64 {
	o := c.arg(n)
	if o.Kind != ptx.Integer {
		c.failf("operand %d must be a constant", n+1)
	}
	return int64(o.Bits)
}

// predSrc is a predicate operand.
func (c *lowering) predSrc(n int) operand { return c.src(n, "pred") }
