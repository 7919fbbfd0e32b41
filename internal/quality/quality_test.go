package quality

import (
	"bytes"
	"context"
	"encoding/binary"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/tensorfile"
)

const sample = "../../testdata/smollm2/sample_needle_layer09.safetensors"

func options() Options {
	return Options{Methods: Methods, Ranks: []int{1, 4, 8}, Bits: []int{4, 0}, PageSizes: []int{16}, Budgets: []int{256, 512},
		Combine: []reference.Combine{reference.ShareAverage}, Sink: 1, Recent: 1}
}

func run(t *testing.T, o Options, paths ...string) []Report {
	t.Helper()
	reports, err := Run(context.Background(), paths, o)
	if err != nil {
		t.Fatal(err)
	}
	return reports
}

// find returns the row of a score as the tables name it.
func find(t *testing.T, rows []Row, name string, budget int, rule reference.Combine) Row {
	t.Helper()
	for _, r := range rows {
		if r.Name() == name && r.Budget == budget && r.Combine == rule {
			return r
		}
	}
	t.Fatalf("no row of %s at %d tokens, %s", name, budget, rule)
	return Row{}
}

// TestSample holds a bound on what is selected on real keys, and the order of the scores in mass and recall.
func TestSample(t *testing.T) {
	r := run(t, options(), sample)[0]
	row := func(name string) Row {
		rule := reference.ShareAverage
		if name == "quest" {
			rule = reference.GroupMax
		}
		return find(t, r.Rows, name, 256, rule)
	}
	for _, tt := range []struct{ better, worse, reason string }{
		{"exact_lse", "page_local r8 i4", "the oracle has the best mass and its own pages"},
		{"page_local r8 i4", "page_local r4 i4", "more directions"},
		{"page_local r4 i4", "page_local r1 i4", "more directions"},
		{"page_local r4 i4", "hybrid r12 i4", "the paper's order at matched bytes"},
		{"hybrid r12 i4", "shared r16 i4", "the paper's order at matched bytes"},
		{"page_local r4 i4", "quest", "an estimate of the mass beats a bound on a logit"},
		{"page_local r1 i4", "mean_key i8", "rank 1 is more than rank 0"},
		{"mean_key i8", "sink_and_recent", "a score that looks at the query beats none"},
	} {
		a, b := row(tt.better), row(tt.worse)
		if a.Mass <= b.Mass || a.Recall <= b.Recall {
			t.Errorf("%s: mass %.4f, recall %.4f; %s: %.4f, %.4f: %s", tt.better, a.Mass, a.Recall, tt.worse, b.Mass, b.Recall, tt.reason)
		}
	}
	if got := row("page_local r8 i4"); got.Recall < 0.95 {
		t.Errorf("rank 8 recalls %.4f of the exact pages, want at least 0.95", got.Recall)
	}
	for _, tt := range []struct {
		name  string
		bytes float64
	}{
		{"exact_lse", 2048}, {"page_local r4 i4", 298}, {"page_local r4 float", 0}, {"quest", 256}, {"mean_key i8", 66}, {"sink_and_recent", 0},
	} {
		if got := row(tt.name).Bytes; got != tt.bytes {
			t.Errorf("%s reads %g bytes a page, want %g", tt.name, got, tt.bytes)
		}
	}
	for _, r := range r.Rows {
		if r.Worst > r.Mass || r.Mass > 1+1e-12 || r.Recall > 1 || r.Scorer == ExactLSE && (r.Recall != 1 || *r.RMS > 1e-12) {
			t.Errorf("%s: mass %g, worst head %g, recall %g", r.Name(), r.Mass, r.Worst, r.Recall)
		}
		if (r.Scorer == Hybrid || r.Scorer == Shared) && (r.Bytes > 498 || r.Bytes < 100) {
			t.Errorf("%s reads %g bytes a page; matched to 148, 298 or 498", r.Name(), r.Bytes)
		}
	}
}

