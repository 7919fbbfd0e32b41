// Package cli is kvloom's command line: one file a verb. Results go to stdout, talk and errors to stderr.
package cli

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

	"github.com/alecthomas/kong"

	"github.com/kvloom/kvloom/internal/version"
	"github.com/kvloom/kvloom/specs"
)

// verbs is every verb of kvloom. A verb is a struct in its own file with kong tags and a method Run(*Context) error; to add one,
// add one field here, in the order of the pipeline.
type verbs struct {
	Spec      SpecCmd      `cmd:"" help:"Check, show, import and list model specs."`
	Gen       GenCmd       `cmd:"" help:"Generate the Go packages of models, with their kernel sources."`
	Verify    VerifyCmd    `cmd:"" help:"Check kernels against float64, on a GPU or on the simulator."`
	Profile   ProfileCmd   `cmd:"" help:"Count what a kernel does on the simulator: instructions, traffic, bank conflicts, divergence."`
	Tune      TuneCmd      `cmd:"" help:"Check and time candidates on a GPU, keep every trial, write a bundle of the best."`
	Bench     BenchCmd     `cmd:"" help:"Measure kernels beside their peers; keep each measurement as a line of a results file."`
	DB        DBCmd        `cmd:"" name:"db" help:"Read, export, merge and check trial databases."`
	Compare   CompareCmd   `cmd:"" help:"Tell which kernels became faster or slower between two tunings; a gate for CI."`
	Explain   ExplainCmd   `cmd:"" help:"Say why a kernel was chosen for a workload."`
	Report    ReportCmd    `cmd:"" help:"Write one self-contained HTML page about a trial database."`
	Audit     AuditCmd     `cmd:"" help:"Check what DropKV's guarantee rests on, on given keys, values and queries."`
	Quality   QualityCmd   `cmd:"" help:"Measure which pages each page score selects on given keys, values and queries."`
	Calibrate CalibrateCmd `cmd:"" help:"Measure what query-weighted page summaries need to know of a layer's queries."`
	Lab       LabCmd       `cmd:"" help:"Measure search strategies against recorded sweeps, without a GPU."`
	Demo      DemoCmd      `cmd:"" help:"Run the main job for one model, from spec to result."`
	Doctor    DoctorCmd    `cmd:"" help:"Say what this machine has, and the remedy for what is missing."`

	MeasureChild MeasureChildCmd `cmd:"" hidden:"" help:"The measuring child of tune."`
}

// root is what kong parses: the verbs and the flags that all of them have.
type root struct {
	verbs
	JSON    bool             `name:"json" help:"Print results as JSON on stdout."`
	Version kong.VersionFlag `help:"Print the version and exit."`
}

// Context is what a verb may use: it neither prints elsewhere nor exits.
type Context struct {
	context.Context // done at Ctrl-C or SIGTERM; a second signal ends the process

	Stdout io.Writer // results
	Stderr io.Writer // talk: progress, warnings
	JSON   bool      // --json
}

// PrintJSON writes one indented JSON value to stdout.
func (c *Context) PrintJSON(v any) error {
	e := json.NewEncoder(c.Stdout)
	e.SetIndent("", "  ")
	e.SetEscapeHTML(false)
	return e.Encode(v)
}

// usageCode is kong's exit code for a command line that cannot be understood.
const usageCode = 80

// exit carries an exit code out of kong's hooks, which expect os.Exit not to return.
type exit int

// Run runs one command line, without the program's name, and returns the exit code: 0, 1 for an error, 80 for wrong usage.
func Run(args []string, stdout, stderr io.Writer) (code int) {
	defer func() {
		switch r := recover().(type) {
		case nil:
		case exit:
			code = int(r)
		default:
			panic(r)
		}
	}()
	var r root
	parser := kong.Must(&r,
		kong.Name("kvloom"),
		kong.Description("Generates, checks and tunes CUDA kernels for long-context attention from a model's spec."),
		kong.Vars{"version": version.String(), "schema_file": specs.SchemaFile},
		kong.Writers(stdout, stderr),
		kong.Exit(func(code int) { panic(exit(code)) }),
		kong.ConfigureHelp(kong.HelpOptions{Compact: true, WrapUpperBound: 80}),
	)
	parsed, err := parser.Parse(args)
	if err != nil {
		fmt.Fprintf(stderr, "kvloom: %v\nRun 'kvloom --help' for usage.\n", err)
		return usageCode
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	if err := parsed.Run(&Context{Context: ctx, Stdout: stdout, Stderr: stderr, JSON: r.JSON}); err != nil {
		report(stderr, err)
		return 1
	}
	return 0
}

// report prints an error, joined ones each on their own. Faults of a spec stand at the start of their lines, where editors look
// for file:line:col.
func report(stderr io.Writer, err error) {
	if joined, ok := err.(interface{ Unwrap() []error }); ok {
		for _, e := range joined.Unwrap() {
			report(stderr, e)
		}
		return
	}
	if faults, ok := err.(specs.Errors); ok {
		fmt.Fprintln(stderr, faults)
		return
	}
	fmt.Fprintf(stderr, "kvloom: %v\n", err)
}
