package bench

import (
	"fmt"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// Axis is one series of growth: what is varied, for one model, everything else standing still.
type Axis struct {
	Name     string // context, batch, budget
	Unit     string // of the values
	Title    string
	Values   []int
	Families []string
	jobs     []Job // one a value
	// step is what slopes are given for, in units of the axis.
	step int
}

const growthContext = 128 << 10 // tokens, where batch and budget vary

// growthModels are groups of 4, 8 and 16 query heads a KV head, all of 32 query heads.
var growthModels = []string{"llama-3.1-8b", "glm-4-9b-chat-1m", "glm-4-9b-chat"}

// GrowthAxes are the series of the growth table: context for each model; batch, budget and the contexts of an evicted prompt for the first one.
// Without models they are those of the docs: groups of 4, 8 and 16.
func GrowthAxes(models ...string) (axes []Axis, err error) {
	if len(models) == 0 {
		models = growthModels
	}
	contexts := []int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}
	for i, model := range models {
		s, err := specs.Resolve(model)
		if err != nil {
			return nil, err
		}
		heads := fmt.Sprintf("%s, %d/%d heads, group %d", s.Name, s.Attention.QueryHeads, s.Attention.KVHeads, s.Attention.Group())
		axes = append(axes, axis("context", "tokens", heads+", one request, budget "+fmt.Sprint(s.Locks.BudgetTokens), 1024, contexts, decoding, func(n int) Job {
			return Job{Spec: s, Workload: specs.Workload{Context: n, Batch: 1}}
		}))
		if i > 0 {
			continue
		}
		axes = append(axes,
			axis("batch", "requests", heads+", 128K tokens each, budget "+fmt.Sprint(s.Locks.BudgetTokens), 1, []int{1, 2, 4, 8, 16, 32, 64}, decoding[1:], func(n int) Job {
				return Job{Spec: s, Workload: specs.Workload{Context: growthContext, Batch: n}}
			}),
			axis("budget", "tokens", heads+", one request of 128K tokens", 1024, []int{256, 512, 1024, 2048, 4096, 8192},
				[]string{choose, attend, ChainFamily}, func(n int) Job {
					other := *s
					other.Locks.BudgetTokens = n
					return Job{Spec: &other, Workload: specs.Workload{Context: growthContext, Batch: 1}}
				}),
			axis("prompt", "tokens", heads+", eviction to 5 % of a contiguous cache", 1024, contexts[3:], []string{DropObserveScore, DropChain}, func(n int) Job {
				other := *s
				other.DropKV.Budget = specs.Budget{Ratio: 0.05}
				return Job{Spec: &other, Workload: specs.Workload{Context: n, Batch: 1}, Contiguous: true}
			}))
	}
	return axes, nil
}

func axis(name, unit, title string, step int, values []int, families []string, job func(int) Job) Axis {
	a := Axis{Name: name, Unit: unit, Title: title, Values: values, Families: families, step: step}
	for _, v := range values {
		j := job(v)
		j.Families, j.Brisk = families, true
		a.jobs = append(a.jobs, j)
	}
	return a
}

func growthJobs() ([]Job, error) { return GrowthJobs() }

// GrowthJobs are the points of all axes, each once.
func GrowthJobs(models ...string) (jobs []Job, err error) {
	axes, err := GrowthAxes(models...)
	for _, a := range axes {
		jobs = append(jobs, a.jobs...)
	}
	return distinct(suited(jobs)), err
}

// series are the points of a family on an axis that were measured.
func (a Axis) series(l lookup, family string) (xs, times []float64, last Result) {
	for i, j := range a.jobs {
		if r, ok := l.find(family, j); ok {
			xs, times, last = append(xs, float64(a.Values[i])), append(times, r.MedianUS), r
		}
	}
	return xs, times, last
}

