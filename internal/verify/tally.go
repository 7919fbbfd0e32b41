package verify

import (
	"fmt"
	"math"

	"github.com/kvloom/kvloom/internal/reference"
)

// Tally collects the errors of one metric in one case into a Result. Where bounds differ between values, the result shows the value
// that came nearest to its own bound, or exceeded it most.
type Tally struct {
	result Result
	ratio  float64
	failed int64
}

// NewTally starts a metric of a case.
func NewTally(c, metric string, bound float64) *Tally {
	return &Tally{result: Result{Case: c, Metric: metric, Bound: bound}}
}

// Add records one value's error against its bound: its sign does not matter, and NaN is a failure. where names the value; it is
// called on failure only.
func (t *Tally) Add(err, bound float64, where func() string) {
	t.result.Count++
	err = math.Abs(err)
	ratio := err / bound
	if bound == 0 {
		ratio = 0
		if err > 0 {
			ratio = math.Inf(1)
		}
	}
	if math.IsNaN(ratio) {
		ratio = math.Inf(1)
	}
	if ratio > t.ratio || t.result.Count == 1 {
		t.ratio, t.result.MaxError, t.result.Bound = ratio, err, bound
	}
	if ratio > 1 {
		t.fail(func() string { return fmt.Sprintf("%s: error %.3g, bound %.3g", where(), err, bound) })
	}
}

// Fail records something that is wrong in itself.
func (t *Tally) Fail(format string, args ...any) {
	t.fail(func() string { return fmt.Sprintf(format, args...) })
}

// Err records an error of the device, of a guard band or of a comparison; nil is nothing.
func (t *Tally) Err(err error) {
	if err != nil {
		t.fail(err.Error)
	}
}

func (t *Tally) fail(text func() string) {
	t.failed++
	if t.failed == 1 {
		t.result.Failure = text()
	}
}

// Passed counts values that were compared for equality and were equal.
func (t *Tally) Passed(n int64) { t.result.Count += n }

// Result is the outcome so far. Nothing compared is a failure: a check that looked at nothing must not pass.
func (t *Tally) Result() Result {
	r := t.result
	switch {
	case t.failed > 1:
		r.Failure += fmt.Sprintf(" (and %d more)", t.failed-1)
	case t.failed == 0 && r.Count == 0:
		r.Failure = "nothing was compared"
	}
	if math.IsInf(r.MaxError, 0) || math.IsNaN(r.MaxError) {
		r.MaxError = math.MaxFloat64 // JSON has no infinities
	}
	return r
}

// Failed is the result of a case that broke before it compared anything.
func Failed(c, metric string, err error) Result {
	return Result{Case: c, Metric: metric, Failure: err.Error()}
}

// AttendBound is the contract's bound of one query head's output, relative.
const AttendBound = 1e-2

// ScoreBound is the error that a page score may have, in nats, where the largest |logit| of its row is this.
func ScoreBound(largestLogit float64) float64 { return 2e-3 * max(1, largestLogit/64) }

// ScoreError is the distance of a score from the reference's. Equal infinities and two NaN are no distance.
func ScoreError(got float32, want float64) float64 {
	g := float64(got)
	switch {
	case math.IsNaN(g) && math.IsNaN(want), g == want:
		return 0
	case math.IsNaN(g) || math.IsNaN(want):
		return math.Inf(1)
	}
	return math.Abs(g - want)
}

// RelativeError is the largest absolute difference of two vectors over the largest element of want: 0 where both are 0, infinite
// where only want is. One wrong element shows in full, which a norm over the vector would dilute.
func RelativeError(got, want []float64) float64 {
	var diff, size float64
	for i, w := range want {
		d := math.Abs(got[i] - w)
		if math.IsNaN(d) {
			return math.Inf(1)
		}
		diff, size = max(diff, d), max(size, math.Abs(w))
	}
	if diff == 0 {
		return 0
	}
	return diff / size
}

// Untouched reports the first element of data, of size bytes each, outside the rows that live accepts and yet not poison. live gets
// the batch, row and column.
func (r Rows) Untouched(data []byte, size int, live func(batch, row, column int) bool) error {
	poisoned := func(element int64) bool {
		for _, x := range data[element*int64(size) : (element+1)*int64(size)] {
			if x != PoisonByte {
				return false
			}
		}
		return true
	}
	for b := range r.Batch {
		for row := range r.Rows {
			for i := range r.Width {
				if !live(b, row, i) && !poisoned(r.At(b, row)+int64(i)) {
					return fmt.Errorf("request %d, row %d, column %d was written, but holds nothing live", b, row, i)
				}
			}
		}
	}
	var err error
	r.Gaps(func(element int64) bool {
		if !poisoned(element) {
			err = fmt.Errorf("element %d between rows was written: a stride is ignored", element)
		}
		return err == nil
	})
	return err
}

// Pages is one request's live pages at the launch that SetLaunch chose.
func (p *Problem) Pages(request int) int { return p.Cache.Pages(int(p.Cache.SeqLens[request])) }

// KernelLists reads page lists back from a buffer of rows [batch, list, slots] and dense counts [batch, list].
func KernelLists(rows Rows, pages, counts []int32) (reference.Lists, error) {
	lists := make(reference.Lists, rows.Batch)
	for b := range rows.Batch {
		for list := range rows.Rows {
			n := counts[b*rows.Rows+list]
			if n < 0 || int(n) > rows.Width {
				return nil, fmt.Errorf("request %d, list %d: count %d of %d slots", b, list, n, rows.Width)
			}
			at := rows.At(b, list)
			row := pages[at : at+int64(rows.Width)]
			for i, page := range row[n:] {
				if page != -1 {
					return nil, fmt.Errorf("request %d, list %d: unused slot %d holds %d, not -1", b, list, int(n)+i, page)
				}
			}
			lists[b] = append(lists[b], row[:n])
		}
	}
	return lists, nil
}
