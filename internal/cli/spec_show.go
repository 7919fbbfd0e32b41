package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// SpecShowCmd shows a spec's figures.
type SpecShowCmd struct {
	Model string `arg:"" name:"model|file" help:"A model ('kvloom spec list') or a spec file."`
}

// shown is the JSON form.
type shown struct {
	Spec    *specs.Spec   `json:"spec"`
	Derived specs.Derived `json:"derived"`
}

// Run prints the figures at 80 columns, or everything as JSON.
func (c *SpecShowCmd) Run(ctx *Context) error {
	s, err := specs.Resolve(c.Model)
	if err != nil {
		return err
	}
	d := specs.Derive(s)
	if ctx.JSON {
		return ctx.PrintJSON(shown{s, d})
	}
	showSpec(ctx.Stdout, s, d)
	return nil
}

// showSpec prints four blocks: what the spec says, the summaries by rank, the workloads, and the parts under tensor parallelism.
func showSpec(w io.Writer, s *specs.Spec, d specs.Derived) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	a, l := s.Attention, s.Locks
	line("spec", "%s", s.Name)
	line("attention", "%d query heads, %d KV heads, head_dim %d: group %d", a.QueryHeads, a.KVHeads, a.HeadDim, d.Group)
	softcap := "no softcap"
	if a.LogitSoftcap > 0 {
		softcap = fmt.Sprintf("softcap %g", a.LogitSoftcap)
	}
	line("", "softmax scale %.6g, %s", a.SoftmaxScale, softcap)
	line("cache", "%s, pages of %d tokens", s.Cache.DType, s.Cache.PageSize)
	line("", "K and V: %s a page and KV head, %s a token", size(int64(d.KVPageBytes)), size(int64(d.KVTokenBytes)))
	line("locks", "rank %d, %d-bit basis, %s", l.Rank, l.BasisBits, l.Combine)
	line("", "budget %d tokens: k = %d pages", l.BudgetTokens, d.Slots)
	line("", "always kept, inside the budget: %d sink + %d recent", l.AlwaysKeep.SinkPages, l.AlwaysKeep.RecentPages)
	k := s.DropKV
	pool := k.Pool.Kind
	if pool != "none" {
		pool = fmt.Sprintf("%s %d", pool, k.Pool.Width)
	}
	line("dropkv", "%s, window %d, pool %s, %s budgets", k.Rule, k.Window, pool, k.HeadBudgets.Kind)
	line("", "reads K and V %d time%s (not built yet)", d.DropKV.Passes, plural(d.DropKV.Passes))
	line("targets", "%s", strings.Join(s.Targets, ", "))

	fmt.Fprintf(w, "\nPage summary, one KV head    payload   of KV   stored   of KV\n")
	for _, r := range d.Ranks {
		mark := " "
		if r.Rank == l.Rank {
			mark = "*"
		}
		fmt.Fprintf(w, "%s rank %-2d                 %7d B  %5.2f%%  %5d B  %5.2f%%\n", mark, r.Rank, r.PayloadBytes, r.Percent, r.RecordBytes, r.StoredPart)
	}

	fmt.Fprintf(w, "\nWorkload, one layer     pages  selected         K and V  summaries  dropkv keeps\n")
	for _, c := range d.Contexts {
		fmt.Fprintf(w, "  %-19s %7d  %5d %6.2f%%  %8s  %9s  %12d\n", fmt.Sprintf("%d x %d", c.Context, c.Batch), c.Pages, c.Selected, c.Percent,
			size(c.KVBytes), size(c.SummaryBytes), c.DropKVTokens)
	}

	fmt.Fprintf(w, "\nTensor parallel, one GPU  q heads  KV heads  copies  group     KV a     summary\n")
	fmt.Fprintf(w, "                                                           token      a page\n")
	for _, t := range d.Parallel {
		if t.Reason != "" {
			fmt.Fprintf(w, "  %-23d not possible: %s\n", t.Ways, t.Reason)
			continue
		}
		fmt.Fprintf(w, "  %-23d %7d  %8d  %6d  %5d  %7s  %10s\n", t.Ways, t.QueryHeads, t.KVHeads, t.Replicas, t.Group, size(int64(t.KVTokenBytes)), size(int64(t.SummaryBytes)))
	}
}

func plural(n int) string {
	if n == 1 {
		return ""
	}
	return "s"
}

// size prints bytes in binary units, three digits or so.
func size(n int64) string {
	units := []string{"B", "KiB", "MiB", "GiB", "TiB"}
	x, u := float64(n), 0
	for x >= 1024 && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	if u == 0 || x == float64(int64(x)) {
		return fmt.Sprintf("%d %s", int64(x), units[u])
	}
	return fmt.Sprintf("%.3g %s", x, units[u])
}
