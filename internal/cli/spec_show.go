package cli

import (
	"fmt"
	"io"
	"strings"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
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

// showSpec prints what the spec says, then a table each of summaries by rank, workloads, eviction, and parts under tensor parallelism.
func showSpec(w io.Writer, s *specs.Spec, d specs.Derived) {
	line := func(name, format string, args ...any) {
		fmt.Fprintf(w, "%-11s %s\n", name, fmt.Sprintf(format, args...))
	}
	a := s.Attention
	line("spec", "%s", s.Name)
	line("attention", "%d query heads, %d KV heads, head_dim %d: group %d", a.QueryHeads, a.KVHeads, a.HeadDim, d.Group)
	softcap := "no softcap"
	if a.LogitSoftcap > 0 {
		softcap = fmt.Sprintf("softcap %g", a.LogitSoftcap)
	}
	line("", "softmax scale %.6g, %s", a.SoftmaxScale, softcap)
	line("cache", "%s, pages of %d tokens", s.Cache.DType, s.Cache.PageSize)
	line("", "K and V: %s a page and KV head, %s a token", size(int64(d.KVPageBytes)), size(int64(d.KVTokenBytes)))
	showLocks(line, s, d)
	showDropKV(line, s, d)
	line("targets", "%s", strings.Join(s.Targets, ", "))

	showRanks(w, s.Locks.Rank, d.Ranks)
	fmt.Fprintf(w, "\nWorkload, one layer     pages  selected         K and V  summaries\n")
	for _, c := range d.Contexts {
		fmt.Fprintf(w, "  %-19s %7d  %5d %6.2f%%  %8s  %9s\n", fmt.Sprintf("%d x %d", c.Context, c.Batch), c.Pages, c.Selected, c.Percent,
			size(c.KVBytes), size(c.SummaryBytes))
	}
	if s.Cache.Evicts() {
		showEviction(w, s, d)
	}
	showParallel(w, d.Parallel)
}

// say prints a line of a block: its name or nothing, and a sentence.
type say func(name, format string, args ...any)

func showLocks(line say, s *specs.Spec, d specs.Derived) {
	l := s.Locks
	if l.Scorer == specs.PageLocal {
		line("locks", "rank %d, %d-bit basis, %s", l.Rank, l.BasisBits, l.Combine)
		if smaller := smallerRecord(l); smaller != "" {
			line("", "records: %s", smaller)
		}
	} else {
		line("locks", "scorer %s, %s", l.Scorer, l.Combine)
	}
	line("", "budget %d tokens: k = %d pages", l.BudgetTokens, d.Slots)
	if n := len(l.Calibration); n > 0 {
		line("", "calibrated: %d layer%s, in bundles", n, plural(n))
	}
	if l.Rerank > 1 {
		line("", "exact rerank x%g: the best of %d candidates", l.Rerank, s.Candidates())
	}
	line("", "always kept, inside the budget: %d sink + %d recent", l.AlwaysKeep.SinkPages, l.AlwaysKeep.RecentPages)
}

func showDropKV(line say, s *specs.Spec, d specs.Derived) {
	if !s.Cache.Evicts() {
		line("dropkv", "none: no kernel evicts from %s", s.Cache.DType)
		return
	}
	k := s.DropKV
	pool := k.Pool.Kind
	if pool != "none" {
		pool = fmt.Sprintf("%s %d", pool, k.Pool.Width)
	}
	line("dropkv", "%s, window %d, pool %s, %s budgets", k.Rule, k.Window, pool, k.HeadBudgets.Kind)
	switch k.HeadBudgets.Kind {
	case "adaptive":
		line("", "a head keeps what it is sure of (floor %g) up to all that others leave", k.HeadBudgets.Floor)
	case "pyramid":
		line("", "a head keeps more in the first layer than in the last")
	}
	line("", "reads K and V %d time%s to observe, as often to score", d.DropKV.Passes, plural(d.DropKV.Passes))
}

func showRanks(w io.Writer, own int, ranks []specs.SummaryFigures) {
	fmt.Fprintf(w, "\nPage summary, one KV head    payload   of KV   stored   of KV\n")
	for _, r := range ranks {
		mark, name := " ", fmt.Sprintf("rank %-2d", r.Rank)
		if r.Rank == own {
			mark = "*"
		}
		if r.Scorer != "" {
			mark, name = "*", r.Scorer
		}
		fmt.Fprintf(w, "%s %-23s %7d B  %5.2f%%  %5d B  %5.2f%%\n", mark, name, r.PayloadBytes, r.Percent, r.RecordBytes, r.StoredPart)
	}
}

func showEviction(w io.Writer, s *specs.Spec, d specs.Derived) {
	fmt.Fprintf(w, "\nEviction, one layer      a head keeps     K and V   scratch  scores\n")
	for _, c := range d.Contexts {
		scratch, scores := dropScratch(s, specs.Workload{Context: c.Context, Batch: c.Batch})
		kept := fmt.Sprint(c.DropKVTokens)
		if c.DropKVLeast != c.DropKVMost {
			kept = fmt.Sprintf("%d to %d", c.DropKVLeast, c.DropKVMost)
		}
		fmt.Fprintf(w, "  %-19s %15s  %10s  %8s  %6s\n", fmt.Sprintf("%d x %d", c.Context, c.Batch), kept,
			size(int64(c.Batch)*int64(c.DropKVTokens)*int64(d.KVTokenBytes)), size(scratch), size(scores))
	}
}

func showParallel(w io.Writer, parts []specs.TensorParallel) {
	fmt.Fprintf(w, "\nTensor parallel, one GPU  q heads  KV heads  copies  group     KV a     summary\n")
	fmt.Fprintf(w, "                                                           token      a page\n")
	for _, t := range parts {
		if t.Reason != "" {
			fmt.Fprintf(w, "  %-23d not possible: %s\n", t.Ways, t.Reason)
			continue
		}
		fmt.Fprintf(w, "  %-23d %7d  %8d  %6d  %5d  %7s  %10s\n", t.Ways, t.QueryHeads, t.KVHeads, t.Replicas, t.Group, size(int64(t.KVTokenBytes)), size(int64(t.SummaryBytes)))
	}
}

// dropScratch is what eviction of one layer needs beside its outputs, from observation to selection: the workspaces of the default
// kernels, and the window's outputs and log-sum-exps. scores are those of the tokens, plain and pooled, which are outputs.
func dropScratch(s *specs.Spec, w specs.Workload) (scratch, scores int64) {
	t, ok := plan.Targets[s.Targets[0]]
	if !ok {
		return 0, 0
	}
	a, page := s.Attention, s.Cache.PageSize
	p := launch.Problem{Batch: int64(w.Batch), KVHeads: int64(a.KVHeads), QHeads: int64(a.QueryHeads), Lists: int64(a.KVHeads),
		MaxPages: int64((w.Context + page - 1) / page), NewPages: 1, Slots: int64(s.DropKV.Keep(w.Context)), SMs: int64(t.SMs)}
	for _, fp := range plan.New(s, t).Families {
		if fp.Family == plan.DropObserve && len(fp.Candidates) > 0 {
			rows := p.Batch * p.QHeads * int64(s.DropKV.Window)
			scratch = fp.Candidates[0].Geometry.WorkspaceBytes(p) + 4*rows*int64(a.HeadDim+1)
		}
		if fp.Family == plan.DropAllot && len(fp.Candidates) > 0 {
			scratch += fp.Candidates[0].Geometry.WorkspaceBytes(p)
		}
		if fp.Family == plan.DropPool {
			scores = 2 * 4 * p.Batch * p.KVHeads * int64(w.Context)
		}
	}
	return scratch, scores
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
	for (x >= 1024 || u > 0 && x >= 999.5) && u < len(units)-1 {
		x, u = x/1024, u+1
	}
	if u == 0 || x == float64(int64(x)) {
		return fmt.Sprintf("%d %s", int64(x), units[u])
	}
	return fmt.Sprintf("%.3g %s", x, units[u])
}

// smallerRecord says how a page's summary differs from the Locks paper's; empty: it does not.
func smallerRecord(l specs.Locks) string {
	var parts []string
	for _, p := range []struct {
		differs bool
		text    string
	}{
		{l.Basis == plan.QueryWeighted, "query-weighted basis"}, {l.CoefficientBits == 4, "4-bit coefficients"},
		{l.CentroidBits == 4, "4-bit centroid less the mean key"}, {l.ScaleGroup == "16", "basis scales of 16 dims"},
	} {
		if p.differs {
			parts = append(parts, p.text)
		}
	}
	return strings.Join(parts, ", ")
}
