package lab

import (
	"fmt"
	"image/color"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// colours that are told apart by people who see fewer of them (Okabe and Ito).
var colours = []color.Color{color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255}}

// ceilingPercent is where regret is cut off in the picture.
const ceilingPercent = 30

// Picture draws the curves of one space into a file (.svg, .png or .pdf): the median as a line, the 90th percentile dashed.
func Picture(curves []Curve, path string) error {
	p := plot.New()
	if len(curves) > 0 {
		s := curves[0].Space
		p.Title.Text = fmt.Sprintf("%s %s: %d candidates", s.Family, s.Workload, len(s.US))
	}
	p.X.Label.Text = "measured, % of the space"
	p.Y.Label.Text = "slower than the best, %"
	p.Y.Min, p.Y.Max = 0, ceilingPercent
	p.Legend.Top = true
	p.Add(plotter.NewGrid())
	for i, c := range curves {
		for _, series := range []struct {
			values []float64
			dashes []vg.Length
		}{{c.Median, nil}, {c.P90, []vg.Length{vg.Points(4), vg.Points(3)}}} {
			var xy plotter.XYs
			for k, v := range series.values {
				xy = append(xy, plotter.XY{X: 100 * float64(k+1) / float64(len(c.Space.US)), Y: math.Min(100*v, ceilingPercent)})
			}
			line, err := plotter.NewLine(xy)
			if err != nil {
				return fmt.Errorf("picture of %s: %w", c.Strategy, err)
			}
			line.Color, line.Dashes, line.Width = colours[i%len(colours)], series.dashes, vg.Points(1.5)
			p.Add(line)
			if series.dashes == nil {
				p.Legend.Add(c.Strategy, line)
			}
		}
	}
	if err := p.Save(16*vg.Centimeter, 10*vg.Centimeter, path); err != nil {
		return fmt.Errorf("picture %s: %w", path, err)
	}
	return nil
}
