package bench

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/specs"
)

func TestCrossovers(t *testing.T) {
	s, err := specs.Model("llama-3.1-8b") // budget 2048, pages of 16
	if err != nil {
		t.Fatal(err)
	}
	jobs := CrossoverJobs(s)
	if jobs[0].Workload.Context <= 2048 {
		t.Errorf("%d tokens fit into the budget: nothing to measure", jobs[0].Workload.Context)
	}
	lines := func(chain, full func(n float64) float64) (results []Result) {
		for _, j := range jobs {
			if j.Workload.Batch != 1 {
				continue
			}
			n := float64(j.Workload.Context)
			results = append(results, Result{Card: "c", Family: ChainFamily, Shape: ShapeOf(ChainFamily, j), MedianUS: chain(n)},
				Result{Card: "c", Family: dense, Shape: ShapeOf(dense, j), MedianUS: full(n)})
		}
		return results
	}
	flat := func(us float64) func(float64) float64 { return func(float64) float64 { return us } }
	slope := func(n float64) float64 { return n / 1000 }
	dip := func(n float64) float64 { // dense wins once more at 16K
		if n == 16<<10 {
			return 1
		}
		return n / 1000
	}
	for _, c := range []struct {
		reason      string
		chain, full func(float64) float64
		want        specs.Crossover
	}{
		{"the lines cross at 10,000 tokens, and pages are whole", flat(10), slope, specs.Crossover{Batch: 1, From: 10000, Least: 3072, Most: 32768}},
		{"sparse always", flat(1), slope, specs.Crossover{Batch: 1, From: 3072, Least: 3072, Most: 32768}},
		{"dense always", flat(100), slope, specs.Crossover{Batch: 1, Least: 3072, Most: 32768}},
		{"the last length that dense wins counts", flat(10), dip, specs.Crossover{Batch: 1, From: 19520, Least: 3072, Most: 32768}},
		{"a tie at a length is dense's", flat(12.288), slope, specs.Crossover{Batch: 1, From: 12288, Least: 3072, Most: 32768}},
	} {
		results := lines(c.chain, c.full)
		if diff := cmp.Diff([]specs.Crossover{c.want}, Crossovers(s, results)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.reason, diff)
		}
		if table := CrossoverTable(s, results); !strings.Contains(table, "- batch 1: ") || !strings.Contains(table, "| 32K | ") {
			t.Errorf("%s:\n%s", c.reason, table)
		}
	}
	if got := Crossovers(s, nil); len(got) != 0 {
		t.Errorf("of nothing: %+v", got)
	}
}
