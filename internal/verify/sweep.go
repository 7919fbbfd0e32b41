package verify

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strconv"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// sweepBase is the point that every axis passes through: Llama's shape with two KV heads, and a budget that leaves pages out even of
// short contexts.
func sweepBase() *specs.Spec {
	s := specs.New("sweep", 8, 2, 128)
	s.Locks.BudgetTokens = 8 * s.Cache.PageSize
	return s
}

// variant copies the base, applies changes and settles what depends on them.
func variant(name string, change func(*specs.Spec)) *specs.Spec {
	s := sweepBase()
	s.Locks.SummaryTokens = 0
	change(s)
	s.Name = name
	s.Attention.SoftmaxScale = 1 / math.Sqrt(float64(s.Attention.HeadDim))
	s.Locks.SummaryTokens = s.SummaryTokens()
	s.Locks.BudgetTokens = 8 * s.Cache.PageSize
	s.Locks.Rank = min(s.Locks.Rank, s.Cache.PageSize-1)
	return s
}

// Axes are specs that leave the base along one axis at a time: ranks, pages, groups, head dims, bits, dtype, combine rules, softcap.
func Axes() []*specs.Spec {
	var out []*specs.Spec
	add := func(axis string, value any, change func(*specs.Spec)) {
		out = append(out, variant(fmt.Sprintf("%s-%v", axis, value), change))
	}
	for _, rank := range []int{1, 2, 4, 8, 16} {
		add("page32-rank", rank, func(s *specs.Spec) { s.Cache.PageSize, s.Locks.Rank = 32, rank })
	}
	for _, page := range []int{4, 8, 32, 64, 128} {
		add("page", page, func(s *specs.Spec) { s.Cache.PageSize = page })
	}
	for _, group := range []int{1, 5, 6, 7, 12, 16, 24, 64} {
		add("group", group, func(s *specs.Spec) { s.Attention.QueryHeads = group * s.Attention.KVHeads })
	}
	for _, dim := range []int{64, 80, 96, 112, 192, 256} {
		add("dim", dim, func(s *specs.Spec) { s.Attention.HeadDim = dim })
	}
	for _, bits := range []int{2, 8, 16} {
		add("bits", bits, func(s *specs.Spec) { s.Locks.BasisBits = bits })
	}
	add("dtype", "fp16", func(s *specs.Spec) { s.Cache.DType = "fp16" })
	add("dtype", "fp8-e4m3", func(s *specs.Spec) { s.Cache.DType = specs.FP8 })
	for _, dtype := range []string{specs.KIVI4, specs.KIVI2} {
		add("dtype", dtype, func(s *specs.Spec) { s.Cache.DType = dtype })
	}
	for _, rule := range []string{"group_max", "group_mass", "peak_normalised", "per_head"} {
		add("combine", strings.ReplaceAll(rule, "_", "-"), func(s *specs.Spec) { s.Locks.Combine = rule })
	}
	for _, scorer := range []string{specs.Quest, specs.MeanKey, specs.ExactLSE} {
		add("scorer", strings.ReplaceAll(scorer, "_", "-"), func(s *specs.Spec) { s.Locks.Scorer = scorer })
	}
	add("record", "c4", func(s *specs.Spec) { s.Locks.CoefficientBits = 4 })
	add("record", "r1c4m4", func(s *specs.Spec) { s.Locks.Rank, s.Locks.CoefficientBits, s.Locks.CentroidBits = 1, 4, 4 })
	add("record", "r2c4s16", func(s *specs.Spec) { s.Locks.Rank, s.Locks.CoefficientBits, s.Locks.ScaleGroup = 2, 4, "16" })
	add("record", "r8c4m4s16w", func(s *specs.Spec) {
		s.Locks.Rank, s.Locks.CoefficientBits, s.Locks.CentroidBits, s.Locks.ScaleGroup, s.Locks.Basis = 8, 4, 4, "16", "query_weighted"
	})
	add("rerank", 2, func(s *specs.Spec) { s.Locks.Rerank = 2 })
	add("summary", "r1w-32", func(s *specs.Spec) {
		s.Locks.Rank, s.Locks.Basis, s.Locks.Rerank, s.Locks.SummaryTokens = 1, "query_weighted", 2, 32
	})
	add("summary", "r4-64", func(s *specs.Spec) { s.Locks.Rerank, s.Locks.SummaryTokens = 2, 64 })
	add("softcap", 30, func(s *specs.Spec) { s.Attention.LogitSoftcap = 30 })
	for _, rule := range []string{"snapkv", "value_norm", "keydiff", "streaming"} {
		add("drop-rule", strings.ReplaceAll(rule, "_", "-"), func(s *specs.Spec) { s.DropKV.Rule = rule })
	}
	for _, window := range []int{1, 5, 32, 64} {
		add("drop-window", window, func(s *specs.Spec) { s.DropKV.Window = window })
	}
	add("drop-precision", "fast", func(s *specs.Spec) { s.DropKV.Precision = "fast" })
	add("drop-pool", "avg", func(s *specs.Spec) { s.DropKV.Pool = specs.Pool{Kind: "avg", Width: 7} })
	add("drop-pool", "none", func(s *specs.Spec) { s.DropKV.Pool = specs.Pool{Kind: "none", Width: 1} })
	add("drop-budgets", "adaptive", func(s *specs.Spec) { s.DropKV.HeadBudgets = specs.HeadBudgets{Kind: "adaptive", Floor: 0.2} })
	return out
}

