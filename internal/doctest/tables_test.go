package doctest

import (
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/specs"
)

// crossed are the models whose change from dense to sparse is measured.
var crossed = []string{"llama-3.1-8b", "glm-4-9b-chat-1m", "glm-4-9b-chat"}

// TestCrossoversOfTables: the crossovers of the committed tables, which bundles take over, are what the recorded lines say.
func TestCrossoversOfTables(t *testing.T) {
	results, err := bench.Read(filepath.Join(top, resultsFile))
	if err != nil {
		t.Fatal(err)
	}
	for _, model := range crossed {
		s, err := specs.Model(model)
		if err != nil {
			t.Fatal(err)
		}
		table, ok, err := specs.TunedTable(model)
		if err != nil {
			t.Fatal(err)
		}
		if !ok || len(table.Crossovers) == 0 {
			continue // not measured yet
		}
		if diff := cmp.Diff(bench.Crossovers(s, results), table.Crossovers); diff != "" {
			t.Errorf("%s: recorded lines -, specs/tuned + (kvloom bench %s --crossover --summary --tables specs/tuned):\n%s", model, model, diff)
		}
	}
}

// TestBenchmarkTables: the tables of docs/benchmarks/tables.md are what the recorded lines say. KVLOOM_UPDATE=1 writes them and the picture anew.
func TestBenchmarkTables(t *testing.T) {
	d := read(t, "docs/benchmarks/tables.md")
	text := d.text
	for section, flags := range map[string][]string{"bars": {"--shapes", "bars"}, "growth": {"--growth"}, "breadth": {"--breadth"},
		"drop-growth": {"--shapes", "drop-growth"}, "rerank": {"--shapes", "rerank"},
		"crossover": append(slices.Clone(crossed), "--crossover")} {
		made, err := output(append([]string{"kvloom", "bench", "--summary", "--out", resultsFile}, flags...))
		if err != nil {
			t.Fatal(err)
		}
		if section == "bars" || section == "rerank" {
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
