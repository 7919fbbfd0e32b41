// Evict drops most of a real prompt's KV cache and looks at what later queries get from the rest. For each rule it compiles the kernels,
// observes the prompt's last queries, scores, pools, selects and compacts at several budgets, and lets the queries that follow attend
// to the compacted cache, against float64 attention to the whole prompt.
//
//	evict [--data FILE.safetensors] [--ratios 0.05,0.1,0.3] [--device auto|cuda:N|sim]
package main

import (
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "evict:", err)
		os.Exit(1)
	}
}

// contender is a rule with a way to divide a layer's budget.
type contender struct {
	Rule, HeadBudgets string
}

func (c contender) String() string {
	if c.HeadBudgets == "uniform" {
		return c.Rule
	}
	return c.Rule + ", " + c.HeadBudgets
}

var contenders = []contender{{"dropkv", "uniform"}, {"dropkv", "adaptive"}, {"snapkv", "uniform"}, {"value_norm", "uniform"}, {"keydiff", "uniform"}, {"streaming", "uniform"}}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("evict", flag.ContinueOnError)
	flags.SetOutput(stderr)
	data := flags.String("data", "", "safetensors file with k, v [kv head, token, dim] and q_last [query head, position, dim]; default: the built-in sample")
	dev := flags.String("device", "auto", "auto, cuda:N or sim")
	ratios := flags.String("ratios", "0.05,0.1,0.3", "shares of the prompt that a head keeps, comma-separated")
	window := flags.Int("window", 8, "last queries of the prompt that vote; the positions after them are those that attend")
	sinks := flags.Int("sinks", 4, "first tokens always kept")
	asJSON := flags.Bool("json", false, "print the rows as JSON")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; a file is given with --data", flags.Arg(0))
	}
	list, err := parseRatios(*ratios)
	if err != nil {
		return err
	}
	p, err := loadPrompt(*data, *window)
	if err != nil {
		return err
	}
	compiler, err := nvrtc.Open()
	if err != nil {
		return err
	}
	opened, err := devices.Open(*dev)
	if err != nil {
		return err
	}
	fmt.Fprintf(stderr, "device: %s\n", opened.Why)
	var rows []row
	for _, c := range contenders {
		more, err := evict(ctx, opened.Device, compiler, p, c, list, *sinks)
		if err != nil {
			return errors.Join(fmt.Errorf("%s: %w", c, err), opened.Device.Close())
		}
		rows = append(rows, more...)
	}
	if err := opened.Device.Close(); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(stdout).Encode(rows)
	}
	return printRows(stdout, p, rows, list)
}

func parseRatios(text string) ([]float64, error) {
	var list []float64
	for _, part := range strings.Split(text, ",") {
		r, err := strconv.ParseFloat(strings.TrimSpace(part), 64)
		if err != nil || !(r > 0 && r <= 1) {
			return nil, fmt.Errorf("--ratios %s: want numbers above 0 and up to 1", text)
		}
		list = append(list, r)
	}
	return list, nil
}

// printRows shows a line a contender and two columns a budget.
func printRows(w io.Writer, p *prompt, rows []row, ratios []float64) error {
	fmt.Fprintf(w, "%d tokens, %d query heads on %d KV heads, head dim %d; %d queries of the prompt vote, the %d after it attend\n\n",
		p.tokens, p.queryHeads, p.kvHeads, p.dim, p.window, p.later)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprint(t, "kept\t")
	for _, r := range ratios {
		fmt.Fprintf(t, "%g %%\t\t", 100*r)
	}
	fmt.Fprintln(t)
	fmt.Fprint(t, "rule\t")
	for range ratios {
		fmt.Fprint(t, "error\tmass\t")
	}
	fmt.Fprintln(t, "as f64\tus\t")
	for i := 0; i < len(rows); i += len(ratios) {
		fmt.Fprintf(t, "%s\t", rows[i].Rule)
		same, us := 1.0, 0.0
		for _, r := range rows[i : i+len(ratios)] {
			fmt.Fprintf(t, "%.4f\t%.4f\t", r.OutputError, r.Mass)
			same, us = min(same, r.SameAsFloat64), max(us, r.MicrosecondsEvict)
		}
		fmt.Fprintf(t, "%.1f %%\t%s\t\n", 100*same, micros(us))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nerror: of the later queries' attention output over the kept tokens against the whole")
	fmt.Fprintln(w, "prompt, relative; mass: share of their attention that the kept tokens hold; as f64: kept")
	fmt.Fprintln(w, "tokens that float64's own scores keep too; us: observe to compact, warm")
	if len(rows) > 0 && rows[0].MicrosecondsEvict == 0 {
		fmt.Fprintln(w, "times need a GPU: the simulator executes the kernels and measures nothing")
	}
	return nil
}

func micros(us float64) string {
	if us == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", us)
}
