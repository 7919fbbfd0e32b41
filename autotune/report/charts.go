package report

import (
	"fmt"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
)

// chartWidth and chartHeight make letters that a phone's column of 360 pixels still shows at 8 or more.
const (
	chartWidth  = 340
	chartHeight = 240
)

// familySeries is the place of a family's colour, the same in all charts.
func familySeries(family string) int {
	return max(slices.Index(measure.Works, measure.Work(family)), 0)
}

func charts(rows []leader, t Tuning) (list []chart, err error) {
	for _, c := range []struct {
		title, caption string
		make           func() (*plot.Plot, []swatch, error)
	}{
		{"Roofline", "Each point is a chosen kernel: flops of its model over the time, against flops a byte. The line is the board's bandwidth by its data sheet.",
			func() (*plot.Plot, []swatch, error) { return roofline(rows) }},
		{"Convergence", "How far the best time so far was above the final best, mean of a family's workloads, in the order in which trials were measured.",
			func() (*plot.Plot, []swatch, error) { return convergence(t.Trials) }},
	} {
		p, marks, err := c.make()
		if err != nil {
			return nil, fmt.Errorf("%s: %w", c.title, err)
		}
		if p == nil {
			continue
		}
		svg, err := inline(p, vg.Points(chartWidth), vg.Points(chartHeight), c.title+". "+c.caption)
		if err != nil {
			return nil, err
		}
		list = append(list, chart{c.title, c.caption, svg, marks})
	}
	return list, nil
}

// drawn is a series of a chart.
type drawn interface {
	plot.Plotter
	plot.Thumbnailer
}

// marker adds series to a plot and their marks to its legend.
func marker(p *plot.Plot, marks *[]swatch) func(string, drawn) error {
	return func(name string, d drawn) error {
		p.Add(d)
		mark, err := legend(name, d)
		*marks = append(*marks, mark)
		return err
	}
}

// roofline is nil where no point has flops.
func roofline(rows []leader) (p *plot.Plot, marks []swatch, err error) {
	p = newPlot("flops a byte", "Tflop/s")
	add := marker(p, &marks)
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = plot.LogTicks{Prec: -1}, plot.LogTicks{Prec: -1}
	byFamily := map[string]plotter.XYs{}
	var families []string
	lo, hi, roof := math.Inf(1), 0.0, 0.0
	for _, l := range rows {
		if l.Flops == 0 || l.Bytes == 0 {
			continue
		}
		if byFamily[l.Family] == nil {
			families = append(families, l.Family)
		}
		x := float64(l.Flops) / float64(l.Bytes)
		byFamily[l.Family] = append(byFamily[l.Family], plotter.XY{X: x, Y: float64(l.Flops) / l.MedianUS / 1e6})
		lo, hi, roof = min(lo, x), max(hi, x), max(roof, l.RoofTBPerS)
	}
	if len(families) == 0 {
		return nil, nil, nil
	}
	lo, hi = lo/2, hi*2
	if roof > 0 {
		line, err := plotter.NewLine(plotter.XYs{{X: lo, Y: lo * roof}, {X: hi, Y: hi * roof}})
		if err != nil {
			return nil, nil, err
		}
		line.Color, line.Width = foreground, vg.Points(1.2)
		if err := add(fmt.Sprintf("%.1f TB/s", roof), line); err != nil {
			return nil, nil, err
		}
	}
	for _, f := range families {
		points, err := plotter.NewScatter(byFamily[f])
		if err != nil {
			return nil, nil, err
		}
		points.GlyphStyle = draw.GlyphStyle{Color: series(familySeries(f)), Radius: vg.Points(3), Shape: plotter.DefaultGlyphStyle.Shape}
		points.Shape = []draw.GlyphDrawer{draw.CircleGlyph{}, draw.TriangleGlyph{}, draw.SquareGlyph{}, draw.CrossGlyph{}, draw.PyramidGlyph{}}[familySeries(f)%5]
		if err := add(f, points); err != nil {
			return nil, nil, err
		}
	}
	return p, marks, nil
}

// convergence is nil where nothing was measured.
func convergence(trials []store.Trial) (p *plot.Plot, marks []swatch, err error) {
	type point struct {
		family         string
		context, batch int
	}
	byPoint := map[point][]store.Trial{}
	for _, t := range trials {
		k := point{t.Family, t.Context, t.Batch}
		byPoint[k] = append(byPoint[k], t)
	}
	curves := map[string][][]float64{}
	for k, ts := range byPoint {
		slices.SortStableFunc(ts, func(a, b store.Trial) int { return a.Started.Compare(b.Started) })
		var so []float64
		best := math.Inf(1)
		for _, t := range ts {
			if t.Class == store.OK {
				best = min(best, t.MedianUS)
			}
			so = append(so, best)
		}
		if math.IsInf(best, 1) {
			continue
		}
		for i := range so {
			so[i] = 100 * (so[i]/best - 1)
		}
		curves[k.family] = append(curves[k.family], so)
	}
	p = newPlot("trials of a workload", "best so far above the final best, %")
	add := marker(p, &marks)
	for _, w := range measure.Works {
		xy := meanCurve(curves[string(w)])
		if len(xy) == 0 {
			continue
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return nil, nil, err
		}
		line.Color, line.Width, line.StepStyle = series(familySeries(string(w))), vg.Points(1.6), plotter.PostStep
		line.Dashes = [][]vg.Length{nil, {vg.Points(6), vg.Points(2)}, {vg.Points(2), vg.Points(2)}, {vg.Points(8), vg.Points(2), vg.Points(2), vg.Points(2)}, {vg.Points(4), vg.Points(4)}}[familySeries(string(w))%5]
		if err := add(string(w), line); err != nil {
			return nil, nil, err
		}
	}
	if len(marks) == 0 {
		return nil, nil, nil
	}
	p.Y.Min, p.Y.Max = 0, max(p.Y.Max, 1) // below a percent nothing is worth a picture
	p.X.Tick.Marker = plot.TickerFunc(wholeNumbers)
	return p, marks, nil
}

// wholeNumbers are about five ticks.
func wholeNumbers(lo, hi float64) (ticks []plot.Tick) {
	step := max(1, math.Round((hi-lo)/5))
	for x := math.Ceil(lo); x <= hi; x += step {
		ticks = append(ticks, plot.Tick{Value: x, Label: fmt.Sprint(x)})
	}
	return ticks
}

// meanCurve is the geometric mean of the ratios behind curves of percents above the best, each kept at its end when others go on; it
// begins where all have a right trial.
func meanCurve(curves [][]float64) (xy plotter.XYs) {
	longest := 0
	for _, c := range curves {
		longest = max(longest, len(c))
	}
	for i := range longest {
		sum := 0.0
		for _, c := range curves {
			sum += math.Log1p(c[min(i, len(c)-1)] / 100)
		}
		if y := 100 * math.Expm1(sum/float64(len(curves))); !math.IsInf(y, 1) {
			xy = append(xy, plotter.XY{X: float64(i + 1), Y: y})
		}
	}
	return xy
}
