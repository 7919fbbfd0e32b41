package quality

import (
	"fmt"
	"io"
	"slices"
	"sort"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/kvloom/kvloom/internal/picture"
)

// pictured are the rows of one panel: those of the first page size and rule, at one budget, that have a stored form.
func pictured(rows []Row, budget int) []Row {
	var out []Row
	for _, b := range blocks(rows) {
		if b.page != rows[0].PageSize || b.combine != rows[0].Combine || b.budget != budget {
			continue
		}
		for _, r := range b.rows {
			if r.Read > 0 {
				out = append(out, r)
			}
		}
	}
	return out
}

// budgets are those of the rows, ascending.
func budgets(rows []Row) []int {
	var out []int
	for _, r := range rows {
		if !slices.Contains(out, r.Budget) {
			out = append(out, r.Budget)
		}
	}
	slices.Sort(out)
	return out
}

func newPlot(title string) *plot.Plot {
	p := picture.New(title, "bytes a page and KV head in a step", "recall of the exact-LSE pages, %")
	p.X.Scale = plot.LogScale{}
	p.X.Tick.Marker = picture.Powers{}
	p.Legend.Top, p.Legend.Left = false, false
	return p
}

// Recall draws recall against bytes at the smallest budget of the rows, one line for each kind of page score, in the first page
// size and combine rule. Format is png or svg.
func Recall(w io.Writer, rows []Row, format string) error {
	if len(rows) == 0 {
		return fmt.Errorf("picture: no rows to draw")
	}
	budget := budgets(rows)[0]
	p := newPlot(fmt.Sprintf("Recall against bytes, pages of %d, budget %d tokens", rows[0].PageSize, budget))
	kinds := map[string][]Row{}
	var order []string
	for _, r := range pictured(rows, budget) {
		if r.Rerank > 1 || r.Scan != "" {
			continue // the front has them
		}
		kind := r.kind()
		if kinds[kind] == nil {
			order = append(order, kind)
		}
		kinds[kind] = append(kinds[kind], r)
	}
	for i, kind := range order {
		if err := series(p, kind, i, kinds[kind]); err != nil {
			return err
		}
	}
	return write(w, p, format)
}

// kind is what a line joins.
func (s Setting) kind() string {
	switch {
	case s.Scorer != PageLocal:
		return string(s.Scorer)
	case strings.ContainsAny(s.Form, "pg"):
		return "page_local, several pages"
	case s.Weights != "" && strings.Contains(s.Form, "c4"):
		return "page_local, query-weighted, small"
	case s.Weights != "":
		return "page_local, query-weighted"
	case s.Form != "":
		return "page_local, small"
	}
	return fmt.Sprintf("page_local i%d", s.Bits)
}

// Pareto draws at the smallest budget what no other score beats in bytes read, the keys of a rerank included, and recall: one front of all
// rows, one of those without a rerank, and the plain page-local summaries beside them. Format is png or svg.
func Pareto(w io.Writer, rows []Row, format string) error {
	if len(rows) == 0 {
		return fmt.Errorf("picture: no rows to draw")
	}
	budget := budgets(rows)[0]
	p := newPlot(fmt.Sprintf("Pareto front of the page scores, a rerank's keys among the bytes; pages of %d, budget %d tokens", rows[0].PageSize, budget))
	all := pictured(rows, budget)
	var plain, single []Row
	for _, r := range all {
		if r.Rerank <= 1 {
			single = append(single, r)
		}
		if r.Rerank <= 1 && r.Scan == "" && r.Scorer == PageLocal && r.Form == "" {
			plain = append(plain, r)
		}
	}
	front := Front(all)
	for i, line := range []struct {
		name string
		rows []Row
	}{{"all", front}, {"without a rerank", Front(single)}, {"page_local, plain", plain}} {
		if err := series(p, line.name, i, line.rows); err != nil {
			return err
		}
	}
	if err := names(p, front, 1); err != nil {
		return err
	}
	if err := names(p, plain, -1); err != nil {
		return err
	}
	return write(w, p, format)
}

// names writes rows' names above (side 1) or below their points, leaving out those that would lie on one another.
func names(p *plot.Plot, rows []Row, side float64) error {
	labels := plotter.XYLabels{}
	var last Row
	for _, r := range rows {
		if len(labels.Labels) > 0 && r.Recall < last.Recall+0.02 && r.Read < 1.6*last.Read {
			continue
		}
		last = r
		labels.XYs = append(labels.XYs, plotter.XY{X: r.Read, Y: 100 * r.Recall})
		labels.Labels = append(labels.Labels, strings.TrimPrefix(r.Name(), "page_local "))
	}
	if len(labels.Labels) == 0 {
		return nil
	}
	text, err := plotter.NewLabels(labels)
	if err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	text.Offset = vg.Point{X: vg.Points(4), Y: vg.Points(-12)}
	if side > 0 {
		text.Offset = vg.Point{X: vg.Points(-30), Y: vg.Points(5)}
	}
	p.Add(text)
	return nil
}

// Front keeps the rows that no other row beats in bytes read and recall, by bytes.
func Front(rows []Row) []Row {
	sorted := slices.Clone(rows)
	sort.SliceStable(sorted, func(i, j int) bool {
		a, b := sorted[i], sorted[j]
		return a.Read < b.Read || a.Read == b.Read && a.Recall > b.Recall
	})
	var front []Row
	for _, r := range sorted {
		if len(front) == 0 || r.Recall > front[len(front)-1].Recall {
			front = append(front, r)
		}
	}
	return front
}

// series adds points joined by a line, by bytes.
func series(p *plot.Plot, name string, i int, rows []Row) error {
	if len(rows) == 0 {
		return nil
	}
	points := plotter.XYs{}
	for _, r := range rows {
		points = append(points, plotter.XY{X: r.Read, Y: 100 * r.Recall})
	}
	sort.Slice(points, func(i, j int) bool { return points[i].X < points[j].X })
	line, err := picture.Line(i, points)
	if err != nil {
		return fmt.Errorf("picture of %s: %w", name, err)
	}
	dots, err := picture.Dots(i, points)
	if err != nil {
		return fmt.Errorf("picture of %s: %w", name, err)
	}
	p.Add(line, dots)
	p.Legend.Add(name, line, dots)
	return nil
}

func write(w io.Writer, p *plot.Plot, format string) error {
	p.X.Min, p.X.Max = p.X.Min/1.2, p.X.Max*1.6 // room for the names
	p.Y.Min, p.Y.Max = p.Y.Min-4, p.Y.Max+3
	p.Legend.XOffs = vg.Points(-8)
	return picture.Write(w, []*plot.Plot{p}, 1, 8*vg.Inch, 5*vg.Inch, format)
}
