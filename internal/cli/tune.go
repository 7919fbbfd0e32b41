package cli

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"runtime"
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

// TuneCmd tunes every family of a spec on a GPU.
type TuneCmd struct {
	Model     string        `arg:"" help:"Model name, or a spec file."`
	DB        string        `name:"db" default:"kvloom.db" help:"Trial database; made where there is none. A second start resumes."`
	Budget    time.Duration `default:"10m" help:"Tuning time over all runs of this spec on this GPU; 0: no limit."`
	MaxTrials int           `help:"Stop after so many trials of this run; 0: no limit."`
	Seed      uint64        `default:"1" help:"Seed of the search order."`
	Only      []string      `help:"Families to tune: page_summary, page_score, page_select, page_attend, dense."`
	Out       string        `help:"Bundle to write; default MODEL.kvb."`
	Strategy  string        `default:"default" help:"Search of spaces beyond 64 candidates: default, random, local, model, exhaustive."`
	Target    float64       `default:"0.01" help:"End a search when it is likely that nothing is left that is faster by more than this share."`
	Wait      time.Duration `help:"Wait so long for another tuner of the same GPU; default: refuse at once."`
	Tables    string        `help:"Folder for the tuned table MODEL.json, an input of kvloom gen (specs/tuned in this repository)." placeholder:"DIR"`
	Device    string        `default:"auto" help:"auto, cuda or cuda:N. The simulator measures no times."`
}

// Run tunes, chooses and writes the bundle. Ctrl-C stops after the trial in flight; a second one stops at once.
func (c *TuneCmd) Run(ctx *Context) error {
	spec, err := specs.Resolve(c.Model)
	if err != nil {
		return err
	}
	works, err := c.works()
	if err != nil {
		return err
	}
	strategy, err := search.Named(c.Strategy)
	if err != nil {
		return fmt.Errorf("--strategy: %w", err)
	}
	if strings.HasPrefix(c.Device, "sim") {
		return errors.New("tune --device sim: the simulator executes kernels but measures no times; tune on a GPU, or check with kvloom verify --device sim")
	}
	host := &measure.Host{Timeout: 60 * time.Second, Command: childCommand(c.Device)}
	defer host.Close()
	info, err := host.Info(ctx)
	if err != nil { // before anything is written
		return err
	}
	lock, err := store.LockDevice(ctx, store.LockFolder(), info.UUID, "kvloom tune "+spec.Name, c.Wait, func(busy *store.BusyError) {
		fmt.Fprintf(ctx.Stderr, "waiting up to %v: %v\n", c.Wait, busy)
	})
	if err != nil {
		return err
	}
	defer lock.Release() //nolint:errcheck // the process ends
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	db, err := store.Create(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	target := plan.Targets[spec.Targets[0]]
	progress := newTuneProgress(ctx, spec.Name)
	t := &autotune.Tuner{
		Spec: spec, Plan: plan.New(spec, target), Compile: autotune.CompileWith(compiler), NVRTC: compiler.Version(), Generator: version.String(),
		Host: host, DB: db, Observe: progress.observe,
		Options: autotune.Options{Budget: c.Budget, MaxTrials: c.MaxTrials, Seed: c.Seed, Works: works, Workers: max(1, runtime.NumCPU()-1),
			Strategy: strategy, Evaluations: 300, Target: c.Target, Rounds: autotune.DefaultRounds},
	}
	soft, stop := signal.NotifyContext(ctx, os.Interrupt)
	defer stop()
	out, err := t.Run(soft)
	progress.close()
	if err != nil {
		return err
	}
	return c.finish(ctx, t, out)
}

func (c *TuneCmd) works() ([]measure.Work, error) {
	var works []measure.Work
	for _, name := range c.Only {
		w, err := workNamed(name)
		if err != nil {
			return nil, fmt.Errorf("--only %w", err)
		}
		works = append(works, w)
	}
	return works, nil
}

// childCommand makes the measuring child: this binary with the hidden verb.
func childCommand(dev string) func(context.Context) *exec.Cmd {
	return func(ctx context.Context) *exec.Cmd {
		self, err := os.Executable()
		if err != nil {
			self = os.Args[0]
		}
		return exec.CommandContext(ctx, self, "measure-child", "--device", dev)
	}
}

// finish chooses among all trials of the current sources and writes what follows from them.
func (c *TuneCmd) finish(ctx *Context, t *autotune.Tuner, out autotune.Outcome) error {
	trials, err := t.DB.Trials(ctx, store.Filter{Spec: t.Spec.Name, Environment: out.Environment.ID()})
	if err != nil {
		return err
	}
	trials, err = autotune.Current(trials, t.Plan)
	if err != nil {
		return err
	}
	choices := autotune.Choose(trials)
	path := c.Out
	if path == "" {
		path = t.Spec.Name + ".kvb"
	}
	warnings := autotune.Warnings(choices)
	packer := autotune.Packer{Spec: t.Spec, Plan: t.Plan, Compile: t.Compile, NVRTC: t.NVRTC, Generator: t.Generator, Device: out.Device}
	bundle, err := packer.Pack(ctx, choices, warnings)
	if err != nil {
		return err
	}
	if err := bundle.Write(path); err != nil {
		return err
	}
	if c.Tables != "" {
		if err := specs.WriteTable(c.Tables, autotune.Table(t.Spec, out.Device, t.NVRTC, choices)); err != nil {
			return err
		}
	}
	report := tuneReport{Model: t.Spec.Name, Device: out.Device, Why: out.Why, Measured: out.Measured, Known: out.Known, Left: out.Left,
		Database: c.DB, Bundle: path, Warnings: warnings}
	for _, ch := range choices {
		report.Choices = append(report.Choices, choiceRow(ch))
	}
	if ctx.JSON {
		return json.NewEncoder(ctx.Stdout).Encode(map[string]any{"kind": "report", "report": report})
	}
	report.print(ctx.Stdout)
	if out.Why == "stopped" || out.Why == "trial limit" {
		fmt.Fprintf(ctx.Stderr, "%s; the same command resumes at the next trial\n", out.Why)
	}
	return nil
}

// MeasureChildCmd is the measuring child of tune: it speaks JSON lines with its parent and is not for people.
type MeasureChildCmd struct {
	Device string `default:"auto"`
}

// Run serves requests until standard input ends.
func (c *MeasureChildCmd) Run(ctx *Context) error {
	child := &measure.Child{Check: autotune.Check, Pause: 500 * time.Millisecond}
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
