package cli

import (
	"encoding/csv"
	"encoding/json"
	"fmt"
	"io"
	"strconv"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// DBCmd groups what reads a trial database.
type DBCmd struct {
	Show   DBShowCmd   `cmd:"" help:"List trials."`
	Best   DBBestCmd   `cmd:"" help:"Show the choice for every work and workload, from the trials of today's kernels."`
	Export DBExportCmd `cmd:"" help:"Write all chosen trials, samples included, to stdout."`
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
	groups := map[string][]store.Trial{}
	var order []string
	for _, t := range trials {
		key := t.Spec + "\x00" + t.Environment
		if groups[key] == nil {
			order = append(order, key)
		}
		groups[key] = append(groups[key], t)
	}
	var rows []choiceOf
	for _, key := range order {
		group := groups[key]
		spec, err := specs.Resolve(group[0].Spec)
		if err != nil {
			fmt.Fprintf(ctx.Stderr, "%s left out: %v\n", group[0].Spec, err)
			continue
		}
		current, err := autotune.Current(group, plan.New(spec, plan.Targets[spec.Targets[0]]))
		if err != nil {
			return err
		}
		if stale := len(group) - len(current); stale > 0 {
			fmt.Fprintf(ctx.Stderr, "%s: %d trials are of kernels that have changed since\n", spec.Name, stale)
		}
		for _, ch := range autotune.Choose(current) {
			rows = append(rows, choiceRow(ch))
		}
	}
	if ctx.JSON {
		return ctx.PrintJSON(rows)
	}
	printChoices(ctx.Stdout, rows)
	return nil
}

// DBExportCmd exports trials.
type DBExportCmd struct {
	dbFilter
	Format string `enum:"json,csv" default:"json" help:"json (one trial a line, samples included) or csv (no samples)."`
}

// Run writes the trials to stdout.
func (c *DBExportCmd) Run(ctx *Context) error {
	trials, err := c.trials(ctx)
	if err != nil {
		return err
	}
	if c.Format == "csv" {
		return exportCSV(ctx.Stdout, trials)
	}
	e := json.NewEncoder(ctx.Stdout)
	for _, t := range trials {
		if err := e.Encode(t); err != nil {
			return err
		}
	}
	return nil
}

func exportCSV(w io.Writer, trials []store.Trial) error {
	out := csv.NewWriter(w)
	rows := [][]string{{"model", "family", "context", "batch", "form", "candidate", "class", "median_us", "lo_us", "hi_us", "samples", "registers", "spill_bytes", "max_error", "bound", "source_hash", "started"}}
	f := func(x float64) string { return strconv.FormatFloat(x, 'g', -1, 64) }
	for _, t := range trials {
		rows = append(rows, []string{t.Spec, t.Family, strconv.Itoa(t.Context), strconv.Itoa(t.Batch), string(t.Candidate.Form), shortID(t), string(t.Class),
			f(t.MedianUS), f(t.LoUS), f(t.HiUS), strconv.Itoa(len(t.Samples)), strconv.Itoa(t.Registers), strconv.Itoa(t.SpillBytes),
			f(t.MaxError), f(t.Bound), t.SourceHash, t.Started.Format("2006-01-02T15:04:05Z07:00")})
	}
	return out.WriteAll(rows)
}
