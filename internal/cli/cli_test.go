package cli

import (
	"bytes"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvloom/kvloom/runtime/cuda"
	"github.com/kvloom/kvloom/specs"
)

func TestMain(m *testing.M) {
	testscript.Main(m, map[string]func(){
		"kvloom":            func() { os.Exit(Run(os.Args[1:], os.Stdout, os.Stderr)) },
		"kvloom-fake-child": fakeChild,
	})
}

// TestScripts runs testdata/script/*.txtar. KVLOOM_UPDATE=1 rewrites what 'cmp' expects.
func TestScripts(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir:                 filepath.Join("testdata", "script"),
		UpdateScripts:       os.Getenv("KVLOOM_UPDATE") != "",
		RequireExplicitExec: true,
		RequireUniqueNames:  true,
		Condition: func(name string) (bool, error) {
			if name != "gpu" {
				return false, fmt.Errorf("no condition %q", name)
			}
			_, err := cuda.Devices()
			return err == nil, nil
		},
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exitcode": exitCode,
			"columns":  columns,
		},
	})
}

// exitCode is 'exitcode N kvloom ARGS...': kong tells wrong usage (80) from an error (1), and scripts must see which.
// It runs in the test's own folder, so ARGS name no files.
func exitCode(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) < 2 || args[1] != "kvloom" {
		ts.Fatalf("usage: exitcode N kvloom ARGS...")
	}
	var stdout, stderr bytes.Buffer
	code := Run(args[2:], &stdout, &stderr)
	if want := args[0]; want != strconv.Itoa(code) {
		ts.Fatalf("exit code %d, want %s\n%s%s", code, want, &stdout, &stderr)
	}
}

// columns is 'columns N FILE': no line of FILE (or stdout) is longer than N characters.
func columns(ts *testscript.TestScript, neg bool, args []string) {
	if neg || len(args) != 2 || args[0] != "80" {
		ts.Fatalf("usage: columns 80 FILE")
	}
	for i, line := range strings.Split(ts.ReadFile(args[1]), "\n") {
		if n := len([]rune(line)); n > 80 {
			ts.Fatalf("%s:%d is %d columns wide: %s", args[1], i+1, n, line)
		}
	}
}

func TestEveryModelShowsIn80Columns(t *testing.T) {
	for _, name := range specs.Names() {
		var stdout, stderr bytes.Buffer
		if code := Run([]string{"spec", "show", name}, &stdout, &stderr); code != 0 {
			t.Errorf("%s: exit code %d: %s", name, code, &stderr)
		}
		for line := range strings.Lines(stdout.String()) {
			if len(strings.TrimSuffix(line, "\n")) > 80 {
				t.Errorf("%s: wider than 80 columns: %s", name, line)
			}
		}
	}
}
