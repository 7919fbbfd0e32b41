package autotune

import (
	"slices"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/gen/render"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Deal is how many candidates of one work and workload follow each other: each change of workload makes the child build its buffers
// anew, and compile workers need something to do ahead of the measuring.
const Deal = 8

// decodeShare weighs a work's microseconds in a decode step. Dense attention serves only short contexts; what runs once a prompt counts
// as much as a token of a short answer.
func decodeShare(w measure.Work) float64 {
	switch w {
	case measure.Work(plan.PageScore), measure.Work(plan.PageSelect), measure.Work(plan.PageAttend):
		return 1
	case measure.Dense:
		return 1.0 / 4
	}
	return 1.0 / 64
}

// job is one trial to come.
type job struct {
	list  *list
	index int            // of the candidate
	src   *render.Source // once it is rendered
}

// source renders a job's candidate; a candidate of the plan that does not render is a broken invariant of the templates.
func (j job) source() (render.Source, error) {
	if j.src != nil {
		return *j.src, nil
	}
	return render.Candidate(j.candidate())
}

func (j job) candidate() plan.Candidate { return j.list.candidates[j.index] }

// list is one work and workload with the search over its candidates.
type list struct {
	work       measure.Work
	workload   specs.Workload
	candidates []plan.Candidate
	planned    []int // the candidates in the plan's order for this workload, the default first
	space      *search.Space
	run        search.Run
	trials     []store.Trial // told so far, this run's and earlier ones
	best       float64       // microseconds; 0: none
	seconds    float64       // measuring time of this run
	measured   int           // in this run
	waiting    int           // asked for and not told
	dealt      bool
	begun      bool // what comes first in its space was asked for
	exhausted  bool
	incumbents []int // candidates that an earlier tuning chose
}

func (l *list) point() string { return pointName(l.work, l.workload) }

// schedule deals trials of all lists: the default of each first, then the few that should be best of each, then whatever promises most.
type schedule struct {
	lists     []*list
	options   Options
	env       string
	relatives []store.Trial
}

// newSchedule starts the searches. known are the trials of this environment, which are not measured again; relatives those of others,
// which say where to begin.
func newSchedule(t *Tuner, dev device.Info, env string, known, relatives []store.Trial) (*schedule, error) {
	works := t.Options.Works
	if len(works) == 0 {
		works = measure.Works
	}
	s := &schedule{options: t.Options, env: env, relatives: relatives}
	for _, w := range t.Spec.Workloads {
		for _, work := range works {
			if !t.Plan.Has(work.Family()) {
				continue
			}
			l := &list{work: work, workload: w, candidates: t.Plan.Of(work.Family()).Candidates}
			l.planned = t.Plan.OrderAt(string(work), work.Family(), w)
			l.space = spaceOf(t.Plan, work, w, dev, slices.Concat(known, relatives), env, l.planned)
			l.incumbents = incumbentsOf(t, work, w)
			l.space.Start = startWith(l.space.Start, l.incumbents)
			l.run = t.Options.strategy().Start(l.space, t.Options.Seed)
			at := map[string]int{}
			for i, c := range l.candidates {
				at[kernelOf(c)] = i
			}
			for _, tr := range known {
				if i, ok := at[kernelOf(tr.Candidate)]; ok && workOf(tr) == work && workloadOf(tr) == w {
					l.tell(i, tr)
				}
			}
			s.lists = append(s.lists, l)
		}
	}
	return s, nil
}

// incumbentsOf are the candidates of an earlier choice that the plan still has.
func incumbentsOf(t *Tuner, work measure.Work, w specs.Workload) (list []int) {
	fp := t.Plan.Of(work.Family())
	for _, in := range t.Options.Incumbents {
		if in.Work != work || in.Workload != w {
			continue
		}
		if c, ok := fp.Select(in.Form, in.Params); ok {
			list = append(list, slices.IndexFunc(fp.Candidates, func(o plan.Candidate) bool { return kernelOf(o) == kernelOf(c) }))
		}
	}
	return list
}

// startWith puts incumbents behind the default.
func startWith(start, incumbents []int) []int {
	var out []int
	for _, i := range slices.Concat(start[:min(1, len(start))], incumbents, start) {
		if !slices.Contains(out, i) {
			out = append(out, i)
		}
	}
	return out
}

// tell passes a finished trial on to the search.
func (l *list) tell(i int, t store.Trial) {
	r := search.Result{Point: i, US: t.MedianUS, OK: t.Class == store.OK || t.Class == store.Cut}
	l.run.Tell(r)
	l.trials = append(l.trials, t)
	if t.Class == store.OK && (l.best == 0 || t.MedianUS < l.best) {
		l.best = t.MedianUS
	}
}

// next returns trials of one list, or none when every search has come to its end.
func (s *schedule) next() []job {
	for _, l := range s.lists { // the default of everything, so that a short budget has seen it
		if l.dealt || len(l.trials) > 0 {
			continue
		}
		l.dealt = true
		if jobs := s.ask(l, 1); len(jobs) > 0 {
			return jobs
		}
	}
	if !s.whole() {
		for _, l := range s.lists { // then what the plan and the estimate put first
			if n := len(l.space.Start) - len(l.trials) - l.waiting; !l.begun && n > 0 {
				l.begun = true
				if jobs := s.ask(l, n); len(jobs) > 0 {
					return jobs
				}
			}
		}
	}
	for {
		l := s.worthiest()
		if l == nil {
			return nil
		}
		if jobs := s.ask(l, Deal); len(jobs) > 0 {
			return jobs
		}
		l.exhausted = true
	}
}

// whole says that every candidate is to be measured, in no particular order.
func (s *schedule) whole() bool {
	_, whole := s.options.strategy().(search.Whole)
	return whole
}

func (s *schedule) ask(l *list, n int) (jobs []job) {
	for len(jobs) < n && !s.enough(l, len(jobs)) {
		i, ok := l.run.Next()
		if !ok {
			break
		}
		jobs = append(jobs, job{list: l, index: i})
	}
	l.waiting += len(jobs)
	return jobs
}

// enough says that a search has had its evaluations, or that nothing much better is likely to be left. Small spaces are measured whole.
func (s *schedule) enough(l *list, more int) bool {
	if len(l.candidates) <= search.Exhaustive {
		return false
	}
	n := len(l.trials) + l.waiting + more
	if s.options.Evaluations > 0 && n >= s.options.Evaluations {
		return true
	}
	return s.options.Target > 0 && n >= leastEvaluations && more == 0 && l.run.Promise(s.options.Target) < targetChance
}

const (
	leastEvaluations = 24
	targetChance     = 0.05
)

// worthiest is the list whose next trial is expected to take most off a decode step, a second of measuring: the expected share of its
// best time, weighed by what the work is of its workload's step. Lists with trials under way wait for them as long as others do not.
func (s *schedule) worthiest() *list {
	if s.whole() { // one after the other, so that a run that is cut off has whole ones
		if i := slices.IndexFunc(s.lists, func(l *list) bool { return !l.exhausted }); i >= 0 {
			return s.lists[i]
		}
		return nil
	}
	step := map[specs.Workload]float64{}
	for _, l := range s.lists {
		step[l.workload] += decodeShare(l.work) * l.best
	}
	var top *list
	topWorth := -1.0
	for _, l := range s.lists {
		if l.exhausted {
			continue
		}
		share := 1.0 // a list without a right candidate needs one before all else
		if l.best > 0 {
			share = decodeShare(l.work) * l.best / step[l.workload]
		}
		seconds := 0.2
		if l.measured > 0 {
			seconds = l.seconds / float64(l.measured)
		}
		left := float64(len(l.candidates)-len(l.trials)-l.waiting) / float64(len(l.candidates)+1)
		worth := share * (l.run.Gain() + 1e-4*left) / max(seconds, 0.01) / float64(1+l.waiting)
		if worth > topWorth {
			top, topWorth = l, worth
		}
	}
	return top
}

// left counts the candidates that nobody has measured.
func (s *schedule) left() (n int) {
	for _, l := range s.lists {
		n += len(l.candidates) - len(l.trials)
	}
	return n
}

func (s *schedule) progress() (points []Progress) {
	for _, l := range s.lists {
		points = append(points, Progress{string(l.work), l.workload.Context, l.workload.Batch, len(l.candidates), len(l.trials), l.best})
	}
	return points
}

// done takes a measured trial of a job into account.
func (s *schedule) done(j job, t store.Trial, spent time.Duration) {
	l := j.list
	l.waiting--
	l.measured++
	l.seconds += spent.Seconds()
	l.tell(j.index, t)
}

// learn makes the guesses of one list anew from what all lists have measured.
func (s *schedule) learn(l *list, p *plan.Plan, dev device.Info) {
	trials := slices.Clone(s.relatives)
	for _, other := range s.lists {
		if other.work == l.work && other != l {
			trials = append(trials, other.trials...)
		}
	}
	copy(l.space.Prior, spaceOf(p, l.work, l.workload, dev, trials, s.env, l.planned).Prior)
}
