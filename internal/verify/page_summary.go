package verify

import (
	"context"
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

func init() { register(plan.PageSummary, checkPageSummary) }

// checkPageSummary builds the pages of every case, then of its replays incrementally, and judges every record (summaryJudge).
// Records of pages that no launch had to build keep their bytes; built_lens and the workspace are as promised.
func checkPageSummary(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, spanMetric, summaryCases(s, o), func(k *Kernel, cs Case) []Result {
		return summaryCase(ctx, e, s, k, cs, o.Seed, gridsFor(c, cs))
	})
}

// gridsFor are the numbers of new pages that launches of a case are sized for, 0 for those of its longest request. The direct form builds
// another way where a launch was sized for one page a request, as in a decode step, and any number of pages must come out right both ways:
// by the smallest grid of the usual way, whose warps take turn after turn, and by that of a step.
func gridsFor(c plan.Candidate, cs Case) []int64 {
	switch {
	case c.Kernel == "kvloom::page_summary_tridiagonal":
		return []int64{2 + int64(4*c.Param("warps")/cs.KVHeads), 1}
	case cs.Name == oneBlock:
		return []int64{1}
	}
	return []int64{0}
}

// summaryCases adds what concerns this family alone.
func summaryCases(s *specs.Spec, o Options) []Case {
	p, few := s.Cache.PageSize, min(s.Attention.KVHeads, 2)
	own := []Case{
		{Name: "pages filled while decoding", Reason: "0, 1 and several pages become complete between launches; a cut-back request is built anew",
			KVHeads: few, Lens: []int{3*p - 1, p, 0}, Replays: [][]int{{3*p - 1, p, 0}, {3 * p, p + 1, 2 * p}, {8*p + 1, p, 2*p + 1}, {9 * p, 2 * p, 5 * p}},
			Layout: TokenMajor, Data: Random},
		{Name: notFinite, Reason: "a NaN or an infinite key makes the whole page's centroid scale NaN and its codes zero", KVHeads: few, Lens: []int{7*p + 1}, Layout: HeadMajor, Data: Random},
		{Name: oddStrides, Reason: "keys that are not 16-byte aligned are read one by one", KVHeads: few, Lens: []int{6 * p}, Layout: Padded, Data: Random},
		{Name: equalSpan, Reason: "no direction is better than another, exactly and nearly", KVHeads: few, Lens: []int{6 * p}, Layout: TokenMajor, Data: Random},
		{Name: decaying, Reason: "each direction holds e times less energy than the one before", KVHeads: few, Lens: []int{6 * p}, Layout: TokenMajor, Data: Random},
		{Name: farKeys, Reason: "what rounding leaves of the centroid in a direction", KVHeads: few, Lens: []int{6 * p}, Layout: TokenMajor, Data: Random},
		{Name: hugeKeys, Reason: "squares of the largest finite keys overflow float32", KVHeads: few, Lens: []int{4 * p}, Layout: TokenMajor, Data: Random},
		{Name: tinyKeys, Reason: "squares of tiny keys vanish in float32", KVHeads: few, Lens: []int{4 * p}, Layout: TokenMajor, Data: Random},
		{Name: oneBlock, Reason: "a grid sized for one new page builds any number", KVHeads: few, Lens: []int{40 * p, 0, 7 * p}, Layout: TokenMajor, Data: Random},
	}
	if s.Locks.Basis == plan.QueryWeighted {
		own = append(own, Case{Name: noQueries, Reason: "a second moment of zero weighs all directions alike", KVHeads: few, Lens: []int{4 * p}, Layout: TokenMajor, Data: Random},
			Case{Name: oneQuery, Reason: "a second moment of rank 1 leaves what shrinkage gives the other directions", KVHeads: few, Lens: []int{4 * p}, Layout: TokenMajor, Data: Random})
	}
	cases := Cases(s, o)
	for _, c := range own {
		if o.Wants(c.Name) {
			cases = append(cases, c)
		}
	}
	return cases
}

func summaryCase(ctx context.Context, e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64, grids []int64) []Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, spanMetric, err)}
	}
	plant(p, seed)
	if c.Name == oddStrides {
		p.Cache.KStrides.Token += 3
		p.Cache.KStrides.Block = int64(p.Cache.PageSize)*p.Cache.KStrides.Token + 5
		p.Cache.KBase = 7
	}
	a := e.NewArena()
	j := newSummaryJudge(p)
	j.weights = summaryWeights(p, seed)
	run, err := newSummaryRun(e, k, p, a, packWeights(j.weights))
	for _, pages := range grids {
		if err == nil {
			err = run.all(ctx, j, pages)
		}
	}
	j.span.Err(errors.Join(err, a.Free()))
	return j.results()
}

// summaryRun is one case on the device.
type summaryRun struct {
	*DeviceProblem
	env              *Env
	kernel           *Kernel
	records          *SummaryBuffer
	built, workspace *Buffer
	args             kernel.PageSummaryArgs
	before           []int32 // built_lens before the launch
}

