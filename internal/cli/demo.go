package cli

import (
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"text/tabwriter"
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
	Evict  string        `help:"The built examples/evict; default: evict beside this binary." placeholder:"FILE"`
}

// Run tells each step before it takes it: plan, compile, check, tune (with a GPU), pack, decode, evict.
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
	if err := d.decode(ctx, bundle); err != nil {
		return err
	}
	return d.evict(ctx)
}

func (d *DemoCmd) step(ctx *Context, format string, args ...any) {
	fmt.Fprintf(ctx.Stderr, "==> "+format+"\n", args...)
}

// plan says what could be built.
func (d *DemoCmd) plan(ctx *Context, p *plan.Plan) {
	a := p.Spec.Attention
	d.step(ctx, "plan %s: %d/%d heads, head dim %d, rank %d, %d pages of %d tokens", p.Spec.Name, a.QueryHeads, a.KVHeads, a.HeadDim,
		p.Spec.Locks.Rank, p.Spec.Slots(), p.Spec.Cache.PageSize)
	for _, fp := range p.Families {
		id := fp.Candidates[0].ID()
		fmt.Fprintf(ctx.Stderr, "    %-13s %2d candidates, the default is%s\n", fp.Family, len(fp.Candidates), id[len(fp.Family):])
	}
}

// check compiles the default of every form and holds it against float64.
func (d *DemoCmd) check(ctx *Context, dev devices.Choice, compiler *nvrtc.Compiler, spec *specs.Spec) error {
	d.step(ctx, "compile with %s, check against float64", compiler.Version())
	loader := verify.NewLoader(ctx, dev, compiler)
	env := verify.NewEnv(dev, loader.Compile)
	o := verify.Options{Seed: uint64(time.Now().UnixNano()), Workloads: "quick", Candidates: "forms"}
	report, err := verify.Run(ctx, env, spec, o)
	if err := errors.Join(err, env.Close(), loader.Unload()); err != nil {
		return err
	}
	printChecks(ctx.Stderr, report.Rows())
	if n := len(report.Failures()); n > 0 {
		return fmt.Errorf("%d checks failed; kvloom verify %s --verbose shows them", n, d.Model)
	}
	return nil
}

// printChecks condenses the table to a line a candidate: how much was compared, and how near the worst of it came to its bound.
func printChecks(w io.Writer, rows []verify.Row) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	for i := 0; i < len(rows); {
		first, worst, values := rows[i], 0.0, int64(0)
		for ; i < len(rows) && rows[i].Candidate == first.Candidate; i++ {
			if rows[i].MaxError > 0 { // an exact comparison has the bound 0
				worst = max(worst, rows[i].MaxError/rows[i].Bound)
			}
			values += rows[i].Count
		}
		_, form, _ := strings.Cut(first.Candidate, " ") // family, form, parameters; chains have a name and a form
		form, _, _ = strings.Cut(form, " ")
		fmt.Fprintf(t, "    %s\t%s\t%d values compared\tlargest error %.1f %% of its bound\n", first.Family, form, values, 100*worst)
	}
	_ = t.Flush()
}

func (d *DemoCmd) tune(ctx *Context, bundle string) error {
	d.step(ctx, "tune for %v, every trial into %s", d.Budget, filepath.Join(d.Dir, "trials.db"))
	t := TuneCmd{Models: []string{d.Model}, DB: filepath.Join(d.Dir, "trials.db"), Budget: d.Budget, Seed: 1, Out: bundle, Device: d.Device}
	return t.Run(ctx)
}

// pack writes a bundle of defaults: without a GPU nothing was timed, so nothing was chosen.
func (d *DemoCmd) pack(ctx *Context, compiler *nvrtc.Compiler, p *plan.Plan, backend, path string) error {
	d.step(ctx, "pack the default kernels into %s\n    (times need a GPU: nothing is tuned here)", path)
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

// decode runs examples/decode on the bundle.
func (d *DemoCmd) decode(ctx *Context, bundle string) error {
	program, err := example("decode", d.Decode)
	if err != nil {
		return err
	}
	d.step(ctx, "decode a real KV cache with it")
	return d.example(ctx, program, "--bundle", bundle)
}

// evict runs examples/evict, which compiles kernels for each rule.
func (d *DemoCmd) evict(ctx *Context) error {
	program, err := example("evict", d.Evict)
	if err != nil {
		return err
	}
	d.step(ctx, "evict most of a prompt's cache, by each rule")
	return d.example(ctx, program)
}

// example finds a built example: the file given, or the one beside this binary.
func example(name, program string) (string, error) {
	if program == "" {
		self, err := os.Executable()
		if err != nil {
			return "", fmt.Errorf("demo: %w", err)
		}
		program = filepath.Join(filepath.Dir(self), name)
		if runtime.GOOS == "windows" {
			program += ".exe"
		}
	}
	if _, err := os.Stat(program); err != nil {
		return "", fmt.Errorf("demo: %w; build it with: go build -o %s ./examples/%s", err, program, name)
	}
	return program, nil
}

func (d *DemoCmd) example(ctx *Context, program string, args ...string) error {
	args = append(args, "--device", d.Device)
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
