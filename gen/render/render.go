// Package render turns a candidate into CUDA source: a tiny instantiation of a real kernel header, with its include closure.
package render

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"io/fs"
	"maps"
	"path"
	"regexp"
	"slices"
	"sort"
	"strings"
	"sync"
	"text/template"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/templates"
)

// Source is one translation unit for NVRTC. Headers maps include names to their text: the whole closure of Text, except the
// toolkit's own headers.
type Source struct {
	Name    string            // "page_score.cu"
	Text    string            // the instantiation
	Headers map[string]string // "kvloom/abi.cuh" -> text
	Entry   string            // extern "C" kernel name
	Arch    string            // "sm_90a", "compute_80"
	Hash    string            // sha256 of text, headers and entry, hex
}

// context is what instantiation templates see.
type context struct{ plan.Candidate }

// Threads is the block size, for __launch_bounds__.
func (c context) Threads() int { return c.Geometry.Block }

// Candidate renders one candidate.
func Candidate(c plan.Candidate) (Source, error) {
	name := "inst/" + string(c.Family) + ".cu.tmpl"
	text, err := fs.ReadFile(templates.FS, name)
	if err != nil {
		return Source{}, fmt.Errorf("render %s: %w", c.ID(), err)
	}
	t, err := template.New(path.Base(name)).Delims("/*{", "}*/").Option("missingkey=error").Parse(string(text))
	if err != nil {
		return Source{}, fmt.Errorf("render %s: %w", c.ID(), err)
	}
	var b bytes.Buffer
	if err := t.Execute(&b, context{c}); err != nil {
		return Source{}, fmt.Errorf("render %s: %w", c.ID(), err)
	}
	s := Source{Name: string(c.Family) + ".cu", Text: b.String(), Entry: c.Entry, Arch: c.Arch}
	if s.Headers, err = headersOf(s.Text); err != nil {
		return Source{}, fmt.Errorf("render %s: %w", c.ID(), err)
	}
	s.Hash = s.hash()
	return s, nil
}

var include = regexp.MustCompile(`(?m)^\s*#\s*include\s*"([^"]+)"`)

// closures holds what headersOf found, by the includes asked for. Headers are part of the program and never change.
var closures sync.Map

// headersOf returns every header that text includes, and theirs: a map of the caller's own. Hundreds of candidates share one closure.
func headersOf(text string) (map[string]string, error) {
	key := strings.Join(include.FindAllString(text, -1), "\n")
	if kept, ok := closures.Load(key); ok {
		return maps.Clone(kept.(map[string]string)), nil
	}
	headers := map[string]string{}
	if err := closure(text, headers); err != nil {
		return nil, err
	}
	closures.Store(key, headers)
	return maps.Clone(headers), nil
}

// closure adds every header that text includes, and theirs, to headers.
func closure(text string, headers map[string]string) error {
	for _, m := range include.FindAllStringSubmatch(text, -1) {
		name := m[1]
		if _, seen := headers[name]; seen {
			continue
		}
		file := "include/" + name
		if strings.HasPrefix(name, "kernels/") {
			file = name
		}
		body, err := fs.ReadFile(templates.FS, file)
		if err != nil {
			return fmt.Errorf("include %q: %w", name, err)
		}
		headers[name] = string(body)
		if err := closure(string(body), headers); err != nil {
			return err
		}
	}
	return nil
}

func (s Source) hash() string {
	h := sha256.New()
	fmt.Fprintf(h, "%s\x00%s\x00%s\x00", s.Entry, s.Arch, s.Text)
	for _, name := range s.HeaderNames() {
		fmt.Fprintf(h, "%s\x00%s\x00", name, s.Headers[name])
	}
	return hex.EncodeToString(h.Sum(nil))
}

// HeaderNames returns the include names, sorted.
func (s Source) HeaderNames() []string {
	names := make([]string, 0, len(s.Headers))
	for name := range s.Headers {
		names = append(names, name)
	}
	sort.Strings(names)
	return slices.Clip(names)
}
