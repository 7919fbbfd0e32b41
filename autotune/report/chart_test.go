package report

import (
	"encoding/xml"
	"strings"
	"testing"

	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// A chart is valid XML whatever it is named, has only colours of the page's style, and no size of its own.
func TestInline(t *testing.T) {
	p := newPlot("x <&>", "y")
	for i := range seriesMost {
		l, err := plotter.NewLine(plotter.XYs{{X: 0, Y: float64(i)}, {X: 1, Y: 2}})
		if err != nil {
			t.Fatal(err)
		}
		l.Color = series(i)
		p.Add(l)
		mark, err := legend("a & b", l)
		if err != nil {
			t.Fatal(err)
		}
		if !strings.Contains(string(mark.SVG), "var(--s") || strings.Contains(string(mark.SVG), "#03") {
			t.Errorf("a mark has colours of its own: %s", mark.SVG)
		}
	}
	got, err := inline(p, vg.Points(300), vg.Points(200), `a "chart" <of> & things`)
	if err != nil {
		t.Fatal(err)
	}
	if err := xml.Unmarshal([]byte(got), new(struct{})); err != nil {
		t.Errorf("not XML: %v", err)
	}
	for _, want := range []string{"var(--fg)", "var(--grid)", "var(--s0)", "var(--s5)", `viewBox="0 0 300`} {
		if !strings.Contains(string(got), want) {
			t.Errorf("no %s in %.3000s", want, got)
		}
	}
	for _, no := range []string{"#01", "#02", "#03", "<?xml", "Liberation", "#FFFFFF"} {
		if strings.Contains(string(got), no) {
			t.Errorf("%s is left in the chart", no)
		}
	}
}
