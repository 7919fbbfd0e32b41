package verify

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math"
	"math/rand/v2"

	"github.com/kvloom/kvloom/gen/plan"
	"github.com/kvloom/kvloom/internal/launch"
	"github.com/kvloom/kvloom/internal/reference"
	"github.com/kvloom/kvloom/runtime/device"
	"github.com/kvloom/kvloom/runtime/kernel"
	"github.com/kvloom/kvloom/specs"
)

const (
	attendMetric = "output, relative"
	lseMetric    = "lse, nats"
)

func init() { register(plan.PageAttend, checkPageAttend) }

// checkPageAttend compares page_attend with float64 attention, dense and over page lists, at every launch of every case; a second
// launch must give the same bytes, and the workspace must be left zeroed.
func checkPageAttend(ctx context.Context, e *Env, s *specs.Spec, c plan.Candidate, o Options) []Result {
	return eachCase(ctx, e, c, attendMetric, attendCases(s, o), func(k *Kernel, cs Case) []Result {
		return attendCase(e, s, k, cs, o.Seed)
	})
}

// attendCases adds what concerns this family alone.
func attendCases(s *specs.Spec, o Options) []Case {
	p, few := s.Cache.PageSize, min(s.Attention.KVHeads, 2)
	own := Case{Name: "around the splits", Reason: "fewer tokens than a tile, than a block's warps, than the splits", KVHeads: few,
		Lens: []int{16, 17, 127, 129, 255, 257, 40*p + 3}, Layout: TokenMajor, Data: Random}
	cases := Cases(s, o)
	if o.Wants(own.Name) {
		cases = append(cases, own)
	}
	return cases
}

func attendCase(e *Env, s *specs.Spec, k *Kernel, c Case, seed uint64) []Result {
	p, err := NewProblem(s, c, seed)
	if err != nil {
		return []Result{Failed(c.Name, attendMetric, err)}
	}
	a := e.NewArena()
	r := &attendRun{env: e, kernel: k, out: NewTally(c.Name, attendMetric, AttendBound), lse: NewTally(c.Name, lseMetric, ScoreBound(0)),
		lists: rand.New(rand.NewPCG(seed, 0x6c69737473))} // "lists"
	err = r.prepare(p, a)
	if err == nil {
		err = errors.Join(r.all(true), r.all(false))
	}
	r.out.Err(errors.Join(err, a.Free()))
	if err != nil {
		return []Result{r.out.Result()} // the rest was not compared
	}
	return []Result{r.out.Result(), r.lse.Result()}
}

// attendRun is one case on the device.
type attendRun struct {
	*DeviceProblem
	env      *Env
	kernel   *Kernel
	out, lse *Tally
	lists    *rand.Rand

	launch                               launch.Problem
	rows                                 Rows // of the output [batch, q head, dim]
	listRows                             Rows // of page lists [batch, list, slots]
	output, lseOut, pages, counts, space *Buffer
}

func (r *attendRun) prepare(p *Problem, a *Arena) error {
	d, err := p.Upload(a)
	if err != nil {
		return err
	}
	r.DeviceProblem, r.launch = d, r.env.LaunchProblem(p)
	r.rows = p.Rows(p.Q.Heads, p.Q.HeadDim, 2)
	r.listRows = p.Rows(p.Lists(), p.Slots, 4)
	if r.output, err = a.Alloc("out", 2*r.rows.Elements()); err != nil {
		return err
	}
	if r.lseOut, err = a.Alloc("lse", int64(4*p.Cache.Batch()*p.Q.Heads)); err != nil {
		return err
	}
	if r.pages, err = a.Alloc("pages", 4*r.listRows.Elements()); err != nil {
		return err
	}
	if r.counts, err = a.Alloc("counts", int64(4*p.Cache.Batch()*p.Lists())); err != nil {
		return err
	}
	r.space, err = r.kernel.Workspace(r.launch)
	return err
}

func (r *attendRun) args(dense bool) *kernel.PageAttendArgs {
	args := &kernel.PageAttendArgs{
		Cache: r.Args(), Q: r.Q.Ptr(), Out: r.output.Ptr(), LSE: r.lseOut.Ptr(), Workspace: r.space.Ptr(),
		QBatchStride: r.QRows.BatchStride, QHeadStride: r.QRows.RowStride,
		OutBatchStride: r.rows.BatchStride, OutHeadStride: r.rows.RowStride,
		SoftmaxScale: float32(r.Logits.Scale), LogitSoftcap: float32(r.Logits.Softcap),
	}
	if !dense {
		args.Pages, args.Counts, args.Slots = r.pages.Ptr(), r.counts.Ptr(), int32(r.Slots)
		args.PagesBatchStride, args.PagesListStride = r.listRows.BatchStride, r.listRows.RowStride
	}
	return args
}

