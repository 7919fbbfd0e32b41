package autotune

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"slices"
	"time"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
)

const (
	leadersFastest = 3    // of a contest, by their first times
	leadersFirst   = 5    // of a contest, by the fixed order: of those that may be as fast, one that stands before others is chosen
	leadersWithin  = 0.02 // of the fastest, beyond its interval
	roundSamples   = 5
	// DefaultRounds is how often each leader is measured again: the fewest of which a signed-rank test at 5 % can be sure although one or two
	// of them are disturbed.
	DefaultRounds = 10
)

// contests settles every point, those of which a decode step has most first: its leaders are measured again, in turn, so that a drift of the
// GPU is in all of them, and the winner is checked in every case. One that is wrong is condemned, and the point's others contend again. What
// an earlier run did of a contest is not done again.
func (s *session) contests(ctx, hard context.Context) error {
	if s.Options.Rounds == 0 {
		return nil
	}
	var open []*list
	for _, l := range s.schedule.lists {
		if len(l.trials) > 0 {
			open = append(open, l)
		}
	}
	slices.SortStableFunc(open, func(a, b *list) int { return cmp.Compare(decodeShare(b.work)*b.best, decodeShare(a.work)*a.best) })
	whole := map[*list]bool{}
	for len(open) > 0 {
		for _, l := range open {
			var err error
			if whole[l], err = s.contest(ctx, hard, l); err != nil {
				return err
			}
			if ctx.Err() != nil {
				s.out.Why = "stopped"
				return nil
			}
		}
		var err error
		if open, err = s.vetWinners(hard, open); err != nil {
			return err
		}
	}
	for _, w := range whole {
		if w {
			s.out.Contests++
		}
	}
	return nil
}

// contest measures a point's leaders in rounds; whole tells that none is missing.
func (s *session) contest(ctx, hard context.Context, l *list) (whole bool, err error) {
	leaders := leadersOf(l.trials, func(t store.Trial) bool { return slices.Contains(l.incumbents, indexOf(l, t)) })
	if len(leaders) < 2 {
		return false, nil
	}
	id := contestID(s.out.Device.UUID, leaders)
	for round := range s.Options.Rounds {
		for i := range leaders {
			t := &l.trials[at(l, leaders[(i+round)%len(leaders)])] // each is first in turn
			if slices.ContainsFunc(t.Windows, func(w store.Window) bool { return w.Contest == id && w.Round == round }) {
				continue
			}
			if why := s.reason(ctx, 1); why == "stopped" || why == "budget spent" {
				return false, nil
			}
			w, err := s.window(hard, l, *t, id, round)
			if err != nil {
				return false, err
			}
			t.Windows = append(t.Windows, w)
			s.observe(Event{Kind: "contest", Done: s.out.Known + s.out.Measured, Total: s.out.Known + s.out.Measured + s.schedule.left(), Trial: *t, BestUS: l.best,
				Message: fmt.Sprintf("round %d of %d", round+1, s.Options.Rounds)})
		}
	}
	return true, nil
}

// at is where a trial stands in its list.
func at(l *list, t store.Trial) int {
	return slices.IndexFunc(l.trials, func(o store.Trial) bool { return o.ID() == t.ID() })
}

// vetted tells whether every case of the check found a winner right. One that was found wrong is condemned.
func (s *session) vetted(ctx context.Context, l *list, t store.Trial) (ok bool, err error) {
	found := s.vet[kernelOf(t.Candidate)]
	class := store.Class(found.Class)
	if class == store.OK || class == store.Hang { // too slow to check whole here is not wrong
		return true, nil
	}
	if err := s.DB.Condemn(ctx, t.ID(), class, found.Message); err != nil {
		return false, err
	}
	i := at(l, t)
	l.trials[i].Class, l.trials[i].Message = class, found.Message
	s.observe(Event{Kind: "note", Message: fmt.Sprintf("%s was the fastest or near it, and is %s in a case that is not checked before timing: %s",
		t.Candidate.ID(), class, found.Message)})
	return false, nil
}

// window measures one leader once more. One that fails now has an empty window, and is no leader any more.
func (s *session) window(ctx context.Context, l *list, t store.Trial, contest string, round int) (store.Window, error) {
	w := store.Window{Contest: contest, Round: round, Trial: t.ID(), Run: s.run, Samples: []float64{}, Started: time.Now().UTC()}
	src, err := job{list: l, index: indexOf(l, t)}.source()
	if err != nil {
		return w, err
	}
	m, err := s.compiled.Get(ctx, src)
	if err != nil {
		return w, err
	}
	resp, err := s.Host.Do(ctx, measure.Request{Spec: *s.Spec, Work: l.work, Workload: l.workload, Candidate: t.Candidate, Image: imageOf(t.Candidate, m),
		SkipCheck: true, Samples: roundSamples, Warm: s.Options.Warm, Siblings: s.checkers.running()})
	if err != nil {
		return w, err
	}
	if store.Class(resp.Class) == store.OK {
		w.Samples, w.Conditions = resp.Samples, resp.Conditions
	}
	w.Seconds = time.Since(w.Started).Seconds()
	s.spent += w.Seconds
	return w, s.DB.PutWindow(ctx, w)
}

