package ptx

import (
	"encoding/binary"
	"fmt"
	"math"
)

// maxVar bounds declared sizes: a module is text, not data.
const maxVar = 1 << 28

// variables reads ".global .align 4 .b8 name[24] = {...}, other;" from the space on.
func (p *parser) variables(extern bool) []Var {
	v := Var{Extern: extern, Line: p.tok.line}
	vec := 1
	for p.tok.kind == tDot {
		switch t := p.tok.text; t {
		case "global", "shared", "local", "const", "param":
			v.Space = t
		case "align":
			p.advance()
			v.Align = p.small(1 << 16)
			continue
		case "v2":
			vec = 2
		case "v4":
			vec = 4
		case "ptr":
		case "attribute":
			p.advance()
			p.skipParens()
			continue
		default:
			if Type(t).Bits() == 0 {
				p.failf(p.tok.line, "unknown directive .%s", t)
			}
			v.Type = Type(t)
		}
		p.advance()
	}
	if v.Space == "" || v.Type == "" {
		p.failf(v.Line, "a variable needs a state space and a type")
	}
	elem := int64(max(v.Type.Bits()/8, 1) * vec)
	var out []Var
	for {
		one := v
		p.declarator(&one, elem)
		out = append(out, one)
		if v.Space == "param" && p.fn == nil || !p.accept(",") {
			break
		}
	}
	p.accept(";")
	return out
}

// declarator reads "name[24] = init" or "name<4>".
func (p *parser) declarator(v *Var, elem int64) {
	line := p.tok.line
	v.Name = p.name()
	v.Size = elem
	if v.Align == 0 {
		v.Align = int(elem)
	}
	if v.Align&(v.Align-1) != 0 || v.Align == 0 {
		p.failf(line, "alignment %d of %s is not a power of two", v.Align, v.Name)
	}
	for p.accept("[") {
		if p.accept("]") {
			v.Size = 0
			continue
		}
		v.Size *= int64(p.small(maxVar))
		if v.Size > maxVar {
			p.failf(line, "%s is larger than %d bytes", v.Name, maxVar)
		}
		p.expect("]")
	}
	if p.accept("=") {
		width := max(v.Type.Bits()/8, 1)
		p.initialiser(v, width, 0)
		if int64(len(v.Init)) > v.Size {
			v.Size = int64(len(v.Init))
		}
	}
}

func (p *parser) initialiser(v *Var, width, depth int) {
	if depth > maxDepth {
		p.failf(p.tok.line, "initialiser nested too deeply")
	}
	if p.accept("{") {
		for !p.accept("}") {
			p.initialiser(v, width, depth+1)
			if !p.accept(",") && !p.is("}") {
				p.failf(p.tok.line, "expected , or } in an initialiser, found %s", p.tok)
			}
		}
		return
	}
	var bits uint64
	neg := p.accept("-")
	switch t := p.tok; t.kind {
	case tInt:
		bits = t.bits
		if neg {
			bits = -bits
		}
	case tF32:
		bits = t.bits
	case tF64:
		bits = t.bits
		if neg {
			bits ^= 1 << 63
		}
		if v.Type == "f32" {
			bits = uint64(math.Float32bits(float32(math.Float64frombits(bits))))
		}
	case tIdent:
		p.reference(v, width)
		return
	default:
		p.failf(t.line, "unknown initialiser %s", t)
	}
	p.advance()
	var b [8]byte
	binary.LittleEndian.PutUint64(b[:], bits)
	v.Init = append(v.Init, b[:min(width, 8)]...)
}

// reference reads sym, sym+4 or generic(sym)+4.
func (p *parser) reference(v *Var, width int) {
	name := p.name()
	if name == "generic" && p.accept("(") {
		name = p.name()
		p.expect(")")
	}
	r := Ref{Offset: int64(len(v.Init)), Name: name}
	if p.accept("+") {
		r.Add = p.int()
	}
	if width != 8 {
		p.failf(p.tok.line, "the address of %s needs 8 bytes", name)
	}
	v.Refs = append(v.Refs, r)
	v.Init = append(v.Init, make([]byte, 8)...)
}

func (p *parser) skipParens() {
	p.expect("(")
	for depth := 1; depth > 0; {
		switch {
		case p.is("("):
			depth++
		case p.is(")"):
			depth--
		case p.tok.kind == tEOF:
			p.failf(p.tok.line, "unbalanced parentheses")
		}
		p.advance()
	}
}