// all captures the launch once and replays it at every length of the case.
func (r *attendRun) all(dense bool) error {
	r.SetLaunch(0)
	graph, err := r.env.Capture(func(s device.Stream) error { return Enqueue(r.kernel, s, r.launch, r.args(dense)) })
	if err != nil {
		return err
	}
	for i := range r.Case.Launches() {
		if err = r.once(graph, i, dense); err != nil {
			err = fmt.Errorf("launch %d, %s: %w", i, mode(dense), err)
			break
		}
	}
	return errors.Join(err, graph.Close())
}

func mode(dense bool) string {
	if dense {
		return "dense"
	}
	return "page lists"
}

func (r *attendRun) once(graph *Replay, at int, dense bool) error {
	r.SetLaunch(at)
	if err := r.WriteLens(); err != nil {
		return err
	}
	var lists reference.Lists
	if !dense {
		lists = r.choose()
		if err := r.writeLists(lists); err != nil {
			return err
		}
	}
	var outs, lses []byte
	for try := range 2 {
		if err := errors.Join(r.output.Poison(), r.lseOut.Poison()); err != nil {
			return err
		}
		if err := graph.Run(); err != nil {
			return err
		}
		data, err := r.output.Read()
		if err != nil {
			return err
		}
		lse, err := r.lseOut.Read()
		if err != nil {
			return err
		}
		if try == 1 && (!bytes.Equal(data, outs) || !bytes.Equal(lse, lses)) {
			return errors.New("a second launch gave other bytes: the kernel is not repeatable")
		}
		outs, lses = data, lse
	}
	everything := func(int, int, int) bool { return true }
	if err := errors.Join(r.Arena.Check(), r.rows.Untouched(outs, 2, everything), r.space.CheckZero(checkedWorkspace)); err != nil {
		return err
	}
	r.compare(at, mode(dense), outs, lses, r.Cache.AttendAll(r.Problem.Q, lists, r.Logits))
	return nil
}

// choose makes a list of random pages of every length from none to all slots, ascending, sometimes with the page that is filling.
func (r *attendRun) choose() reference.Lists {
	lists := make(reference.Lists, r.Cache.Batch())
	for b := range lists {
		n := r.Pages(b)
		for list := range r.Problem.Lists() {
			count := min(r.Slots, n)
			if list%2 == 1 {
				count = r.lists.IntN(count + 1)
			}
			chosen := make([]int32, 0, count)
			for page := range n { // each page with the chance that fills the list exactly
				if r.lists.IntN(n-page) < count-len(chosen) {
					chosen = append(chosen, int32(page))
				}
			}
			lists[b] = append(lists[b], chosen)
		}
	}
	return lists
}

// writeLists puts the lists on the device, -1 in unused slots as page_select leaves them.
func (r *attendRun) writeLists(lists reference.Lists) error {
	pages := make([]int32, r.listRows.Elements())
	for i := range pages {
		pages[i] = -1
	}
	var counts []int32
	for b := range lists {
		for list, chosen := range lists[b] {
			copy(pages[r.listRows.At(b, list):], chosen)
			counts = append(counts, int32(len(chosen)))
		}
	}
	return errors.Join(r.pages.Write(BytesOfInt32(pages)), r.pages.Freeze(), r.counts.Write(BytesOfInt32(counts)), r.counts.Freeze())
}

func (r *attendRun) compare(at int, what string, outs, lses []byte, want []reference.Attention) {
	bits, lse := Uint16s(outs), Float32s(lses)
	got := make([]float64, r.Problem.Q.HeadDim)
	for i, w := range want {
		b, h := i/r.Problem.Q.Heads, i%r.Problem.Q.Heads
		first := r.rows.At(b, h)
		r.Problem.Q.DType.Values(got, bits[first:first+int64(len(got))])
		where := func() string {
			return fmt.Sprintf("launch %d, %s, request %d, query head %d", at, what, b, h)
		}
		r.out.Add(RelativeError(got, w.Out), AttendBound, where)
		// f32 sums of logits: the error grows with them, as a page score's does.
		r.lse.Add(ScoreError(lse[i], w.LSE), ScoreBound(finite(w.LSE)), func() string {
			return fmt.Sprintf("%s: lse %g, reference %g", where(), lse[i], w.LSE)
		})
	}
}

// finite is |x|, or 0 for an infinity.
func finite(x float64) float64 {
	if math.IsInf(x, 0) {
		return 0
	}
	return math.Abs(x)
}
