package specs

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Problem is one fault of a spec file, where it stands, and what to do about it. Line and Col count from 1, Col in characters.
type Problem struct {
	File    string `json:"file"`
	Line    int    `json:"line"`
	Col     int    `json:"col"`
	Message string `json:"message"`
}

// String is "file:line:col: message", which editors and CI turn into a link.
func (p Problem) String() string {
	return fmt.Sprintf("%s:%d:%d: %s", p.File, p.Line, p.Col, p.Message)
}

// Errors are all faults of one spec file, in the file's order: a person fixes them in one go.
type Errors []Problem

// Error is one line a problem.
func (e Errors) Error() string {
	lines := make([]string, len(e))
	for i, p := range e {
		lines[i] = p.String()
	}
	return strings.Join(lines, "\n")
}

func (e Errors) sorted() Errors {
	slices.SortStableFunc(e, func(a, b Problem) int {
		return cmp.Or(cmp.Compare(a.Line, b.Line), cmp.Compare(a.Col, b.Col))
	})
	return e
}
