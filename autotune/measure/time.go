package measure

import (
	"errors"
	"time"

	"github.com/kvloom/kvloom/autotune/store"
)

// Timing says how long to measure.
type Timing struct {
	Width   float64       // stop when the 95 % interval is within this share of the median
	Least   int           // samples
	Most    int           // samples
	Limit   time.Duration // wall time for the samples
	CutUS   float64       // stop early when the median of the first samples is over this; 0: never
	GraphUS float64       // one replay lasts at least this long, so that its start does not show
}

// Usual is what tune uses.
var Usual = Timing{Width: 0.005, Least: 15, Most: 60, Limit: 1500 * time.Millisecond, GraphUS: 1500}

// maxLaunches bounds the nodes of one graph.
const maxLaunches = 2048

// Time measures a step by replays of a graph of launches that go round the sets, and returns microseconds a launch, one a replay. Class
// is store.Cut when it was stopped early.
func (r *Rig) Time(s *Step, t Timing) (samples []float64, class store.Class, err error) {
	once, err := r.replay(s, max(s.Sets, 1), 2)
	if err != nil {
		return nil, "", err
	}
	// The second replay is warm code over cold data: an estimate of one launch.
	launches := min(max(s.Sets, roundUp(int(t.GraphUS/max(once[1], 0.1))+1, s.Sets)), maxLaunches)
	g, err := r.capture(s, launches)
	if err != nil {
		return nil, "", err
	}
	defer func() { err = errors.Join(err, g.destroy()) }()
	if _, err := g.sample(); err != nil { // the first replay of a graph uploads it
		return nil, "", err
	}
	start := time.Now()
	for len(samples) < t.Most {
		us, err := g.sample()
		if err != nil {
			return nil, "", err
		}
		samples = append(samples, us)
		sum := Summarise(samples)
		if t.CutUS > 0 && len(samples) == 3 && sum.Median > t.CutUS {
			return samples, store.Cut, nil
		}
		if len(samples) >= t.Least && (sum.Tight(t.Width) || time.Since(start) > t.Limit) {
			break
		}
	}
	return samples, store.OK, nil
}

func roundUp(n, to int) int { return (n + to - 1) / to * to }

// replay captures a graph of so many launches and samples it.
func (r *Rig) replay(s *Step, launches, samples int) ([]float64, error) {
	g, err := r.capture(s, launches)
	if err != nil {
		return nil, err
	}
	var out []float64
	for range samples {
		us, err := g.sample()
		if err != nil {
			return nil, errors.Join(err, g.destroy())
		}
		out = append(out, us)
	}
	return out, g.destroy()
}
