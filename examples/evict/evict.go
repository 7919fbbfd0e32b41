package main

import (
	"context"
	"errors"
	"fmt"
	"math"

	"github.com/kvloom/kvloom/autotune"
	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/devices"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/runtime/nvrtc"
	"github.com/kvloom/kvloom/specs"
)

// row is what one rule gave at one budget.
type row struct {
	Rule              string  `json:"rule"`
	Ratio             float64 `json:"ratio"`
	Kept              []int32 `json:"kept"`            // tokens of each KV head
	OutputError       float64 `json:"output_error"`    // of the later queries over the kept tokens, against float64 over all, relative
	KernelError       float64 `json:"kernel_error"`    // the same output against float64 over the kept tokens: what the kernels add
	Mass              float64 `json:"mass"`            // share of the later queries' attention on the kept tokens, mean
	SameAsFloat64     float64 `json:"same_as_float64"` // kept tokens that float64 keeps too
	MicrosecondsEvict float64 `json:"us_evict"`        // observe to compact as one graph; 0: not measured
}

// evict runs one contender at every budget.
func evict(ctx context.Context, dev device.Device, compiler *nvrtc.Compiler, p *prompt, c contender, ratios []float64, sinks int) (rows []row, err error) {
	s, err := specOf(p, c, sinks)
	if err != nil {
		return nil, err
	}
	packer := autotune.Packer{Spec: s, Plan: plan.New(s, plan.Targets["sm_90a"]), Compile: autotune.CompileWith(compiler), Device: dev.Info()}
	bundle, err := packer.Pack(ctx, nil, nil)
	if err != nil {
		return nil, err
	}
	set, err := bundle.Load(dev)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, set.Unload()) }()
	for _, ratio := range ratios {
		r := &runner{prompt: p, spec: s, set: set, mem: memory{dev: dev}, budget: kernel.DropBudget{Ratio: ratio, Floor: s.DropKV.HeadBudgets.Floor, Window: int32(p.window), Sinks: int32(sinks)}}
		got, err := r.run(c)
		if err := errors.Join(err, r.mem.free()); err != nil {
			return nil, fmt.Errorf("ratio %g: %w", ratio, err)
		}
		rows = append(rows, got)
	}
	return rows, nil
}

// specOf is the model's spec with the contender's rule. Data of another shape than the model's gets a spec of its own.
func specOf(p *prompt, c contender, sinks int) (*specs.Spec, error) {
	s := specs.New("evict", p.queryHeads, p.kvHeads, p.dim)
	s.Cache.PageSize = page
	s.DropKV.Rule, s.DropKV.Window, s.DropKV.SinkTokens = c.Rule, p.window, sinks
	s.DropKV.HeadBudgets.Kind = c.HeadBudgets
	if c.HeadBudgets == "adaptive" {
		s.DropKV.HeadBudgets.Floor = 0.2
	}
	return s, specs.Validate(s)
}

// runner is one contender at one budget.
type runner struct {
	*prompt
	spec   *specs.Spec
	set    *kernel.Set
	mem    memory
	budget kernel.DropBudget
	slots  int
}

func (r *runner) run(c contender) (row, error) {
	out := row{Rule: c.String(), Ratio: r.budget.Ratio}
	stream, err := r.mem.dev.NewStream()
	if err != nil {
		return out, err
	}
	ref := r.cache()
	st, attend := r.prepare(ref, stream)
	if r.mem.err != nil {
		return out, errors.Join(r.mem.err, stream.Destroy())
	}
	g, err := st.capture()
	if err != nil {
		return out, errors.Join(err, stream.Destroy())
	}
	err = errors.Join(g.Launch(stream), stream.Synchronize())
	if err == nil {
		err = r.judge(ref, st, attend, &out)
	}
	if err == nil {
		out.MicrosecondsEvict, err = devices.ReplayUS(r.mem.dev, stream, g)
	}
	return out, errors.Join(err, g.Destroy(), stream.Destroy())
}

