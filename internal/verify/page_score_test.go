package verify

import (
	"context"
	"math"
	"strings"
	"testing"
	"unsafe"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// fakeScore is page_score done by the reference on the fake device, with a fault to be found. change may alter a score; it gets the
// pages that are live.
type fakeScore struct {
	fakeKernel
	spec    *specs.Spec
	problem *Problem
	silent  bool
	change  func(page, live int, score float64) float64
	extra   int // pages written beyond the live ones
}

func (k *fakeScore) Launch(s device.Stream, _ *device.Launch, params unsafe.Pointer, _ uintptr) error {
	args := *(*kernel.PageScoreArgs)(params)
	return s.(*fakeStream).do(func() error { return k.score(&args) })
}

func (k *fakeScore) score(args *kernel.PageScoreArgs) error {
	if k.silent {
		return nil
	}
	c := k.problem.Cache
	copy(c.SeqLens, Int32s(k.dev.at(args.Cache.SeqLens, 4*c.Batch())))
	want := c.Score(c.Build(k.problem.Shape), k.problem.Q, k.problem.Logits)
	for b, heads := range want.Score {
		for h, row := range heads {
			live := len(row)
			for page := range min(live+k.extra, c.MaxPages) {
				value := 1.0
				if page < live {
					value = k.change(page, live, row[page])
				}
				at := int64(b)*args.ScoreBatchStride + int64(h)*args.ScoreHeadStride + int64(page)
				copy(k.dev.at(args.Scores+devicePtr(4*at), 4), BytesOfFloat32([]float32{float32(value)}))
			}
		}
	}
	return nil
}

// TestPageScoreChecker plants faults into a kernel: the checker finds each, and nothing else.
func TestPageScoreChecker(t *testing.T) {
	right := func(_, _ int, score float64) float64 { return score }
	tests := []struct {
		name, reason, of string // of: the case
		kernel           fakeScore
		want             string
	}{
		{"right", "no false alarm", "replayed at other lengths", fakeScore{change: right}, ""},
		{"right with holes", "no false alarm at -inf", "holes", fakeScore{change: right}, ""},
		{"writes nothing", "C2", "one page", fakeScore{silent: true}, "page 0"},
		{"one page off", "C2: 0.003 nats in one page", "half-full last page", fakeScore{change: func(page, live int, score float64) float64 {
			if page == live-2 {
				score += 3e-3
			}
			return score
		}}, "error 0.003"},
		{"last page by the record", "the page still filling has no summary", "half-full last page", fakeScore{change: func(page, live int, score float64) float64 {
			if page == live-1 {
				return math.NaN()
			}
			return score
		}}, "score NaN"},
		{"hole scored", "block -1 is -inf, not the least finite score", "holes", fakeScore{change: func(_, _ int, score float64) float64 {
			return max(score, -1e30)
		}}, "reference -Inf"},
		{"writes a stale page", "pages beyond the live count belong to nobody (S6)", "no pages", fakeScore{change: right, extra: 1}, "holds nothing live"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := scoreSpec(64, 4, 2, 4, 2, "bf16", 0)
			s.Locks.Combine, s.Locks.BudgetTokens = "share_average", 64
			dev := newFake()
			k := &tt.kernel
			k.dev, k.spec = dev, s
			e := NewEnv(dev, func(plan.Candidate) (device.Function, error) { return k, nil })
			for _, c := range scoreCases(s, Options{Only: tt.of}) {
				p, err := NewProblem(s, c, 1)
				if err != nil {
					t.Fatal(err)
				}
				k.problem = p
			}
			c := plan.ForFamily(plan.PageScore, s, plan.Targets["sm_90a"]).Candidates[0]
			results, err := Check(context.Background(), e, s, c, Options{Only: tt.of, Seed: 1})
			if err != nil || len(results) != 1 {
				t.Fatalf("%v, %v", results, err)
			}
			got := results[0].Failure
			if tt.want == "" && got != "" || tt.want != "" && !strings.Contains(got, tt.want) {
				t.Errorf("%s: failure %q, want %q", tt.reason, got, tt.want)
			}
			if err := e.Close(); err != nil {
				t.Error(err)
			}
		})
	}
}
