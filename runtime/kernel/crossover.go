package kernel

import (
	"fmt"
	"math"
)

// Crossover is where selecting pages begins to pay for a batch, as it was measured: a layer whose requests have From tokens or more took less
// time through score, select and attend than through dense attention.
type Crossover struct {
	Batch int `json:"batch"`
	From  int `json:"from"`  // tokens a request; 0: dense was faster at every length measured
	Least int `json:"least"` // shortest length measured, tokens
	Most  int `json:"most"`  // longest
}

func (c Crossover) validate() error {
	if c.Batch < 1 || c.Least < 1 || c.Most < c.Least || c.From < 0 || c.From > c.Most {
		return fmt.Errorf("a crossover of batch %d from %d tokens, measured from %d to %d, is impossible", c.Batch, c.From, c.Least, c.Most)
	}
	return nil
}

// Path is how a layer attends: to selected pages or, where that is not faster, to all of them.
type Path struct {
	Dense  bool
	Reason string // a sentence, with what the choice rests on
}

// String is one line for a log.
func (p Path) String() string {
	if p.Dense {
		return "dense: " + p.Reason
	}
	return "sparse: " + p.Reason
}

// Path says which way of attending is the faster one for a workload, so that a host can capture it. It is a choice of speed alone: the chain
// keeps every page while the budget holds them all, and a graph of either kind, replayed at any length up to the table's width, is right.
//
// It rests on the first of these that there is: the budget, which selects nothing below its own size; a crossover that was measured for the
// nearest batch; times of the tuned points of score, select, attend and dense attention; else pages are selected.
func (s *Set) Path(w Workload) Path {
	m := &s.bundle.Model
	if held := m.Slots * m.PageSize; w.Context <= held {
		return Path{Dense: true, Reason: fmt.Sprintf("%d tokens fit into the budget of %d, which leaves nothing to select", w.Context, held)}
	}
	if s.works[denseWork] == nil {
		return Path{Reason: "the bundle has no dense attention"}
	}
	if c, ok := s.bundle.crossover(w.Batch); ok {
		return s.bundle.cross(c, w)
	}
	if p, ok := s.bundle.timed(w); ok {
		return p
	}
	return Path{Reason: "nothing was measured of dense attention beside it: pages are selected wherever the budget leaves some out"}
}

// crossover is the one measured for the nearest batch, at most nearestOctaves away.
func (b *Bundle) crossover(batch int) (best Crossover, ok bool) {
	distance := math.Inf(1)
	for _, c := range b.Crossovers {
		if d := octaves(c.Batch, batch); d <= nearestOctaves && d < distance {
			best, distance, ok = c, d, true
		}
	}
	return best, ok
}

func (b *Bundle) cross(c Crossover, w Workload) Path {
	where := fmt.Sprintf("on %s with batch %d", b.Device.Name, c.Batch)
	if c.Batch != w.Batch {
		where += fmt.Sprintf(", the nearest to %d", w.Batch)
	}
	switch {
	case c.From == 0:
		return Path{Dense: true, Reason: fmt.Sprintf("selecting was measured to be slower at all lengths from %d to %d tokens %s", c.Least, c.Most, where)}
	case w.Context < c.From:
		return Path{Dense: true, Reason: fmt.Sprintf("%d tokens are fewer than the %d from which selecting was measured to be faster %s", w.Context, c.From, where)}
	}
	return Path{Reason: fmt.Sprintf("selecting was measured to be faster from %d tokens %s", c.From, where)}
}

// timed compares the times of the tuned points nearest to a workload, where all four works were tuned for the same one.
func (b *Bundle) timed(w Workload) (Path, bool) {
	sparse, dense := 0.0, 0.0
	var at Workload
	works := []string{PageScore, PageSelect, PageAttend, Dense}
	if b.Model.Reranks() {
		works = []string{PageScore, PageSelect, PageRerank, PageAttend, Dense}
	}
	for i, work := range works {
		a, err := b.Lookup(work, w)
		if err != nil || a.Tuned == nil || a.Tuned.Evidence.MedianUS <= 0 || i > 0 && a.Tuned.Workload != at {
			return Path{}, false
		}
		at = a.Tuned.Workload
		if work == Dense {
			dense = a.Tuned.Evidence.MedianUS
		} else {
			sparse += a.Tuned.Evidence.MedianUS
		}
	}
	return Path{Dense: dense <= sparse, Reason: fmt.Sprintf("tuned for context %d, batch %d, score, select and attend add up to %.1f us, dense attention takes %.1f us",
		at.Context, at.Batch, sparse, dense)}, true
}
