package picture

import (
	"bytes"
	"fmt"
	"image/png"
	"testing"

	"github.com/google/go-cmp/cmp"
	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/vg"
)

// TestMargin: nothing is drawn at the border, where a title was cut off once.
func TestMargin(t *testing.T) {
	p := New("A title with a g below and an À above", "x", "y")
	line, err := Line(1, plotter.XYs{{X: 0, Y: 0}, {X: 1, Y: 1}})
	if err != nil {
		t.Fatal(err)
	}
	p.Add(line)
	for _, panels := range [][]*plot.Plot{{p}, {p, p, p}} {
		var b bytes.Buffer
		if err := Write(&b, panels, min(2, len(panels)), 4*vg.Inch, 3*vg.Inch, "png"); err != nil {
			t.Fatal(err)
		}
		img, err := png.Decode(&b)
		if err != nil {
			t.Fatal(err)
		}
		size := img.Bounds().Size()
		white := func(x, y int) bool { r, g, b, _ := img.At(x, y).RGBA(); return r&g&b == 0xffff }
		for x := range size.X {
			if !white(x, 2) || !white(x, size.Y-3) {
				t.Fatalf("%d panels: something is drawn at the upper or lower border, column %d", len(panels), x)
			}
		}
		for y := range size.Y {
			if !white(2, y) || !white(size.X-3, y) {
				t.Fatalf("%d panels: something is drawn at the left or right border, row %d", len(panels), y)
			}
		}
	}
	if err := Write(&bytes.Buffer{}, nil, 1, vg.Inch, vg.Inch, "png"); err == nil {
		t.Error("no panel gives no error")
	}
	if err := Write(&bytes.Buffer{}, []*plot.Plot{p}, 1, vg.Inch, vg.Inch, "bmp"); err == nil {
		t.Error("an unknown format gives no error")
	}
}

func TestPowers(t *testing.T) {
	for _, c := range []struct {
		low, high float64
		want      []string
	}{
		{0, 8, nil}, {1, 8, []string{"1", "2", "4", "8"}}, {100, 600, []string{"128", "256", "512"}}, {0.4, 1.5, []string{"0.5", "1"}},
	} {
		var got []string
		for _, tick := range (Powers{func(x int) string { return fmt.Sprint(x) }}).Ticks(c.low, c.high) {
			got = append(got, tick.Label)
		}
		if diff := cmp.Diff(c.want, got); diff != "" {
			t.Errorf("%g to %g (-want +got):\n%s", c.low, c.high, diff)
		}
	}
}
