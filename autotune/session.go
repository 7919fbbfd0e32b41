package autotune

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

// session is one run under way.
type session struct {
	*Tuner
	env      store.Environment
	run      int64
	schedule *schedule
	spent    float64 // seconds, earlier runs included
	compiled *compiled
	checkers *checkers
	vet      map[string]measure.Response // what every case of the check found of winners, by kernel
	right    map[string]measure.Checked  // what the quick check found of kernels that passed it, by kernel
	found    map[string]found            // what it found ahead of trials to come
	out      Outcome
}

// loadKnown takes over what earlier runs stored of today's kernels.
func (s *session) loadKnown(ctx context.Context) error {
	all, err := s.DB.Trials(ctx, store.Filter{Spec: s.Spec.Name})
	if err != nil {
		return err
	}
	var here, elsewhere []store.Trial
	for _, t := range all {
		if t.L2 != s.Options.L2() {
			continue
		}
		if t.Environment == s.env.ID() {
			here = append(here, t)
		} else {
			elsewhere = append(elsewhere, t)
		}
	}
	trials, err := Current(here, s.Plan)
	if err != nil {
		return err
	}
	if err := s.tellRelatives(ctx, elsewhere); err != nil {
		return err
	}
	if n := len(here) - len(trials); n > 0 {
		s.observe(Event{Kind: "note", Message: fmt.Sprintf("%d trials are stale: their kernels have changed since", n)})
	}
	if s.schedule, err = newSchedule(s.Tuner, s.out.Device, s.env.ID(), trials, elsewhere); err != nil {
		return err
	}
	for _, l := range s.schedule.lists {
		s.out.Known += len(l.trials)
		for _, t := range l.trials {
			s.passed(t)
		}
	}
	s.spent, err = s.DB.SpentSeconds(ctx, s.Spec.Name, s.env.ID())
	return err
}

// tellRelatives says why trials of other environments do not count here, and what they are good for.
func (s *session) tellRelatives(ctx context.Context, elsewhere []store.Trial) error {
	counts := map[string]int{}
	for _, t := range elsewhere {
		counts[t.Environment]++
	}
	for _, id := range slices.Sorted(maps.Keys(counts)) {
		other, err := s.DB.EnvironmentOf(ctx, id)
		if err != nil {
			return err
		}
		s.observe(Event{Kind: "note", Message: fmt.Sprintf("%d trials were measured %s: they say where to begin, and are measured again", counts[id], s.differs(other))})
	}
	return nil
}

// differs says in what another environment differs from this one.
func (s *session) differs(other store.Environment) string {
	var info device.Info
	_ = json.Unmarshal(other.Device, &info) // an unreadable record has no name
	switch here := s.out.Device; {
	case info.Name != here.Name:
		return "on another device, " + info.Name
	case other.Driver != s.env.Driver:
		return fmt.Sprintf("with driver %s, which is now %s", other.Driver, s.env.Driver)
	case other.NVRTC != s.env.NVRTC:
		return fmt.Sprintf("with %s, which is now %s", other.NVRTC, s.env.NVRTC)
	case info.MultiInstanceGPU != here.MultiInstanceGPU:
		return "with MIG in another mode"
	}
	return "on a " + info.Name + " of another configuration (SMs, memory, clocks or ECC)"
}

// Of a budget so much is kept for measuring leaders again and checking winners whole: what that takes at each point, within bounds.
const (
	contestSeconds  = 2.0
	contestShare    = 0.15
	contestShareMax = 0.40
)

// searchShare is the part of the budget that the search may spend.
func (s *session) searchShare() float64 {
	if s.Options.Rounds == 0 || s.Options.Budget == 0 {
		return 1
	}
	need := contestSeconds * float64(len(s.schedule.lists)) / s.Options.Budget.Seconds()
	return 1 - min(max(need, contestShare), contestShareMax)
}

// measureAll measures what the schedule deals, then leaders again. Trials are dealt some ahead, so that they are compiled by then.
func (s *session) measureAll(ctx, hard context.Context) error {
	ahead, stopAhead := context.WithCancel(hard)
	defer s.compiled.wait()
	defer stopAhead()
	s.observe(Event{Kind: "start", Done: s.out.Known, Total: s.out.Known + s.schedule.left(), Points: s.schedule.progress()})
	var queue []job
	share, depth := s.searchShare(), max(Deal, 2*s.Options.Workers) // so many trials are dealt ahead as keep the compilers busy
	for more := true; more || len(queue) > 0; {
		for more && len(queue) <= depth {
			jobs := s.schedule.next()
			more = len(jobs) > 0
			s.compiled.prefetch(ahead, jobs)
			queue = append(queue, jobs...)
		}
		if len(queue) == 0 {
			break
		}
		s.out.Left = s.schedule.left()
		if s.out.Why = s.reason(ctx, share); s.out.Why != "" {
			break
		}
		at := s.compiled.first(queue)
		if err := s.checkAhead(hard, queue, at); err != nil {
			return err
		}
		if err := s.measureJob(hard, queue[at]); err != nil {
			return err
		}
		queue = slices.Delete(queue, at, at+1)
		if more && s.out.Measured%Deal == 0 { // what is left to learn does not change by a trial
			for _, l := range s.schedule.lists {
				s.schedule.learn(l, s.Plan, s.out.Device)
			}
		}
	}
	s.out.Left = s.schedule.left()
	why := "all candidates measured"
	if s.out.Left > 0 {
		why = "nothing better is likely"
	}
	if s.out.Why == "" || s.out.Why == "budget spent" {
		s.out.Why = cmp.Or(s.out.Why, why)
		return s.contests(ctx, hard)
	}
	return nil
}

