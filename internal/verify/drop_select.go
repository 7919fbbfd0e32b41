package verify

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const (
	tokensMetric = "kept tokens, wrong"
	allotMetric  = "head budgets, wrong"
)

func init() {
	register(plan.DropSelect, checkDropSelect)
	register(plan.DropPoolSelect, checkDropPoolSelect)
	register(plan.DropAllot, checkDropAllot)
}

// namedBudget is one budget that every case is run with.
type namedBudget struct {
	name string
	reference.DropBudget
}

// dropBudgets are the spec's own, and what its kernels must also serve, for a budget is an argument.
func dropBudgets(s *specs.Spec, adaptive bool) []namedBudget {
	k := s.DropKV
	own := reference.DropBudget{Kind: "uniform", Ratio: k.Budget.Ratio, Tokens: k.Budget.Tokens, Window: k.Window, Sinks: k.SinkTokens}
	with := func(name string, change func(*reference.DropBudget)) namedBudget {
		b := namedBudget{name, own}
		change(&b.DropBudget)
		if adaptive {
			b.Kind = "adaptive"
		}
		return b
	}
	list := []namedBudget{
		with("own", func(b *reference.DropBudget) { b.Floor = 0.2 }),
		with("ratio .07", func(b *reference.DropBudget) { b.Ratio, b.Floor = 0.07, 0.5 }),
		with("ratio 1", func(b *reference.DropBudget) { b.Ratio = 1 }),
		with("one token", func(b *reference.DropBudget) { b.Ratio, b.Tokens = 0, 1 }),
		with("k > n", func(b *reference.DropBudget) { b.Ratio, b.Tokens = 0, 1<<20 }),
		with("window and 5 sinks", func(b *reference.DropBudget) { b.Ratio, b.Tokens, b.Sinks = 0, b.Window+3, 5 }),
		with("half", func(b *reference.DropBudget) { b.Ratio, b.Floor = 0.5, 0.5 }),
		with("half, 2 sinks", func(b *reference.DropBudget) { b.Ratio, b.Sinks, b.Floor = 0.5, 2, 1 }),
	}
	if !adaptive {
		list = append(list,
			with("pyramid, first layer", func(b *reference.DropBudget) { b.Kind, b.Ratio, b.Layer, b.Layers = "pyramid", 0.3, 0, 5 }),
			with("pyramid, last layer", func(b *reference.DropBudget) { b.Kind, b.Ratio, b.Layer, b.Layers = "pyramid", 0.3, 4, 5 }),
			with("explicit", func(b *reference.DropBudget) {
				b.Kind, b.List = "explicit", slices.Repeat([]int{40, 1, 90, 7, 1 << 20}, 4)
			}))
	}
	return list
}

// args are a budget's as kernels take it.
func (b namedBudget) args() kernel.DropBudget {
	a := kernel.DropBudget{Ratio: b.Ratio, Floor: b.Floor, Tokens: int32(b.Tokens), Window: int32(b.Window), Sinks: int32(b.Sinks)}
	if b.Kind == "pyramid" {
		a.Layer, a.Layers = int32(b.Layer), int32(b.Layers)
	}
	return a
}

// checkDropSelect compares drop_select with the float64 choice among the same values, token for token: it is exact. Values null are
// the streaming rule's.
func checkDropSelect(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachBudget(ctx, e, s, c, o, tokensMetric, false, selectTokens)
}

// checkDropPoolSelect compares drop_pool_select with the float64 choice among values that are pooled as f32 pools them: it is exact.
func checkDropPoolSelect(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachBudget(ctx, e, s, c, o, tokensMetric, false, selectTokens)
}

// pooled are a layer's values as f32 pools them: a maximum is exact, and a mean is a sum, from the lowest neighbour up, over their number.
func pooled(s *specs.Spec, layer [][]float64) (out [][]float64) {
	k := s.DropKV
	pool := reference.DropPool{Kind: k.Pool.Kind, Width: k.Pool.Width}
	for _, values := range layer {
		of := pool.Pool(values, k.Window, 0)
		if end := max(len(values)-k.Window, 0); k.Pool.Kind == "avg" {
			for j := range end {
				low, high := max(j-k.Pool.Width/2, 0), min(j+k.Pool.Width/2+1, end)
				var sum float32
				for _, v := range values[low:high] {
					sum += float32(v)
				}
				of[j] = float64(sum / float32(high-low))
			}
		}
		out = append(out, of)
	}
	return out
}

// checkDropAllot compares drop_allot's budgets with the number of tokens that the float64 allocation gives each head.
func checkDropAllot(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachBudget(ctx, e, s, c, o, allotMetric, true, allotTokens)
}

type budgetCase func(e *Env, s *specs.Spec, k *Kernel, p *valueProblem, b namedBudget, a *Arena, t *Tally) error

func eachBudget(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options, metric string, adaptive bool, run budgetCase) []Result {
	k, err := e.Kernel(c)
	if err != nil {
		return []Result{Failed("load", metric, err)}
	}
	var results []Result
	for _, cs := range valueCases(o, s.DropKV.Window) {
		p := newValueProblem(cs, s.Cache.PageSize, o.Seed)
		t := NewTally(cs.Name, metric, 0)
		for _, b := range dropBudgets(s, adaptive) {
			if ctx.Err() != nil {
				break
			}
			a := e.NewArena()
			if err := errors.Join(run(e, s, k, p, b, a, t), a.Free()); err != nil {
				t.Err(fmt.Errorf("budget %q: %w", b.name, err))
			}
		}
		results = append(results, t.Result())
	}
	return results
}

