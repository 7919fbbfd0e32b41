package cli

import (
	"encoding/csv"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

// DBExportCmd exports trials, or a bundle.
type DBExportCmd struct {
	dbFilter
	Format string `enum:"json,csv,benchfmt,bundle" default:"json" help:"json (a trial a line, with samples), csv (no samples), benchfmt (Go benchmark lines, for benchstat), bundle (compiles the choices)."`
	Best   bool   `help:"Only the choice for each work and workload, of today's kernels; benchfmt then names no candidates, so that benchstat compares two tunings."`
	Out    string `short:"o" help:"Bundle to write; default MODEL.kvb."`
}

// Run writes the trials to stdout, or the bundle to its file.
func (c *DBExportCmd) Run(ctx *Context) error {
	db, err := store.Open(ctx, c.DB)
	if err != nil {
		return err
	}
	defer db.Close()
	trials, err := db.Trials(ctx, store.Filter{Spec: c.Model, Family: c.Family, Context: c.Context, Batch: c.Batch})
	if err != nil {
		return err
	}
	if c.Format == "bundle" {
		return c.bundle(ctx, db, trials)
	}
	if c.Best {
		if trials, err = bestTrials(trials); err != nil {
			return err
		}
	}
	switch c.Format {
	case "csv":
		return exportCSV(ctx.Stdout, trials)
	case "benchfmt":
		return exportBenchmarks(ctx, db, trials, c.Best)
	}
	e := json.NewEncoder(ctx.Stdout)
	for _, t := range trials {
		if err := e.Encode(t); err != nil {
			return err
		}
	}
	return nil
}

func bestTrials(trials []store.Trial) (best []store.Trial, err error) {
	err = eachModel(trials, func(group []store.Trial, p *plan.Plan, missing error) error {
		if missing != nil {
			return missing
		}
		current, err := autotune.Current(group, p)
		for _, ch := range autotune.Choose(current) {
			best = append(best, ch.Best)
		}
		return err
	})
	return best, err
}

// bundle packs the choices of one model in one environment, as kvloom tune does at its end.
func (c *DBExportCmd) bundle(ctx *Context, db *store.DB, trials []store.Trial) error {
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	packed := 0
	err = eachModel(trials, func(group []store.Trial, p *plan.Plan, missing error) error {
		if missing != nil {
			return missing
		}
		if packed++; packed > 1 {
			return errors.New("the chosen trials are of several models or environments; a bundle is of one: use --model, or a database of one kind of GPU")
		}
		current, err := autotune.Current(group, p)
		if err != nil {
			return err
		}
		if len(current) == 0 {
			return fmt.Errorf("%s: all %d trials are of kernels that have changed since; tune again", p.Spec.Name, len(group))
		}
		env, err := db.EnvironmentOf(ctx, group[0].Environment)
		if err != nil {
			return err
		}
		var info device.Info
		if err := json.Unmarshal(env.Device, &info); err != nil {
			return fmt.Errorf("%s: device record: %w", c.DB, err)
		}
		choices := autotune.Choose(current)
		packer := autotune.Packer{Spec: p.Spec, Plan: p, Compile: autotune.CompileWith(compiler), NVRTC: compiler.Version(), Generator: version.String(), Device: info}
		b, err := packer.Pack(ctx, choices, autotune.Warnings(choices))
		if err != nil {
			return err
		}
		path := c.Out
		if path == "" {
			path = p.Spec.Name + ".kvb"
		}
		fmt.Fprintf(ctx.Stderr, "%s: %d choices of %s\n", path, len(choices), p.Spec.Name)
		return b.Write(path)
	})
	if err == nil && packed == 0 {
		return fmt.Errorf("%s has no trials that the flags choose", c.DB)
	}
	return err
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

// exportBenchmarks writes Go benchmark lines, one a sample: benchstat takes lines of one name as the samples of one distribution. Only
// right and complete measurements are benchmarks.
func exportBenchmarks(ctx *Context, db *store.DB, trials []store.Trial, best bool) error {
	environment := ""
	for _, t := range trials {
		if t.Class != store.OK {
			continue
		}
		if t.Environment != environment {
			environment = t.Environment
			env, err := db.EnvironmentOf(ctx, environment)
			if err != nil {
				return err
			}
			var info device.Info
			if err := json.Unmarshal(env.Device, &info); err != nil {
				return fmt.Errorf("device record: %w", err)
			}
			fmt.Fprintf(ctx.Stdout, "pkg: github.com/kvloom/kvloom\ndevice: %s\ndriver: %s\nnvrtc: %s\n", info.Name, env.Driver, env.NVRTC)
		}
		name := benchmarkName(t, best)
		for _, us := range t.Samples {
			fmt.Fprintf(ctx.Stdout, "%s 1 %s ns/op\n", name, strconv.FormatFloat(us*1000, 'f', -1, 64))
		}
	}
	return nil
}

// benchmarkName is "BenchmarkPageScore/model=m/context=1024/batch=1/form=hopper/warps=4".
func benchmarkName(t store.Trial, best bool) string {
	var b strings.Builder
	b.WriteString("Benchmark")
	for _, part := range strings.Split(t.Family, "_") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	fmt.Fprintf(&b, "/model=%s/context=%d/batch=%d", t.Spec, t.Context, t.Batch)
	if t.L2 == "warm" {
		b.WriteString("/l2=warm")
	}
	if !best {
		fmt.Fprintf(&b, "/form=%s", t.Candidate.Form)
		for _, p := range t.Candidate.Params {
			fmt.Fprintf(&b, "/%s=%d", p.Name, p.Value)
		}
	}
	return b.String()
}
