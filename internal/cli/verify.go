package cli

import (
	"errors"
	"fmt"
	"io"
	"math"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/runtime/sim"
	"github.com/kvloom/kvloom/specs"
)

// VerifyCmd checks kernels against float64.
type VerifyCmd struct {
	Specs      []string `arg:"" optional:"" name:"model" help:"Model names or spec files; 'all' for every model."`
	Device     string   `default:"auto" help:"auto, cuda, cuda:N or sim."`
	Family     []string `help:"Only these families; chain is all of them as one graph."`
	Candidates string   `default:"forms" enum:"default,forms,all" help:"default: the first of a family; forms: the first of each form; all."`
	MaxCluster int      `help:"Leave out candidates of larger clusters; compute-sanitizer's synccheck takes barriers of clusters of 16 for faults."`
	Workloads  string   `default:"auto" enum:"auto,quick,small,full" help:"quick, small, or full for long contexts too; auto: full for models on a GPU, else small."`
	Case       string   `help:"Only the case of this name."`
	Seed       uint64   `default:"1" help:"Seed of all inputs."`
	Sweep      string   `help:"axes, random:N, random:N:SEED or random:N:SEED:FIRST (a sweep cut off goes on there): generated specs instead of models."`
	Sanitize   bool     `help:"Run on the simulator with its sanitizer: races, unwritten memory and more are failures."`
	Schedule   string   `help:"random:SEED: run the simulator's warps in random order."`
	Workers    int      `default:"0" help:"The simulator's workers; 1 repeats bit for bit, 0 is one a CPU."`
	Jobs       int      `default:"0" help:"Specs side by side; 0: one a CPU on a GPU, which waits for float64 most of the time, and 1 on the simulator."`
	Compile    bool     `help:"Only compile what a check on an H200 would load into the cache, beforehand and without a GPU."`
	Verbose    bool     `short:"v" help:"A line for every case."`
}

// verifyReport is what --json prints.
type verifyReport struct {
	Device   string          `json:"device"`
	Why      string          `json:"why"`
	Compiler string          `json:"compiler"`
	Passed   bool            `json:"passed"`
	Failed   int             `json:"failed"`
	Seconds  float64         `json:"seconds"`
	Reports  []verify.Report `json:"reports"`
}

// Run runs the verb. It fails when a kernel is wrong.
func (v *VerifyCmd) Run(c *Context) error {
	list, err := v.list()
	if err != nil {
		return err
	}
	families, err := parseFamilies(v.Family)
	if err != nil {
		return err
	}
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	if v.Compile {
		return v.compile(c, compiler, list, families)
	}
	dev, err := devices.OpenWith(v.Device, sim.Config{Sanitize: v.Sanitize, Schedule: v.Schedule, Workers: v.Workers})
	if err != nil {
		return err
	}
	defer dev.Close()
	fmt.Fprintf(c.Stderr, "device: %s\n", dev.Why)
	o := verify.Options{Seed: v.Seed, Candidates: v.Candidates, Workloads: v.Workloads, Families: families, Only: v.Case, MaxCluster: v.MaxCluster}
	if o.Workloads == "auto" {
		o.Workloads = "full"
		if dev.Info().Backend == "sim" || v.Sweep != "" {
			o.Workloads = "small"
		}
	}
	loader := verify.NewLoader(c, dev, compiler)
	start := time.Now()
	reports, runErr := v.all(c, dev, loader, list, o)
	out := verifyReport{Device: dev.Info().Name, Why: dev.Why, Compiler: compiler.Version(), Seconds: time.Since(start).Seconds(), Reports: reports}
	for _, r := range reports {
		out.Failed += len(r.Failures())
	}
	out.Passed = out.Failed == 0 && runErr == nil
	runErr = errors.Join(runErr, loader.Unload())
	if c.JSON {
		runErr = errors.Join(runErr, c.PrintJSON(out))
	} else {
		v.print(c.Stdout, out)
	}
	if runErr == nil && out.Failed > 0 {
		return fmt.Errorf("%d checks failed", out.Failed)
	}
	if runErr == nil && v.Case != "" && nothingCompared(reports) {
		return fmt.Errorf("no family has a case %q; --verbose without --case lists them", v.Case)
	}
	return runErr
}

// nothingCompared tells whether every result was skipped.
func nothingCompared(reports []verify.Report) bool {
	for _, r := range reports {
		if slices.ContainsFunc(r.Results, func(x verify.Result) bool { return x.Skipped == "" }) {
			return false
		}
	}
	return true
}

// list resolves what is to be verified.
func (v *VerifyCmd) list() ([]*specs.Spec, error) {
	if v.Sweep != "" {
		if len(v.Specs) > 0 {
			return nil, errors.New("--sweep makes its own specs; name no model beside it")
		}
		return verify.ParseSweep(v.Sweep)
	}
	names := v.Specs
	if len(names) == 0 {
		return nil, errors.New("name a model or a spec file, 'all', or --sweep")
	}
	if slices.Equal(names, []string{"all"}) {
		names = specs.Names()
	}
	var list []*specs.Spec
	for _, name := range names {
		s, err := specs.Resolve(name)
		if err != nil {
			return nil, err
		}
		list = append(list, s)
	}
	return list, nil
}

func parseFamilies(names []string) ([]plan.Family, error) {
	known := []plan.Family{plan.PageSummary, plan.PageScore, plan.PageSelect, plan.PageRerank, plan.PageRerankAttend, plan.PageSelectRerankAttend, plan.PageAttend, plan.PageSelectAttend, verify.Chain, plan.KVQuantize, plan.QueryMoment, plan.QueryFactor,
		plan.DropObserve, plan.DropScore, plan.DropObserveScore, plan.DropPool, plan.DropAllot, plan.DropSelect, plan.DropPoolSelect, plan.DropCompact, verify.DropChain}
	var out []plan.Family
	for _, name := range names {
		if !slices.Contains(known, plan.Family(name)) {
			return nil, unknown("family", name, known)
		}
		out = append(out, plan.Family(name))
	}
	return out, nil
}

