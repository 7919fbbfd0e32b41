package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const selectMetric = "share left out, relative"

// SelectBound is how much larger than a chosen page's a page's combined value may be and still be left out: relative for shares, in
// nats for logarithms, which is the same thing.
const SelectBound = 1e-5

// checkedWorkspace is how much of a workspace is read back after each launch.
const checkedWorkspace = 4 << 20

func init() { register(plan.PageSelect, checkPageSelect) }

// checkPageSelect compares page_select with the float64 combine and top-k of the scores it was given: the count, the order, the
// forced pages, the unused slots, that nothing better by more than SelectBound was left out, that exact ties went to the lower
// index, that a second launch gives the same bytes, and that the workspace is left zeroed.
func checkPageSelect(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, selectMetric, ScoreCases(o), func(k *Kernel, cs ScoreCase) []Result {
		return []Result{selectCase(e, s, k, cs, o.Seed)}
	})
}

func selectCase(e *Env, s *specs.Spec, k *Kernel, c ScoreCase, seed uint64) Result {
	p, err := NewScoreProblem(s, c, seed)
	if err != nil {
		return Failed(c.Name, selectMetric, err)
	}
	a := e.NewArena()
	t := NewTally(c.Name, selectMetric, SelectBound)
	run, err := newSelectRun(e, k, p, a)
	if err == nil {
		err = run.all(t)
	}
	t.Err(errors.Join(err, a.Free()))
	return t.Result()
}

// selectRun is one case on the device.
type selectRun struct {
	*ScoreProblem
	env                      *Env
	kernel                   *Kernel
	arena                    *Arena
	lens, pages, counts, wsp *Buffer
	masses                   *Buffer // of a batch of one, for a second graph; else nil
	rows                     Rows    // of pages [batch, list, slots]
	launch                   launch.Problem
	args                     kernel.PageSelectArgs
}

func newSelectRun(e *Env, k *Kernel, p *ScoreProblem, a *Arena) (*selectRun, error) {
	r := &selectRun{ScoreProblem: p, env: e, kernel: k, arena: a}
	batch := len(p.Case.Pages)
	r.rows = Rows{Batch: batch, Rows: p.Lists, Width: p.Budget.Slots, RowStride: int64(p.Budget.Slots)}
	if p.Case.Padded {
		r.rows.RowStride += 3
	}
	r.rows.BatchStride = int64(p.Lists)*r.rows.RowStride + r.rows.RowStride - int64(p.Budget.Slots)
	r.launch = launch.Problem{Batch: int64(batch), KVHeads: int64(p.Case.KVHeads), QHeads: int64(p.QHeads), Lists: int64(p.Lists),
		MaxPages: int64(p.MaxPages), Slots: int64(p.Budget.Slots), SMs: int64(e.Dev.Info().SMs)}
	scores, err := a.Input("scores", BytesOfFloat32(p.Scores))
	if err != nil {
		return nil, err
	}
	if r.lens, err = a.Input("seq_lens", BytesOfInt32(p.SeqLens(p.Case.Pages))); err != nil {
		return nil, err
	}
	if r.pages, err = a.Alloc("pages", 4*r.rows.Elements()); err != nil {
		return nil, err
	}
	if r.counts, err = a.Alloc("counts", int64(4*batch*p.Lists)); err != nil {
		return nil, err
	}
	if r.wsp, err = k.Workspace(r.launch); err != nil {
		return nil, err
	}
	if batch == 1 {
		if r.masses, err = a.Alloc("masses", kernel.MassesBytes(p.QHeads)); err != nil {
			return nil, err
		}
	}
	r.args = kernel.PageSelectArgs{
		Scores: scores.Ptr(), SeqLens: r.lens.Ptr(), Pages: r.pages.Ptr(), Counts: r.counts.Ptr(), Workspace: r.wsp.Ptr(),
		ScoreBatchStride: p.Rows.BatchStride, ScoreHeadStride: p.Rows.RowStride,
		PagesBatchStride: r.rows.BatchStride, PagesListStride: r.rows.RowStride,
		Batch: int32(batch), KVHeads: int32(p.Case.KVHeads), MaxPages: int32(p.MaxPages),
		Slots: int32(p.Budget.Slots), SinkPages: int32(p.Budget.SinkPages), RecentPages: int32(p.Budget.RecentPages),
	}
	return r, nil
}

// all runs the case without masses beside the scores, and with them where they are of one request.
func (r *selectRun) all(t *Tally) error {
	err := r.replays(t)
	if err == nil && r.masses != nil {
		r.args.Masses = r.masses.Ptr()
		if err = r.replays(t); err != nil {
			err = fmt.Errorf("with masses: %w", err)
		}
	}
	return err
}

// replays captures the launch once and replays it, twice at every length of the case.
func (r *selectRun) replays(t *Tally) error {
	graph, err := r.env.Capture(func(s device.Stream) error { return Enqueue(r.kernel, s, r.launch, &r.args) })
	if err != nil {
		return err
	}
	for i, live := range r.Launches() {
		if err = r.once(t, graph, i, live); err != nil {
			break
		}
	}
	return errors.Join(err, graph.Close())
}

