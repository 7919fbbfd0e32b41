package cli

import (
	"fmt"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// DBCmd groups what works on a trial database.
type DBCmd struct {
	Show   DBShowCmd   `cmd:"" help:"List trials."`
	Best   DBBestCmd   `cmd:"" help:"Show the choice for every work and workload, from the trials of today's kernels."`
	Export DBExportCmd `cmd:"" help:"Write trials as JSON, CSV or Go benchmark lines, or the choices among them as a bundle."`
	Merge  DBMergeCmd  `cmd:"" help:"Add the trials of other databases; merging again changes nothing."`
	Check  DBCheckCmd  `cmd:"" help:"Read all of a database and say what is wrong with it."`
	GC     DBGCCmd     `cmd:"" name:"gc" help:"Remove what nothing uses, and give the space back."`
}

// dbFilter are the flags that choose trials.
type dbFilter struct {
	DB      string `arg:"" name:"db" help:"Trial database."`
	Model   string `help:"Only this model."`
	Family  string `help:"Only this family, or dense."`
	Context int    `help:"Only this context, tokens."`
	Batch   int    `help:"Only this batch."`
}

func (f dbFilter) trials(ctx *Context) ([]store.Trial, error) {
	db, err := store.Open(ctx, f.DB)
	if err != nil {
		return nil, err
	}
	defer db.Close()
	return db.Trials(ctx, store.Filter{Spec: f.Model, Family: f.Family, Context: f.Context, Batch: f.Batch})
}

// DBShowCmd lists trials.
type DBShowCmd struct {
	dbFilter
}

// Run prints one line a trial.
func (c *DBShowCmd) Run(ctx *Context) error {
	trials, err := c.trials(ctx)
	if err != nil {
		return err
	}
	if ctx.JSON {
		return ctx.PrintJSON(trials)
	}
	t := tabwriter.NewWriter(ctx.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "model\tfamily\tcontext\tbatch\tclass\tus\tn\tcandidate")
	for _, tr := range trials {
		us := "-"
		if tr.MedianUS > 0 {
			us = fmt.Sprintf("%.2f", tr.MedianUS)
		}
		fmt.Fprintf(t, "%s\t%s\t%d\t%d\t%s\t%s\t%d\t%s\n", tr.Spec, tr.Family, tr.Context, tr.Batch, tr.Class, us, len(tr.Samples), shortID(tr))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintf(ctx.Stderr, "%d trials\n", len(trials))
	return nil
}

// DBBestCmd shows the choices.
type DBBestCmd struct {
	dbFilter
}

// Run chooses among the trials of each model and environment whose kernels are today's.
func (c *DBBestCmd) Run(ctx *Context) error {
	trials, err := c.trials(ctx)
	if err != nil {
		return err
	}
	var rows []choiceOf
	err = eachModel(trials, func(group []store.Trial, p *plan.Plan, missing error) error {
		if missing != nil {
			fmt.Fprintf(ctx.Stderr, "%s left out: %v\n", group[0].Spec, missing)
			return nil
		}
		current, err := autotune.Current(group, p)
		if err != nil {
			return err
		}
		if stale := len(group) - len(current); stale > 0 {
			fmt.Fprintf(ctx.Stderr, "%s: %d trials are of kernels that have changed since\n", group[0].Spec, stale)
		}
		for _, ch := range autotune.Choose(current) {
			rows = append(rows, choiceRow(ch))
		}
		return nil
	})
	if err != nil {
		return err
	}
	if ctx.JSON {
		return ctx.PrintJSON(rows)
	}
	printChoices(ctx.Stdout, rows)
	return nil
}

// eachModel calls do with the trials of each model, environment and state of the L2, in the order of their first trial, and the model's plan. missing is
// why there is no plan: a model that this kvloom does not know.
func eachModel(trials []store.Trial, do func(group []store.Trial, p *plan.Plan, missing error) error) error {
	groups := map[string][]store.Trial{}
	var order []string
	for _, t := range trials {
		key := strings.Join([]string{t.Spec, t.Environment, t.L2}, "\x00")
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], t)
	}
	for _, key := range order {
		var p *plan.Plan
		spec, err := specs.Resolve(groups[key][0].Spec)
		if err == nil {
			p = plan.New(spec, plan.Targets[spec.Targets[0]])
		}
		if err := do(groups[key], p, err); err != nil {
			return err
		}
	}
	return nil
}
