package cli

import (
	"bytes"
	"fmt"
	"io"
	"strings"

	"github.com/kvloom/kvloom/internal/audit"
	"github.com/kvloom/kvloom/internal/wholefile"
)

// AuditCmd checks what DropKV's guarantee rests on.
type AuditCmd struct {
	Files   []string `arg:"" name:"file" help:"safetensors files of one layer each: k and v [KV heads, tokens, dim], q_last [query heads, last positions, dim]."`
	Ratio   float64  `default:"0.05" help:"Share of the tokens that is kept; the others count as evicted."`
	Queries int      `default:"16" help:"Last queries of each head; 0 for all in the file."`
	Subsets int      `default:"4" help:"Random candidate sets a query whose best eviction is found by trying every one."`
	Size    int      `default:"12" help:"Candidates of such a set, half of which are evicted."`
	Seed    uint64   `default:"1" help:"Seed of the candidate sets."`
	Plot    string   `help:"Write the distribution of c* to this PNG." placeholder:"FILE"`
	Heads   bool     `help:"A line for every KV head."`
}

// auditReport is what --json prints.
type auditReport struct {
	Total   audit.Summary  `json:"total"`
	Reports []audit.Report `json:"reports"`
}

// Run audits the files in their order.
func (c *AuditCmd) Run(ctx *Context) error {
	o := audit.Options{Ratio: c.Ratio, Queries: c.Queries, Subsets: c.Subsets, Size: c.Size, Seed: c.Seed}
	if err := o.Validate(); err != nil {
		return err
	}
	out := auditReport{}
	var all []audit.Query
	for _, file := range c.Files {
		fmt.Fprintf(ctx.Stderr, "auditing %s\n", file)
		r, err := audit.Run(ctx, file, o)
		if err != nil {
			return err
		}
		out.Reports = append(out.Reports, r)
		all = append(all, r.Queries...)
	}
	out.Total = audit.Summarise("all files", all)
	if c.Plot != "" {
		if err := writePicture(c.Plot, out.Reports); err != nil {
			return err
		}
		fmt.Fprintf(ctx.Stderr, "wrote %s\n", c.Plot)
	}
	if ctx.JSON {
		return ctx.PrintJSON(out)
	}
	c.print(ctx.Stdout, out)
	return nil
}

func writePicture(path string, reports []audit.Report) error {
	var b bytes.Buffer
	if err := audit.Picture(&b, reports); err != nil {
		return err
	}
	return wholefile.Write(path, b.Bytes())
}

// print shows a line for each file, each KV head where asked for, and the whole.
func (c *AuditCmd) print(w io.Writer, out auditReport) {
	fmt.Fprintf(w, "Cone condition, %g%% of the tokens kept\n\n", 100*c.Ratio)
	fmt.Fprintf(w, "%-22s             median          median   F(greedy) / F(best)\n", "")
	fmt.Fprintf(w, "%-22s query c* > 0      c* finite  factor median    p95    max\n", "")
	line := func(s audit.Summary) {
		fmt.Fprintf(w, "%-22s %5d %5.1f%% %7.4f %5.1f%% %7s %6s %6s %6s\n", s.Name, s.Queries, 100*s.Cone, s.MedianC, 100*s.Finite,
			number(s.Factor), number(s.RatioMid), number(s.RatioP95), number(s.RatioMax))
	}
	for _, r := range out.Reports {
		line(audit.Summarise(strings.TrimSuffix(r.File, ".safetensors"), r.Queries))
		if !c.Heads {
			continue
		}
		for _, s := range r.ByHead() {
			s.Name = "  " + s.Name
			line(s)
		}
	}
	if len(out.Reports) > 1 {
		line(out.Total)
	}
	fmt.Fprintf(w, "\nfactor is 1/(c* (1-eps) (1-k eps)), finite where c* > 0 and k eps < 1: eps is\n")
	fmt.Fprintf(w, "the largest evicted weight, k the number of evicted tokens. F is how far the\noutput moves.\n")
}

// number prints three decimals, or a dash where there is nothing.
func number(x float64) string {
	switch {
	case x == 0:
		return "-"
	case x >= 1000:
		return fmt.Sprintf("%.0f", x)
	case x >= 100:
		return fmt.Sprintf("%.1f", x)
	}
	return fmt.Sprintf("%.3f", x)
}
