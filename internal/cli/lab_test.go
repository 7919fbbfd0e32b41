package cli

import (
	"encoding/json"
	"os"
	"path/filepath"
	"testing"

	"github.com/kvloom/kvloom/autotune/lab"
)

// From the database of an exhaustive run to rows of regret and a picture.
func TestLab(t *testing.T) {
	dir := t.TempDir()
	sweep := filepath.Join(dir, "s.json")
	command(t, "lab", "record", testDB(t, 1, -1), "--model", "smollm2-135m", "--family", "page_score", "--workload", "1024x1", "-o", sweep)
	var rows []lab.Row
	if err := json.Unmarshal([]byte(command(t, "lab", sweep, "--seeds", "3", "--picture", dir, "--json")), &rows); err != nil {
		t.Fatal(err)
	}
	if len(rows) != 3*6 || rows[0].Strategy != "default" || rows[0].Family != "page_score" || rows[0].Workload != "1024x1" || rows[1].Fraction != 0.1 {
		t.Errorf("%d rows, the first %+v; want 6 strategies at 3 fractions", len(rows), rows[0])
	}
	if _, err := os.Stat(filepath.Join(dir, "s-1024x1.svg")); err != nil {
		t.Error(err)
	}
	command(t, "lab", "replay", sweep, "--seeds", "2", "--strategy", "random,local")
}
