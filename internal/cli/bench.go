package cli

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
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
	Family     []string `help:"page_summary, page_score, page_select, page_attend, chain, dense (the default), or kv_quantize, drop_observe, drop_score, drop_pool, drop_allot, drop_select, drop_pool_select, drop_compact, drop_observe_score, drop_chain (from observing to the kept tokens)."`
	Shapes     string   `help:"Measure a list of shapes in one process instead of models, or with --summary print it: bars, breadth, crossover, drop-growth, growth, headline, rerank, or several." placeholder:"NAME"`
	Growth     bool     `help:"The table of microseconds against context, batch and budget, with fitted slopes, in markdown: measured now, or with --summary from the results file."`
	Breadth    bool     `help:"The table of every group, head dim, page, rank, bit width and cache type as percent of its tightest limit: measured now, or with --summary from the results file."`
	Crossover  bool     `help:"Measure from which length selecting pages is faster than dense attention, print the table, and with --tables store it for bundles."`
	ByteCounts bool     `name:"bytes" help:"Count the bytes that each kernel moves beside the model's: on the simulator, or launched once on --device cuda for a profiler."`
	NCU        string   `name:"ncu" help:"With --bytes: take the counts from what ncu --csv wrote; scripts/ncu-bytes.sh does all of it." placeholder:"FILE"`
	Tables     string   `help:"With --crossover: the folder of the tuned tables, such as specs/tuned." placeholder:"DIR"`
	Picture    string   `help:"Also draw the growth into PREFIX.png and PREFIX.svg." placeholder:"PREFIX"`
	Against    []string `placeholder:"PEER" help:"Peers to run beside, where Python can import them: torch, flashinfer, locks-kv."`
	Pick       int      `help:"Try so many candidates of each work, the choice first, and measure with the fastest." default:"1" placeholder:"N"`
	Rank       int      `help:"Another rank than the spec's."`
	Budget     int      `help:"Another budget than the spec's, tokens."`
	Contiguous bool     `help:"The drop families read a cache without a block table."`
	Build      string   `help:"What page_summary finds to do: prompt, all pages; filled, the page that each request completed in this step; idle, none." enum:"prompt,filled,idle" default:"prompt"`
	Warm       bool     `help:"One buffer set, so that the L2 stays warm where it holds it."`
	DB         string   `name:"db" help:"Take the choices of this trial database; default: the committed tuned tables, then the plan's defaults."`
	Out        string   `help:"Results file to append to." default:"docs/benchmarks/results.jsonl"`
	Import     string   `help:"Append the lines that another machine wrote, instead of measuring." placeholder:"FILE"`
	Summary    bool     `help:"Print the current table, instead of measuring."`
	Compile    bool     `help:"Only compile the kernels that would be measured into the cache, beforehand and without a GPU."`
	Guard      bool     `help:"Compare with the last results recorded in --out instead of recording: exit 1 where a work got slower."`
	Threshold  float64  `help:"What --guard lets pass, as a share of the recorded median." default:"0.03"`
	Python     string   `default:"python3" help:"Python that has the peers."`
	Device     string   `default:"auto" help:"auto, cuda or cuda:N. The simulator measures no times."`
}

// Run measures, imports or prints.
func (c *BenchCmd) Run(ctx *Context) error {
	if err := c.tables(); err != nil {
		return err
	}
	switch {
	case c.ByteCounts:
		return c.bytes(ctx)
	case c.Guard:
		return c.guard(ctx)
	case c.Summary:
		return c.summary(ctx)
	case c.Import != "":
		return c.importLines(ctx)
	}
	jobs, err := c.jobs()
	if err != nil {
		return err
	}
	if c.Compile {
		return c.compile(ctx, jobs)
	}
	lines, err := bench.Extend(c.Out)
	if err != nil {
		return err
	}
	results, err := c.measure(ctx, jobs, lines.Keep)
	if len(results) > 0 {
		err = errors.Join(err, c.print(ctx, results))
	}
	if c.Crossover && c.Tables != "" && err == nil {
		err = c.store(ctx, results)
	}
	return err
}

// tables turns the flags of a table into the shapes it is made of.
func (c *BenchCmd) tables() error {
	switch {
	case c.Growth && c.Breadth || (c.Growth || c.Breadth) && c.Shapes != "":
		return errors.New("bench: --growth, --breadth and --shapes are three things; ask for one")
	case c.Crossover && (c.Growth || c.Breadth || c.Shapes != "" || c.Guard || len(c.Workload) > 0 || len(c.Family) > 0):
		return errors.New("bench --crossover measures the chain and dense attention of models, at lengths of its own; leave other shapes out")
	case c.Tables != "" && !c.Crossover:
		return errors.New("bench --tables stores what --crossover measures; add --crossover")
	case c.Picture != "" && !c.Growth:
		return errors.New("bench --picture draws what --growth measures; add --growth")
	case c.Growth:
		c.Shapes = "growth" // of the models named, or of those of the docs
	case c.Breadth:
		c.Shapes = "breadth"
	}
	return nil
}

