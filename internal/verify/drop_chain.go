package verify

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

// DropChain names results of the eviction families together: observe, score, pool, allot, select, compact and attention over what is
// left, captured as one graph.
const DropChain plan.Family = "drop_chain"

const (
	dropChainMetric = "kept tokens end to end, relative"
	compactAttend   = "output over kept tokens, relative"
)

// How much larger than a kept token's a token's pooled float64 score may be, relative, and still be left out.
const (
	DropEndToEndBound     = 1e-3
	DropEndToEndFastBound = 5e-3
)

// dropChainFamilies in launch order; a spec has some of them.
var dropChainFamilies = []plan.Family{plan.DropObserve, plan.DropScore, plan.DropPool, plan.DropAllot, plan.DropSelect, plan.DropCompact, plan.PageAttend}

// DropChainCandidates picks the links of a form, or of any form for "".
func DropChainCandidates(p *plan.Plan, form plan.Form) (out []plan.Candidate, ok bool) {
	if !p.Has(plan.DropCompact) {
		return nil, false
	}
	for _, f := range dropChainFamilies {
		if !p.Has(f) {
			continue
		}
		found := false
		for _, c := range p.Of(f).Candidates {
			if form == "" || c.Form == form {
				out, found = append(out, c), true
				break
			}
		}
		if !found {
			return nil, false
		}
	}
	return out, true
}

// CheckDropChain verifies eviction as one graph, replayed at the lengths of each case. A token may be left out for one whose pooled
// float64 score is lower by the bound at most, beside the noise of f32; the numbers of kept tokens are those of the budget; attention
// over the compacted cache is float64's over the kept tokens.
func CheckDropChain(ctx context.Context, e *Env, s *specs.Spec, name string, links []plan.Candidate, o Options) []Result {
	kernels := map[plan.Family]*Kernel{}
	for _, c := range links {
		k, err := e.Kernel(c)
		if err != nil {
			return []Result{{Family: DropChain, Candidate: name, Case: "load", Metric: dropChainMetric, Failure: err.Error()}}
		}
		kernels[c.Family] = k
	}
	var results []Result
	for _, c := range dropCases(s, o) {
		// Holes and values that are not finite have no attention to compare; contiguous caches are not page_attend's.
		if ctx.Err() != nil || c.Holes || c.Data == NotFinite || c.Layout == Contiguous || c.Layout == FarApart || c.Long {
			continue
		}
		results = append(results, dropChainCase(e, s, kernels, c, o.Seed)...)
	}
	for i := range results {
		results[i].Family, results[i].Candidate, results[i].Key = DropChain, name, links[len(links)-3].Key
	}
	return results
}

func dropChainCase(e *Env, s *specs.Spec, kernels map[plan.Family]*Kernel, c Case, seed uint64) []Result {
	p, err := NewDropProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, dropChainMetric, err)}
	}
	p.Budget.Ratio, p.Budget.Tokens = 0.3, 0 // leaves tokens out of short prompts too
	if p.Budget.Kind != "adaptive" {
		p.Budget.Kind = "uniform"
	}
	r := &dropChainRun{DropProblem: p, env: e, kernels: kernels, bound: DropEndToEndBound, out: NewTally(c.Name, compactAttend, AttendBound)}
	if p.Fast {
		r.bound = DropEndToEndFastBound
	}
	r.kept = NewTally(c.Name, dropChainMetric, r.bound)
	a := e.NewArena()
	if err = r.prepare(a); err == nil {
		err = r.all(a)
	}
	r.kept.Err(errors.Join(err, a.Free()))
	if err != nil {
		return []Result{r.kept.Result()}
	}
	return []Result{r.kept.Result(), r.out.Result()}
}

// dropChainRun is one case on the device.
type dropChainRun struct {
	*DropProblem
	env       *Env
	kernels   map[plan.Family]*Kernel
	kept, out *Tally
	bound     float64
	device    *DeviceProblem
	steps     []func(device.Stream) error

	slots                   int
	indices, counts, output *Buffer
	listRows, outRows       Rows
}

