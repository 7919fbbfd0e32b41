// Package picture is how the project's pictures look: one palette, legends whose lines do not touch, a margin, powers of two on axes.
package picture

import (
	"fmt"
	"image/color"
	"io"
	"math"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// colours are told apart by people who see fewer of them (Okabe and Ito), and on white.
var colours = []color.Color{color.RGBA{0, 114, 178, 255}, color.RGBA{213, 94, 0, 255}, color.RGBA{0, 158, 115, 255}, color.RGBA{204, 121, 167, 255},
	color.RGBA{86, 180, 233, 255}, color.RGBA{230, 159, 0, 255}, color.RGBA{90, 90, 90, 255},
	color.RGBA{140, 86, 75, 255}, color.RGBA{120, 94, 240, 255}, color.RGBA{0, 60, 60, 255}}

// Colour is that of series i.
func Colour(i int) color.Color { return colours[i%len(colours)] }

// New is a plot with a grid.
func New(title, x, y string) *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = title, x, y
	p.Title.Padding = vg.Points(8)
	p.Legend.Padding = vg.Points(3)
	p.Add(plotter.NewGrid())
	return p
}

// Line is a line of series i.
func Line(i int, points plotter.XYs, dashes ...vg.Length) (*plotter.Line, error) {
	line, err := plotter.NewLine(points)
	if err != nil {
		return nil, err
	}
	line.Color, line.Width, line.Dashes = Colour(i), vg.Points(1.5), dashes
	return line, nil
}

// Dots are points of series i.
func Dots(i int, points plotter.XYs) (*plotter.Scatter, error) {
	dots, err := plotter.NewScatter(points)
	if err != nil {
		return nil, err
	}
	dots.Color, dots.Shape, dots.Radius = Colour(i), draw.CircleGlyph{}, vg.Points(2.5)
	return dots, nil
}

const margin = 8 // points

// Write draws panels in rows of so many columns, each of width and height, as png or svg. A panel may be nil at the end.
func Write(w io.Writer, panels []*plot.Plot, columns int, width, height vg.Length, format string) error {
	rows := (len(panels) + columns - 1) / columns
	if rows == 0 {
		return fmt.Errorf("picture: nothing to draw")
	}
	canvas, err := draw.NewFormattedCanvas(vg.Length(columns)*width, vg.Length(rows)*height, format)
	if err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	grid := make([][]*plot.Plot, rows)
	for i := range grid {
		grid[i] = make([]*plot.Plot, columns)
		copy(grid[i], panels[i*columns:min((i+1)*columns, len(panels))])
	}
	tiles := draw.Tiles{Rows: rows, Cols: columns, PadX: 2 * margin, PadY: 2 * margin, PadTop: margin, PadBottom: margin, PadLeft: margin, PadRight: 2 * margin}
	canvases := plot.Align(grid, tiles, draw.New(canvas))
	for i, row := range grid {
		for j, p := range row {
			if p != nil {
				p.Draw(canvases[i][j])
			}
		}
	}
	if _, err = canvas.WriteTo(w); err != nil {
		return fmt.Errorf("picture: %w", err)
	}
	return nil
}

// Powers marks the powers of two of a logarithmic axis, named by Label.
type Powers struct{ Label func(int) string }

// Ticks are the powers of two inside the axis.
func (p Powers) Ticks(low, high float64) []plot.Tick {
	if low <= 0 {
		return nil // no power of two is the first
	}
	var out []plot.Tick
	for x := math.Exp2(math.Ceil(math.Log2(low) - 1e-9)); x <= high*(1+1e-9); x *= 2 {
		label := fmt.Sprint(x)
		if p.Label != nil && x >= 1 {
			label = p.Label(int(x))
		}
		out = append(out, plot.Tick{Value: x, Label: label})
	}
	return out
}