// TestIndependent measures single queries again from the tensors with plain loops over tokens, without pages' sums.
func TestIndependent(t *testing.T) {
	o := options()
	o.Methods, o.Queries, o.Budgets = []Method{ExactLSE, Quest}, 1, []int{256}
	got := run(t, o, sample)[0]
	l, err := load(sample)
	if err != nil {
		t.Fatal(err)
	}
	const page, pages, budget, group = 16, 64, 16, 3
	var want Row
	for head := range 3 {
		weights := make([][]float64, group)
		shares, bound := make([]float64, pages), make([]float64, pages)
		for j := range bound {
			bound[j] = math.Inf(-1)
		}
		for g := range group {
			q := l.queries[((head*group+g)*16+15)*64:][:64]
			var sum float64
			weights[g] = make([]float64, l.tokens)
			for i := range l.tokens {
				var x float64
				for d := range 64 {
					x += q[d] * l.keys[(head*l.tokens+i)*64+d]
				}
				weights[g][i] = math.Exp(x / 8)
				sum += weights[g][i]
			}
			for i := range l.tokens {
				weights[g][i] /= sum
				shares[i/page] += weights[g][i]
			}
			for j := range pages {
				var x float64
				for d := range 64 {
					best := math.Inf(-1)
					for i := j * page; i < (j+1)*page; i++ {
						best = max(best, q[d]*l.keys[(head*l.tokens+i)*64+d])
					}
					x += best
				}
				bound[j] = max(bound[j], x/8)
			}
		}
		exact, quest := top(shares, budget), top(bound, budget)
		worst := 1.0
		for g := range group {
			var mass, off, norm float64
			for i, w := range weights[g] {
				if quest[i/page] {
					mass += w
				}
			}
			for d := range 64 {
				var dense, sparse float64
				for i, w := range weights[g] {
					v := w * l.values[(head*l.tokens+i)*64+d]
					dense += v
					if quest[i/page] {
						sparse += v / mass
					}
				}
				off += (dense - sparse) * (dense - sparse)
				norm += dense * dense
			}
			want.Mass += mass / group / 3
			want.Error += math.Sqrt(off/norm) / group / 3
			worst = min(worst, mass)
		}
		want.Worst += worst / 3
		for j := range quest {
			if exact[j] {
				want.Recall += 1.0 / budget / 3
			}
		}
	}
	row := find(t, got.Rows, "quest", 256, reference.GroupMax)
	for _, tt := range []struct {
		name      string
		got, want float64
	}{
		{"mass", row.Mass, want.Mass}, {"worst head", row.Worst, want.Worst}, {"recall", row.Recall, want.Recall}, {"error", row.Error, want.Error},
	} {
		if math.Abs(tt.got-tt.want) > 1e-9 {
			t.Errorf("%s of quest: %.12f, by plain loops %.12f", tt.name, tt.got, tt.want)
		}
	}
}

// top is the set of the n best pages, the first and the last one among them.
func top(values []float64, n int) map[int]bool {
	set := map[int]bool{0: true, len(values) - 1: true}
	for len(set) < n {
		best := -1
		for j, v := range values {
			if !set[j] && (best < 0 || v > values[best]) {
				best = j
			}
		}
		set[best] = true
	}
	return set
}

// TestRules: every rule gives rows of its own; a list for each head keeps the most mass, and no shared list beats share_average.
func TestRules(t *testing.T) {
	o := options()
	o.Methods = []Method{ExactLSE, Quest, SinkAndRecent}
	o.Combine = []reference.Combine{reference.ShareAverage, reference.GroupMax, reference.GroupMass, reference.PeakNormalised, reference.PerHead}
	rows := run(t, o, sample)[0].Rows
	share := find(t, rows, "exact_lse", 256, reference.ShareAverage)
	for _, rule := range o.Combine[1:] {
		r := find(t, rows, "exact_lse", 256, rule)
		if rule == reference.PerHead {
			if r.Mass <= share.Mass || r.Recall != 1 {
				t.Errorf("a list for each head: mass %.4f, recall %.4f; one for the group %.4f", r.Mass, r.Recall, share.Mass)
			}
		} else if r.Mass >= share.Mass || r.Recall >= 1 {
			t.Errorf("%s: mass %.4f, recall %.4f; share_average %.4f", rule, r.Mass, r.Recall, share.Mass)
		}
	}
	var quest, recent int
	for _, r := range rows {
		switch r.Scorer {
		case Quest:
			quest++
		case SinkAndRecent:
			recent++
		}
	}
	if quest != 8 || recent != 2 { // two budgets; quest has no share_average
		t.Errorf("%d rows of quest and %d of sink_and_recent, want 8 and 2", quest, recent)
	}
}

// TestShapes: pages that do not divide the tokens, and pages of every size, are measured.
func TestShapes(t *testing.T) {
	f, err := tensorfile.Read(sample)
	if err != nil {
		t.Fatal(err)
	}
	for i, tensor := range f.Tensors {
		if tensor.Name == "q_last" { // the same queries at other places are as good
			continue
		}
		const from, to = 1024 * 64 * 2, 1001 * 64 * 2
		var cut []byte
		for h := range 3 {
			cut = append(cut, tensor.Data[h*from:h*from+to]...)
		}
		f.Tensors[i].Shape, f.Tensors[i].Data = []int{3, 1001, 64}, cut
	}
	path := filepath.Join(t.TempDir(), "cut.safetensors")
	if err := f.Write(path); err != nil {
		t.Fatal(err)
	}
	o := options()
	o.Ranks, o.PageSizes, o.Budgets = []int{2}, []int{4, 8, 16, 32, 64, 128}, []int{512}
	rows := run(t, o, path)[0].Rows
	if want := 9 * 6; len(rows) != want { // exact, two page-local, hybrid, shared, quest, two means, recent
		t.Errorf("%d rows, want %d", len(rows), want)
	}
	for _, r := range rows {
		if !(r.Mass > 0 && r.Mass <= 1+1e-12) || math.IsNaN(r.Error) {
			t.Errorf("%s, pages of %d: mass %g, error %g", r.Name(), r.PageSize, r.Mass, r.Error)
		}
	}
}

