package cli

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// TestCalibrate: the verb writes a file that kvloom quality takes, and names what is wrong with its input.
func TestCalibrate(t *testing.T) {
	path := filepath.Join(t.TempDir(), "layer09.safetensors")
	run := func(args ...string) (string, string, int) {
		var stdout, stderr bytes.Buffer
		code := Run(args, &stdout, &stderr)
		return stdout.String(), stderr.String(), code
	}
	text, talk, code := run("calibrate", auditSample, "-o", path)
	if code != 0 || !strings.Contains(text, "3 KV heads of dim 64 from 16 query positions of 1 file(s)") {
		t.Fatalf("exit code %d: %s%s", code, text, talk)
	}
	text, talk, code = run("quality", auditSample, "--scorer", "page_local", "--rank", "1", "--form", "r1c4m4w", "--budget", "256", "--rerank", "1,2", "--calibration", path)
	if code != 0 || !strings.Contains(text, "page_local r1c4m4w (file) x2") {
		t.Errorf("exit code %d: %s%s", code, text, talk)
	}
	if _, talk, code = run("calibrate", "gone.safetensors", "-o", path); code != 1 || !strings.Contains(talk, "gone.safetensors") {
		t.Errorf("exit code %d: %s", code, talk)
	}
	if _, err := os.Stat(path); err != nil {
		t.Error(err)
	}
	if _, talk, code = run("quality", auditSample, "--form", "r1x"); code != 1 || !strings.Contains(talk, `form "r1x" is none`) {
		t.Errorf("exit code %d: %s", code, talk)
	}
}
