package verify

import (
	"bytes"
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

const dropScoreMetric = "token score, relative"

// DropScoreBound is the relative error that a token's score may have, given log-sum-exp and outputs, beside what f32 arithmetic
// cannot do better: the noise that the reference reckons for each score, of logits, of weights near 1 and of distances near 0.
const DropScoreBound = 1e-4

func init() { register(plan.DropScore, checkDropScore) }

// checkDropScore compares drop_score with the float64 score of the same log-sum-exp and outputs at every launch of every case: each
// token of each head, those of the window included; tokens behind the prompt must keep their poison, and a second launch must give
// the same bytes.
func checkDropScore(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachDropCase(ctx, e, s, c, o.Seed, dropScoreMetric, DropScoreBound, dropCases(s, o), func(p *DropProblem, k *Kernel, a *Arena) dropRun {
		return &dropScoreRun{DropProblem: p, env: e, kernel: k, arena: a}
	})
}

// dropScoreRun is one case on the device.
type dropScoreRun struct {
	*DropProblem
	env            *Env
	kernel         *Kernel
	arena          *Arena
	device         *DeviceProblem
	a, lse, scores *Buffer
	aRows          Rows // of a: [batch, row, dim]
	lseRows        Rows // of the log-sum-exps: [batch, q head, window]
	rows           Rows // of the scores
	args           kernel.DropScoreArgs
}

func (r *dropScoreRun) prepare() error {
	d, err := r.Upload(r.arena)
	if err != nil {
		return err
	}
	r.device, r.rows = d, r.scoreRows()
	q, qs, err := r.uploadWindow(r.arena)
	if err != nil {
		return err
	}
	r.layOutputs()
	if r.a, err = r.arena.Alloc("a", r.aRows.Elements()*r.outputBytes()); err != nil {
		return err
	}
	if r.lse, err = r.arena.Alloc("lse", 4*r.lseRows.Elements()); err != nil {
		return err
	}
	if r.scores, err = r.arena.Alloc("scores", 4*r.rows.Elements()); err != nil {
		return err
	}
	w := int64(r.Window.Window)
	r.args = kernel.DropScoreArgs{
		Cache: r.Args(d), Q: q.Ptr(), A: r.a.Ptr(), LSE: r.lse.Ptr(), Scores: r.scores.Ptr(),
		QBatchStride: qs.batch, QHeadStride: qs.head, QRowStride: qs.row,
		ABatchStride: r.aRows.BatchStride, AHeadStride: w * r.aRows.RowStride, ARowStride: r.aRows.RowStride,
		LSEBatchStride: r.lseRows.BatchStride, LSEHeadStride: r.lseRows.RowStride,
		ScoreBatchStride: r.rows.BatchStride, ScoreHeadStride: r.rows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap), Eps: float32(r.Scoring.Eps),
	}
	if r.Scoring.Rule == reference.KeyDiff {
		r.args.Q, r.args.LSE, r.args.AHeadStride = 0, 0, r.aRows.RowStride
	}
	return nil
}

// layOutputs decides where a and the log-sum-exps lie; KeyDiff's anchor is one row a KV head.
func (r *dropScoreRun) layOutputs() {
	rows := r.Window.Heads * r.Window.Window
	if r.Scoring.Rule == reference.KeyDiff {
		rows = r.Cache.KVHeads
	}
	r.aRows = r.Rows(rows, r.Cache.HeadDim, int(r.outputBytes()))
	r.lseRows = r.Rows(r.Window.Heads, r.Window.Window, 4)
}

// outputBytes is the size of one element of a.
func (p *DropProblem) outputBytes() int64 {
	if p.Fast && p.Scoring.Rule != reference.KeyDiff {
		return 2
	}
	return 4
}

// roundOutput is a as it is handed from one kernel to the next.
func (p *DropProblem) roundOutput(x float64) float64 {
	if p.outputBytes() == 2 {
		return p.Cache.DType.Compute().Round(x)
	}
	return float64(float32(x))
}

func (r *dropScoreRun) enqueue(s device.Stream) error {
	return Enqueue(r.kernel, s, r.env.LaunchProblem(r.Problem), &r.args)
}

