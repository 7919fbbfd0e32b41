package cli

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// BenchCmd measures kernels beside their peers.
type BenchCmd struct {
	Models     []string `arg:"" optional:"" name:"model" help:"Model names or spec files."`
	Workload   []string `help:"Workloads as CONTEXTxBATCH, such as 131072x1; default: the spec's." placeholder:"CxB"`
	Family     []string `help:"page_summary, page_score, page_select, page_attend, chain, dense (the default), or drop_observe, drop_score, drop_pool, drop_select, drop_compact, drop_observe_score, drop_chain."`
	Against    []string `help:"Peers to run beside: torch, flashinfer."`
	Rank       int      `help:"Another rank than the spec's."`
	Budget     int      `help:"Another budget than the spec's, tokens."`
	Contiguous bool     `help:"The drop families read a cache without a block table."`
	Warm       bool     `help:"One buffer set, so that the L2 stays warm where it holds it."`
	DB         string   `name:"db" help:"Take the choices of this trial database; default: the committed tuned tables, then the plan's defaults."`
	Out        string   `help:"Results file to append to." default:"docs/benchmarks/results.jsonl"`
	Import     string   `help:"Append the lines that another machine wrote, instead of measuring." placeholder:"FILE"`
	Summary    bool     `help:"Print the current table, instead of measuring."`
	Python     string   `default:"python3" help:"Python that has the peers."`
	Device     string   `default:"auto" help:"auto, cuda or cuda:N. The simulator measures no times."`
}

// Run measures, imports or prints.
func (c *BenchCmd) Run(ctx *Context) error {
	switch {
	case c.Summary:
		return c.summary(ctx)
	case c.Import != "":
		return c.importLines(ctx)
	}
	jobs, err := c.jobs()
	if err != nil {
		return err
	}
	dev, err := devices.Open(c.Device)
	if err != nil {
		return err
	}
	defer dev.Close()
	if dev.Info().Backend != "cuda" {
		return fmt.Errorf("bench measures times, which a simulator cannot; this is %s; run on a machine with a GPU", dev.Why)
	}
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	choose, done, err := c.chooser(ctx)
	if err != nil {
		return err
	}
	defer done()
	b := bench.Bench{Dev: dev.Device, Compile: autotune.CompileWith(compiler), Choose: choose, Commit: version.Commit(), Peers: c.Against, Python: c.Python,
		Command: c.command(), Progress: func(s string) { fmt.Fprintln(ctx.Stderr, s) }}
	results, notes, err := b.Run(ctx, jobs)
	for _, n := range notes {
		fmt.Fprintln(ctx.Stderr, "note:", n)
	}
	if len(results) > 0 { // what was measured is kept, also when a later job failed
		err = errors.Join(err, bench.Append(c.Out, results))
	}
	if err != nil {
		return err
	}
	return printResults(ctx, results)
}

// command is how to measure again: the flags that matter, without file names of this machine.
func (c *BenchCmd) command() string {
	parts := append([]string{"kvloom bench"}, c.Models...)
	flag := func(name string, values ...string) {
		if len(values) > 0 && values[0] != "" {
			parts = append(parts, "--"+name+"="+strings.Join(values, ","))
		}
	}
	flag("workload", c.Workload...)
	flag("family", c.Family...)
	flag("against", c.Against...)
	if c.Rank > 0 {
		flag("rank", strconv.Itoa(c.Rank))
	}
	if c.Budget > 0 {
		flag("budget", strconv.Itoa(c.Budget))
	}
	if c.Contiguous {
		parts = append(parts, "--contiguous")
	}
	if c.Warm {
		parts = append(parts, "--warm")
	}
	return strings.Join(parts, " ")
}

func (c *BenchCmd) jobs() ([]bench.Job, error) {
	if len(c.Models) == 0 {
		return nil, errors.New("bench: name a model or a spec file, or use --summary or --import")
	}
	families := c.Family
	if len(families) == 0 {
		families = []string{string(plan.PageSummary), string(plan.PageScore), string(plan.PageSelect), string(plan.PageAttend), bench.ChainFamily, string(measure.Dense)}
	}
	var jobs []bench.Job
	for _, name := range c.Models {
		s, err := specs.Resolve(name)
		if err != nil {
			return nil, err
		}
		if c.Rank > 0 {
			s.Locks.Rank = c.Rank
		}
		if c.Budget > 0 {
			s.Locks.BudgetTokens = c.Budget
		}
		workloads := s.Workloads
		if len(c.Workload) > 0 {
			if workloads, err = parseWorkloads(c.Workload); err != nil {
				return nil, err
			}
		}
		for _, w := range workloads {
			jobs = append(jobs, bench.Job{Spec: s, Workload: w, Families: families, Warm: c.Warm, Contiguous: c.Contiguous})
		}
	}
	return jobs, nil
}

