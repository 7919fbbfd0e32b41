package verify

import (
	"context"
	"errors"
	"fmt"
	"math"
	"slices"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const dropFusedMetric = "token score from K, V and Q, relative"

// DropFastBound is the relative error that a token's score may have where outputs and logits have 16 bits, beside f32's noise.
const DropFastBound = 5e-3

func init() { register(plan.DropObserveScore, checkDropObserveScore) }

// checkDropObserveScore compares drop_observe_score with float64's own observation and score at every launch of every case, twice each:
// the second launch finds the workspace as the first one left it.
func checkDropObserveScore(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	cases := dropCases(s, o, dropFusedCases(s)...)
	return eachDropCase(ctx, e, s, c, o.Seed, dropFusedMetric, DropFastBound, cases, func(p *DropProblem, k *Kernel, a *Arena) dropRun {
		return &dropFusedRun{DropProblem: p, env: e, kernel: k, arena: a}
	})
}

// dropFusedCases are inputs of the fused form alone.
func dropFusedCases(s *specs.Spec) []Case {
	few := min(s.Attention.KVHeads, 2)
	return []Case{{Name: "rising logits", Reason: "keys far above those of the first tile: the reference is raised", KVHeads: few, Lens: []int{700, 300}, Layout: TokenMajor, Data: Rising}}
}

// dropFusedRun is one case on the device.
type dropFusedRun struct {
	*DropProblem
	env    *Env
	kernel *Kernel
	arena  *Arena
	device *DeviceProblem
	scores *Buffer
	rows   Rows // of the scores
	args   kernel.DropObserveScoreArgs
}

func (r *dropFusedRun) prepare() error {
	d, err := r.Upload(r.arena)
	if err != nil {
		return err
	}
	r.device, r.rows = d, r.scoreRows()
	q, qs, err := r.uploadWindow(r.arena)
	if err != nil {
		return err
	}
	if r.scores, err = r.arena.Alloc("scores", 4*r.rows.Elements()); err != nil {
		return err
	}
	space, err := r.kernel.Workspace(r.env.LaunchProblem(r.Problem))
	if err != nil {
		return err
	}
	r.args = kernel.DropObserveScoreArgs{
		Cache: r.Args(d), Q: q.Ptr(), Scores: r.scores.Ptr(), Workspace: space.Ptr(),
		QBatchStride: qs.batch, QHeadStride: qs.head, QRowStride: qs.row,
		ScoreBatchStride: r.rows.BatchStride, ScoreHeadStride: r.rows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap), Eps: float32(r.Scoring.Eps),
	}
	return nil
}

func (r *dropFusedRun) enqueue(s device.Stream) error {
	return Enqueue(r.kernel, s, r.env.LaunchProblem(r.Problem), &r.args)
}

func (r *dropFusedRun) once(t *Tally, graph *Replay, at int) error {
	r.SetLaunch(at)
	if err := r.device.WriteLens(); err != nil {
		return err
	}
	live := func(b, _, column int) bool { return column < int(r.Cache.SeqLens[b]) }
	for range 2 {
		if err := r.scores.Poison(); err != nil {
			return err
		}
		if err := graph.Run(); err != nil {
			return err
		}
		data, err := r.scores.Read()
		if err != nil {
			return err
		}
		if err := errors.Join(r.arena.Check(), r.rows.Untouched(data, 4, live)); err != nil {
			return err
		}
		r.judge(t, at, Float32s(data))
	}
	return nil
}

func (r *dropFusedRun) judge(t *Tally, at int, scores []float32) {
	for b := range r.Cache.Batch() {
		for h := range r.Cache.KVHeads {
			head := r.head(b, h)
			want, got := r.Scoring.Scores(head.tokens, head.rows, nil), scores[r.rows.At(b, h):]
			r.addSumNoise(want, head)
			for j, w := range want.Score {
				t.Add(dropError(float64(got[j]), w, want.Noise[j], DropFastBound), DropFastBound, func() string {
					return fmt.Sprintf("launch %d, request %d, KV head %d, token %d: %g, reference %g, noise %g", at, b, h, j, got[j], w, want.Noise[j])
				})
			}
		}
	}
}

// addSumNoise adds to each score's noise what a log-sum-exp in f32 may take from it: where one token holds nearly all of the attention,
// 1 - p is what remains of two nearly equal numbers.
func (r *dropFusedRun) addSumNoise(want reference.DropScores, head dropHead) {
	for _, sign := range []float64{-1, 1} {
		rows := slices.Clone(head.rows)
		for i := range rows {
			rows[i].LSE += sign * 0x1p-22 * (math.Abs(rows[i].LSE) + 4)
		}
		for j, moved := range r.Scoring.Scores(head.tokens, rows, nil).Score {
			if d := math.Abs(moved - want.Score[j]); !math.IsNaN(d) {
				want.Noise[j] += d
			}
		}
	}
}