// RandomSpecs are n seeded random legal combinations of everything that kernels are built for.
func RandomSpecs(n int, seed uint64) []*specs.Spec {
	r := rand.New(rand.NewPCG(seed, 0x7377656570)) // "sweep"
	pick := func(values ...int) int { return values[r.IntN(len(values))] }
	var out []*specs.Spec
	for len(out) < n {
		s := variant(fmt.Sprintf("random-%d-%d", seed, len(out)), func(s *specs.Spec) {
			s.Attention.KVHeads = pick(1, 2, 3, 4)
			s.Attention.QueryHeads = (1 + r.IntN(64)) * s.Attention.KVHeads
			if r.IntN(2) == 0 { // the groups that models have come up more often
				s.Attention.QueryHeads = pick(1, 2, 3, 4, 5, 7, 8, 16) * s.Attention.KVHeads
			}
			s.Attention.HeadDim = pick(64, 80, 96, 112, 128, 192, 256)
			s.Attention.LogitSoftcap = float64(pick(0, 0, 0, 20, 50))
			s.Cache.PageSize = pick(4, 8, 16, 32, 64, 128)
			s.Cache.DType = []string{"bf16", "fp16"}[r.IntN(2)]
			s.Locks.Rank = 1 + r.IntN(16)
			s.Locks.BasisBits = pick(2, 4, 8, 16)
			s.Locks.Combine = []string{"share_average", "group_max", "group_mass", "peak_normalised", "per_head"}[r.IntN(5)]
			s.Locks.AlwaysKeep = specs.Keep{SinkPages: r.IntN(3), RecentPages: r.IntN(3)}
			randomDrop(s, r, pick)
			randomForm(s, rand.New(rand.NewPCG(seed, uint64(1000+len(out)))))
			randomGroups(s, rand.New(rand.NewPCG(seed, uint64(1_000_000+len(out)))))
		})
		if specs.Validate(s) == nil {
			out = append(out, s)
		}
	}
	return out
}

// randomForm draws the form of a record where it has a choice. By a generator of its own, so that older seeds mean the same otherwise.
func randomForm(s *specs.Spec, r *rand.Rand) {
	if s.Cache.PageSize != 16 || s.Locks.Rank > 8 {
		return
	}
	s.Locks.CoefficientBits, s.Locks.CentroidBits = 4*(1+r.IntN(2)), 4*(1+r.IntN(2))
	if s.Locks.BasisBits <= 4 {
		s.Locks.ScaleGroup = []string{"column", "16"}[r.IntN(2)]
	}
}

// randomGroups lets pages share a summary beside a rerank, in a quarter of the specs that have room for it. By a generator of its own too.
func randomGroups(s *specs.Spec, r *rand.Rand) {
	pages := 2 * (1 + r.IntN(2))
	if tokens := pages * s.Cache.PageSize; r.IntN(4) > 0 || tokens < 32 || tokens > 128 {
		return
	}
	l := &s.Locks
	l.SummaryTokens, l.Rerank, l.Basis = pages*s.Cache.PageSize, []float64{1.5, 2, 3}[r.IntN(3)], []string{"svd", "query_weighted"}[r.IntN(2)]
	l.CoefficientBits, l.CentroidBits, l.ScaleGroup = 8, 8, "column"
}

// randomDrop draws the eviction section. Rows of the window, group x window, stay at 1024 at most: float64 observes each.
func randomDrop(s *specs.Spec, r *rand.Rand, pick func(...int) int) {
	k := &s.DropKV
	k.Rule = []string{"dropkv", "dropkv", "snapkv", "value_norm", "keydiff", "streaming"}[r.IntN(6)]
	k.Window = min(pick(1, 2, 8, 8, 16, 1+r.IntN(64)), max(1024/s.Attention.Group(), 1))
	k.Pool = specs.Pool{Kind: []string{"max", "avg"}[r.IntN(2)], Width: 1 + 2*r.IntN(32)}
	k.Precision = []string{"exact", "fast"}[r.IntN(2)]
	k.SinkTokens = pick(0, 0, 1, 4, 100)
	if r.IntN(3) == 0 {
		k.HeadBudgets = specs.HeadBudgets{Kind: "adaptive", Floor: float64(r.IntN(6)) / 5}
	}
}

// ParseSweep reads "axes", "random:N", "random:N:SEED" or "random:N:SEED:FIRST": a sweep that was cut off goes on at its spec FIRST,
// from 0.
func ParseSweep(text string) ([]*specs.Spec, error) {
	usage := fmt.Errorf("sweep %q; use axes, random:N, random:N:SEED or random:N:SEED:FIRST with N from 1 to 100000 and FIRST below N", text)
	if text == "axes" {
		return Axes(), nil
	}
	parts := strings.Split(text, ":")
	if parts[0] != "random" || len(parts) < 2 || len(parts) > 4 {
		return nil, usage
	}
	n, err := strconv.Atoi(parts[1])
	if err != nil || n < 1 || n > 100_000 {
		return nil, usage
	}
	seed, first := uint64(1), 0
	if len(parts) >= 3 {
		if seed, err = strconv.ParseUint(parts[2], 10, 64); err != nil {
			return nil, usage
		}
	}
	if len(parts) == 4 {
		if first, err = strconv.Atoi(parts[3]); err != nil || first < 0 || first >= n {
			return nil, usage
		}
	}
	return RandomSpecs(n, seed)[first:], nil
}