func parseWorkloads(list []string) ([]specs.Workload, error) {
	var out []specs.Workload
	for _, text := range list {
		left, right, ok := strings.Cut(text, "x")
		context, err1 := strconv.Atoi(left)
		batch, err2 := strconv.Atoi(right)
		if !ok || err1 != nil || err2 != nil || context < 1 || batch < 1 {
			return nil, fmt.Errorf("--workload %s: want CONTEXTxBATCH in tokens and requests, such as 131072x1", text)
		}
		out = append(out, specs.Workload{Context: context, Batch: batch})
	}
	return out, nil
}

// chooser picks candidates: from a trial database, else from the committed tables, else the default.
func (c *BenchCmd) chooser(ctx context.Context) (choose func(*specs.Spec, *plan.Plan, specs.Workload, measure.Work) (plan.Candidate, error), done func(), err error) {
	table := func(s *specs.Spec, p *plan.Plan) (specs.Table, error) {
		t, _, err := specs.TunedTable(s.Name)
		return t, err
	}
	done = func() {}
	if c.DB != "" {
		db, err := store.Open(ctx, c.DB)
		if err != nil {
			return nil, nil, err
		}
		done = func() { db.Close() }
		table = func(s *specs.Spec, p *plan.Plan) (specs.Table, error) {
			trials, err := db.Trials(ctx, store.Filter{Spec: s.Name})
			if err != nil {
				return specs.Table{}, err
			}
			if trials, err = autotune.Current(trials, p); err != nil {
				return specs.Table{}, err
			}
			return autotune.TableOf(s, autotune.Choose(trials)), nil
		}
	}
	return func(s *specs.Spec, p *plan.Plan, w specs.Workload, work measure.Work) (plan.Candidate, error) {
		t, err := table(s, p)
		if err != nil {
			return plan.Candidate{}, err
		}
		if cand, ok := autotune.FromTable(t, p, string(work), w); ok {
			return cand, nil
		}
		fp := p.Of(work.Family())
		if len(fp.Candidates) == 0 {
			return plan.Candidate{}, fmt.Errorf("%s: the plan has no candidate", work)
		}
		return fp.Candidates[0], nil
	}, done, nil
}

func (c *BenchCmd) importLines(ctx *Context) error {
	results, err := bench.Read(c.Import)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("bench --import %s: no results in it", c.Import)
	}
	if err := bench.Append(c.Out, results); err != nil {
		return err
	}
	fmt.Fprintf(ctx.Stderr, "%d lines appended to %s\n", len(results), c.Out)
	return nil
}

func (c *BenchCmd) summary(ctx *Context) error {
	results, err := bench.Read(c.Out)
	if err != nil {
		return err
	}
	if len(results) == 0 {
		return fmt.Errorf("bench --summary: %s has no results; kvloom bench MODEL makes them on a GPU", c.Out)
	}
	return printResults(ctx, bench.Newest(results))
}

func printResults(ctx *Context, results []bench.Result) error {
	if ctx.JSON {
		return ctx.PrintJSON(results)
	}
	card := ""
	t := tabwriter.NewWriter(ctx.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range results {
		if r.Card != card {
			card = r.Card
			fmt.Fprintf(t, "%s, driver %s\nfamily\theads\ttokens\tus\t95 %%\tTB/s\troof\tpeers, us\n", r.Card, r.Driver)
		}
		fmt.Fprintf(t, "%s\t%s\t%dx%d\t%.2f\t%.2f-%.2f\t%.2f\t%.0f %%\t%s\n", family(r), heads(r.Shape), r.Shape.Tokens, r.Shape.Batch,
			r.MedianUS, r.LoUS, r.HiUS, r.TBPerS, 100*r.TBPerS/r.RoofTBPerS, peers(r))
	}
	return t.Flush()
}

func family(r bench.Result) string {
	name := r.Family
	if r.Shape.Rank > 0 {
		name += fmt.Sprintf(" r%d", r.Shape.Rank)
	}
	if r.Shape.L2 == "warm" {
		name += " warm"
	}
	return name
}

func heads(s bench.Shape) string {
	h := strconv.Itoa(s.KVHeads)
	if s.QHeads > 0 {
		h = strconv.Itoa(s.QHeads) + "/" + h
	}
	if s.HeadDim > 0 {
		h += " d" + strconv.Itoa(s.HeadDim)
	}
	return h
}

func peers(r bench.Result) string {
	if len(r.Baselines) == 0 {
		return "-"
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Baselines)) {
		parts = append(parts, fmt.Sprintf("%s %.0f (%.1fx)", name, r.Baselines[name], r.Baselines[name]/r.MedianUS))
	}
	return strings.Join(parts, ", ")
}
