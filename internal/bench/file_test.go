package bench

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// A run adds line by line, changes lines when peers answer, and never touches what the file held before.
func TestExtension(t *testing.T) {
	path := filepath.Join(t.TempDir(), "deep", "results.jsonl")
	line := func(family string, us float64) Result {
		return Result{Family: family, MedianUS: us, Baselines: map[string]float64{}}
	}
	if err := Append(path, []Result{line("old", 1)}); err != nil {
		t.Fatal(err)
	}
	f, err := Extend(path)
	if err != nil {
		t.Fatal(err)
	}
	run := []Result{}
	holds := func(reason string) {
		t.Helper()
		if err := f.Keep(run); err != nil {
			t.Fatal(err)
		}
		back, err := Read(path)
		if err != nil {
			t.Fatalf("%s: %v", reason, err)
		}
		if diff := cmp.Diff(append([]Result{line("old", 1)}, run...), back); diff != "" {
			t.Errorf("%s (-want +got):\n%s", reason, diff)
		}
	}
	holds("nothing measured yet")
	run = append(run, line("a", 2))
	holds("the first line")
	run = append(run, line("b", 3))
	holds("a second")
	run = append(run, line("c", 4), line("d", 5))
	holds("two at once")
	run[1].Baselines["peer"] = 30
	holds("a peer's answer")
	run = append(run, line("e", 6))
	holds("a line after that")
	files, err := os.ReadDir(filepath.Dir(path))
	if err != nil || len(files) != 1 {
		t.Errorf("%d files are left, %v", len(files), err)
	}
}