func indexOf(l *list, t store.Trial) int {
	for i, c := range l.candidates {
		if kernelOf(c) == kernelOf(t.Candidate) {
			return i
		}
	}
	panic("BUG: autotune: no candidate " + t.Candidate.ID())
}

// leadersOf are the right trials that contend: the fastest few, and of all that may be as fast the first few in the fixed order, for of those
// that tie in the end the first is chosen; were only the fastest few asked, noise would decide which of many equal ones are. Beside them stand
// the default and what else has to be among them, unless it is so much slower that no drift explains it. The fastest is first.
func leadersOf(trials []store.Trial, also func(store.Trial) bool) []store.Trial {
	var right []store.Trial
	for _, t := range trials {
		if t.Class == store.OK {
			right = append(right, t)
		}
	}
	slices.SortStableFunc(right, func(a, b store.Trial) int { return cmp.Or(cmp.Compare(a.MedianUS, b.MedianUS), fixedOrder(a, b)) })
	near := slices.DeleteFunc(slices.Clone(right), func(t store.Trial) bool { return t.LoUS > right[0].HiUS*(1+leadersWithin) })
	chosen := map[string]bool{}
	for _, t := range near[:min(leadersFastest, len(near))] {
		chosen[t.ID()] = true
	}
	slices.SortStableFunc(near, fixedOrder)
	for _, t := range near[:min(leadersFirst, len(near))] {
		chosen[t.ID()] = true
	}
	return slices.DeleteFunc(slices.Clone(right), func(t store.Trial) bool {
		asked := (t.Default || also(t)) && outrunShare*t.LoUS <= right[0].HiUS
		return !chosen[t.ID()] && !asked
	})
}

// contestID is the same for the same leaders on one board, in whatever order: rounds of two boards are no pairs.
func contestID(board string, leaders []store.Trial) string {
	ids := []string{board}
	for _, t := range leaders {
		ids = append(ids, t.ID())
	}
	slices.Sort(ids)
	h := sha256.New()
	for _, id := range ids {
		fmt.Fprintln(h, id)
	}
	return hex.EncodeToString(h.Sum(nil))[:32]
}

// contested returns the trials of the contest that the most rounds were measured of, the latest of equals, their times those of the
// contest. Trials that failed in it are left out. It is empty when none had two whole rounds.
func contested(trials []store.Trial) (in []store.Trial, rounds int) {
	type contest struct {
		id     string
		rounds map[int]int // trials by round
		last   time.Time
	}
	all := map[string]*contest{}
	var order []*contest
	for _, t := range trials {
		for _, w := range t.Windows {
			c := all[w.Contest]
			if c == nil {
				c = &contest{id: w.Contest, rounds: map[int]int{}}
				all[w.Contest] = c
				order = append(order, c)
			}
			c.rounds[w.Round]++
			if w.Started.After(c.last) {
				c.last = w.Started
			}
		}
	}
	whole := func(c *contest) (n int) {
		members := c.rounds[0]
		for n < len(c.rounds) && c.rounds[n] == members {
			n++
		}
		return n
	}
	slices.SortFunc(order, func(a, b *contest) int {
		return cmp.Or(cmp.Compare(whole(b), whole(a)), b.last.Compare(a.last), cmp.Compare(a.id, b.id))
	})
	if len(order) == 0 || whole(order[0]) < 2 {
		return nil, 0
	}
	id, rounds := order[0].id, whole(order[0])
	for _, t := range trials {
		if c, ok := inContest(t, id, rounds); ok {
			in = append(in, c)
		}
	}
	return in, rounds
}

// inContest is a trial with its windows of one contest alone, and its times from them.
func inContest(t store.Trial, id string, rounds int) (store.Trial, bool) {
	windows := make([]store.Window, rounds)
	var samples []float64
	for _, w := range t.Windows {
		if w.Contest == id && w.Round < rounds {
			windows[w.Round] = w
			samples = append(samples, w.Samples...)
		}
	}
	for _, w := range windows {
		if len(w.Samples) == 0 {
			return t, false
		}
	}
	sum := measure.Summarise(samples)
	t.Windows, t.Samples, t.MedianUS, t.LoUS, t.HiUS = windows, samples, sum.Median, sum.Lo, sum.Hi
	return t, true
}

// roundMedians is a contested trial's time by round.
func roundMedians(t store.Trial) (us []float64) {
	for _, w := range t.Windows {
		us = append(us, measure.Summarise(w.Samples).Median)
	}
	return us
}

// RoundMedians is a trial's time by round of the contest that it was chosen in: its windows.
func RoundMedians(t store.Trial) []float64 { return roundMedians(t) }

// Ranking is the right trials of one point, the fastest first: those of a contest by their times in it, then the others.
func Ranking(trials []store.Trial) []store.Trial {
	var right []store.Trial
	for _, t := range trials {
		if t.Class == store.OK {
			right = append(right, t)
		}
	}
	slices.SortStableFunc(right, func(a, b store.Trial) int { return cmp.Or(cmp.Compare(a.MedianUS, b.MedianUS), fixedOrder(a, b)) })
	if len(right) == 0 {
		return nil
	}
	if _, all := tiedOf(right); all != nil {
		return all
	}
	return right
}
