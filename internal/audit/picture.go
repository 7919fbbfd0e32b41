package audit

import (
	"fmt"
	"io"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/kvloom/kvloom/internal/picture"
)

// Picture writes a PNG: for each file the distribution of c* over its queries, as the share of queries whose c* is at least x.
func Picture(w io.Writer, reports []Report) error {
	p := picture.New("Cone condition: share of queries with c* of at least x", "c* (0: no cone)", "share of queries")
	p.Y.Min, p.Y.Max = 0, 1
	p.Legend.Top = true
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
		line, err := picture.Line(i, points)
		if err != nil {
			return fmt.Errorf("picture of %s: %w", r.File, err)
		}
		p.Add(line)
		p.Legend.Add(strings.TrimSuffix(r.File, ".safetensors"), line)
	}
	p.X.Max *= 1.25 // the legend stands beside the curves
	return picture.Write(w, []*plot.Plot{p}, 1, 8*vg.Inch, 5*vg.Inch, "png")
}
