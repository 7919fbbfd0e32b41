package report

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvloom/kvloom/autotune/store"
	"github.com/kvloom/kvloom/gen/plan"
)

func params(warps, stages int) plan.Candidate {
	return plan.Candidate{Family: plan.PageScore, Params: []plan.Param{{Name: "warps", Value: warps}, {Name: "stages", Value: stages}, {Name: "bulk", Value: 0}}}
}

// Warps decide, stages hardly matter, a parameter with one value and failures say nothing.
func TestEffects(t *testing.T) {
	var trials []store.Trial
	for _, warps := range []int{4, 8} {
		for stages := range 3 {
			trials = append(trials, store.Trial{Class: store.OK, Candidate: params(warps, stages), MedianUS: float64(warps) * (1 + 0.001*float64(stages))})
		}
	}
	trials = append(trials, store.Trial{Class: store.Wrong, Candidate: params(16, 0)})
	got := effects(trials)
	if len(got) != 2 || got[0].Param != "warps" || got[0].Importance < 0.99 || got[1].Importance > 0.01 {
		t.Errorf("effects %+v", got)
	}
	if d := cmp.Diff([]int{4, 8}, got[0].Values); d != "" || math.Abs(got[0].BestUS[1]-8) > 1e-9 {
		t.Errorf("best by value %v %s", got[0].BestUS, d)
	}
	if explained(map[int][]float64{1: {2, 2}, 2: {2}}) != 0 {
		t.Error("equal times are explained by nothing")
	}
}

func TestReasonsAndFailures(t *testing.T) {
	got := reasons([]plan.Rejected{{Reason: "a"}, {Reason: "b"}, {Reason: "b"}})
	if d := cmp.Diff([]Reason{{"b", 2}, {"a", 1}}, got); d != "" {
		t.Errorf("the most frequent first (-want +got):\n%s", d)
	}
	f := failures([]store.Trial{{Class: store.Hang, Message: "m", Candidate: params(4, 1)}, {Class: store.Wrong}, {Class: store.Wrong}, {Class: store.OK}, {Class: store.Cut}})
	if len(f) != 2 || f[0].Class != "wrong" || f[0].Count != 2 || f[1].Example != "page_score  warps=4 stages=1 bulk=0: m" {
		t.Errorf("failures %+v", f)
	}
}

// The curve of a family begins where each of its workloads has a right trial, also where another's first trial was its best.
func TestMeanCurve(t *testing.T) {
	inf := math.Inf(1)
	got := meanCurve([][]float64{{inf, 4, 1}, {1, 1, 1, 1}})
	if len(got) != 3 || got[0].X != 2 || math.Abs(got[0].Y-100*(math.Sqrt(1.04*1.01)-1)) > 1e-9 || got[2].X != 4 || math.Abs(got[2].Y-1) > 1e-9 {
		t.Errorf("curve %v; want 2.49 at 2 trials, 1 from 3", got)
	}
	if got := meanCurve([][]float64{{inf, 21}, {0, 0}}); len(got) != 1 || got[0].X != 2 || math.Abs(got[0].Y-10) > 1e-9 {
		t.Errorf("curve %v; want 10 at 2 trials", got)
	}
	if xy := meanCurve(nil); xy != nil {
		t.Errorf("no curves: %v", xy)
	}
}
