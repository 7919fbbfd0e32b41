package specs

import (
	"bytes"
	"embed"
	"errors"
	"fmt"
	"io/fs"
	"math"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// A spec has a few dozen lines. The YAML parser takes quadratic time on deep nesting (64000 open brackets: 19 s), so it is not
// handed just anything.
const (
	maxFile     = 64 << 10
	maxBrackets = 4096
)

//go:embed *.yaml
var models embed.FS

// Names returns the model specs that come with kvloom, sorted.
func Names() []string {
	files, err := fs.Glob(models, "*.yaml")
	if err != nil {
		panic(fmt.Sprintf("BUG: specs: %v", err))
	}
	names := make([]string, len(files))
	for i, f := range files {
		names[i] = strings.TrimSuffix(f, ".yaml")
	}
	slices.Sort(names)
	return names
}

// Model returns a spec that comes with kvloom.
func Model(name string) (*Spec, error) {
	data, err := models.ReadFile(name + ".yaml")
	if err != nil {
		msg := fmt.Sprintf("no model spec %q", name)
		if near, ok := Nearest(name, Names()); ok {
			msg += fmt.Sprintf("; did you mean %q?", near)
		}
		return nil, errors.New(msg + " ('kvloom spec list' names all)")
	}
	return Parse(name+".yaml", data)
}

// Resolve returns a model spec by its name, or a spec file by its path: what every verb takes as MODEL|FILE. A word with a
// separator or a YAML ending is a path.
func Resolve(nameOrPath string) (*Spec, error) {
	if strings.ContainsAny(nameOrPath, `/\`) || isYAML(nameOrPath) {
		return Load(nameOrPath)
	}
	return Model(nameOrPath)
}

// Load reads a spec file. The error is Errors where the file was read but is not a spec.
func Load(path string) (*Spec, error) {
	info, err := os.Stat(path)
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	if info.Size() > maxFile {
		return nil, Errors{{path, 1, 1, tooLong}}
	}
	data, err := os.ReadFile(path)
	if err != nil {
		return nil, fmt.Errorf("read spec: %w", err)
	}
	s, err := parse(path, data, true)
	if err != nil {
		return nil, err
	}
	return s, nil
}

const tooLong = "the file is longer than 64 KiB; a spec has a few dozen lines"

// Parse reads a spec from memory and fills in defaults. name is the file's name for messages; if it ends in .yaml or .yml, the
// spec's name has to be its stem. All faults are found in one run; the error is then Errors. Files that the spec names are not looked at.
func Parse(name string, data []byte) (*Spec, error) { return parse(name, data, false) }

// parse is Parse; disk says that name is a file on it, beside which others that the spec names are.
func parse(name string, data []byte, disk bool) (*Spec, error) {
	if len(data) > maxFile {
		return nil, Errors{{name, 1, 1, tooLong}}
	}
	if n := bytes.Count(data, []byte("[")) + bytes.Count(data, []byte("{")); n > maxBrackets {
		return nil, Errors{{name, 1, 1, fmt.Sprintf("the file has %d brackets; a spec has a few dozen", n)}}
	}
	root, problems := parseYAML(name, bytes.TrimPrefix(data, []byte("\ufeff")))
	if problems != nil {
		return nil, problems
	}
	d := newDecoder(name, root)
	d.disk = disk
	body := d.plain(root)
	if pairs(body) == nil {
		return nil, Errors{{name, position(root).Line, position(root).Column, fmt.Sprintf("the file is %s; want a spec with name and attention", describe(body))}}
	}
	s := &Spec{}
	if disk {
		s.Folder = filepath.Dir(name)
	}
	setDefaults(reflect.ValueOf(s).Elem(), language)
	start := position(body)
	d.section(body, reflect.ValueOf(s).Elem(), language, "", start)
	d.dependentDefaults(s)
	d.combine(s, start)
	d.stem(s, name)
	if len(d.problems) > 0 {
		return nil, d.problems.sorted()
	}
	return s, nil
}

// parseYAML returns the one document of the file.
func parseYAML(name string, data []byte) (root ast.Node, problems Errors) {
	defer func() {
		// The parser is written for files that people mean well; a file that makes it panic is still only a bad file.
		if r := recover(); r != nil {
			root, problems = nil, Errors{{name, 1, 1, fmt.Sprintf("not YAML: the parser gave up (%v)", r)}}
		}
	}()
	file, err := parser.ParseBytes(data, 0, parser.AllowDuplicateMapKey())
	if err != nil {
		line, col, msg := 1, 1, err.Error()
		var y yaml.Error
		if errors.As(err, &y) {
			msg = y.GetMessage()
			if tk := y.GetToken(); tk != nil && tk.Position != nil {
				line, col = tk.Position.Line, tk.Position.Column
			}
		}
		return nil, Errors{{name, line, col, "not YAML: " + clipTo(msg, 200)}}
	}
	var docs []*ast.DocumentNode
	for _, doc := range file.Docs {
		if doc.Body != nil && doc.Body.Type() != ast.CommentType {
			docs = append(docs, doc)
		}
	}
	switch len(docs) {
	case 0:
		return nil, Errors{{name, 1, 1, "the file is empty; want a spec with name and attention"}}
	case 1:
		return docs[0].Body, nil
	}
	at := position(docs[1].Body)
	return nil, Errors{{name, at.Line, at.Column, "a second document begins here; a file holds one spec"}}
}

// dependentDefaults fills in what depends on other fields.
func (d *decoder) dependentDefaults(s *Spec) {
	if !d.written("attention.softmax_scale") && s.Attention.HeadDim > 0 {
		s.Attention.SoftmaxScale = 1 / math.Sqrt(float64(s.Attention.HeadDim))
	}
	if !d.written("locks.summary_tokens") {
		s.Locks.SummaryTokens = s.Cache.PageSize
	}
	k := &s.DropKV
	if !d.written("dropkv.pool.width") {
		k.Pool.Width = 11
		if k.Pool.Kind == "none" {
			k.Pool.Width = 1
		}
	}
	if !d.written("dropkv.budget.ratio") && !d.written("dropkv.budget.tokens") {
		k.Budget.Ratio = 0.05
	}
	if !d.written("dropkv.head_budgets.floor") && k.HeadBudgets.Kind == "adaptive" {
		k.HeadBudgets.Floor = 0.2 // what AdaKV calls its safeguard
	}
	if !d.written("workloads") {
		s.Workloads = []Workload{{Context: 32768, Batch: 1}, {Context: 131072, Batch: 1}}
	}
}

// stem holds the name against the file's: verbs and out/ find a spec by either.
func (d *decoder) stem(s *Spec, file string) {
	if !isYAML(file) || d.bad["name"] {
		return
	}
	base := filepath.Base(file)
	if want := strings.TrimSuffix(base, filepath.Ext(base)); s.Name != want {
		d.add(d.at["name"], "name is %q; the file is %s, so it has to be %q, or rename the file", clip(s.Name), base, want)
	}
}

func isYAML(file string) bool {
	ext := strings.ToLower(filepath.Ext(file))
	return ext == ".yaml" || ext == ".yml"
}