// reason says why a run ends now; empty: it goes on. share is the part of the budget that may be spent by now.
func (s *session) reason(ctx context.Context, share float64) string {
	switch {
	case ctx.Err() != nil:
		return "stopped"
	case s.Options.Budget > 0 && s.spent >= share*s.Options.Budget.Seconds():
		return "budget spent"
	case s.Options.MaxTrials > 0 && s.out.Measured >= s.Options.MaxTrials:
		return "trial limit"
	}
	return ""
}

func (s *session) measureJob(ctx context.Context, j job) error {
	start := time.Now()
	t, err := s.trial(ctx, j)
	if err != nil {
		return err
	}
	s.schedule.done(j, t, time.Since(start))
	s.out.Measured++
	s.observe(Event{Kind: "trial", Done: s.out.Known + s.out.Measured, Total: s.out.Known + s.out.Measured + s.schedule.left(),
		Trial: t, BestUS: j.list.best})
	return nil
}

func (s *session) observe(e Event) {
	if s.Observe != nil {
		e.Spent = s.spent
		s.Observe(e)
	}
}

// trial measures one job and stores it.
func (s *session) trial(ctx context.Context, j job) (store.Trial, error) {
	src, err := j.source()
	if err != nil {
		return store.Trial{}, err
	}
	c := j.candidate()
	t := store.Trial{
		Run: s.run, Environment: s.env.ID(), Spec: s.Spec.Name, Family: string(j.list.work), Candidate: c,
		Context: j.list.workload.Context, Batch: j.list.workload.Batch, SourceHash: src.Hash, L2: s.Options.L2(), Default: j.index == j.list.planned[0],
		SharedBytes: c.Geometry.DynamicShared, Started: time.Now().UTC(),
	}
	m, err := s.compiled.Get(ctx, src)
	var refused *nvrtc.CompileError
	switch {
	case errors.As(err, &refused):
		t.Class, t.Message = store.CompileError, refused.Error()
	case err != nil:
		return t, err
	default:
		if err := s.measureModule(ctx, j, m, &t); err != nil {
			return t, err
		}
	}
	t.Seconds += time.Since(t.Started).Seconds()
	s.spent += t.Seconds
	_, err = s.DB.Put(ctx, t)
	return t, err
}

func imageOf(c plan.Candidate, m *nvrtc.Module) []byte {
	if c.Arch == plan.PortableArch {
		return m.PTX // as it will be deployed: the driver compiles it
	}
	return m.Cubin
}

func (s *session) measureModule(ctx context.Context, j job, m *nvrtc.Module, t *store.Trial) error {
	image := imageOf(j.candidate(), m)
	t.CubinHash = hashOf(image)
	t.Registers, t.SpillBytes = m.Resources.Registers, m.Resources.SpillStores+m.Resources.SpillLoads
	t.SharedBytes += m.Resources.StaticShared
	resp, checked, err := s.answer(ctx, j, image, t)
	if err != nil {
		return err
	}
	t.Class, t.Message, t.MaxError, t.Bound, t.Samples = store.Class(resp.Class), resp.Message, checked.MaxError, checked.Bound, resp.Samples
	t.Conditions = resp.Conditions
	s.passed(*t)
	if len(t.Samples) > 0 {
		sum := measure.Summarise(t.Samples)
		t.MedianUS, t.LoUS, t.HiUS = sum.Median, sum.Lo, sum.Hi
	}
	return nil
}

// answer has a job checked, where that was not done, and timed. The check has its own shapes: what it found of the same code holds for every
// workload.
func (s *session) answer(ctx context.Context, j job, image []byte, t *store.Trial) (measure.Response, measure.Checked, error) {
	key := kernelOf(j.candidate())
	checked, skip := s.right[key]
	if ahead, ok := s.found[key]; ok && !skip {
		delete(s.found, key)
		t.Seconds += ahead.seconds
		checked, skip = measure.Checked{MaxError: ahead.response.MaxError, Bound: ahead.response.Bound}, true
		if store.Class(ahead.response.Class) != store.OK {
			return ahead.response, checked, nil
		}
	}
	resp, err := s.Host.Do(ctx, measure.Request{
		Spec: *s.Spec, Work: j.list.work, Workload: j.list.workload, Candidate: j.candidate(), Image: image, SkipCheck: skip,
		Warm: s.Options.Warm, BestUS: j.list.best, CheckSeed: uint64(time.Now().UnixNano()), Precision: s.Options.Precision, Siblings: s.checkers.running(),
	})
	if !skip {
		checked = measure.Checked{MaxError: resp.MaxError, Bound: resp.Bound}
	}
	return resp, checked, err
}

// passed remembers a trial whose kernel the check found right.
func (s *session) passed(t store.Trial) {
	if t.Class == store.OK || t.Class == store.Cut {
		s.right[kernelOf(t.Candidate)] = measure.Checked{MaxError: t.MaxError, Bound: t.Bound}
	}
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
