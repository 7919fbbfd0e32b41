package cli

import (
	"bytes"
	"encoding/json"
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

// TestQuality runs the verb on the sample: the table fits a terminal and says what computed it, the JSON holds every row, pictures
// and Markdown are written, wrong flags are named.
func TestQuality(t *testing.T) {
	folder := filepath.Join(t.TempDir(), "pictures")
	run := func(args ...string) (string, string, int) {
		var stdout, stderr bytes.Buffer
		code := Run(append([]string{"quality", auditSample, "--queries", "2", "--budget", "256", "--rank", "1,4"}, args...), &stdout, &stderr)
		return stdout.String(), stderr.String(), code
	}
	table, talk, code := run("--bits", "4,float", "--plot", folder)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, talk)
	}
	for line := range strings.Lines(table) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
	for _, want := range []string{"float64 reference", "page_local r4 i4", "page_local r4 float", "hybrid r12 i4", "shared r16 i4", "quest, max", "mean_key i8", "sink_and_recent"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if !strings.Contains(talk, "3 of 3 KV heads") {
		t.Errorf("no progress in %q", talk)
	}
	for name, magic := range map[string]string{"recall.png": "\x89PNG", "pareto.png": "\x89PNG", "recall.svg": "<?xml", "pareto.svg": "<?xml"} {
		if b, err := os.ReadFile(filepath.Join(folder, name)); err != nil || !bytes.HasPrefix(b, []byte(magic)) {
			t.Errorf("%s: %v", name, err)
		}
	}
	text, talk, code := run("--json", "--combine", "share_average,per_head")
	var report qualityReport
	if err := json.Unmarshal([]byte(text), &report); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, talk)
	}
	if report.Backend != "float64 reference" || len(report.Reports) != 1 || len(report.Mean) != 19 || len(report.Mean) != len(report.Reports[0].Rows) {
		t.Errorf("%q, %d reports, %d rows", report.Backend, len(report.Reports), len(report.Mean)) // 9 scores x 2 rules + sink_and_recent
	}
	if text, _, code := run("--markdown"); code != 0 || !strings.Contains(text, "\n| page_local r4 i4 | 298 | ") {
		t.Errorf("exit code %d, Markdown\n%s", code, text)
	}
	for _, tt := range []struct{ flag, value, want string }{
		{"--bits", "3", "basis of 3 bits"}, {"--bits", "x", "--bits x"}, {"--scorer", "queste", `"queste" is unknown`}, {"--page-size", "12", "page size 12"},
	} {
		if _, talk, code := run(tt.flag, tt.value); code != 1 || !strings.Contains(talk, tt.want) {
			t.Errorf("%s %s: exit code %d, %s", tt.flag, tt.value, code, talk)
		}
	}
}

// TestQualityOnSimulator: the kernels' selections have the mass and the recall of the float64 reference to three decimals; what has no
// kernel is refused by name.
func TestQualityOnSimulator(t *testing.T) {
	nvrtctest.Compiler(t) // skips where there is none
	report := func(device string, more ...string) qualityReport {
		var stdout, stderr bytes.Buffer
		code := Run(append([]string{"quality", auditSample, "--json", "--queries", "2", "--budget", "256", "--rank", "4", "--scorer", "exact_lse,page_local,quest,mean_key", "--rerank", "1,2",
			"--device", device}, more...), &stdout, &stderr)
		var out qualityReport
		if err := json.Unmarshal(stdout.Bytes(), &out); err != nil || code != 0 {
			t.Fatalf("exit code %d, %v: %s", code, err, stderr.String())
		}
		return out
	}
	want, got := report("reference", "--form", "r1w,r1c4m4w"), report("sim", "--form", "r1w,r1c4m4w")
	if !strings.Contains(got.Backend, "simulator") || len(got.Mean) != len(want.Mean) || len(got.Mean) != 11 {
		t.Fatalf("%q, %d rows; the reference has %d", got.Backend, len(got.Mean), len(want.Mean))
	}
	for i, r := range got.Mean {
		w := want.Mean[i]
		if math.Abs(r.Mass-w.Mass) > 5e-4 || math.Abs(r.Recall-w.Recall) > 5e-4 || r.Name() != w.Name() {
			t.Errorf("%s: mass %.5f, recall %.5f; %s by the reference %.5f, %.5f", r.Name(), r.Mass, r.Recall, w.Name(), w.Mass, w.Recall)
		}
		if r.RMS != nil && (*r.RMS == *w.RMS || math.Abs(*r.RMS-*w.RMS) > 1e-2) {
			t.Errorf("%s: RMS error %.6f, by the reference %.6f; kernels score in f32", r.Name(), *r.RMS, *w.RMS)
		}
	}
	want = report("reference", "--form", "r2c4m4s16")
	for i, r := range report("sim", "--given-records", "--form", "r2c4m4s16").Mean {
		if w := want.Mean[i]; math.Abs(r.Mass-w.Mass) > 5e-4 || r.Recall != w.Recall || r.RMS != nil && math.Abs(*r.RMS-*w.RMS) > 1e-4 {
			t.Errorf("%s on the reference's records: mass %.5f, recall %.5f, by the reference %.5f, %.5f", r.Name(), r.Mass, r.Recall, w.Mass, w.Recall)
		}
	}
	for _, tt := range []struct {
		args []string
		want string
	}{
		{[]string{"--scorer", "hybrid"}, "hybrid has no kernel"}, {[]string{"--scorer", "page_local", "--rerank", "5"}, "rerank 5 has no kernel"},
		{[]string{"--scorer", "page_local", "--form", "r1p2"}, "form r1p2 is measured by the reference"},
		{[]string{"--scorer", "page_local", "--form", "r9c4"}, "form r9c4 has kernels for pages of 16 tokens and ranks up to 8"},
	} {
		var stdout, stderr bytes.Buffer
		if code := Run(append([]string{"quality", auditSample, "--device", "sim"}, tt.args...), &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), tt.want) {
			t.Errorf("%v: exit code %d, %s", tt.args, code, stderr.String())
		}
	}
}
