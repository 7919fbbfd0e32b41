package bench

import (
	"fmt"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/kvloom/kvloom/internal/picture"
)

// GrowthPicture draws microseconds against each axis of growth, a panel an axis, both scales logarithmic: points are medians, lines the fits of
// the table. Format is png or svg.
func GrowthPicture(w io.Writer, results []Result, format string, models ...string) error {
	axes, err := GrowthAxes(models...)
	if err != nil {
		return err
	}
	l := newLookup(results)
	var panels []*plot.Plot
	for _, a := range axes {
		p, any, err := a.panel(l)
		if err != nil {
			return fmt.Errorf("picture of %s: %w", a.Title, err)
		}
		if any {
			panels = append(panels, p)
		}
	}
	if len(panels) == 0 {
		return fmt.Errorf("picture: none of the points was measured; kvloom bench --growth measures them")
	}
	return picture.Write(w, panels, 2, 7*vg.Inch, 5*vg.Inch, format)
}

// panel is one axis; any is false where nothing of it was measured.
func (a Axis) panel(l lookup) (p *plot.Plot, any bool, err error) {
	p = picture.New(a.Title, a.Name+", "+a.Unit, "microseconds")
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	marks := picture.Powers{}
	if a.Name != "batch" {
		marks.Label = tokens
	}
	p.X.Tick.Marker, p.Y.Tick.Marker = marks, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	for _, family := range a.Families {
		colour := max(slices.Index(decoding, family), slices.Index([]string{DropObserveScore, DropChain}, family)) // one a family, in all panels
		xs, times, _ := a.series(l, family)
		if len(xs) == 0 {
			continue
		}
		any = true
		points := plotter.XYs{}
		for k := range xs {
			points = append(points, plotter.XY{X: xs[k], Y: times[k]})
		}
		dots, err := picture.Dots(colour, points)
		if err != nil {
			return nil, false, err
		}
		p.Add(dots)
		line, err := picture.Line(colour, curve(xs, times))
		if err != nil {
			return nil, false, err
		}
		p.Add(line)
		p.Legend.Add(family, dots, line)
	}
	p.X.Min, p.X.Max = float64(a.Values[0]), float64(a.Values[len(a.Values)-1]) // also where one point of the axis was measured
	p.Y.Min, p.Y.Max = p.Y.Min/1.3, p.Y.Max*4                                   // the legend is above the lines
	return p, any, nil
}

// curve is the fitted line on logarithmic scales, or the points where there is no fit.
func curve(xs, times []float64) plotter.XYs {
	fit, ok := fitLine(xs, times)
	points := plotter.XYs{}
	if !ok || fit.Intercept+fit.Slope*xs[0] <= 0 {
		for i := range xs {
			points = append(points, plotter.XY{X: xs[i], Y: times[i]})
		}
		return points
	}
	const pieces = 64
	first, last := math.Log(xs[0]), math.Log(xs[len(xs)-1])
	for i := range pieces + 1 {
		x := math.Exp(first + (last-first)*float64(i)/pieces)
		points = append(points, plotter.XY{X: x, Y: fit.Intercept + fit.Slope*x})
	}
	return points
}
