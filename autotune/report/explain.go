// Package report says in words, tables and pictures what a trial database holds: why each kernel was chosen, and how the tuning went.
package report

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/specs"
)

// Explanation is why one kernel serves one workload. Times are microseconds.
type Explanation struct {
	Model      string             `json:"model"`
	Family     string             `json:"family"`
	Context    int                `json:"context"`
	Batch      int                `json:"batch"`
	Device     string             `json:"device"`
	Driver     string             `json:"driver"`
	Candidate  string             `json:"candidate"`
	MedianUS   float64            `json:"median_us"`
	LoUS       float64            `json:"lo_us"`
	HiUS       float64            `json:"hi_us"`
	Samples    int                `json:"samples"`
	DefaultUS  float64            `json:"default_us"` // 0: not measured
	Why        string             `json:"why"`
	Rounds     int                `json:"rounds"` // in which leaders were measured again in turn; 0: none
	Registers  int                `json:"registers"`
	Shared     int                `json:"shared_bytes"`
	Spill      int                `json:"spill_bytes"`
	Threads    int                `json:"threads"`
	Occupancy  autotune.Occupancy `json:"occupancy"`
	Bytes      int64              `json:"bytes"`
	Flops      int64              `json:"flops"`
	TBPerS     float64            `json:"tb_per_s"`
	RoofTBPerS float64            `json:"roof_tb_per_s"` // the board's data sheet; 0: not known
	MaxError   float64            `json:"max_error"`
	Bound      float64            `json:"bound"`
	RunnersUp  []RunnerUp         `json:"runners_up"`
	Failures   []Failure          `json:"failures"`
	Rejected   []Reason           `json:"rejected"`
	Effects    []Effect           `json:"effects"`
	Conditions store.Conditions   `json:"conditions"`
}

// RunnerUp is another right candidate.
type RunnerUp struct {
	Candidate string  `json:"candidate"`
	MedianUS  float64 `json:"median_us"`
	LoUS      float64 `json:"lo_us"`
	HiUS      float64 `json:"hi_us"`
	Ratio     float64 `json:"ratio"` // to the choice
	P         float64 `json:"p"`     // of the paired rounds; 1 where there are none
	Verdict   string  `json:"verdict"`
}

// Failure counts candidates that ended alike.
type Failure struct {
	Class   string `json:"class"`
	Count   int    `json:"count"`
	Example string `json:"example"` // candidate and message of the first
}

// Reason counts candidates that the plan rejected before compiling.
type Reason struct {
	Reason string `json:"reason"`
	Count  int    `json:"count"` // with this very sentence
}

// Effect is the best time of each value of a parameter.
type Effect struct {
	Param  string    `json:"param"`
	Values []int     `json:"values"`
	BestUS []float64 `json:"best_us"`
	// Importance is the share of the variance of the log times that the parameter alone explains.
	Importance float64 `json:"importance"`
}

// dataSheet is the memory bandwidth of boards, TB/s, as NVIDIA states it.
var dataSheet = map[string]float64{"NVIDIA H200": 4.8, "NVIDIA H200 NVL": 4.8, "NVIDIA H100 80GB HBM3": 3.35, "NVIDIA H100 PCIe": 2.0,
	"NVIDIA GH200 480GB": 4.0, "NVIDIA GH200 144G HBM3e": 4.9}

const runnersMost = 5

// Explain makes the explanation of one point from its trials, which have to be of one model and environment and of p's kernels.
func Explain(p *plan.Plan, work measure.Work, w specs.Workload, trials []store.Trial, dev device.Info, driver string) (*Explanation, error) {
	trials = slices.DeleteFunc(slices.Clone(trials), func(t store.Trial) bool {
		return t.Family != string(work) || t.Context != w.Context || t.Batch != w.Batch
	})
	choices := autotune.Choose(trials)
	if len(choices) == 0 {
		return nil, fmt.Errorf("%s has no right candidate of %s at %dx%d among %d trials", p.Spec.Name, work, w.Context, w.Batch, len(trials))
	}
	c := choices[0]
	cost := autotune.CostOf(p, work, w)
	threads := c.Best.Candidate.Geometry.Block
	e := &Explanation{Model: p.Spec.Name, Family: string(work), Context: w.Context, Batch: w.Batch, Device: dev.Name, Driver: driver,
		Candidate: c.Best.Candidate.ID(), MedianUS: c.Best.MedianUS, LoUS: c.Best.LoUS, HiUS: c.Best.HiUS, Samples: len(c.Best.Samples),
		DefaultUS: c.Default.MedianUS, Rounds: len(c.Best.Windows), Registers: c.Best.Registers, Shared: c.Best.SharedBytes, Spill: c.Best.SpillBytes, Threads: threads,
		Occupancy: autotune.OccupancyOf(threads, c.Best.Registers, c.Best.SharedBytes, dev), Bytes: cost.Bytes, Flops: cost.Flops,
		TBPerS: float64(cost.Bytes) / c.Best.MedianUS / 1e6, RoofTBPerS: dataSheet[dev.Name], MaxError: c.Best.MaxError, Bound: c.Best.Bound,
		Conditions: c.Best.Conditions}
	e.RunnersUp, e.Failures, e.Effects = runnersUp(c, trials), failures(trials), effects(trials)
	e.Rejected = reasons(p.Of(work.Family()).Rejected)
	e.Why = why(c, trials)
	return e, nil
}

// counted is a number with what it counts, and a verb.
func counted(n int, one, many string) string {
	if n == 1 {
		return "1 " + one
	}
	return fmt.Sprintf("%d %s", n, many)
}

