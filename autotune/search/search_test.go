package search

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"
)

// machine is a synthetic space: times that follow from what limits a kernel (bytes in flight, occupancy, waves, spills), with
// interactions, plateaus, failures and noise, so that no parameter decides alone.
func machine(seed uint64, rough float64, withPrior bool) (*Space, []Result) {
	r := rand.New(rand.NewPCG(seed, 99))
	s := &Space{Start: []int{0}}
	var results []Result
	needed, perWarp := 20+20*r.Float64(), 1+2*r.Float64()
	regs, slow := 60+60*r.Float64(), 0.1+0.2*r.Float64()
	for _, kind := range []string{"direct", "ring"} {
		for _, warps := range []int{1, 2, 4, 8, 16} {
			for _, blocks := range []int{1, 2, 3, 4, 6} {
				for _, stages := range []int{1, 2, 3, 4, 6} {
					for _, tile := range []int{8, 16, 32} {
						if kind == "direct" && stages > 2 {
							continue
						}
						s.Points = append(s.Points, Point{kind, []Param{{"warps", warps}, {"blocks", blocks}, {"stages", stages}, {"tile", tile}}})
						w, b, st, tl := float64(warps), float64(blocks), float64(stages), float64(tile)
						flight := w * b * st * perWarp * tl / 16
						us := 10 * max(1, math.Pow(needed/flight, 0.6))
						if have := 65536 / (32 * w * b); have < regs {
							us *= 1 + slow*(regs-have)/20
						}
						if kind == "direct" {
							us *= 1.05 + 0.1*r.Float64()/tl
						}
						us *= 1 + 0.02*math.Abs(math.Log2(tl/16))*b + 0.03*(st-1)/(w+1)
						guess := math.Log(us) + 0.3*r.NormFloat64()
						us *= 1 + rough*r.Float64()
						results = append(results, Result{len(results), us, w*b*st*tl < 3000})
						s.Prior = append(s.Prior, guess)
					}
				}
			}
		}
	}
	if !withPrior {
		s.Prior = nil
	} else {
		for len(s.Start) < 4 {
			best := -1
			for i := range s.Points {
				if !slices.Contains(s.Start, i) && (best < 0 || s.Prior[i] < s.Prior[best]) {
					best = i
				}
			}
			s.Start = append(s.Start, best)
		}
	}
	return s, results
}

// search follows a strategy for so many points, some asked for at a time.
func follow(st Strategy, s *Space, results []Result, seed uint64, n, batch int) (order []int, best float64) {
	run := st.Start(s, seed)
	for len(order) < n {
		var asked []int
		for len(asked) < batch && len(order)+len(asked) < n {
			i, ok := run.Next()
			if !ok {
				break
			}
			asked = append(asked, i)
		}
		if len(asked) == 0 {
			break
		}
		for _, i := range asked {
			run.Tell(results[i])
			if r := results[i]; r.OK && (best == 0 || r.US < best) {
				best = r.US
			}
		}
		order = append(order, asked...)
	}
	return order, best
}

func optimum(results []Result) float64 {
	best := math.Inf(1)
	for _, r := range results {
		if r.OK {
			best = min(best, r.US)
		}
	}
	return best
}

func TestEveryStrategy(t *testing.T) {
	s, results := machine(1, 0.01, true)
	n := len(s.Points)
	for _, st := range Strategies {
		t.Run(st.Name(), func(t *testing.T) {
			if got, err := Named(st.Name()); err != nil || got != st {
				t.Errorf("by name: %v, %v", got, err)
			}
			whole := n
			if _, dear := st.(Model); dear || st == (Strategy)(Default{}) {
				whole = 80 // each step fits a model
			}
			a, _ := follow(st, s, results, 1, whole, 1)
			b, _ := follow(st, s, results, 1, whole, 1)
			if !slices.Equal(a, b) {
				t.Error("the same seed and results must give the same choices, or a resumed run would measure others")
			}
			if a[0] != 0 {
				t.Error("the default is always measured first")
			}
			if st != (Strategy)(Random{}) && !slices.Equal(a[:4], s.Start) {
				t.Errorf("first %v, want the default and the analytic best few %v", a[:4], s.Start)
			}
			sorted := slices.Compact(slices.Sorted(slices.Values(a)))
			if len(sorted) != whole {
				t.Errorf("%d different points in %d choices; none may come twice and none be left", len(sorted), whole)
			}
			batch, _ := follow(st, s, results, 1, whole, 8)
			if got := slices.Compact(slices.Sorted(slices.Values(batch))); len(got) != whole {
				t.Errorf("asked for 8 at a time: %d different points, want %d", len(got), whole)
			}
			resumed := st.Start(s, 1)
			for _, i := range a[:20] {
				resumed.Tell(results[i])
			}
			if next, ok := resumed.Next(); !ok || slices.Contains(a[:20], next) {
				t.Errorf("resumed after 20 points: %d, which was measured", next)
			}
			tiny := &Space{Points: s.Points[:1], Start: []int{0}}
			if order, _ := follow(st, tiny, results, 1, 5, 2); !slices.Equal(order, []int{0}) {
				t.Errorf("a space of one: %v", order)
			}
			if order, _ := follow(st, &Space{}, nil, 1, 5, 1); len(order) != 0 {
				t.Errorf("an empty space: %v", order)
			}
		})
	}
	if _, err := Named("annealing"); err == nil {
		t.Error("an unknown strategy must be refused")
	}
}

