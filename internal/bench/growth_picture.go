package bench

import (
	"fmt"
	"io"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
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
	const columns = 2
	rows := (len(panels) + columns - 1) / columns
	canvas, err := draw.NewFormattedCanvas(14*vg.Inch, vg.Length(rows)*5*vg.Inch, format)
	if err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
		copy(grid[i], panels[i*columns:min((i+1)*columns, len(panels))])
	}
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: vg.Millimeter * 6, PadY: vg.Millimeter * 6, PadTop: 6, PadBottom: 6, PadLeft: 6, PadRight: 12}
	canvases := plot.Align(grid, tiles, draw.New(canvas))
	for i, row := range grid {
		for j, p := range row {
			if p != nil {
				p.Draw(canvases[i][j])
			}
		}
	}
	_, err = canvas.WriteTo(w)
	return err
}

// panel is one axis; any is false where nothing of it was measured.
func (a Axis) panel(l lookup) (p *plot.Plot, any bool, err error) {
	p = plot.New()
	p.Title.Text = a.Title
	p.X.Label.Text, p.Y.Label.Text = a.Name+", "+a.Unit, "microseconds"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = doublings{a.Name != "batch"}, plot.LogTicks{Prec: -1}
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	for _, family := range a.Families {
		colour := plotutil.Color(max(slices.Index(decoding, family), slices.Index([]string{DropObserveScore, DropChain}, family))) // one a family, in all panels
		xs, times, _ := a.series(l, family)
		if len(xs) == 0 {
			continue
		}
		any = true
		points := plotter.XYs{}
		for k := range xs {
			points = append(points, plotter.XY{X: xs[k], Y: times[k]})
		}
		dots, err := plotter.NewScatter(points)
		if err != nil {
			return nil, false, err
		}
		dots.Color, dots.Shape, dots.Radius = colour, draw.CircleGlyph{}, vg.Points(2.5)
		p.Add(dots)
		line, err := plotter.NewLine(curve(xs, times))
		if err != nil {
			return nil, false, err
		}
		line.Color, line.Width = colour, vg.Points(1.2)
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

// doublings marks powers of two, as tokens or as plain numbers.
type doublings struct{ tokens bool }

// Ticks are the powers of two inside the axis.
func (d doublings) Ticks(low, high float64) []plot.Tick {
	var out []plot.Tick
	if low <= 0 {
		return nil // no power of two is the first
	}
	for x := math.Exp2(math.Ceil(math.Log2(low) - 1e-9)); x <= high*(1+1e-9); x *= 2 {
		label := fmt.Sprint(x)
		if d.tokens {
			label = tokens(int(x))
		}
		out = append(out, plot.Tick{Value: x, Label: label})
	}
	return out
}
