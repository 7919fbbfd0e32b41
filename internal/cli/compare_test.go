package cli

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// The gate: two databases, every output, and the exit code.
func TestCompare(t *testing.T) {
	old, same, slower := testDB(t, 1), testDB(t, 1), testDB(t, 1.2)
	dir := t.TempDir()
	junit, summary := filepath.Join(dir, "j.xml"), filepath.Join(dir, "s.md")
	tests := []struct {
		name string
		args []string
		code int
		want string
	}{
		{"same", []string{old, same}, 0, "SAME"},
		{"faster", []string{slower, old}, 0, "FASTER"},
		{"slower", []string{old, slower, "--github", "--junit", junit, "--summary", summary}, 1, "::error title=kvloom SLOWER page_score::"},
		{"slower, and that is fine", []string{old, slower, "--fail-on", "none"}, 0, "SLOWER"},
		{"below the threshold", []string{old, slower, "--threshold", "0.5"}, 0, "SAME"},
		{"no file", []string{old, "none.db"}, 1, ""},
		{"usage", []string{old}, 80, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var stdout, stderr bytes.Buffer
			if code := Run(append([]string{"compare"}, tt.args...), &stdout, &stderr); code != tt.code || !strings.Contains(stdout.String(), tt.want) {
				t.Errorf("exit code %d, want %d with %q:\n%s%s", code, tt.code, tt.want, &stdout, &stderr)
			}
		})
	}
	for path, want := range map[string]string{junit: `failures="1"`, summary: "| SLOWER |"} {
		if b, err := os.ReadFile(path); err != nil || !strings.Contains(string(b), want) {
			t.Errorf("%s: %v, want %q in %s", path, err, want, b)
		}
	}
	var out struct {
		Lines []struct{ Verdict, Method string }
	}
	if err := json.Unmarshal([]byte(command(t, "compare", old, same, "--json")), &out); err != nil || len(out.Lines) != 1 || out.Lines[0].Method != "rank test" {
		t.Errorf("%v: %+v", err, out)
	}
}
