package search

import "math/rand/v2"

// Whole measures everything in plan order.
type Whole struct{}

// Name is how a command line spells it.
func (Whole) Name() string { return "exhaustive" }

// Start begins a run.
func (Whole) Start(s *Space, _ uint64) Run {
	order := make([]int, len(s.Points))
	for i := range order {
		order[i] = i
	}
	return &listed{newSeen(s), append(append([]int{}, s.Start...), order...)}
}

// Random measures the default, then the rest in an order from the seed. It knows nothing else of the space: others are held against it.
type Random struct{}

// Name is how a command line spells it.
func (Random) Name() string { return "random" }

// Start begins a run.
func (Random) Start(s *Space, seed uint64) Run {
	return &listed{newSeen(s), s.shuffled(seed)}
}

// Uniform measures everything in an order from the seed, the default like any other point: random search as the literature has it. It is for
// the lab alone.
type Uniform struct{}

// Name is how a command line spells it.
func (Uniform) Name() string { return "uniform" }

// Start begins a run.
func (Uniform) Start(s *Space, seed uint64) Run {
	order := rand.New(rand.NewPCG(seed, uint64(len(s.Points)))).Perm(len(s.Points))
	return &listed{newSeen(s), order}
}

// shuffled is the default, then the others in random order.
func (s *Space) shuffled(seed uint64) []int {
	order := make([]int, len(s.Points))
	for i := range order {
		order[i] = i
	}
	if len(order) == 0 {
		return order
	}
	order[0], order[s.first()] = s.first(), 0
	r := rand.New(rand.NewPCG(seed, uint64(len(order))))
	r.Shuffle(len(order)-1, func(i, j int) { order[i+1], order[j+1] = order[j+1], order[i+1] })
	return order
}

// listed follows a list.
type listed struct {
	seen
	order []int
}

func (l *listed) Next() (int, bool) { return l.first(l.order) }
