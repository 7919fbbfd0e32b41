package compare

import (
	"bytes"
	"encoding/xml"
	"math"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/autotune/measure"
)

// entry measures a kernel of so many microseconds with 1 % noise.
func entry(r *rand.Rand, family string, us float64, n int) Entry {
	e := Entry{Key: Key{Model: "m", Family: family, Context: 1024, Batch: 1}, Candidate: family + " portable"}
	for range n {
		e.Samples = append(e.Samples, us*(1+0.01*r.NormFloat64()))
	}
	sum := measure.Summarise(e.Samples)
	e.MedianUS, e.LoUS, e.HiUS = sum.Median, sum.Lo, sum.Hi
	return e
}

func TestVerdicts(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	bare := func(e Entry) Entry { e.Samples = nil; return e }
	few := func(e Entry) Entry { e.Samples = e.Samples[:4]; return e }
	tests := []struct {
		name, reason string
		a, b         Entry
		want         Verdict
		method       string
	}{
		{"equal", "1 % of noise, 40 samples: the interval lies within 2 %", entry(r, "f", 10, 40), entry(r, "f", 10, 40), Same, "rank test"},
		{"slower", "10 %", entry(r, "f", 10, 20), entry(r, "f", 11, 20), Slower, "rank test"},
		{"faster", "10 %", entry(r, "f", 11, 20), entry(r, "f", 10, 20), Faster, "rank test"},
		{"sure and small", "1 % is significant and does not matter", entry(r, "f", 10, 60), entry(r, "f", 10.1, 60), Same, "rank test"},
		{"large and unsure", "4 samples cannot be tested by rank; their ranges overlap", entry(r, "f", 10, 40), few(Entry{Key: Key{"m", "f", "", 1024, 1}, MedianUS: 10.5, LoUS: 9.9, HiUS: 11, Samples: make([]float64, 4)}), Ambiguous, "interval"},
		{"intervals apart", "bundles hold no samples", bare(entry(r, "f", 10, 20)), entry(r, "f", 11, 20), Slower, "interval"},
		{"intervals together", "and the ratio of the ends is within 2 %", bare(entry(r, "f", 10, 60)), bare(entry(r, "f", 10, 60)), Same, "interval"},
		{"never measured", "a median of 0 compares with nothing", Entry{Key: Key{"m", "f", "", 1024, 1}}, entry(r, "f", 10, 20), Ambiguous, "interval"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			l := Sets([]Entry{tt.a}, []Entry{tt.b}, Usual)[0]
			if l.Verdict != tt.want || l.Method != tt.method {
				t.Errorf("%s by %s, want %s by %s: %s: %s", l.Verdict, l.Method, tt.want, tt.method, tt.reason, l.Explain())
			}
		})
	}
	lines := Sets([]Entry{entry(r, "gone", 1, 20)}, []Entry{entry(r, "new", 1, 20)}, Usual)
	if len(lines) != 2 || lines[0].Verdict != Missing || lines[1].Verdict != New {
		t.Errorf("one side only: %+v", lines)
	}
}

func TestHolm(t *testing.T) {
	var lines []Line
	for _, p := range []float64{0.04, 0.01, 0.5, 0.011} {
		lines = append(lines, Line{P: p, Method: "rank test"})
	}
	lines = append(lines, Line{P: 1, PHolm: 1, Method: "interval"})
	holm(lines)
	var got []float64
	for _, l := range lines {
		got = append(got, math.Round(l.PHolm*1e6)/1e6)
	}
	if d := cmp.Diff([]float64{0.08, 0.04, 0.5, 0.04, 1}, got); d != "" {
		t.Errorf("0.01 x 4, then 0.011 x 3 but not below it, 0.04 x 2, 0.5; intervals are not counted (-want +got):\n%s", d)
	}
}

// The stated error rate: among 20 equal kernels, in at most 5 % of comparisons any is called different; real changes of 5 % are found.
func TestErrorRate(t *testing.T) {
	r := rand.New(rand.NewPCG(2, 3))
	const comparisons = 200
	wrong, found := 0, 0
	for range comparisons {
		var a, b []Entry
		for i := range 20 {
			family := string(rune('a' + i))
			us := 10.0
			if i == 7 {
				us = 10.5
			}
			a, b = append(a, entry(r, family, 10, 15)), append(b, entry(r, family, us, 15))
		}
		bad := false
		for _, l := range Sets(a, b, Rule{Threshold: 0, Level: 0.05}) {
			switch {
			case l.Family == "h" && l.Verdict == Slower:
				found++
			case l.Family != "h" && (l.Verdict == Slower || l.Verdict == Faster):
				bad = true
			}
		}
		if bad {
			wrong++
		}
	}
	if share := float64(wrong) / comparisons; share > 0.05+0.03 { // two standard errors of 200
		t.Errorf("some equal kernel was called different in %.3f of the comparisons, want 0.05", share)
	}
	if share := float64(found) / comparisons; share < 0.95 {
		t.Errorf("5 %% slower was found in %.3f of the comparisons", share)
	}
}

