package gen

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/format"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/gen/bind"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

func build(t *testing.T, model string, change func(s *specs.Spec), table *specs.Table) Build {
	t.Helper()
	s, err := specs.Model(model)
	if err != nil {
		t.Fatal(err)
	}
	if change != nil {
		change(s)
	}
	b, err := Package(s, table)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func TestStepsReadAsThePipeline(t *testing.T) {
	var names []string
	for _, s := range Steps {
		names = append(names, s.Name)
	}
	if diff := cmp.Diff([]string{"plan", "choose", "render", "bind"}, names); diff != "" {
		t.Error(diff)
	}
}

// unsteady finds what must not be in generated files: absolute paths, dates and times.
var unsteady = regexp.MustCompile(`(^|[\s"'=])/(home|root|work|tmp|usr|Users)/|\b20\d\d-\d\d-\d\d|\d\d:\d\d:\d\d`)

func TestPackagesOfAllModels(t *testing.T) {
	owner := map[string]string{}
	for _, model := range specs.Names() {
		b, again := build(t, model, nil, nil), build(t, model, nil, nil)
		if diff := cmp.Diff(b.Files, again.Files); diff != "" {
			t.Errorf("%s: generated twice, it differs:\n%s", model, diff)
		}
		name := Name(model)
		if owner[name] != "" {
			t.Errorf("%s and %s are both package %s", model, owner[name], name)
		}
		owner[name] = model
		for file, text := range b.Files {
			if !bytes.HasPrefix(text, []byte(bind.Header+"\n")) {
				t.Errorf("%s: %s lacks the marker", model, file)
			}
			if m := unsteady.Find(text); m != nil {
				t.Errorf("%s: %s holds %q, which another machine or day would not give", model, file, m)
			}
		}
		for _, family := range []plan.Family{plan.PageSummary, plan.PageScore, plan.PageSelect, plan.PageAttend} {
			if !slices.ContainsFunc(slices.Collect(maps.Keys(b.Files)), func(f string) bool { return strings.HasPrefix(f, "kernels/"+string(family)+"_portable_") }) {
				t.Errorf("%s: no portable source of %s", model, family)
			}
		}
	}
}

// TestGoFile checks what a reader and a compiler meet: formatted, documented, and named after the families.
func TestGoFile(t *testing.T) {
	text := build(t, "llama-3.1-8b", nil, nil).Files["llama318b.go"]
	formatted, err := format.Source(text)
	if err != nil || !bytes.Equal(formatted, text) {
		t.Errorf("not formatted: %v", err)
	}
	file, err := parser.ParseFile(token.NewFileSet(), "llama318b.go", text, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	if file.Name.Name != "llama318b" {
		t.Errorf("package %s", file.Name.Name)
	}
	var functions []string
	for _, d := range file.Decls {
		switch d := d.(type) {
		case *ast.FuncDecl:
			functions = append(functions, d.Name.Name)
			if !strings.HasPrefix(d.Doc.Text(), d.Name.Name+" ") {
				t.Errorf("%s is not documented: %q", d.Name.Name, d.Doc.Text())
			}
		case *ast.GenDecl:
			if d.Tok != token.IMPORT && d.Doc.Text() == "" {
				t.Errorf("a declaration at %d is not documented", d.Pos())
			}
		}
	}
	want := []string{"Budget", "Open", "Load", "NewPageSummaryArgs", "PageSummary", "NewPageScoreArgs", "PageScore", "NewPageSelectArgs", "PageSelect", "NewPageAttendArgs", "PageAttend",
		"NewPageSelectAttendArgs", "PageSelectAttend",
		"NewDropObserveArgs", "DropObserve", "NewDropScoreArgs", "DropScore", "NewDropPoolArgs", "DropPool", "NewDropSelectArgs", "DropSelect", "NewDropPoolSelectArgs", "DropPoolSelect", "NewDropCompactArgs", "DropCompact", "SummaryBytes"}
	if diff := cmp.Diff(want, functions); diff != "" {
		t.Errorf("functions (-want +got):\n%s", diff)
	}
	var imports []string
	for _, i := range file.Imports {
		imports = append(imports, i.Path.Value)
	}
	if diff := cmp.Diff([]string{`"embed"`, `"github.com/kvloom/kvloom/runtime/device"`, `"github.com/kvloom/kvloom/runtime/kernel"`}, imports); diff != "" {
		t.Errorf("imports (-want +got):\n%s", diff)
	}
	for _, words := range []string{"RecordBytes  = 496", "PayloadBytes = 490", "equation 2 of the paper", "f32 [batch, q head, page]"} {
		if !bytes.Contains(text, []byte(words)) {
			t.Errorf("the file lacks %q", words)
		}
	}
}

func TestTunedTable(t *testing.T) {
	plain := build(t, "llama-3.1-8b", nil, nil)
	p := plan.New(plain.Spec, plan.Targets["sm_90a"]).Of(plan.PageSelect)
	other := p.Candidates[slices.IndexFunc(p.Candidates, func(c plan.Candidate) bool { return plain.Files["kernels/"+bind.FileName(c)] == nil })]
	var params []specs.TunedParam
	for _, q := range other.Params {
		params = append(params, specs.TunedParam(q))
	}
	table := &specs.Table{Model: "llama-3.1-8b", Choices: []specs.Tuned{
		{Work: "page_select", Context: 131072, Batch: 1, Form: string(other.Form), Params: params},
		{Work: "page_select", Context: 8192, Batch: 1, Form: "hopper", Params: []specs.TunedParam{{Name: "moons", Value: 3}}},
	}}
	b := build(t, "llama-3.1-8b", nil, table)
	file := "kernels/" + bind.FileName(other)
	if plain.Files[file] != nil || b.Files[file] == nil {
		t.Errorf("%s follows from the table alone", file)
	}
	if want := fmt.Sprintf(`{"page_select", 131072, 1, "%s", "%s", "%s"},`, other.ID(), other.Arch, file); !bytes.Contains(b.Files["llama318b.go"], []byte(want)) {
		t.Errorf("the choices lack %s", want)
	}
	if len(b.Warnings) != 1 || !strings.Contains(b.Warnings[0], "moons") {
		t.Errorf("a choice that the plan no longer has: %q", b.Warnings)
	}
}

func TestUnknownTarget(t *testing.T) {
	s, err := specs.Model("llama-3.1-8b")
	if err != nil {
		t.Fatal(err)
	}
	s.Targets = []string{"sm_42"}
	if _, err := Package(s, nil); err == nil || !strings.Contains(err.Error(), `gen llama-3.1-8b: plan: no target "sm_42"`) {
		t.Errorf("got %v", err)
	}
}

// TestGeneratedPackageInUse compiles generated packages in a module of their own and launches through them on a device that is
// none: what a user outside this repository does.
func TestGeneratedPackageInUse(t *testing.T) {
	if testing.Short() {
		t.Skip("compiles programs")
	}
	program, err := os.ReadFile("bind/testdata/use.go.txt")
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		name, model string
		change      func(s *specs.Spec)
		groups      int // lists a request
	}{
		{"group of 4", "llama-3.1-8b", nil, 8},
		{"per_head, softcap, fp16", "llama-3.1-8b", func(s *specs.Spec) {
			s.Locks.Combine, s.Attention.LogitSoftcap, s.Cache.DType = "per_head", 30, "fp16"
		}, 32},
	} {
		t.Run(tc.name, func(t *testing.T) {
			dir := t.TempDir()
			b := build(t, tc.model, tc.change, nil)
			name := Name(b.Spec.Name)
			for file, text := range b.Files {
				put(t, filepath.Join(dir, name, file), text)
			}
			put(t, filepath.Join(dir, "main.go"), bytes.ReplaceAll(program, []byte("MODEL"), []byte(name)))
			root, err := filepath.Abs("..")
			if err != nil {
				t.Fatal(err)
			}
			put(t, filepath.Join(dir, "go.mod"), fmt.Appendf(nil, "module example.com/user\n\ngo 1.26\n\nrequire github.com/kvloom/kvloom v0.0.0\n\nreplace github.com/kvloom/kvloom => %s\n", root))
			args := []string{"run", "-mod=mod", "."}
			for _, w := range b.Works[:4] {
				args = append(args, w.Defaults[0].Key)
			}
			cmd := exec.Command("go", append(args, filepath.Join(dir, "bundle"))...)
			cmd.Dir, cmd.Env = dir, append(os.Environ(), "GOFLAGS=", "GOWORK=off")
			out, err := cmd.CombinedOutput()
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			for _, want := range []string{"page_summary [1 1 1] 208\n", "page_score [1 1 1] 256\n", "page_select [1 1 1] 104\n", "page_attend [1 1 1] 264\n",
				"other slots: true\n", `other key: the bundle was made for page_score for "d1", not "`} {
				if !strings.Contains(string(out), want) {
					t.Errorf("the program printed\n%swithout %q", out, want)
				}
			}
		})
	}
}

func put(t *testing.T, file string, text []byte) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(file, text, 0o644); err != nil {
		t.Fatal(err)
	}
}
