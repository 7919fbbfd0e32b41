package cli

import (
	"bytes"
	"encoding/json"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
)

func TestVerifyOnTheSimulator(t *testing.T) {
	nvrtctest.Compiler(t)
	var stdout, stderr bytes.Buffer
	args := []string{"verify", "smollm2-135m", "--device", "sim", "--family", "page_select", "--case", "all equal"}
	if code := Run(append(args, "--json"), &stdout, &stderr); code != 0 {
		t.Fatalf("exit %d: %s%s", code, stdout.String(), stderr.String())
	}
	var report verifyReport
	if err := json.Unmarshal(stdout.Bytes(), &report); err != nil {
		t.Fatal(err)
	}
	if !report.Passed || len(report.Reports) != 1 || len(report.Reports[0].Results) == 0 || report.Reports[0].Results[0].Count == 0 {
		t.Errorf("%+v", report)
	}
	if !strings.Contains(stderr.String(), "device: the simulator, as asked") {
		t.Errorf("stderr does not say which device: %q", stderr.String())
	}
	stdout.Reset()
	if code := Run(args, &stdout, &stderr); code != 0 || !strings.Contains(stdout.String(), "ok   share left out, relative") {
		t.Errorf("exit %d, table:\n%s", code, stdout.String())
	}
	for line := range strings.Lines(stdout.String()) {
		if len(strings.TrimRight(line, "\n")) > 80 {
			t.Errorf("wider than 80 columns: %q", line)
		}
	}
	// A check that looked at nothing must not pass.
	args[len(args)-1] = "no such case"
	stdout.Reset()
	if code := Run(args, &stdout, &stderr); code != 1 || !strings.Contains(stderr.String(), `no family has a case "no such case"`) {
		t.Errorf("exit %d for a case that does not exist:\n%s%s", code, stdout.String(), stderr.String())
	}
}