func (r *dropScoreRun) once(t *Tally, graph *Replay, at int) error {
	r.SetLaunch(at)
	if err := r.device.WriteLens(); err != nil {
		return err
	}
	heads := r.observe()
	if err := r.give(heads); err != nil {
		return err
	}
	var first []byte
	for try := range 2 {
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
		if try == 1 && !bytes.Equal(first, data) {
			return errors.New("a second launch gave other bytes: the kernel is not repeatable")
		}
		first = data
	}
	live := func(b, _, column int) bool { return column < int(r.Cache.SeqLens[b]) }
	if err := errors.Join(r.arena.Check(), r.rows.Untouched(first, 4, live)); err != nil {
		return err
	}
	got := Float32s(first)
	for i, h := range heads {
		b, head := i/r.Cache.KVHeads, i%r.Cache.KVHeads
		r.compare(t, at, b, head, got[r.rows.At(b, head):], r.Scoring.Scores(h.tokens, h.rows, h.anchor))
	}
	return nil
}

// observe makes every head's log-sum-exps and outputs as they are handed over: rounded. [batch, kv head].
func (p *DropProblem) observe() []dropHead {
	var heads []dropHead
	for b := range p.Cache.Batch() {
		for h := range p.Cache.KVHeads {
			head := p.head(b, h)
			for i := range head.rows {
				head.rows[i].LSE = float64(float32(head.rows[i].LSE))
				for d, x := range head.rows[i].Out {
					head.rows[i].Out[d] = p.roundOutput(x)
				}
			}
			for d, x := range head.anchor {
				head.anchor[d] = float64(float32(x))
			}
			heads = append(heads, head)
		}
	}
	return heads
}

// give writes a and the log-sum-exps to the device. Rows of queries that do not exist are NaN: nobody has computed them.
func (r *dropScoreRun) give(heads []dropHead) error {
	w, dim := r.Window.Window, r.Cache.HeadDim
	a := make([]float32, r.aRows.Elements())
	lse := make([]float32, r.lseRows.Elements())
	for _, x := range [][]float32{a, lse} {
		for i := range x {
			x[i] = float32(math.NaN())
		}
	}
	for i, h := range heads {
		b, kvHead := i/r.Cache.KVHeads, i%r.Cache.KVHeads
		for d, x := range h.anchor {
			a[r.aRows.At(b, kvHead)+int64(d)] = float32(x)
		}
		for n, row := range h.rows {
			if row.Limit < 0 {
				continue
			}
			head := kvHead*r.Group + n/w
			lse[r.lseRows.At(b, head)+int64(n%w)] = float32(row.LSE)
			for d, x := range row.Out[:dim] {
				a[r.aRows.At(b, head*w+n%w)+int64(d)] = float32(x)
			}
		}
	}
	data := BytesOfFloat32(a)
	if r.outputBytes() == 2 {
		bits := make([]uint16, len(a))
		for i, x := range a {
			bits[i] = r.Cache.DType.Compute().Bits(float64(x))
		}
		data = BytesOfUint16(bits)
	}
	return errors.Join(r.a.Write(data), r.a.Freeze(), r.lse.Write(BytesOfFloat32(lse)), r.lse.Freeze())
}

func (r *dropScoreRun) compare(t *Tally, at, b, head int, got []float32, want reference.DropScores) {
	for j, w := range want.Score {
		t.Add(dropError(float64(got[j]), w, want.Noise[j], DropScoreBound), DropScoreBound, func() string {
			return fmt.Sprintf("launch %d, request %d, KV head %d, token %d: %g, reference %g, noise %g", at, b, head, j, got[j], w, want.Noise[j])
		})
	}
}

// dropError is the distance of a score from the reference's, relative to the score and, as bound has it, its noise. Equal infinities and two NaN are
// no distance. A reference noise that is not finite, of values that are not, asks only that the score be not finite either.
func dropError(got, want, noise, bound float64) float64 {
	switch {
	case math.IsNaN(got) && math.IsNaN(want), got == want:
		return 0
	case math.IsInf(want, 0) && (math.IsNaN(got) || math.IsInf(got, 0)):
		return 0
	case math.IsNaN(got) || math.IsNaN(want):
		return math.Inf(1)
	}
	return math.Abs(got-want) / (math.Abs(want) + noise/bound)
}
