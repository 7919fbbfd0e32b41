package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/kvloom/kvloom/specs"
)

// SpecCmd groups what concerns specs alone.
type SpecCmd struct {
	Check  SpecCheckCmd  `cmd:"" help:"Report every fault of spec files as file:line:col: message."`
	Show   SpecShowCmd   `cmd:"" help:"Show what follows from a spec: k, bytes, tensor parallelism."`
	List   SpecListCmd   `cmd:"" help:"List the model specs that come with kvloom."`
	Import SpecImportCmd `cmd:"" help:"Turn a Hugging Face config.json into a spec, on stdout."`
	Schema SpecSchemaCmd `cmd:"" help:"Write the JSON Schema of specs for editors."`
}

// SpecCheckCmd checks files.
type SpecCheckCmd struct {
	Files []string `arg:"" name:"file" help:"Spec files."`
}

// Run checks all files before it fails.
func (c *SpecCheckCmd) Run(ctx *Context) error {
	faults := specs.Errors{}
	var others []error
	for _, file := range c.Files {
		_, err := specs.Load(file)
		var e specs.Errors
		switch {
		case errors.As(err, &e):
			faults = append(faults, e...)
		case err != nil:
			others = append(others, err)
		case !ctx.JSON:
			fmt.Fprintf(ctx.Stderr, "%s: ok\n", file)
		}
	}
	if ctx.JSON {
		if err := ctx.PrintJSON(faults); err != nil {
			return err
		}
	}
	if len(faults) > 0 {
		others = append([]error{faults}, others...)
	}
	return errors.Join(others...)
}

// SpecListCmd lists the embedded specs.
type SpecListCmd struct{}

// modelLine is one line of the list.
type modelLine struct {
	Name       string `json:"name"`
	QueryHeads int    `json:"query_heads"`
	KVHeads    int    `json:"kv_heads"`
	Group      int    `json:"group"`
	HeadDim    int    `json:"head_dim"`
	Budget     int    `json:"budget_tokens"`
	MaxContext int    `json:"max_context"` // the longest workload
}

// Run prints one line a model.
func (SpecListCmd) Run(ctx *Context) error {
	var lines []modelLine
	for _, name := range specs.Names() {
		s, err := specs.Model(name)
		if err != nil {
			return err
		}
		l := modelLine{Name: name, QueryHeads: s.Attention.QueryHeads, KVHeads: s.Attention.KVHeads, Group: s.Attention.Group(),
			HeadDim: s.Attention.HeadDim, Budget: s.Locks.BudgetTokens}
		for _, w := range s.Workloads {
			l.MaxContext = max(l.MaxContext, w.Context)
		}
		lines = append(lines, l)
	}
	if ctx.JSON {
		return ctx.PrintJSON(lines)
	}
	fmt.Fprintf(ctx.Stdout, "%-28s %7s %8s %5s %8s %6s %8s\n", "model", "q heads", "kv heads", "group", "head dim", "budget", "context")
	for _, l := range lines {
		fmt.Fprintf(ctx.Stdout, "%-28s %7d %8d %5d %8d %6d %8d\n", l.Name, l.QueryHeads, l.KVHeads, l.Group, l.HeadDim, l.Budget, l.MaxContext)
	}
	return nil
}

// SpecImportCmd imports a model's config.
type SpecImportCmd struct {
	Config string `arg:"" name:"config.json" help:"The model's config.json."`
	Name   string `help:"Name of the spec. Default: from _name_or_path, else from the config's folder."`
}

// Run writes the spec to stdout and what to know about it to stderr.
func (c *SpecImportCmd) Run(ctx *Context) error {
	data, err := os.ReadFile(c.Config)
	if err != nil {
		return fmt.Errorf("read config: %w", err)
	}
	name := c.Name
	if name == "" {
		name = nameFor(c.Config, data)
	}
	imported, err := specs.Import(name, data)
	if err != nil {
		return fmt.Errorf("%s: %w", c.Config, err)
	}
	for _, note := range imported.Notes {
		fmt.Fprintf(ctx.Stderr, "note: %s\n", note)
	}
	if ctx.JSON {
		return ctx.PrintJSON(imported.Spec)
	}
	_, err = ctx.Stdout.Write(specs.Marshal(imported.Spec))
	fmt.Fprintf(ctx.Stderr, "note: save it as %s.yaml; 'kvloom spec schema %s' puts the schema beside it\n", name, specs.SchemaFile)
	return err
}

// nameFor guesses the model's name; a config that is not JSON is reported by the import.
func nameFor(path string, data []byte) string {
	var config struct {
		Name string `json:"_name_or_path"`
	}
	if json.Unmarshal(data, &config) == nil {
		if name := specs.NameFor(config.Name); name != "" {
			return name
		}
	}
	if abs, err := filepath.Abs(path); err == nil {
		if name := specs.NameFor(filepath.Base(filepath.Dir(abs))); name != "" {
			return name
		}
	}
	return "model"
}
