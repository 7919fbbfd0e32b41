package lab

import (
	"fmt"
	"math"
	"runtime"
	"slices"
	"sync"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/search"
	"github.com/kvloom/kvloom/specs"
)

// Space is a search space of which every time is known.
type Space struct {
	Family   string
	Workload string // "131072x1"
	Space    func() *search.Space
	US       []float64 // by point; 0: it failed
}

// Spaces are the workloads of a sweep as a cold run meets them: no trial is known.
func Spaces(name string, b []byte) ([]Space, error) {
	s, p, err := Parse(name, b)
	if err != nil {
		return nil, err
	}
	var all []Space
	for _, m := range s.Points {
		w := specs.Workload{Context: m.Context, Batch: m.Batch}
		all = append(all, Space{Family: s.Family, Workload: fmt.Sprintf("%dx%d", m.Context, m.Batch), US: m.US, Space: func() *search.Space {
			return autotune.SpaceOf(p, measure.Work(s.Family), w, s.Device, nil, "")
		}})
	}
	return all, nil
}

// Fractions of a space after which regret is told.
var Fractions = []float64{0.05, 0.10, 0.20}

// Row is how far from the best a strategy is after measuring a fraction of a space: best found / best of all - 1, over the seeds.
type Row struct {
	Strategy     string  `json:"strategy"`
	Family       string  `json:"family"`
	Workload     string  `json:"workload"`
	Fraction     float64 `json:"fraction"`
	RegretMedian float64 `json:"regret_median"`
	RegretP90    float64 `json:"regret_p90"`
}

// Ease says how easy a space is: the share of its points within 3 % of the best, and of those that failed.
type Ease struct {
	Family   string  `json:"family"`
	Workload string  `json:"workload"`
	Points   int     `json:"points"`
	BestUS   float64 `json:"best_us"`
	Within3  float64 `json:"within_3_percent"`
	Failed   float64 `json:"failed"`
}

// EaseOf measures a space.
func EaseOf(s Space) Ease {
	e := Ease{Family: s.Family, Workload: s.Workload, Points: len(s.US), BestUS: bestOf(s.US)}
	for _, us := range s.US {
		switch {
		case us == 0:
			e.Failed++
		case us <= 1.03*e.BestUS:
			e.Within3++
		}
	}
	e.Failed /= float64(max(e.Points, 1))
	e.Within3 /= float64(max(e.Points, 1))
	return e
}

func bestOf(us []float64) float64 {
	best := math.Inf(1)
	for _, x := range us {
		if x > 0 {
			best = min(best, x)
		}
	}
	return best
}

// Curve is the median and the 90th percentile of regret after each number of measurements, over the seeds.
type Curve struct {
	Strategy    string
	Space       Space
	Median, P90 []float64 // after 1, 2, ... measurements
}

// Rows reads a curve at the fractions, those beyond its end at its end.
func (c Curve) Rows() (rows []Row) {
	for _, f := range Fractions {
		n := min(max(int(math.Ceil(f*float64(len(c.Space.US)))), 1), len(c.Median))
		rows = append(rows, Row{c.Strategy, c.Space.Family, c.Space.Workload, f, c.Median[n-1], c.P90[n-1]})
	}
	return rows
}

// Replay runs a strategy on a space with so many seeds, as far as the largest fraction, asking for as many points at a time as tune does.
func Replay(s Space, strategy search.Strategy, seeds int) Curve {
	return replay(s, strategy, seeds, Fractions[len(Fractions)-1])
}

// replay ends after a fraction of the space.
func replay(s Space, strategy search.Strategy, seeds int, fraction float64) Curve {
	n := max(int(math.Ceil(fraction*float64(len(s.US)))), 1)
	runs := make([][]float64, seeds)
	var wg sync.WaitGroup
	slots := make(chan struct{}, runtime.GOMAXPROCS(0))
	for seed := range seeds {
		wg.Go(func() {
			slots <- struct{}{}
			runs[seed] = follow(s, strategy.Start(s.Space(), uint64(seed)+1), n)
			<-slots
		})
	}
	wg.Wait()
	c := Curve{Strategy: strategy.Name(), Space: s}
	for i := range n {
		var at []float64
		for _, r := range runs {
			at = append(at, r[i])
		}
		slices.Sort(at)
		c.Median, c.P90 = append(c.Median, quantile(at, 0.5)), append(c.P90, quantile(at, 0.9))
	}
	return c
}

// follow returns the regret after each of n measurements; before a right point was found it is infinite.
func follow(s Space, run search.Run, n int) (regret []float64) {
	best, optimum := math.Inf(1), bestOf(s.US)
	for len(regret) < n {
		var asked []int
		want := autotune.Deal
		if len(regret) == 0 {
			want = 1 // the default alone, as tune does
		}
		for len(asked) < min(want, n-len(regret)) {
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
			run.Tell(search.Result{Point: i, US: s.US[i], OK: s.US[i] > 0})
			if s.US[i] > 0 {
				best = min(best, s.US[i])
			}
			regret = append(regret, best/optimum-1)
		}
	}
	for len(regret) < n {
		regret = append(regret, best/optimum-1)
	}
	return regret
}

// quantile of sorted numbers: the smallest that at least the share q of them does not exceed.
func quantile(sorted []float64, q float64) float64 {
	return sorted[min(max(int(math.Ceil(q*float64(len(sorted))))-1, 0), len(sorted)-1)]
}