func (r *selectRun) once(t *Tally, graph *Replay, at int, live []int) error {
	if err := errors.Join(r.lens.Write(BytesOfInt32(r.SeqLens(live))), r.lens.Freeze()); err != nil {
		return err
	}
	if r.args.Masses != 0 {
		if err := errors.Join(r.masses.Write(BytesOfFloat32(r.massesOf(live[0]))), r.masses.Freeze()); err != nil {
			return err
		}
	}
	var first [2][]byte
	for try := range 2 {
		if err := errors.Join(r.pages.Poison(), r.counts.Poison()); err != nil {
			return err
		}
		if err := graph.Run(); err != nil {
			return err
		}
		pages, err := r.pages.Read()
		if err != nil {
			return err
		}
		counts, err := r.counts.Read()
		if err != nil {
			return err
		}
		if try == 0 {
			first = [2][]byte{pages, counts}
		} else if !bytes.Equal(pages, first[0]) || !bytes.Equal(counts, first[1]) {
			t.Fail("launch %d: a second launch chose other pages: the kernel is not repeatable", at)
		}
	}
	everything := func(int, int, int) bool { return true }
	if err := errors.Join(r.arena.Check(), r.rows.Untouched(first[0], 4, everything), r.kernel.CheckCounters(r.launch, r.wsp)); err != nil {
		return fmt.Errorf("launch %d: %w", at, err)
	}
	lists, err := KernelLists(r.rows, Int32s(first[0]), Int32s(first[1]))
	if err != nil {
		return fmt.Errorf("launch %d: %w", at, err)
	}
	for b := range lists {
		for list, chosen := range lists[b] {
			if err := r.judge(t, b, list, live[b], chosen); err != nil {
				return fmt.Errorf("launch %d, request %d, list %d: %w", at, b, list, err)
			}
		}
	}
	return nil
}

// judge checks one list against the float64 values of its scores.
func (r *selectRun) judge(t *Tally, request, list, pages int, chosen []int32) error {
	if want := min(r.Budget.Slots, pages); len(chosen) != want {
		return fmt.Errorf("%d pages chosen, the contract wants %d of %d", len(chosen), want, pages)
	}
	if pages == 0 {
		t.Passed(1)
		return nil
	}
	scores := r.Float64(request, list, pages)
	excess, err := JudgeSelection(r.Rule, r.Budget, scores, chosen)
	if err != nil {
		return err
	}
	t.Add(excess, SelectBound, func() string {
		return fmt.Sprintf("request %d, list %d: a page was left out whose value is larger than a chosen one's", request, list)
	})
	return nil
}

// JudgeSelection reports by how much the best page left out exceeds the worst page chosen, in the rule's own measure: relative for
// shares, nats for logarithms. Faults that no rounding explains are errors: order, range, a forced page left out, a NaN page chosen
// before a number, or a tie of equal scores that went to the higher index.
func JudgeSelection(rule reference.Combine, budget reference.Budget, scores [][]float64, chosen []int32) (float64, error) {
	n := len(scores[0])
	in := make([]bool, n)
	for i, page := range chosen {
		if page < 0 || int(page) >= n {
			return 0, fmt.Errorf("slot %d holds page %d of %d", i, page, n)
		}
		if i > 0 && page <= chosen[i-1] {
			return 0, fmt.Errorf("slot %d holds page %d after page %d: not ascending", i, page, chosen[i-1])
		}
		in[page] = true
	}
	forced := func(page int) bool { return page < budget.SinkPages || page >= n-budget.RecentPages }
	values := rule.Values(scores)
	worst := -1 // chosen by choice, least value, highest index among equals
	for page := range values {
		switch {
		case forced(page) && !in[page]:
			return 0, fmt.Errorf("page %d of %d is a sink or recent page and was left out", page, n)
		case forced(page) || !in[page]:
		case worst < 0 || !ranksAbove(values[page], values[worst]):
			worst = page
		}
	}
	if worst < 0 {
		return 0, nil
	}
	var excess float64
	for page, value := range values {
		if in[page] || forced(page) {
			continue
		}
		over := exceeds(rule, value, values[worst])
		if math.IsInf(over, 1) {
			return 0, fmt.Errorf("page %d (%g) was left out for page %d (%g)", page, value, worst, values[worst])
		}
		excess = max(excess, over)
	}
	return excess, tiesLow(rule, scores, values, in, forced)
}

// ranksAbove orders values as selection does: NaN lowest.
func ranksAbove(a, b float64) bool { return a > b || !math.IsNaN(a) && math.IsNaN(b) }

// exceeds is how far a lies above b, 0 where it does not. A number above NaN, a share above 0 and anything finite above -inf are
// infinitely far.
func exceeds(rule reference.Combine, a, b float64) float64 {
	switch {
	case !ranksAbove(a, b):
		return 0
	case math.IsNaN(b) || math.IsInf(b, -1):
		return math.Inf(1)
	case rule.Logarithmic():
		return a - b
	}
	return (a - b) / b // b of 0: infinite
}

// tiesLow checks that among pages whose group has the very same scores, or whose value is the same 0, -inf or NaN, none was chosen
// behind one that was left out.
func tiesLow(rule reference.Combine, scores [][]float64, values []float64, in []bool, forced func(int) bool) error {
	leftOut := map[string]int{} // lowest page left out of each class
	for page, value := range values {
		if forced(page) {
			continue
		}
		class := tieClass(rule, scores, value, page)
		out, seen := leftOut[class]
		switch {
		case !in[page] && !seen:
			leftOut[class] = page
		case in[page] && seen:
			return fmt.Errorf("page %d was chosen and page %d left out, which ties with it and is lower", page, out)
		}
	}
	return nil
}

func tieClass(rule reference.Combine, scores [][]float64, value float64, page int) string {
	switch {
	case math.IsNaN(value):
		return "nan"
	case math.IsInf(value, -1), value == 0 && !rule.Logarithmic():
		return "none"
	}
	var b []byte
	for _, row := range scores {
		b = fmt.Appendf(b, "%x ", math.Float64bits(row[page]))
	}
	return string(b)
}
