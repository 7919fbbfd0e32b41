package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

func init() { register(plan.PageSelectAttend, checkPageSelectAttend) }

// checkPageSelectAttend compares the lists of page_select_attend with the float64 choice among the scores that it was given, as
// checkPageSelect does, and its outputs and log-sum-exps with float64 attention over the pages that it chose; with masses beside the
// scores and without.
func checkPageSelectAttend(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, selectMetric, attendCases(s, o), func(k *Kernel, cs Case) []Result {
		return selectAttendCase(e, s, k, cs, o.Seed, (*selectAttendRun).normal, (*selectAttendRun).few, (*selectAttendRun).withNaN)
	})
}

func selectAttendCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64, fills ...func(r *selectAttendRun, page int) float32) []Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, selectMetric, err)}
	}
	p.squeeze()
	a := e.NewArena()
	r := &selectAttendRun{chosen: NewTally(c.Name, selectMetric, SelectBound), rand: rand.New(rand.NewPCG(seed, 0x73656c)),
		attendRun: attendRun{env: e, kernel: k, out: NewTally(c.Name, attendMetric, AttendBound), lse: NewTally(c.Name, lseMetric, ScoreBound(0))}}
	err = r.prepareBoth(p, a)
	for _, fill := range fills {
		r.fill = func(page int) float32 { return fill(r, page) }
		for _, r.massed = range []bool{false, true} {
			if err == nil && (!r.massed || p.Cache.Batch() == 1) {
				err = e.EachLaunch(c, r.enqueue, r.once)
			}
		}
	}
	r.chosen.Err(errors.Join(err, a.Free()))
	if err != nil {
		return []Result{r.chosen.Result()} // the rest was not compared
	}
	return []Result{r.chosen.Result(), r.out.Result(), r.lse.Result()}
}

// selectAttendRun is one case on the device.
type selectAttendRun struct {
	attendRun
	chosen         *Tally
	rand           *rand.Rand
	fill           func(page int) float32
	massed         bool // masses stand beside the scores
	scoreRows      Rows // [batch, q head, page]
	values         []float32
	scores, masses *Buffer
}

func (r *selectAttendRun) normal(int) float32 { return float32(4 * r.rand.NormFloat64()) }

// few ties by the dozen, so that the radix kernel chooses.
func (r *selectAttendRun) few(page int) float32 { return float32(page % 3) }

func (r *selectAttendRun) withNaN(page int) float32 {
	if page == 3 {
		return nan32
	}
	return r.normal(page)
}

func (r *selectAttendRun) prepareBoth(p *Problem, a *Arena) (err error) {
	if err := r.prepare(p, a); err != nil {
		return err
	}
	r.scoreRows = p.Rows(p.Q.Heads, p.Cache.MaxPages, 4)
	r.values = make([]float32, r.scoreRows.Elements())
	if r.scores, err = a.Alloc("scores", 4*r.scoreRows.Elements()); err != nil {
		return err
	}
	r.masses, err = a.Alloc("masses", kernel.MassesBytes(p.Q.Heads))
	return err
}

func (r *selectAttendRun) enqueue(s device.Stream) error {
	args := kernel.PageSelectAttendArgs{Attend: *r.args(false), Select: kernel.PageSelectArgs{
		Scores: r.scores.Ptr(), SeqLens: r.SeqLens.Ptr(), Pages: r.pages.Ptr(), Counts: r.counts.Ptr(), Workspace: r.space.Ptr(),
		ScoreBatchStride: r.scoreRows.BatchStride, ScoreHeadStride: r.scoreRows.RowStride,
		PagesBatchStride: r.listRows.BatchStride, PagesListStride: r.listRows.RowStride,
		Batch: int32(r.Cache.Batch()), KVHeads: int32(r.Cache.KVHeads), MaxPages: int32(r.Cache.MaxPages), Slots: int32(r.Slots),
		SinkPages: int32(r.Budget.SinkPages), RecentPages: int32(r.Budget.RecentPages)}}
	if r.massed {
		args.Select.Masses = r.masses.Ptr()
	}
	return Enqueue(r.kernel, s, r.launch, &args)
}

func (r *selectAttendRun) once(graph *Replay, at int) error {
	r.SetLaunch(at)
	for b := range r.Cache.Batch() {
		for h := range r.Problem.Q.Heads {
			row := r.values[r.scoreRows.At(b, h):][:r.Cache.MaxPages]
			for page := range row {
				row[page] = r.fill(page)
			}
		}
	}
	err := errors.Join(r.WriteLens(), r.scores.Write(BytesOfFloat32(r.values)), r.scores.Freeze())
	if err == nil && r.massed {
		err = errors.Join(r.masses.Write(BytesOfFloat32(massesOf(r.values, r.scoreRows, r.Problem.Q.Heads, r.Pages(0)))), r.masses.Freeze())
	}
	var first []byte
	for try := 0; try < 2 && err == nil; try++ {
		if err = errors.Join(r.pages.Poison(), r.counts.Poison(), r.output.Poison(), r.lseOut.Poison(), graph.Run(), r.Arena.Check()); err != nil {
			return err
		}
		var all []byte
		var parts [4][]byte
		for i, b := range []*Buffer{r.pages, r.counts, r.output, r.lseOut} {
			if parts[i], err = b.Read(); err != nil {
				return err
			}
			all = append(all, parts[i]...)
		}
		if try == 1 {
			if !bytes.Equal(first, all) {
				return errors.New("a second launch gave other bytes: the kernel is not repeatable")
			}
			break
		}
		first, err = all, r.compareBoth(at, parts)
	}
	return errors.Join(err, r.kernel.CheckCounters(r.launch, r.space))
}

// compareBoth judges one launch's lists, then the attention over them.
func (r *selectAttendRun) compareBoth(at int, parts [4][]byte) error {
	lists, err := KernelLists(r.listRows, Int32s(parts[0]), Int32s(parts[1]))
	if err != nil {
		return err
	}
	everything := func(int, int, int) bool { return true }
	if err := errors.Join(r.listRows.Untouched(parts[0], 4, everything), r.rows.Untouched(parts[2], 2, everything)); err != nil {
		return err
	}
	heads := r.Problem.Q.Heads / r.Problem.Lists()
	for b := range lists {
		for list, chosen := range lists[b] {
			n := r.Pages(b)
			if want := min(r.Slots, n); len(chosen) != want {
				return fmt.Errorf("request %d, list %d: %d pages chosen, the contract wants %d of %d", b, list, len(chosen), want, n)
			}
			if n == 0 {
				continue
			}
			scores := make([][]float64, heads)
			for h := range scores {
				for _, v := range r.values[r.scoreRows.At(b, list*heads+h):][:n] {
					scores[h] = append(scores[h], float64(v))
				}
			}
			excess, err := JudgeSelection(r.Rule, r.Budget, scores, chosen)
			if err != nil {
				return fmt.Errorf("request %d, list %d: %w", b, list, err)
			}
			r.chosen.Add(excess, SelectBound, func() string { return fmt.Sprintf("launch %d, request %d, list %d", at, b, list) })
		}
	}
	r.chosen.Passed(1) // a launch without live requests has nothing to choose
	r.compare(at, "chosen pages", parts[2], parts[3], r.Cache.AttendAll(r.Problem.Q, lists, r.Logits))
	return nil
}
