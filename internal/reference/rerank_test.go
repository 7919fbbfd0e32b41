package reference

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestRerank: a factor of 1 is the plain choice, one that covers every page is the exact choice, between them every chosen page is
// a candidate and no candidate left out is better by the values that the definition gives.
func TestRerank(t *testing.T) {
	rng := rand.New(rand.NewPCG(7, 8))
	const n, group = 60, 3
	for _, rule := range []Combine{ShareAverage, GroupMax, GroupMass, PeakNormalised, PerHead} {
		heads := group
		if rule == PerHead {
			heads = 1
		}
		exact, estimate := make([][]float64, heads), make([][]float64, heads)
		for g := range heads {
			for range n {
				x := 3 * rng.NormFloat64()
				exact[g], estimate[g] = append(exact[g], x), append(estimate[g], x+rng.NormFloat64())
			}
		}
		b := Budget{Slots: 10, SinkPages: 2, RecentPages: 1}
		if diff := cmp.Diff(b.Choose(rule.Values(estimate)), b.Rerank(rule, estimate, exact, 1, nil)); diff != "" {
			t.Errorf("%s, factor 1: %s", rule, diff)
		}
		if diff := cmp.Diff(b.Choose(rule.Values(exact)), b.Rerank(rule, estimate, exact, 6, nil)); diff != "" {
			t.Errorf("%s, every page a candidate: %s", rule, diff)
		}
		wide := b
		wide.Slots = 15
		candidates := wide.Choose(rule.Values(estimate))
		mixed := make([][]float64, heads)
		for g := range heads {
			mixed[g] = slices.Clone(estimate[g])
			for _, j := range candidates {
				mixed[g][j] = exact[g][j]
			}
		}
		values := rule.Values(mixed)
		got := b.Rerank(rule, estimate, exact, 1.5, nil)
		if len(got) != 10 || !slices.IsSorted(got) || got[0] != 0 || got[1] != 1 || got[9] != n-1 {
			t.Fatalf("%s: %v", rule, got)
		}
		for _, j := range candidates {
			if _, in := slices.BinarySearch(got, j); in {
				continue
			}
			for _, i := range got[2:9] {
				if values[j] > values[i] {
					t.Errorf("%s: candidate %d (%g) is left out, %d (%g) chosen", rule, j, values[j], i, values[i])
				}
			}
		}
		allowed := make([]bool, n)
		for j := 20; j < 40; j++ {
			allowed[j] = true
		}
		for _, j := range b.Rerank(rule, estimate, exact, 1.5, allowed)[2:9] {
			if !allowed[j] {
				t.Errorf("%s: page %d may not be chosen", rule, j)
			}
		}
	}
	for factor, want := range map[float64]int{1: 10, 1.5: 15, 2: 20, 3: 30, 1.01: 11} {
		if got := (Budget{Slots: 10}).Candidates(factor); got != want {
			t.Errorf("%g x 10 pages: %d candidates, want %d", factor, got, want)
		}
	}
	nan := []float64{math.NaN(), 1, math.NaN(), 2, 0, math.NaN()}
	if diff := cmp.Diff([]int32{0, 3, 5}, (Budget{Slots: 3, SinkPages: 1, RecentPages: 1}).Rerank(ShareAverage, [][]float64{nan}, [][]float64{nan}, 2, nil)); diff != "" {
		t.Errorf("pages that are NaN: %s", diff)
	}
}

// TestRerankGroups: groups of one page are pages; where all groups are proposed, exact scores choose; and a page is among the candidates that
// its own estimate would not propose, because its neighbour's proposes both.
func TestRerankGroups(t *testing.T) {
	rng := rand.New(rand.NewPCG(11, 3))
	const pages, heads = 41, 3 // the last group is short
	row := func() (r [][]float64) {
		for range heads {
			one := make([]float64, pages)
			for i := range one {
				one[i] = 3 * rng.NormFloat64()
			}
			r = append(r, one)
		}
		return r
	}
	b := Budget{Slots: 6, SinkPages: 1, RecentPages: 2}
	for range 50 {
		estimate, exact := row(), row()
		for _, rule := range []Combine{ShareAverage, GroupMax, GroupMass, PeakNormalised} {
			if diff := cmp.Diff(b.Rerank(rule, estimate, exact, 2, nil), b.RerankGroups(rule, estimate, exact, 2, 1)); diff != "" {
				t.Fatalf("%s, groups of one page (-Rerank +RerankGroups):\n%s", rule, diff)
			}
			for _, n := range []int{2, 4} {
				if diff := cmp.Diff(b.Choose(rule.Values(exact)), b.RerankGroups(rule, estimate, exact, 7, n)); diff != "" {
					t.Fatalf("%s, all groups of %d (-exact +got):\n%s", rule, n, diff)
				}
				got := b.RerankGroups(rule, estimate, exact, 1.5, n)
				if len(got) != b.Slots || got[0] != 0 || got[4] != pages-2 || got[5] != pages-1 {
					t.Fatalf("%s, groups of %d: %v", rule, n, got)
				}
			}
		}
	}
	low := make([]float64, 12)
	estimate, exact := append([]float64{}, low...), append([]float64{}, low...)
	estimate[6], exact[7] = 9, 9
	if got := (Budget{Slots: 1}).RerankGroups(ShareAverage, [][]float64{estimate}, [][]float64{exact}, 2, 2); got[0] != 7 {
		t.Errorf("page %d is chosen, 7 is best and lies beside what is proposed", got[0])
	}
}
