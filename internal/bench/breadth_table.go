package bench

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
)

// Weakness is a cell of the breadth table: how much of its tightest limit a family reaches there.
type Weakness struct {
	Family, Cell, Limit string
	Percent             float64
}

// scoreAim is the percent of its tightest limit that no cell of page_score should be under.
const scoreAim = 60

// name is the cell for a person: "page 4 (rank 2)".
func (c cell) name() string {
	if c.beside != "" {
		return fmt.Sprintf("%s %s (%s)", c.axis, c.value, c.beside)
	}
	return c.axis + " " + c.value
}

// letters of the limits in the table.
var letters = map[string]string{MemoryLimit: "m", ExponentialLimit: "e", TensorLimit: "t"}

// share is how much of its tightest limit a line reaches, in percent, and that limit's name.
func (r Result) share() (percent float64, limit string) {
	name, us := r.Tightest()
	return 100 * us / r.MedianUS, name
}

// BreadthTable is one table of every cell: microseconds, and the percent of the tightest of its memory, exponential and tensor limits. Weakest
// first, the cells of each family follow.
func BreadthTable(results []Result) (string, error) {
	l := newLookup(results)
	var rows [][]string
	var cells []Weakness
	seen := map[work]bool{}
	centre, err := middle.spec()
	if err != nil {
		return "", fmt.Errorf("BUG: bench: the middle of the breadth table: %w", err)
	}
	for _, c := range breadthCells() {
		row := []string{c.name()}
		s, err := c.spec()
		if err != nil {
			rows = append(rows, append(row, slices.Repeat([]string{"not built"}, len(decoding))...))
			continue
		}
		j := Job{Spec: s, Workload: s.Workloads[0]}
		for _, family := range decoding {
			r, ok := l.find(family, j)
			if !ok {
				row = append(row, "-")
				continue
			}
			percent, limit := r.share()
			row = append(row, fmt.Sprintf("%s (%.0f %% %s)", us(r.MedianUS), percent, letters[limit]))
			if key := (work{family, r.Shape}); !seen[key] {
				seen[key] = true
				name := c.name()
				if r.Shape == ShapeOf(family, Job{Spec: centre, Workload: centre.Workloads[0]}) {
					name = "the middle"
				}
				cells = append(cells, Weakness{family, name, limit, percent})
			}
		}
		rows = append(rows, row)
	}
	if len(cells) == 0 {
		return "", fmt.Errorf("breadth: none of its cells was measured; kvloom bench --breadth measures them")
	}
	var b strings.Builder
	m := middle
	b.WriteString(wrapped(fmt.Sprintf("%s, microseconds with a cold L2, and the percent of the tightest limit: memory (m), exponentials (e), tensor cores (t). "+
		"The middle is %d KV heads, group %d, head dim %d, page %d, rank %d, %d-bit basis, %s, %s tokens, budget 2048; one axis is varied at a time.",
		l.card, m.kvHeads, m.group, m.dim, m.page, m.rank, m.bits, m.dtype, tokens(m.context)), ""))
	fmt.Fprintf(&b, "\n%s\n", markdown(append([]string{"cell"}, decoding...), rows))
	b.WriteString(weakest(cells))
	return b.String(), nil
}

// weakest names the weakest cells of each family, and every cell of page_score that is under the aim.
func weakest(cells []Weakness) string {
	var b strings.Builder
	for _, family := range decoding {
		var of []Weakness
		for _, w := range cells {
			if w.Family == family {
				of = append(of, w)
			}
		}
		if len(of) == 0 {
			continue
		}
		slices.SortStableFunc(of, func(a, b Weakness) int { return cmp.Compare(a.Percent, b.Percent) })
		var words []string
		for i, w := range of {
			if i >= 3 && (family != score || w.Percent >= scoreAim) {
				break
			}
			words = append(words, fmt.Sprintf("%s %.0f %% of %s", w.Cell, w.Percent, w.Limit))
		}
		b.WriteString(wrapped(fmt.Sprintf("- %s, weakest: %s.", family, strings.Join(words, "; ")), "  "))
	}
	return b.String()
}
