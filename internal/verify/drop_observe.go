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

const (
	observeMetric = "window output, relative"
	observeLSE    = "window lse, nats"
)

// Bounds of drop_observe, beside the error of its logits in f32, which the reference reckons for each row.
const (
	ObserveBound     = 3e-5 // relative to the row's largest output element
	ObserveFastBound = 1e-2 // outputs and weights in the cache's dtype
	ObserveLSEBound  = 1e-5 // nats
)

func init() { register(plan.DropObserve, checkDropObserve) }

// checkDropObserve compares drop_observe with full float64 attention of the window's queries, or KeyDiff's mean direction, at every
// launch of every case. Queries that stand before the prompt have output 0 and -inf; a second launch must give the same bytes, and
// the workspace must be left zeroed.
func checkDropObserve(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, observeMetric, dropCases(s, o), func(k *Kernel, cs Case) []Result {
		return observeCase(e, s, k, cs, o.Seed)
	})
}

func observeCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64) []Result {
	p, err := NewDropProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, observeMetric, err)}
	}
	a := e.NewArena()
	r := &observeRun{DropProblem: p, env: e, kernel: k, arena: a, tally: NewTally(c.Name, observeMetric, p.observeBound()), lseTally: NewTally(c.Name, observeLSE, ObserveLSEBound)}
	if err = r.prepare(); err == nil {
		err = e.EachLaunch(c, r.enqueue, r.once)
	}
	r.tally.Err(errors.Join(err, a.Free()))
	if err != nil || p.Scoring.Rule == reference.KeyDiff {
		return []Result{r.tally.Result()}
	}
	return []Result{r.tally.Result(), r.lseTally.Result()}
}

func (p *DropProblem) observeBound() float64 {
	if p.outputBytes() == 2 {
		return ObserveFastBound
	}
	return ObserveBound
}

// observeRun is one case on the device.
type observeRun struct {
	*DropProblem
	env             *Env
	kernel          *Kernel
	arena           *Arena
	device          *DeviceProblem
	tally, lseTally *Tally
	out, lse, space *Buffer
	args            kernel.DropObserveArgs
}

func (r *observeRun) prepare() error {
	d, err := r.Upload(r.arena)
	if err != nil {
		return err
	}
	r.device = d
	q, qs, err := r.uploadWindow(r.arena)
	if err != nil {
		return err
	}
	rows := r.Cache.Batch() * r.Window.Heads * r.Window.Window
	if r.Scoring.Rule == reference.KeyDiff {
		rows = r.Cache.Batch() * r.Cache.KVHeads
	}
	if r.out, err = r.arena.Alloc("out", int64(rows*r.Cache.HeadDim)*r.outputBytes()); err != nil {
		return err
	}
	if r.lse, err = r.arena.Alloc("lse", int64(4*rows)); err != nil {
		return err
	}
	if r.space, err = r.kernel.Workspace(r.env.LaunchProblem(r.Problem)); err != nil {
		return err
	}
	r.args = kernel.DropObserveArgs{
		Cache: r.Args(d), Q: q.Ptr(), Out: r.out.Ptr(), LSE: r.lse.Ptr(), Workspace: r.space.Ptr(),
		QBatchStride: qs.batch, QHeadStride: qs.head, QRowStride: qs.row,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap),
	}
	if r.Scoring.Rule == reference.KeyDiff {
		r.args.Q, r.args.LSE = 0, 0
	}
	return nil
}

func (r *observeRun) enqueue(s device.Stream) error {
	return Enqueue(r.kernel, s, r.env.LaunchProblem(r.Problem), &r.args)
}

func (r *observeRun) once(graph *Replay, at int) error {
	r.SetLaunch(at)
	if err := r.device.WriteLens(); err != nil {
		return err
	}
	var out, lse []byte
	for try := range 2 {
		if err := errors.Join(r.out.Poison(), r.lse.Poison()); err != nil {
			return err
		}
		if err := graph.Run(); err != nil {
			return err
		}
		data, err := r.out.Read()
		if err != nil {
			return err
		}
		lses, err := r.lse.Read()
		if err != nil {
			return err
		}
		if try == 1 && (!bytes.Equal(out, data) || !bytes.Equal(lse, lses)) {
			return errors.New("a second launch gave other bytes: the kernel is not repeatable")
		}
		out, lse = data, lses
	}
	if err := errors.Join(r.arena.Check(), r.space.CheckZero(checkedWorkspace)); err != nil {
		return err
	}
	got := r.decode(out)
	dim := r.Cache.HeadDim
	for b := range r.Cache.Batch() {
		for h := range r.Cache.KVHeads {
			head := r.head(b, h)
			if head.anchor != nil {
				first := (b*r.Cache.KVHeads + h) * dim
				r.compare(got[first:first+dim], head.anchor, 0, func() string { return fmt.Sprintf("launch %d, request %d, KV head %d", at, b, h) })
			}
			for n, row := range head.rows {
				index := (b*r.Window.Heads+h*r.Group)*r.Window.Window + n
				noise := head.tokens.LogitNoise(row.Q, row.Limit, r.Logits, r.Scoring.DotNoise)
				where := func() string {
					return fmt.Sprintf("launch %d, request %d, KV head %d, row %d of the window", at, b, h, n)
				}
				r.compare(got[index*dim:(index+1)*dim], row.Out, noise, where)
				r.lseTally.Add(ScoreError(Float32s(lse[4*index : 4*index+4])[0], row.LSE), ObserveLSEBound+2*noise+0x1p-22*finite(row.LSE), where)
			}
		}
	}
	return nil
}

func (r *observeRun) decode(data []byte) []float64 {
	if r.outputBytes() == 2 {
		bits := Uint16s(data)
		out := make([]float64, len(bits))
		r.Cache.DType.Compute().Values(out, bits)
		return out
	}
	out := make([]float64, len(data)/4)
	for i, x := range Float32s(data) {
		out[i] = float64(x)
	}
	return out
}

// compare checks one row; where the reference has elements that are not finite, those must not be finite either.
func (r *observeRun) compare(got, want []float64, noise float64, where func() string) {
	bound := r.observeBound() + 4*noise
	var g, w []float64
	for i, x := range want {
		if math.IsNaN(x) || math.IsInf(x, 0) {
			if !math.IsNaN(got[i]) && !math.IsInf(got[i], 0) {
				r.tally.Fail("%s: dim %d is %g, reference %g", where(), i, got[i], x)
			}
			continue
		}
		g, w = append(g, got[i]), append(w, x)
	}
	r.tally.Add(RelativeError(g, w), bound, where)
}
