// Package bench measures kernels beside their peers in one run and keeps each measurement as one line of a results file.
package bench

import (
	"cmp"
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// Result is one measurement: one line of docs/benchmarks/results.jsonl. LoUS and HiUS are the 95 % interval of the median.
type Result struct {
	Date       string  `json:"date"` // RFC 3339, UTC
	Card       string  `json:"card"`
	Driver     string  `json:"driver"`
	Commit     string  `json:"commit"` // of the binary
	Command    string  `json:"command"`
	Family     string  `json:"family"` // a stem, chain, or dense
	Shape      Shape   `json:"shape"`
	Candidate  string  `json:"candidate"` // form and parameters
	MedianUS   float64 `json:"median_us"`
	LoUS       float64 `json:"lo_us"`
	HiUS       float64 `json:"hi_us"`
	Samples    int     `json:"samples"`
	Bytes      int64   `json:"bytes"` // the model's: each input read once, each output written once
	TBPerS     float64 `json:"tb_per_s"`
	RoofTBPerS float64 `json:"roof_tb_per_s"` // read bandwidth measured in the same run
	// Limits are the microseconds that the model's work takes at what the same run measured of memory, exponentials and tensor cores alone,
	// and what launching an empty kernel costs. Absent from lines of before they were measured.
	Limits    map[string]float64 `json:"limits,omitempty"`
	Baselines map[string]float64 `json:"baselines"` // microseconds of each peer on the same card in the same run
}

// Shape holds every number that affects the work. Keys that do not affect a family are absent from its lines.
type Shape struct {
	QHeads          int     `json:"q_heads,omitempty"`
	KVHeads         int     `json:"kv_heads"`
	HeadDim         int     `json:"head_dim,omitempty"`
	Page            int     `json:"page"`
	Rank            int     `json:"rank,omitempty"`
	Bits            int     `json:"bits,omitempty"`
	CoefficientBits int     `json:"coefficient_bits,omitempty"`
	CentroidBits    int     `json:"centroid_bits,omitempty"` // where it is not 8
	ScaleGroup      string  `json:"scale_group,omitempty"`   // where it is not a column
	Basis           string  `json:"basis,omitempty"`
	Scorer          string  `json:"scorer,omitempty"`
	Combine         string  `json:"combine,omitempty"`
	Scan            string  `json:"scan,omitempty"`
	SummaryTokens   int     `json:"summary_tokens,omitempty"` // where it is not a page
	Rerank          float64 `json:"rerank,omitempty"`         // where it is above 1
	Tokens          int     `json:"tokens"`
	Batch           int     `json:"batch"`
	Budget          int     `json:"budget,omitempty"`
	DType           string  `json:"dtype,omitempty"`
	Layout          string  `json:"layout,omitempty"`
	Mode            string  `json:"mode,omitempty"`
	Window          int     `json:"window,omitempty"`
	Rule            string  `json:"rule,omitempty"`
	Precision       string  `json:"precision,omitempty"`
	Pool            string  `json:"pool,omitempty"`
	Kept            int     `json:"kept,omitempty"`    // tokens a head, in the mean
	Budgets         string  `json:"budgets,omitempty"` // of heads, where not uniform
	Lens            string  `json:"lens,omitempty"`    // of the requests, where they differ: 131072+4096
	L2              string  `json:"l2"`
}

// ShapeOf describes a family's work in a job.
func ShapeOf(family string, j Job) Shape {
	s, w := j.Spec, j.Workload
	a, l := s.Attention, s.Locks
	shape := Shape{KVHeads: a.KVHeads, Page: s.Cache.PageSize, Tokens: w.Context, Batch: w.Batch, L2: "cold"}
	if j.Warm {
		shape.L2 = "warm"
	}
	if strings.HasPrefix(family, "drop_") {
		shape.drop(family, s, w, j.Contiguous)
		shape.Lens = strings.Trim(strings.ReplaceAll(fmt.Sprint(j.Lens), " ", "+"), "[]")
		return shape
	}
	if family != string(plan.PageSummary) {
		shape.QHeads = a.QueryHeads
	}
	if family != string(plan.PageSelect) {
		shape.HeadDim, shape.DType, shape.Layout = a.HeadDim, s.Cache.DType, "paged"
	}
	summarised := func() {
		shape.Rank, shape.Bits, shape.CoefficientBits, shape.Basis, shape.Scorer = l.Rank, l.BasisBits, l.CoefficientBits, l.Basis, l.Scorer
		shape.CentroidBits, shape.ScaleGroup, shape.SummaryTokens = unless(l.CentroidBits, 8), unless(l.ScaleGroup, "column"), unless(l.SummaryTokens, shape.Page)
	}
	chosen := func() { shape.Budget, shape.Combine, shape.Rerank = l.BudgetTokens, l.Combine, unless(l.Rerank, 1) }
	switch family {
	case string(plan.PageSummary):
		summarised()
		shape.Scorer, shape.Mode = unless(l.Scorer, "page_local"), string(cmp.Or(j.Build, measure.BuildPrompt))
	case string(plan.PageScore):
		summarised()
		shape.Scan = l.Scan
	case string(plan.PageSelect):
		chosen()
	case string(plan.PageAttend):
		shape.Budget = l.BudgetTokens
	case string(plan.PageRerank), string(plan.PageRerankAttend), string(plan.PageSelectRerankAttend), string(plan.PageSelectAttend):
		chosen()
	case ChainFamily:
		summarised()
		chosen()
		shape.Scan = l.Scan
	case string(plan.QueryMoment), string(plan.QueryFactor):
		shape.Basis = l.Basis
	case string(plan.KVQuantize):
		shape.QHeads = 0
	case string(measure.Dense):
	default:
		panic(fmt.Sprintf("BUG: bench: unknown family %q", family))
	}
	return shape
}

// unless is a value that is not the usual one, or nothing: shapes hold what tells them apart.
func unless[T comparable](value, usual T) T {
	if value == usual {
		var nothing T
		return nothing
	}
	return value
}

// drop fills in what an eviction family's work depends on.
func (shape *Shape) drop(family string, s *specs.Spec, w specs.Workload, contiguous bool) {
	k := s.DropKV
	cache := func() {
		shape.HeadDim, shape.DType, shape.Layout = s.Attention.HeadDim, s.Cache.DType, "paged"
		if contiguous {
			shape.Layout = "contiguous"
		}
	}
	window := func() {
		cache()
		shape.QHeads, shape.Window, shape.Rule, shape.Precision = s.Attention.QueryHeads, k.Window, k.Rule, k.Precision
	}
	pool := func() { shape.Window, shape.Pool = k.Window, fmt.Sprintf("%s %d", k.Pool.Kind, k.Pool.Width) }
	switch family {
	case string(plan.DropObserve), string(plan.DropScore), DropObserveScore:
		window()
	case string(plan.DropPool):
		pool()
	case string(plan.DropAllot), string(plan.DropSelect):
		shape.Window, shape.Kept, shape.Budgets = k.Window, k.Keep(w.Context), unless(k.HeadBudgets.Kind, "uniform")
	case string(plan.DropPoolSelect):
		pool()
		shape.Kept = k.Keep(w.Context)
	case string(plan.DropCompact):
		cache()
		shape.Kept = k.Keep(w.Context)
	case DropChain:
		window()
		pool()
		shape.Kept, shape.Budgets = k.Keep(w.Context), unless(k.HeadBudgets.Kind, "uniform")
	default:
		panic(fmt.Sprintf("BUG: bench: unknown family %q", family))
	}
}

// The chains.
const (
	ChainFamily      = "chain"              // score, select and attend of one layer
	DropObserveScore = "drop_observe_score" // both passes over K and V
	DropChain        = "drop_chain"         // observe to selection
)
