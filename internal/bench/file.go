package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
)

// Read returns the lines of a results file, or none where there is no file.
func Read(path string) ([]Result, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	var results []Result
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var r Result
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("results %s:%d: %w; each line is what kvloom bench wrote", path, n, err)
		}
		results = append(results, r)
	}
	return results, lines.Err()
}

// Append adds lines to a results file in one atomic replacement, so that a killed run leaves no half line.
func Append(path string, results []Result) error {
	f, err := Extend(path)
	if err != nil {
		return err
	}
	return f.Keep(results)
}

// Extension is what a run adds to a results file.
type Extension struct {
	path string
	old  []byte // what the file held before the run
}

// Extend begins an extension of a results file, which need not exist.
func Extend(path string) (*Extension, error) {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("results: %w", err)
	}
	return &Extension{path, old}, nil
}

// Keep replaces the file, atomically, by what it held and the results of the run so far.
func (f *Extension) Keep(results []Result) error {
	var b bytes.Buffer
	b.Write(f.old)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, r := range results {
		if err := e.Encode(r); err != nil {
			return fmt.Errorf("results %s: %w", f.path, err)
		}
	}
	return writeFile(f.path, b.Bytes())
}

func writeFile(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".results-*")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone after the rename
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("results %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// Newest keeps the last line of each work on each card, in the order of first appearance.
func Newest(results []Result) []Result {
	var kept []Result
	for _, r := range results {
		i := slices.IndexFunc(kept, func(k Result) bool {
			return k.Card == r.Card && k.Family == r.Family && reflect.DeepEqual(k.Shape, r.Shape)
		})
		if i >= 0 {
			kept[i] = r
		} else {
			kept = append(kept, r)
		}
	}
	return kept
}
