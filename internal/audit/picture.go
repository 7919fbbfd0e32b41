package audit

import (
	"fmt"
	"io"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Picture writes a PNG: for each file the distribution of c* over its queries, as the share of queries whose c* is at least x.
func Picture(w io.Writer, reports []Report) error {
	p := plot.New()
	p.Title.Text = "Cone condition: share of queries with c* of at least x"
	p.X.Label.Text = "c* (0: no cone)"
	p.Y.Label.Text = "share of queries"
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, r := range reports {
		var cs []float64
		for _, q := range r.Queries {
			cs = append(cs, max(q.Lower, 0))
		}
		slices.Sort(cs)
		points := plotter.XYs{}
		for j, c := range cs {
			points = append(points, plotter.XY{X: c, Y: 1 - float64(j)/float64(len(cs))})
		}
		if len(points) == 0 {
			continue
		}
		line, err := plotter.NewLine(points)
		if err != nil {
			return fmt.Errorf("picture of %s: %w", r.File, err)
		}
		line.Color = plotutil.Color(i)
		line.Width = vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(r.File, line)
	}
	png, err := p.WriterTo(8*vg.Inch, 5*vg.Inch, "png")
	if err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	_, err = png.WriteTo(w)
	return err
}
