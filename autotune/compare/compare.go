// Package compare tells whether a later tuning is slower than an earlier one: by a rank test where samples were kept, by intervals where
// they were not.
package compare

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"golang.org/x/perf/benchmath"

	"github.com/kvloom/kvloom/gen/plan"
)

// Key is what is compared: one work of a model at one workload.
type Key struct {
	Model   string `json:"model"`
	Family  string `json:"family"` // a stem, dense or chain
	Detail  string `json:"detail,omitempty"`
	Context int    `json:"context"`
	Batch   int    `json:"batch"`
}

func (k Key) String() string {
	s := fmt.Sprintf("%s %s %dx%d", k.Model, k.Family, k.Context, k.Batch)
	if k.Detail != "" {
		s += " " + k.Detail
	}
	return s
}

// Entry is the kernel that one side has for a key. Times are microseconds; Samples is empty where only the interval was kept.
type Entry struct {
	Key       Key
	Candidate string
	Form      plan.Form
	Params    []plan.Param
	MedianUS  float64
	LoUS      float64
	HiUS      float64
	Samples   []float64
}

// Verdict is the outcome for one key.
type Verdict string

// The verdicts. Missing and New have nothing to compare with.
const (
	Same      Verdict = "SAME"      // the difference is surely below the threshold
	Faster    Verdict = "FASTER"    // surely, and by at least the threshold
	Slower    Verdict = "SLOWER"    // surely, and by at least the threshold
	Ambiguous Verdict = "AMBIGUOUS" // the measurements do not say
	Missing   Verdict = "MISSING"   // the new side does not have it
	New       Verdict = "NEW"       // the old side does not have it
)

// Rule is how verdicts are made.
type Rule struct {
	Threshold float64 `json:"threshold"` // share of the old time that matters
	Level     float64 `json:"level"`     // of the whole comparison: the chance that any equal pair is called different
}

// Usual is what the command uses unless told otherwise.
var Usual = Rule{Threshold: 0.02, Level: 0.05}

// Line is one key compared.
type Line struct {
	Key
	Verdict      Verdict `json:"verdict"`
	OldUS        float64 `json:"old_us"`
	NewUS        float64 `json:"new_us"`
	Ratio        float64 `json:"ratio"`    // new / old, below 1 is faster
	RatioLo      float64 `json:"ratio_lo"` // 95 % interval
	RatioHi      float64 `json:"ratio_hi"`
	P            float64 `json:"p"`      // Mann-Whitney, two-sided; 1 where there are no samples
	PHolm        float64 `json:"p_holm"` // corrected for all comparisons of this run
	Method       string  `json:"method"` // "rank test" or "interval"
	OldCandidate string  `json:"old_candidate"`
	NewCandidate string  `json:"new_candidate"`
}

// Sets compares two sides key by key, in the order of the old side; what is new comes last.
func Sets(old, now []Entry, rule Rule) []Line {
	var lines []Line
	news := map[Key]Entry{}
	for _, e := range now {
		news[e.Key] = e
	}
	seen := map[Key]bool{}
	for _, a := range old {
		if seen[a.Key] {
			continue
		}
		seen[a.Key] = true
		b, ok := news[a.Key]
		if !ok {
			lines = append(lines, Line{Key: a.Key, Verdict: Missing, OldUS: a.MedianUS, P: 1, PHolm: 1, OldCandidate: a.Candidate})
			continue
		}
		lines = append(lines, pair(a, b))
	}
	holm(lines)
	for i := range lines {
		if lines[i].Verdict == "" {
			lines[i].Verdict = rule.verdict(lines[i])
		}
	}
	for _, b := range now {
		if !seen[b.Key] {
			seen[b.Key] = true
			lines = append(lines, Line{Key: b.Key, Verdict: New, NewUS: b.MedianUS, P: 1, PHolm: 1, NewCandidate: b.Candidate})
		}
	}
	return lines
}

// leastSamples of each side make a rank test that can be significant after correction.
const leastSamples = 6

func pair(a, b Entry) Line {
	l := Line{Key: a.Key, OldUS: a.MedianUS, NewUS: b.MedianUS, Ratio: b.MedianUS / a.MedianUS, P: 1, PHolm: 1, Method: "interval",
		OldCandidate: a.Candidate, NewCandidate: b.Candidate}
	if len(a.Samples) < leastSamples || len(b.Samples) < leastSamples {
		l.RatioLo, l.RatioHi = b.LoUS/a.HiUS, b.HiUS/a.LoUS
		return l
	}
	l.Method = "rank test"
	sample := func(values []float64) *benchmath.Sample {
		return benchmath.NewSample(slices.Clone(values), &benchmath.DefaultThresholds)
	}
	l.P = benchmath.AssumeNothing.Compare(sample(a.Samples), sample(b.Samples)).P
	l.Ratio, l.RatioLo, l.RatioHi = shift(a.Samples, b.Samples)
	return l
}

// shift is the Hodges-Lehmann estimate of the ratio of two samples, and the 95 % interval that the rank test has for it: quantiles of the
// ratios of all pairs.
func shift(a, b []float64) (ratio, lo, hi float64) {
	logs := make([]float64, 0, len(a)*len(b))
	for _, x := range a {
		for _, y := range b {
			logs = append(logs, math.Log(y/x))
		}
	}
	slices.Sort(logs)
	n, m := float64(len(a)), float64(len(b))
	k := int(math.Floor(n*m/2 - 1.96*math.Sqrt(n*m*(n+m+1)/12)))
	k = min(max(k, 0), (len(logs)-1)/2)
	middle := (logs[(len(logs)-1)/2] + logs[len(logs)/2]) / 2
	return math.Exp(middle), math.Exp(logs[k]), math.Exp(logs[len(logs)-1-k])
}

// holm corrects the probabilities of all rank tests by Holm's step-down method: the smallest is multiplied by their number, the next by
// one less, and none may be below the one before.
func holm(lines []Line) {
	var order []int
	for i, l := range lines {
		if l.Method == "rank test" {
			order = append(order, i)
		}
	}
	slices.SortStableFunc(order, func(a, b int) int { return cmp.Compare(lines[a].P, lines[b].P) })
	floor := 0.0
	for k, i := range order {
		floor = max(floor, min(1, lines[i].P*float64(len(order)-k)))
		lines[i].PHolm = floor
	}
}

func (r Rule) verdict(l Line) Verdict {
	sure := l.PHolm < r.Level
	if l.Method == "interval" {
		sure = l.RatioLo > 1 || l.RatioHi < 1
	}
	up, down := 1+r.Threshold, 1/(1+r.Threshold)
	switch {
	case math.IsNaN(l.Ratio) || math.IsInf(l.Ratio, 0) || l.Ratio <= 0:
		return Ambiguous
	case sure && l.Ratio >= up:
		return Slower
	case sure && l.Ratio <= down:
		return Faster
	case l.RatioLo > down && l.RatioHi < up:
		return Same
	}
	return Ambiguous
}

// Count counts the lines with a verdict.
func Count(lines []Line, v Verdict) (n int) {
	for _, l := range lines {
		if l.Verdict == v {
			n++
		}
	}
	return n
}