// step adds a launch.
func dropStep[T any](r *dropChainRun, f plan.Family, p launch.Problem, args *T) {
	if k := r.kernels[f]; k != nil {
		r.steps = append(r.steps, func(s device.Stream) error { return Enqueue(k, s, p, args) })
	}
}

func (r *dropChainRun) prepare(a *Arena) error {
	d, err := r.Upload(a)
	if err != nil {
		return err
	}
	r.device = d
	q, qs, err := r.uploadWindow(a)
	if err != nil {
		return err
	}
	alloc := func(name string, bytes int64) *Buffer {
		if err != nil {
			return nil
		}
		var b *Buffer
		b, err = a.Alloc(name, bytes)
		return b
	}
	c := r.Cache
	batch, heads, qHeads, dim, w := int64(c.Batch()), int64(c.KVHeads), int64(r.Window.Heads), int64(c.HeadDim), int64(r.Window.Window)
	tokens := int64(r.MaxTokens())
	r.slots = int(tokens)
	r.listRows = Rows{Batch: c.Batch(), Rows: c.KVHeads, Width: r.slots, RowStride: tokens, BatchStride: heads * tokens}
	r.outRows = r.Rows(r.Window.Heads, c.HeadDim, 2)
	observed, lse := alloc("a", batch*qHeads*w*dim*r.outputBytes()), alloc("lse", 4*batch*qHeads*w)
	scores, pooled, budgets := alloc("scores", 4*batch*heads*tokens), alloc("pooled", 4*batch*heads*tokens), alloc("budgets", 4*batch*heads)
	r.indices, r.counts = alloc("indices", 4*r.listRows.Elements()), alloc("counts", 4*batch*heads)
	size := batch * tokens * heads * dim * int64(c.DType.Size())
	k, v := alloc("kept k", size), alloc("kept v", size)
	headLens, lens := alloc("head_lens", 4*batch*heads), alloc("new seq_lens", 4*batch)
	r.output = alloc("out", 2*r.outRows.Elements())
	if err != nil {
		return err
	}
	problem := r.env.LaunchProblem(r.Problem)
	var space, attendSpace *Buffer
	if kernel := r.kernels[plan.DropObserve]; kernel != nil {
		if space, err = kernel.Workspace(problem); err != nil {
			return err
		}
	}
	if attendSpace, err = r.kernels[plan.PageAttend].Workspace(problem); err != nil {
		return err
	}
	var allotSpace device.Ptr
	if kernel := r.kernels[plan.DropAllot]; kernel != nil {
		b, err := kernel.Workspace(problem)
		if err != nil {
			return err
		}
		allotSpace = b.Ptr()
	}
	table := make([]int32, c.Batch()*c.MaxPages)
	for i := range table {
		table[i] = int32(i)
	}
	fresh, err := a.Input("kept table", BytesOfInt32(table))
	if err != nil {
		return err
	}
	source, scale, cap := r.Args(d), float32(r.Logits.Scale), float32(r.Logits.Softcap)
	budget := kernel.DropBudget{Ratio: r.Budget.Ratio, Floor: r.Budget.Floor, Window: int32(w), Sinks: int32(r.Budget.Sinks)}
	if space != nil {
		dropStep(r, plan.DropObserve, problem, &kernel.DropObserveArgs{Cache: source, Q: q.Ptr(), Out: observed.Ptr(), LSE: lse.Ptr(), Workspace: space.Ptr(),
			QBatchStride: qs.batch, QHeadStride: qs.head, QRowStride: qs.row, SoftmaxScale: scale, LogitSoftcap: cap})
	}
	score := &kernel.DropScoreArgs{Cache: source, Q: q.Ptr(), A: observed.Ptr(), LSE: lse.Ptr(), Scores: scores.Ptr(), QBatchStride: qs.batch, QHeadStride: qs.head, QRowStride: qs.row,
		ABatchStride: qHeads * w * dim, AHeadStride: w * dim, ARowStride: dim, LSEBatchStride: qHeads * w, LSEHeadStride: w,
		ScoreBatchStride: heads * tokens, ScoreHeadStride: tokens, SoftmaxScale: scale, LogitSoftcap: cap, Eps: float32(r.Scoring.Eps)}
	if r.Scoring.Rule == reference.KeyDiff {
		score.ABatchStride, score.AHeadStride = heads*dim, dim
	}
	dropStep(r, plan.DropScore, problem, score)
	dropStep(r, plan.DropPool, problem, &kernel.DropPoolArgs{Scores: scores.Ptr(), SeqLens: source.SeqLens, Pooled: pooled.Ptr(), ScoreBatchStride: heads * tokens, ScoreHeadStride: tokens,
		PooledBatchStride: heads * tokens, PooledHeadStride: tokens, Batch: int32(batch), KVHeads: int32(heads), MaxTokens: int32(tokens), Sinks: budget.Sinks})
	dropStep(r, plan.DropAllot, problem, &kernel.DropAllotArgs{Values: pooled.Ptr(), SeqLens: source.SeqLens, Budgets: budgets.Ptr(), Workspace: allotSpace, ValueBatchStride: heads * tokens, ValueHeadStride: tokens,
		Budget: budget, Batch: int32(batch), KVHeads: int32(heads), MaxTokens: int32(tokens)})
	choose := &kernel.DropSelectArgs{Values: pooled.Ptr(), SeqLens: source.SeqLens, Indices: r.indices.Ptr(), Counts: r.counts.Ptr(), ValueBatchStride: heads * tokens, ValueHeadStride: tokens,
		IndexBatchStride: heads * tokens, IndexHeadStride: tokens, BudgetBatchStride: heads, Budget: budget, Batch: int32(batch), KVHeads: int32(heads), MaxTokens: int32(tokens), Slots: int32(r.slots)}
	if r.kernels[plan.DropAllot] != nil {
		choose.Budgets = budgets.Ptr()
	}
	if r.Scoring.Rule == reference.Streaming {
		choose.Values = 0
	}
	dropStep(r, plan.DropSelect, problem, choose)
	target := kernel.KVCache{K: k.Ptr(), V: v.Ptr(), BlockTable: fresh.Ptr(), KScale: source.KScale, VScale: source.VScale, TableStride: int64(c.MaxPages), Batch: int32(batch), KVHeads: int32(heads), MaxPages: int32(c.MaxPages)}
	target.KTokenStride, target.KHeadStride, target.KBlockStride = dim, int64(c.PageSize)*dim, heads*int64(c.PageSize)*dim
	target.VTokenStride, target.VHeadStride, target.VBlockStride = target.KTokenStride, target.KHeadStride, target.KBlockStride
	problem.Slots = int64(r.slots)
	dropStep(r, plan.DropCompact, problem, &kernel.DropCompactArgs{Source: source, Target: target, Indices: r.indices.Ptr(), Counts: r.counts.Ptr(), HeadLens: headLens.Ptr(), SeqLens: lens.Ptr(),
		IndexBatchStride: heads * tokens, IndexHeadStride: tokens, Slots: int32(r.slots)})
	target.SeqLens, target.HeadLens = lens.Ptr(), headLens.Ptr()
	dropStep(r, plan.PageAttend, r.env.LaunchProblem(r.Problem), &kernel.PageAttendArgs{Cache: target, Q: d.Q.Ptr(), Out: r.output.Ptr(), Workspace: attendSpace.Ptr(),
		QBatchStride: d.QRows.BatchStride, QHeadStride: d.QRows.RowStride, OutBatchStride: r.outRows.BatchStride, OutHeadStride: r.outRows.RowStride, SoftmaxScale: scale, LogitSoftcap: cap})
	return nil
}

