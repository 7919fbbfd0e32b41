package ptx

import (
	"math"
	"strconv"
	"strings"
)

// tokKind is the kind of a token.
type tokKind uint8

const (
	tEOF    tokKind = iota
	tIdent          // mov, $L__BB0_1, k_param_0
	tReg            // %r1, %tid.x
	tDot            // .global, .shared::cta, .L2::128B: text without the dot
	tInt            // bits
	tF32            // bits
	tF64            // bits
	tString         // text
	tPunct          // one character
)

type token struct {
	kind tokKind
	text string
	bits uint64
	line int
}

// lexer cuts text into tokens.
type lexer struct {
	src  string
	pos  int
	line int
	err  *Error
}

func isIdentStart(c byte) bool {
	return c == '_' || c == '$' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z'
}

func isDigit(c byte) bool { return c >= '0' && c <= '9' }

func isIdent(c byte) bool { return isIdentStart(c) || isDigit(c) }

func (l *lexer) skip() {
	for l.pos < len(l.src) {
		c := l.src[l.pos]
		switch {
		case c == '\n':
			l.line++
			l.pos++
		case c == ' ' || c == '\t' || c == '\r' || c == 0:
			l.pos++
		case strings.HasPrefix(l.src[l.pos:], "//"):
			for l.pos < len(l.src) && l.src[l.pos] != '\n' {
				l.pos++
			}
		case strings.HasPrefix(l.src[l.pos:], "/*"):
			end := strings.Index(l.src[l.pos+2:], "*/")
			if end < 0 {
				end = len(l.src) - l.pos - 4
			}
			body := l.src[l.pos : l.pos+2+max(end, 0)]
			l.line += strings.Count(body, "\n")
			l.pos = min(l.pos+end+4, len(l.src))
		default:
			return
		}
	}
}

// word reads identifier characters from pos.
func (l *lexer) word() string {
	start := l.pos
	for l.pos < len(l.src) && isIdent(l.src[l.pos]) {
		l.pos++
	}
	return l.src[start:l.pos]
}

// scoped reads a word and its ::parts.
func (l *lexer) scoped() string {
	start := l.pos
	l.word()
	for l.pos+2 < len(l.src) && l.src[l.pos] == ':' && l.src[l.pos+1] == ':' && isIdent(l.src[l.pos+2]) {
		l.pos += 2
		l.word()
	}
	return l.src[start:l.pos]
}

func (l *lexer) fail(msg string) token {
	if l.err == nil {
		l.err = &Error{Line: l.line, Msg: msg}
	}
	l.pos = len(l.src)
	return token{kind: tEOF, line: l.line}
}

// next returns the next token.
func (l *lexer) next() token {
	l.skip()
	t := token{line: l.line}
	if l.pos >= len(l.src) {
		return t
	}
	c := l.src[l.pos]
	switch {
	case isIdentStart(c):
		t.kind, t.text = tIdent, l.word()
	case c == '%':
		l.pos++
		if l.pos >= len(l.src) || !isIdent(l.src[l.pos]) {
			t.kind, t.text = tPunct, "%"
			return t
		}
		t.kind, t.text = tReg, "%"+l.word()
		if l.pos+1 < len(l.src) && l.src[l.pos] == '.' && strings.IndexByte("xyzw", l.src[l.pos+1]) >= 0 &&
			(l.pos+2 >= len(l.src) || !isIdent(l.src[l.pos+2])) {
			t.text += l.src[l.pos : l.pos+2]
			l.pos += 2
		}
	case c == '.' && l.pos+1 < len(l.src) && isIdent(l.src[l.pos+1]):
		l.pos++
		t.kind, t.text = tDot, l.scoped()
	case isDigit(c):
		return l.number()
	case c == '"':
		end := strings.IndexByte(l.src[l.pos+1:], '"')
		if end < 0 {
			return l.fail("unterminated string")
		}
		t.kind, t.text = tString, l.src[l.pos+1:l.pos+1+end]
		l.line += strings.Count(t.text, "\n")
		l.pos += end + 2
	default:
		t.kind, t.text = tPunct, string(c)
		l.pos++
	}
	return t
}

// number reads 0fXXXXXXXX, 0dXXXXXXXXXXXXXXXX, decimal floats and integers in bases 2, 8, 10 and 16.
func (l *lexer) number() token {
	t := token{line: l.line, kind: tInt}
	start := l.pos
	if l.src[l.pos] == '0' && l.pos+1 < len(l.src) {
		switch l.src[l.pos+1] {
		case 'f', 'F':
			return l.hexFloat(tF32, 8)
		case 'd', 'D':
			return l.hexFloat(tF64, 16)
		}
	}
	word := l.word()
	if l.pos+1 < len(l.src) && l.src[l.pos] == '.' && isDigit(l.src[l.pos+1]) && !strings.HasPrefix(word, "0x") {
		l.pos++
		l.word()
		if e := l.src[l.pos-1]; (e == 'e' || e == 'E') && l.pos < len(l.src) && (l.src[l.pos] == '-' || l.src[l.pos] == '+') {
			l.pos++
			l.word()
		}
		f, err := strconv.ParseFloat(l.src[start:l.pos], 64)
		if err != nil {
			return l.fail("bad number " + l.src[start:l.pos])
		}
		t.kind, t.bits = tF64, math.Float64bits(f)
		return t
	}
	v, err := strconv.ParseUint(strings.TrimSuffix(word, "U"), 0, 64)
	if err != nil {
		return l.fail("bad number " + word)
	}
	t.bits = v
	t.text = word
	return t
}

func (l *lexer) hexFloat(kind tokKind, digits int) token {
	t := token{line: l.line, kind: kind}
	l.pos += 2
	word := l.word()
	v, err := strconv.ParseUint(word, 16, 64)
	if err != nil || len(word) != digits {
		return l.fail("bad float literal " + word)
	}
	t.bits = v
	return t
}
