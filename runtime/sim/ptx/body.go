package ptx

import "fmt"

// body reads a function's statements, from { to the matching }.
func (p *parser) body() {
	p.expect("{")
	p.depth++
	if p.depth > maxDepth {
		p.failf(p.tok.line, "scopes nested too deeply")
	}
	for !p.accept("}") {
		switch p.tok.kind {
		case tEOF:
			p.failf(p.tok.line, "the text ends inside the body")
		case tDot:
			p.directive()
		case tPunct:
			switch p.tok.text {
			case "{":
				p.scope = p.newScope(p.scope)
				p.body()
				p.scope = p.scope.up
			case "@":
				p.instruction()
			case ";":
				p.advance()
			default:
				p.failf(p.tok.line, "expected a statement, found %s", p.tok)
			}
		case tIdent:
			p.labelOrInstruction()
		default:
			p.failf(p.tok.line, "expected a statement, found %s", p.tok)
		}
	}
	p.depth--
}

func (p *parser) directive() {
	line := p.tok.line
	switch p.tok.text {
	case "reg":
		p.advance()
		p.registers()
	case "loc":
		p.loc()
	case "file":
		p.file()
	case "pragma":
		p.advance()
		p.pragma()
	case "local", "shared", "const", "param", "global":
		for _, v := range p.variables(false) {
			unique := v.Name
			if p.vars[unique] || p.declared(unique) {
				unique = fmt.Sprintf("%s#%d", v.Name, len(p.fn.Vars))
			}
			p.scope.vars[v.Name] = unique
			v.Name = unique
			p.fn.Vars = append(p.fn.Vars, v)
		}
	default:
		p.failf(line, "unknown directive .%s", p.tok.text)
	}
}

func (p *parser) declared(name string) bool {
	for _, v := range p.fn.Vars {
		if v.Name == name {
			return true
		}
	}
	for _, v := range p.fn.Params {
		if v.Name == name {
			return true
		}
	}
	return false
}

func (p *parser) labelOrInstruction() {
	// A label is a name and a colon; the lexer never joins "name:" since :: needs two.
	save, tok := *p.lex, p.tok
	name := p.advance()
	if p.accept(":") {
		if p.tok.kind == tDot && p.tok.text == "branchtargets" {
			p.advance()
			p.branchTargets(name.text)
			return
		}
		if p.tok.kind == tDot && p.tok.text == "callprototype" {
			p.failf(name.line, "indirect calls are not known")
		}
		p.scope.labels[name.text] = len(p.fn.Code)
		return
	}
	*p.lex, p.tok = save, tok
	p.instruction()
}

func (p *parser) branchTargets(table string) {
	var names []string
	for {
		names = append(names, p.name())
		if !p.accept(",") {
			break
		}
	}
	p.expect(";")
	p.scope.tables[table] = names
}

func (p *parser) instruction() {
	in := Instr{Line: p.tok.line, Src: p.src, Guard: -1}
	if p.accept("@") {
		in.Negated = p.accept("!")
		line := p.tok.line
		reg, ok := p.lookup(p.name())
		if !ok || p.fn.Regs[reg].Type != "pred" {
			p.failf(line, "the guard is no predicate register")
		}
		in.Guard = reg
	}
	if p.tok.kind != tIdent {
		p.failf(p.tok.line, "expected an instruction, found %s", p.tok)
	}
	in.Op = p.advance().text
	for p.tok.kind == tDot {
		in.Mods = append(in.Mods, p.advance().text)
	}
	if !p.is(";") {
		for {
			in.Args = append(in.Args, p.operand(0))
			if !p.accept(",") {
				break
			}
		}
	}
	p.expect(";")
	index := len(p.fn.Code)
	p.fn.Code = append(p.fn.Code, in)
	for i := range in.Args {
		p.collect(&in.Args[i], in.Line, index)
	}
}

// collect notes names that may be labels. Operand slices keep their backing arrays, so the pointers stay good.
func (p *parser) collect(o *Operand, line, index int) {
	if o.Kind == Symbol {
		p.fixes = append(p.fixes, fix{p.scope, o, line, index})
	}
	for i := range o.Elems {
		p.collect(&o.Elems[i], line, index)
	}
}

func (p *parser) lookup(name string) (int, bool) {
	for s := p.scope; s != nil; s = s.up {
		if r, ok := s.regs[name]; ok {
			return r, true
		}
	}
	return 0, false
}