func (r *dropChainRun) all(a *Arena) error {
	r.SetLaunch(0)
	graph, err := r.env.Capture(func(s device.Stream) error {
		for _, step := range r.steps {
			if err := step(s); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return err
	}
	for i := range r.Case.Launches() {
		r.SetLaunch(i)
		err = errors.Join(r.device.WriteLens(), r.indices.Poison(), r.counts.Poison(), r.output.Poison())
		if err == nil {
			err = errors.Join(graph.Run(), a.Check())
		}
		if err == nil {
			err = r.judge(i)
		}
		if err != nil {
			err = fmt.Errorf("launch %d: %w", i, err)
			break
		}
	}
	return errors.Join(err, graph.Close())
}

func (r *dropChainRun) judge(at int) error {
	indices, err := r.indices.Read()
	if err != nil {
		return err
	}
	counts, err := r.counts.Read()
	if err != nil {
		return err
	}
	lists, err := KernelLists(r.listRows, Int32s(indices), Int32s(counts))
	if err != nil {
		return err
	}
	data, err := r.output.Read()
	if err != nil {
		return err
	}
	bits := Uint16s(data)
	for b, n := range r.Cache.SeqLens {
		total := 0
		for h, list := range lists[b] {
			where := func() string { return fmt.Sprintf("launch %d, request %d, KV head %d of %d tokens", at, b, h, n) }
			head := r.head(b, h)
			total += len(list)
			if want := r.Budget.Keep(int(n), h); r.Budget.Kind != "adaptive" && len(list) != want {
				return fmt.Errorf("%s: %d tokens kept, the budget is %d", where(), len(list), want)
			}
			r.judgeList(head, list, where)
			r.judgeOutput(head, b, h, list, bits, where)
		}
		if want := r.Cache.KVHeads * r.Budget.Keep(int(n), 0); total != want {
			return fmt.Errorf("launch %d, request %d: %d tokens kept in all heads, the budget is %d", at, b, total, want)
		}
	}
	r.kept.Passed(1)
	r.out.Passed(1)
	return nil
}

// judgeList compares the worst kept with the best left out, by float64's own observation, scores and pool.
func (r *dropChainRun) judgeList(head dropHead, list []int32, where func() string) {
	scores := r.Scoring.Scores(head.tokens, head.rows, head.anchor)
	values, noise := scores.Score, scores.Noise
	if r.Scoring.Rule != reference.Streaming {
		values = r.Pool.Pool(scores.Score, r.Window.Window, r.Budget.Sinks)
		noise = reference.DropPool{Kind: "max", Width: r.Pool.Width}.Pool(scores.Noise, r.Window.Window, r.Budget.Sinks)
	}
	in := make([]bool, len(values))
	for _, j := range list {
		in[j] = true
	}
	end := len(values) - r.Window.Window
	worst, best := -1, -1
	for j := range values {
		switch {
		case j >= end || j < r.Budget.Sinks:
			if !in[j] && j >= end {
				r.kept.Fail("%s: token %d of the window is left out", where(), j)
			}
		case in[j] && (worst < 0 || values[j]+noise[j] < values[worst]+noise[worst]):
			worst = j
		case !in[j] && (best < 0 || values[j]-noise[j] > values[best]-noise[best]):
			best = j
		}
	}
	if worst < 0 || best < 0 {
		r.kept.Passed(1)
		return
	}
	over := (values[best] - noise[best]) - (values[worst] + noise[worst])
	r.kept.Add(max(over, 0)/max(math.Abs(values[worst]), math.SmallestNonzeroFloat64), r.bound, func() string {
		return fmt.Sprintf("%s: token %d (%g) is kept and token %d (%g) left out", where(), worst, values[worst], best, values[best])
	})
}

// judgeOutput compares attention of the query token over the compacted cache.
func (r *dropChainRun) judgeOutput(head dropHead, b, h int, list []int32, bits []uint16, where func() string) {
	kept := head.tokens
	kept.Missing = make([]bool, kept.N)
	for j := range kept.Missing {
		kept.Missing[j] = true
	}
	for _, j := range list {
		kept.Missing[j] = false
	}
	got := make([]float64, r.Cache.HeadDim)
	for g := range r.Group {
		row := r.outRows.At(b, h*r.Group+g)
		r.Cache.DType.Compute().Values(got, bits[row:row+int64(len(got))])
		want := kept.Observe(r.Problem.Q.Of(b, h*r.Group+g), kept.N-1, r.Logits)
		r.out.Add(RelativeError(got, want.Out), AttendBound, where)
	}
}
