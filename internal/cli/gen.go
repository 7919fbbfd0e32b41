package cli

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/gen"
	"github.com/kvloom/kvloom/gen/bind"
	"github.com/kvloom/kvloom/specs"
)

// GenCmd generates the Go packages of models.
type GenCmd struct {
	Models []string `arg:"" optional:"" name:"model" help:"Models, or spec files. Default: every model, and packages of models that are gone are removed."`
	Check  bool     `help:"Change nothing; fail when a generated file is missing, stale or left over."`
	Out    string   `default:"out" help:"Folder of the packages."`
}

// genResult is what --json prints.
type genResult struct {
	Packages []string `json:"packages"`
	Files    int      `json:"files"`
	Written  []string `json:"written"` // with --check: that would be written
	Removed  []string `json:"removed"` // with --check: that would be removed
	Warnings []string `json:"warnings"`
}

// Run generates everything in memory first, so that an error leaves the folder as it was.
func (c *GenCmd) Run(ctx *Context) error {
	models := c.Models
	all := len(models) == 0
	if all {
		models = specs.Names()
	}
	tree, r, err := c.generate(models)
	if err != nil {
		return err
	}
	for _, w := range r.Warnings {
		fmt.Fprintln(ctx.Stderr, "warning:", w)
	}
	if r.Written, r.Removed, err = compareTree(c.Out, tree, r.Packages, all); err != nil {
		return err
	}
	if !c.Check {
		if err := applyTree(c.Out, tree, r); err != nil {
			return err
		}
	}
	if ctx.JSON {
		if err := ctx.PrintJSON(r); err != nil {
			return err
		}
	}
	changes := len(r.Written) + len(r.Removed)
	if c.Check && changes > 0 {
		return fmt.Errorf("%s is not what the specs give: %s; run 'kvloom gen'", c.Out, describeChanges(r))
	}
	fmt.Fprintf(ctx.Stderr, "%d packages, %d files in %s, %d changed\n", len(r.Packages), r.Files, c.Out, changes)
	return nil
}

// generate makes all packages: path below the folder -> content.
func (c *GenCmd) generate(models []string) (map[string][]byte, genResult, error) {
	tree := map[string][]byte{}
	r := genResult{Packages: []string{}, Written: []string{}, Removed: []string{}, Warnings: []string{}}
	owner := map[string]string{}
	var faults []error
	for _, m := range models {
		s, err := specs.Resolve(m)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		name := gen.Name(s.Name)
		if other, ok := owner[name]; ok {
			faults = append(faults, fmt.Errorf("%s and %s would both be package %s", other, s.Name, name))
			continue
		}
		owner[name] = s.Name
		b, err := genModel(s)
		if err != nil {
			faults = append(faults, err)
			continue
		}
		r.Packages = append(r.Packages, name)
		for _, w := range b.Warnings {
			r.Warnings = append(r.Warnings, s.Name+": "+w)
		}
		for file, text := range b.Files {
			tree[filepath.Join(name, filepath.FromSlash(file))] = text
		}
	}
	r.Files = len(tree)
	return tree, r, errors.Join(faults...)
}

func genModel(s *specs.Spec) (gen.Build, error) {
	table, ok, err := specs.TunedTable(s.Name)
	if err != nil {
		return gen.Build{}, err
	}
	if !ok {
		return gen.Package(s, nil)
	}
	return gen.Package(s, &table)
}

// compareTree lists the files that differ from the tree, and the generated ones that it lacks. With all, packages that the tree lacks
// altogether count too. A file without the marker is a person's: it is never listed, never removed.
func compareTree(out string, tree map[string][]byte, packages []string, all bool) (write, remove []string, err error) {
	write, remove = []string{}, []string{}
	for file, text := range tree {
		old, err := os.ReadFile(filepath.Join(out, file))
		if err != nil && !errors.Is(err, fs.ErrNotExist) {
			return nil, nil, fmt.Errorf("gen: %w", err)
		}
		if err != nil || !bytes.Equal(old, text) {
			write = append(write, file)
		}
	}
	err = filepath.WalkDir(out, func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) && path == out {
			return nil
		}
		if err != nil || d.IsDir() {
			return err
		}
		rel, err := filepath.Rel(out, path)
		if err != nil {
			return err
		}
		pkg, _, _ := strings.Cut(filepath.ToSlash(rel), "/")
		if _, ours := tree[rel]; ours || !all && !slices.Contains(packages, pkg) {
			return nil
		}
		text, err := os.ReadFile(path)
		if err == nil && bytes.HasPrefix(text, []byte(bind.Header)) {
			remove = append(remove, rel)
		}
		return err
	})
	if err != nil {
		return nil, nil, fmt.Errorf("gen: %w", err)
	}
	slices.Sort(write)
	slices.Sort(remove)
	return write, remove, nil
}

// applyTree writes and removes; folders that become empty go too.
func applyTree(out string, tree map[string][]byte, r genResult) error {
	for _, file := range r.Written {
		path := filepath.Join(out, file)
		if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
			return fmt.Errorf("gen: %w", err)
		}
		tmp := path + ".tmp"
		err := os.WriteFile(tmp, tree[file], 0o644)
		if err == nil {
			err = os.Rename(tmp, path)
		}
		if err != nil {
			return fmt.Errorf("gen: %w", errors.Join(err, ignoreMissing(os.Remove(tmp))))
		}
	}
	for _, file := range r.Removed {
		if err := os.Remove(filepath.Join(out, file)); err != nil {
			return fmt.Errorf("gen: %w", err)
		}
		for dir := filepath.Dir(file); dir != "."; dir = filepath.Dir(dir) {
			if os.Remove(filepath.Join(out, dir)) != nil {
				break // not empty
			}
		}
	}
	return nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}

// describeChanges names the first few files.
func describeChanges(r genResult) string {
	var words []string
	for _, f := range r.Written {
		words = append(words, f+" is missing or stale")
	}
	for _, f := range r.Removed {
		words = append(words, f+" is left over")
	}
	if n := len(words); n > 5 {
		words = append(words[:5], fmt.Sprintf("and %d more", n-5))
	}
	return strings.Join(words, ", ")
}