func TestAgreement(t *testing.T) {
	lines := []Line{{OldCandidate: "a", NewCandidate: "a"}, {OldCandidate: "a", NewCandidate: "b"}, {OldCandidate: "a"}, {NewCandidate: "b"}, {}}
	if both, agree := Agreement(lines); both != 2 || agree != 1 {
		t.Errorf("%d of %d agree, want 1 of 2: a side without a candidate says nothing", agree, both)
	}
}

func TestFormats(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 1))
	lines := Sets([]Entry{entry(r, "a", 10, 20), entry(r, "b", 10, 20), entry(r, "c", 10, 20), entry(r, "d", 10, 20)},
		[]Entry{entry(r, "a", 12, 20), entry(r, "b", 8, 20), {Key: Key{"m", "c", "", 1024, 1}, MedianUS: 10.5, LoUS: 9, HiUS: 12}}, Usual)
	if got, want := Summary(lines), "4 compared: 1 SLOWER, 1 AMBIGUOUS, 1 MISSING, 1 FASTER; the same candidate was chosen for 2 of 2"; got != want {
		t.Errorf("summary %q, want %q", got, want)
	}
	var b bytes.Buffer
	if err := GitHub(&b, lines, []Verdict{Slower}); err != nil {
		t.Fatal(err)
	}
	got := strings.Split(strings.TrimSpace(b.String()), "\n")
	for i, want := range []string{"::error title=kvloom SLOWER a::m a 1024x1: SLOWER, ", "::notice title=kvloom FASTER b::", "::warning title=kvloom AMBIGUOUS c::", "::warning title=kvloom MISSING d::"} {
		if i >= len(got) || !strings.HasPrefix(got[i], want) {
			t.Errorf("annotation %d: %q, want %q", i, got, want)
		}
	}
	if strings.Contains(strings.ReplaceAll(b.String(), "%25", ""), "%") {
		t.Errorf("a percent sign is not escaped: %s", &b)
	}
	b.Reset()
	if err := JUnit(&b, lines, []Verdict{Slower, Missing}); err != nil {
		t.Fatal(err)
	}
	var s suite
	if err := xml.Unmarshal(b.Bytes(), &s); err != nil {
		t.Fatal(err)
	}
	if s.Tests != 4 || s.Failures != 2 || s.Skipped != 1 || s.Cases[0].Failure == nil || s.Cases[1].Failure != nil || s.Cases[3].Failure == nil {
		t.Errorf("JUnit: %s", &b)
	}
	b.Reset()
	if err := Markdown(&b, lines, Usual, []string{"a note"}); err != nil || !strings.Contains(b.String(), "| SLOWER | m | a | 1024x1 |") || !strings.Contains(b.String(), "- a note") {
		t.Errorf("%v: %s", err, &b)
	}
	b.Reset()
	if err := Table(&b, lines); err != nil || strings.Count(b.String(), "\n") != 5 {
		t.Errorf("%v: %s", err, &b)
	}
}

// Files are told apart by their content, results by their shapes.
func TestLoad(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) string {
		path := filepath.Join(dir, name)
		if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
		return path
	}
	line := `{"date":"d","card":"NVIDIA H200","driver":"580","commit":"c","command":"x","family":"page_score","shape":{"kv_heads":8,"page":16,"tokens":TOKENS,"batch":1,"l2":"cold"},` +
		`"candidate":"k","median_us":US,"lo_us":9.9,"hi_us":10.1,"samples":30,"bytes":1,"tb_per_s":1,"roof_tb_per_s":4,"baselines":{}}` + "\n"
	made := func(tokens, us string) string {
		return strings.NewReplacer("TOKENS", tokens, "US", us).Replace(line)
	}
	old := write("old.jsonl", made("1024", "99")+made("1024", "10")+made("2048", "10"))
	now := write("new.jsonl", made("1024", "10"))
	lines, notes, err := Files(t.Context(), old, now, Usual)
	if err != nil {
		t.Fatal(err)
	}
	if len(lines) != 2 || lines[0].OldUS != 10 || lines[0].Detail != "kv_heads=8 page=16" || lines[1].Verdict != Missing {
		t.Errorf("the newest line of each work counts: %+v", lines)
	}
	if len(notes) != 2 || !strings.Contains(notes[0], "holds no samples") {
		t.Errorf("notes %q; results are compared by interval, and say so", notes)
	}
	for name, text := range map[string]string{"empty": "", "text": "neither of the three kinds of file", "other": "{}\n"} {
		if _, err := Load(t.Context(), write(name, text)); err == nil || !strings.Contains(err.Error(), name) {
			t.Errorf("%s: %v; want an error that names the file", name, err)
		}
	}
}
