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
	"slices"

	"github.com/kvloom/kvloom/internal/wholefile"
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
	path    string
	old     []byte // what the file held before the run
	written int    // results of the run that the file has
}

// Extend begins an extension of a results file, which need not exist.
func Extend(path string) (*Extension, error) {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("results: %w", err)
	}
	return &Extension{path: path, old: old}, nil
}

// Keep makes the file hold what it held and the results of the run so far. The first results, and changes of those that it has, replace the
// file in one step; further ones are appended, each by one write, for a run has hundreds and each replacement waits for the disk.
func (f *Extension) Keep(results []Result) error {
	if 0 < f.written && f.written < len(results) {
		return f.append(results)
	}
	text, err := lines(results)
	if err != nil {
		return fmt.Errorf("results %s: %w", f.path, err)
	}
	f.written = len(results)
	return writeFile(f.path, slices.Concat(f.old, text))
}

func (f *Extension) append(results []Result) (err error) {
	text, err := lines(results[f.written:])
	if err != nil {
		return fmt.Errorf("results %s: %w", f.path, err)
	}
	file, err := os.OpenFile(f.path, os.O_WRONLY|os.O_APPEND, 0)
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	defer func() { err = errors.Join(err, file.Close()) }()
	if _, err := file.Write(text); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	f.written = len(results)
	return nil
}

// lines are results as they stand in a file.
func lines(results []Result) ([]byte, error) {
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, r := range results {
		if err := e.Encode(r); err != nil {
			return nil, err
		}
	}
	return b.Bytes(), nil
}

func writeFile(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	if err := wholefile.Write(path, b); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	return nil
}

// Newest keeps the last line of each work on each card, in the order of first appearance.
func Newest(results []Result) []Result {
	var kept []Result
	type key struct {
		card string
		work work
	}
	at := map[key]int{}
	for _, r := range results {
		k := key{r.Card, work{r.Family, r.Shape}}
		if i, ok := at[k]; ok {
			kept[i] = r
			continue
		}
		at[k] = len(kept)
		kept = append(kept, r)
	}
	return kept
}
