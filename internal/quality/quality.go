// Package quality measures on given keys, values and queries which pages a page score selects and what that costs: retained
// attention mass, recall of the pages that the exact score selects, error of the attention output, error of the score.
// Everything is computed by the float64 reference; no kernel runs here.
package quality

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"sync"

	"github.com/kvloom/kvloom/internal/reference"
)

// Method names one page score.
type Method string

// The page scores that can be asked for.
const (
	ExactLSE      Method = "exact_lse"
	PageLocal     Method = "page_local"
	Hybrid        Method = "hybrid" // page centroids, one basis of the sequence
	Shared        Method = "shared" // one centroid and one basis of the sequence
	Quest         Method = "quest"
	MeanKey       Method = "mean_key"
	SinkAndRecent Method = "sink_and_recent"
)

// Methods are all of them, in the order of the tables.
var Methods = []Method{ExactLSE, PageLocal, Hybrid, Shared, Quest, MeanKey, SinkAndRecent}

// Options say what is measured: every method with every rank and width that it has, at every page size, budget and rule.
type Options struct {
	Methods   []Method
	Ranks     []int               // of page_local; hybrid and shared get the largest rank within its bytes
	Bits      []int               // of bases: 2, 4, 8, 16; 0 leaves a summary unquantised
	PageSizes []int               // tokens
	Budgets   []int               // tokens
	Combine   []reference.Combine // rules; quest takes group_max in place of share_average, for its bound is no log-sum-exp
	Queries   int                 // last queries of each head; 0: all in the file
	Sink      int                 // first pages that are always kept, inside the budget
	Recent    int                 // last pages that are always kept, inside the budget
	// Progress is told after every KV head of a page size that was measured; nil: nobody. One call at a time.
	Progress func(done, total int)
}

// Validate reports everything in the options that means nothing.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, m := range o.Methods {
		if !slices.Contains(Methods, m) {
			fault("scorer %q is unknown; use %q", m, Methods)
		}
	}
	for _, c := range o.Combine {
		if _, err := reference.ParseCombine(string(c)); err != nil {
			faults = append(faults, err)
		}
	}
	for _, b := range o.Bits {
		if !slices.Contains([]int{0, 2, 4, 8, 16}, b) {
			fault("basis of %d bits; allowed: 2, 4, 8, 16, and 0 for no quantisation", b)
		}
	}
	for _, p := range o.PageSizes {
		if !slices.Contains([]int{4, 8, 16, 32, 64, 128}, p) {
			fault("page size %d; allowed: 4, 8, 16, 32, 64, 128", p)
		}
		for _, r := range o.Ranks {
			if r < 1 || r > 16 || r >= p {
				fault("rank %d for pages of %d tokens; allowed: 1 to 16, and less than the page", r, p)
			}
		}
		for _, b := range o.Budgets {
			if b < 1 || slots(b, p) < o.Sink+o.Recent {
				fault("budget of %d tokens, %d pages of %d: %d pages are always kept", b, slots(b, p), p, o.Sink+o.Recent)
			}
		}
	}
	if o.Queries < 0 || o.Sink < 0 || o.Recent < 0 {
		fault("%d queries, %d sink and %d recent pages; none may be negative", o.Queries, o.Sink, o.Recent)
	}
	for name, n := range map[string]int{"scorers": len(o.Methods), "combine rules": len(o.Combine), "page sizes": len(o.PageSizes), "budgets": len(o.Budgets)} {
		if n == 0 {
			fault("no %s to measure; name at least one", name)
		}
	}
	if slices.Contains(o.Methods, PageLocal) && (len(o.Ranks) == 0 || len(o.Bits) == 0) {
		fault("page_local needs at least one rank and one basis width")
	}
	return errors.Join(faults...)
}

// slots is how many pages a budget pays for.
func slots(budget, page int) int { return (budget + page - 1) / page }

// Setting is what one row was measured at.
type Setting struct {
	Scorer   Method            `json:"scorer"`
	Rank     int               `json:"rank,omitempty"`
	Bits     int               `json:"basis_bits"` // 0: unquantised, or a score without a basis
	PageSize int               `json:"page_size"`
	Budget   int               `json:"budget_tokens"`
	Combine  reference.Combine `json:"combine"`
	Float    bool              `json:"unquantised,omitempty"` // no stored form
}

// Name is the score with its rank and width, such as page_local r4 i4.
func (s Setting) Name() string {
	name := string(s.Scorer)
	if s.Rank > 0 {
		name += fmt.Sprintf(" r%d", s.Rank)
	}
	if s.Float {
		return name + " float"
	}
	if s.Bits > 0 {
		name += fmt.Sprintf(" i%d", s.Bits)
	}
	return name
}

