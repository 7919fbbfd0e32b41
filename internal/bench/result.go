// Package bench measures kernels beside their peers in one run and keeps each measurement as one line of a results file.
package bench

import (
	"bufio"
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/specs"
)

// Result is one measurement: one line of docs/benchmarks/results.jsonl. LoUS and HiUS are the 95 % interval of the median.
type Result struct {
	Date       string             `json:"date"` // RFC 3339, UTC
	Card       string             `json:"card"`
	Driver     string             `json:"driver"`
	Commit     string             `json:"commit"` // of the binary
	Command    string             `json:"command"`
	Family     string             `json:"family"` // a stem, chain, or dense
	Shape      Shape              `json:"shape"`
	Candidate  string             `json:"candidate"` // form and parameters
	MedianUS   float64            `json:"median_us"`
	LoUS       float64            `json:"lo_us"`
	HiUS       float64            `json:"hi_us"`
	Samples    int                `json:"samples"`
	Bytes      int64              `json:"bytes"` // the model's: each input read once, each output written once
	TBPerS     float64            `json:"tb_per_s"`
	RoofTBPerS float64            `json:"roof_tb_per_s"` // read bandwidth measured in the same run
	Baselines  map[string]float64 `json:"baselines"`     // microseconds of each peer on the same card in the same run
}

// Shape holds every number that affects the work. Keys that do not affect a family are absent from its lines.
type Shape struct {
	QHeads          int    `json:"q_heads,omitempty"`
	KVHeads         int    `json:"kv_heads"`
	HeadDim         int    `json:"head_dim,omitempty"`
	Page            int    `json:"page"`
	Rank            int    `json:"rank,omitempty"`
	Bits            int    `json:"bits,omitempty"`
	CoefficientBits int    `json:"coefficient_bits,omitempty"`
	Basis           string `json:"basis,omitempty"`
	Scorer          string `json:"scorer,omitempty"`
	Combine         string `json:"combine,omitempty"`
	Scan            string `json:"scan,omitempty"`
	Tokens          int    `json:"tokens"`
	Batch           int    `json:"batch"`
	Budget          int    `json:"budget,omitempty"`
	DType           string `json:"dtype,omitempty"`
	Layout          string `json:"layout,omitempty"`
	Mode            string `json:"mode,omitempty"`
	Window          int    `json:"window,omitempty"`
	Rule            string `json:"rule,omitempty"`
	Precision       string `json:"precision,omitempty"`
	Pool            string `json:"pool,omitempty"`
	Kept            int    `json:"kept,omitempty"` // tokens a head
	L2              string `json:"l2"`
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
	}
	chosen := func() { shape.Budget, shape.Combine = l.BudgetTokens, l.Combine }
	switch family {
	case string(plan.PageSummary):
		summarised()
		shape.Scorer, shape.Mode = "", "prompt"
	case string(plan.PageScore):
		summarised()
		shape.Scan = l.Scan
	case string(plan.PageSelect):
		chosen()
	case string(plan.PageAttend):
		shape.Budget = l.BudgetTokens
	case ChainFamily:
		summarised()
		chosen()
		shape.Scan = l.Scan
	case string(measure.Dense):
	default:
		panic(fmt.Sprintf("BUG: bench: unknown family %q", family))
	}
	return shape
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
		shape.Window, shape.Kept = k.Window, k.Keep(w.Context)
	case string(plan.DropCompact):
		cache()
		shape.Kept = k.Keep(w.Context)
	case DropChain:
		window()
		pool()
		shape.Kept = k.Keep(w.Context)
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

// Read returns the lines of a results file, or none where there is no file.
func Read(path string) ([]Result, error) {
	b, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("results: %w", err)
	}
	var results []Result
	lines := bufio.NewScanner(bytes.NewReader(b))
	lines.Buffer(nil, 1<<20)
	for n := 1; lines.Scan(); n++ {
		if len(bytes.TrimSpace(lines.Bytes())) == 0 {
			continue
		}
		var r Result
		d := json.NewDecoder(bytes.NewReader(lines.Bytes()))
		d.DisallowUnknownFields()
		if err := d.Decode(&r); err != nil {
			return nil, fmt.Errorf("results %s:%d: %w; each line is what kvloom bench wrote", path, n, err)
		}
		results = append(results, r)
	}
	return results, lines.Err()
}

// Append adds lines to a results file in one atomic replacement, so that a killed run leaves no half line.
func Append(path string, results []Result) error {
	old, err := os.ReadFile(path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("results: %w", err)
	}
	var b bytes.Buffer
	b.Write(old)
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	for _, r := range results {
		if err := e.Encode(r); err != nil {
			return fmt.Errorf("results %s: %w", path, err)
		}
	}
	return writeFile(path, b.Bytes())
}

func writeFile(path string, b []byte) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return fmt.Errorf("results: %w", err)
	}
	f, err := os.CreateTemp(filepath.Dir(path), ".results-*")
	if err != nil {
		return fmt.Errorf("results: %w", err)
	}
	defer os.Remove(f.Name()) //nolint:errcheck // gone after the rename
	_, err = f.Write(b)
	if err := errors.Join(err, f.Chmod(0o644), f.Sync(), f.Close()); err != nil {
		return fmt.Errorf("results %s: %w", path, err)
	}
	return os.Rename(f.Name(), path)
}

// Newest keeps the last line of each work on each card, in the order of first appearance.
func Newest(results []Result) []Result {
	var kept []Result
	for _, r := range results {
		i := slices.IndexFunc(kept, func(k Result) bool {
			return k.Card == r.Card && k.Family == r.Family && reflect.DeepEqual(k.Shape, r.Shape)
		})
		if i >= 0 {
			kept[i] = r
		} else {
			kept = append(kept, r)
		}
	}
	return kept
}
