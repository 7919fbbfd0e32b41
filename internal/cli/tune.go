package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvml"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// TuneCmd tunes every family of specs on a GPU.
type TuneCmd struct {
	Models    []string      `arg:"" optional:"" name:"model" help:"Model names, or spec files."`
	All       bool          `help:"All models that kvloom knows."`
	DB        string        `name:"db" default:"kvloom.db" help:"Trial database; made where there is none. A second start resumes."`
	Budget    time.Duration `default:"10m" help:"Tuning time over all runs of these specs on this kind of GPU; 0: no limit."`
	MaxTrials int           `help:"Stop after so many trials of this run and model; 0: no limit."`
	Seed      uint64        `default:"1" help:"Seed of the search."`
	Only      []string      `placeholder:"FAMILY" help:"Families to tune: page_summary, page_score, page_select, page_attend, dense, drop_observe, ...; default: all that the spec uses."`
	Out       string        `help:"Bundle to write, or a folder for MODEL.kvb (the way to name it with several models); default MODEL.kvb."`
	Strategy  string        `default:"default" help:"What is measured in which order: default, random, local, model, exhaustive. Up to 64 candidates everything is measured."`
	Target    float64       `default:"0.01" help:"End a search when it is likely that nothing is left that is faster by more than this share."`
	Trials    int           `default:"300" help:"End the search of one family and workload after so many trials in a space beyond 64 candidates; 0: no limit."`
	Workload  []string      `help:"Workloads as CONTEXTxBATCH, such as 131072x1; default: the spec's." placeholder:"CxB"`
	Rounds    int           `default:"10" help:"Rounds in which the leaders of each point are measured again; 0: none."`
	Precision float64       `default:"0.005" help:"Samples of a trial end when the 95 % interval is within this share of the median."`
	Wait      time.Duration `help:"Wait so long for another tuner of the same GPU; default: refuse at once."`
	L2        string        `name:"l2" enum:"cold,warm" default:"cold" help:"State of the L2: cold as in a decode step, or warm."`
	Tables    string        `help:"Folder for the tuned table MODEL.json, an input of kvloom gen (specs/tuned in this repository)." placeholder:"DIR"`
	Device    string        `default:"auto" help:"auto, cuda or cuda:N. The simulator measures no times."`

	Compile   bool   `help:"Only compile candidates into the cache, beforehand and without a GPU: those of spaces of up to 64, and of families that --only names."`
	SelfCheck bool   `group:"self-check" help:"Instead of tuning, measure kernels against themselves: how often are equal candidates told apart?"`
	Pairs     int    `group:"self-check" default:"100" help:"Pairs of the self-check."`
	CI        bool   `name:"ci" group:"ci" help:"The whole job on a runner: measure what the baseline chose, tune, compare, write bundle and page; fail when something is slower."`
	Baseline  string `group:"ci" help:"Bundle or database of before; its choices are measured first. A file that does not exist is none yet." placeholder:"FILE"`
	Page      string `group:"ci" help:"Page of --ci; default MODEL.html." placeholder:"FILE"`
	compareFlags

	Child string `hidden:"" help:"Program that measures, for tests."`
}

// tuneTools are what all models of a run share.
type tuneTools struct {
	host     *measure.Host
	compiler *nvrtc.Compiler
	db       *store.DB
	strategy search.Strategy
	works    []measure.Work
}

// Run tunes, chooses and writes bundles. Ctrl-C stops after the trial in flight; a second one stops at once.
func (c *TuneCmd) Run(ctx *Context) error {
	list, err := c.specs()
	if err != nil {
		return err
	}
	t, err := c.parse()
	if err != nil {
		return err
	}
	if c.Compile {
		return c.compileOnly(ctx, list, t.works)
	}
	if strings.HasPrefix(c.Device, "sim") {
		return errors.New("tune --device sim: the simulator executes kernels but measures no times; tune on a GPU, or check with kvloom verify --device sim")
	}
	soft := ctx.Context
	whole := *ctx // what a stop lets finish: the trial in flight, the choice, the bundle
	whole.Context = context.WithoutCancel(ctx)
	t.host = &measure.Host{Timeout: 60 * time.Second, Command: c.childCommand()}
	defer t.host.Close()
	info, err := t.host.Info(whole)
	if err != nil { // before anything is written
		return err
	}
	lock, err := store.LockDevice(ctx, store.LockFolder(), info.UUID, "kvloom tune "+list[0].Name, c.Wait, func(busy *store.BusyError) {
		fmt.Fprintf(ctx.Stderr, "waiting up to %v: %v\n", c.Wait, busy)
	})
	if err != nil {
		return err
	}
	defer lock.Release() //nolint:errcheck // the process ends
	if t.compiler, err = nvrtc.Open(); err != nil {
		return err
	}
	if c.SelfCheck {
		return c.selfCheck(soft, &whole, list, t)
	}
	if t.db, err = store.Create(whole, c.DB); err != nil {
		return err
	}
	defer t.db.Close()
	var failed error
	for i, spec := range list {
		budget, err := c.share(whole, t, list, i)
		if err != nil {
			return err
		}
		tuner := c.tuner(t, spec, budget)
		why, err := c.model(soft, &whole, tuner)
		if errors.Is(err, errGate) {
			failed = errors.Join(failed, err)
		} else if err != nil {
			return errors.Join(failed, err)
		}
		if why == "stopped" {
			break
		}
	}
	return failed
}

