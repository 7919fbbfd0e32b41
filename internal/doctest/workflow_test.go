package doctest

import (
	"io"
	"path/filepath"
	"testing"

	"github.com/rhysd/actionlint"
)

// TestWorkflows: actionlint finds nothing in the workflows.
func TestWorkflows(t *testing.T) {
	paths, err := filepath.Glob(filepath.Join(top, ".github/workflows/*.yml"))
	if err != nil || len(paths) == 0 {
		t.Fatalf("no workflow: %v", err)
	}
	lint := func(text string) []*actionlint.Error {
		l, err := actionlint.NewLinter(io.Discard, &actionlint.LinterOptions{ConfigFile: filepath.Join(top, ".github/actionlint.yaml")})
		if err != nil {
			t.Fatal(err)
		}
		var faults []*actionlint.Error
		if text == "" {
			faults, err = l.LintFiles(paths, nil)
		} else {
			faults, err = l.Lint("x.yml", []byte(text), nil)
		}
		if err != nil {
			t.Fatal(err)
		}
		return faults
	}
	for _, f := range lint("") {
		t.Error(f)
	}
	if len(lint("on: push\njobs:\n  a:\n    runs-on: [self-hosted, h300]\n    steps:\n      - run: echo ${{ matrix.b }}\n")) < 2 {
		t.Error("an unknown label and a matrix that is not there were not found")
	}
}
