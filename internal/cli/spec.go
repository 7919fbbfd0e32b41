package cli

import (
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/specs"
)

// SpecCmd groups what concerns specs alone.
type SpecCmd struct {
	Check SpecCheckCmd `cmd:"" help:"Report every fault of spec files as file:line:col: message."`
	List  SpecListCmd  `cmd:"" help:"List the model specs that come with kvloom."`
}

// SpecCheckCmd checks files.
type SpecCheckCmd struct {
	Files []string `arg:"" name:"file" help:"Spec files."`
}

// Run checks all files before it fails.
func (c *SpecCheckCmd) Run(ctx *Context) error {
	var faults specs.Errors
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
		if err := ctx.PrintJSON(append(specs.Errors{}, faults...)); err != nil {
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
	MaxContext int    `json:"max_context"`
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
	fmt.Fprintf(ctx.Stdout, "%-30s %7s %8s %6s %8s %7s %8s\n", "model", "q heads", "kv heads", "group", "head dim", "budget", "context")
	for _, l := range lines {
		fmt.Fprintf(ctx.Stdout, "%-30s %7d %8d %6d %8d %7d %8d\n", l.Name, l.QueryHeads, l.KVHeads, l.Group, l.HeadDim, l.Budget, l.MaxContext)
	}
	return nil
}