// specs are the models of the command line.
func (c *TuneCmd) specs() (list []*specs.Spec, err error) {
	names := c.Models
	if c.All {
		names = append(names, specs.Names()...)
	}
	switch {
	case len(names) == 0:
		return nil, errors.New("tune: name a model or a spec file, or use --all")
	case len(names) > 1 && c.Out != "" && !isFolder(c.Out):
		return nil, fmt.Errorf("tune --out %s: names one bundle, and there are several models; name a folder (%s/)", c.Out, c.Out)
	case len(names) > 1 && c.Page != "":
		return nil, errors.New("tune --page: names one page, and there are several models")
	case c.Baseline != "" && !c.CI:
		return nil, errors.New("tune --baseline: is a flag of --ci; kvloom compare compares by itself")
	}
	for _, name := range names {
		s, err := specs.Resolve(name)
		if err != nil {
			return nil, err
		}
		if len(c.Workload) > 0 {
			if s.Workloads, err = parseWorkloads(c.Workload); err != nil {
				return nil, fmt.Errorf("tune: %w", err)
			}
		}
		list = append(list, s)
	}
	return list, nil
}

func (c *TuneCmd) parse() (t *tuneTools, err error) {
	t = &tuneTools{strategy: search.Default{}}
	if c.Strategy != "" {
		if t.strategy, err = search.Named(c.Strategy); err != nil {
			return nil, fmt.Errorf("--strategy: %w", err)
		}
	}
	t.works, err = c.works()
	return t, err
}

// share is the tuning time that a model may have spent in all by the end of this run: what it has spent, and its part of what all of them
// have left.
func (c *TuneCmd) share(ctx context.Context, t *tuneTools, list []*specs.Spec, i int) (time.Duration, error) {
	if c.Budget == 0 {
		return 0, nil
	}
	info, err := t.host.Info(ctx)
	if err != nil {
		return 0, err
	}
	id, err := autotune.EnvironmentID(info, t.compiler.Version())
	if err != nil {
		return 0, err
	}
	var spent []float64
	for _, s := range list {
		seconds, err := t.db.SpentSeconds(ctx, s.Name, id)
		if err != nil {
			return 0, err
		}
		spent = append(spent, seconds)
	}
	return shareOf(c.Budget, spent, i), nil
}

// shareOf is what model i may have spent in all, where the models have spent so many seconds: what is left goes to it and the models after it,
// first to those that have spent least, so that a run that was killed in one model does not take the others' part.
func shareOf(budget time.Duration, spent []float64, i int) time.Duration {
	left := budget.Seconds()
	for _, s := range spent {
		left -= s
	}
	left = max(left, 0)
	level, sum, rest := 0.0, 0.0, slices.Sorted(slices.Values(spent[i:]))
	for n, s := range rest { // as many as what is left raises to one level
		sum += s
		if level = (left + sum) / float64(n+1); n+1 < len(rest) && level <= rest[n+1] {
			break
		}
	}
	return time.Duration(max(level, spent[i]) * float64(time.Second))
}

func (c *TuneCmd) tuner(t *tuneTools, spec *specs.Spec, budget time.Duration) *autotune.Tuner {
	if c.Budget > 0 {
		budget = max(budget, 1) // spent; 0 would be no limit
	}
	trials, target := c.Trials, c.Target
	if t.strategy == (search.Strategy)(search.Whole{}) {
		trials, target = 0, 0 // whole means whole
	}
	return &autotune.Tuner{
		Spec: spec, Plan: plan.New(spec, plan.Targets[spec.Targets[0]]), Compile: autotune.CompileWith(t.compiler), NVRTC: t.compiler.Version(),
		Generator: version.String(), Host: t.host, DB: t.db,
		Options: autotune.Options{Budget: budget, MaxTrials: c.MaxTrials, Seed: c.Seed, Works: t.works,
			Workers: max(1, runtime.NumCPU()-1), Checkers: min(runtime.NumCPU()/2, mostCheckers), Strategy: t.strategy, Evaluations: trials, Target: target, Rounds: c.Rounds,
			Precision: c.Precision, Warm: c.L2 == "warm"},
	}
}

// mostCheckers bounds the children that check side by side: each has a context on the GPU, some 500 MB.
const mostCheckers = 8

