package measure

import (
	"fmt"
	"slices"
	"unsafe"

	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
)

// dropRig holds what the DropKV works read and write beside the KV pool.
type dropRig struct {
	q, a, lse      device.Ptr // of the window, as given
	out, lseOut    device.Ptr // as drop_observe writes them
	scores, pooled ring       // [batch, kv head, token]
	indices        ring       // [batch, kv head, slots]
	counts         device.Ptr
	budgets        device.Ptr
	headLens, lens device.Ptr
	target         ring // K then V of the compacted cache
	table          device.Ptr
	contiguous     bool
}

// Contiguous makes the DropKV works read a cache without a block table, [batch, kv head, token, dim].
func (r *Rig) Contiguous() { r.drop.contiguous = true }

// Lengths gives each request a length of its own, up to the workload's. For the DropKV works: others know the workload's alone.
func (r *Rig) Lengths(lens []int) error {
	own := make([]int32, len(lens))
	for i, n := range lens {
		if n > r.Workload.Context {
			return fmt.Errorf("a request of %d tokens, the workload has at most %d", n, r.Workload.Context)
		}
		own[i] = int32(n)
	}
	if len(own) != r.Workload.Batch {
		return fmt.Errorf("%d lengths, the workload has %d requests", len(own), r.Workload.Batch)
	}
	return r.Dev.Write(r.lens, bytesOf(own))
}

// dropCache is set i of the pool as the DropKV works read it.
func (r *Rig) dropCache(i int) kernel.KVCache {
	c := r.cache(i)
	if r.drop.contiguous {
		d := int64(r.Spec.Attention.HeadDim)
		c.BlockTable, c.TableStride = 0, 0
		c.KTokenStride, c.KHeadStride, c.KBlockStride = d, r.tokens()*d, r.Problem.KVHeads*r.tokens()*d
		c.VTokenStride, c.VHeadStride, c.VBlockStride = c.KTokenStride, c.KHeadStride, c.KBlockStride
	}
	return c
}

// budget is the spec's.
func (r *Rig) budget() kernel.DropBudget {
	k := r.Spec.DropKV
	return kernel.DropBudget{Ratio: k.Budget.Ratio, Floor: k.HeadBudgets.Floor, Tokens: int32(k.Budget.Tokens), Window: int32(k.Window), Sinks: int32(k.SinkTokens)}
}

// kept is how many tokens a head keeps here.
func (r *Rig) kept() int { return r.Spec.DropKV.Keep(r.Workload.Context) }

// tokens is what the cache has room for.
func (r *Rig) tokens() int64 { return r.Problem.MaxPages * int64(r.Spec.Cache.PageSize) }

// needWindow makes the window's queries, outputs and log-sum-exps. Those that drop_score is given are plausible: outputs near the mean
// of values, log-sum-exps of a prompt whose logits are small.
func (r *Rig) needWindow() error {
	if r.drop.q != 0 {
		return nil
	}
	p, d := r.Problem, int64(r.Spec.Attention.HeadDim)
	rows := p.Batch * p.QHeads * int64(r.Spec.DropKV.Window)
	var err error
	if r.drop.q, err = r.upload(r.halves(int(rows*d), 1)); err != nil {
		return err
	}
	if r.drop.out, err = r.alloc(rows * d * 4); err != nil {
		return err
	}
	if r.drop.lseOut, err = r.alloc(rows * 4); err != nil {
		return err
	}
	if r.Spec.DropKV.Precision == "fast" {
		r.drop.a, err = r.upload(r.halves(int(rows*d), 0.1))
	} else {
		a := make([]float32, rows*d)
		for i := range a {
			a[i] = float32(r.rand.NormFloat64() * 0.1)
		}
		r.drop.a, err = r.upload(bytesOf(a))
	}
	if err != nil {
		return err
	}
	r.drop.lse, err = r.upload(bytesOf(slices.Repeat([]float32{12}, int(rows))))
	return err
}

// needPrompt makes the whole cache and its window's queries.
func (r *Rig) needPrompt() error {
	if err := r.needPool(true); err != nil {
		return err
	}
	return r.needWindow()
}

// needTokenScores makes the buffers of scores and pooled scores: one of each, as page_score has, for what scores a layer is read before the
// next layer is scored. Twelve of them, and each launch also pays for the scores that an earlier one left in L2: 133 us in place of 127.
func (r *Rig) needTokenScores() error {
	if r.drop.scores.n > 0 {
		return nil
	}
	each := r.Problem.Batch * r.Problem.KVHeads * r.tokens() * 4
	var err error
	if r.drop.scores, err = r.newRing(each, 1); err != nil {
		return err
	}
	if r.drop.pooled, err = r.newRing(each, 1); err != nil {
		return err
	}
	pattern := make([]float32, 1<<20)
	for i := range pattern {
		pattern[i] = float32(r.rand.ExpFloat64() * 1e-6)
	}
	if err := r.fill(r.drop.scores.base, r.drop.scores.each*int64(r.drop.scores.n), bytesOf(pattern)); err != nil {
		return err
	}
	return r.fill(r.drop.pooled.base, r.drop.pooled.each*int64(r.drop.pooled.n), bytesOf(pattern))
}

