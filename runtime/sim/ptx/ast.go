// Package ptx is the simulator's front end: it reads the PTX text that NVRTC emits into typed instructions with positions.
//
// It knows the shape of the language (directives, scopes, operands), not the meaning of instructions: package sim decides which
// opcodes and modifiers it can execute, and refuses the others by name when a module is loaded.
package ptx

import "fmt"

// Module is one translation unit.
type Module struct {
	Major, Minor int    // of .version
	Target       string // "sm_90a"
	Files        map[int]string
	Vars         []Var // module-scope variables, in order
	Funcs        []*Func
}

// Func finds a function by name.
func (m *Module) Func(name string) *Func {
	for _, f := range m.Funcs {
		if f.Name == name && f.HasBody {
			return f
		}
	}
	return nil
}

// Src is a place in CUDA source; Line 0: unknown.
type Src struct {
	File, Line int
	// InlinedAt is the place of the call when the line belongs to an inlined function, else nil.
	InlinedAt *Src
}

// Type is a fundamental type, spelled as PTX does without the dot: "u32", "f16x2", "pred".
type Type string

// Bits is the width of one register of the type; 0 for an unknown type.
func (t Type) Bits() int {
	switch t {
	case "pred":
		return 1
	case "b8", "u8", "s8", "e4m3", "e5m2":
		return 8
	case "b16", "u16", "s16", "f16", "bf16", "e4m3x2", "e5m2x2":
		return 16
	case "b32", "u32", "s32", "f32", "f16x2", "bf16x2", "tf32", "u16x2", "s16x2":
		return 32
	case "b64", "u64", "s64", "f64", "f32x2":
		return 64
	case "b128":
		return 128
	}
	return 0
}

// Var is a variable of a state space other than .reg.
type Var struct {
	Name   string
	Space  string // "global", "shared", "local", "const", "param"
	Type   Type
	Align  int
	Size   int64 // bytes; 0 for an extern array without a size
	Extern bool
	Init   []byte // nil: zero
	Refs   []Ref  // addresses of other variables inside Init
	Line   int
}

// Ref is the address of a variable, stored at Offset of an initialiser.
type Ref struct {
	Offset int64
	Name   string
	Add    int64
}

// Reg is one virtual register of a function.
type Reg struct {
	Name string
	Type Type
}

// Func is an entry or a device function.
type Func struct {
	Name       string
	Entry      bool
	HasBody    bool
	Params     []Var
	Returns    []Var
	Vars       []Var // .local, .shared, .const and .param variables declared inside
	Regs       []Reg
	Code       []Instr
	MaxThreads int // of .maxntid, product; 0: not given
	ReqThreads int // of .reqntid
	MinBlocks  int
	Cluster    [3]int // of .reqnctapercluster; 0: not given
	Line       int
}

// Kind tells operands apart.
type Kind uint8

// The operand kinds.
const (
	Register Kind = iota // Reg; Neg for !p
	Integer              // Bits
	Float32              // Bits: a single's bits, from 0f
	Float64              // Bits: a double's bits, from 0d or a decimal literal
	Special              // Name: "%tid.x"
	Symbol               // Name of a variable or function
	Label                // Target: index into Func.Code
	Address              // Elems[0] plus Off; Elems[1] is a coordinate vector, if any
	Vector               // Elems
	Pair                 // Elems[0] | Elems[1]
	Sink                 // _
	List                 // ( ... ) of a call
)

// Operand is one operand.
type Operand struct {
	Kind   Kind
	Neg    bool
	Reg    int
	Bits   uint64
	Off    int64
	Name   string
	Target int
	Elems  []Operand
}

// Instr is one instruction.
type Instr struct {
	Line    int // of the PTX text
	Src     Src
	Guard   int // predicate register, or -1
	Negated bool
	Op      string   // "ld"
	Mods    []string // "global", "v4", "u32", in order
	Args    []Operand
	Targets []int // of brx.idx, resolved
}

// Full is the opcode with its modifiers: "ld.global.v4.u32".
func (i *Instr) Full() string {
	s := i.Op
	for _, m := range i.Mods {
		s += "." + m
	}
	return s
}

// Error is a fault of the text.
type Error struct {
	Line int
	Func string
	Msg  string
}

func (e *Error) Error() string {
	if e.Func != "" {
		return fmt.Sprintf("PTX line %d: kernel %s: %s", e.Line, e.Func, e.Msg)
	}
	return fmt.Sprintf("PTX line %d: %s", e.Line, e.Msg)
}
