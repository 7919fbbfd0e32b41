package ptx

import (
	"fmt"
	"strconv"
	"strings"
)

// Parse reads a whole translation unit.
func Parse(text string) (m *Module, err error) {
	p := &parser{lex: &lexer{src: text, line: 1}, mod: &Module{Files: map[int]string{}}, vars: map[string]bool{}}
	defer func() {
		if r := recover(); r != nil {
			e, ok := r.(*Error)
			if !ok {
				panic(r)
			}
			m, err = nil, e
		}
	}()
	p.advance()
	p.module()
	return p.mod, nil
}

// maxDepth bounds nested braces and operands, so that hostile text cannot exhaust the stack.
const maxDepth = 64

type parser struct {
	lex   *lexer
	tok   token
	mod   *Module
	vars  map[string]bool // module-scope names
	fn    *Func
	src   Src
	scope *scope
	fixes []fix
	depth int
}

// scope is one brace level of a function.
type scope struct {
	up     *scope
	regs   map[string]int
	vars   map[string]string // name here -> unique name
	labels map[string]int
	tables map[string][]string // .branchtargets
}

// fix is a name that could be a label, resolved at the end of the function.
type fix struct {
	scope *scope
	op    *Operand
	line  int
	instr int
}

func (p *parser) failf(line int, format string, args ...any) {
	e := &Error{Line: line, Msg: fmt.Sprintf(format, args...)}
	if p.fn != nil {
		e.Func = p.fn.Name
	}
	panic(e)
}

func (p *parser) advance() token {
	t := p.tok
	p.tok = p.lex.next()
	if p.lex.err != nil {
		panic(p.lex.err)
	}
	return t
}

func (p *parser) is(punct string) bool { return p.tok.kind == tPunct && p.tok.text == punct }

func (p *parser) accept(punct string) bool {
	if p.is(punct) {
		p.advance()
		return true
	}
	return false
}

func (p *parser) expect(punct string) {
	if !p.accept(punct) {
		p.failf(p.tok.line, "expected %q, found %s", punct, p.tok)
	}
}

func (t token) String() string {
	switch t.kind {
	case tEOF:
		return "the end of the text"
	case tDot:
		return strconv.Quote("." + t.text)
	case tInt, tF32, tF64:
		return "a number"
	}
	return strconv.Quote(t.text)
}

func (p *parser) name() string {
	if p.tok.kind != tIdent && p.tok.kind != tReg {
		p.failf(p.tok.line, "expected a name, found %s", p.tok)
	}
	return p.advance().text
}

func (p *parser) int() int64 {
	neg := p.accept("-")
	if p.tok.kind != tInt {
		p.failf(p.tok.line, "expected a whole number, found %s", p.tok)
	}
	v := int64(p.advance().bits)
	if neg {
		v = -v
	}
	return v
}

// small reads a number that sizes a structure.
func (p *parser) small(limit int64) int {
	line := p.tok.line
	v := p.int()
	if v < 0 || v > limit {
		p.failf(line, "the number %d is out of range (at most %d)", v, limit)
	}
	return int(v)
}

func (p *parser) module() {
	for p.tok.kind != tEOF {
		if p.tok.kind != tDot {
			p.failf(p.tok.line, "expected a directive, found %s", p.tok)
		}
		switch p.tok.text {
		case "version":
			p.advance()
			p.version()
		case "target":
			p.advance()
			p.mod.Target = p.name()
			for p.accept(",") {
				p.name()
			}
		case "address_size":
			p.advance()
			line := p.tok.line
			if n := p.int(); n != 64 {
				p.failf(line, "address_size %d: only 64 is known", n)
			}
		case "file":
			p.file()
		case "loc":
			p.loc()
		case "section":
			p.section()
		default:
			p.declaration()
		}
	}
}

func (p *parser) version() {
	// "9.0" is lexed as a decimal float.
	if p.tok.kind != tF64 {
		p.failf(p.tok.line, "expected a version, found %s", p.tok)
	}
	start := strings.LastIndex(p.lex.src[:p.lex.pos], "version")
	line := p.tok.line
	if _, err := fmt.Sscanf(p.lex.src[start:], "version %d.%d", &p.mod.Major, &p.mod.Minor); err != nil {
		p.failf(line, "bad .version")
	}
	p.advance()
}

func (p *parser) file() {
	p.advance()
	n := p.small(1 << 20)
	if p.tok.kind != tString {
		p.failf(p.tok.line, "expected a file name, found %s", p.tok)
	}
	p.mod.Files[n] = p.advance().text
	for p.accept(",") {
		p.int()
	}
}

func (p *parser) loc() {
	p.advance()
	s := Src{File: p.small(1 << 20), Line: p.small(1 << 31)}
	p.small(1 << 31)
	for p.accept(",") {
		switch p.name() {
		case "function_name":
			p.name()
			if p.accept("+") {
				p.int()
			}
		case "inlined_at":
			s.InlinedAt = &Src{File: p.small(1 << 20), Line: p.small(1 << 31)}
			p.small(1 << 31)
		}
	}
	// inlined_at names the place in the caller; chains are not needed to name the line that is at fault.
	p.src = s
}

func (p *parser) section() {
	p.advance()
	p.advance()
	depth := 0
	for {
		switch {
		case p.is("{"):
			depth++
		case p.is("}"):
			depth--
		case p.tok.kind == tEOF:
			p.failf(p.tok.line, "unterminated .section")
		}
		p.advance()
		if depth == 0 {
			return
		}
	}
}

// declaration reads a function or a variable with its linkage.
func (p *parser) declaration() {
	extern := false
	for p.tok.kind == tDot {
		switch p.tok.text {
		case "visible", "weak", "common":
			p.advance()
		case "extern":
			extern = true
			p.advance()
		case "entry", "func":
			p.function(extern)
			return
		default:
			for _, v := range p.variables(extern) {
				p.vars[v.Name] = true
				p.mod.Vars = append(p.mod.Vars, v)
			}
			return
		}
	}
	p.failf(p.tok.line, "expected a declaration, found %s", p.tok)
}
