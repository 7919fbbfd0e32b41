// Package quality measures on given keys, values and queries which pages a page score selects and what that costs: retained
// attention mass, recall of the pages that the exact score selects, error of the attention output, error of the score.
// The float64 reference scores and selects, or the project's kernels do (Options.Kernels); what is right is always measured in float64.
package quality

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
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
	PreRope       Method = "pre_rope"      // page_local fitted before the rotary embedding; needs its theta
	GlobalHybrid  Method = "hybrid_global" // hybrid with the basis of another text
	GlobalShared  Method = "shared_global" // shared with the centroid and the basis of another text
)

// Methods are all that need nothing but the file, in the order of the tables.
var Methods = []Method{ExactLSE, PageLocal, Hybrid, Shared, Quest, MeanKey, SinkAndRecent}

// Controls are those that need more: the rotary embedding's theta, or another text.
var Controls = []Method{PreRope, GlobalHybrid, GlobalShared}

// Options say what is measured: every method with every rank and width that it has, at every page size, budget and rule.
type Options struct {
	Methods   []Method
	Ranks     []int               // of page_local; hybrid and shared get the largest rank within its bytes
	Bits      []int               // of bases: 2, 4, 8, 16; 0 leaves a summary unquantised
	PageSizes []int               // tokens
	Budgets   []int               // tokens
	Combine   []reference.Combine // rules; quest takes group_max in place of share_average, for its bound is no log-sum-exp
	Queries   int                 // last queries of each head; 0: all in the file
	// Forms are stored forms of page_local beside the plain ones of Ranks and Bits.
	Forms []reference.Form
	// Caches are the forms of the cache that are measured; nil: as the file has it.
	Caches []CacheForm
	// Rerank are factors of the exact rerank, 1 being none; nil: none.
	Rerank []float64
	// Scans are the ways to look at the summaries of page_local; nil: all of them in each step.
	Scans []Scan
	// Calibrations, one for all files or one a file, hold the second moments and mean keys for weighted forms and 4-bit centroids
	// (Calibration); nil: those of the prompt itself, the moments from the queries in the file before those that are measured.
	Calibrations []string
	// Others, one for all files or one a file, are files of the same layer of another text, for the global methods.
	Others []string
	// Kernels compute and choose in place of the reference where there are any; nil: the reference.
	Kernels Kernels
	// GivenRecords has the kernels score the reference's summaries in place of those that they built.
	GivenRecords bool
	// Context is the tokens over which the keys that a rerank reads are spread; 0: those of the file.
	Context int
	Sink    int // first pages that are always kept, inside the budget
	Recent  int // last pages that are always kept, inside the budget
	// Progress is told after every KV head of a page size that was measured; nil: nobody. One call at a time.
	Progress func(done, total int)
}

// Validate reports everything in the options that means nothing.
func (o Options) Validate() error {
	var faults []error
	fault := func(format string, args ...any) { faults = append(faults, fmt.Errorf(format, args...)) }
	for _, m := range o.Methods {
		if !slices.Contains(Methods, m) && !slices.Contains(Controls, m) {
			fault("scorer %q is unknown; use %s or, for comparison, %s", m, listed(Methods), listed(Controls))
		}
		if (m == GlobalHybrid || m == GlobalShared) && len(o.Others) == 0 {
			fault("scorer %s needs a file of another text", m)
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
		for _, f := range o.Forms {
			if f.Rank >= p*f.Pages {
				fault("form %s for pages of %d tokens; the rank must be less than the tokens of a summary", f, p)
			}
		}
		for _, b := range o.Budgets {
			if b < 1 || slots(b, p) < o.Sink+o.Recent {
				fault("budget of %d tokens, %d pages of %d: %d pages are always kept", b, slots(b, p), p, o.Sink+o.Recent)
			}
		}
	}
	for _, r := range o.Rerank {
		if !(r >= 1 && r <= 64) {
			fault("rerank %g; allowed: 1 (none) to 64", r)
		}
	}
	for _, s := range o.Scans {
		if !slices.Contains(Scans, s) {
			fault("scan %q is unknown; use %s", s, listed(Scans))
		}
	}
	if o.Context < 0 {
		fault("context of %d tokens", o.Context)
	}
	if o.Queries < 0 || o.Sink < 0 || o.Recent < 0 {
		fault("%d queries, %d sink and %d recent pages; none may be negative", o.Queries, o.Sink, o.Recent)
	}
	for name, n := range map[string]int{"scorers": len(o.Methods), "combine rules": len(o.Combine), "page sizes": len(o.PageSizes), "budgets": len(o.Budgets)} {
		if n == 0 {
			fault("no %s to measure; name at least one", name)
		}
	}
	if slices.Contains(o.Methods, PageLocal) && (len(o.Ranks) == 0 || len(o.Bits) == 0) && len(o.Forms) == 0 {
		fault("page_local needs at least one rank and one basis width, or a form")
	}
	return errors.Join(faults...)
}

// slots is how many pages a budget pays for.
func slots(budget, page int) int { return (budget + page - 1) / page }

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
		if slices.Contains(o.Methods, PreRope) && l.theta <= 0 {
			return nil, fmt.Errorf("%s: pre_rope needs the metadata rope_theta", path)
		}
		layers = append(layers, l)
		total += l.kvHeads * len(o.PageSizes)
	}
	if o.Kernels != nil {
		if err := o.withoutKernels(); err != nil {
			return nil, err
		}
	}
	aids, err := o.aids(paths, layers)
	if err != nil {
		return nil, err
	}
	done := 0
	var reports []Report
	for i, l := range layers {
		r := Report{File: filepath.Base(paths[i]), Tokens: l.tokens, HeadDim: l.dim, QueryHeads: l.qHeads, KVHeads: l.kvHeads, Queries: l.scored(o.Queries)}
		if o.Kernels != nil {
			if l.device, err = l.launch(o, aids[i]); err != nil {
				return nil, fmt.Errorf("%s: %w", paths[i], err)
			}
		}
		r.Rows, err = l.measure(ctx, o, aids[i], func() {
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
func (l *layer) measure(ctx context.Context, o Options, aid aid, step func()) ([]Row, error) {
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
				tallies[i] = l.measureHead(ctx, jobs[i].head, jobs[i].page, o, aid)
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

// listed joins names for a sentence.
func listed[T ~string](names []T) string {
	out := make([]string, len(names))
	for i, n := range names {
		out[i] = string(n)
	}
	return strings.Join(out, ", ")
}
