package quality

import (
	"context"
	"math"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
)

func form(t *testing.T, text string) reference.Form {
	t.Helper()
	f, err := reference.ParseForm(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

// TestWeightedAndReranked: on real keys query weights raise the recall of a small record, an exact rerank raises it further, and
// more candidates never lower it; the bytes are the forms'.
func TestWeightedAndReranked(t *testing.T) {
	o := options()
	o.Methods, o.Ranks, o.Bits, o.Queries, o.Budgets = []Method{PageLocal}, []int{1, 4}, []int{4}, 8, []int{256}
	o.Forms = []reference.Form{form(t, "r1w"), form(t, "r1c4m4w"), form(t, "r2c4s16w")}
	o.Rerank = []float64{1, 2, 3}
	rows := run(t, o, sample)[0].Rows
	recall := func(name string) float64 { return find(t, rows, name, 256, reference.ShareAverage).Recall }
	for _, tt := range []struct{ better, worse string }{
		{"page_local r1w", "page_local r1 i4"}, {"page_local r1 i4 x2", "page_local r1 i4"}, {"page_local r1 i4 x3", "page_local r1 i4 x2"},
		{"page_local r1c4m4w x2", "page_local r4 i4"}, {"page_local r1c4m4w x3", "page_local r1c4m4w x2"},
	} {
		if a, b := recall(tt.better), recall(tt.worse); a < b || a == b && !strings.HasSuffix(tt.worse, "x2") {
			t.Errorf("%s recalls %.4f, %s %.4f", tt.better, a, tt.worse, b)
		}
	}
	small := find(t, rows, "page_local r1c4m4w x2", 256, reference.ShareAverage)
	if want := 32.0 + 32 + 8 + 32 + 2 + 8; small.Bytes != want {
		t.Errorf("the record has %g bytes, want %g", small.Bytes, want)
	}
	if more := small.Read - small.Bytes; math.Abs(more-16*2048/64.0) > 1e-9 { // 16 more candidates, spread over 64 pages
		t.Errorf("the rerank reads %g bytes a page more", more)
	}
}

// TestScans: a scan of a quarter reads less than the whole and loses little on real keys; its candidates are limited.
func TestScans(t *testing.T) {
	o := options()
	o.Methods, o.Ranks, o.Bits, o.Budgets = []Method{PageLocal}, []int{4}, []int{4}, []int{64}
	o.Scans = []Scan{FullScan, TwoLevel, PreviousStep}
	rows := run(t, o, sample)[0].Rows
	full := find(t, rows, "page_local r4 i4", 64, reference.ShareAverage)
	for _, scan := range []string{"two_level", "previous_step"} {
		r := find(t, rows, "page_local r4 i4 "+scan, 64, reference.ShareAverage)
		if r.Bytes >= 0.6*full.Bytes || r.Bytes < 0.2*full.Bytes || r.Recall < full.Recall-0.08 {
			t.Errorf("%s: %.0f bytes and recall %.4f; the full scan %.0f and %.4f", scan, r.Bytes, r.Recall, full.Bytes, full.Recall)
		}
	}
}

// TestCalibration: a file written and read again weighs as the queries themselves do, up to float32.
func TestCalibration(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layer.safetensors")
	c, err := Calibrate([]string{sample})
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Write(path); err != nil {
		t.Fatal(err)
	}
	got, err := ReadCalibration(path)
	if err != nil {
		t.Fatal(err)
	}
	if got.KVHeads != 3 || got.HeadDim != 64 || got.Queries != 16 || reference.RelativeError(got.Moments, c.Moments) > 1e-7 || reference.RelativeError(got.MeanKeys, c.MeanKeys) > 1e-7 {
		t.Errorf("read back %d heads of %d, %d queries", got.KVHeads, got.HeadDim, got.Queries)
	}
	stored, err := tensorfile.Read(path)
	if err != nil {
		t.Fatal(err)
	}
	factors, err := stored.Tensor("factors")
	if err != nil || len(factors.Data) != 3*reference.FactorBytes(64) {
		t.Fatalf("%v, %d bytes of factors", err, len(factors.Data))
	}
	// The packed factor times its transpose is the shrunk moment, its mean diagonal scaled out.
	lower := reference.UnpackFactor(factors.Data[reference.FactorBytes(64):2*reference.FactorBytes(64)], 64)
	moment, square := got.Moments[64*64:2*64*64], make([]float64, 64*64)
	var trace float64
	for i := range 64 {
		trace += moment[i*64+i]
		for j := range 64 {
			for k := range 64 {
				square[i*64+j] += lower[i*64+k] * lower[j*64+k]
			}
		}
	}
	shrunk := make([]float64, 64*64)
	for i, x := range moment {
		shrunk[i] = x / (trace / 64)
		if i%65 == 0 {
			shrunk[i] += reference.Shrinkage
		}
	}
	if off := reference.RelativeError(square, shrunk); off > 0.01 {
		t.Errorf("the factor's square is off by %g", off)
	}
	l, err := load(sample)
	if err != nil {
		t.Fatal(err)
	}
	var want float64 // one element by plain loops
	for g := range 3 {
		for i := range 16 {
			q := l.queries[((3+g)*16+i)*64:]
			want += q[5] * q[40] / 48
		}
	}
	if x := c.Moments[64*64+5*64+40]; math.Abs(x-want) > 1e-12*math.Abs(want)+1e-15 {
		t.Errorf("moment of head 1, element 5, 40: %.15g, by plain loops %.15g", x, want)
	}
	for head, s := range c.Spread() {
		if s < 1 || s > 64 {
			t.Errorf("head %d spreads over %g directions", head, s)
		}
	}
	o := options()
	o.Methods, o.Ranks, o.Bits, o.Budgets, o.Calibrations = []Method{PageLocal}, []int{1}, []int{4}, []int{256}, []string{path}
	o.Forms = []reference.Form{form(t, "r1w")}
	row := find(t, run(t, o, sample)[0].Rows, "page_local r1w (file)", 256, reference.ShareAverage)
	if plain := find(t, run(t, o, sample)[0].Rows, "page_local r1 i4", 256, reference.ShareAverage); row.Recall <= plain.Recall {
		t.Errorf("weighted by a file %.4f, plain %.4f", row.Recall, plain.Recall)
	}
}

// TestControls: the shared bases of another text are measured; with the text itself as the other one the wholly shared basis is the
// one of all its tokens.
func TestControls(t *testing.T) {
	o := options()
	o.Methods, o.Ranks, o.Bits, o.Others = []Method{Hybrid, GlobalHybrid, Shared, GlobalShared, PreRope, PageLocal}, []int{4}, []int{4}, []string{sample}
	o.Budgets = []int{256}
	rows := run(t, o, sample)[0].Rows
	recall := func(name string) float64 { return find(t, rows, name, 256, reference.ShareAverage).Recall }
	if a, b := recall("hybrid r12 i4"), recall("hybrid_global r12 i4"); math.Abs(a-b) > 0.05 {
		t.Errorf("hybrid %.4f, fitted to 16 tokens more %.4f", a, b)
	}
	if a, b := recall("shared r16 i4"), recall("shared_global r16 i4"); math.Abs(a-b) > 0.05 {
		t.Errorf("shared %.4f, fitted to 16 tokens more %.4f", a, b)
	}
	if a, b := recall("pre_rope r4 i4"), recall("page_local r4 i4"); math.Abs(a-b) > 0.05 {
		t.Errorf("before RoPE %.4f, after %.4f", a, b)
	}
}

func TestAidFaults(t *testing.T) {
	for _, tt := range []struct {
		name, want string
		change     func(*Options)
	}{
		{"no other queries", "needs queries that are not measured", func(o *Options) { o.Forms = []reference.Form{form(t, "r1w")} }},
		{"not a calibration", "is no calibration", func(o *Options) { o.Calibrations = []string{sample} }},
		{"a count that fits no file", "2 calibrations for 1 files", func(o *Options) { o.Calibrations = []string{sample, sample} }},
		{"no other text", "needs a file of another text", func(o *Options) { o.Methods = append(o.Methods[:0:0], GlobalShared) }},
		{"scan", `scan "half" is unknown`, func(o *Options) { o.Scans = []Scan{"half"} }},
		{"factor", "rerank 0.5", func(o *Options) { o.Rerank = []float64{0.5} }},
		{"rank of a form", "form r16 for pages of 16", func(o *Options) { o.Forms = []reference.Form{form(t, "r16")} }},
	} {
		o := options()
		tt.change(&o)
		if _, err := Run(context.Background(), []string{sample}, o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q", tt.name, err, tt.want)
		}
	}
}
