package cli

import (
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
)

// DBMergeCmd adds databases into one.
type DBMergeCmd struct {
	Into string   `arg:"" help:"Database that takes the trials; made where there is none."`
	From []string `arg:"" help:"Databases to add; they are only read."`
}

// Run merges one after the other, each whole or not at all.
func (c *DBMergeCmd) Run(ctx *Context) error {
	for _, path := range c.From { // before anything is made
		if _, err := store.Version(ctx, path); err != nil {
			return err
		}
	}
	db, err := store.Create(ctx, c.Into)
	if err != nil {
		return err
	}
	defer db.Close()
	reports := map[string]store.Merged{}
	for _, path := range c.From {
		m, err := db.Merge(ctx, path)
		if err != nil {
			return err
		}
		reports[path] = m
		if !ctx.JSON {
			fmt.Fprintf(ctx.Stdout, "%s: %d trials new, %d known, %d windows and %d runs new\n", path, m.Trials, m.Known, m.Windows, m.Runs)
		}
	}
	if ctx.JSON {
		return ctx.PrintJSON(reports)
	}
	return nil
}

// DBCheckCmd checks a database.
type DBCheckCmd struct {
	DB      string `arg:"" name:"db" help:"Trial database."`
	Migrate bool   `help:"Bring an older schema forward first."`
}

// Run prints every fault and fails when there is one.
func (c *DBCheckCmd) Run(ctx *Context) error {
	open := store.Open
	if c.Migrate {
		if _, err := store.Version(ctx, c.DB); err != nil { // does not make a missing one
			return err
		}
		open = store.Create
	}
	db, err := open(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	faults, err := db.Check(ctx)
	if err != nil {
		return err
	}
	if ctx.JSON {
		if err := ctx.PrintJSON(map[string]any{"database": c.DB, "faults": append([]string{}, faults...)}); err != nil {
			return err
		}
	}
	for _, f := range faults {
		if !ctx.JSON {
			fmt.Fprintln(ctx.Stdout, f)
		}
	}
	if len(faults) > 0 {
		return fmt.Errorf("%s has %d faults; restore a copy, or merge it into a new database: kvloom db merge NEW %s", c.DB, len(faults), c.DB)
	}
	if !ctx.JSON {
		fmt.Fprintf(ctx.Stdout, "%s is sound\n", c.DB)
	}
	return nil
}

// DBGCCmd collects garbage.
type DBGCCmd struct {
	DB     string `arg:"" name:"db" help:"Trial database."`
	Stale  bool   `help:"Also remove trials of kernels that have changed since, of models that are known here."`
	DryRun bool   `help:"Say what would be removed."`
}

// Run removes and compacts.
func (c *DBGCCmd) Run(ctx *Context) error {
	if _, err := store.Version(ctx, c.DB); err != nil {
		return err
	}
	db, err := store.Create(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	var stale []string
	if c.Stale {
		if stale, err = staleTrials(ctx, db); err != nil {
			return err
		}
	}
	got, err := db.GC(ctx, stale, c.DryRun)
	if err != nil {
		return err
	}
	if ctx.JSON {
		return ctx.PrintJSON(got)
	}
	verb := "removed"
	if c.DryRun {
		verb = "would remove"
	}
	fmt.Fprintf(ctx.Stdout, "%s %d trials, %d runs, %d environments; %d KiB before, %d KiB now\n", verb, got.Trials, got.Runs, got.Environments,
		got.BytesBefore>>10, got.BytesAfter>>10)
	return nil
}

func staleTrials(ctx *Context, db *store.DB) ([]string, error) {
	trials, err := db.Trials(ctx, store.Filter{})
	if err != nil {
		return nil, err
	}
	var stale []string
	err = eachModel(trials, func(group []store.Trial, p *plan.Plan, missing error) error {
		if missing != nil {
			fmt.Fprintf(ctx.Stderr, "%s: its trials stay: %v\n", group[0].Spec, missing)
			return nil
		}
		current, err := autotune.Current(group, p)
		if err != nil {
			return err
		}
		keep := map[string]bool{}
		for _, t := range current {
			keep[t.ID()] = true
		}
		for _, t := range group {
			if !keep[t.ID()] {
				stale = append(stale, t.ID())
			}
		}
		return nil
	})
	return stale, errors.Join(err)
}
