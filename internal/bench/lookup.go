package bench

import (
	"fmt"
	"strings"
)

// work is what a line measures.
type work struct {
	family string
	shape  Shape
}

// lookup finds the newest line of each work on one card.
type lookup struct {
	card  string
	lines map[work]Result
}

// newLookup takes the card of the newest line, for a table compares what one card did.
func newLookup(results []Result) lookup {
	l := lookup{lines: map[work]Result{}}
	if len(results) == 0 {
		return l
	}
	l.card = results[len(results)-1].Card
	for _, r := range results {
		if r.Card == l.card {
			l.lines[work{r.Family, r.Shape}] = r
		}
	}
	return l
}

func (l lookup) find(family string, j Job) (Result, bool) {
	r, ok := l.lines[work{family, ShapeOf(family, j)}]
	return r, ok
}

// us is a cell: the median with as many digits as it can bear, or a dash where nothing was measured.
func us(x float64) string {
	switch {
	case x == 0:
		return "-"
	case x < 100:
		return fmt.Sprintf("%.2f", x)
	case x < 1000:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.0f", x)
}

// markdown joins rows, the head first.
func markdown(head []string, rows [][]string) string {
	var b strings.Builder
	line := func(cells []string) { b.WriteString("| " + strings.Join(cells, " | ") + " |\n") }
	line(head)
	b.WriteString("|" + strings.Repeat("---|", len(head)) + "\n")
	for _, r := range rows {
		line(r)
	}
	return b.String()
}

// tokens is a number of tokens for a person: 128K, 1M.
func tokens(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1<<10 && n%(1<<10) == 0:
		return fmt.Sprintf("%dK", n>>10)
	}
	return fmt.Sprint(n)
}

// wrapped breaks a paragraph into lines of at most 120 columns; lines after the first are indented.
func wrapped(text, indent string) string {
	var b strings.Builder
	column := 0
	for i, word := range strings.Fields(text) {
		switch {
		case i == 0:
		case column+1+len(word) > 120:
			b.WriteString("\n" + indent)
			column = len(indent)
		default:
			b.WriteByte(' ')
			column++
		}
		b.WriteString(word)
		column += len(word)
	}
	return b.String() + "\n"
}
