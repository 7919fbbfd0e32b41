package bench

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// crossoverContexts are the lengths between which selecting pages may begin to pay, tokens.
var crossoverContexts = []int{3 << 10, 4 << 10, 6 << 10, 8 << 10, 12 << 10, 16 << 10, 24 << 10, 32 << 10}

// crossoverBatches are the requests of a step.
var crossoverBatches = []int{1, 8}

// CrossoverJobs measure the chain and dense attention of a spec at lengths where one overtakes the other. Lengths within the budget are left
// out: there is nothing to select.
func CrossoverJobs(s *specs.Spec) (jobs []Job) {
	for _, batch := range crossoverBatches {
		for _, n := range crossoverContexts {
			if n > s.Slots()*s.Cache.PageSize {
				jobs = append(jobs, Job{Spec: s, Workload: specs.Workload{Context: n, Batch: batch}, Families: []string{ChainFamily, dense}, Brisk: true})
			}
		}
	}
	return suited(jobs)
}

// crossoverJobs are those of the models of the growth table.
func crossoverJobs() (jobs []Job, err error) {
	for _, model := range growthModels {
		s, err := specs.Resolve(model)
		if err != nil {
			return nil, err
		}
		jobs = append(jobs, CrossoverJobs(s)...)
	}
	return jobs, nil
}

// Crossovers finds where the chain overtakes dense attention for good, for each batch: on a line between the last length at which dense was
// no slower and the next one, or the shortest length where the chain is always faster. It is rounded up to a whole page.
func Crossovers(s *specs.Spec, results []Result) (list []specs.Crossover) {
	l := newLookup(results)
	for _, batch := range crossoverBatches {
		type point struct {
			n            int
			sparse, full float64
		}
		var ps []point
		for _, j := range CrossoverJobs(s) {
			chain, ok := l.find(ChainFamily, j)
			all, too := l.find(dense, j)
			if ok && too && j.Workload.Batch == batch {
				ps = append(ps, point{j.Workload.Context, chain.MedianUS, all.MedianUS})
			}
		}
		if len(ps) == 0 {
			continue
		}
		slices.SortFunc(ps, func(a, b point) int { return a.n - b.n })
		c := specs.Crossover{Batch: batch, Least: ps[0].n, Most: ps[len(ps)-1].n}
		last := -1 // the last length at which dense was no slower
		for i, p := range ps {
			if p.full <= p.sparse {
				last = i
			}
		}
		switch {
		case last < 0:
			c.From = c.Least
		case last < len(ps)-1:
			a, b := ps[last], ps[last+1]
			lead, lag := a.sparse-a.full, b.full-b.sparse // lead may be 0, lag is not
			page := float64(s.Cache.PageSize)
			at := float64(a.n) + float64(b.n-a.n)*lead/(lead+lag)
			c.From = min(int(math.Ceil(at/page)*page), b.n)
		}
		list = append(list, c)
	}
	return list
}

// CrossoverTable is the measured lengths of a model and where the chain overtakes, as markdown.
func CrossoverTable(s *specs.Spec, results []Result) string {
	l := newLookup(results)
	var rows [][]string
	for _, n := range crossoverContexts {
		row := []string{tokens(n)}
		for _, batch := range crossoverBatches {
			j := Job{Spec: s, Workload: specs.Workload{Context: n, Batch: batch}}
			chain, ok := l.find(ChainFamily, j)
			all, too := l.find(dense, j)
			if !ok || !too {
				row = append(row, "-")
				continue
			}
			row = append(row, fmt.Sprintf("%s / %s (%.2fx)", us(chain.MedianUS), us(all.MedianUS), all.MedianUS/chain.MedianUS))
		}
		rows = append(rows, row)
	}
	head := []string{"context"}
	for _, batch := range crossoverBatches {
		head = append(head, fmt.Sprintf("batch %d: chain / dense, us", batch))
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, %s\n\n%s\n", s.Name, l.card, markdown(head, rows))
	for _, c := range Crossovers(s, results) {
		switch c.From {
		case 0:
			fmt.Fprintf(&b, "- batch %d: dense attention is faster from %s to %s tokens.\n", c.Batch, tokens(c.Least), tokens(c.Most))
		case c.Least:
			fmt.Fprintf(&b, "- batch %d: selecting pages is faster at every length measured, from %s tokens.\n", c.Batch, tokens(c.Least))
		default:
			fmt.Fprintf(&b, "- batch %d: selecting pages is faster from %d tokens.\n", c.Batch, c.From)
		}
	}
	return b.String()
}