// compile compiles what measure would load.
func (c *BenchCmd) compile(ctx *Context, jobs []bench.Job) error {
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	choose, done, err := c.chooser(ctx)
	if err != nil {
		return err
	}
	defer done()
	b := bench.Bench{Choose: choose, Pick: c.Pick}
	sources, _, missing := b.Sources(jobs)
	faults, err := compileAll(ctx, nvrtc.NewOnce(autotune.CompileWith(compiler)), sources)
	return errors.Join(append(append(missing, faults...), err)...)
}

// measure runs the jobs on the GPU. keep, where there is one, has each line as soon as it is measured.
func (c *BenchCmd) measure(ctx *Context, jobs []bench.Job, keep func([]bench.Result) error) ([]bench.Result, error) {
	dev, err := devices.Open(c.Device)
	if err != nil {
		return nil, err
	}
	defer dev.Close()
	if dev.Info().Backend != "cuda" {
		return nil, fmt.Errorf("bench measures times, which a simulator cannot; this is %s; run on a machine with a GPU", dev.Why)
	}
	compiler, err := nvrtc.Open()
	if err != nil {
		return nil, err
	}
	choose, done, err := c.chooser(ctx)
	if err != nil {
		return nil, err
	}
	defer done()
	b := bench.Bench{Dev: dev.Device, Code: nvrtc.NewOnce(autotune.CompileWith(compiler)), Choose: choose, Commit: version.Commit(), Peers: c.Against, Python: c.Python,
		Command: c.command(), Pick: c.Pick, Keep: keep, Progress: func(s string) { fmt.Fprintln(ctx.Stderr, s) }}
	results, notes, err := b.Run(ctx, jobs)
	for _, n := range notes {
		fmt.Fprintln(ctx.Stderr, "note:", n)
	}
	return results, err
}

// command is how to measure again: the flags that matter, without file names of this machine.
func (c *BenchCmd) command() string {
	parts := append([]string{"kvloom bench"}, c.Models...)
	flag := func(name string, values ...string) {
		if len(values) > 0 && values[0] != "" {
			parts = append(parts, "--"+name+"="+strings.Join(values, ","))
		}
	}
	if c.Growth {
		parts = append(parts, "--growth")
	} else {
		flag("shapes", c.Shapes)
	}
	if c.Crossover {
		parts = append(parts, "--crossover")
	}
	flag("workload", c.Workload...)
	flag("family", c.Family...)
	flag("against", c.Against...)
	if c.Pick > 1 {
		flag("pick", strconv.Itoa(c.Pick))
	}
	if c.Rank > 0 {
		flag("rank", strconv.Itoa(c.Rank))
	}
	if c.Budget > 0 {
		flag("budget", strconv.Itoa(c.Budget))
	}
	if c.Build != string(measure.BuildPrompt) {
		flag("build", c.Build)
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
	if c.Shapes != "" {
		return c.preset()
	}
	if len(c.Models) == 0 {
		return nil, errors.New("bench: name a model or a spec file, or use --shapes, --summary or --import")
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
		if c.Crossover {
			jobs = append(jobs, bench.CrossoverJobs(s)...)
			continue
		}
		workloads := s.Workloads
		if len(c.Workload) > 0 {
			if workloads, err = parseWorkloads(c.Workload); err != nil {
				return nil, err
			}
		}
		for _, w := range workloads {
			jobs = append(jobs, bench.Job{Spec: s, Workload: w, Families: families, Warm: c.Warm, Contiguous: c.Contiguous, Build: measure.Build(c.Build)})
		}
	}
	return jobs, nil
}

// preset is a named list of shapes, narrowed to the families asked for.
func (c *BenchCmd) preset() ([]bench.Job, error) {
	if len(c.Models) > 0 && !c.Growth || len(c.Workload) > 0 || c.Rank > 0 || c.Budget > 0 || c.Contiguous {
		return nil, fmt.Errorf("bench --shapes %s: its models, workloads, ranks, budgets and layouts are its own; leave those flags out", c.Shapes)
	}
	all, err := bench.Preset(c.Shapes)
	if c.Growth {
		all, err = bench.GrowthJobs(c.Models...)
	}
	if err != nil {
		return nil, fmt.Errorf("bench --shapes: %w", err)
	}
	var jobs []bench.Job
	for _, j := range all {
		j.Warm = j.Warm || c.Warm
		if len(c.Family) > 0 {
			j.Families = slices.DeleteFunc(slices.Clone(j.Families), func(f string) bool { return !slices.Contains(c.Family, f) })
		}
		if len(j.Families) > 0 {
			jobs = append(jobs, j)
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
	switch {
	case c.Growth || c.Breadth:
	case c.Crossover:
		if len(c.Models) == 0 {
			return errors.New("bench --crossover --summary: name the models")
		}
		if err := c.print(ctx, results); err != nil || c.Tables == "" {
			return err
		}
		return c.store(ctx, results)
	case c.Shapes != "":
		if results, err = bench.Of(c.Shapes, results); err != nil {
			return fmt.Errorf("bench --summary --shapes: %w", err)
		}
	default:
		results = bench.Newest(results)
	}
	return c.print(ctx, results)
}
