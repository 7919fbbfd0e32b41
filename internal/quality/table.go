package quality

import (
	"fmt"
	"io"
	"strings"

	"github.com/kvloom/kvloom/internal/reference"
)

// block is rows that differ in nothing but the score.
type block struct {
	page, budget int
	combine      reference.Combine
	rows         []Row
}

// blocks sorts rows into tables, in the order of their first rows. Scores with a rule of their own (quest's group_max for
// share_average, and sink_and_recent, which has none) stand in the first rule's table.
func blocks(rows []Row) []*block {
	var out []*block
	rule := map[[2]int]reference.Combine{}
	for _, r := range rows {
		size := [2]int{r.PageSize, r.Budget}
		combine := r.Combine
		if first, ok := rule[size]; !ok {
			rule[size] = combine
		} else if r.Scorer == Quest && combine == reference.GroupMax && !has(rows, ExactLSE, combine) || r.Scorer == SinkAndRecent {
			combine = first
		}
		var at *block
		for _, b := range out {
			if b.page == r.PageSize && b.budget == r.Budget && b.combine == combine {
				at = b
			}
		}
		if at == nil {
			at = &block{page: r.PageSize, budget: r.Budget, combine: combine}
			out = append(out, at)
		}
		at.rows = append(at.rows, r)
	}
	return out
}

// has reports whether a score was measured with a rule.
func has(rows []Row, m Method, rule reference.Combine) bool {
	for _, r := range rows {
		if r.Scorer == m && r.Combine == rule {
			return true
		}
	}
	return false
}

func (b *block) title() string {
	return fmt.Sprintf("pages of %d, budget %d tokens (%d pages), %s", b.page, b.budget, slots(b.budget, b.page), b.combine)
}

// cells are a row's numbers as both tables print them.
func cells(r Row) []string {
	bytes, read, rms := "-", "-", "-"
	if r.Bytes > 0 {
		bytes, read = fmt.Sprintf("%.0f", r.Bytes), fmt.Sprintf("%.0f", r.Read)
	}
	if r.RMS != nil {
		rms = fmt.Sprintf("%.3f", *r.RMS)
	}
	name := r.Name()
	if r.Scorer == Quest {
		name = strings.Replace(name, string(Quest), string(Quest)+", "+strings.TrimPrefix(string(r.Combine), "group_"), 1)
	}
	return []string{name, bytes, read, fmt.Sprintf("%.2f", 100*r.Mass), fmt.Sprintf("%.2f", 100*r.Worst), fmt.Sprintf("%.1f", 100*r.Recall), fmt.Sprintf("%.4f", r.Error), rms}
}

var columns = []string{"page score", "bytes", "with rerank", "mass %", "worst %", "recall %", "output error", "rms, nats"}

// Table prints rows in columns for a terminal, a block for each page size, budget and rule.
func Table(w io.Writer, rows []Row) {
	for _, b := range blocks(rows) {
		fmt.Fprintf(w, "\n%s\n", b.title())
		line := func(c []string) {
			fmt.Fprintf(w, "  %-27s %5s %6s %6s %7s %8s %6s %5s\n", c[0], c[1], c[2], c[3], c[4], c[5], c[6], c[7])
		}
		line([]string{columns[0], columns[1], "+keys", columns[3], columns[4], columns[5], "error", "rms"})
		for _, r := range b.rows {
			line(cells(r))
		}
	}
}

// Markdown prints the same tables for a document.
func Markdown(w io.Writer, rows []Row) {
	for _, b := range blocks(rows) {
		title := b.title()
		fmt.Fprintf(w, "\n### %s\n\n| %s |\n|%s\n", strings.ToUpper(title[:1])+title[1:], strings.Join(columns, " | "), strings.Repeat("---|", len(columns)))
		for _, r := range b.rows {
			fmt.Fprintf(w, "| %s |\n", strings.Join(cells(r), " | "))
		}
	}
}
