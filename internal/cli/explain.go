package cli

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune"
	tuningreport "github.com/kvloom/kvloom/autotune/report"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// ExplainCmd says why a kernel was chosen.
type ExplainCmd struct {
	Kernel   string `arg:"" help:"page_summary, page_score, page_select, page_attend, dense, drop_observe, ..."`
	Workload string `arg:"" help:"CONTEXTxBATCH, such as 131072x1."`
	DB       string `name:"db" default:"kvloom.db" help:"Trial database."`
	Model    string `help:"Model; needed where the database has the workload of several."`
	L2       string `name:"l2" enum:"cold,warm" default:"cold" help:"State of the L2 while measuring."`
	Stale    bool   `help:"Also trials of kernels that have changed since, the newest of each candidate."`
}

// Run prints the explanation.
func (c *ExplainCmd) Run(ctx *Context) error {
	work, err := workNamed(c.Kernel)
	if err != nil {
		return fmt.Errorf("explain: %w", err)
	}
	w, err := parseWorkloads([]string{c.Workload})
	if err != nil {
		return err
	}
	db, err := store.Open(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	trials, err := db.Trials(ctx, store.Filter{Spec: c.Model})
	if err != nil {
		return err
	}
	trials = slices.DeleteFunc(trials, func(t store.Trial) bool { return t.L2 != c.L2 })
	groups, err := tunings(ctx, db, trials, c.Stale)
	if err != nil {
		return err
	}
	if having := withPoint(groups, c.Kernel, w[0]); len(having) > 0 {
		groups = having
	}
	if len(groups) != 1 {
		return manyTunings(c.DB, groups)
	}
	g := groups[0]
	e, err := tuningreport.Explain(g.plan, work, w[0], g.trials, g.device, g.driver)
	if err != nil {
		return fmt.Errorf("%w; it holds %s", err, strings.Join(points(g.trials), ", "))
	}
	if ctx.JSON {
		return ctx.PrintJSON(e)
	}
	return printExplanation(ctx.Stdout, e)
}

// tuning is one model on one kind of device in a database: the trials of today's kernels.
type tuning struct {
	plan   *plan.Plan
	trials []store.Trial
	stale  int
	device device.Info
	driver string
	nvrtc  string
	l2     string
}

// tunings are the trials of each model and kind of device: those of today's kernels, or with stale the newest of each candidate.
func tunings(ctx *Context, db *store.DB, trials []store.Trial, stale bool) (groups []tuning, err error) {
	err = eachModel(trials, func(group []store.Trial, p *plan.Plan, missing error) error {
		if missing != nil {
			fmt.Fprintf(ctx.Stderr, "%s left out: %v\n", group[0].Spec, missing)
			return nil
		}
		current, err := autotune.Current(group, p)
		if err != nil {
			return err
		}
		if stale {
			current = autotune.Newest(group)
		}
		env, err := db.EnvironmentOf(ctx, group[0].Environment)
		if err != nil {
			return err
		}
		g := tuning{plan: p, trials: current, stale: len(group) - len(current), driver: env.Driver, nvrtc: env.NVRTC, l2: group[0].L2}
		if err := json.Unmarshal(env.Device, &g.device); err != nil {
			return fmt.Errorf("device record: %w", err)
		}
		groups = append(groups, g)
		return nil
	})
	return groups, err
}

// withPoint are the tunings that have trials of a kernel and workload.
func withPoint(groups []tuning, kernel string, w specs.Workload) (having []tuning) {
	for _, g := range groups {
		if slices.ContainsFunc(g.trials, func(t store.Trial) bool { return t.Family == kernel && t.Context == w.Context && t.Batch == w.Batch }) {
			having = append(having, g)
		}
	}
	return having
}

func manyTunings(path string, groups []tuning) error {
	if len(groups) == 0 {
		return fmt.Errorf("%s has no trials that the flags choose", path)
	}
	var names []string
	for _, g := range groups {
		names = append(names, fmt.Sprintf("%s on %s, driver %s, %s L2", g.plan.Spec.Name, g.device.Name, g.driver, g.l2))
	}
	return errors.New("the database holds several tunings, name one with --model or --l2: " + strings.Join(names, "; "))
}

// points are what a group of trials has: "page_score 131072x1".
func points(trials []store.Trial) (names []string) {
	for _, t := range trials {
		if name := fmt.Sprintf("%s %dx%d", t.Family, t.Context, t.Batch); !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	return append(names, []string{"no trials of today's kernels"}[:max(0, 1-len(names))]...)
}

func printExplanation(w io.Writer, e *tuningreport.Explanation) error {
	fmt.Fprintf(w, "%s %s at %d x %d on %s, driver %s\n%s\n\n", e.Model, e.Family, e.Context, e.Batch, e.Device, e.Driver, e.Candidate)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	row := func(name, format string, args ...any) { fmt.Fprintf(t, "%s\t%s\n", name, fmt.Sprintf(format, args...)) }
	row("why", "%s", e.Why)
	row("time", "%.2f us, 95 %% %.2f to %.2f, %d samples", e.MedianUS, e.LoUS, e.HiUS, e.Samples)
	if e.DefaultUS > 0 {
		row("default", "%.2f us, %.2f times as long", e.DefaultUS, e.DefaultUS/e.MedianUS)
	}
	bandwidth := fmt.Sprintf("%.2f MB by the model, %.2f TB/s", float64(e.Bytes)/1e6, e.TBPerS)
	if e.RoofTBPerS > 0 {
		bandwidth += fmt.Sprintf(", %.0f %% of the board's %.1f TB/s", 100*e.TBPerS/e.RoofTBPerS, e.RoofTBPerS)
	}
	row("bytes", "%s", bandwidth)
	row("resources", "%d threads, %d registers, %d B shared, %d B spilled", e.Threads, e.Registers, e.Shared, e.Spill)
	row("occupancy", "%d block%s and %d warps an SM, %.0f %%, limited by %s", e.Occupancy.Blocks, plural(e.Occupancy.Blocks), e.Occupancy.Warps, 100*e.Occupancy.Share, e.Occupancy.Limit)
	row("error", "%.3g, bound %.3g", e.MaxError, e.Bound)
	if e.Conditions != (store.Conditions{}) {
		row("conditions", "SM %d MHz, memory %d MHz, %.0f W, %d C, %d windows dropped, %d other processes", e.Conditions.SMClockMHz, e.Conditions.MemClockMHz,
			e.Conditions.PowerWatts, e.Conditions.Celsius, e.Conditions.Dropped, e.Conditions.Others)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	if len(e.RunnersUp) > 0 {
		fmt.Fprintf(t, "\nrunners-up\tus\t95 %%\tratio\tp\tverdict\n")
	}
	for _, r := range e.RunnersUp {
		fmt.Fprintf(t, "%s\t%.2f\t%.2f-%.2f\t%.3f\t%.2g\t%s\n", r.Candidate, r.MedianUS, r.LoUS, r.HiUS, r.Ratio, r.P, r.Verdict)
	}
	if len(e.Effects) > 0 {
		fmt.Fprintf(t, "\nparameter\texplains\tbest us by value\n")
	}
	for _, f := range e.Effects {
		var values []string
		for i, v := range f.Values {
			values = append(values, fmt.Sprintf("%d: %.2f", v, f.BestUS[i]))
		}
		fmt.Fprintf(t, "%s\t%.0f %%\t%s\n", f.Param, 100*f.Importance, strings.Join(values, ", "))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, f := range e.Failures {
		fmt.Fprintf(w, "\n%d %s, such as %s", f.Count, f.Class, strings.ReplaceAll(f.Example, "\n", " "))
	}
	for i, r := range e.Rejected {
		if i == 0 {
			fmt.Fprint(w, "\n\nrejected before compiling\n")
		}
		fmt.Fprintf(w, "%d: %s\n", r.Count, r.Reason)
	}
	fmt.Fprintln(w)
	return nil
}