// function reads an entry or function from its keyword on.
func (p *parser) function(extern bool) {
	f := &Func{Entry: p.tok.text == "entry", Line: p.tok.line}
	p.advance()
	for p.tok.kind == tDot { // .attribute, .noreturn before the name
		if p.advance().text == "attribute" {
			p.skipParens()
		}
	}
	if p.is("(") {
		f.Returns = p.params()
	}
	f.Name = p.name()
	if p.is("(") {
		f.Params = p.params()
	}
	p.attributes(f)
	p.vars[f.Name] = true
	if p.accept(";") {
		p.mod.Funcs = append(p.mod.Funcs, f)
		return
	}
	if extern {
		p.failf(f.Line, "extern function %s has a body", f.Name)
	}
	f.HasBody = true
	p.fn, p.fixes, p.src = f, nil, Src{}
	p.scope = p.newScope(nil)
	for _, group := range [][]Var{f.Returns, f.Params} {
		for _, v := range group {
			p.scope.vars[v.Name] = v.Name
		}
	}
	p.body()
	p.resolve()
	p.mod.Funcs = append(p.mod.Funcs, f)
	p.fn, p.scope = nil, nil
}

func (p *parser) params() []Var {
	p.expect("(")
	var out []Var
	for !p.accept(")") {
		if p.tok.kind == tDot && p.tok.text == "reg" {
			p.failf(p.tok.line, "register parameters are not known")
		}
		if p.is(".") { // variadic ...
			p.advance()
			continue
		}
		out = append(out, p.variables(false)...)
		p.accept(",")
	}
	return out
}

// attributes reads the performance directives after a parameter list.
func (p *parser) attributes(f *Func) {
	for p.tok.kind == tDot {
		line := p.tok.line
		switch d := p.advance().text; d {
		case "maxntid":
			f.MaxThreads = p.product()
		case "reqntid":
			f.ReqThreads = p.product()
		case "minnctapersm", "maxnreg", "maxnctapersm", "maxclusterrank":
			n := p.small(1 << 20)
			if d == "minnctapersm" {
				f.MinBlocks = n
			}
		case "reqnctapercluster":
			f.Cluster = [3]int{1, 1, 1}
			for i := range f.Cluster {
				f.Cluster[i] = p.small(1 << 20)
				if !p.accept(",") {
					break
				}
			}
		case "explicitcluster", "blocksareclusters", "noreturn":
		case "pragma":
			p.pragma()
		default:
			p.failf(line, "unknown directive .%s of %s", d, f.Name)
		}
	}
}

func (p *parser) product() int {
	n := 1
	for {
		n *= p.small(1 << 16)
		if n > 1<<20 {
			p.failf(p.tok.line, "block of more than %d threads", 1<<20)
		}
		if !p.accept(",") {
			return n
		}
	}
}

func (p *parser) pragma() {
	for p.tok.kind == tString {
		p.advance()
		p.accept(",")
	}
	p.expect(";")
}

func (p *parser) newScope(up *scope) *scope {
	return &scope{up: up, regs: map[string]int{}, vars: map[string]string{}, labels: map[string]int{}, tables: map[string][]string{}}
}

// registers reads ".reg .b32 %r<114>, a;" from the type on.
func (p *parser) registers() {
	if p.tok.kind != tDot {
		p.failf(p.tok.line, "expected a register type, found %s", p.tok)
	}
	line := p.tok.line
	typ := Type(p.advance().text)
	if typ.Bits() == 0 {
		p.failf(line, "unknown register type .%s", typ)
	}
	for {
		name := p.name()
		if p.accept("<") {
			n := p.small(1 << 20)
			p.expect(">")
			if len(p.fn.Regs)+n > 1<<20 {
				p.failf(line, "more than %d registers", 1<<20)
			}
			for i := range n {
				p.register(fmt.Sprint(name, i), typ)
			}
		} else {
			p.register(name, typ)
		}
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
}

func (p *parser) register(name string, typ Type) {
	p.scope.regs[name] = len(p.fn.Regs)
	p.fn.Regs = append(p.fn.Regs, Reg{Name: name, Type: typ})
}