// model tunes one model and writes what follows.
func (c *TuneCmd) model(soft context.Context, ctx *Context, t *autotune.Tuner) (why string, err error) {
	if c.Baseline != "" {
		if t.Options.Incumbents, err = c.incumbents(ctx, t.Spec); err != nil {
			return "", err
		}
	}
	progress := newTuneProgress(ctx, t.Spec.Name)
	t.Observe = progress.observe
	out, err := t.Run(soft)
	progress.close()
	if err != nil {
		return "", err
	}
	bundle, err := c.finish(ctx, t, out)
	if err == nil && c.CI {
		err = c.judge(ctx, t, out, bundle)
	}
	return out.Why, err
}

func (c *TuneCmd) works() ([]measure.Work, error) {
	var works []measure.Work
	for _, name := range c.Only {
		w, err := workNamed(name)
		if err != nil {
			return nil, fmt.Errorf("--only: %w", err)
		}
		works = append(works, w)
	}
	return works, nil
}

// childCommand makes the measuring child: this binary with the hidden verb.
func (c *TuneCmd) childCommand() func(context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd {
		if c.Child != "" {
			return exec.CommandContext(ctx, c.Child)
		}
		self, err := os.Executable()
		if err != nil {
			self = os.Args[0]
		}
		return exec.CommandContext(ctx, self, "measure-child", "--device", c.Device)
	}
}

// finish chooses among all trials of the current sources, writes what follows from them, and returns the bundle's file.
func (c *TuneCmd) finish(ctx *Context, t *autotune.Tuner, out autotune.Outcome) (bundlePath string, err error) {
	trials, err := t.DB.Trials(ctx, store.Filter{Spec: t.Spec.Name, Environment: out.Environment.ID()})
	if err != nil {
		return "", err
	}
	trials = slices.DeleteFunc(trials, func(tr store.Trial) bool { return tr.L2 != t.Options.L2() })
	trials, err = autotune.Current(trials, t.Plan)
	if err != nil {
		return "", err
	}
	if out.Why == "stopped" {
		fmt.Fprintln(ctx.Stderr, "stopped after the trial in flight; writing the bundle of what was measured (Ctrl-C again: leave without)")
	}
	choices := autotune.Choose(trials)
	path := c.bundleFile(t.Spec.Name)
	warnings := autotune.Warnings(choices)
	packer := autotune.Packer{Spec: t.Spec, Plan: t.Plan, Compile: t.Compile, NVRTC: t.NVRTC, Generator: t.Generator, Device: out.Device}
	bundle, err := packer.Pack(ctx, choices, warnings)
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return "", fmt.Errorf("bundle %s: %w", path, err)
	}
	if err := bundle.Write(path); err != nil {
		return "", err
	}
	if c.Tables != "" {
		if err := specs.WriteTable(c.Tables, autotune.Table(t.Spec, out.Device, t.NVRTC, choices)); err != nil {
			return "", err
		}
	}
	report := tuneReport{Model: t.Spec.Name, Device: out.Device, Why: out.Why, Measured: out.Measured, Known: out.Known, Left: out.Left,
		Database: c.DB, Bundle: path, Warnings: warnings, Against: autotune.AgainstDefaults(choices)}
	for _, ch := range choices {
		report.Choices = append(report.Choices, choiceRow(ch))
	}
	if ctx.JSON {
		return path, json.NewEncoder(ctx.Stdout).Encode(map[string]any{"kind": "report", "report": report})
	}
	report.print(ctx.Stdout)
	if out.Why == "stopped" || out.Why == "trial limit" {
		fmt.Fprintf(ctx.Stderr, "%s; the same command resumes at the next trial\n", out.Why)
	}
	return path, nil
}

// isFolder tells whether a path names a folder: one that is there, or that ends like one.
func isFolder(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.IsDir() || err != nil && strings.HasSuffix(path, "/")
}

// bundleFile is where a model's bundle goes.
func (c *TuneCmd) bundleFile(model string) string {
	switch {
	case c.Out == "":
		return model + ".kvb"
	case isFolder(c.Out):
		return filepath.Join(c.Out, model+".kvb")
	}
	return c.Out
}

// MeasureChildCmd is the measuring child of tune: it speaks JSON lines with its parent and is not for people.
type MeasureChildCmd struct {
	Device string `default:"auto"`
}

// Run serves requests until standard input ends.
func (c *MeasureChildCmd) Run(ctx *Context) error {
	var checker autotune.Checker
	child := &measure.Child{Check: checker.Quick, Thorough: checker.Whole, Pause: 500 * time.Millisecond}
	child.Open = func() (device.Device, error) {
		dev, err := devices.Open(c.Device)
		if err != nil {
			return nil, err
		}
		if dev.Info().Backend != "cuda" {
			return nil, fmt.Errorf("tuning measures times, which a simulator cannot; this is %s; run on a machine with a GPU", dev.Why)
		}
		if library, err := nvml.Open(); err == nil { // without it clocks are not known, and doctor says why
			child.Watch = func() (nvml.Status, error) { return library.ByUUID(dev.Info().UUID) }
		}
		return dev.Device, nil
	}
	return child.Serve(ctx, os.Stdin, os.Stdout)
}
