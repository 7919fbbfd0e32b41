package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"regexp"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/font"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Colours of a chart are places that the page's style fills, one way in light and another in dark: near-black numbers that nothing
// else draws with.
var (
	foreground = color.RGBA{1, 1, 1, 255}
	faint      = color.RGBA{2, 2, 2, 255}
)

// seriesMost is how many series have colours of their own; the page's style has as many.
const seriesMost = 6

func series(i int) color.Color { return color.RGBA{3, 3, uint8(3 + i%seriesMost), 255} }

// styled are the places and the style's names of them.
var styled = func() *strings.Replacer {
	pairs := []string{"#010101", "var(--fg)", "#020202", "var(--grid)"}
	for i := range seriesMost {
		pairs = append(pairs, fmt.Sprintf("#0303%02x", 3+i), fmt.Sprintf("var(--s%d)", i), fmt.Sprintf("#0303%02X", 3+i), fmt.Sprintf("var(--s%d)", i))
	}
	return strings.NewReplacer(pairs...)
}()

// newPlot is a plot in the page's colours and letters.
func newPlot(x, y string) *plot.Plot {
	p := plot.New()
	p.BackgroundColor = color.Transparent
	p.X.Label.Text, p.Y.Label.Text = x, y
	for _, a := range []*plot.Axis{&p.X, &p.Y} {
		a.Color, a.Label.TextStyle.Color, a.Tick.Color, a.Tick.Label.Color = foreground, foreground, foreground, foreground
		a.Label.TextStyle.Font, a.Tick.Label.Font = letters(10), letters(9)
	}
	grid := plotter.NewGrid()
	grid.Horizontal.Color, grid.Vertical.Color = faint, faint
	p.Add(grid)
	return p
}

func letters(points float64) font.Font {
	return font.Font{Typeface: "Liberation", Variant: "Sans", Size: vg.Points(points)}
}

var (
	svgOpening = regexp.MustCompile(`(?s)^.*?<svg[^>]*?width="([0-9.]+)pt" height="([0-9.]+)pt"[^>]*>`)
	svgFont    = regexp.MustCompile(`font-family:[^;"]*`)
)

// inline draws a plot as SVG for the middle of a page: it scales with its column and has a description for those who do not see it.
func inline(p *plot.Plot, width, height vg.Length, description string) (template.HTML, error) {
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	return embed(c, fmt.Sprintf(`role="img" aria-label="%s"`, template.HTMLEscapeString(description)))
}

// legend is the mark of a series beside its name.
func legend(name string, mark plot.Thumbnailer) (swatch, error) {
	c := vgsvg.New(vg.Points(24), vg.Points(9))
	d := draw.New(c)
	mark.Thumbnail(&d)
	svg, err := embed(c, `aria-hidden="true"`)
	return swatch{svg, name}, err
}

// embed is a canvas as an element of a page.
func embed(c *vgsvg.Canvas, attributes string) (template.HTML, error) {
	var b bytes.Buffer
	if _, err := c.WriteTo(&b); err != nil {
		return "", fmt.Errorf("draw %s: %w", attributes, err)
	}
	text := b.String()
	m := svgOpening.FindStringSubmatch(text)
	if m == nil {
		return "", fmt.Errorf("BUG: report: no SVG element in %.200q", text)
	}
	text = fmt.Sprintf(`<svg %s viewBox="0 0 %s %s" preserveAspectRatio="xMidYMid meet">`, attributes, m[1], m[2]) + text[len(m[0]):]
	text = svgFont.ReplaceAllString(text, "font-family:inherit")
	return template.HTML(styled.Replace(text)), nil //nolint:gosec // made here, its words escaped by the canvas
}