func selectTokens(e *Env, s *specs.Spec, k *Kernel, p *valueProblem, b namedBudget, a *Arena, t *Tally) error {
	slots := p.maxTokens
	rows := Rows{Batch: p.rows.Batch, Rows: p.Heads, Width: slots, RowStride: int64(slots) + 1, BatchStride: int64(p.Heads)*int64(slots+1) + 2}
	values, err := a.Input("values", BytesOfFloat32(p.values))
	if err != nil {
		return err
	}
	lens, err := a.Alloc("seq_lens", int64(4*p.rows.Batch))
	if err != nil {
		return err
	}
	indices, err := a.Alloc("indices", 4*rows.Elements())
	if err != nil {
		return err
	}
	counts, err := a.Alloc("counts", int64(4*rows.Batch*rows.Rows))
	if err != nil {
		return err
	}
	args := kernel.DropSelectArgs{Values: values.Ptr(), SeqLens: lens.Ptr(), Indices: indices.Ptr(), Counts: counts.Ptr(),
		ValueBatchStride: p.rows.BatchStride, ValueHeadStride: p.rows.RowStride, IndexBatchStride: rows.BatchStride, IndexHeadStride: rows.RowStride,
		Budget: b.args(), Batch: int32(rows.Batch), KVHeads: int32(rows.Rows), MaxTokens: int32(p.maxTokens), Slots: int32(slots)}
	streaming := s.DropKV.Rule == "streaming"
	if streaming {
		args.Values = 0
	}
	if b.Kind == "explicit" {
		budgets, err := a.Input("budgets", BytesOfInt32(lens32(b.List[:p.Heads])))
		if err != nil {
			return err
		}
		args.Budgets = budgets.Ptr()
	}
	problem := p.launch(e, s.Cache.PageSize, slots)
	enqueue := func(stream device.Stream) error { return Enqueue(k, stream, problem, &args) }
	return replayed(e, a, p.launches(), lens, []*Buffer{indices, counts}, enqueue, func(at int, live []int, data [][]byte) error {
		if err := rows.Untouched(data[0], 4, func(int, int, int) bool { return true }); err != nil {
			return err
		}
		lists, err := KernelLists(rows, Int32s(data[0]), Int32s(data[1]))
		if err != nil {
			return err
		}
		for request, n := range live {
			layer := p.layer(request, n)
			if streaming {
				for h := range layer {
					for j := range layer[h] {
						layer[h][j] = float64(j)
					}
				}
			}
			if k.Candidate.Family == plan.DropPoolSelect {
				layer = pooled(s, layer)
			}
			for h, want := range b.Select(layer) {
				if got := lists[request][h]; !slices.Equal(got, want) {
					return fmt.Errorf("launch %d, request %d, KV head %d of %d tokens: %s", at, request, h, n, firstDifference(got, want))
				}
				t.Passed(int64(len(want)) + 1)
			}
		}
		return nil
	})
}

func firstDifference(got, want []int32) string {
	for i := range min(len(got), len(want)) {
		if got[i] != want[i] {
			return fmt.Sprintf("entry %d of %d is token %d, reference %d", i, len(got), got[i], want[i])
		}
	}
	return fmt.Sprintf("%d tokens kept, reference %d", len(got), len(want))
}

func allotTokens(e *Env, s *specs.Spec, k *Kernel, p *valueProblem, b namedBudget, a *Arena, t *Tally) error {
	values, err := a.Input("values", BytesOfFloat32(p.values))
	if err != nil {
		return err
	}
	lens, err := a.Alloc("seq_lens", int64(4*p.rows.Batch))
	if err != nil {
		return err
	}
	budgets, err := a.Alloc("budgets", int64(4*p.rows.Batch*p.Heads))
	if err != nil {
		return err
	}
	problem := p.launch(e, s.Cache.PageSize, p.maxTokens)
	space, err := k.Workspace(problem)
	if err != nil {
		return err
	}
	args := kernel.DropAllotArgs{Values: values.Ptr(), SeqLens: lens.Ptr(), Budgets: budgets.Ptr(), Workspace: space.Ptr(), ValueBatchStride: p.rows.BatchStride, ValueHeadStride: p.rows.RowStride,
		Budget: b.args(), Batch: int32(p.rows.Batch), KVHeads: int32(p.Heads), MaxTokens: int32(p.maxTokens)}
	enqueue := func(stream device.Stream) error { return Enqueue(k, stream, problem, &args) }
	return replayed(e, a, p.launches(), lens, []*Buffer{budgets}, enqueue, func(at int, live []int, data [][]byte) error {
		got := Int32s(data[0])
		for request, n := range live {
			for h, list := range b.Select(p.layer(request, n)) {
				if g := got[request*p.Heads+h]; int(g) != len(list) {
					return fmt.Errorf("launch %d, request %d, KV head %d of %d tokens keeps %d, reference %d", at, request, h, n, g, len(list))
				}
				t.Passed(1)
			}
		}
		return nil
	})
}