// all runs every spec, some side by side, with compilation ahead of them, and returns what was found also when it ends early.
func (v *VerifyCmd) all(c *Context, dev devices.Choice, loader *verify.Loader, list []*specs.Spec, o verify.Options) ([]verify.Report, error) {
	var ahead []plan.Candidate
	progress := &verifyProgress{w: c.Stderr, done: map[string]int{}}
	for _, s := range list {
		p, err := verify.Plan(dev.Info(), s, o)
		if err != nil {
			return nil, err
		}
		ahead = append(ahead, p.All()...) // each source is compiled once
		progress.total += len(p.Candidates) + len(p.Chains)
	}
	wait := loader.Prefetch(ahead, runtime.GOMAXPROCS(0))
	defer wait()
	reports := make([]verify.Report, len(list))
	huge := verify.NewHuge(dev)
	g, ctx := errgroup.WithContext(c)
	g.SetLimit(v.jobsOf(dev.Info().Backend))
	for i, s := range list {
		g.Go(func() error {
			if ctx.Err() != nil {
				return ctx.Err()
			}
			o := o
			o.Progress = func(done, _ int, what string) { progress.say(s.Name, done, what) }
			env := verify.NewEnv(dev, loader.Compile)
			env.Huge = huge
			var err error
			reports[i], err = verify.Run(ctx, env, s, o)
			return errors.Join(err, env.Close())
		})
	}
	err := errors.Join(g.Wait(), huge.Close())
	return slices.DeleteFunc(reports, func(r verify.Report) bool { return r.Spec == "" }), err
}

// jobsOf is how many specs run side by side on a backend.
func (v *VerifyCmd) jobsOf(backend string) int {
	switch {
	case v.Jobs > 0:
		return v.Jobs
	case backend == "sim":
		return 1
	}
	return runtime.GOMAXPROCS(0)
}

// verifyProgress prints at most a line a second, of whichever spec begins a kernel.
type verifyProgress struct {
	w     io.Writer
	total int

	mu   sync.Mutex
	done map[string]int // by spec
	said time.Time
}

func (p *verifyProgress) say(spec string, done int, what string) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.done[spec] = done
	if what == "" || time.Since(p.said) < time.Second {
		return
	}
	p.said = time.Now()
	all := 0
	for _, n := range p.done {
		all += n
	}
	fmt.Fprintf(p.w, "[%d/%d] %s: %s\n", all+1, p.total, spec, what)
}

// print writes the table of maximum errors beside their bounds, and every failure.
func (v *VerifyCmd) print(w io.Writer, out verifyReport) {
	merged := verify.Report{}
	for _, r := range out.Reports {
		results := r.Results
		if v.Sweep != "" { // one table for all specs: candidates are told apart by form alone
			results = slices.Clone(results)
			for i := range results {
				results[i].Candidate = firstWords(results[i].Candidate, 2)
				results[i].Case = r.Spec + ": " + results[i].Case
			}
			merged.Results = append(merged.Results, results...)
			merged.Unchecked = r.Unchecked
			continue
		}
		fmt.Fprintf(w, "%s (%s, seed %d)\n", r.Spec, r.Target, r.Seed)
		v.table(w, r)
	}
	if v.Sweep != "" {
		fmt.Fprintf(w, "sweep %s: %d specs\n", v.Sweep, len(out.Reports))
		v.table(w, merged)
	}
	for _, r := range out.Reports {
		for _, f := range r.Failures() {
			fmt.Fprintf(w, "FAIL %s: %s: %s: %s: %s\n", r.Spec, f.Candidate, f.Case, f.Metric, f.Failure)
		}
	}
}

func firstWords(s string, n int) string {
	words := strings.Fields(s)
	return strings.Join(words[:min(n, len(words))], " ")
}

// table prints one block a candidate, one line a metric, 80 columns wide where names allow.
func (v *VerifyCmd) table(w io.Writer, r verify.Report) {
	last := "\x00"
	for _, row := range r.Rows() {
		if row.Candidate != last {
			last = row.Candidate
			fmt.Fprintf(w, "  %s\n", row.Candidate)
		}
		verdict := "ok  "
		switch {
		case row.Failed > 0:
			verdict = "FAIL"
		case row.Skipped == row.Cases:
			fmt.Fprintf(w, "    -    no case that it has (%d skipped)\n", row.Skipped)
			continue
		}
		fmt.Fprintf(w, "    %s %-40s %9s <= %s\n", verdict, row.Metric, figure(row.MaxError), figure(row.Bound))
		fmt.Fprintf(w, "         %d cases, %d values", row.Cases, row.Count)
		if row.Skipped > 0 {
			fmt.Fprintf(w, ", %d skipped", row.Skipped)
		}
		fmt.Fprintf(w, "; nearest to the bound: %s\n", row.Case)
		if !v.Verbose {
			continue
		}
		for _, x := range r.Results {
			if x.Candidate == row.Candidate && x.Metric == row.Metric {
				fmt.Fprintf(w, "         %9s <= %-9s %s %s\n", figure(x.MaxError), figure(x.Bound), x.Case, x.Skipped)
			}
		}
	}
	for _, f := range r.Unchecked {
		fmt.Fprintf(w, "  %s: no checker, not verified\n", f)
	}
}

// figure prints an error in three digits; Tally writes infinity as the largest float.
func figure(x float64) string {
	if x == math.MaxFloat64 {
		return "inf"
	}
	return fmt.Sprintf("%.3g", x)
}
