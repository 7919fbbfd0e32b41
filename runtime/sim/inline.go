package sim

import (
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/runtime/sim/ptx"
)

// maxInlined bounds the code of a kernel with all calls inlined.
const maxInlined = 1 << 20

// inliner builds the flat form of an entry.
type inliner struct {
	mod    *Module
	out    *ptx.Func
	active []string // functions being inlined, to find recursion
	copies int
}

// inline returns the entry with the bodies of the functions it calls in place of the calls. Parameters of a call are variables of
// the caller; the callee's names become aliases of them.
func (m *Module) inline(f *ptx.Func) *ptx.Func {
	if !slices.ContainsFunc(f.Code, func(i ptx.Instr) bool { return i.Op == "call" }) {
		return f
	}
	flat := *f
	flat.Code, flat.Regs, flat.Vars = nil, nil, nil
	x := &inliner{mod: m, out: &flat}
	x.body(f, nil)
	return &flat
}

func (x *inliner) failf(in *ptx.Instr, format string, args ...any) {
	panic(&ptx.Error{Line: in.Line, Func: x.out.Name, Msg: fmt.Sprintf(format, args...)})
}

// body appends a function's code. alias maps its parameters to variables of the caller; nil: the entry itself.
func (x *inliner) body(f *ptx.Func, alias map[string]string) {
	x.active = append(x.active, f.Name)
	base := len(x.out.Regs)
	x.out.Regs = append(x.out.Regs, f.Regs...)
	names := map[string]string{}
	for k, v := range alias {
		names[k] = v
	}
	x.copies++
	for _, v := range f.Vars {
		if alias != nil && (v.Space == "local" || v.Space == "param") {
			unique := fmt.Sprintf("%s@%d", v.Name, x.copies)
			names[v.Name] = unique
			v.Name = unique
		}
		if !slices.ContainsFunc(x.out.Vars, func(o ptx.Var) bool { return o.Name == v.Name }) {
			x.out.Vars = append(x.out.Vars, v)
		}
	}
	at := make([]int, len(f.Code)+1)
	var own []int // instructions of this body, whose labels are to be moved
	var returns []int
	for i := range f.Code {
		at[i] = len(x.out.Code)
		in := clone(&f.Code[i], base, names)
		switch {
		case in.Op == "call":
			x.call(&in)
			continue
		case in.Op == "ret" && alias != nil:
			in.Op, in.Mods, in.Args = "bra", nil, []ptx.Operand{{Kind: ptx.Label}}
			returns = append(returns, len(x.out.Code))
		default:
			own = append(own, len(x.out.Code))
		}
		x.out.Code = append(x.out.Code, in)
		if len(x.out.Code) > maxInlined {
			x.failf(&in, "more than %d instructions with all calls inlined", maxInlined)
		}
	}
	at[len(f.Code)] = len(x.out.Code)
	for _, i := range own {
		in := &x.out.Code[i]
		for k := range in.Args {
			moveLabels(&in.Args[k], at)
		}
		for k, t := range in.Targets {
			in.Targets[k] = at[t]
		}
	}
	for _, i := range returns {
		x.out.Code[i].Args[0].Target = len(x.out.Code)
	}
	x.active = x.active[:len(x.active)-1]
}

// call appends the body of a call, jumped over where its guard is false.
func (x *inliner) call(in *ptx.Instr) {
	name, params, returns := "", []ptx.Operand(nil), []ptx.Operand(nil)
	for i, a := range in.Args {
		switch {
		case a.Kind == ptx.Symbol && name == "":
			name = a.Name
		case a.Kind == ptx.List && name == "" && i == 0:
			returns = a.Elems
		case a.Kind == ptx.List:
			params = a.Elems
		}
	}
	if name == "" {
		x.failf(in, "indirect calls are not known")
	}
	if name == "__assertfail" {
		x.out.Code = append(x.out.Code, ptx.Instr{Line: in.Line, Src: in.Src, Guard: in.Guard, Negated: in.Negated, Op: "trap"})
		return
	}
	callee := x.mod.ast.Func(name)
	if name == "vprintf" && callee == nil {
		return // output is not modelled
	}
	if callee == nil {
		x.failf(in, "call of %s, which has no body", name)
	}
	if slices.Contains(x.active, name) {
		x.failf(in, "%s calls itself: recursion is not known", name)
	}
	if len(params) != len(callee.Params) || len(returns) != len(callee.Returns) {
		x.failf(in, "call of %s with %d parameters and %d results, which has %d and %d", name, len(params), len(returns), len(callee.Params), len(callee.Returns))
	}
	alias := map[string]string{}
	for i, p := range callee.Params {
		alias[p.Name] = params[i].Name
	}
	for i, r := range callee.Returns {
		alias[r.Name] = returns[i].Name
	}
	jump := -1
	if in.Guard >= 0 {
		jump = len(x.out.Code)
		x.out.Code = append(x.out.Code, ptx.Instr{Line: in.Line, Src: in.Src, Guard: in.Guard, Negated: !in.Negated, Op: "bra", Args: []ptx.Operand{{Kind: ptx.Label}}})
	}
	x.body(callee, alias)
	if jump >= 0 {
		x.out.Code[jump].Args[0].Target = len(x.out.Code)
	}
}

// clone copies an instruction with its registers moved up by base and its variables renamed.
func clone(in *ptx.Instr, base int, names map[string]string) ptx.Instr {
	out := *in
	if out.Guard >= 0 {
		out.Guard += base
	}
	out.Args = slices.Clone(in.Args)
	out.Targets = slices.Clone(in.Targets)
	for i := range out.Args {
		rename(&out.Args[i], base, names)
	}
	return out
}

func rename(o *ptx.Operand, base int, names map[string]string) {
	switch o.Kind {
	case ptx.Register:
		o.Reg += base
	case ptx.Symbol:
		if n, ok := names[o.Name]; ok {
			o.Name = n
		}
	}
	o.Elems = slices.Clone(o.Elems)
	for i := range o.Elems {
		rename(&o.Elems[i], base, names)
	}
}

func moveLabels(o *ptx.Operand, at []int) {
	if o.Kind == ptx.Label {
		o.Target = at[o.Target]
	}
	for i := range o.Elems {
		moveLabels(&o.Elems[i], at)
	}
}