// why is the reason of a choice in a sentence.
func why(c autotune.Choice, trials []store.Trial) string {
	right := c.Counts[string(store.OK)]
	s := fmt.Sprintf("%s measured, %s", counted(len(trials), "candidate was", "candidates were"), counted(right+c.Counts[string(store.Cut)], "is right", "are right"))
	if n := c.Counts[string(store.Cut)]; n > 0 {
		s += fmt.Sprintf(", %d of them stopped early at more than 3 times the best", n)
	}
	by := "their intervals overlap"
	if len(c.Best.Windows) > 0 {
		by = fmt.Sprintf("%d rounds of measuring them in turn do not tell them apart, or by less than %g %%", len(c.Best.Windows), 100*measure.TieShare)
	}
	switch {
	case c.Tied == 1 && len(c.Best.Windows) > 0:
		return s + fmt.Sprintf("; of those that led, measured again in %d rounds side by side, this one is the fastest, and no other is within noise of it", len(c.Best.Windows))
	case c.Tied == 1:
		return s + "; this one is the fastest, and no other is within noise of it"
	case c.Best.Default:
		return fmt.Sprintf("%s; %d tie for the fastest (%s), and of tied ones the default stays", s, c.Tied, by)
	}
	return fmt.Sprintf("%s; %d tie for the fastest (%s), and of tied ones the first in fixed order is taken, so that two runs choose alike", s, c.Tied, by)
}

func runnersUp(c autotune.Choice, trials []store.Trial) (list []RunnerUp) {
	others := autotune.Ranking(trials)
	for _, t := range others {
		if t.Candidate.ID() == c.Best.Candidate.ID() {
			continue
		}
		r := RunnerUp{Candidate: t.Candidate.ID(), MedianUS: t.MedianUS, LoUS: t.LoUS, HiUS: t.HiUS, Ratio: t.MedianUS / c.Best.MedianUS, P: 1, Verdict: "slower"}
		switch {
		case len(t.Windows) > 0 && len(t.Windows) == len(c.Best.Windows):
			pair := measure.Pairs(autotune.RoundMedians(c.Best), autotune.RoundMedians(t))
			r.P, r.Ratio = pair.P, pair.Ratio
			if !pair.Differ() {
				r.Verdict = "tied"
			} else if pair.Ratio < 1 {
				r.Verdict = "faster, within the tie of the fastest"
			}
		case len(c.Best.Windows) > 0: // its one window was at another time, with other buffers: it may even be shorter
			r.Verdict = "measured apart"
		case t.LoUS <= c.Best.HiUS:
			r.Verdict = "overlaps"
		}
		if list = append(list, r); len(list) == runnersMost {
			break
		}
	}
	return list
}

func failures(trials []store.Trial) (list []Failure) {
	for _, class := range store.Classes {
		if class == store.OK || class == store.Cut {
			continue
		}
		f := Failure{Class: string(class)}
		for _, t := range trials {
			if t.Class != class {
				continue
			}
			if f.Count++; f.Count == 1 {
				f.Example = fmt.Sprintf("%s: %.160s", t.Candidate.ID(), t.Message)
			}
		}
		if f.Count > 0 {
			list = append(list, f)
		}
	}
	return list
}

func reasons(rejected []plan.Rejected) (list []Reason) {
	for _, r := range rejected {
		i := slices.IndexFunc(list, func(x Reason) bool { return x.Reason == r.Reason })
		if i < 0 {
			i = len(list)
			list = append(list, Reason{Reason: r.Reason})
		}
		list[i].Count++
	}
	slices.SortStableFunc(list, func(a, b Reason) int { return cmp.Compare(b.Count, a.Count) })
	return list
}

// effects are the parameters that have more than one value, the most important first.
func effects(trials []store.Trial) (list []Effect) {
	var right []store.Trial
	for _, t := range trials {
		if (t.Class == store.OK || t.Class == store.Cut) && t.MedianUS > 0 {
			right = append(right, t)
		}
	}
	var names []string
	value := func(t store.Trial, name string) (int, bool) {
		for _, p := range t.Candidate.Params {
			if p.Name == name {
				return p.Value, true
			}
		}
		return 0, false
	}
	for _, t := range right {
		for _, p := range t.Candidate.Params {
			if !slices.Contains(names, p.Name) {
				names = append(names, p.Name)
			}
		}
	}
	for _, name := range names {
		groups := map[int][]float64{}
		for _, t := range right {
			if v, ok := value(t, name); ok {
				groups[v] = append(groups[v], math.Log(t.MedianUS))
			}
		}
		if len(groups) < 2 {
			continue
		}
		e := Effect{Param: name, Importance: explained(groups)}
		for v := range groups {
			e.Values = append(e.Values, v)
		}
		slices.Sort(e.Values)
		for _, v := range e.Values {
			e.BestUS = append(e.BestUS, math.Exp(slices.Min(groups[v])))
		}
		list = append(list, e)
	}
	slices.SortStableFunc(list, func(a, b Effect) int { return cmp.Compare(b.Importance, a.Importance) })
	return list
}

// explained is the share of the variance that lies between groups.
func explained(groups map[int][]float64) float64 {
	sum, n := 0.0, 0.0
	for _, v := range groups {
		for _, x := range v {
			sum += x
			n++
		}
	}
	mean, between, total := sum/n, 0.0, 0.0
	for _, v := range groups {
		s := 0.0
		for _, x := range v {
			s += x
			total += (x - mean) * (x - mean)
		}
		m := s / float64(len(v))
		between += float64(len(v)) * (m - mean) * (m - mean)
	}
	if total == 0 {
		return 0
	}
	return between / total
}