// All candidates fail: nothing may hang, divide by zero, or come twice.
func TestEverythingFails(t *testing.T) {
	s, results := machine(2, 0.01, false)
	for i := range results {
		results[i].OK = false
	}
	for _, st := range Strategies {
		if order, best := follow(st, s, results, 3, 100, 4); len(order) != 100 || best != 0 {
			t.Errorf("%s: %d choices, best %g", st.Name(), len(order), best)
		}
	}
}

// The bar of the recorded sweeps, on synthetic ones: after a tenth of the space within 3 % at the median and 7 % at the 90th percentile,
// and better than random, with and without a guess of the machine, asked for four at a time as tune does.
func TestRegret(t *testing.T) {
	seeds := 12
	if testing.Short() {
		seeds = 6
	}
	for _, rough := range []float64{0, 0.01, 0.05} {
		for _, prior := range []bool{true, false} {
			regrets := map[string][]float64{}
			for _, st := range []Strategy{Default{}, Local{}, Random{}} {
				for seed := range uint64(seeds) {
					s, results := machine(seed, rough, prior)
					_, best := follow(st, s, results, seed, len(s.Points)/10, 4)
					regrets[st.Name()] = append(regrets[st.Name()], best/optimum(results)-1)
				}
				slices.Sort(regrets[st.Name()])
			}
			d, r := regrets["default"], regrets["random"]
			t.Logf("rough %g, prior %v: default %.4f %.4f, local %.4f %.4f, random %.4f %.4f", rough, prior, d[len(d)/2], d[len(d)*9/10],
				regrets["local"][len(d)/2], regrets["local"][len(d)*9/10], r[len(d)/2], r[len(d)*9/10])
			if d[len(d)/2] > 0.03 || d[len(d)*9/10] > 0.07 {
				t.Errorf("prior %v: default's regret is %.3f at the median, %.3f at the 90th percentile; want 0.03 and 0.07", prior, d[len(d)/2], d[len(d)*9/10])
			}
			if d[len(d)/2] >= r[len(d)/2] {
				t.Errorf("prior %v: default's regret %.4f, random's %.4f", prior, d[len(d)/2], r[len(d)/2])
			}
		}
	}
}

// What a run promises shrinks as the space is known, and is nothing at its end.
func TestPromise(t *testing.T) {
	s, results := machine(1, 0.01, false)
	for _, st := range Strategies {
		run := st.Start(s, 1)
		var promises []float64
		for range 60 {
			i, _ := run.Next()
			run.Tell(results[i])
			promises = append(promises, run.Promise(0.03))
			if g := run.Gain(); g < 0 || math.IsNaN(g) {
				t.Fatalf("%s: gain %g", st.Name(), g)
			}
		}
		if promises[59] >= promises[5] {
			t.Errorf("%s: promises %g after 60 points and %g after 6", st.Name(), promises[59], promises[5])
		}
	}
	small := &Space{Points: s.Points[:2], Start: []int{0}}
	run := Whole{}.Start(small, 1)
	for range 2 {
		i, _ := run.Next()
		run.Tell(results[i])
	}
	if run.Gain() != 0 || run.Promise(0.03) != 0 {
		t.Errorf("nothing is left, and gain is %g, promise %g", run.Gain(), run.Promise(0.03))
	}
}

func TestNeighbours(t *testing.T) {
	at := func(kind string, a, b int) Point { return Point{kind, []Param{{"a", a}, {"b", b}}} }
	s := &Space{Points: []Point{at("x", 2, 2), at("x", 1, 2), at("x", 8, 2), at("x", 4, 2), at("x", 2, 4), at("x", 4, 4), at("y", 2, 2), {"x", []Param{{"c", 2}}}}}
	if got, want := s.neighbours()[0], []int{1, 3, 4, 6}; !slices.Equal(got, want) {
		t.Errorf("neighbours %v, want %v: a down, a up to the next, b up, then the other kind", got, want)
	}
}
