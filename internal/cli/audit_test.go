package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

const auditSample = "../../testdata/smollm2/sample_needle_layer09.safetensors"

// TestAudit runs the verb on the sample: the table fits a terminal and holds every head, the JSON every query, the picture is a PNG.
func TestAudit(t *testing.T) {
	picture := filepath.Join(t.TempDir(), "cone.png")
	run := func(args ...string) (string, string, int) {
		var stdout, stderr bytes.Buffer
		code := Run(append([]string{"audit", auditSample, "--queries", "2", "--subsets", "1", "--size", "6"}, args...), &stdout, &stderr)
		return stdout.String(), stderr.String(), code
	}
	table, talk, code := run("--heads", "--plot", picture)
	if code != 0 {
		t.Fatalf("exit code %d: %s", code, talk)
	}
	for line := range strings.Lines(table) {
		if len([]rune(strings.TrimSuffix(line, "\n"))) > 80 {
			t.Errorf("wider than 80 columns: %s", line)
		}
	}
	for _, want := range []string{"sample_needle_layer09", "KV head 0", "KV head 2"} {
		if !strings.Contains(table, want) {
			t.Errorf("no %q in\n%s", want, table)
		}
	}
	if png, err := os.ReadFile(picture); err != nil || !bytes.HasPrefix(png, []byte("\x89PNG")) {
		t.Errorf("no PNG: %v", err)
	}
	text, talk, code := run("--json")
	var report auditReport
	if err := json.Unmarshal([]byte(text), &report); err != nil || code != 0 {
		t.Fatalf("exit code %d, %v: %s", code, err, talk)
	}
	if len(report.Reports) != 1 || len(report.Reports[0].Queries) != 18 || report.Total.Ratios != 18 {
		t.Errorf("%d reports, total %+v", len(report.Reports), report.Total)
	}
	if _, talk, code := run("--ratio", "0"); code != 1 || !strings.Contains(talk, "ratio 0") {
		t.Errorf("ratio 0: exit code %d, %s", code, talk)
	}
}
