// Decode attends to a real KV cache through tuned kernels: it opens a bundle, lays the cache out in shuffled pages, builds page summaries,
// captures score, select and attend as one CUDA graph, and replays it at several lengths. Beside it run the dense kernel and float64.
//
//	decode --bundle smollm2-135m.kvb [--data FILE.safetensors] [--device auto|cuda:N|sim]
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"text/tabwriter"
)

func main() {
	if err := run(os.Args[1:], os.Stdout, os.Stderr); err != nil {
		fmt.Fprintln(os.Stderr, "decode:", err)
		os.Exit(1)
	}
}

func run(args []string, stdout, stderr io.Writer) error {
	flags := flag.NewFlagSet("decode", flag.ContinueOnError)
	flags.SetOutput(stderr)
	bundle := flags.String("bundle", "smollm2-135m.kvb", "kernels, written by kvloom tune, or untuned by kvloom demo into .kvloom/demo")
	data := flags.String("data", "", "safetensors file with k, v [kv head, token, dim] and q_last [query head, position, dim]; default: the built-in sample")
	dev := flags.String("device", "auto", "auto, cuda:N or sim")
	lengths := flags.String("lengths", "1021,1022,1023,1024,519", "sequence lengths to replay the graph at, comma-separated")
	asJSON := flags.Bool("json", false, "print the rows as JSON")
	if err := flags.Parse(args); errors.Is(err, flag.ErrHelp) {
		return nil
	} else if err != nil {
		return err
	}
	if flags.NArg() > 0 {
		return fmt.Errorf("unexpected argument %q; a file is given with --data", flags.Arg(0))
	}
	c, err := loadCache(*data)
	if err != nil {
		return err
	}
	lens, err := parseLengths(*lengths, c.tokens)
	if err != nil {
		return err
	}
	d, err := newDecoder(*dev, *bundle, c, stderr)
	if err != nil {
		return err
	}
	rows, err := d.decode(lens)
	if err := errors.Join(err, d.close()); err != nil {
		return err
	}
	if *asJSON {
		return json.NewEncoder(stdout).Encode(rows)
	}
	return printRows(stdout, d, rows)
}

func parseLengths(text string, most int) ([]int, error) {
	var lens []int
	for _, part := range strings.Split(text, ",") {
		n, err := strconv.Atoi(strings.TrimSpace(part))
		if err != nil || n < 1 || n > most {
			return nil, fmt.Errorf("--lengths %s: want numbers from 1 to %d, the tokens of the cache", text, most)
		}
		lens = append(lens, n)
	}
	return lens, nil
}

func printRows(w io.Writer, d *decoder, rows []row) error {
	fmt.Fprintf(w, "%d query heads, %d KV heads, head dim %d; budget %d pages of %d tokens, always the first and the last\n\n",
		d.model.QueryHeads, d.model.KVHeads, d.model.HeadDim, d.model.Slots, d.model.PageSize)
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintln(t, "tokens\tpages\tkept\tmass\tmass f64\toutput error\tdense error\tsparse us\tdense us\t")
	for _, r := range rows {
		fmt.Fprintf(t, "%d\t%d\t%d\t%.4f\t%.4f\t%.4f\t%.1e\t%s\t%s\t\n", r.Tokens, r.Pages, r.Kept, r.Mass, r.MassReference, r.OutputError,
			r.DenseError, micros(r.SparseUS), micros(r.DenseUS))
	}
	if err := t.Flush(); err != nil {
		return err
	}
	fmt.Fprintln(w, "\nmass: share of the full attention on the kept pages, mean over query heads; f64: of the pages that float64 keeps")
	fmt.Fprintln(w, "output error: of the sparse output against full float64 attention, relative; dense error: of the dense kernel")
	if rows[0].SparseUS == 0 {
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
