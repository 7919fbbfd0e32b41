package doctest

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/internal/cli"
	"github.com/kvloom/kvloom/specs"
)

func itoa(n int) string { return strconv.Itoa(n) }

// A quoted block follows a marker that says where its text comes from:
//
//	<!-- file: PATH -->                        the whole file
//	<!-- lines: PATH: FROM ... TO -->          from the first line that contains FROM to the next that contains TO, indented less
//	<!-- func: PATH: NAME -->                  one Go function with its comment
//	<!-- output: kvloom ARGS -->               what the command prints; with " ... TO" up to the line that contains TO
//	<!-- source: MODEL FAMILY FORM -->         the rendered source of the form's default candidate for the model's first target
var quoted = regexp.MustCompile("(?ms)^<!-- (file|lines|func|output|source): ([^\n]*) -->\n```(\\w+)\n(.*?)^```$")

// TestQuotes compares every quoted block with its source; KVLOOM_UPDATE=1 rewrites the blocks.
func TestQuotes(t *testing.T) {
	for _, d := range documents(t) {
		updated := quoted.ReplaceAllStringFunc(d.text, func(block string) string {
			m := quoted.FindStringSubmatch(block)
			want, err := quote(m[1], m[2])
			if err != nil {
				t.Errorf("%s: %s: %v", d.path, m[1]+": "+m[2], err)
				return block
			}
			if diff := cmp.Diff(strings.Split(want, "\n"), strings.Split(m[4], "\n")); diff != "" && os.Getenv(updateVariable) == "" {
				t.Errorf("%s quotes %s: %s (%s=1 rewrites it), source - document +:\n%s", d.path, m[1], m[2], updateVariable, diff)
			}
			return "<!-- " + m[1] + ": " + m[2] + " -->\n```" + m[3] + "\n" + want + "```"
		})
		if os.Getenv(updateVariable) != "" && updated != d.text {
			if err := os.WriteFile(filepath.Join(top, d.path), []byte(updated), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
}

// TestReadmeQuotes: the example is a spec, a kernel and a call, none of them typed by hand.
func TestReadmeQuotes(t *testing.T) {
	d := read(t, "README.md")
	languages := map[string]int{}
	for _, m := range quoted.FindAllStringSubmatch(d.text, -1) {
		languages[m[3]]++
	}
	for _, want := range []string{"yaml", "cuda", "go", "text"} {
		if languages[want] == 0 {
			t.Errorf("README.md quotes no %s block", want)
		}
	}
	for i, line := range strings.Split(d.text, "\n") {
		for _, l := range []string{"yaml", "cuda", "go"} {
			if line == "```"+l && !strings.HasPrefix(strings.Split(d.text, "\n")[i-1], "<!-- ") {
				t.Errorf("README.md:%d: a %s block without a marker above it that says where it comes from", i+1, l)
			}
		}
	}
}

// quote makes the text of a block.
func quote(kind, what string) (string, error) {
	switch kind {
	case "file":
		b, err := os.ReadFile(filepath.Join(top, what))
		return string(b), err
	case "lines":
		path, span, ok1 := strings.Cut(what, ": ")
		from, to, ok2 := strings.Cut(span, " ... ")
		if !ok1 || !ok2 {
			return "", fmt.Errorf("want PATH: FROM ... TO")
		}
		return excerpt(path, from, to)
	case "func":
		path, name, ok := strings.Cut(what, ": ")
		if !ok {
			return "", fmt.Errorf("want PATH: NAME")
		}
		return function(path, name)
	case "output":
		command, to, part := strings.Cut(what, " ... ")
		text, err := output(strings.Fields(command))
		if err != nil || !part {
			return text, err
		}
		return upTo(strings.SplitAfter(text, "\n"), to)
	case "source":
		words := strings.Fields(what)
		if len(words) != 3 {
			return "", fmt.Errorf("want MODEL FAMILY FORM")
		}
		return source(words[0], plan.Family(words[1]), plan.Form(words[2]))
	}
	return "", fmt.Errorf("unknown kind")
}

func upTo(lines []string, to string) (string, error) {
	for i, l := range lines {
		if strings.Contains(l, to) {
			return strings.Join(lines[:i+1], ""), nil
		}
	}
	return "", fmt.Errorf("no line contains %q", to)
}

func excerpt(path, from, to string) (string, error) {
	b, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		return "", err
	}
	lines := strings.Split(string(b), "\n")
	for first := range lines {
		if !strings.Contains(lines[first], from) {
			continue
		}
		for last := first; last < len(lines); last++ {
			if strings.Contains(lines[last], to) {
				return dedent(lines[first : last+1]), nil
			}
		}
		return "", fmt.Errorf("%q does not follow %q", to, from)
	}
	return "", fmt.Errorf("no line contains %q", from)
}

// dedent takes the first line's tabs from all lines.
func dedent(lines []string) string {
	indent := lines[0][:len(lines[0])-len(strings.TrimLeft(lines[0], "\t"))]
	var b strings.Builder
	for _, l := range lines {
		b.WriteString(strings.TrimPrefix(l, indent) + "\n")
	}
	return b.String()
}

func function(path, name string) (string, error) {
	b, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		return "", err
	}
	fset := token.NewFileSet()
	f, err := parser.ParseFile(fset, path, b, parser.ParseComments)
	if err != nil {
		return "", err
	}
	for _, d := range f.Decls {
		if fn, ok := d.(*ast.FuncDecl); ok && fn.Name.Name == name {
			start := fn.Pos()
			if fn.Doc != nil {
				start = fn.Doc.Pos()
			}
			return string(b[fset.Position(start).Offset:fset.Position(fn.End()).Offset]) + "\n", nil
		}
	}
	return "", fmt.Errorf("no function %s", name)
}

func output(args []string) (string, error) {
	if len(args) == 0 || args[0] != "kvloom" {
		return "", fmt.Errorf("want kvloom and its arguments")
	}
	// A reader runs it at the top, where files have the names that the documents give.
	here, err := os.Getwd()
	if err == nil {
		err = os.Chdir(top)
	}
	if err != nil {
		return "", err
	}
	defer os.Chdir(here) //nolint:errcheck // it was there a moment ago
	var stdout, stderr bytes.Buffer
	if code := cli.Run(args[1:], &stdout, &stderr); code != 0 {
		return "", fmt.Errorf("exit code %d: %s", code, &stderr)
	}
	return stdout.String(), nil
}

func source(model string, family plan.Family, form plan.Form) (string, error) {
	s, err := specs.Model(model)
	if err != nil {
		return "", err
	}
	c, ok := plan.New(s, plan.Targets[s.Targets[0]]).Of(family).DefaultOf(form)
	if !ok {
		return "", fmt.Errorf("%s has no %s form", family, form)
	}
	src, err := render.Candidate(c)
	return src.Text, err
}

var inlineCommand = regexp.MustCompile("`(make|kvloom) ([a-z-]+)[^`]*`")

// TestCommands: a make target and a verb that a document names in backquotes or in a block of shell exist.
func TestCommands(t *testing.T) {
	verbs := verbs(t)
	makefile := read(t, "Makefile").text
	for _, d := range documents(t) {
		for _, gone := range missingCommands(d, verbs, makefile) {
			t.Error(gone)
		}
	}
}

func missingCommands(d document, verbs map[string]string, makefile string) []string {
	var gone []string
	shell := false
	for i, line := range strings.Split(d.text, "\n") {
		if strings.HasPrefix(line, "```") {
			shell = line == "```sh"
			continue
		}
		found := inlineCommand.FindAllStringSubmatch(line, -1)
		if shell {
			found = inlineCommand.FindAllStringSubmatch("`"+strings.TrimPrefix(strings.TrimSpace(line), "bin/")+"`", -1)
		}
		for _, m := range found {
			known := false
			if m[1] == "make" {
				known = strings.Contains(makefile, "\n"+m[2]+":")
			} else {
				_, known = verbs[m[2]]
			}
			if !known {
				gone = append(gone, fmt.Sprintf("%s:%d: there is no %s %s", d.path, i+1, m[1], m[2]))
			}
		}
	}
	return gone
}

// verbs are the program's verbs with their help.
func verbs(t *testing.T) map[string]string {
	t.Helper()
	help, err := output([]string{"kvloom", "--help"})
	if err != nil {
		t.Fatal(err)
	}
	_, list, ok := strings.Cut(help, "Commands:\n")
	if !ok {
		t.Fatalf("no commands in the help:\n%s", help)
	}
	verbs := map[string]string{}
	for _, m := range regexp.MustCompile(`(?m)^  ([a-z-]+).*$`).FindAllStringSubmatch(list, -1) {
		verbs[m[1]] = m[0]
	}
	return verbs
}

func TestMissingCommands(t *testing.T) {
	d := document{"x.md", "`make demo` `make gone` `kvloom spec show X` `kvloom dance`\n```sh\nmake gone-too\nbin/kvloom sing\n```\n"}
	got := missingCommands(d, map[string]string{"spec": ""}, "\ndemo: x\n")
	if len(got) != 4 {
		t.Errorf("%q", got)
	}
}

func TestQuoteFailures(t *testing.T) {
	for _, tt := range []struct{ kind, what, reason string }{
		{"file", "gone.yaml", "no such file"},
		{"lines", "README.md: no such words here ... x", "FROM is not there"},
		{"lines", "Makefile: help: ## ... never such words", "TO is not there"},
		{"func", "internal/doctest/quote_test.go: gone", "no such function"},
		{"output", "kvloom spec show gone", "the command fails"},
		{"output", "kvloom spec list ... no such words", "TO is not there"},
		{"source", "smollm2-135m page_score gone", "no such form"},
	} {
		if text, err := quote(tt.kind, tt.what); err == nil {
			t.Errorf("%s: %s (%s) gives %q", tt.kind, tt.what, tt.reason, text)
		}
	}
}