// Row is one setting's result over queries and KV heads.
type Row struct {
	Setting
	Bytes  float64 `json:"bytes_per_page"` // read for one page and KV head in one step; 0: no stored form, or nothing read
	Mass   float64 `json:"mass"`           // true softmax mass on the chosen pages, mean over query heads
	Worst  float64 `json:"worst_head_mass"`
	Recall float64 `json:"recall"` // share of the exact-LSE pages that were chosen, always-kept ones included
	Error  float64 `json:"output_error"`
	// RMS is the error of the page score against the exact one over complete pages, nats; nil for a score that estimates none.
	RMS *float64 `json:"score_rms_error,omitempty"`
}

// Report is the measurement of one file: one layer of one prompt.
type Report struct {
	File       string `json:"file"`
	Tokens     int    `json:"tokens"`
	HeadDim    int    `json:"head_dim"`
	QueryHeads int    `json:"query_heads"`
	KVHeads    int    `json:"kv_heads"`
	Queries    int    `json:"queries"` // last positions of each head that were scored
	Rows       []Row  `json:"rows"`
}

// Run measures safetensors files, each with tensors k and v [KV heads, tokens, dim] and q_last [query heads, last positions, dim], of
// BF16 or F16. Metadata softmax_scale replaces 1/sqrt(dim). A folder with k.npy, v.npy and q_last.npy of those shapes will do as well;
// bytes are those of a 16-bit cache all the same.
func Run(ctx context.Context, paths []string, o Options) ([]Report, error) {
	if err := o.Validate(); err != nil {
		return nil, err
	}
	var layers []*layer
	total := 0
	for _, path := range paths { // all of them first, so that a long run does not end at a bad file
		l, err := load(path)
		if err != nil {
			return nil, err
		}
		if page := slices.Max(o.PageSizes); l.tokens < page {
			return nil, fmt.Errorf("%s: %d tokens do not fill a page of %d; ask for smaller pages", path, l.tokens, page)
		}
		layers = append(layers, l)
		total += l.kvHeads * len(o.PageSizes)
	}
	done := 0
	var reports []Report
	for i, l := range layers {
		r := Report{File: filepath.Base(paths[i]), Tokens: l.tokens, HeadDim: l.dim, QueryHeads: l.qHeads, KVHeads: l.kvHeads, Queries: l.scored(o.Queries)}
		var err error
		r.Rows, err = l.measure(ctx, o, func() {
			if done++; o.Progress != nil {
				o.Progress(done, total)
			}
		})
		if err != nil {
			return nil, fmt.Errorf("%s: %w", paths[i], err)
		}
		reports = append(reports, r)
	}
	return reports, nil
}

// measure runs the KV heads of every page size on all processors and adds their sums in a fixed order.
func (l *layer) measure(ctx context.Context, o Options, step func()) ([]Row, error) {
	type job struct{ page, head int }
	var jobs []job
	for _, page := range o.PageSizes {
		for head := range l.kvHeads {
			jobs = append(jobs, job{page, head})
		}
	}
	tallies := make([][]tally, len(jobs))
	next := make(chan int)
	var wg sync.WaitGroup
	var mu sync.Mutex
	for range min(len(jobs), runtime.GOMAXPROCS(0)) {
		wg.Go(func() {
			for i := range next {
				tallies[i] = l.measureHead(ctx, jobs[i].head, jobs[i].page, o)
				mu.Lock()
				step()
				mu.Unlock()
			}
		})
	}
	for i := range jobs {
		if ctx.Err() != nil {
			break
		}
		next <- i
	}
	close(next)
	wg.Wait()
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	var rows []Row
	for at := 0; at < len(jobs); at += l.kvHeads {
		sums := tallies[at]
		for _, more := range tallies[at+1 : at+l.kvHeads] {
			for i := range sums {
				sums[i].add(more[i])
			}
		}
		for _, t := range sums {
			rows = append(rows, t.row())
		}
	}
	return rows, nil
}

// Mean averages every setting over reports that were measured with the same options, each file with the same weight; of RMS errors
// it is the plain mean. Ranks of hybrid and shared bases depend a little on a file's tokens, through the bytes of their tables: a
// setting that a report lacks is averaged over those that have it.
func Mean(reports []Report) []Row {
	var order []Setting
	sums := map[Setting]*tally{}
	for _, r := range reports {
		for _, row := range r.Rows {
			t, ok := sums[row.Setting]
			if !ok {
				t = &tally{Setting: row.Setting}
				sums[row.Setting] = t
				order = append(order, row.Setting)
			}
			t.addRow(row)
		}
	}
	var out []Row
	for _, s := range order {
		out = append(out, sums[s].mean())
	}
	return out
}
