package autotune

import (
	"cmp"
	"math"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// behindBest is the log time over the best that an estimate may come to where there are measurements.
const behindBest = 0.02

// analyticBest is how many candidates the estimate may put before the others, the default aside.
const analyticBest = 3

// SpaceOf is a work's candidates as a strategy sees them for a workload: what to measure first, and a guess of every time from the
// estimate and from the trials of other workloads, the nearest one that has a candidate counting.
func SpaceOf(p *plan.Plan, work measure.Work, w specs.Workload, dev device.Info, trials []store.Trial) *search.Space {
	fp := p.Of(work.Family())
	s := &search.Space{Prior: make([]float64, len(fp.Candidates))}
	estimates := make([]float64, len(fp.Candidates))
	order := make([]int, len(fp.Candidates))
	for i, c := range fp.Candidates {
		point := search.Point{Kind: string(c.Form) + " " + c.Kernel}
		for _, q := range c.Params {
			point.Params = append(point.Params, search.Param(q))
		}
		s.Points = append(s.Points, point)
		estimates[i] = math.Log(Estimate(c, CostOf(p, work, w), problemOf(p.Spec, w, dev.SMs), dev))
		order[i] = i
	}
	copy(s.Prior, blend(estimates, transferred(fp, work, w, trials)))
	if len(order) > 0 {
		s.Start = append(s.Start, 0)
	}
	if i := slices.IndexFunc(fp.Candidates, func(c plan.Candidate) bool { return c.Form == plan.Portable }); i > 0 {
		s.Start = append(s.Start, i) // a bundle holds one, whatever wins
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Prior[a], s.Prior[b]) })
	for _, i := range order[:min(analyticBest, len(order))] {
		if !slices.Contains(s.Start, i) {
			s.Start = append(s.Start, i)
		}
	}
	return s
}

// transferred is each candidate's log time over that workload's best, in the nearest other workload that has it; NaN where none has. A
// failure counts as 2 times the best, for it may not be one here.
func transferred(fp plan.FamilyPlan, work measure.Work, w specs.Workload, trials []store.Trial) []float64 {
	byPoint := map[specs.Workload]map[string]store.Trial{}
	best := map[specs.Workload]float64{}
	for _, t := range trials {
		at := workloadOf(t)
		if workOf(t) != work || at == w {
			continue
		}
		if byPoint[at] == nil {
			byPoint[at] = map[string]store.Trial{}
		}
		byPoint[at][kernelOf(t.Candidate)] = t
		if t.Class == store.OK && (best[at] == 0 || t.MedianUS < best[at]) {
			best[at] = t.MedianUS
		}
	}
	var near []specs.Workload
	for at := range best {
		near = append(near, at)
	}
	slices.SortFunc(near, func(a, b specs.Workload) int {
		return cmp.Or(cmp.Compare(octaves(a, w), octaves(b, w)), cmp.Compare(a.Context, b.Context), cmp.Compare(a.Batch, b.Batch))
	})
	out := make([]float64, len(fp.Candidates))
	for i, c := range fp.Candidates {
		out[i] = math.NaN()
		for _, at := range near {
			t, ok := byPoint[at][kernelOf(c)]
			if !ok {
				continue
			}
			out[i] = math.Ln2
			if t.Class == store.OK || t.Class == store.Cut {
				out[i] = math.Log(t.MedianUS / best[at])
			}
			break
		}
	}
	return out
}

func octaves(a, b specs.Workload) float64 {
	log := func(x, y int) float64 { return math.Abs(math.Log2(float64(max(x, 1)) / float64(max(y, 1)))) }
	return log(a.Context, b.Context) + log(a.Batch, b.Batch)
}

// blend takes the measured guess where there is one, and the estimate elsewhere, on the scale of the measured ones and never before the
// best of them.
func blend(estimates, measured []float64) []float64 {
	shift, n := 0.0, 0
	for i, m := range measured {
		if !math.IsNaN(m) {
			shift += m - estimates[i]
			n++
		}
	}
	out := slices.Clone(estimates)
	for i, m := range measured {
		switch {
		case !math.IsNaN(m):
			out[i] = m
		case n > 0:
			out[i] = max(out[i]+shift/float64(n), behindBest)
		}
	}
	return out
}

// kernelOf names a trial's kernel apart from workload and environment.
func kernelOf(c plan.Candidate) string { return strings.Join([]string{c.ID(), c.Key}, " ") }