// prepare uploads the prompt and describes every launch. The cache is paged and its blocks are shuffled, as an engine's are.
func (r *runner) prepare(ref *reference.Cache, stream device.Stream) (*stages, *kernel.PageAttendArgs) {
	m, d, m2 := &r.mem, int64(r.dim), r.set.Model()
	heads, qHeads, w, tokens := int64(r.kvHeads), int64(r.queryHeads), int64(r.window), int64(ref.MaxPages*page)
	k, v := r.blocks(ref)
	source := kernel.KVCache{K: upload(m, k), V: upload(m, v), BlockTable: upload(m, ref.Table), SeqLens: upload(m, ref.SeqLens),
		KBlockStride: heads * page * d, KTokenStride: d, KHeadStride: page * d, VBlockStride: heads * page * d, VTokenStride: d, VHeadStride: page * d,
		TableStride: int64(ref.MaxPages), Batch: 1, KVHeads: int32(heads), MaxPages: int32(ref.MaxPages)}
	st := &stages{set: r.set, stream: stream, workload: kernel.Workload{Context: r.tokens, Batch: 1}}
	q, lse := upload(m, r.queries(0, r.window)), m.zeros(qHeads*w*4)
	outputs, scores, pooled := m.zeros(qHeads*w*d*4), m.zeros(heads*tokens*4), m.zeros(heads*tokens*4)
	scale, kvHeads := float32(m2.SoftmaxScale), 1
	if m2.Drop.Rule != "streaming" {
		n, err := r.set.WorkspaceBytes(kernel.DropObserve, r.set.ProblemOf(1, r.kvHeads, ref.MaxPages, 1))
		m.err = errors.Join(m.err, err)
		st.observe = &kernel.DropObserveArgs{Cache: source, Q: q, Out: outputs, LSE: lse, Workspace: m.zeros(n), QBatchStride: qHeads * w * d, QHeadStride: w * d, QRowStride: d, SoftmaxScale: scale}
		st.score = &kernel.DropScoreArgs{Cache: source, Q: q, A: outputs, LSE: lse, Scores: scores, QBatchStride: qHeads * w * d, QHeadStride: w * d, QRowStride: d,
			ABatchStride: qHeads * w * d, AHeadStride: w * d, ARowStride: d, LSEBatchStride: qHeads * w, LSEHeadStride: w, ScoreBatchStride: heads * tokens, ScoreHeadStride: tokens,
			SoftmaxScale: scale, Eps: float32(m2.Drop.Eps)}
		if m2.Drop.Rule == "keydiff" { // a is a row a KV head
			st.score.ABatchStride, st.score.AHeadStride = heads*d, d
		}
		st.pool = &kernel.DropPoolArgs{Scores: scores, SeqLens: source.SeqLens, Pooled: pooled, ScoreBatchStride: heads * tokens, ScoreHeadStride: tokens,
			PooledBatchStride: heads * tokens, PooledHeadStride: tokens, Batch: 1, KVHeads: int32(heads), MaxTokens: int32(tokens), Sinks: r.budget.Sinks}
	}
	var budgets device.Ptr
	if r.spec.DropKV.HeadBudgets.Kind == "adaptive" {
		budgets, kvHeads = m.zeros(heads*4), r.kvHeads
		n, err := r.set.WorkspaceBytes(kernel.DropAllot, r.set.ProblemOf(1, r.kvHeads, ref.MaxPages, 1))
		m.err = errors.Join(m.err, err)
		st.allot = &kernel.DropAllotArgs{Values: pooled, SeqLens: source.SeqLens, Budgets: budgets, Workspace: m.zeros(n), ValueBatchStride: heads * tokens, ValueHeadStride: tokens, Budget: r.budget,
			Batch: 1, KVHeads: int32(heads), MaxTokens: int32(tokens)}
	}
	r.slots = r.budget.Slots(int(tokens), kvHeads)
	slots := int64(r.slots)
	indices, counts := m.zeros(heads*slots*4), m.zeros(heads*4)
	st.choose = &kernel.DropSelectArgs{Values: pooled, SeqLens: source.SeqLens, Budgets: budgets, Indices: indices, Counts: counts, ValueBatchStride: heads * tokens, ValueHeadStride: tokens,
		IndexBatchStride: heads * slots, IndexHeadStride: slots, Budget: r.budget, Batch: 1, KVHeads: int32(heads), MaxTokens: int32(tokens), Slots: int32(slots)}
	if m2.Drop.Rule == "streaming" {
		st.choose.Values = 0
	}
	target := r.target(source)
	st.compact = &kernel.DropCompactArgs{Source: source, Target: target, Indices: indices, Counts: counts, HeadLens: m.zeros(heads * 4), SeqLens: m.zeros(4),
		IndexBatchStride: heads * slots, IndexHeadStride: slots, Slots: int32(slots)}
	return st, r.attendArgs(target, scale)
}

// target is a fresh cache of pages in order, large enough for the fullest head.
func (r *runner) target(source kernel.KVCache) kernel.KVCache {
	pages := (r.slots + page - 1) / page
	table := make([]int32, pages)
	for i := range table {
		table[i] = int32(i)
	}
	t := source
	bytes := int64(pages) * source.KBlockStride * 2
	t.K, t.V, t.BlockTable = r.mem.zeros(bytes), r.mem.zeros(bytes), upload(&r.mem, table)
	t.SeqLens, t.TableStride, t.MaxPages = 0, int64(pages), int32(pages)
	return t
}

// attendArgs let every later query attend to the compacted cache: a batch of requests that share its blocks.
func (r *runner) attendArgs(target kernel.KVCache, scale float32) *kernel.PageAttendArgs {
	d, heads := int64(r.dim), int64(r.queryHeads)
	target.Batch, target.TableStride = int32(r.later), 0 // one row of the table for all
	table := make([]int32, 0, r.later*int(target.MaxPages))
	for range r.later {
		for i := range target.MaxPages {
			table = append(table, i)
		}
	}
	target.BlockTable, target.TableStride = upload(&r.mem, table), int64(target.MaxPages)
	q := r.queries(r.window, r.later) // [query head, later, dim]
	n, err := r.set.WorkspaceBytes(kernel.Dense, r.set.ProblemOf(r.later, r.kvHeads, int(target.MaxPages), 1))
	r.mem.err = errors.Join(r.mem.err, err)
	return &kernel.PageAttendArgs{Cache: target, Q: upload(&r.mem, q), Out: r.mem.zeros(int64(r.later) * heads * d * 2), Workspace: r.mem.zeros(n),
		QBatchStride: d, QHeadStride: int64(r.later) * d, OutBatchStride: heads * d, OutHeadStride: d, SoftmaxScale: scale}
}