// operand reads one operand, with an optional |second.
func (p *parser) operand(depth int) Operand {
	if depth > maxDepth {
		p.failf(p.tok.line, "operand nested too deeply")
	}
	a := p.primary(depth)
	if p.accept("|") {
		return Operand{Kind: Pair, Elems: []Operand{a, p.primary(depth)}}
	}
	return a
}

func (p *parser) primary(depth int) Operand {
	t := p.tok
	switch t.kind {
	case tPunct:
		return p.compound(depth)
	case tInt:
		p.advance()
		return Operand{Kind: Integer, Bits: t.bits}
	case tF32:
		p.advance()
		return Operand{Kind: Float32, Bits: t.bits}
	case tF64:
		p.advance()
		return Operand{Kind: Float64, Bits: t.bits}
	case tReg, tIdent:
		p.advance()
		if r, ok := p.lookup(t.text); ok {
			return Operand{Kind: Register, Reg: r}
		}
		if t.text == "_" {
			return Operand{Kind: Sink}
		}
		if t.kind == tReg {
			return Operand{Kind: Special, Name: t.text}
		}
		o := Operand{Kind: Symbol, Name: t.text}
		if p.is("+") || p.is("-") {
			o.Off = p.offset()
		}
		return o
	}
	p.failf(t.line, "expected an operand, found %s", t)
	panic("unreachable")
}

// offset reads +4, -4 or +-4.
func (p *parser) offset() int64 {
	if p.accept("+") {
		return p.int()
	}
	p.expect("-")
	return -p.int()
}

// compound reads operands that start with punctuation.
func (p *parser) compound(depth int) Operand {
	switch {
	case p.accept("-"):
		o := p.primary(depth + 1)
		switch o.Kind {
		case Integer:
			o.Bits = -o.Bits
		case Float32:
			o.Bits ^= 1 << 31
		case Float64:
			o.Bits ^= 1 << 63
		default:
			p.failf(p.tok.line, "minus needs a number")
		}
		return o
	case p.accept("!"):
		o := p.primary(depth + 1)
		if o.Kind != Register {
			p.failf(p.tok.line, "! needs a predicate register")
		}
		o.Neg = true
		return o
	case p.accept("["):
		return p.address(depth)
	case p.accept("{"):
		return Operand{Kind: Vector, Elems: p.list(depth, "}")}
	case p.accept("("):
		return Operand{Kind: List, Elems: p.list(depth, ")")}
	}
	p.failf(p.tok.line, "expected an operand, found %s", p.tok)
	panic("unreachable")
}

func (p *parser) list(depth int, end string) []Operand {
	var out []Operand
	for !p.accept(end) {
		out = append(out, p.operand(depth+1))
		if !p.accept(",") && !p.is(end) {
			p.failf(p.tok.line, "expected , or %s, found %s", end, p.tok)
		}
	}
	return out
}

func (p *parser) address(depth int) Operand {
	o := Operand{Kind: Address, Elems: []Operand{p.operand(depth + 1)}}
	base := &o.Elems[0]
	if base.Kind == Symbol {
		o.Off, base.Off = base.Off, 0
	}
	if p.is("+") || p.is("-") {
		o.Off = p.offset()
	}
	for p.accept(",") {
		o.Elems = append(o.Elems, p.operand(depth+1))
	}
	p.expect("]")
	return o
}

// resolve turns names into labels, local variables or module symbols.
func (p *parser) resolve() {
	for _, f := range p.fixes {
		if !p.resolveOne(f) {
			p.failf(f.line, "unknown name %q", f.op.Name)
		}
	}
	p.fixes = nil
}

func (p *parser) resolveOne(f fix) bool {
	for s := f.scope; s != nil; s = s.up {
		if at, ok := s.labels[f.op.Name]; ok {
			*f.op = Operand{Kind: Label, Name: f.op.Name, Target: at}
			return true
		}
		if unique, ok := s.vars[f.op.Name]; ok {
			f.op.Name = unique
			return true
		}
		if names, ok := s.tables[f.op.Name]; ok {
			return p.resolveTable(f, s, names)
		}
	}
	return p.vars[f.op.Name]
}

func (p *parser) resolveTable(f fix, s *scope, names []string) bool {
	in := &p.fn.Code[f.instr]
	in.Targets = nil
	for _, n := range names {
		found := false
		for t := s; t != nil && !found; t = t.up {
			var at int
			if at, found = t.labels[n]; found {
				in.Targets = append(in.Targets, at)
			}
		}
		if !found {
			return false
		}
	}
	return true
}
