package verify

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const scoreMetric = "score, nats"

// nanRecord is the case in which some records carry the mark of a non-finite page.
const nanRecord = "NaN record"

func init() { register(plan.PageScore, checkPageScore) }

// checkPageScore compares page_score with equation 2 in float64 on the same records (built by the reference, so that a fault of
// page_summary cannot hide one of page_score), and with the exact log-sum-exp where a page is still filling. Pages at and beyond
// the live count must keep their poison.
func checkPageScore(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, scoreMetric, scoreCases(s, o), func(k *Kernel, cs Case) []Result {
		return []Result{scoreCase(e, s, k, cs, o.Seed)}
	})
}

// scoreCases adds what concerns this family alone: tiles of 16 pages, and requests by the 32.
func scoreCases(s *specs.Spec, o Options) []Case {
	p, few := s.Cache.PageSize, min(s.Attention.KVHeads, 2)
	many := make([]int, 70)
	for i := range many {
		many[i] = []int{0, 2*p + 1, p, 0, 17*p - 1}[i%5]
	}
	own := []Case{
		{Name: nanRecord, Reason: "a page with a non-finite key has a NaN centroid scale: its scores are NaN, no others", KVHeads: few, Lens: []int{19 * p}, Layout: TokenMajor, Data: Random},
		{Name: "around a tile", Reason: "15, 16 and 17 pages: the edge of a warp's tile", KVHeads: few, Lens: []int{15 * p, 16 * p, 17 * p, 16*p + 1}, Layout: TokenMajor, Data: Random},
		{Name: "70 requests", Reason: "tasks are scanned 32 requests at a time", KVHeads: 1, Lens: many, Layout: TokenMajor, Data: Random},
	}
	cases := Cases(s, o)
	for _, c := range own {
		if o.Wants(c.Name) {
			cases = append(cases, c)
		}
	}
	return cases
}

// scoreCase runs every launch of a case.
func scoreCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64) Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return Failed(c.Name, scoreMetric, err)
	}
	a := e.NewArena()
	t := NewTally(c.Name, scoreMetric, ScoreBound(0))
	run, err := newScoreRun(e, k, p, a)
	if err == nil {
		err = run.all(t)
	}
	t.Err(errors.Join(err, a.Free()))
	return t.Result()
}

// buildAll makes the record of every page that is complete at any launch; pages of -1 and of padding have none. Leaves the problem at
// launch 0.
func (p *Problem) buildAll() (all reference.Summaries) {
	for i := range p.Case.Launches() {
		p.SetLaunch(i)
		built := p.Cache.Build(p.Shape)
		if all.Records == nil {
			all = built
		}
		maps.Copy(all.Records, built.Records)
	}
	p.SetLaunch(0)
	return all
}

// scoreRun is one case on the device.
type scoreRun struct {
	*DeviceProblem
	env       *Env
	kernel    *Kernel
	summaries reference.Summaries
	rows      Rows // of scores [batch, q head, page]
	out       *Buffer
	masses    *Buffer
	args      kernel.PageScoreArgs
}

func newScoreRun(e *Env, k *Kernel, p *Problem, a *Arena) (*scoreRun, error) {
	d, err := p.Upload(a)
	if err != nil {
		return nil, err
	}
	r := &scoreRun{DeviceProblem: d, env: e, kernel: k, rows: p.Rows(p.Q.Heads, p.maxGroups(), 4), summaries: p.buildAll()}
	if p.Case.Name == nanRecord {
		for page := 1; page < p.Groups(0); page += 5 {
			for head := range p.Cache.KVHeads {
				record := r.summaries.Records[reference.RecordKey{Block: p.Cache.GroupBlock(0, page), Head: head}]
				if p.Shape.Scorer != specs.ExactLSE { // which has no records
					binary.LittleEndian.PutUint16(record[p.Shape.Layout().MuScale:], nanBits)
				}
			}
		}
	}
	records, err := d.NewSummaryBuffer()
	if err != nil {
		return nil, err
	}
	if err := records.Put(r.summaries.Records); err != nil {
		return nil, err
	}
	if r.out, err = a.Alloc("scores", 4*r.rows.Elements()); err != nil {
		return nil, err
	}
	if r.masses, err = a.Alloc("masses", kernel.MassesBytes(p.Q.Heads)); err != nil {
		return nil, err
	}
	r.args = kernel.PageScoreArgs{
		Cache: d.Args(), Q: d.Q.Ptr(), Summaries: records.Ptr(), Scores: r.out.Ptr(), Masses: r.masses.Ptr(), Centre: d.Centre,
		QBatchStride: d.QRows.BatchStride, QHeadStride: d.QRows.RowStride,
		SummaryBlockStride: records.BlockStride, SummaryHeadStride: records.HeadStride,
		ScoreBatchStride: r.rows.BatchStride, ScoreHeadStride: r.rows.RowStride,
		SoftmaxScale: float32(p.Logits.Scale), LogitSoftcap: float32(p.Logits.Softcap),
	}
	return r, nil
}

// all captures the launch once and replays it at every length of the case.
func (r *scoreRun) all(t *Tally) error {
	problem := r.env.LaunchProblem(r.Problem)
	graph, err := r.env.Capture(func(s device.Stream) error { return Enqueue(r.kernel, s, problem, &r.args) })
	if err != nil {
		return err
	}
	for i := range r.Case.Launches() {
		r.SetLaunch(i)
		err = errors.Join(r.WriteLens(), r.out.Poison(), r.masses.Poison())
		if err == nil {
			err = graph.Run()
		}
		if err == nil {
			err = r.compare(t, i)
		}
		if err != nil {
			break
		}
	}
	return errors.Join(err, graph.Close())
}

// compare checks one launch's scores.
func (r *scoreRun) compare(t *Tally, at int) error {
	data, err := r.out.Read()
	if err != nil {
		return err
	}
	if err := errors.Join(r.Arena.Check(), r.rows.Untouched(data, 4, func(b, _, page int) bool { return page < r.Groups(b) })); err != nil {
		return fmt.Errorf("launch %d: %w", at, err)
	}
	scores := Float32s(data)
	if err := r.checkMasses(at, scores, r.mustLeaveMasses()); err != nil {
		return err
	}
	want := r.Cache.Score(r.summaries, r.Problem.Q, r.Logits)
	for b, heads := range want.Score {
		for h, row := range heads {
			bound := ScoreBound(want.Largest[b][h])
			first := r.rows.At(b, h)
			for page, value := range row {
				got := scores[first+int64(page)]
				t.Add(ScoreError(got, value), bound, func() string {
					return fmt.Sprintf("launch %d, request %d, query head %d, page %d: score %g, reference %g", at, b, h, page, got, value)
				})
			}
		}
	}
	if len(want.Score) > 0 && r.live() == 0 {
		t.Passed(1) // that nothing was written
	}
	return nil
}

// mustLeaveMasses reports whether the kernel is one that leaves masses, and no page of the case makes it score in another way.
func (r *scoreRun) mustLeaveMasses() bool {
	c := r.kernel.Candidate
	return (c.Kernel == "kvloom::page_score_imma" || c.Kernel == "kvloom::page_score_pages") && c.Param("heads") >= r.Cache.KVHeads && r.Case.Data != Wide && r.Case.Data != Extreme && r.Case.Data != Degenerate
}

// live is the pages of all requests at this launch.
func (r *scoreRun) live() (n int) {
	for b := range r.Cache.Batch() {
		n += r.Pages(b)
	}
	return n
}
