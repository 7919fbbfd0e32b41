package cli

import (
	"bytes"
	"fmt"
	"io"
	"maps"
	"slices"
	"strconv"
	"strings"
	"text/tabwriter"

	"github.com/kvloom/kvloom/internal/bench"
	"github.com/kvloom/kvloom/internal/wholefile"
	"github.com/kvloom/kvloom/specs"
)

// print writes results as the table that was asked for.
func (c *BenchCmd) print(ctx *Context, results []bench.Result) error {
	var table string
	var err error
	switch {
	case c.Crossover && !ctx.JSON:
		return c.printCrossovers(ctx, results)
	case c.Shapes == bench.DropGrowth && !ctx.JSON:
		table, err = bench.DropGrowthTable(results)
	case ctx.JSON || !c.Growth && !c.Breadth:
		return printResults(ctx, results)
	case c.Growth:
		table, err = bench.GrowthTable(results, c.Models...)
	default:
		table, err = bench.BreadthTable(results)
	}
	if err != nil {
		return err
	}
	if _, err := io.WriteString(ctx.Stdout, table); err != nil || c.Picture == "" {
		return err
	}
	for _, format := range []string{"png", "svg"} {
		var b bytes.Buffer
		if err := bench.GrowthPicture(&b, results, format, c.Models...); err != nil {
			return err
		}
		path := c.Picture + "." + format
		if err := wholefile.Write(path, b.Bytes()); err != nil {
			return fmt.Errorf("picture: %w", err)
		}
		fmt.Fprintf(ctx.Stderr, "%s written\n", path)
	}
	return nil
}

func printResults(ctx *Context, results []bench.Result) error {
	if ctx.JSON {
		return ctx.PrintJSON(results)
	}
	card := ""
	t := tabwriter.NewWriter(ctx.Stdout, 0, 0, 2, ' ', 0)
	for _, r := range results {
		if r.Card != card {
			card = r.Card
			fmt.Fprintf(t, "%s, driver %s\nfamily\theads\ttokens\tus\t95 %%\tTB/s\troof\tpeers, us\n", r.Card, r.Driver)
		}
		fmt.Fprintf(t, "%s\t%s\t%dx%d\t%.2f\t%.2f-%.2f\t%.2f\t%.0f %%\t%s\n", family(r), heads(r.Shape), r.Shape.Tokens, r.Shape.Batch,
			r.MedianUS, r.LoUS, r.HiUS, r.TBPerS, 100*r.TBPerS/r.RoofTBPerS, peers(r))
	}
	return t.Flush()
}

// family names a line's work with what tells it from others of its kind.
func family(r bench.Result) string {
	s := r.Shape
	name := r.Family
	switch {
	case s.Scorer != "" && s.Scorer != specs.PageLocal:
		name += " " + s.Scorer
	case s.Rank > 0:
		name += " " + record(s)
	}
	if s.Rerank > 1 {
		name += fmt.Sprintf(" x%g", s.Rerank)
	}
	for _, unusual := range []string{rarely(s.DType, "bf16"), rarely(s.Basis, "svd"), rarely(s.Combine, "share_average"), rarely(s.Layout, "paged"), rarely(s.Precision, "exact"), rarely(s.Budgets, "uniform"), rarely(s.Mode, "prompt"), rarely(s.L2, "cold")} {
		name += unusual
	}
	return name
}

// record is a summary's rank and what its form has smaller, as kvloom quality writes forms: r1c4m4, r1g2.
func record(s bench.Shape) string {
	name := fmt.Sprintf("r%d", s.Rank)
	if s.CoefficientBits == 4 {
		name += "c4"
	}
	if s.CentroidBits == 4 {
		name += "m4"
	}
	if s.ScaleGroup != "" {
		name += "s" + s.ScaleGroup
	}
	if s.SummaryTokens > s.Page {
		name += fmt.Sprintf("g%d", s.SummaryTokens/s.Page)
	}
	return name
}

// rarely is a word that is not the usual one.
func rarely(word, usual string) string {
	if word == "" || word == usual {
		return ""
	}
	return " " + word
}

func heads(s bench.Shape) string {
	h := strconv.Itoa(s.KVHeads)
	if s.QHeads > 0 {
		h = strconv.Itoa(s.QHeads) + "/" + h
	}
	if s.HeadDim > 0 {
		h += " d" + strconv.Itoa(s.HeadDim)
	}
	return h
}

func peers(r bench.Result) string {
	if len(r.Baselines) == 0 {
		return "-"
	}
	var parts []string
	for _, name := range slices.Sorted(maps.Keys(r.Baselines)) {
		digits := 1
		if r.Baselines[name] >= 100 {
			digits = 0
		}
		parts = append(parts, fmt.Sprintf("%s %.*f (%.1fx)", name, digits, r.Baselines[name], r.Baselines[name]/r.MedianUS))
	}
	return strings.Join(parts, ", ")
}
