package cli

import (
	"bytes"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/kvloom/kvloom/internal/quality"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/internal/wholefile"
)

// QualityCmd measures which pages the page scores select on given keys.
type QualityCmd struct {
	Files       []string  `arg:"" name:"file" help:"safetensors files of one layer each: k and v [KV heads, tokens, dim], q_last [query heads, last positions, dim]; or folders with k.npy, v.npy and q_last.npy."`
	Scorer      []string  `help:"Page scores: exact_lse, page_local, hybrid, shared, quest, mean_key, sink_and_recent; for comparison pre_rope, hybrid_global, shared_global." default:"exact_lse,page_local,hybrid,shared,quest,mean_key,sink_and_recent"`
	Rank        []int     `help:"Ranks of page_local; hybrid and shared get the largest rank within its bytes." default:"1,2,4,8"`
	Bits        []string  `help:"Bits of a basis: 2, 4, 8, 16, or float for no quantisation." default:"4"`
	PageSize    []int     `help:"Tokens a page: 4, 8, 16, 32, 64, 128." default:"16"`
	Budget      []int     `help:"Budgets, tokens." default:"256,512,1024"`
	Combine     []string  `help:"Rules: share_average, group_max, group_mass, peak_normalised, per_head." default:"share_average"`
	Form        []string  `help:"Stored forms of page_local beside --rank and --bits: r2c4s16w is rank 2, 4-bit coefficients, scales per 16 dims, query-weighted basis; m4: 4-bit centroid; p2: one summary for two pages."`
	Cache       []string  `help:"Forms of the cache: bf16, as the file has it; kivi4, kivi2: pages quantised as KIVI does, summaries of the keys in 16 bits; kivi4-pre, kivi2-pre: summaries of the quantised keys." default:"bf16"`
	Rerank      []float64 `help:"Factors of the exact rerank; 1: none." default:"1"`
	Scan        []string  `help:"Scans of page_local's summaries: full, two_level, previous_step." default:"full"`
	Calibration []string  `help:"Calibrations (kvloom calibrate) for weighted forms, one or one a file. Without, the queries before the measured ones and the prompt's own mean key." type:"existingfile" placeholder:"FILE"`
	Other       []string  `help:"Dumps of the same layer of another text, one or one a file, for hybrid_global and shared_global." placeholder:"FILE"`
	Context     int       `help:"Tokens over which the keys that a rerank reads are spread; 0: the file's." default:"0"`
	Queries     int       `help:"Last queries of each head; 0 for all in the file." default:"0"`
	Device      string    `help:"reference, or sim, cuda, cuda:N: score and select by the project's kernels there." default:"reference"`
	Given       bool      `name:"given-records" help:"With a device: score the reference's summaries in place of those that the kernels built."`
	Sink        int       `help:"First pages always kept, inside the budget." default:"1"`
	Recent      int       `help:"Last pages always kept, inside the budget." default:"1"`
	EachFile    bool      `help:"Tables of every file before those of the mean."`
	Markdown    bool      `help:"Print the tables as Markdown."`
	Plot        string    `help:"Write recall.png, recall.svg, pareto.png and pareto.svg into this folder." placeholder:"DIR"`
}

// reference is the device that is none.
const floatReference = "float64 reference"

// qualityReport is what --json prints.
type qualityReport struct {
	Backend string           `json:"backend"`
	Mean    []quality.Row    `json:"mean"`
	Reports []quality.Report `json:"reports"`
}

