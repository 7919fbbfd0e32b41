package search

// Local climbs from the best of the first points to better neighbours, and from a random point again when none is better.
type Local struct{}

// Name is how a command line spells it.
func (Local) Name() string { return "local" }

// Start begins a run.
func (Local) Start(s *Space, seed uint64) Run {
	return &climb{seen: newSeen(s), near: s.neighbours(), restarts: s.shuffled(seed), at: -1}
}

type climb struct {
	seen
	near     [][]int
	restarts []int
	at       int     // where the climb is; -1: nowhere yet
	atUS     float64 // its time
	started  int     // results of the starting points that are known
}

// Next is a neighbour of where the climb is; when all of them were asked for, a new start.
func (c *climb) Next() (int, bool) {
	if i, ok := c.first(c.space.Start); ok {
		return i, true
	}
	if c.at >= 0 {
		if i, ok := c.first(c.near[c.at]); ok {
			return i, true
		}
	}
	return c.first(c.restarts)
}

// Tell moves the climb to a better neighbour, or to a new start when the last climb has come to its end.
func (c *climb) Tell(r Result) {
	c.seen.Tell(r)
	if !r.OK {
		return
	}
	if c.started < len(c.space.Start) {
		c.started++
	}
	switch {
	case c.at < 0 || r.US < c.atUS:
		c.at, c.atUS = r.Point, r.US
	case c.done() && !contains(c.near[c.at], r.Point):
		c.at, c.atUS = r.Point, r.US
	}
}

// done says that every neighbour has been measured: what was told is the start of another climb.
func (c *climb) done() bool {
	for _, i := range c.near[c.at] {
		if !c.asked[i] {
			return false
		}
	}
	return true
}

func contains(list []int, i int) bool {
	for _, j := range list {
		if i == j {
			return true
		}
	}
	return false
}
