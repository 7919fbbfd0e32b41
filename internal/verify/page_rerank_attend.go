package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

func init() { register(plan.PageRerankAttend, checkRerankAttend) }

// checkRerankAttend compares the lists of page_rerank_attend as checkPageRerank does, and its outputs and log-sum-exps with float64
// attention over the pages that it chose. What page_select_rerank_attend proposes is compared with the float64 choice among the estimates
// that it was given, as checkPageSelect does.
func checkRerankAttend(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, rerankMetric, Cases(s, o), func(k *Kernel, cs Case) []Result {
		if cs.HeadLens { // of compacted caches, which have no page summaries
			return nil
		}
		return rerankAttendCase(e, s, k, cs, o.Seed, c.Family == plan.PageSelectRerankAttend)
	})
}

func rerankAttendCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64, selects bool) []Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, rerankMetric, err)}
	}
	p.squeeze()
	a := e.NewArena()
	t, o := NewTally(c.Name, rerankMetric, EndToEndBound), NewTally(c.Name, attendMetric, AttendBound)
	run, err := newRerankRun(e, k, p, a)
	if err == nil {
		err = run.attendTo(p, a, o, NewTally(c.Name, lseMetric, ScoreBound(0)))
	}
	if err == nil && selects {
		run.selected = NewTally(c.Name, selectMetric, SelectBound)
	}
	if err == nil {
		err = run.all(t)
	}
	if err == nil && p.Cache.Batch() == 1 {
		err = run.allMassed(t, a)
	}
	t.Err(errors.Join(err, a.Free()))
	if err != nil {
		return []Result{t.Result()} // the rest was not compared
	}
	results := []Result{t.Result(), o.Result(), run.attended.lse.Result()}
	if selects {
		results = append(results, run.selected.Result())
	}
	return results
}

// rerankOutputs are what page_rerank_attend writes beside the lists, compared as page_attend's.
type rerankOutputs struct {
	attendRun
	args  kernel.PageRerankAttendArgs
	first []byte // outputs and log-sum-exps of a launch's first try
}

func (r *rerankRun) attendTo(p *Problem, a *Arena, out, lse *Tally) (err error) {
	o := &rerankOutputs{attendRun: attendRun{DeviceProblem: r.DeviceProblem, env: r.env, kernel: r.kernel, out: out, lse: lse,
		rows: p.Rows(p.Q.Heads, p.Q.HeadDim, 2), listRows: r.listRows}}
	if o.output, err = a.Alloc("out", 2*o.rows.Elements()); err != nil {
		return err
	}
	if o.lseOut, err = a.Alloc("lse", int64(4*p.Cache.Batch()*p.Q.Heads)); err != nil {
		return err
	}
	o.args = kernel.PageRerankAttendArgs{Rerank: r.args, Out: o.output.Ptr(), LSE: o.lseOut.Ptr(), OutBatchStride: o.rows.BatchStride, OutHeadStride: o.rows.RowStride}
	r.attended = o
	return nil
}

// allMassed runs the case again with masses beside the scores: where estimates tell what lies outside the candidates, and where those of
// the candidates are so far above their exact scores that the row has to be summed.
func (r *rerankRun) allMassed(t *Tally, a *Arena) (err error) {
	if r.masses, err = a.Alloc("masses", kernel.MassesBytes(r.Problem.Q.Heads)); err != nil {
		return err
	}
	r.args.Masses = r.masses.Ptr()
	if r.attended != nil {
		r.attended.args.Rerank.Masses = r.masses.Ptr()
	}
	for _, r.mislead = range []float64{0, 9} {
		if err := r.all(t); err != nil {
			return fmt.Errorf("with masses, candidates %g nats too high: %w", r.mislead, err)
		}
	}
	return nil
}

// enqueue is the launch: of page_rerank, or of page_rerank_attend.
func (r *rerankRun) enqueue(s device.Stream) error {
	if o := r.attended; o != nil {
		if r.selected != nil {
			return Enqueue(r.kernel, s, r.launch, r.selectingArgs())
		}
		return Enqueue(r.kernel, s, r.launch, &o.args)
	}
	return Enqueue(r.kernel, s, r.launch, &r.args)
}

func (o *rerankOutputs) poison() error {
	if o == nil {
		return nil
	}
	return errors.Join(o.output.Poison(), o.lseOut.Poison())
}

// once compares the outputs of one try with attention over the lists that it left.
func (o *rerankOutputs) once(at, try int, pages, counts []int32) error {
	if o == nil {
		return nil
	}
	outs, err := o.output.Read()
	if err != nil {
		return err
	}
	lses, err := o.lseOut.Read()
	if err != nil {
		return err
	}
	both := append(append([]byte{}, outs...), lses...)
	if try == 1 {
		if !bytes.Equal(o.first, both) {
			return errors.New("a second launch gave other bytes: the kernel is not repeatable")
		}
		return nil
	}
	o.first = both
	lists, err := KernelLists(o.listRows, pages, counts)
	if err != nil {
		return err
	}
	if err := o.rows.Untouched(outs, 2, func(int, int, int) bool { return true }); err != nil {
		return err
	}
	o.compare(at, "chosen pages", outs, lses, o.Cache.AttendAll(o.Problem.Q, lists, o.Logits))
	return nil
}