// judge attends to what was kept and holds everything against float64.
func (r *runner) judge(ref *reference.Cache, st *stages, attend *kernel.PageAttendArgs, out *row) error {
	counts, indices := make([]int32, r.kvHeads), make([]int32, r.kvHeads*r.slots)
	dev := r.mem.dev
	if err := errors.Join(dev.Read(asBytes(counts), st.choose.Counts), dev.Read(asBytes(indices), st.choose.Indices)); err != nil {
		return err
	}
	out.Kept = counts
	var lens []int32
	lists := make([][]int32, r.kvHeads)
	for h, n := range counts {
		lists[h] = indices[h*r.slots : h*r.slots+int(n)]
	}
	for range r.later {
		lens = append(lens, counts...)
	}
	attend.Cache.HeadLens, attend.Cache.SeqLens = upload(&r.mem, lens), upload(&r.mem, make([]int32, r.later)) // head lengths come first
	if r.mem.err != nil {
		return r.mem.err
	}
	bits := make([]uint16, r.later*r.queryHeads*r.dim)
	if err := errors.Join(r.set.PageAttend(st.stream, attend, st.workload), st.stream.Synchronize(), dev.Read(asBytes(bits), attend.Out)); err != nil {
		return err
	}
	out.SameAsFloat64 = r.overlap(ref, lists)
	r.compare(ref, lists, bits, out)
	return nil
}

// overlap is the share of the kept tokens that float64's own observation, scores and budgets keep.
func (r *runner) overlap(ref *reference.Cache, lists [][]int32) float64 {
	k := r.spec.DropKV
	rule := reference.DropRule(k.Rule)
	scoring := reference.DropScoring{Rule: rule, Logits: reference.Logits{Scale: r.spec.Attention.SoftmaxScale}, Group: r.queryHeads / r.kvHeads, Eps: k.Eps, OutputEpsilon: 0x1p-24}
	budget := reference.DropBudget{Kind: k.HeadBudgets.Kind, Ratio: r.budget.Ratio, Floor: k.HeadBudgets.Floor, Window: r.window, Sinks: k.SinkTokens}
	var values [][]float64
	for h := range r.kvHeads {
		t := ref.DropTokens(0, h)
		var rows []reference.DropRow
		if rule.Queries() {
			rows = ref.DropRows(t, r.voters(), 0, h, scoring.Logits)
		}
		scores := scoring.Scores(t, rows, t.Anchor()).Score
		if rule != reference.Streaming {
			scores = reference.DropPool{Kind: k.Pool.Kind, Width: k.Pool.Width}.Pool(scores, r.window, k.SinkTokens)
		}
		values = append(values, scores)
	}
	same, all := 0, 0
	for h, want := range budget.Select(values) {
		in := map[int32]bool{}
		for _, j := range want {
			in[j] = true
		}
		for _, j := range lists[h] {
			all++
			if in[j] {
				same++
			}
		}
	}
	return float64(same) / float64(max(all, 1))
}

// compare holds the outputs of the later queries against float64 attention to the whole prompt, and to the kept tokens.
func (r *runner) compare(ref *reference.Cache, lists [][]int32, bits []uint16, out *row) {
	group := r.queryHeads / r.kvHeads
	l := reference.Logits{Scale: r.spec.Attention.SoftmaxScale}
	var norm, moved, added, mass float64
	for h := range r.kvHeads {
		whole := ref.DropTokens(0, h)
		kept := whole
		kept.Missing = make([]bool, whole.N)
		for j := range kept.Missing {
			kept.Missing[j] = true
		}
		for _, j := range lists[h] {
			kept.Missing[j] = false
		}
		for g := range group {
			head := h*group + g
			for i := range r.later {
				at := (head*r.positions + r.window + i) * r.dim
				q := make([]float64, r.dim)
				reference.BF16.Values(q, r.q[at:at+r.dim])
				full, part := whole.Observe(q, whole.N-1, l), kept.Observe(q, whole.N-1, l)
				mass += math.Exp(part.LSE - full.LSE)
				for d := range full.Out {
					got := reference.FromBF16(bits[(i*r.queryHeads+head)*r.dim+d])
					norm += full.Out[d] * full.Out[d]
					moved += (got - full.Out[d]) * (got - full.Out[d])
					added += (got - part.Out[d]) * (got - part.Out[d])
				}
			}
		}
	}
	out.Mass = mass / float64(r.queryHeads*r.later)
	out.OutputError, out.KernelError = math.Sqrt(moved/norm), math.Sqrt(added/norm)
}
