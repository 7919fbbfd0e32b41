package doctest

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/bench"
)

// TestBenchmarkTables: the tables of docs/benchmarks/tables.md are what the recorded lines say. KVLOOM_UPDATE=1 writes them and the picture anew.
func TestBenchmarkTables(t *testing.T) {
	d := read(t, "docs/benchmarks/tables.md")
	text := d.text
	for section, flags := range map[string][]string{"bars": {"--shapes", "bars"}, "growth": {"--growth"}, "breadth": {"--breadth"}} {
		made, err := output(append([]string{"kvloom", "bench", "--summary", "--out", resultsFile}, flags...))
		if err != nil {
			t.Fatal(err)
		}
		if section == "bars" {
			made = "```text\n" + made + "```\n"
		}
		have := d.section(t, section)
		if os.Getenv(updateVariable) != "" {
			begin := "<!-- " + section + ":begin -->\n"
			text = strings.Replace(text, begin+have, begin+made, 1)
		} else if diff := cmp.Diff(made, have); diff != "" {
			t.Errorf("%s: recorded lines -, %s + (%s=1 writes it anew):\n%s", section, d.path, updateVariable, diff)
		}
	}
	if os.Getenv(updateVariable) == "" {
		return
	}
	results, err := bench.Read(filepath.Join(top, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(top, d.path), []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	for _, format := range []string{"png", "svg"} {
		f, err := os.Create(filepath.Join(top, "docs/benchmarks/growth."+format))
		if err != nil {
			t.Fatal(err)
		}
		if err := bench.GrowthPicture(f, results, format); err != nil {
			t.Error(err)
		}
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
}
