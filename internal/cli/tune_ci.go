package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/compare"
	"github.com/kvloom/kvloom/autotune/measure"
	tuningreport "github.com/kvloom/kvloom/autotune/report"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/specs"
)

// baseline loads what a run is compared with; nil where there is none yet.
func (c *TuneCmd) baseline(ctx *Context, model string) (*compare.Side, error) {
	if c.Baseline == "" {
		return nil, nil
	}
	if _, err := os.Stat(c.Baseline); errors.Is(err, fs.ErrNotExist) {
		fmt.Fprintf(ctx.Stderr, "no baseline yet: %s does not exist; this run makes the first one\n", c.Baseline)
		return nil, nil
	}
	side, err := compare.Load(ctx, c.Baseline)
	if err != nil {
		return nil, fmt.Errorf("--baseline: %w", err)
	}
	if side.Kind == "results" {
		return nil, fmt.Errorf("--baseline %s: a results file names no candidates; use a bundle or a database", c.Baseline)
	}
	side.Only(model)
	if len(side.Entries) == 0 {
		fmt.Fprintf(ctx.Stderr, "the baseline %s has nothing of %s\n", c.Baseline, model)
		return nil, nil
	}
	return side, nil
}

// incumbents are the baseline's choices.
func (c *TuneCmd) incumbents(ctx *Context, spec *specs.Spec) (list []autotune.Incumbent, err error) {
	side, err := c.baseline(ctx, spec.Name)
	if err != nil || side == nil {
		return nil, err
	}
	for _, e := range side.Entries {
		list = append(list, autotune.Incumbent{Work: measure.Work(e.Key.Family), Workload: specs.Workload{Context: e.Key.Context, Batch: e.Key.Batch},
			Form: e.Form, Params: e.Params})
	}
	return list, nil
}

// judge compares a run with the baseline, writes the page, and fails when the gate does. A run that was stopped is not judged: the same
// command goes on with it.
func (c *TuneCmd) judge(ctx *Context, t *autotune.Tuner, out autotune.Outcome, bundle string) error {
	if out.Why == "stopped" {
		return fmt.Errorf("tune --ci %s: stopped before it was done; the same command with the same database goes on", t.Spec.Name)
	}
	trials, err := t.DB.Trials(ctx, store.Filter{Spec: t.Spec.Name, Environment: out.Environment.ID()})
	if err != nil {
		return err
	}
	trials = slices.DeleteFunc(trials, func(tr store.Trial) bool { return tr.L2 != t.Options.L2() })
	current, err := autotune.Current(trials, t.Plan)
	if err != nil {
		return err
	}
	page, err := tuningreport.New(c.DB, version.String(), []tuningreport.Tuning{{Plan: t.Plan, Trials: current, Stale: len(trials) - len(current),
		Device: out.Device, Driver: out.Environment.Driver, NVRTC: t.NVRTC}})
	if err != nil {
		return err
	}
	old, err := c.baseline(ctx, t.Spec.Name)
	if err != nil {
		return err
	}
	var lines []compare.Line
	var notes []string
	if old != nil {
		now, err := compare.Load(ctx, c.DB)
		if err != nil {
			return err
		}
		now.Only(t.Spec.Name)
		if len(t.Options.Works) > 0 { // what was not to be tuned is not missing
			old.Works(t.Options.Works)
		}
		if lines, notes, err = compare.Sides(old, now, c.rule()); err != nil {
			return err
		}
		page.Compare(c.Baseline, c.rule(), lines, notes)
	}
	path := c.Page
	if path == "" {
		path = t.Spec.Name + ".html"
	}
	if err := page.Write(path); err != nil {
		return err
	}
	fmt.Fprintf(ctx.Stderr, "page     %s\n", path)
	if old == nil {
		return nil
	}
	if ctx.JSON {
		if err := json.NewEncoder(ctx.Stdout).Encode(map[string]any{"kind": "comparison", "baseline": c.Baseline, "rule": c.rule(), "lines": lines, "notes": append([]string{}, notes...)}); err != nil {
			return err
		}
	}
	return c.publish(ctx, fmt.Sprintf("tune --ci %s against %s", t.Spec.Name, c.Baseline), lines, notes)
}
