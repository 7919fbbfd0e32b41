package bench

import (
	"bytes"
	"encoding/xml"
	"image/png"
	"io"
	"math"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/gen/plan"
)

func TestFitLine(t *testing.T) {
	xs := []float64{1, 2, 4, 8, 1024}
	var times []float64
	for _, x := range xs {
		times = append(times, 3+0.25*x)
	}
	f, ok := fitLine(xs, times)
	if !ok || math.Abs(f.Intercept-3) > 1e-9 || math.Abs(f.Slope-0.25) > 1e-12 || f.Worst > 1e-9 || f.N != 5 {
		t.Errorf("points of a line: %+v, %v", f, ok)
	}
	times[4] *= 1.1 // a tenth off where times are large must not move the intercept to nonsense
	if f, _ := fitLine(xs, times); math.Abs(f.Intercept-3) > 0.3 || f.Worst < 0.001 {
		t.Errorf("one point off by a tenth: %+v", f)
	}
	for reason, xs := range map[string][]float64{"too few points": {1, 2}, "one x": {5, 5, 5}} {
		if _, ok := fitLine(xs, ones(len(xs))); ok {
			t.Errorf("%s: fitted", reason)
		}
	}
}

func ones(n int) []float64 {
	list := make([]float64, n)
	for i := range list {
		list[i] = 1
	}
	return list
}

// planned are results that a card would give that takes launch us and then moves bytes at three quarters of 4 TB/s: a table's arithmetic can be
// held against them. Nothing here was measured.
func planned(t *testing.T, preset string, launch float64) []Result {
	t.Helper()
	jobs, err := Preset(preset)
	if err != nil {
		t.Fatal(err)
	}
	l := Limits{ReadTBPerS: 4, ExpPerSec: 4e12, FlopsPerSec: 1e15, LaunchUS: 1}
	var results []Result
	for _, j := range jobs {
		p := plan.New(j.Spec, plan.Targets["sm_90a"])
		for _, family := range j.Families {
			list := ways(p, family)
			w := j.work(p, list[len(list)-1])
			results = append(results, Result{Card: "a card", Family: family, Shape: ShapeOf(family, j), Bytes: w.Bytes, RoofTBPerS: 4, Limits: l.of(w),
				MedianUS: launch + float64(w.Bytes)/3e6})
		}
	}
	return results
}

// Of planned results a batch saves all launches but one, and pages cost nothing.
func TestDropGrowthTable(t *testing.T) {
	table, err := DropGrowthTable(planned(t, DropGrowth, 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| 4K |", "| 1M |", "| 1.00 |", "| 2 mixed | 132K |", "| 16 mixed |"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if strings.Contains(table, "| - |") {
		t.Errorf("a point of the preset is not in the table:\n%s", table)
	}
	alone, err := DropGrowthTable(planned(t, DropGrowth, 2)[:4])
	if err != nil || !strings.Contains(alone, "| - |") {
		t.Errorf("points that nobody measured are no dashes: %v\n%s", err, alone)
	}
}

func TestGrowthTable(t *testing.T) {
	table, err := GrowthTable(planned(t, "growth", 2))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"a card, microseconds", "| 4K |", "| 1M |", "| 64 |", "| 8K |", "### Context: llama-3.1-8b, 32/8 heads, group 4", "### Prompt:"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	// The planned card takes 4/3 of bytes over roof: that is what the fit must say, whatever the model and the axis.
	fits := 0
	for line := range strings.Lines(table) {
		if strings.HasPrefix(line, "| page_score |") && strings.Contains(line, "memory") {
			fits++
			if !strings.Contains(line, "(1.33x)") || !strings.HasPrefix(line, "| page_score | 2.00 |") {
				t.Errorf("fit of page_score: %s", line)
			}
		}
	}
	if fits != 4 { // context of three models, batch of one
		t.Errorf("%d fits of page_score, want 4:\n%s", fits, table)
	}
	one, err := GrowthTable(planned(t, "growth", 2), "glm-4-9b-chat")
	if err != nil || strings.Contains(one, "llama") || !strings.Contains(one, "### Context: glm-4-9b-chat, 32/2 heads, group 16") || !strings.Contains(one, "| 1M | 202.5 |") {
		t.Errorf("of one model: %v\n%s", err, one)
	}
	if _, err := GrowthTable(nil, "no-such-model"); err == nil {
		t.Error("of a model that nobody knows: no error")
	}
	if empty, err := GrowthTable(nil); err != nil || strings.Contains(empty, "fitted") {
		t.Errorf("of nothing: %v\n%s", err, empty)
	}
}

func TestGrowthPicture(t *testing.T) {
	results := planned(t, "growth", 2)
	var b bytes.Buffer
	if err := GrowthPicture(&b, results, "png"); err != nil {
		t.Fatal(err)
	}
	image, err := png.Decode(&b)
	if err != nil || image.Bounds().Dx() < 800 {
		t.Errorf("png: %v", err)
	}
	b.Reset()
	if err := GrowthPicture(&b, results, "svg"); err != nil {
		t.Fatal(err)
	}
	d := xml.NewDecoder(&b)
	for {
		if _, err := d.Token(); err == io.EOF {
			break
		} else if err != nil {
			t.Fatalf("svg: %v", err)
		}
	}
	one := []Result{}
	for _, r := range results { // one point of an axis has neither a fit nor a range
		if r.Family == score && r.Shape.Tokens == growthContext && r.Shape.Batch == 1 {
			one = append(one, r)
		}
	}
	if err := GrowthPicture(&b, one, "png"); err != nil {
		t.Errorf("one point: %v", err)
	}
	if err := GrowthPicture(&b, nil, "png"); err == nil {
		t.Error("a picture of nothing is no error")
	}
}

func TestBreadthTable(t *testing.T) {
	results := planned(t, "breadth", 0)
	for i := range results {
		if results[i].Family == score && results[i].Shape.Rank == 1 {
			results[i].MedianUS *= 3 // a quarter of its limit
		}
	}
	table, err := BreadthTable(results)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"| group 7 |", "| page 4 (rank 2) |", "| rank 16 (page 32) |", "(75 % m)", "page_score, weakest: rank 1 25 % of memory;"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if _, err := BreadthTable(nil); err == nil {
		t.Error("a table of nothing is no error")
	}
}

// A table holds one card's lines: what another card did at some other time must not stand between them.
func TestTablesHoldOneCard(t *testing.T) {
	old := planned(t, "breadth", 100)
	for i := range old {
		old[i].Card = "another card"
	}
	table, err := BreadthTable(append(old, planned(t, "breadth", 0)[:1]...))
	if err != nil || strings.Contains(table, "another card") || !strings.Contains(table, "| group 1 | 400.8 (75 % m) | - | - | - | - | - |") {
		t.Errorf("%v\n%s", err, table)
	}
}
