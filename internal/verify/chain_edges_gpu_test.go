package verify_test

import (
	"fmt"
	"runtime"
	"strings"
	"testing"

	"github.com/kvloom/kvloom/autotune/measure"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/gputest"
	"github.com/kvloom/kvloom/internal/verify"
	"github.com/kvloom/kvloom/runtime/nvrtc/nvrtctest"
	"github.com/kvloom/kvloom/specs"
)

// TestChainEdges times a decoding layer with kernels that start early and with ordinary edges, and all parts of it: early starts must not
// lose. The table is in the log.
func TestChainEdges(t *testing.T) {
	if testing.Short() {
		t.Skip("takes seconds of a GPU")
	}
	dev := gputest.Require(t)
	l := verify.NewLoader(t.Context(), dev, nvrtctest.Compiler(t))
	defer func() {
		if err := l.Unload(); err != nil {
			t.Error(err)
		}
	}()
	cases := []struct {
		model   string
		context int
	}{
		{"llama-3.1-8b", 131072}, {"glm-4-9b-chat-1m", 524288}, {"glm-4-9b-chat", 524288},
	}
	of := func(model string, w specs.Workload) *specs.Spec {
		s, err := specs.Model(model)
		if err != nil {
			t.Fatal(err)
		}
		s.Workloads = []specs.Workload{w} // defaults follow the longest row
		return s
	}
	var ahead []plan.Candidate
	for _, tc := range cases {
		s := of(tc.model, specs.Workload{Context: tc.context, Batch: 1})
		for _, f := range []plan.Family{plan.PageScore, plan.PageSelect, plan.PageAttend} {
			ahead = append(ahead, plan.ForFamily(f, s, plan.Targets["sm_90a"]).Candidates[0])
		}
		ahead = append(ahead, plan.ForFamily(plan.PageSelectAttend, s, plan.Targets["sm_90a"]).Candidates...)
	}
	defer l.Prefetch(ahead, runtime.NumCPU())()
	for _, tc := range cases {
		w := specs.Workload{Context: tc.context, Batch: 1}
		s := of(tc.model, w)
		rig, err := measure.NewRig(dev, s, w)
		if err != nil {
			t.Fatal(err)
		}
		p := plan.New(s, plan.Targets["sm_90a"])
		var steps []*measure.Step
		for _, f := range []plan.Family{plan.PageScore, plan.PageSelect, plan.PageAttend} {
			c := p.Of(f).Candidates[0]
			fn, err := l.Compile(c)
			if err != nil {
				t.Fatal(err)
			}
			step, err := rig.Step(measure.Work(f), c, fn)
			if err != nil {
				t.Fatal(err)
			}
			steps = append(steps, step)
		}
		var whole [2]float64
		for from := range steps {
			for to := from + 1; to <= len(steps); to++ {
				var line strings.Builder
				fmt.Fprintf(&line, "%s %d, links %d to %d:", tc.model, tc.context, from, to-1)
				for early, name := range []string{"ordinary", "early"} {
					var links []*measure.Step
					for _, step := range steps[from:to] {
						if early == 0 {
							step = step.Ordinary()
						}
						links = append(links, step)
					}
					timing := measure.Usual
					timing.Least, timing.Most = 10, 20
					samples, _, err := rig.Time(measure.Chain(links...), timing)
					if err != nil {
						t.Fatal(err)
					}
					whole[early] = measure.Summarise(samples).Median
					fmt.Fprintf(&line, " %s %.2f us", name, whole[early])
				}
				t.Log(line.String())
			}
			if from == 0 && whole[1] > 1.02*whole[0] {
				t.Errorf("%s at %d tokens: %.2f us with early starts, %.2f without", tc.model, tc.context, whole[1], whole[0])
			}
		}
		edgesOfFused(t, rig, s, l, tc.model, steps[0])
		if err := rig.Close(); err != nil {
			t.Error(err)
		}
	}
}

// edgesOfFused times every shape of the launch that selects and attends, alone and behind page_score.
func edgesOfFused(t *testing.T, rig *measure.Rig, s *specs.Spec, l *verify.Loader, model string, score *measure.Step) {
	t.Helper()
	for _, c := range plan.ForFamily(plan.PageSelectAttend, s, plan.Targets["sm_90a"]).Candidates {
		fn, err := l.Compile(c)
		if err != nil {
			t.Fatal(err)
		}
		step, err := rig.Step(measure.Work(plan.PageSelectAttend), c, fn)
		if err != nil {
			t.Fatal(err)
		}
		var line strings.Builder
		fmt.Fprintf(&line, "%s %s:", model, c.ID())
		for i, chain := range []*measure.Step{step, measure.Chain(score, step.Ordinary()), measure.Chain(score, step)} {
			timing := measure.Usual
			timing.Least, timing.Most = 10, 20
			samples, _, err := rig.Time(chain, timing)
			if err != nil {
				t.Fatal(err)
			}
			fmt.Fprintf(&line, " %s %.2f us", []string{"alone", "behind score, ordinary", "early"}[i], measure.Summarise(samples).Median)
		}
		t.Log(line.String())
	}
}
