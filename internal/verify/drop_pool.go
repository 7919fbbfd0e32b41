package verify

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const poolMetric = "pooled, relative"

// PoolBound is the relative error of a mean of at most 63 values of one sign; a maximum has none.
const PoolBound = 1e-5

func init() { register(plan.DropPool, checkDropPool) }

// checkDropPool compares drop_pool with the float64 pool of the same scores: every token of each prompt, pinned ones +inf.
func checkDropPool(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, poolMetric, valueCases(o, s.DropKV.Window), func(k *Kernel, cs valueCase) []Result {
		a, t := e.NewArena(), NewTally(cs.Name, poolMetric, PoolBound)
		p := newValueProblem(cs, s.Cache.PageSize, o.Seed)
		t.Err(errors.Join(poolCase(e, s, k, p, a, t), a.Free()))
		return []Result{t.Result()}
	})
}

func poolCase(e *Env, s *specs.Spec, k *Kernel, p *valueProblem, a *Arena, t *Tally) error {
	scores, err := a.Input("scores", BytesOfFloat32(p.values))
	if err != nil {
		return err
	}
	lens, err := a.Alloc("seq_lens", int64(4*p.rows.Batch))
	if err != nil {
		return err
	}
	out := p.rows
	out.RowStride += 3
	out.BatchStride = int64(p.Heads) * out.RowStride
	pooled, err := a.Alloc("pooled", 4*out.Elements())
	if err != nil {
		return err
	}
	args := kernel.DropPoolArgs{Scores: scores.Ptr(), SeqLens: lens.Ptr(), Pooled: pooled.Ptr(), ScoreBatchStride: p.rows.BatchStride, ScoreHeadStride: p.rows.RowStride,
		PooledBatchStride: out.BatchStride, PooledHeadStride: out.RowStride, Batch: int32(p.rows.Batch), KVHeads: int32(p.Heads), MaxTokens: int32(p.maxTokens),
		Sinks: int32(s.DropKV.SinkTokens)}
	pool := reference.DropPool{Kind: s.DropKV.Pool.Kind, Width: s.DropKV.Pool.Width}
	problem := p.launch(e, s.Cache.PageSize, 1)
	enqueue := func(stream device.Stream) error { return Enqueue(k, stream, problem, &args) }
	return replayed(e, a, p.launches(), lens, []*Buffer{pooled}, enqueue, func(at int, live []int, data [][]byte) error {
		if err := out.Untouched(data[0], 4, func(b, _, column int) bool { return column < live[b] }); err != nil {
			return err
		}
		got := Float32s(data[0])
		for b, n := range live {
			for h := range p.Heads {
				for j, want := range pool.Pool(p.head(b, h, n), s.DropKV.Window, s.DropKV.SinkTokens) {
					g := float64(got[out.At(b, h)+int64(j)])
					bound := PoolBound
					if pool.Kind != "avg" {
						bound = 0
					}
					t.Add(poolError(g, want), bound, func() string {
						return fmt.Sprintf("launch %d, request %d, KV head %d, token %d of %d: %g, reference %g", at, b, h, j, n, g, want)
					})
				}
				t.Passed(1)
			}
		}
		return nil
	})
}

// poolError is relative; equal infinities and two NaN are no distance, and the sum of opposite infinities is a NaN in any order.
func poolError(got, want float64) float64 {
	switch {
	case math.IsNaN(got) && math.IsNaN(want), got == want:
		return 0
	case want == 0 || math.IsNaN(got) || math.IsNaN(want):
		return math.Inf(1)
	}
	return math.Abs(got-want) / math.Abs(want)
}