// needKept makes lists of kept tokens and where they go: every n-th token, as far apart as a budget makes them.
func (r *Rig) needKept() error {
	if r.drop.indices.n > 0 {
		return nil
	}
	p, kept := r.Problem, r.kept()
	lists := p.Batch * p.KVHeads
	n := r.sets(lists * int64(kept) * int64(r.Spec.Attention.HeadDim) * 8)
	var err error
	if r.drop.indices, err = r.newRing(lists*int64(kept)*4, n); err != nil {
		return err
	}
	for set := range n {
		var all []int32
		for range lists {
			for i := range kept {
				low, high := r.Workload.Context*i/kept, max(r.Workload.Context*(i+1)/kept, r.Workload.Context*i/kept+1)
				all = append(all, int32(low+r.rand.IntN(high-low)))
			}
		}
		if err := r.Dev.Write(r.drop.indices.at(set), bytesOf(all)); err != nil {
			return err
		}
	}
	if r.drop.counts, err = r.upload(bytesOf(slices.Repeat([]int32{int32(kept)}, int(lists)))); err != nil {
		return err
	}
	if r.drop.budgets, err = r.upload(bytesOf(slices.Repeat([]int32{int32(kept)}, int(lists)))); err != nil {
		return err
	}
	if r.drop.headLens, err = r.alloc(lists * 4); err != nil {
		return err
	}
	if r.drop.lens, err = r.alloc(p.Batch * 4); err != nil {
		return err
	}
	page := int64(r.Spec.Cache.PageSize)
	pages := (int64(kept) + page - 1) / page
	if r.drop.target, err = r.newRing(4*(p.Batch*pages*page*p.KVHeads*int64(r.Spec.Attention.HeadDim)+255)/256*256, 1); err != nil {
		return err
	}
	table := make([]int32, p.Batch*pages)
	for i := range table {
		table[i] = int32(i)
	}
	r.drop.table, err = r.upload(bytesOf(table))
	return err
}

