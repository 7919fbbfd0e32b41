package lab

import (
	"bytes"
	"fmt"
	"math"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"

	"github.com/kvloom/kvloom/internal/picture"
	"github.com/kvloom/kvloom/internal/wholefile"
)

// ceilingPercent is where regret is cut off in the picture.
const ceilingPercent = 30

// Picture draws the curves of one space into a file (.svg, .png or .pdf): the median as a line, the 90th percentile dashed.
func Picture(curves []Curve, path string) error {
	title := ""
	if len(curves) > 0 {
		s := curves[0].Space
		title = fmt.Sprintf("%s %s: %d candidates", s.Family, s.Workload, len(s.US))
	}
	p := picture.New(title, "measured, % of the space", "slower than the best, %")
	p.Y.Min, p.Y.Max = 0, ceilingPercent
	p.Legend.Top = true
	for i, c := range curves {
		for _, series := range []struct {
			values []float64
			dashes []vg.Length
		}{{c.Median, nil}, {c.P90, []vg.Length{vg.Points(4), vg.Points(3)}}} {
			var xy plotter.XYs
			for k, v := range series.values {
				xy = append(xy, plotter.XY{X: 100 * float64(k+1) / float64(len(c.Space.US)), Y: math.Min(100*v, ceilingPercent)})
			}
			line, err := picture.Line(i, xy, series.dashes...)
			if err != nil {
				return fmt.Errorf("picture of %s: %w", c.Strategy, err)
			}
			p.Add(line)
			if series.dashes == nil {
				p.Legend.Add(c.Strategy, line)
			}
		}
	}
	var b bytes.Buffer
	if err := picture.Write(&b, []*plot.Plot{p}, 1, 16*vg.Centimeter, 10*vg.Centimeter, strings.TrimPrefix(filepath.Ext(path), ".")); err != nil {
		return err
	}
	if err := wholefile.Write(path, b.Bytes()); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	return nil
}
