package cli

import (
	"bytes"
	"database/sql"
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

// A database from before the kernels changed is compared by what it chose then, and the notes say so.
func TestCompareAcrossAChange(t *testing.T) {
	old, now := testDB(t, 1), testDB(t, 1.1)
	db, err := sql.Open("sqlite", old)
	if err != nil {
		t.Fatal(err)
	}
	defer db.Close()
	if _, err := db.Exec("UPDATE trial SET source_hash = 'of an older kernel'"); err != nil {
		t.Fatal(err)
	}
	var stdout, stderr bytes.Buffer
	code := Run([]string{"compare", old, now}, &stdout, &stderr)
	if code != 1 || !strings.Contains(stdout.String(), "SLOWER") || strings.Contains(stdout.String(), "MISSING") || !strings.Contains(stderr.String(), "at 1 points of smollm2-135m the kernels have changed since") {
		t.Errorf("exit code %d\n%s%s", code, &stdout, &stderr)
	}
}
