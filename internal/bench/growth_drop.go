package bench

import (
	"fmt"
	"strings"

	"github.com/kvloom/kvloom/specs"
)

// DropGrowth names the preset of how eviction's time grows.
const DropGrowth = "drop-growth"

// dropContexts are the prompts of the growth table, alone in a batch.
var dropContexts = []int{4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20}

// dropBatches are batches of prompts of mixed lengths, each of which dropContexts measures alone.
var dropBatches = [][]int{
	{128 << 10, 4 << 10},
	{64 << 10, 8 << 10, 32 << 10, 4 << 10},
	{4 << 10, 32 << 10, 8 << 10, 64 << 10, 16 << 10, 4 << 10, 32 << 10, 8 << 10},
	{16 << 10, 4 << 10, 8 << 10, 32 << 10, 4 << 10, 8 << 10, 64 << 10, 16 << 10, 4 << 10, 8 << 10, 32 << 10, 16 << 10, 4 << 10, 64 << 10, 8 << 10, 4 << 10},
}

var dropFamilies = []string{DropObserveScore, DropChain}

// dropJob evicts prompts to 5 %, fast.
func dropJob(lens []int, contiguous bool) (Job, error) {
	s, err := specs.Resolve(growthModels[0])
	if err != nil {
		return Job{}, err
	}
	s.DropKV.Precision, s.DropKV.Budget = "fast", specs.Budget{Ratio: 0.05}
	j := Job{Spec: s, Families: dropFamilies, Contiguous: contiguous, Brisk: true}
	for _, n := range lens {
		j.Workload.Context = max(j.Workload.Context, n)
	}
	if j.Workload.Batch = len(lens); len(lens) > 1 {
		j.Lens = lens
	}
	return j, nil
}

// DropGrowthJobs are prompts of 4K to 1M tokens, contiguous and paged, and paged batches of mixed lengths.
func DropGrowthJobs() (jobs []Job, err error) {
	add := func(lens []int, contiguous bool) {
		j, fault := dropJob(lens, contiguous)
		if jobs = append(jobs, j); err == nil {
			err = fault
		}
	}
	for _, n := range dropContexts {
		add([]int{n}, true)
		add([]int{n}, false)
	}
	for _, lens := range dropBatches {
		add(lens, false)
	}
	return suited(jobs), err
}

// DropGrowthTable is the growth of eviction as markdown: time a token over prompts, contiguous and paged, and batches beside the sum of their
// parts.
func DropGrowthTable(results []Result) (string, error) {
	l := newLookup(results)
	found := func(family string, lens []int, contiguous bool) (float64, error) {
		j, err := dropJob(lens, contiguous)
		if err != nil {
			return 0, err
		}
		r, _ := l.find(family, suited([]Job{j})[0])
		return r.MedianUS, nil
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s, microseconds, medians over graph replays with a cold L2; %s, precision fast, 5 %% kept.\n\n", l.card, growthModels[0])
	head := []string{"prompt"}
	for _, f := range dropFamilies {
		head = append(head, f, "paged", "paged / contiguous", "ns a token")
	}
	var rows [][]string
	for _, n := range dropContexts {
		row := []string{tokens(n)}
		for _, f := range dropFamilies {
			whole, err := found(f, []int{n}, true)
			if err != nil {
				return "", err
			}
			paged, err := found(f, []int{n}, false)
			if err != nil {
				return "", err
			}
			row = append(row, us(whole), us(paged), ratio(paged, whole), ratio(1000*whole, float64(n)))
		}
		rows = append(rows, row)
	}
	b.WriteString(markdown(head, rows))
	head, rows = []string{"paged batch", "tokens"}, nil
	for _, f := range dropFamilies {
		head = append(head, f, "sum of its prompts", "batch / sum")
	}
	for _, lens := range dropBatches {
		all := 0
		for _, n := range lens {
			all += n
		}
		row := []string{fmt.Sprintf("%d mixed", len(lens)), tokens(all)}
		for _, f := range dropFamilies {
			together, err := found(f, lens, false)
			if err != nil {
				return "", err
			}
			sum := 0.0
			for _, n := range lens {
				alone, err := found(f, []int{n}, false)
				if err != nil {
					return "", err
				}
				if sum += alone; alone == 0 {
					sum = 0
					break
				}
			}
			row = append(row, us(together), us(sum), ratio(together, sum))
		}
		rows = append(rows, row)
	}
	fmt.Fprintf(&b, "\n%s", markdown(head, rows))
	return b.String(), nil
}

// ratio is a cell: a quotient, or a dash where a part was not measured.
func ratio(a, b float64) string {
	if a == 0 || b == 0 {
		return "-"
	}
	return fmt.Sprintf("%.2f", a/b)
}
