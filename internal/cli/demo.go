package cli

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// DemoCmd runs the main job for one model, from spec to result.
type DemoCmd struct {
	Model  string        `arg:"" default:"smollm2-135m" help:"Model name, or a spec file. Its data: smollm2-135m has a built-in sample."`
	Dir    string        `default:".kvloom/demo" help:"Folder for the trial database and the bundle."`
	Budget time.Duration `default:"90s" help:"Tuning time, with a GPU."`
	Device string        `default:"auto" help:"auto, cuda, cuda:N or sim."`
	Decode string        `help:"The built examples/decode; default: decode beside this binary." placeholder:"FILE"`
}

// Run tells each step before it takes it: plan, compile, check, tune (with a GPU), pack, decode.
func (d *DemoCmd) Run(ctx *Context) error {
	spec, err := specs.Resolve(d.Model)
	if err != nil {
		return err
	}
	if err := os.MkdirAll(d.Dir, 0o755); err != nil {
		return fmt.Errorf("demo: %w", err)
	}
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	dev, err := devices.Open(d.Device)
	if err != nil {
		return err
	}
	backend := dev.Info().Backend
	d.step(ctx, "device: %s", dev.Why)
	p := plan.New(spec, plan.Targets[spec.Targets[0]])
	d.plan(ctx, p)
	if err := errors.Join(d.check(ctx, dev, compiler, spec), dev.Close()); err != nil {
		return err
	}
	bundle := filepath.Join(d.Dir, spec.Name+".kvb")
	if backend == "cuda" {
		err = d.tune(ctx, bundle)
	} else {
		err = d.pack(ctx, compiler, p, dev.Info().Backend, bundle)
	}
	if err != nil {
		return err
	}
	return d.decode(ctx, bundle)
}

func (d *DemoCmd) step(ctx *Context, format string, args ...any) {
	fmt.Fprintf(ctx.Stderr, "==> "+format+"\n", args...)
}

// plan says what could be built.
func (d *DemoCmd) plan(ctx *Context, p *plan.Plan) {
	d.step(ctx, "plan %s: %d query heads, %d KV heads, head dim %d, rank %d, %d pages of %d tokens", p.Spec.Name, p.Spec.Attention.QueryHeads,
		p.Spec.Attention.KVHeads, p.Spec.Attention.HeadDim, p.Spec.Locks.Rank, p.Spec.Slots(), p.Spec.Cache.PageSize)
	for _, fp := range p.Families {
		fmt.Fprintf(ctx.Stderr, "    %-12s %d candidates, %d rejected; default %s\n", fp.Family, len(fp.Candidates), len(fp.Rejected), fp.Candidates[0].ID())
	}
}

// check compiles the default of every form and holds it against float64.
func (d *DemoCmd) check(ctx *Context, dev devices.Choice, compiler *nvrtc.Compiler, spec *specs.Spec) error {
	d.step(ctx, "compile with %s and check against float64 on %s", compiler.Version(), dev.Info().Name)
	loader := verify.NewLoader(ctx, dev, compiler)
	env := verify.NewEnv(dev, loader.Compile)
	o := verify.Options{Seed: uint64(time.Now().UnixNano()), Workloads: "quick", Candidates: "forms"}
	report, err := verify.Run(ctx, env, spec, o)
	if err := errors.Join(err, env.Close(), loader.Unload()); err != nil {
		return err
	}
	for _, row := range report.Rows() {
		fmt.Fprintf(ctx.Stderr, "    %-12s %-45s %-28s %.2g of at most %.2g\n", row.Family, row.Candidate[len(row.Family)+1:], row.Metric, row.MaxError, row.Bound)
	}
	if n := len(report.Failures()); n > 0 {
		return fmt.Errorf("%d checks failed; kvloom verify %s --verbose shows them", n, d.Model)
	}
	return nil
}

func (d *DemoCmd) tune(ctx *Context, bundle string) error {
	d.step(ctx, "tune for %v, every trial into %s", d.Budget, filepath.Join(d.Dir, "trials.db"))
	t := TuneCmd{Model: d.Model, DB: filepath.Join(d.Dir, "trials.db"), Budget: d.Budget, Seed: 1, Out: bundle, Device: d.Device}
	return t.Run(ctx)
}

// pack writes a bundle of defaults: without a GPU nothing was timed, so nothing was chosen.
func (d *DemoCmd) pack(ctx *Context, compiler *nvrtc.Compiler, p *plan.Plan, backend, path string) error {
	d.step(ctx, "pack the default kernels into %s (times need a GPU, so nothing is tuned here)", path)
	dev, err := devices.Open(backend)
	if err != nil {
		return err
	}
	defer dev.Close()
	packer := autotune.Packer{Spec: p.Spec, Plan: p, Compile: autotune.CompileWith(compiler), NVRTC: compiler.Version(), Generator: version.String(), Device: dev.Info()}
	b, err := packer.Pack(ctx, nil, []string{"made without a GPU: nothing is tuned"})
	if err != nil {
		return err
	}
	return b.Write(path)
}

// decode runs the example program on the bundle.
func (d *DemoCmd) decode(ctx *Context, bundle string) error {
	program := d.Decode
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return fmt.Errorf("demo: %w", err)
		}
		program = filepath.Join(filepath.Dir(self), "decode")
		if runtime.GOOS == "windows" {
			program += ".exe"
		}
	}
	if _, err := os.Stat(program); err != nil {
		return fmt.Errorf("demo: %w; build it with: go build -o %s ./examples/decode", err, program)
	}
	d.step(ctx, "decode a real KV cache with it: %s --bundle %s", filepath.Base(program), bundle)
	args := []string{"--bundle", bundle, "--device", d.Device}
	if ctx.JSON {
		args = append(args, "--json")
	}
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Stdout, cmd.Stderr = ctx.Stdout, ctx.Stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("demo: %s: %w", filepath.Base(program), err)
	}
	return nil
}
