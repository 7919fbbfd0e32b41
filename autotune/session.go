package autotune

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/nvrtc"
)

// session is one run under way.
type session struct {
	*Tuner
	env      store.Environment
	run      int64
	known    map[string]bool
	best     map[string]float64 // microseconds by point
	spent    float64            // seconds, earlier runs included
	compiled *compiled
	out      Outcome
}

func (s *session) loadKnown(ctx context.Context) error {
	trials, err := s.DB.Trials(ctx, store.Filter{Spec: s.Spec.Name, Environment: s.env.ID()})
	if err != nil {
		return err
	}
	s.known = map[string]bool{}
	for _, t := range trials {
		s.known[t.ID()] = true
		s.improve(t)
	}
	s.spent, err = s.DB.SpentSeconds(ctx, s.Spec.Name, s.env.ID())
	return err
}

// improve keeps the best time of a point, for the early cut.
func (s *session) improve(t store.Trial) float64 {
	p := job{work: workOf(t), workload: workloadOf(t)}.point()
	if b := s.best[p]; t.Class == store.OK && (b == 0 || t.MedianUS < b) {
		s.best[p] = t.MedianUS
	}
	return s.best[p]
}

func (s *session) measureAll(ctx, hard context.Context, jobs []job) error {
	ahead, stopAhead := context.WithCancel(hard)
	defer s.compiled.wait()
	defer stopAhead()
	s.compiled.prefetch(ahead, jobs, max(s.Options.Workers, 1))
	s.observe(Event{Kind: "start", Total: len(jobs)})
	for i, j := range jobs {
		s.out.Left = len(jobs) - i
		switch {
		case ctx.Err() != nil:
			s.out.Why = "stopped"
		case s.Options.Budget > 0 && s.spent >= s.Options.Budget.Seconds():
			s.out.Why = "budget spent"
		case s.Options.MaxTrials > 0 && s.out.Measured >= s.Options.MaxTrials:
			s.out.Why = "trial limit"
		}
		if s.out.Why != "" {
			return nil
		}
		t, isNew, err := s.trial(hard, j)
		if err != nil {
			return err
		}
		e := Event{Kind: "trial", Done: i + 1, Total: len(jobs), Trial: t, BestUS: s.improve(t), Spent: s.spent}
		if !isNew {
			e.Kind = "skip"
			s.out.Known++
		} else {
			s.out.Measured++
		}
		s.observe(e)
	}
	s.out.Left, s.out.Why = 0, "all candidates measured"
	return nil
}

func (s *session) observe(e Event) {
	if s.Observe != nil {
		e.Spent = s.spent
		s.Observe(e)
	}
}

// trial measures one job and stores it, or finds it stored.
func (s *session) trial(ctx context.Context, j job) (store.Trial, bool, error) {
	src, err := j.source()
	if err != nil {
		return store.Trial{}, false, err
	}
	t := store.Trial{
		Run: s.run, Environment: s.env.ID(), Spec: s.Spec.Name, Family: string(j.work), Candidate: j.candidate,
		Context: j.workload.Context, Batch: j.workload.Batch, SourceHash: src.Hash, L2: "cold", Default: j.isDefault,
		SharedBytes: j.candidate.Geometry.DynamicShared, Started: time.Now().UTC(),
	}
	if s.known[t.ID()] {
		return t, false, nil
	}
	m, err := s.compiled.get(ctx, src)
	var refused *nvrtc.CompileError
	switch {
	case errors.As(err, &refused):
		t.Class, t.Message = store.CompileError, refused.Error()
	case err != nil:
		return t, false, err
	default:
		if err := s.measureModule(ctx, j, m, &t); err != nil {
			return t, false, err
		}
	}
	t.Seconds = time.Since(t.Started).Seconds()
	s.spent += t.Seconds
	isNew, err := s.DB.Put(ctx, t)
	return t, isNew, err
}

func (s *session) measureModule(ctx context.Context, j job, m *nvrtc.Module, t *store.Trial) error {
	image := m.Cubin
	if j.candidate.Arch == plan.PortableArch {
		image = m.PTX // as it will be deployed: the driver compiles it
	}
	t.CubinHash = hashOf(image)
	t.Registers, t.SpillBytes = m.Resources.Registers, m.Resources.SpillStores+m.Resources.SpillLoads
	t.SharedBytes += m.Resources.StaticShared
	resp, err := s.Host.Do(ctx, measure.Request{
		Spec: *s.Spec, Work: j.work, Workload: j.workload, Candidate: j.candidate, Image: image,
		BestUS: s.best[j.point()], CheckSeed: uint64(time.Now().UnixNano()),
	})
	if err != nil {
		return err
	}
	t.Class, t.Message, t.MaxError, t.Bound, t.Samples = store.Class(resp.Class), resp.Message, resp.MaxError, resp.Bound, resp.Samples
	if len(t.Samples) > 0 {
		sum := measure.Summarise(t.Samples)
		t.MedianUS, t.LoUS, t.HiUS = sum.Median, sum.Lo, sum.Hi
	}
	return nil
}

func hashOf(b []byte) string {
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:])
}