// slopes are what a family's limits ask for a step of the axis: the difference between the last measured line's limits and the first's, over
// the steps between them.
func (a Axis) slopes(l lookup, family string) (bytes float64, name string, bound float64) {
	var first, last Result
	var from, to int
	for i, j := range a.jobs {
		r, ok := l.find(family, j)
		if !ok || r.Limits == nil {
			continue
		}
		if first.Limits == nil {
			first, from = r, a.Values[i]
		}
		last, to = r, a.Values[i]
	}
	if from == to {
		return 0, "", 0
	}
	steps := float64(to-from) / float64(a.step)
	bytes = float64(last.Bytes-first.Bytes) / last.RoofTBPerS / 1e6 / steps
	name, bound = MemoryLimit, bytes
	for _, n := range []string{ExponentialLimit, TensorLimit} {
		if us := (last.Limits[n] - first.Limits[n]) / steps; us > bound {
			name, bound = n, us
		}
	}
	return bytes, name, bound
}

// GrowthTable is the growth of every family as markdown: microseconds, then the fitted lines beside what memory and the tightest limit ask.
func GrowthTable(results []Result, models ...string) (string, error) {
	axes, err := GrowthAxes(models...)
	if err != nil {
		return "", err
	}
	l := newLookup(results)
	var b strings.Builder
	fmt.Fprintf(&b, "%s, microseconds, medians over graph replays with a cold L2.\n", l.card)
	for _, a := range axes {
		head := append([]string{a.Name}, a.Families...)
		versus := slices.Contains(a.Families, string(dense))
		if versus {
			head = append(head, "dense / chain")
		}
		if a.Name == "prompt" {
			head = append(head, "ns a token")
		}
		var rows [][]string
		for i, j := range a.jobs {
			row := []string{a.value(i)}
			found := map[string]float64{}
			for _, f := range a.Families {
				r, _ := l.find(f, j)
				found[f] = r.MedianUS
				row = append(row, us(r.MedianUS))
			}
			switch {
			case versus && found[dense] > 0 && found[ChainFamily] > 0:
				row = append(row, fmt.Sprintf("%.2f", found[dense]/found[ChainFamily]))
			case a.Name == "prompt" && found[DropChain] > 0:
				row = append(row, fmt.Sprintf("%.2f", 1000*found[DropChain]/float64(a.Values[i])))
			case len(row) < len(head):
				row = append(row, "-")
			}
			rows = append(rows, row)
		}
		fmt.Fprintf(&b, "\n### %s: %s\n\n%s\n%s", strings.ToUpper(a.Name[:1])+a.Name[1:], a.Title, markdown(head, rows), a.fits(l))
	}
	return b.String(), nil
}

// value is a point of the axis for a person.
func (a Axis) value(i int) string {
	if a.Name == "batch" {
		return fmt.Sprint(a.Values[i])
	}
	return tokens(a.Values[i])
}

// fits is the table of fitted lines.
func (a Axis) fits(l lookup) string {
	step := map[int]string{1: "request", 1024: "1K tokens"}[a.step]
	var rows [][]string
	for _, f := range a.Families {
		xs, times, _ := a.series(l, f)
		fit, ok := fitLine(xs, times)
		if !ok {
			continue
		}
		slope := fit.Slope * float64(a.step)
		bytes, name, bound := a.slopes(l, f)
		row := []string{f, fmt.Sprintf("%.2f", fit.Intercept), fmt.Sprintf("%.4f", slope), fmt.Sprintf("%.1f %%", 100*fit.Worst), "-", "-"}
		if bytes > 0 {
			row[4] = fmt.Sprintf("%.4f (%.2fx)", bytes, slope/bytes)
		}
		if bound > 0 {
			row[5] = fmt.Sprintf("%s %.4f (%.2fx)", name, bound, slope/bound)
		}
		rows = append(rows, row)
	}
	if len(rows) == 0 {
		return ""
	}
	return markdown([]string{"fitted", "intercept, us", "slope, us per " + step, "worst miss", "bytes / roof", "tightest limit"}, rows)
}