func TestFaults(t *testing.T) {
	for _, tt := range []struct {
		name, reason, want string
		change             func(*Options)
	}{
		{"scorer", "names are checked", `scorer "queste" is unknown`, func(o *Options) { o.Methods = []Method{"queste"} }},
		{"rule", "names are checked", `combine rule "sum" is unknown`, func(o *Options) { o.Combine = []reference.Combine{"sum"} }},
		{"bits", "only stored widths", "basis of 3 bits", func(o *Options) { o.Bits = []int{3} }},
		{"rank", "a centred page has rank below its size", "rank 8 for pages of 8", func(o *Options) { o.PageSizes = []int{8} }},
		{"budget", "the kept pages need room", "2 pages are always kept", func(o *Options) { o.Budgets = []int{16} }},
		{"nothing", "an empty list measures nothing", "no budgets to measure", func(o *Options) { o.Budgets = nil }},
	} {
		o := options()
		tt.change(&o)
		if _, err := Run(context.Background(), []string{sample}, o); err == nil || !strings.Contains(err.Error(), tt.want) {
			t.Errorf("%s: %v; want %q: %s", tt.name, err, tt.want, tt.reason)
		}
	}
	o := options()
	if _, err := Run(context.Background(), []string{"gone.safetensors"}, o); err == nil {
		t.Error("a missing file is no error")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if _, err := Run(ctx, []string{sample}, o); err != context.Canceled && !strings.Contains(err.Error(), "canceled") {
		t.Errorf("cancelled: %v", err)
	}
}

func TestFront(t *testing.T) {
	row := func(bytes, recall float64) Row { return Row{Read: bytes, Recall: recall} }
	got := Front([]Row{row(300, .9), row(100, .5), row(200, .5), row(200, .8), row(400, .85), row(500, 1)})
	want := []Row{row(100, .5), row(200, .8), row(300, .9), row(500, 1)}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestPictures(t *testing.T) {
	rows := run(t, options(), sample)[0].Rows
	for _, draw := range []func(*bytes.Buffer, string) error{
		func(b *bytes.Buffer, format string) error { return Recall(b, rows, format) },
		func(b *bytes.Buffer, format string) error { return Pareto(b, rows, format) },
	} {
		var png, svg bytes.Buffer
		if err := draw(&png, "png"); err != nil || !bytes.HasPrefix(png.Bytes(), []byte("\x89PNG")) {
			t.Errorf("no PNG: %v", err)
		}
		if err := draw(&svg, "svg"); err != nil || !strings.Contains(svg.String(), "page_local") {
			t.Errorf("no SVG with the names: %v", err)
		}
	}
	if err := Recall(&bytes.Buffer{}, nil, "png"); err == nil {
		t.Error("a picture of nothing is no error")
	}
}

// TestArrays: a folder of .npy files gives what the safetensors file gives.
func TestArrays(t *testing.T) {
	l, err := load(sample)
	if err != nil {
		t.Fatal(err)
	}
	folder := t.TempDir()
	for name, x := range map[string][]float64{"k": l.keys, "v": l.values, "q_last": l.queries} {
		shape := "(3, 1024, 64)"
		if name == "q_last" {
			shape = "(9, 16, 64)"
		}
		header := "{'descr': '<f4', 'fortran_order': False, 'shape': " + shape + ", }\n"
		data := append([]byte("\x93NUMPY\x01\x00"), byte(len(header)), 0)
		data = append(data, header...)
		for _, v := range x {
			data = binary.LittleEndian.AppendUint32(data, math.Float32bits(float32(v)))
		}
		if err := os.WriteFile(filepath.Join(folder, name+".npy"), data, 0o644); err != nil {
			t.Fatal(err)
		}
	}
	o := options()
	o.Queries, o.Ranks = 2, []int{4}
	if diff := cmp.Diff(run(t, o, sample)[0].Rows, run(t, o, folder)[0].Rows); diff != "" {
		t.Errorf("safetensors -, arrays +:\n%s", diff)
	}
	if err := os.Remove(filepath.Join(folder, "v.npy")); err != nil {
		t.Fatal(err)
	}
	if _, err := Run(context.Background(), []string{folder}, o); err == nil || !strings.Contains(err.Error(), "v.npy") {
		t.Errorf("without v.npy: %v", err)
	}
}
