package golden

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/tools/txtar"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// updateVariable rewrites the stages of every case where it is set. The spec and the comment of a case are its input.
const updateVariable = "KVLOOM_UPDATE"

// TestStages runs every case: testdata/NAME.txtar holds NAME.yaml and the output of each stage. A file that is no case, and a
// section that no stage makes, fail.
func TestStages(t *testing.T) {
	files, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range files {
		name, isCase := strings.CutSuffix(f.Name(), ".txtar")
		if !isCase {
			t.Errorf("testdata/%s is an orphan: cases are NAME.txtar", f.Name())
			continue
		}
		t.Run(name, func(t *testing.T) { runCase(t, filepath.Join("testdata", f.Name()), name+".yaml") })
	}
}

func runCase(t *testing.T, path, specFile string) {
	a, err := txtar.ParseFile(path)
	if err != nil {
		t.Fatal(err)
	}
	at := slices.IndexFunc(a.Files, func(f txtar.File) bool { return f.Name == specFile })
	if at < 0 {
		t.Fatalf("%s holds no %s", path, specFile)
	}
	if strings.TrimSpace(string(a.Comment)) == "" {
		t.Errorf("%s does not say why it exists: its first lines are the reason", path)
	}
	s, err := specs.Parse(specFile, a.Files[at].Data)
	if err != nil {
		t.Fatal(err)
	}
	want := &txtar.Archive{Comment: a.Comment, Files: append([]txtar.File{a.Files[at]}, stages(t, s)...)}
	if os.Getenv(updateVariable) != "" {
		if err := os.WriteFile(path, txtar.Format(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if diff := cmp.Diff(names(want), names(a)); diff != "" {
		t.Errorf("sections of %s (%s=1 rewrites them), made - kept +:\n%s", path, updateVariable, diff)
	}
	for _, made := range want.Files {
		if found := foreign.Find(made.Data); found != nil {
			t.Errorf("%s holds %q: a golden file has no paths of a machine, no dates and no times", made.Name, found)
		}
		for _, kept := range a.Files {
			if kept.Name != made.Name {
				continue
			}
			if diff := cmp.Diff(lines(kept.Data), lines(made.Data)); diff != "" {
				t.Errorf("%s of %s (%s=1 rewrites it), kept - made +:\n%s", made.Name, path, updateVariable, diff)
			}
		}
	}
}

// foreign is what differs between machines and runs.
var foreign = regexp.MustCompile(`/(tmp|home|root|usr|work)/|\b20\d\d-\d\d-\d\d\b|\b\d+(\.\d+)? ?(us|ms)\b`)

func TestForeign(t *testing.T) {
	for text, want := range map[string]bool{
		"#include \"kernels/page_score.cuh\"": false, "grid 3 sms, 1, 1": false, "163248 B": false,
		"// /home/someone/x.cuh": true, "made 2026-01-02": true, "median 3.5 us": true, "12ms": true,
	} {
		if got := foreign.MatchString(text); got != want {
			t.Errorf("%q: %t", text, got)
		}
	}
}

func names(a *txtar.Archive) []string {
	var n []string
	for _, f := range a.Files {
		n = append(n, f.Name)
	}
	return n
}

func lines(b []byte) []string { return strings.Split(string(b), "\n") }

// TestStagesRepeat makes each stage twice: output that depends on the order of a map would differ now and then.
func TestStagesRepeat(t *testing.T) {
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(stages(t, s), stages(t, s)); diff != "" {
		t.Error(diff)
	}
}

// TestEveryModelPlans checks that no spec that comes with kvloom is left without a kernel: each family has a portable candidate
// for any GPU, where others do not do the same work, and for sm_90a a Hopper one, the default.
func TestEveryModelPlans(t *testing.T) {
	for _, name := range specs.Names() {
		s, err := specs.Model(name)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		for _, fp := range plan.New(s, plan.Targets["sm_90a"]).Families {
			if _, ok := fp.DefaultOf(plan.Portable); !ok && !kernel.Optional(string(fp.Family)) {
				t.Errorf("%s: %s has no portable candidate: %s", name, fp.Family, reasons(fp.Rejected))
			}
			if len(fp.Candidates) > 0 && fp.Candidates[0].Form != plan.Hopper {
				t.Errorf("%s: the default of %s on sm_90a is %s", name, fp.Family, fp.Candidates[0].ID())
			}
		}
	}
}
