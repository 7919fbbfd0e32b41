package doctest

import (
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

const (
	module       = "github.com/kvloom/kvloom/"
	importsTitle = "## Who imports whom"
)

// leaves import at most runtime/device, and whoever needs one imports it: geometries, groups of pages, files written whole, pictures.
var leaves = []string{"internal/launch", "internal/groups", "internal/wholefile", "internal/picture"}

// TestImportTable holds the table of architecture.md against the imports of the tree.
func TestImportTable(t *testing.T) {
	var covered []string
	for _, row := range table(t, read(t, "docs/architecture.md"), importsTitle) {
		folders, listed := paths(row[0]), paths(row[2])
		covered = append(covered, folders...)
		if len(listed) == 0 && row[2] != "none" {
			continue // "everything", "what they test"
		}
		var real []string
		for _, pattern := range folders {
			for _, f := range imports(t, pattern) {
				if !slices.Contains(folders, f) && !slices.Contains(leaves, f) && !slices.Contains(real, f) {
					real = append(real, f)
				}
			}
		}
		slices.Sort(real)
		slices.Sort(listed)
		if diff := cmp.Diff(real, listed); diff != "" {
			t.Errorf("imports of %s, real -, listed +:\n%s", row[0], diff)
		}
	}
	for _, leaf := range leaves {
		if ours := imports(t, leaf); len(ours) > 0 && !slices.Equal(ours, []string{"runtime/device"}) {
			t.Errorf("%s imports %v and is no leaf", leaf, ours)
		}
	}
	for _, f := range []string{"specs", "templates", "gen", "autotune", "out/*", "cmd/kvloom"} {
		if !slices.Contains(covered, f) {
			t.Errorf("%s has no row in the table", f)
		}
	}
}

// paths are the folders that a cell names.
func paths(cell string) []string {
	var list []string
	for _, m := range code.FindAllStringSubmatch(cell, -1) {
		list = append(list, strings.TrimSuffix(m[1], "/"))
	}
	return list
}

// imports are the folders of ours that the non-test files of a folder import, data left out.
func imports(t *testing.T, pattern string) []string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(top, pattern, "*.go"))
	if err != nil || len(files) == 0 {
		t.Fatalf("no Go files in %s (%v)", pattern, err)
	}
	var list []string
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		f, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.ImportsOnly)
		if err != nil {
			t.Fatal(err)
		}
		for _, i := range f.Imports {
			path, err := strconv.Unquote(i.Path.Value)
			if err != nil {
				t.Fatal(err)
			}
			ours, ok := strings.CutPrefix(path, module)
			if ok && !strings.HasPrefix(ours, "testdata/") && !slices.Contains(list, ours) {
				list = append(list, ours)
			}
		}
	}
	return list
}
