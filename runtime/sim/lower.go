package sim

import (
	"fmt"
	"slices"
	"sync"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// kernel is an entry in executable form.
type kernel struct {
	name         string
	fn           *ptx.Func
	code         []inst
	origin       []ptx.Instr // what each inst came from, by inst.src
	files        map[int]string
	nr, nq, np   int // registers of each class
	c32          []vec32
	c64          []vec64
	specials     []special
	staticShared int // bytes
	dynamicAt    int // offset of dynamic shared memory from sharedBase
	localBytes   int // a thread
	paramBytes   int
	pressure     int   // most 32-bit registers live at once
	locs         []loc // of the virtual registers

	mu    sync.Mutex
	units []*unit // left by launches for the next
}

// step executes an instruction for the lanes of m, which is never 0.
type step = func(w *warp, m uint32)

// lowering turns one PTX function into a kernel.
type lowering struct {
	mod     *Module
	fn      *ptx.Func
	k       *kernel
	locs    []loc
	used    []bool // registers that some instruction reads
	const32 map[uint32]slot
	const64 map[uint64]slot
	special map[string]operand
	vars    map[string]place
	in      *ptx.Instr
	out     *inst
	mods    []string // modifiers of in that nothing has asked for yet
}

// loc is where a virtual register lives.
type loc struct {
	class class
	slot  slot
}

// class is a register file.
type class uint8

const (
	c32 class = iota
	c64
	cPred
)

// place is a variable's state space and offset.
type place struct {
	space  string
	offset int64
	size   int64
}

// loadError is a construct that the simulator does not know; Load returns it.
type loadError struct {
	kernel string
	line   int
	file   string
	cuda   int
	full   string
	msg    string
}

func (e *loadError) Error() string {
	at := ""
	if e.cuda > 0 {
		at = fmt.Sprintf(" (%s:%d)", e.file, e.cuda)
	}
	return fmt.Sprintf("kernel %s, PTX line %d%s: %s: %s", e.kernel, e.line, at, e.full, e.msg)
}

func (c *lowering) failf(format string, args ...any) {
	e := &loadError{kernel: c.fn.Name, msg: fmt.Sprintf(format, args...), line: c.fn.Line}
	if c.in != nil {
		e.line, e.full, e.cuda, e.file = c.in.Line, c.in.Full(), c.in.Src.Line, c.mod.ast.Files[c.in.Src.File]
	}
	panic(e)
}

// lower makes the executable form of an entry, or says what it does not know.
func (m *Module) lower(f *ptx.Func) (k *kernel, err error) {
	defer func() {
		if r := recover(); r != nil {
			switch e := r.(type) {
			case *loadError:
				k, err = nil, e
			case *ptx.Error:
				k, err = nil, e
			default:
				panic(r)
			}
		}
	}()
	flat := m.inline(f)
	c := &lowering{mod: m, fn: flat, const32: map[uint32]slot{}, const64: map[uint64]slot{}, special: map[string]operand{}, vars: map[string]place{}}
	c.k = &kernel{name: f.Name, fn: flat, origin: flat.Code, files: m.ast.Files}
	c.layout()
	flow := analyse(flat)
	c.allocate(flow)
	c.used = make([]bool, len(flat.Regs))
	for _, list := range flow.uses {
		for _, r := range list {
			c.used[r] = true
		}
	}
	c.k.code = make([]inst, 0, len(flat.Code)+1)
	for i := range flat.Code {
		c.instruction(i, flow)
	}
	// Falling off the end is a return.
	c.k.code = append(c.k.code, inst{kind: kExit, guard: -1, src: int32(max(len(flat.Code)-1, 0))})
	c.k.paramBytes = c.paramBytes()
	return c.k, nil
}

// instruction lowers the i-th one.
func (c *lowering) instruction(i int, flow *flow) {
	c.in = &c.fn.Code[i]
	c.mods = slices.Clone(c.in.Mods)
	c.k.code = append(c.k.code, inst{guard: -1, src: int32(i), join: -1})
	c.out = &c.k.code[len(c.k.code)-1]
	if c.in.Guard >= 0 {
		c.out.guard = int32(c.locs[c.in.Guard].slot)
		c.out.negated = c.in.Negated
	}
	lower, ok := opcodes[c.in.Op]
	if !ok {
		c.failf("unknown instruction %q", c.in.Op)
	}
	c.out.join, c.out.spin = flow.join[i], flow.spin[i]
	c.out.uses, c.out.defs = flow.uses[i], flow.defs[i]
	for k := range c.in.Args {
		if a := &c.in.Args[k]; a.Kind == ptx.Address {
			collectRegs(a, &c.out.addrs)
		}
	}
	c.out.stores = c.in.Op == "st" || c.in.Op == "atom" || c.in.Op == "red"
	c.out.carry, c.out.group = carryOf(c.in), groupOf(c.in)
	c.out.run = lower(c)
	if len(c.mods) > 0 {
		c.failf("unknown modifier .%s", c.mods[0])
	}
	if c.out.run == nil && c.out.kind == kStep {
		c.out.run = func(*warp, uint32) {}
	}
}

// has takes a modifier out of the list and reports whether it was there.
func (c *lowering) has(mod string) bool {
	i := slices.Index(c.mods, mod)
	if i < 0 {
		return false
	}
	c.mods = slices.Delete(c.mods, i, i+1)
	return true
}

// oneOf takes the first of the list's modifiers that is one of those given; "" where there is none.
func (c *lowering) oneOf(mods ...string) string {
	for i, m := range c.mods {
		if slices.Contains(mods, m) {
			c.mods = slices.Delete(c.mods, i, i+1)
			return m
		}
	}
	return ""
}

// typ takes the next type modifier.
func (c *lowering) typ() ptx.Type {
	for i, m := range c.mods {
		if t := ptx.Type(m); t.Bits() > 0 {
			c.mods = slices.Delete(c.mods, i, i+1)
			return t
		}
	}
	c.failf("no type given")
	return ""
}

// lastTyp takes the last type modifier.
func (c *lowering) lastTyp() ptx.Type {
	for i := len(c.mods) - 1; i >= 0; i-- {
		if t := ptx.Type(c.mods[i]); t.Bits() > 0 {
			c.mods = slices.Delete(c.mods, i, i+1)
			return t
		}
	}
	c.failf("no type given")
	return ""
}

// arg is the n-th operand.
func (c *lowering) arg(n int) ptx.Operand {
	if n >= len(c.in.Args) {
		c.failf("operand %d is missing", n+1)
	}
	return c.in.Args[n]
}

// args checks the number of operands.
func (c *lowering) args(lo, hi int) int {
	n := len(c.in.Args)
	if n < lo || n > hi {
		c.failf("%d operands, want %d to %d", n, lo, hi)
	}
	return n
}

// opcodes holds every known instruction; files of a topic add theirs.
var opcodes = map[string]func(c *lowering) step{}

func register(table map[string]func(c *lowering) step) bool {
	for op, f := range table {
		if opcodes[op] != nil {
			panic("BUG: sim: opcode " + op + " registered twice")
		}
		opcodes[op] = f
	}
	return true
}
