package specs

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/goccy/go-yaml/token"
)

// combination is one thing that no single field can be blamed for.
type combination struct {
	needs []string                         // checked only if none of these is at fault already
	at    []string                         // where to point: the first of these that the file writes
	fault func(s *Spec, d *decoder) string // empty: fine
}

var legalName = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9.-]*$`)

// combinations, in the order of the design's table.
var combinations = []combination{
	{[]string{"name"}, []string{"name"}, func(s *Spec, _ *decoder) string {
		if legalName.MatchString(s.Name) && len(s.Name) <= 64 {
			return ""
		}
		return fmt.Sprintf("name is %q; allowed: letters, digits, dots and dashes, at most 64, a letter or digit first", clip(s.Name))
	}},
	{[]string{"attention.query_heads", "attention.kv_heads"}, []string{"attention.kv_heads"}, faultGroup},
	{[]string{"cache.page_size", "locks.rank"}, []string{"locks.rank", "cache.page_size"}, func(s *Spec, d *decoder) string {
		if s.Locks.Rank < s.Cache.PageSize || s.Record().Scorer != "" {
			return ""
		}
		return fmt.Sprintf("locks.rank %d%s must be below cache.page_size %d%s, for a page of n tokens centred on its mean has rank n-1 at most; allowed: 1 to %d",
			s.Locks.Rank, d.byDefault("locks.rank"), s.Cache.PageSize, d.byDefault("cache.page_size"), min(16, s.Cache.PageSize-1))
	}},
	{[]string{"locks.scorer"}, []string{"locks.scorer"}, faultScorer},
	{[]string{"cache.dtype", "cache.page_size", "locks.rank", "locks.basis_bits", "locks.coefficient_bits", "locks.centroid_bits", "locks.scale_group"},
		[]string{"locks.coefficient_bits", "locks.centroid_bits", "locks.scale_group"}, faultForm},
	{[]string{"cache.page_size", "cache.dtype", "locks.summary_tokens", "locks.rerank", "locks.scorer", "locks.coefficient_bits", "locks.centroid_bits", "locks.scale_group"},
		[]string{"locks.summary_tokens"}, faultSummaryTokens},
	{[]string{"cache.page_size", "locks.budget_tokens", "locks.always_keep.sink_pages", "locks.always_keep.recent_pages"},
		[]string{"locks.budget_tokens", "locks.always_keep.sink_pages", "locks.always_keep.recent_pages", "locks.always_keep", "cache.page_size"}, faultKeep},
	{[]string{"attention.head_dim", "cache.page_size", "locks.rank", "locks.basis", "locks.summary_tokens"}, []string{"locks.basis"}, func(s *Spec, _ *decoder) string {
		tokens, dim := s.SummaryTokens(), s.Attention.HeadDim
		switch {
		case s.Locks.Basis != "query_weighted" || tokens == 16 && s.Locks.Rank <= 8 || tokens == 32 || tokens == 64 || tokens == 128 && dim <= 128:
			return ""
		case tokens == 128:
			return fmt.Sprintf("locks.basis query_weighted of 128 tokens is built for head dims up to 128, not %d; use svd", dim)
		}
		return fmt.Sprintf("locks.basis query_weighted is built for summaries of 16 tokens and ranks up to 8, and of 32, 64 and 128, not of %d at rank %d; use svd", tokens, s.Locks.Rank)
	}},
	{[]string{"cache.dtype", "locks.scorer", "locks.basis", "locks.rerank"}, []string{"cache.dtype"}, faultQuantised},
	{[]string{"attention.kv_heads", "attention.head_dim", "locks.basis", "locks.centroid_bits", "locks.calibration"}, []string{"locks.calibration"}, faultCalibration},
	{[]string{"cache.dtype", "locks.summaries"}, []string{"locks.summaries"}, faultSummaries},
	{[]string{"dropkv.pool.width"}, []string{"dropkv.pool.width"}, func(s *Spec, d *decoder) string {
		switch p := s.DropKV.Pool; {
		case p.Width%2 == 0:
			return fmt.Sprintf("dropkv.pool.width is %d; allowed: odd numbers from 1 to 63", p.Width)
		case p.Kind == "none" && p.Width != 1:
			return fmt.Sprintf("dropkv.pool.width %d does nothing with kind none; remove it, or choose kind max or avg", p.Width)
		}
		return ""
	}},
	{[]string{"dropkv.budget"}, []string{"dropkv.budget.tokens", "dropkv.budget"}, func(s *Spec, d *decoder) string {
		if d.written("dropkv.budget.ratio") && d.written("dropkv.budget.tokens") {
			return "dropkv.budget has both ratio and tokens; keep one"
		}
		return ""
	}},
	{[]string{"dropkv.head_budgets.kind", "dropkv.head_budgets.floor"}, []string{"dropkv.head_budgets.floor"}, func(s *Spec, d *decoder) string {
		if h := s.DropKV.HeadBudgets; d.written("dropkv.head_budgets.floor") && h.Kind != "adaptive" {
			return fmt.Sprintf("dropkv.head_budgets.floor belongs to kind adaptive, not %s; remove it", h.Kind)
		}
		return ""
	}},
	{[]string{"dropkv.head_budgets.kind", "dropkv.head_budgets.list", "dropkv.budget", "attention.kv_heads"},
		[]string{"dropkv.head_budgets.list", "dropkv.head_budgets.kind"}, faultHeadList},
	{[]string{"workloads", "workloads.context", "workloads.batch"}, []string{"workloads"}, func(s *Spec, _ *decoder) string {
		seen := map[Workload]bool{}
		for _, w := range s.Workloads {
			if seen[w] {
				return fmt.Sprintf("workloads holds context %d x batch %d twice; keep one", w.Context, w.Batch)
			}
			seen[w] = true
		}
		return ""
	}},
}

func faultGroup(s *Spec, _ *decoder) string {
	a := s.Attention
	switch {
	case a.QueryHeads%a.KVHeads != 0:
		return fmt.Sprintf("attention.kv_heads %d does not divide query_heads %d; every KV head serves the same whole number of query heads, 1 to 64", a.KVHeads, a.QueryHeads)
	case a.Group() > 64:
		return fmt.Sprintf("attention.kv_heads %d makes groups of %d query heads of %d; allowed: groups of 1 to 64", a.KVHeads, a.Group(), a.QueryHeads)
	}
	return ""
}

// faultQuantised refuses what no kernel reads a cache of codes for.
func faultQuantised(s *Spec, d *decoder) string {
	if !s.Cache.quantised() {
		return ""
	}
	for _, f := range []struct {
		built bool
		what  string
	}{
		{s.Locks.Scorer == PageLocal, "locks.scorer " + s.Locks.Scorer},
		{s.Locks.Basis == "svd", "locks.basis " + s.Locks.Basis},
		{s.Locks.Rerank == 1, fmt.Sprintf("locks.rerank %g", s.Locks.Rerank)},
		{s.Cache.Evicts() || !d.written("dropkv"), "dropkv"},
	} {
		if !f.built {
			return fmt.Sprintf("cache.dtype %s is not built with %s; use bf16 or fp16, or leave that out", s.Cache.DType, f.what)
		}
	}
	return ""
}

func faultSummaryTokens(s *Spec, _ *decoder) string {
	page, tokens := s.Cache.PageSize, s.Locks.SummaryTokens
	switch {
	case tokens == page:
		return ""
	case tokens%page != 0 || tokens > 4*page:
		return fmt.Sprintf("locks.summary_tokens is %d; allowed: %d, %d, %d or %d, which is 1 to 4 pages of %d tokens", tokens, page, 2*page, 3*page, 4*page, page)
	}
	built := "locks.summary_tokens %d is not built %s; use %d, the page size"
	switch l := s.Locks; {
	case tokens != 32 && tokens != 64 && tokens != 128:
		return fmt.Sprintf("locks.summary_tokens %d is not built; use 32, 64 or 128, or %d, the page size", tokens, page)
	case l.Rerank <= 1:
		return fmt.Sprintf("locks.summary_tokens %d proposes %d pages at once, of which an exact rerank chooses; set locks.rerank above 1, or use %d, the page size", tokens, tokens/page, page)
	case s.Record().Scorer != "":
		return fmt.Sprintf(built, tokens, "with locks.scorer "+l.Scorer, page)
	case s.Cache.DType != "bf16" && s.Cache.DType != "fp16":
		return fmt.Sprintf(built, tokens, "with cache.dtype "+s.Cache.DType, page)
	case !l.RecordForm().Plain():
		return fmt.Sprintf(built, tokens, "with 4-bit coefficients, 4-bit centroids or scale_group 16", page)
	}
	return ""
}

func faultKeep(s *Spec, d *decoder) string {
	k, keep := s.Slots(), s.Locks.AlwaysKeep
	kept := keep.SinkPages + keep.RecentPages
	if k >= kept {
		return ""
	}
	return fmt.Sprintf("locks.budget_tokens %d%s holds k = %d pages of %d tokens, fewer than the %d always kept (%d sink + %d recent); raise it to %d or more, or keep fewer",
		s.Locks.BudgetTokens, d.byDefault("locks.budget_tokens"), k, s.Cache.PageSize, kept, keep.SinkPages, keep.RecentPages, (kept-1)*s.Cache.PageSize+1)
}

func faultHeadList(s *Spec, d *decoder) string {
	h, heads := s.DropKV.HeadBudgets, s.Attention.KVHeads
	switch {
	case h.Kind != "explicit" && d.written("dropkv.head_budgets.list"):
		return fmt.Sprintf("dropkv.head_budgets.list belongs to kind explicit, not %s; remove it", h.Kind)
	case h.Kind == "explicit" && len(h.List) != heads:
		return fmt.Sprintf("dropkv.head_budgets.list has %d entries; kind explicit needs %d, tokens for each KV head", len(h.List), heads)
	case h.Kind == "explicit" && d.written("dropkv.budget.ratio"):
		return "dropkv.head_budgets.list says how many tokens each head keeps; remove dropkv.budget.ratio, or give budget.tokens, their mean"
	case h.Kind == "explicit" && d.written("dropkv.budget.tokens"):
		sum := 0
		for _, n := range h.List {
			sum += n
		}
		if want := heads * s.DropKV.Budget.Tokens; sum != want {
			return fmt.Sprintf("dropkv.head_budgets.list adds up to %d tokens; budget.tokens %d for %d KV heads makes %d", sum, s.DropKV.Budget.Tokens, heads, want)
		}
	}
	return ""
}

// combine reports impossible combinations of values that are each fine.
func (d *decoder) combine(s *Spec, root *token.Position) {
next:
	for _, c := range combinations {
		for _, path := range c.needs {
			if d.distrusted(path) {
				continue next
			}
		}
		fault := c.fault(s, d)
		if fault == "" {
			continue
		}
		pos := root
		for _, path := range c.at {
			if d.written(path) {
				pos = d.at[path]
				break
			}
		}
		d.add(pos, "%s", fault)
	}
}

// distrusted reports whether a path, or a section around it, is at fault already.
func (d *decoder) distrusted(path string) bool {
	for !d.bad[path] {
		i := strings.LastIndexByte(path, '.')
		if i < 0 {
			return false
		}
		path = path[:i]
	}
	return true
}

func (d *decoder) written(path string) bool { return d.at[path] != nil }

// byDefault marks a number in a message that the person will not find in the file.
func (d *decoder) byDefault(path string) string {
	if d.written(path) {
		return ""
	}
	return " (the default)"
}