func (r *Rig) observeStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needPrompt(); err != nil {
		return nil, err
	}
	p, d, w := r.Problem, int64(r.Spec.Attention.HeadDim), int64(r.Spec.DropKV.Window)
	args := make([]kernel.DropObserveArgs, 1)
	return &Step{Sets: r.pool.n, launch: func(i int) error {
		args[0] = kernel.DropObserveArgs{Cache: r.dropCache(i), Q: r.drop.q, Out: r.drop.out, LSE: r.drop.lseOut, Workspace: ws,
			QBatchStride: p.QHeads * w * d, QHeadStride: w * d, QRowStride: d, SoftmaxScale: r.scale(), LogitSoftcap: r.softcap()}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) dropScoreStep(fn device.Function, l *device.Launch) (*Step, error) {
	if err := r.needPrompt(); err != nil {
		return nil, err
	}
	if err := r.needTokenScores(); err != nil {
		return nil, err
	}
	p, d, w, tokens := r.Problem, int64(r.Spec.Attention.HeadDim), int64(r.Spec.DropKV.Window), r.tokens()
	args := make([]kernel.DropScoreArgs, 1)
	return &Step{Sets: r.pool.n, launch: func(i int) error {
		args[0] = kernel.DropScoreArgs{Cache: r.dropCache(i), Q: r.drop.q, A: r.drop.a, LSE: r.drop.lse, Scores: r.drop.scores.at(i),
			QBatchStride: p.QHeads * w * d, QHeadStride: w * d, QRowStride: d, ABatchStride: p.QHeads * w * d, AHeadStride: w * d, ARowStride: d,
			LSEBatchStride: p.QHeads * w, LSEHeadStride: w, ScoreBatchStride: p.KVHeads * tokens, ScoreHeadStride: tokens,
			SoftmaxScale: r.scale(), LogitSoftcap: r.softcap(), Eps: float32(r.Spec.DropKV.Eps)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) observeScoreStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needPrompt(); err != nil {
		return nil, err
	}
	if err := r.needTokenScores(); err != nil {
		return nil, err
	}
	p, d, w, tokens := r.Problem, int64(r.Spec.Attention.HeadDim), int64(r.Spec.DropKV.Window), r.tokens()
	args := make([]kernel.DropObserveScoreArgs, 1)
	return &Step{Sets: r.pool.n, launch: func(i int) error {
		args[0] = kernel.DropObserveScoreArgs{Cache: r.dropCache(i), Q: r.drop.q, Scores: r.drop.scores.at(i), Workspace: ws,
			QBatchStride: p.QHeads * w * d, QHeadStride: w * d, QRowStride: d, ScoreBatchStride: p.KVHeads * tokens, ScoreHeadStride: tokens,
			SoftmaxScale: r.scale(), LogitSoftcap: r.softcap(), Eps: float32(r.Spec.DropKV.Eps)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) poolStep(fn device.Function, l *device.Launch) (*Step, error) {
	if err := r.needTokenScores(); err != nil {
		return nil, err
	}
	p, tokens := r.Problem, r.tokens()
	args := make([]kernel.DropPoolArgs, 1)
	return &Step{Sets: r.drop.scores.n, launch: func(i int) error {
		args[0] = kernel.DropPoolArgs{Scores: r.drop.scores.at(i), SeqLens: r.lens, Pooled: r.drop.pooled.at(i), ScoreBatchStride: p.KVHeads * tokens, ScoreHeadStride: tokens,
			PooledBatchStride: p.KVHeads * tokens, PooledHeadStride: tokens, Batch: int32(p.Batch), KVHeads: int32(p.KVHeads), MaxTokens: int32(tokens), Sinks: int32(r.Spec.DropKV.SinkTokens)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) allotStep(fn device.Function, l *device.Launch, ws device.Ptr) (*Step, error) {
	if err := r.needTokenScores(); err != nil {
		return nil, err
	}
	if err := r.needKept(); err != nil {
		return nil, err
	}
	p, tokens := r.Problem, r.tokens()
	args := make([]kernel.DropAllotArgs, 1)
	return &Step{Sets: r.drop.pooled.n, launch: func(i int) error {
		args[0] = kernel.DropAllotArgs{Values: r.drop.pooled.at(i), SeqLens: r.lens, Budgets: r.drop.budgets, Workspace: ws, ValueBatchStride: p.KVHeads * tokens, ValueHeadStride: tokens,
			Budget: r.budget(), Batch: int32(p.Batch), KVHeads: int32(p.KVHeads), MaxTokens: int32(tokens)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

// keepStep selects among pooled scores, or scores that the kernel pools.
func (r *Rig) keepStep(fn device.Function, l *device.Launch, values *ring) (*Step, error) {
	if err := r.needTokenScores(); err != nil {
		return nil, err
	}
	p, tokens, kept := r.Problem, r.tokens(), int64(r.kept())
	adaptive := r.Spec.DropKV.HeadBudgets.Kind == "adaptive" // heads keep what drop_allot wrote, or what needKept made
	if adaptive {
		if err := r.needKept(); err != nil {
			return nil, err
		}
		kept = int64(r.budget().Slots(int(tokens), int(p.KVHeads)))
	}
	out, err := r.newRing(p.Batch*p.KVHeads*(kept+1)*4, 1)
	if err != nil {
		return nil, err
	}
	args := make([]kernel.DropSelectArgs, 1)
	return &Step{Sets: values.n, launch: func(i int) error {
		args[0] = kernel.DropSelectArgs{Values: values.at(i), SeqLens: r.lens, Indices: out.at(0), Counts: out.at(0) + device.Ptr(p.Batch*p.KVHeads*kept*4),
			ValueBatchStride: p.KVHeads * tokens, ValueHeadStride: tokens, IndexBatchStride: p.KVHeads * kept, IndexHeadStride: kept,
			Budget: r.budget(), Batch: int32(p.Batch), KVHeads: int32(p.KVHeads), MaxTokens: int32(tokens), Slots: int32(kept)}
		if r.Spec.DropKV.Rule == "streaming" {
			args[0].Values = 0
		}
		if adaptive {
			args[0].Budgets, args[0].BudgetBatchStride = r.drop.budgets, p.KVHeads
		}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}

func (r *Rig) compactStep(fn device.Function, l *device.Launch) (*Step, error) {
	if err := r.needPool(false); err != nil {
		return nil, err
	}
	if err := r.needKept(); err != nil {
		return nil, err
	}
	p, kept, page := r.Problem, int64(r.kept()), int64(r.Spec.Cache.PageSize)
	pages := (kept + page - 1) / page
	args := make([]kernel.DropCompactArgs, 1)
	return &Step{Sets: r.drop.indices.n, launch: func(i int) error {
		target := r.cache(0)
		target.K = r.drop.target.at(0)
		target.V = target.K + device.Ptr(r.drop.target.each/2)
		target.BlockTable, target.TableStride, target.MaxPages, target.SeqLens = r.drop.table, pages, int32(pages), 0
		args[0] = kernel.DropCompactArgs{Source: r.dropCache(i), Target: target, Indices: r.drop.indices.at(i), Counts: r.drop.counts, HeadLens: r.drop.headLens, SeqLens: r.drop.lens,
			IndexBatchStride: p.KVHeads * kept, IndexHeadStride: kept, Slots: int32(kept)}
		return fn.Launch(r.Stream, l, unsafe.Pointer(&args[0]), unsafe.Sizeof(args[0]))
	}}, nil
}
