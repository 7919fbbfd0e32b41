package doctest

import (
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const (
	top            = "../.."
	updateVariable = "KVLOOM_UPDATE" // rewrites quoted blocks and the measured section
)

// document is one Markdown file, its path slash separated from the top.
type document struct {
	path string
	text string
}

// documents are all Markdown files of the tree, those in ignored folders left out.
func documents(t *testing.T) []document {
	t.Helper()
	var docs []document
	err := filepath.WalkDir(top, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && path != top && (strings.HasPrefix(d.Name(), ".") || d.Name() == "bin") {
			return filepath.SkipDir
		}
		if d.IsDir() || filepath.Ext(path) != ".md" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(top, path)
		if err != nil {
			return err
		}
		docs = append(docs, document{filepath.ToSlash(rel), string(b)})
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return docs
}

// read returns one document.
func read(t *testing.T, path string) document {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(top, path))
	if err != nil {
		t.Fatal(err)
	}
	return document{path, string(b)}
}

// prose is the text without fenced blocks: line numbers stay.
func (d document) prose() []string {
	lines := strings.Split(d.text, "\n")
	fenced := false
	for i, l := range lines {
		if strings.HasPrefix(l, "```") {
			fenced = !fenced
			lines[i] = ""
		} else if fenced {
			lines[i] = ""
		}
	}
	return lines
}

// section is what stands between two markers of a document.
func (d document) section(t *testing.T, name string) string {
	t.Helper()
	_, rest, ok := strings.Cut(d.text, "<!-- "+name+":begin -->\n")
	body, _, closed := strings.Cut(rest, "<!-- "+name+":end -->")
	if !ok || !closed {
		t.Fatalf("%s has no section between <!-- %s:begin --> and <!-- %s:end -->", d.path, name, name)
	}
	return body
}

func TestEveryDocumentIsThere(t *testing.T) {
	var have []string
	for _, d := range documents(t) {
		have = append(have, d.path)
	}
	for _, want := range []string{"README.md", "CHANGELOG.md", "CONTRIBUTING.md", "docs/architecture.md", "docs/rationale.md", "docs/kernels.md"} {
		if !slices.Contains(have, want) {
			t.Errorf("%s is missing", want)
		}
	}
}

var link = regexp.MustCompile(`\[[^\]]*\]\(([^)\s]+)\)`)

// TestLinks: every relative link leads to a file or folder of the tree, and its anchor to a heading there.
func TestLinks(t *testing.T) {
	for _, d := range documents(t) {
		for _, broken := range brokenLinks(d) {
			t.Error(broken)
		}
	}
}

func brokenLinks(d document) []string {
	var broken []string
	for i, line := range d.prose() {
		for _, m := range link.FindAllStringSubmatch(line, -1) {
			target, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(target, "://") || strings.HasPrefix(target, "mailto:") {
				continue
			}
			path := d.path
			if target != "" {
				path = filepath.ToSlash(filepath.Join(filepath.Dir(d.path), target))
			}
			at := d.path + ":" + itoa(i+1)
			b, err := os.ReadFile(filepath.Join(top, path))
			info, statErr := os.Stat(filepath.Join(top, path))
			switch {
			case statErr != nil:
				broken = append(broken, at+": link to "+m[1]+": no such file")
			case anchor != "" && (info.IsDir() || err != nil):
				broken = append(broken, at+": link to "+m[1]+": an anchor needs a document")
			case anchor != "" && !slices.Contains(anchors(string(b)), anchor):
				broken = append(broken, at+": link to "+m[1]+": no such heading")
			}
		}
	}
	return broken
}

var notAnchor = regexp.MustCompile(`[^a-z0-9 _-]`)

// anchors are the names that headings get.
func anchors(text string) []string {
	var names []string
	for _, l := range (document{"", text}).prose() {
		if title := strings.TrimLeft(l, "#"); title != l && strings.HasPrefix(title, " ") {
			names = append(names, strings.ReplaceAll(notAnchor.ReplaceAllString(strings.ToLower(strings.TrimSpace(title)), ""), " ", "-"))
		}
	}
	return names
}

var (
	code     = regexp.MustCompile("`([^`]+)`")
	namePath = regexp.MustCompile(`^[A-Za-z_][\w.-]*(/[\w.*-]+)+/?$|^[A-Za-z_][\w.-]*/$`)
)

// TestNamedPaths: a path in backquotes that begins with a folder of the tree exists; * stands for any name.
func TestNamedPaths(t *testing.T) {
	for _, d := range documents(t) {
		for _, gone := range missingPaths(d) {
			t.Error(gone)
		}
	}
}

// outsidePaths begin like folders of the tree and are none of its files: what a machine writes.
var outsidePaths = []string{"bin/kvloom", "bin/", resultsFile}

func missingPaths(d document) []string {
	var gone []string
	for i, line := range d.prose() {
		for _, m := range code.FindAllStringSubmatch(line, -1) {
			path := m[1]
			if !namePath.MatchString(path) || slices.Contains(outsidePaths, path) {
				continue
			}
			first, _, _ := strings.Cut(path, "/")
			inTree := false
			for _, base := range []string{"", filepath.Dir(d.path)} {
				if info, err := os.Stat(filepath.Join(top, base, first)); err != nil || !info.IsDir() {
					continue
				}
				inTree = true
				if found, err := filepath.Glob(filepath.Join(top, base, path)); err == nil && len(found) > 0 {
					inTree = false
					break
				}
			}
			if inTree {
				gone = append(gone, d.path+":"+itoa(i+1)+": "+path+" does not exist")
			}
		}
	}
	return gone
}

// TestStyle: plain sentences in lines of at most 120 columns, tables aside; no em-dash.
func TestStyle(t *testing.T) {
	for _, d := range documents(t) {
		if !strings.HasPrefix(d.path, "docs/") && d.path != "README.md" && d.path != "CHANGELOG.md" {
			continue
		}
		for i, line := range d.prose() {
			if strings.ContainsRune(line, '\u2014') {
				t.Errorf("%s:%d has an em-dash", d.path, i+1)
			}
			if n := len([]rune(line)); n > 120 && !strings.HasPrefix(line, "|") {
				t.Errorf("%s:%d is %d columns wide", d.path, i+1, n)
			}
		}
	}
}

// TestCheckers: the checks above can fail.
func TestCheckers(t *testing.T) {
	d := document{"docs/x.md", "# A title: one\n[a](../README.md) [b](gone.md) [c](#a-title-one) [d](#none) `specs/gone.go` `specs/*.yaml` `specs/x` `gone/x`\n" +
		"```\n[e](also-gone.md)\n```\n"}
	if got := brokenLinks(d); len(got) != 3 { // gone.md, #none, and #a-title-one, for docs/x.md itself does not exist
		t.Errorf("broken links: %q", got)
	}
	if got := missingPaths(d); len(got) != 2 {
		t.Errorf("missing paths: %q", got)
	}
	if got := anchors(d.text); !slices.Equal(got, []string{"a-title-one"}) {
		t.Errorf("anchors: %q", got)
	}
}
