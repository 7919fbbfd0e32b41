package verify

import (
	"slices"
	"testing"

	"github.com/kvloom/kvloom/internal/reference"
)

// TestRerankJudge: the exact choice passes; the choice of the estimates, a list that is out of order and one with a page that was not
// proposed are found. So a kernel that reranks nothing would be.
func TestRerankJudge(t *testing.T) {
	s := scoreSpec(64, 16, 1, 4, 3, "bf16", 0)
	s.Locks.Combine, s.Locks.BudgetTokens, s.Locks.Rerank = "share_average", 128, 2
	s.Locks.AlwaysKeep.SinkPages, s.Locks.AlwaysKeep.RecentPages = 1, 1
	p, err := NewProblem(s, Case{Name: "judge", KVHeads: 2, Lens: []int{60*16 + 5}, Layout: TokenMajor, Data: Random}, 1)
	if err != nil {
		t.Fatal(err)
	}
	p.squeeze()
	r := &rerankRun{DeviceProblem: &DeviceProblem{Problem: p}, summaries: p.Cache.Build(p.Shape)}
	r.budget = p.proposals()
	est := r.propose()
	rows := est.Score[0][:3]
	exact := p.Cache.ExactScores
	var all [][]float64
	for h := range 3 {
		all = append(all, exact(0, 0, p.Q.Of(0, h), p.Logits))
	}
	right := p.Budget.Rerank(p.Rule, rows, all, 2, nil)
	wrong := p.Budget.Choose(p.Rule.Values(rows))
	if slices.Equal(right, wrong) {
		t.Fatal("the estimates do not mislead: the case tests nothing")
	}
	stranger := slices.Clone(right)
	for page := int32(1); ; page++ { // the first page that is no candidate
		if _, found := slices.BinarySearch(r.proposals[0][0], page); !found {
			stranger[1] = page
			slices.Sort(stranger)
			break
		}
	}
	for _, tt := range []struct {
		name string
		list []int32
		ok   bool
	}{
		{"the exact choice", right, true}, {"the choice of the estimates", wrong, false},
		{"out of order", append(slices.Clone(right[1:]), right[0]), false}, {"a page that was not proposed", stranger, false},
	} {
		tally := NewTally(tt.name, rerankMetric, EndToEndBound)
		r.judge(tally, tt.name, 0, rows, 0, r.proposals[0][0], tt.list)
		if got := tally.Result(); got.OK() != tt.ok {
			t.Errorf("%s: passed %t, want %t: %s", tt.name, got.OK(), tt.ok, got.Failure)
		}
	}
	if n := len(right); n != p.Budget.Slots || p.Rule != reference.ShareAverage {
		t.Errorf("%d pages for %d slots", n, p.Budget.Slots)
	}
}
