package autotune

import (
	"cmp"
	"maps"
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

// estimateShare weighs the estimate of a candidate's log time against its place in the plan, which lists its best guesses first. Of 19 works
// and workloads of an H200 with nine to seventy trials each, the place and so much of the estimate together put more pairs in the right order
// than chance in all (Kendall's tau 0.07 to 0.80); the estimate alone was worse than chance in 4 of 13.
const estimateShare = 0.5

// analyticBest is how many candidates the estimate may put before the others, the default aside.
const analyticBest = 3

// SpaceOf is a work's candidates as a strategy sees them for a workload: what to measure first, and a guess of every time from the
// estimate and from trials of other workloads, or of this one in another environment than env; of each candidate the nearest counts.
func SpaceOf(p *plan.Plan, work measure.Work, w specs.Workload, dev device.Info, trials []store.Trial, env string) *search.Space {
	return spaceOf(p, work, w, dev, trials, env, p.OrderAt(string(work), work.Family(), w))
}

// spaceOf is SpaceOf with the workload's order of the plan's candidates, which takes longer to find than the rest.
func spaceOf(p *plan.Plan, work measure.Work, w specs.Workload, dev device.Info, trials []store.Trial, env string, planned []int) *search.Space {
	fp := p.Of(work.Family())
	places := make([]int, len(planned))
	for at, i := range planned {
		places[i] = at
	}
	s := &search.Space{Prior: make([]float64, len(fp.Candidates))}
	estimates := make([]float64, len(fp.Candidates))
	order := make([]int, len(fp.Candidates))
	for i, c := range fp.Candidates {
		point := search.Point{Kind: string(c.Form) + " " + c.Kernel}
		for _, q := range c.Params {
			point.Params = append(point.Params, search.Param(q))
		}
		s.Points = append(s.Points, point)
		estimates[i] = estimateShare*math.Log(Estimate(c, CostOf(p, work, w), problemOf(p.Spec, w, dev.SMs), dev)) + float64(places[i])/float64(len(fp.Candidates))
		order[i] = i
	}
	copy(s.Prior, blend(estimates, transferred(fp, work, w, trials, env)))
	if len(order) > 0 {
		s.Start = append(s.Start, planned[0])
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(s.Prior[a], s.Prior[b]) })
	for _, i := range order[:min(analyticBest, len(order))] {
		if !slices.Contains(s.Start, i) {
			s.Start = append(s.Start, i)
		}
	}
	if i := slices.IndexFunc(fp.Candidates, func(c plan.Candidate) bool { return c.Form == plan.Portable }); i >= 0 && !slices.Contains(s.Start, i) {
		s.Start = append(s.Start, i) // a bundle holds one, whatever wins
	}
	return s
}

// place is where a trial was measured.
type place struct {
	workload    specs.Workload
	environment string
}

// elsewhereOctaves is how far another environment is, in octaves of workload: a relative's times say less than a near workload's here, and
// more than a far one's.
const elsewhereOctaves = 1.5

// transferred is each candidate's log time over its place's best, in the nearest other place that has it; NaN where none has. A failure counts
// as 2 times the best, for it may not be one here.
func transferred(fp plan.FamilyPlan, work measure.Work, w specs.Workload, trials []store.Trial, env string) []float64 {
	at := map[place]map[string]store.Trial{}
	best := map[place]float64{}
	for _, t := range trials {
		p := place{workloadOf(t), t.Environment}
		if workOf(t) != work || p == (place{w, env}) {
			continue
		}
		if at[p] == nil {
			at[p] = map[string]store.Trial{}
		}
		at[p][kernelOf(t.Candidate)] = t
		if t.Class == store.OK && (best[p] == 0 || t.MedianUS < best[p]) {
			best[p] = t.MedianUS
		}
	}
	far := func(p place) float64 {
		d := octaves(p.workload, w)
		if p.environment != env {
			d += elsewhereOctaves
		}
		return d
	}
	near := slices.SortedFunc(maps.Keys(best), func(a, b place) int {
		return cmp.Or(cmp.Compare(far(a), far(b)), cmp.Compare(a.workload.Context, b.workload.Context), cmp.Compare(a.workload.Batch, b.workload.Batch),
			cmp.Compare(a.environment, b.environment))
	})
	out := make([]float64, len(fp.Candidates))
	for i, c := range fp.Candidates {
		out[i] = math.NaN()
		for _, p := range near {
			t, ok := at[p][kernelOf(c)]
			if !ok {
				continue
			}
			out[i] = math.Ln2
			if t.Class == store.OK || t.Class == store.Cut {
				out[i] = math.Log(t.MedianUS / best[p])
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
