package cli

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune/lab"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// LabCmd groups what measures search strategies.
type LabCmd struct {
	Replay LabReplayCmd `cmd:"" default:"withargs" help:"Replay every strategy against recorded sweeps: how far from the best it is after 5, 10 and 20 % of the space."`
	Record LabRecordCmd `cmd:"" help:"Make a sweep from the database of an exhaustive run."`
}

// sweepFolder is where this repository keeps its sweeps.
const sweepFolder = "autotune/lab/sweeps"

// LabReplayCmd replays strategies.
type LabReplayCmd struct {
	Sweeps   []string `arg:"" optional:"" name:"sweep" help:"Sweep files; default: those of autotune/lab/sweeps."`
	Seeds    int      `default:"100" help:"Runs of each strategy on each workload."`
	Strategy []string `help:"Strategies; default: all, and uniform, random search that is not given the default."`
	Picture  string   `help:"Also draw regret over measurements into this folder, one SVG for each workload." placeholder:"DIR"`
}

// Run prints regret, and beside it how easy each space is.
func (c *LabReplayCmd) Run(ctx *Context) error {
	strategies, err := c.strategies()
	if err != nil {
		return err
	}
	if len(c.Sweeps) == 0 {
		if c.Sweeps, err = filepath.Glob(filepath.Join(filepath.FromSlash(sweepFolder), "*.json")); err != nil {
			return err
		}
	}
	if len(c.Sweeps) == 0 {
		return fmt.Errorf("lab: no sweep in %s; run this where kvloom's sources are or name sweep files; kvloom lab record makes one from an exhaustive run on a GPU", sweepFolder)
	}
	var rows []lab.Row
	var ease []lab.Ease
	for _, path := range c.Sweeps {
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		spaces, err := lab.Spaces(path, b)
		if err != nil {
			return err
		}
		for _, s := range spaces {
			var curves []lab.Curve
			for _, st := range strategies {
				if err := ctx.Err(); err != nil {
					return err
				}
				curves = append(curves, lab.Replay(s, st, max(c.Seeds, 1)))
				rows = append(rows, curves[len(curves)-1].Rows()...)
			}
			ease = append(ease, lab.EaseOf(s))
			if c.Picture != "" {
				if err := c.draw(ctx, path, s, curves); err != nil {
					return err
				}
			}
		}
	}
	if ctx.JSON {
		return ctx.PrintJSON(rows)
	}
	return printRegret(ctx, rows, ease)
}

func (c *LabReplayCmd) strategies() ([]search.Strategy, error) {
	if len(c.Strategy) == 0 {
		return append(slices.Clone(search.Strategies), search.Uniform{}), nil
	}
	var list []search.Strategy
	for _, name := range c.Strategy {
		if name == (search.Uniform{}).Name() {
			list = append(list, search.Uniform{})
			continue
		}
		s, err := search.Named(name)
		if err != nil {
			return nil, fmt.Errorf("--strategy: %w", err)
		}
		list = append(list, s)
	}
	return list, nil
}

func (c *LabReplayCmd) draw(ctx *Context, path string, s lab.Space, curves []lab.Curve) error {
	if err := os.MkdirAll(c.Picture, 0o755); err != nil {
		return err
	}
	stem := strings.TrimSuffix(filepath.Base(path), ".json")
	file := filepath.Join(c.Picture, stem+"-"+s.Workload+".svg")
	fmt.Fprintln(ctx.Stderr, "picture", file)
	return lab.Picture(curves, file)
}

func printRegret(ctx *Context, rows []lab.Row, ease []lab.Ease) error {
	t := tabwriter.NewWriter(ctx.Stdout, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "family\tworkload\tcandidates\tbest us\twithin 3 %\tfailed")
	for _, e := range ease {
		fmt.Fprintf(t, "%s\t%s\t%d\t%.2f\t%.1f %%\t%.1f %%\n", e.Family, e.Workload, e.Points, e.BestUS, 100*e.Within3, 100*e.Failed)
	}
	fmt.Fprintln(t, "\nstrategy\tfamily\tworkload\tmeasured\tregret, median\t90th percentile")
	for _, r := range rows {
		fmt.Fprintf(t, "%s\t%s\t%s\t%.0f %%\t%.2f %%\t%.2f %%\n", r.Strategy, r.Family, r.Workload, 100*r.Fraction, 100*r.RegretMedian, 100*r.RegretP90)
	}
	return t.Flush()
}

// LabRecordCmd records a sweep.
type LabRecordCmd struct {
	DB       string   `arg:"" name:"db" help:"Trial database."`
	Model    string   `required:"" help:"Model of the trials, or its spec file."`
	Family   string   `required:"" help:"page_summary, page_score, page_select, page_attend, dense, or a family of DropKV (drop_score)."`
	Workload []string `help:"Workloads to record as CONTEXTxBATCH; default: all that have trials." placeholder:"CxB"`
	Whole    bool     `help:"Leave out workloads that miss a candidate, as a run that was cut off leaves them, instead of failing."`
	Out      string   `short:"o" help:"File to write; default MODEL-FAMILY.json in autotune/lab/sweeps."`
}

// Run writes the sweep.
func (c *LabRecordCmd) Run(ctx *Context) error {
	spec, err := specs.Resolve(c.Model)
	if err != nil {
		return err
	}
	work, err := workNamed(c.Family)
	if err != nil {
		return fmt.Errorf("--family: %w", err)
	}
	db, err := store.Open(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	trials, err := db.Trials(ctx, store.Filter{Spec: spec.Name, Family: string(work)})
	if err != nil {
		return err
	}
	if len(c.Workload) > 0 {
		only, err := parseWorkloads(c.Workload)
		if err != nil {
			return fmt.Errorf("lab record: %w", err)
		}
		trials = slices.DeleteFunc(trials, func(t store.Trial) bool {
			return !slices.Contains(only, specs.Workload{Context: t.Context, Batch: t.Batch})
		})
	}
	if len(trials) == 0 {
		return fmt.Errorf("%s has no trials of %s %s", c.DB, spec.Name, work)
	}
	for _, t := range trials {
		if t.Environment != trials[0].Environment {
			return fmt.Errorf("%s has trials of several devices or drivers; a sweep is of one: use a database of one", c.DB)
		}
	}
	env, err := db.EnvironmentOf(ctx, trials[0].Environment)
	if err != nil {
		return err
	}
	p := plan.New(spec, plan.Targets[spec.Targets[0]])
	if c.Whole {
		var left []specs.Workload
		if trials, left, err = lab.Whole(p, work, trials); err != nil {
			return err
		}
		for _, w := range left {
			fmt.Fprintf(ctx.Stderr, "left out: %d x %d was not measured whole\n", w.Context, w.Batch)
		}
	}
	sweep, err := lab.Record(p, work, trials, env)
	if err != nil {
		return err
	}
	path := c.Out
	if path == "" {
		path = filepath.Join(filepath.FromSlash(sweepFolder), spec.Name+"-"+string(work)+".json")
	}
	if err := sweep.Write(path); err != nil {
		return err
	}
	fmt.Fprintf(ctx.Stderr, "%s: %d candidates, %d different cubins, %d workloads\n", path, len(sweep.Candidates), sweep.Cubins, len(sweep.Points))
	return nil
}

// workNamed finds a work by its name.
func workNamed(name string) (measure.Work, error) {
	for _, w := range measure.Works {
		if string(w) == name {
			return w, nil
		}
	}
	return "", unknown("kernel", name, measure.Works)
}