// Run measures the files and prints the mean over them.
func (c *QualityCmd) Run(ctx *Context) error {
	o, err := c.options()
	if err != nil {
		return err
	}
	backend := floatReference
	if c.Device != "reference" {
		k, err := openKernels(ctx, c.Device)
		if err != nil {
			return err
		}
		defer k.Close()
		o.Kernels, backend = k, "kernels on "+k.name
	}
	fmt.Fprintf(ctx.Stderr, "measuring %d file(s) with the %s\n", len(c.Files), backend)
	start := time.Now()
	o.Progress = func(done, total int) {
		spent := time.Since(start)
		left := spent / time.Duration(done) * time.Duration(total-done)
		fmt.Fprintf(ctx.Stderr, "%d of %d KV heads, %s, about %s left\n", done, total, spent.Round(time.Second), left.Round(time.Second))
	}
	reports, err := quality.Run(ctx, c.Files, o)
	if err != nil {
		return err
	}
	out := qualityReport{Backend: backend, Mean: quality.Mean(reports), Reports: reports}
	if c.Plot != "" {
		if err := c.pictures(ctx, out.Mean); err != nil {
			return err
		}
	}
	if ctx.JSON {
		return ctx.PrintJSON(out)
	}
	c.print(ctx.Stdout, out)
	return nil
}

func (c *QualityCmd) options() (quality.Options, error) {
	o := quality.Options{Ranks: c.Rank, PageSizes: c.PageSize, Budgets: c.Budget, Queries: c.Queries, Sink: c.Sink, Recent: c.Recent,
		Rerank: c.Rerank, Calibrations: c.Calibration, Others: c.Other, Context: c.Context, GivenRecords: c.Given}
	for _, s := range c.Scan {
		o.Scans = append(o.Scans, quality.Scan(s))
	}
	for _, s := range c.Cache {
		f, err := quality.ParseCacheForm(s)
		if err != nil {
			return o, err
		}
		o.Caches = append(o.Caches, f)
	}
	for _, s := range c.Form {
		f, err := reference.ParseForm(s)
		if err != nil {
			return o, err
		}
		o.Forms = append(o.Forms, f)
	}
	for _, s := range c.Scorer {
		o.Methods = append(o.Methods, quality.Method(s))
	}
	for _, s := range c.Combine {
		o.Combine = append(o.Combine, reference.Combine(s))
	}
	for _, s := range c.Bits {
		bits, err := strconv.Atoi(s)
		if s != "float" && (err != nil || bits == 0) {
			return o, fmt.Errorf("--bits %s; allowed: 2, 4, 8, 16, float", s)
		}
		o.Bits = append(o.Bits, bits)
	}
	return o, o.Validate()
}

// print shows the tables, the mean's last.
func (c *QualityCmd) print(w io.Writer, out qualityReport) {
	table := quality.Table
	if c.Markdown {
		table = quality.Markdown
	}
	for _, r := range out.Reports {
		if !c.EachFile && len(out.Reports) > 1 {
			break
		}
		fmt.Fprintf(w, "%s: %d tokens, %d/%d heads of dim %d,\nlast %d queries a head, %s.\n", strings.TrimSuffix(r.File, ".safetensors"), r.Tokens,
			r.QueryHeads, r.KVHeads, r.HeadDim, r.Queries, out.Backend)
		table(w, r.Rows)
		fmt.Fprintln(w)
	}
	if len(out.Reports) > 1 {
		fmt.Fprintf(w, "Mean of %d files, %s.\n", len(out.Reports), out.Backend)
		table(w, out.Mean)
		fmt.Fprintln(w)
	}
	if c.Markdown {
		return // the document has its own legend
	}
	fmt.Fprint(w, `bytes: read for a page and KV head in one step, without and with the keys that
a rerank looks at. mass: true attention on the chosen pages, worst: of the worst
head of a group. recall: of the pages that the exact score chooses, kept ones
included. error: of the attention output, relative. rms: of the page score,
nats.
`)
}

// pictures draws the mean over the files.
func (c *QualityCmd) pictures(ctx *Context, rows []quality.Row) error {
	if err := os.MkdirAll(c.Plot, 0o755); err != nil {
		return err
	}
	for name, draw := range map[string]func(io.Writer, []quality.Row, string) error{"recall": quality.Recall, "pareto": quality.Pareto} {
		for _, format := range []string{"png", "svg"} {
			var b bytes.Buffer
			if err := draw(&b, rows, format); err != nil {
				return err
			}
			path := filepath.Join(c.Plot, name+"."+format)
			if err := wholefile.Write(path, b.Bytes()); err != nil {
				return err
			}
			fmt.Fprintf(ctx.Stderr, "wrote %s\n", path)
		}
	}
	return nil
}
