package autotune

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
)

// Choice is the winner of one work and workload, with the evidence for it.
type Choice struct {
	Family   string         `json:"family"` // a stem, or dense
	Context  int            `json:"context"`
	Batch    int            `json:"batch"`
	Best     store.Trial    `json:"best"`
	Default  store.Trial    `json:"default"`   // Class empty when it was not measured
	RunnerUp store.Trial    `json:"runner_up"` // Class empty when there is none
	Portable store.Trial    `json:"portable"`  // the best portable form; Class empty when none was measured
	Tied     int            `json:"tied"`      // right candidates within noise of the fastest
	Counts   map[string]int `json:"counts"`    // trials by class
}

// Choose picks the winner of each point among the trials: the fastest right candidate. Where leaders were measured again in turn, only
// they count, and those that the paired rounds cannot tell from the fastest are tied with it; elsewhere those whose interval overlaps the
// fastest's. Of tied ones the default wins, then the one that stands first in fixed order (form, parameters).
func Choose(trials []store.Trial) []Choice {
	byPoint := map[string][]store.Trial{}
	var points []string
	for _, t := range trials {
		p := pointOf(t)
		if byPoint[p] == nil {
			points = append(points, p)
		}
		byPoint[p] = append(byPoint[p], t)
	}
	var choices []Choice
	for _, p := range points {
		if c, ok := choose(byPoint[p]); ok {
			choices = append(choices, c)
		}
	}
	slices.SortStableFunc(choices, func(a, b Choice) int {
		return cmp.Or(cmp.Compare(rank(a.Family), rank(b.Family)), cmp.Compare(a.Context, b.Context), cmp.Compare(a.Batch, b.Batch))
	})
	return choices
}

func pointOf(t store.Trial) string {
	return pointName(workOf(t), workloadOf(t)) + " " + t.Candidate.Key + " " + t.L2
}

func choose(trials []store.Trial) (Choice, bool) {
	c := Choice{Family: trials[0].Family, Context: trials[0].Context, Batch: trials[0].Batch, Counts: map[string]int{}}
	var right []store.Trial
	for _, t := range trials {
		c.Counts[string(t.Class)]++
		if t.Class == store.OK {
			right = append(right, t)
		}
		if t.Default {
			c.Default = t
		}
	}
	if len(right) == 0 {
		return Choice{}, false
	}
	slices.SortStableFunc(right, func(a, b store.Trial) int { return cmp.Compare(a.MedianUS, b.MedianUS) })
	tied, others := tiedOf(right)
	slices.SortStableFunc(tied, fixedOrder)
	c.Best, c.Tied = tied[0], len(tied)
	if others != nil { // the times of the contest, where there was one
		right = others
		for _, t := range right {
			if t.Default {
				c.Default = t
			}
		}
	}
	for _, t := range right {
		if t.Candidate.ID() != c.Best.Candidate.ID() && c.RunnerUp.Class == "" {
			c.RunnerUp = t
		}
		if t.Candidate.Form == plan.Portable && c.Portable.Class == "" {
			c.Portable = t
		}
	}
	return c, true
}

// AgainstDefaults says in a sentence what choices gain over the defaults, where those were measured.
func AgainstDefaults(choices []Choice) string {
	kept, slower, logs, most, least := 0, 0, 0.0, 1.0, math.Inf(1)
	n := 0
	for _, c := range choices {
		if c.Default.Class != store.OK {
			continue
		}
		n++
		gain := c.Default.MedianUS / c.Best.MedianUS
		if c.Best.Candidate.ID() == c.Default.Candidate.ID() {
			kept++
			gain = 1
		} else {
			most, least = max(most, gain), min(least, gain)
		}
		logs += math.Log(gain)
		if c.Best.LoUS > c.Default.HiUS {
			slower++
		}
	}
	switch {
	case n == 0:
		return ""
	case kept == n:
		return fmt.Sprintf("All %d choices are the defaults.", n)
	}
	others := fmt.Sprintf("the others are %.2f to %.2f times as fast as theirs", least, most)
	if n-kept == 1 {
		others = fmt.Sprintf("the other is %.2f times as fast as its default", least)
	}
	defaults := fmt.Sprintf("%d of %d choices are the defaults", kept, n)
	if kept == 1 {
		defaults = fmt.Sprintf("1 of %d choices is the default", n)
	}
	s := fmt.Sprintf("%s; %s, %.2f in the geometric mean of all.", defaults, others, math.Exp(logs/float64(n)))
	switch slower {
	case 0:
	case 1:
		return s + " 1 is slower than the default beyond the intervals."
	default:
		return s + fmt.Sprintf(" %d are slower than the default beyond the intervals.", slower)
	}
	return s + " None is slower than its default beyond the intervals."
}

// tiedOf are the trials that may as well be the fastest. From a contest it also returns all its trials and then the others, the fastest
// first in each, with the times to go by.
func tiedOf(right []store.Trial) (tied, all []store.Trial) {
	leaders, _ := contested(right)
	if len(leaders) == 0 || outrun(leaders, right[0]) {
		fastest := right[0]
		return slices.DeleteFunc(slices.Clone(right), func(t store.Trial) bool { return t.LoUS > fastest.HiUS }), nil
	}
	middle := func(t store.Trial) float64 { return measure.Summarise(roundMedians(t)).Median }
	slices.SortStableFunc(leaders, func(a, b store.Trial) int { return cmp.Or(cmp.Compare(middle(a), middle(b)), fixedOrder(a, b)) })
	for _, t := range leaders {
		if !measure.Pairs(roundMedians(leaders[0]), roundMedians(t)).Differ() {
			tied = append(tied, t)
		}
	}
	all = slices.Clone(leaders)
	for _, t := range right {
		if !slices.ContainsFunc(leaders, func(l store.Trial) bool { return l.Candidate.ID() == t.Candidate.ID() }) {
			all = append(all, t)
		}
	}
	return tied, all
}

// outrun tells that a trial was measured after a contest and is so much faster than all of it that no drift explains it.
func outrun(leaders []store.Trial, t store.Trial) bool {
	if len(t.Windows) > 0 {
		return false // it was in a contest, and maybe failed there
	}
	for _, l := range leaders {
		if l.Candidate.ID() == t.Candidate.ID() || t.HiUS > outrunShare*l.LoUS {
			return false
		}
	}
	return true
}

// outrunShare is far below what clocks drift by.
const outrunShare = 0.9

// fixedOrder puts the default first, then forms and parameters in ascending order: nothing that varies between runs.
func fixedOrder(a, b store.Trial) int {
	if a.Default != b.Default {
		if a.Default {
			return -1
		}
		return 1
	}
	return cmp.Or(cmp.Compare(a.Candidate.Form, b.Candidate.Form),
		slices.CompareFunc(a.Candidate.Params, b.Candidate.Params, func(x, y plan.Param) int { return cmp.Compare(x.Value, y.Value) }))
}