func newSummaryRun(e *Env, k *Kernel, p *Problem, a *Arena, weights []byte) (*summaryRun, error) {
	d, err := p.Upload(a)
	if err != nil {
		return nil, err
	}
	r := &summaryRun{DeviceProblem: d, env: e, kernel: k, before: make([]int32, p.Cache.Batch())}
	if r.records, err = d.NewSummaryBuffer(); err != nil {
		return nil, err
	}
	if r.built, err = a.Alloc("built_lens", int64(4*len(r.before))); err != nil {
		return nil, err
	}
	if r.workspace, err = k.Workspace(e.LaunchProblem(p)); err != nil {
		return nil, err
	}
	r.args = kernel.PageSummaryArgs{Cache: d.Args(), Summaries: r.records.Ptr(), BuiltLens: r.built.Ptr(), Workspace: r.workspace.Ptr(), Centre: d.Centre,
		SummaryBlockStride: r.records.BlockStride, SummaryHeadStride: r.records.HeadStride}
	if len(weights) > 0 {
		factors, err := a.Alloc("weights", int64(len(weights)))
		if err == nil {
			err = factors.Write(weights)
		}
		if err != nil {
			return nil, err
		}
		r.args.Weights = factors.Ptr()
	}
	return r, nil
}

// all captures the launch once and replays it at every length of the case; then the last launch again, which must write the same.
// Its grid is sized for pages new pages a request, where not 0.
func (r *summaryRun) all(ctx context.Context, j *summaryJudge, pages int64) error {
	problem := r.env.LaunchProblem(r.Problem)
	if pages > 0 {
		problem.NewPages = pages
	}
	clear(r.before)
	if err := r.built.Write(BytesOfInt32(r.before)); err != nil {
		return err
	}
	graph, err := r.env.Capture(func(s device.Stream) error { return Enqueue(r.kernel, s, problem, &r.args) })
	if err != nil {
		return err
	}
	var first, again map[reference.RecordKey][]byte
	for i := range r.Case.Launches() {
		if err = ctx.Err(); err != nil {
			break
		}
		r.SetLaunch(i)
		before := append([]int32(nil), r.before...)
		if first, err = r.launch(graph, j, i); err != nil {
			break
		}
		j.records(r.Cache, first, i)
		if i+1 == len(r.Case.Launches()) {
			r.before = before
			if err = r.built.Write(BytesOfInt32(before)); err == nil {
				again, err = r.launch(graph, j, i)
			}
		}
	}
	if err == nil {
		j.same(first, again)
	}
	return errors.Join(err, graph.Close())
}

// launch replays the graph over unwritten records and returns those of the pages that it had to build.
func (r *summaryRun) launch(graph *Replay, j *summaryJudge, at int) (map[reference.RecordKey][]byte, error) {
	err := r.WriteLens()
	if !r.records.sparse() {
		err = errors.Join(err, r.records.Fill(0xff))
	}
	if err == nil {
		err = graph.Run()
	}
	if err != nil {
		return nil, fmt.Errorf("launch %d: %w", at, err)
	}
	want := map[reference.RecordKey][]byte{}
	after := make([]int32, len(r.before))
	for b, n := range r.Cache.SeqLens {
		tokens := r.Cache.SummaryTokens()
		pages := int(n) / tokens
		after[b] = int32(pages * tokens)
		for page := int(r.before[b]) / tokens; page < pages; page++ {
			if id := r.Cache.GroupBlock(b, page); id >= 0 {
				for h := range r.Cache.KVHeads {
					j.place[id] = [2]int{b, page}
					want[reference.RecordKey{Block: id, Head: h}] = nil
				}
			}
		}
	}
	got, err := r.built.Read()
	if err != nil {
		return nil, err
	}
	for b, n := range Int32s(got) {
		if n != after[b] {
			j.span.Fail("launch %d: built_lens of request %d is %d, expected %d", at, b, n, after[b])
		}
	}
	r.before = after
	j.span.Passed(int64(len(after)))
	if err := errors.Join(r.Arena.Check(), r.workspace.CheckZero(4), r.read(want)); err != nil {
		return nil, fmt.Errorf("launch %d: %w", at, err)
	}
	return want, nil
}

// read fills in the records of the keys given, and reports a byte outside them that was written.
func (r *summaryRun) read(want map[reference.RecordKey][]byte) (err error) {
	size := int64(r.Shape.Layout().Bytes)
	if r.records.sparse() {
		for key := range want {
			if want[key], err = r.records.ReadAt(r.records.At(key), size); err != nil {
				return err
			}
		}
		return nil
	}
	image, err := r.records.Read()
	if err != nil {
		return err
	}
	for key := range want {
		own := image[r.records.At(key) : r.records.At(key)+size]
		want[key] = append([]byte(nil), own...)
		for i := range own {
			own[i] = 0xff
		}
	}
	for i, x := range image {
		if x != 0xff {
			return fmt.Errorf("the build wrote outside the records of new pages: byte %d of summaries, %d of its block", i, int64(i)%r.records.BlockStride)
		}
	}
	return nil
}
