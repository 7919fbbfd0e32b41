package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/kvloom/kvloom/autotune/compare"
)

// CompareCmd compares two tunings.
type CompareCmd struct {
	Old string `arg:"" help:"Trial database, bundle or results file of before."`
	New string `arg:"" help:"The same of now."`
	compareFlags
}

// compareFlags are the flags of the comparison; tune --ci has them too.
type compareFlags struct {
	Threshold float64  `default:"0.02" help:"Share of the old time below which a change does not matter."`
	Level     float64  `default:"0.05" help:"Error rate of all comparisons together."`
	FailOn    []string `enum:"slower,ambiguous,missing,none" default:"slower" help:"Verdicts that fail the gate: slower, ambiguous, missing, none."`
	Junit     string   `name:"junit" help:"Also write a JUnit report." placeholder:"FILE"`
	Summary   string   `help:"Also append a Markdown table, such as to $GITHUB_STEP_SUMMARY." placeholder:"FILE"`
	Github    bool     `name:"github" help:"Also print GitHub annotations."`
}

// Run prints a line for each kernel and workload. It fails when a verdict fails the gate.
func (c *CompareCmd) Run(ctx *Context) error {
	return c.compare(ctx, c.Old, c.New)
}

func (c *compareFlags) rule() compare.Rule {
	return compare.Rule{Threshold: c.Threshold, Level: c.Level}
}

func (c *compareFlags) compare(ctx *Context, old, now string) error {
	lines, notes, err := compare.Files(ctx, old, now, c.rule())
	if err != nil {
		return err
	}
	if ctx.JSON {
		err = ctx.PrintJSON(map[string]any{"old": old, "new": now, "rule": c.rule(), "lines": lines, "notes": append([]string{}, notes...)})
	}
	return errors.Join(err, c.publish(ctx, old+" "+now, lines, notes))
}

// errGate is wrapped by the error of a comparison in which something fails the gate.
var errGate = errors.New("the gate fails")

// publish writes a comparison wherever the flags say, and fails when a verdict fails the gate.
func (c *compareFlags) publish(ctx *Context, what string, lines []compare.Line, notes []string) (err error) {
	fails := c.fails()
	if c.Junit != "" {
		if err := writeWith(c.Junit, os.O_TRUNC, func(w io.Writer) error { return compare.JUnit(w, lines, fails) }); err != nil {
			return err
		}
	}
	if c.Summary != "" {
		if err := writeWith(c.Summary, os.O_APPEND, func(w io.Writer) error { return compare.Markdown(w, lines, c.rule(), notes) }); err != nil {
			return err
		}
	}
	if !ctx.JSON {
		err = compare.Table(ctx.Stdout, lines)
		fmt.Fprintf(ctx.Stderr, "%s\n%s\n", c.rule(), compare.Summary(lines))
		for _, n := range notes {
			fmt.Fprintln(ctx.Stderr, "note:", n)
		}
	}
	if c.Github {
		out := ctx.Stdout
		if ctx.JSON {
			out = ctx.Stderr // stdout is JSON
		}
		err = errors.Join(err, compare.GitHub(out, lines, fails))
	}
	if err != nil {
		return err
	}
	var failed []string
	for _, v := range fails {
		if n := compare.Count(lines, v); n > 0 {
			failed = append(failed, fmt.Sprintf("%d %s", n, v))
		}
	}
	if len(failed) > 0 {
		return fmt.Errorf("%s: %w: %s of %d", what, errGate, strings.Join(failed, ", "), len(lines))
	}
	return nil
}

func (c *compareFlags) fails() (fails []compare.Verdict) {
	for _, name := range c.FailOn {
		if name != "none" {
			fails = append(fails, compare.Verdict(strings.ToUpper(name)))
		}
	}
	return fails
}

// writeWith writes or appends to a file.
func writeWith(path string, mode int, write func(io.Writer) error) error {
	f, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|mode, 0o644)
	if err != nil {
		return err
	}
	return errors.Join(write(f), f.Close())
}
