// Package search decides which candidates are measured, and in which order. Strategies are pure and seeded: the same space, seed and
// results give the same choices, with no GPU; a resumed run tells what was stored and goes on where the other stopped.
package search

import (
	"fmt"
	"slices"
	"strings"
)

// Exhaustive is the number of candidates up to which a search is not ended before it has measured all of them.
const Exhaustive = 64

// Param is one parameter of a point.
type Param struct {
	Name  string
	Value int
}

// Point is one candidate as a strategy sees it.
type Point struct {
	Kind   string  // form and kernel template: points of different kinds share no parameter by right
	Params []Param // in the spec'd order
}

// Space is what is known before measuring.
type Space struct {
	Points []Point
	// Start are the points to measure first, in order: the default, then the analytic best few. Empty: point 0 is the default.
	Start []int
	// Prior is a guess of each point's log time up to a constant, from a model of the machine or from other workloads; nil: no guess. It
	// may be improved while a run is under way.
	Prior []float64
}

// Result is what measuring a point came to.
type Result struct {
	Point int
	US    float64
	OK    bool // false: it failed, and has no time
}

// Run is a search under way. Next may be called several times before the results are told; it never returns a point twice.
type Run interface {
	// Next returns the next point to measure, or false when there is none left.
	Next() (int, bool)
	// Tell reports a result: of a point that Next returned, or one that an earlier run has measured, which Next then does not return.
	Tell(Result)
	// Gain is what measuring one more point is expected to take off the best time, as a share of it.
	Gain() float64
	// Promise is the expected number of points not measured that are faster than the best by more than this share.
	Promise(share float64) float64
}

// Strategy starts runs.
type Strategy interface {
	Name() string
	Start(s *Space, seed uint64) Run
}

// Strategies are all strategies; the first is what tune uses unless told otherwise.
var Strategies = []Strategy{Default{}, Random{}, Local{}, Model{}, Whole{}}

// Named finds a strategy by its name.
func Named(name string) (Strategy, error) {
	var names []string
	for _, s := range Strategies {
		if s.Name() == name {
			return s, nil
		}
		names = append(names, s.Name())
	}
	return nil, fmt.Errorf("no strategy %q; there are %s", name, strings.Join(names, ", "))
}

// Default is Model, under the name that tune's choice has: in a small space too, of which everything is measured in the end, what is likely
// to be fast comes first, so that a short budget has seen it.
type Default struct{}

// Name is how a command line spells it.
func (Default) Name() string { return "default" }

// Start begins a run.
func (Default) Start(s *Space, seed uint64) Run { return Model{}.Start(s, seed) }

// first is the default.
func (s *Space) first() int {
	if len(s.Start) == 0 {
		return 0
	}
	return s.Start[0]
}

// seen is what all runs remember.
type seen struct {
	space   *Space
	asked   []bool
	left    int
	results []Result // in the order told
	best    float64  // microseconds; 0: none
	second  float64
}

func newSeen(s *Space) seen {
	return seen{space: s, asked: make([]bool, len(s.Points)), left: len(s.Points)}
}

func (s *seen) ask(i int) (int, bool) {
	s.asked[i] = true
	s.left--
	return i, true
}

// first asks for the first point of a list that was not asked for.
func (s *seen) first(list []int) (int, bool) {
	for _, i := range list {
		if !s.asked[i] {
			return s.ask(i)
		}
	}
	return 0, false
}

// Tell remembers a result.
func (s *seen) Tell(r Result) {
	if !s.asked[r.Point] {
		s.ask(r.Point)
	}
	s.results = append(s.results, r)
	if !r.OK {
		return
	}
	switch {
	case s.best == 0 || r.US < s.best:
		s.best, s.second = r.US, s.best
	case s.second == 0 || r.US < s.second:
		s.second = r.US
	}
}

// Gain, without a model: leaving out one result at a time, only leaving out the best one changes the best; so the last draw's expected
// share was this.
func (s *seen) Gain() float64 {
	if s.left == 0 {
		return 0
	}
	if s.second == 0 {
		return 1
	}
	return (s.second - s.best) / s.best / float64(len(s.results))
}

// Promise, without a model: as many of those left as of those seen, and what was seen says that the best is one of them.
func (s *seen) Promise(float64) float64 {
	return float64(s.left) / float64(len(s.results)+1)
}

// neighbours lists, for each point, those of its kind that differ in one parameter, to the next value there is in either direction; by
// parameter in the spec'd order, smaller values first. Points of another kind with the same parameters come last.
func (s *Space) neighbours() [][]int {
	all := make([][]int, len(s.Points))
	for i, p := range s.Points {
		down, up := make([]int, len(p.Params)), make([]int, len(p.Params))
		for d := range down {
			down[d], up[d] = -1, -1
		}
		var other []int
		for j, q := range s.Points {
			if i == j || !sameNames(p, q) {
				continue
			}
			d, n := difference(p, q)
			switch {
			case n == 0 && p.Kind != q.Kind:
				other = append(other, j)
			case n != 1 || p.Kind != q.Kind:
			case q.Params[d].Value < p.Params[d].Value && (down[d] < 0 || q.Params[d].Value > s.Points[down[d]].Params[d].Value):
				down[d] = j
			case q.Params[d].Value > p.Params[d].Value && (up[d] < 0 || q.Params[d].Value < s.Points[up[d]].Params[d].Value):
				up[d] = j
			}
		}
		for d := range down {
			all[i] = append(all[i], down[d], up[d])
		}
		all[i] = slices.DeleteFunc(append(all[i], other...), func(j int) bool { return j < 0 })
	}
	return all
}

func sameNames(p, q Point) bool {
	return slices.EqualFunc(p.Params, q.Params, func(a, b Param) bool { return a.Name == b.Name })
}

// difference returns the last parameter in which two points differ, and in how many they do.
func difference(p, q Point) (d, n int) {
	for i := range p.Params {
		if p.Params[i].Value != q.Params[i].Value {
			d = i
			n++
		}
	}
	return d, n
}
