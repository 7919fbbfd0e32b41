package specs

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Choices and crossovers are measured apart: writing one must not lose the other.
func TestWriteTableKeepsCrossovers(t *testing.T) {
	dir := t.TempDir()
	if _, ok, err := ReadTable(dir, "m"); ok || err != nil {
		t.Fatalf("a table that nobody wrote: %t, %v", ok, err)
	}
	first := Table{Model: "m", Device: "d", Choices: []Tuned{}, Crossovers: []Crossover{{Batch: 1, From: 12000, Least: 4096, Most: 65536}}}
	if err := WriteTable(dir, first); err != nil {
		t.Fatal(err)
	}
	tuned := Table{Model: "m", Device: "d", Choices: []Tuned{{Work: "page_score", Context: 1, Batch: 1, Form: "hopper", MedianUS: 3}}}
	if err := WriteTable(dir, tuned); err != nil {
		t.Fatal(err)
	}
	back, ok, err := ReadTable(dir, "m")
	tuned.Crossovers = first.Crossovers
	if diff := cmp.Diff(tuned, back); diff != "" || !ok || err != nil {
		t.Errorf("%t, %v (-want +got):\n%s", ok, err, diff)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteTable(dir, tuned); err != nil {
		t.Errorf("a table that brings its own crossovers: %v", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "m.json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	tuned.Crossovers = nil
	if err := WriteTable(dir, tuned); err == nil {
		t.Error("a damaged table was replaced, and its crossovers lost, without a word")
	}
}
